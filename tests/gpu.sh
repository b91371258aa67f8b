#!/bin/sh
# Everything that needs a GPU: builds into build-gpu/, runs the tests with the label `gpu`, those
# again under compute-sanitizer, and the benchmarks, and writes build-gpu/report.txt: ./tests/gpu.sh.
# Or only some of it: ./tests/gpu.sh tests sanitizers.
#
# A machine with a GPU may have neither zero's packages nor a way to get them. On one that has them,
# of the same architecture, `./tests/gpu.sh pack` puts them into build-gpu-packages/; copied there
# with the tree, they are what is built with.
#
# Exit code: 0 all of it succeeded, 1 something failed, 77 there is no GPU.
set -eu
cd "$(dirname "$0")/.."

build=build-gpu packages=build-gpu-packages report=build-gpu/report.txt
all="tests sanitizers benchmarks"

step_pack() {
    mkdir -p "$packages"
    (cd "$packages" && apt-get download \
        libcmocka-dev libcmocka0 libgfortran5 libhwloc-dev libhwloc15 libjansson-dev libjansson4 \
        libopenblas-pthread-dev libopenblas0-pthread libpkgconf3 libquadmath0 libudev1 liburing-dev \
        liburing2 libxxhash-dev libxxhash0 libzstd-dev libzstd1 pkgconf-bin)
    du -sh "$packages"
}

# What was packed is found before anything else, also by the programs that are built with it.
use_packages() {
    [ -d "$packages" ] || return 0
    root="$PWD/$build/packages" libraries="$PWD/$build/packages/usr/lib/x86_64-linux-gnu"
    for package in "$packages"/*.deb; do
        dpkg -x "$package" "$root"
    done
    export PATH="$root/usr/bin:$PATH" PKG_CONFIG="$root/usr/bin/pkgconf"
    export PKG_CONFIG_SYSROOT_DIR="$root"
    export PKG_CONFIG_SYSTEM_INCLUDE_PATH=/none PKG_CONFIG_SYSTEM_LIBRARY_PATH=/none
    export PKG_CONFIG_LIBDIR="$libraries/pkgconfig:$libraries/openblas-pthread/pkgconfig"
    export CMAKE_LIBRARY_PATH="$libraries" # libzstd.pc names the folder above it
    export LD_LIBRARY_PATH="$libraries:$libraries/openblas-pthread${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# A folder of a package of PyTorch's, which has NVIDIA's libraries where there is no other.
nvidia() { # nvidia <package> <folder>
    python3 - "$1" "$2" 2>/dev/null <<'END' || true
import glob, os, sys, sysconfig
for path in sys.path + [sysconfig.get_path("purelib")]:
    for folder in glob.glob(os.path.join(path, "nvidia", sys.argv[1], sys.argv[2])):
        print(folder)
        sys.exit()
END
}

use_nvidia() {
    for package in nccl cublas cu13; do
        folder="$(nvidia $package lib)"
        [ -z "$folder" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    done
    nccl="$(nvidia nccl include)"
    cublas="$(nvidia cu13 include)"
    [ -n "$cublas" ] || cublas="$(nvidia cublas include)"
}

build() {
    mkdir -p "$build"
    use_packages
    use_nvidia
    generator="Unix Makefiles"
    ! command -v ninja >/dev/null || generator=Ninja
    cmake -S . -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DZERO_CUDA=ON -DZERO_TESTS=ON \
        ${nccl:+-DNCCL_INCLUDE_DIR="$nccl"} ${cublas:+-DCUBLASLT_INCLUDE_DIR="$cublas"} \
        >"$build/build.log" 2>&1 &&
        cmake --build "$build" -j "$(nproc)" >>"$build/build.log" 2>&1 ||
        { tail -n 30 "$build/build.log"; exit 1; }
}

describe() {
    echo "zero on a GPU, $(date -u '+%Y-%m-%d %H:%M') UTC"
    git log -1 --format='commit %h, %s' 2>/dev/null || true
    nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm --format=csv,noheader
    nvcc --version | grep release
    uname -srm
}

# Where there is a GPU, a test that finds none has failed.
step_tests() {
    ctest --test-dir "$build" -L '^gpu$' --output-on-failure --no-tests=error >"$build/ctest.log" 2>&1
    failed=$?
    cat "$build/ctest.log"
    [ $failed = 0 ] && ! grep -q '\*\*\*Skipped' "$build/ctest.log"
}

# Each of the programs that run on a GPU, under each of the tools; one finding is a failure. Children may
# end as they like.
step_sanitizers() {
    if ! command -v compute-sanitizer >/dev/null; then
        echo "left out: there is no compute-sanitizer here"
        return 0
    fi
    failed=0
    for tool in memcheck racecheck initcheck; do
        while read -r name command; do
            echo "-- $tool, $name"
            compute-sanitizer --tool "$tool" --error-exitcode 1 --check-exit-code no \
                $([ $tool != memcheck ] || echo --leak-check full) \
                --target-processes all $command </dev/null || failed=1
        done <"$build/gpu-programs"
    done
    return $failed
}

step_benchmarks() {
    python=""
    if python3 -c 'import torch' 2>/dev/null; then
        python=python3
    else
        echo "left out: what is compared with PyTorch; there is no torch for python3 here"
    fi
    failed=0
    "$build/bin/tests/bench_device" $((128 * 1024 * 1024)) $python || failed=1
    "$build/bin/tests/bench_announced" || failed=1
    [ -z "$python" ] || tests/bench/gpt2_gpu.sh "$build/bin" $python || failed=1
    return $failed
}

if [ "$*" = pack ]; then
    step_pack
    exit 0
fi
for step in ${@:-$all}; do
    case " $all " in
    *" $step "*) ;;
    *)
        echo "tests/gpu.sh: no step '$step'; there are: $all, and pack" >&2
        exit 2
        ;;
    esac
done
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "tests/gpu.sh: no GPU here: nvidia-smi lists none" >&2
    exit 77
fi

build
describe | tee "$report"
status=0
for step in ${@:-$all}; do
    began="$(date +%s)"
    result=ok
    echo "== $step" | tee -a "$report"
    "step_$step" >"$build/$step.log" 2>&1 || { result=FAILED; status=1; }
    tee -a "$report" <"$build/$step.log"
    echo "== $step: $result, $(($(date +%s) - began)) s" | tee -a "$report"
done
exit $status
