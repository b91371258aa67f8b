#!/bin/sh
# What a user builds has no tests, which are more than all else; they can be switched on and off in a
# folder that is configured already: configure.sh <repository>
set -eu
repository="$1"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

configure() { # configure [<options...>]: prints how many steps a build would take
    cmake -G Ninja -S "$repository" -B "$here" "$@" >"$here/log" 2>&1 || {
        cat "$here/log" >&2
        exit 1
    }
    ninja -C "$here" -n | sed -n 's,^\[1/\([0-9]*\)\].*,\1,p'
}

expect() { # expect <yes or no> <what was done>
    [ "$(ninja -C "$here" -t targets all | grep -qx 'unit.base_error: phony' && echo yes || echo no)" = "$1" ] || {
        echo "$2: tests are built: not $1"
        exit 1
    }
}

plain="$(configure)"
expect no "by default"
compiles() { # compiles: the command that compiles the places where tests inject failures
    ninja -C "$here" -t commands zero_shared | grep 'base/fault\.c'
}

points() { # points <yes or no> <what was done>
    [ "$(compiles | grep -q ZERO_FAULT_POINTS && echo yes || echo no)" = "$1" ] || {
        echo "$2: the build has fault points: not $1"
        exit 1
    }
}

points no "by default"
cmake -DZERO_TESTS=ON "$here" >"$here/log" 2>&1 && { echo "tests without fault points" && exit 1; }
grep -q 'ZERO_TESTS=ON needs ZERO_FAULT_POINTS=ON' "$here/log" || { cat "$here/log" && exit 1; }
tests="$(configure -DZERO_TESTS=ON -DZERO_FAULT_POINTS=ON)"
points yes "switched on"
expect yes "switched on"
again="$(configure -DZERO_TESTS=OFF -DZERO_FAULT_POINTS=OFF)"
points no "switched off again"
expect no "switched off again"
configure -DZERO_TESTS=AUTO -DZERO_FAULT_POINTS=OFF >/dev/null
expect no "AUTO, without fault points"
auto="$(configure -DZERO_TESTS=AUTO -DZERO_FAULT_POINTS=ON)"
expect yes "AUTO, with cmocka there"
[ "$plain $tests" = "$again $auto" ] || { echo "$plain $tests steps, and then $again $auto" && exit 1; }
[ "$plain" -lt $((tests / 2)) ] || { echo "$plain of $tests steps without tests" && exit 1; }
echo "$plain steps without tests, $tests with them"
