#!/bin/sh
# Everything a change has to pass: ./tests/run.sh. Or only some of it: ./tests/run.sh format tidy.
set -eu
cd "$(dirname "$0")/.."

jobs="$(nproc)"
all="setup format ci tidy asan-ubsan tsan"

build() { # build <preset>
    cmake --preset "$1"
    cmake --build --preset "$1" -j "$jobs"
}

run() { # run <preset> <tests a processor>: several, because ranks wait for one another
    ctest --preset "$1" -j "$(($2 * jobs))"
}

step_setup() {
    cmake/setup-debian.sh test
}

step_format() {
    find base collectives offload checkpoint zero tools examples tests \
        -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' |
        xargs clang-format --dry-run -Werror
    tests/house/lengths.py
}

# Optimised, by gcc, with -Werror, and every test but the slow ones. It takes more tests at a time
# than sanitizers do, which leave less of a processor idle.
step_ci() {
    build ci
    run ci 5
}

# Of a function's paths the analyzer walks a fifth of what it would by itself: the last ones take most
# of the time and have shown nothing yet.
step_tidy() {
    cmake --preset asan-ubsan >/dev/null
    sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build-asan-ubsan/compile_commands.json | sort -u |
        xargs -P "$jobs" -n 1 clang-tidy --quiet -p build-asan-ubsan \
            --extra-arg=-Xclang --extra-arg=-analyzer-config \
            --extra-arg=-Xclang --extra-arg=max-nodes=40000
}

# By clang, with -Werror: its warnings are others than gcc's, and its numbers have to be the same.
step_asan_ubsan() {
    build asan-ubsan
    run asan-ubsan 3
}

# Ranks that are threads: the tests with the label `threads`. By clang: gcc 12's runtime takes twice
# the time.
step_tsan() {
    build tsan
    run tsan 3
}

for step in ${@:-$all}; do
    case " $all " in
    *" $step "*) ;;
    *)
        echo "tests/run.sh: no step '$step'; there are: $all" >&2
        exit 2
        ;;
    esac
done

for step in ${@:-$all}; do
    began="$(date +%s)"
    echo "== $step"
    "step_$(echo "$step" | tr - _)"
    echo "== $step: ok, $(($(date +%s) - began)) s"
done
