#!/bin/sh
# Everything that needs a GPU: builds into build-gpu/, runs the tests with the label `gpu`, those
# again under compute-sanitizer, and the benchmarks, and writes build-gpu/report.txt: ./tests/gpu.sh.
# Or only some of it, whose report is added to the one there is: steps, and behind each, for a
# machine that is lent for minutes, the parts of it.
#
#     ./tests/gpu.sh build                                what each of the others begins with
#     ./tests/gpu.sh tests [NAME...]                      tests, by their names
#     ./tests/gpu.sh sanitizers [TOOL...] [NAME...]       memcheck, racecheck, initcheck
#     ./tests/gpu.sh benchmarks [device|fused|share|attention|largest|gpt2|kernels...]
#
# A program has GPU_LIMIT_S seconds (540) of its own under a sanitizer, and as a benchmark. The
# comparison with PyTorch has GPU_ROUNDS rounds (5). With GPU_SECONDS everything, the build too, ends
# after so many, or up to 10 later; what had no time for it has failed.
# The report is written as its lines come, to GPU_REPORT if that is given: whatever ends this script,
# it has what was done by then.
#
# A machine with a GPU may have neither zero's packages nor a way to get them. On one that has them,
# of the same architecture, `./tests/gpu.sh pack` puts them into build-gpu-packages/; copied there
# with the tree, they are what is built with.
#
# Exit code: 0 all of it succeeded, 1 something failed, 77 there is no GPU.
set -eu
cd "$(dirname "$0")/.."

build=build-gpu packages=build-gpu-packages report="${GPU_REPORT:-build-gpu/report.txt}"
steps="build tests sanitizers benchmarks"
tools="memcheck racecheck initcheck" benchmarks="device fused share attention largest gpt2 kernels"
needed_tests="cuda.resident_gpu cuda.gpt2_layers_gpu cuda.hello_gpu"
limit_s="${GPU_LIMIT_S:-540}" all_s="${GPU_SECONDS:-}" began_all="$(date +%s)"
child="" # what is waited for

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
        dpkg -x "$package" "$root" || return 1
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

# How long what begins now may take, by GPU_SECONDS and otherwise: 0 or less if there is no time left,
# nothing if it may take any.
time_left() { # time_left [<seconds>]
    [ -n "$all_s" ] || { echo "${1:-}"; return 0; }
    left=$((began_all + all_s - $(date +%s)))
    [ -z "${1:-}" ] || [ "$left" -le "$1" ] || left=$1
    echo "$left"
}

# Runs a program that may take so long, and reads nothing. A shell hears of a signal only when what
# it runs has ended, but at once if it waits for something behind it.
limited_to() { # limited_to <seconds, or nothing> <program> [<arguments>]
    may_s="$(time_left "$1")" code=0
    shift
    if [ "${may_s:-1}" -le 0 ]; then
        echo "left out, there is no time left: $*"
        return 1
    fi
    timeout --kill-after=10 "${may_s:-0}" "$@" </dev/null &
    child=$!
    wait "$child" || code=$?
    child=""
    [ $code != 124 ] && [ $code != 137 ] || echo "stopped after $may_s s: $*"
    return $code
}

limited() {
    limited_to "$limit_s" "$@"
}

# Ends what is waited for, which has as long for that as if its time were over.
stop() {
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null || true
        wait "$child" || true
    fi
    exit 1
}

build() {
    use_packages || return 1
    use_nvidia
    generator="Unix Makefiles"
    ! command -v ninja >/dev/null || generator=Ninja
    limited_to "" cmake -S . -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release \
        -DZERO_CUDA=ON -DZERO_TESTS=ON -DZERO_FAULT_POINTS=ON \
        ${nccl:+-DNCCL_INCLUDE_DIR="$nccl"} ${cublas:+-DCUBLASLT_INCLUDE_DIR="$cublas"} \
        >"$build/make.log" 2>&1 || return 1
    limited_to "" cmake --build "$build" -j "$(nproc)" >>"$build/make.log" 2>&1
}

tell_failed_build() {
    tail -n 30 "$build/make.log" 2>/dev/null || true # it may not have come to that
    ! grep -qs "equired package" "$build/make.log" || [ -d "$packages" ] ||
        echo "what is missing can be brought along: ./tests/gpu.sh pack, where there are packages"
    echo "== build: FAILED"
}

# What the machine has, and what was built with.
describe() {
    git log -1 --format='commit %h, %s' 2>/dev/null || true
    nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm --format=csv,noheader || true
    uname -srm
    sed -n '/^-- zero /,/cmocka/s/^-- *//p' "$build/make.log"
}

# The parts of a step that are asked for: all it has, if none is.
parts_of() { # parts_of <those it has> [<words>]
    has=" $(echo $1) "
    shift
    chosen=""
    for word in "$@"; do
        case "$has" in
        *" $word "*) chosen="$chosen $word" ;;
        esac
    done
    echo "${chosen:-$has}"
}

# Whether a step has all that are asked for.
has_parts() { # has_parts <those it has> [<words>]
    has=" $(echo $1) "
    shift
    for word in "$@"; do
        case "$has" in
        *" $word "*) ;;
        *)
            echo "there is no '$word'; there are:$has"
            return 1
            ;;
        esac
    done
}

step_build() {
    tail -n 1 "$build/make.log"
}

# What tests have left out, because there are too few GPUs, or there is none that would fail when it
# is told to; and why whole ones are skipped.
list_left_out() { # list_left_out <log of ctest>
    [ -e "$1" ] || return 0
    awk '/^[0-9]+\/[0-9]+ Test: / { test = $3 }
         /^\[  SKIPPED \] [a-z][a-z0-9_]*$/ { print test ": skipped " $4 }
         /^skipped: / { print test ": " $0 }
         /^left out: / { sub(/^left out: /, ""); print test ": left out: " $0 }' "$1" | sort -u
}

# Those of some tests that ctest has not come to.
list_without_time() { # list_without_time <what ctest has said> <names>
    said="$1"
    shift
    for name in "$@"; do
        grep -q " Test *#[0-9]*: $name " "$said" || echo "left out, there is no time left: $name"
    done
}

# Where there is a GPU, a test that finds none has failed, and so has a build that has no tests of
# NCCL, of gpt2 or of hello_cuda. ctest stops by a time of day, which is tomorrow's if it is
# past: it has some seconds to stop by itself, but does not outlast GPU_SECONDS.
step_tests() { # step_tests [<names>]
    known="$(ctest --test-dir "$build" -N -L '^gpu$' | sed -n 's/^ *Test *#[0-9]*: //p')"
    said="$build/ctest.log" lacks=0 failed=0
    has_parts "$known" "$@" || return 1
    [ $# -gt 0 ] || has_parts "$known" $needed_tests || lacks=1
    names="$(echo "$*" | tr ' ' '|')"
    : >"$said"
    rm -f "$build/Testing/Temporary/LastTest.log"
    limited_to "" ctest --test-dir "$build" -L '^gpu$' -R "^(${names:-.*})\$" --output-on-failure --no-tests=error \
        ${all_s:+--stop-time "$(date -d "@$((began_all + all_s - 5))" +%T)"} \
        --output-log "$said" 2>&1 || failed=1
    list_left_out "$build/Testing/Temporary/LastTest.log"
    without="$(list_without_time "$said" ${*:-$known})"
    [ -z "$without" ] || echo "$without"
    [ $failed = 0 ] && [ $lacks = 0 ] && [ -z "$without" ] && ! grep -q '\*\*\*Skipped' "$said"
}

# A test's program under a tool: one finding is a failure, and so is a test that fails; but its
# children, some of which are meant to, may end as they like.
sanitize() { # sanitize <tool> <program> [<arguments>]
    tool="$1"
    shift
    rm -f "$build/verdict"
    limited compute-sanitizer --tool "$tool" --error-exitcode 1 --check-exit-code no \
        --print-limit 50 --launch-timeout 60 \
        $([ "$tool" != memcheck ] || echo --leak-check full) --target-processes all \
        sh -c 'verdict="$1"; shift; "$@"; echo $? >"$verdict"' sh "$build/verdict" "$@" &&
        [ "$(cat "$build/verdict")" = 0 ]
}

# Each of the programs that run on a GPU, under each of the tools.
step_sanitizers() { # step_sanitizers [<tools and names>]
    if ! command -v compute-sanitizer >/dev/null; then
        echo "left out: there is no compute-sanitizer here"
        return 0
    fi
    programs="$(cut -d ' ' -f 1 "$build/gpu-programs")"
    has_parts "$tools $programs" "$@" || return 1
    names=" $(parts_of "$programs" "$@") "
    failed=0
    for tool in $(parts_of "$tools" "$@"); do
        while read -r name command; do
            case "$names" in
            *" $name "*) ;;
            *) continue ;;
            esac
            echo "-- $tool, $name"
            sanitize "$tool" $command || { echo "-- $tool, $name: FAILED"; failed=1; }
        done <"$build/gpu-programs"
    done
    return $failed
}

bench_device() {
    limited "$build/bin/tests/bench_device" $((128 * 1024 * 1024)) $python
}

bench_fused() {
    limited "$build/bin/tests/bench_fused"
}

bench_share() {
    limited "$build/bin/tests/bench_share_gpu"
}
bench_attention() {
    limited "$build/bin/tests/bench_gpt2_gpu"
}
bench_largest() {
    limited tests/bench/gpt2_largest.sh "$build/bin"
}
bench_gpt2() {
    [ -z "$python" ] || PYTHONDONTWRITEBYTECODE=1 limited $python tests/bench/gpt2_gpu.py "$build/bin" "${GPU_ROUNDS:-5}"
}
bench_kernels() {
    if ! command -v ncu >/dev/null; then
        echo "left out: there is no ncu here"
        return 0
    fi
    PYTHONDONTWRITEBYTECODE=1 limited python3 tests/bench/gpt2_kernels.py "$build/bin"
}

step_benchmarks() { # step_benchmarks [<parts>]
    has_parts "$benchmarks" "$@" || return 1
    python=""
    if python3 -c 'import torch' 2>/dev/null; then
        python=python3
    else
        echo "left out: what is compared with PyTorch; there is no torch for python3 here"
    fi
    failed=0
    for part in $(parts_of "$benchmarks" "$@"); do
        "bench_$part" || { echo "-- $part: FAILED"; failed=1; }
    done
    return $failed
}

run_step() { # run_step <step> [<parts>]
    step="$1" began="$(date +%s)" result=ok
    echo "== $*"
    shift
    "step_$step" "$@" || { result=FAILED; status=1; }
    echo "== $step: $result, $(($(date +%s) - began)) s"
}

# Everything that is said from here on is the report's, and shown as it comes. No process reads it
# from a pipe, which what a killed test has left behind could hold open.
begin_report() {
    mkdir -p "$build"
    rm -f "$build/make.log" # another build's
    [ $# -gt 0 ] || rm -f "$report"
    : >>"$report"
    first=$(($(wc -c <"$report") + 1)) # what is there when tail begins may be more
    tail --pid=$$ -c "+$first" -f "$report" &
    shower=$!
    trap 'sleep 1; kill $shower' EXIT
    trap stop HUP INT TERM
    exec >>"$report" 2>&1
    echo "zero on a GPU, $(date -u '+%Y-%m-%d %H:%M') UTC: ${*:-all}"
}

if [ "$*" = pack ]; then
    step_pack
    exit 0
fi
asked="" # a step and its parts a line
for word in ${@:-$steps}; do
    case " $steps " in
    *" $word "*)
        asked="$asked
$word"
        ;;
    *)
        [ -n "$asked" ] || {
            echo "tests/gpu.sh: no step '$word'; there are: $steps, and pack" >&2
            exit 2
        }
        asked="$asked $word"
        ;;
    esac
done
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "tests/gpu.sh: no GPU here: nvidia-smi lists none" >&2
    exit 77
fi

begin_report "$@"
build || { tell_failed_build; exit 1; }
describe
status=0
IFS='
'
set -- $asked
unset IFS
for line in "$@"; do
    run_step $line
done
exit $status
