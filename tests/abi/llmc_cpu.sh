#!/bin/sh
# examples/llmc_cpu.md is true: its changes, made to a program that has the same lines, compile; the
# result loses what the program without them does, with one fingerprint at every number of ranks and
# stage; and the number of changed lines is the one that the page tells.
#
# llmc_cpu.sh <examples/llmc_cpu.md> <llmc_like.c.in> <include root> <build directory>
set -eu
page="$1" program="$2" headers="$3" build="$4"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$here/llmc"
: >"$here/llmc/dataloader.h"

# Each block's lines but for those with a + stand somewhere, one behind the other; they become those
# but for the ones with a -. Blank lines between what the page shows need not be shown.
awk '
    function matches(at,    i, line) { # the end of the place, or 0
        for (i = 1; i <= count; i++) {
            if (kind[i] == "+")
                continue
            while (i > 1 && text[at] == "" && body[i] != "")
                at++
            if (at > lines || text[at] != body[i])
                return 0
            at++
        }
        return at
    }
    function apply(    at, end, i, made, n) {
        for (at = 1; at <= lines && !(end = matches(at)); at++);
        if (!end) {
            print "llmc_cpu.md changes what is not there: " body[1] >"/dev/stderr"
            failed = 1
            return
        }
        n = 0
        for (i = 1; i < at; i++)
            made[++n] = text[i]
        for (i = 1; i <= count; i++) {
            changed += kind[i] != " "
            if (kind[i] != "-")
                made[++n] = body[i]
        }
        for (i = end; i <= lines; i++)
            made[++n] = text[i]
        lines = n
        for (i = 1; i <= n; i++)
            text[i] = made[i]
    }
    FNR == NR { text[++lines] = $0; next }
    /^```$/ { if (inside) apply(); inside = 0 }
    inside { kind[++count] = $0 == "" ? " " : substr($0, 1, 1); body[count] = substr($0, 2) }
    /^```diff$/ { inside = 1; count = 0 }
    END {
        for (i = 1; i <= lines; i++)
            print text[i]
        print changed >"'"$here"'/changed"
        exit failed
    }' "$program" "$page" >"$here/sharded.c"
changed="$(cat "$here/changed")"
grep -qF "| 0 to 3 | $changed |" "$page" || { echo "the page changes $changed lines, and tells another number" && exit 1; }

# As stages 0 and 1 have it: one unit. The page says what is left out, and what stands instead.
one="$(grep -F 'param_sizes[i], 0, 1, first);`' "$page" | tr -d '`')"
sed '/zero_unit_[a-z]*(z, 1 + l/d; /int layered =/d' "$here/sharded.c" |
    awk -v one="        $one" '/zero_add_tensor\(/ { print one; next } { print }' >"$here/sharded01.c"
grep -qF "| 0 and 1 | $((changed - 5)) |" "$page" || { echo "the page tells another number for stages 0 and 1" && exit 1; }

cp "$program" "$here/plain.c"
for name in plain sharded sharded01; do
    cc -std=c11 -O2 -Wall -Wno-sign-compare -Wno-unused -I"$here" -I"$headers" "$here/$name.c" -o "$here/$name" \
        -L"$build/lib" -lzero -Wl,-rpath,"$build/lib" -lm
done

# run <program> <ranks> <stage> [<options...>]: its losses in $here/losses, its fingerprint
run() {
    "$build/bin/zero-run" -n "$2" -o stage="$3" -o paranoid="${4:-0}" -- "$here/$1" >"$here/output" 2>"$here/errors" || {
        cat "$here/output" "$here/errors" >&2
        exit 1
    }
    sed -n 's/^\[0\] //; s/.* loss \([0-9.]*\).*/\1/p' "$here/output" >"$here/losses"
    sed -n 's/^.*fingerprint //p' "$here/output"
    paste "$here/plain.losses" "$here/losses" | awk 'function abs(x) { return x < 0 ? -x : x }
        abs($1 - $2) > 2e-6 * $1 { print "loss " $2 " instead of " $1; bad = 1 }
        END { exit bad || NR != 18 }' >&2
}
"$here/plain" | sed -n 's/.* loss \([0-9.]*\).*/\1/p' >"$here/plain.losses"
for name in sharded sharded01; do
    first="$(run "$name" 1 0)"
    [ "${#first}" = 32 ] || { echo "$name prints no fingerprint" && exit 1; }
    for ranks in 1 2 4; do
        for stage in 0 1 2 3; do
            [ "$name" = sharded ] || [ "$stage" -lt 2 ] || continue
            again="$(run "$name" "$ranks" "$stage" $((ranks == 2)))"
            [ "$again" = "$first" ] || {
                echo "$name, $ranks ranks, stage $stage: fingerprint $again instead of $first"
                exit 1
            }
        done
    done
done
