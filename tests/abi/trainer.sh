#!/bin/sh
# <zero/trainer.h> in a C and a C++ program: only rank 0 prints, and the same on any number of ranks;
# who fails says so once, with an exit code that says whether a new start may help.
#
# trainer.sh <trainer.c> <include root> <build directory>
set -eu
source="$1" headers="$2" build="$3"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM
warnings="-Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror"
link="-I$headers -L$build/lib -lzero -Wl,-rpath,$build/lib"
cc -std=c11 $warnings "$source" -o "$here/c" $link
c++ -x c++ -std=c++11 $warnings "$source" -x none -o "$here/cc" $link

fails() { # fails <exit code> <what standard error has> <command...>
    code="$1" says="$2"
    shift 2
    status=0
    "$@" >"$here/output" 2>"$here/errors" || status=$?
    [ "$status" = "$code" ] && grep -qF -- "$says" "$here/errors" || {
        echo "$*: exit code $status instead of $code, or it does not say: $says"
        cat "$here/errors"
        exit 1
    }
}

"$here/c" >"$here/plain"
grep -qx 'loss 0.5 norm 149.9000' "$here/plain" || { cat "$here/plain" && exit 1; }
grep -qxE 'fingerprint [0-9a-f]{32}' "$here/plain"
for program in c cc; do
    for ranks in 1 2 3; do
        "$build/bin/zero-run" -n "$ranks" -o stage=3 -- "$here/$program" 2>"$here/errors" |
            sed 's/^\[0\] //' | diff "$here/plain" - || { cat "$here/errors" && exit 1; }
    done
    fails 78 "zero: tensor first is registered already" "$here/$program" refused
    fails 78 "there is no metric speed" "$here/$program" metric
    fails 78 "release of unit 1 (second.1), which is not gathered" "$build/bin/zero-run" -n 2 -- "$here/$program" alone
    "$build/bin/zero-run" --plan -n 2 -- "$here/$program" >"$here/output" 2>&1 || { echo "no plan" && exit 1; }
done
