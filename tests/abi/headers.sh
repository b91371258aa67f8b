#!/bin/sh
# Every public header compiles by itself as C11 and C++11, and all of them, both ways round, up to
# C++20, with no warning: headers.sh <include root> <C compiler> <C++ compiler> <headers...>
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

forwards="" backwards=""
for header in "$@"; do
    forwards="$forwards#include <zero/$header>\n"
    backwards="#include <zero/$header>\n$backwards"
done
for header in "$@"; do
    text="#include <zero/$header>\n#include <zero/$header>\n"
    check "$cc" c c11 "$text"
    check "$cxx" c++ c++11 "$text"
done
for text in "$forwards$backwards" "$backwards$forwards"; do
    check "$cc" c c11 "$text"
    for standard in c++11 c++14 c++17 c++20; do
        check "$cxx" c++ "$standard" "$text"
    done
done
