#!/bin/sh
# Every public header compiles by itself, and both ways round, as C11 and as C++11 to C++20, with
# no warning: headers.sh <include root> <C compiler> <C++ compiler> <headers...>
set -eu
root="$1" cc="$2" cxx="$3"
shift 3

for compiler in "$cc" "$cxx"; do
    command -v "$compiler" >/dev/null || { echo "no $compiler here" && exit 77; }
done

warnings="-Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror"

check() { # check <compiler> <language> <standard> <source text>
    printf '%b' "$4" | "$1" -x "$2" -std="$3" $warnings -fsyntax-only -I"$root" - || {
        printf "%s -std=%s fails on:\n%b" "$1" "$3" "$4"
        exit 1
    }
}

all=""
for header in "$@"; do
    all="#include <zero/$header>\n$all"
done
for header in "$@"; do
    text="#include <zero/$header>\n#include <zero/$header>\n$all"
    check "$cc" c c11 "$text"
    for standard in c++11 c++14 c++17 c++20; do
        check "$cxx" c++ "$standard" "$text"
    done
done
