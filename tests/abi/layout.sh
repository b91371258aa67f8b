#!/bin/sh
# Public structs and constants are what a program was compiled with: layout.sh <include root>
# <layout.txt> <headers...>
#
# layout.txt has every field with its offset and type, and every enumerator. Fields are only ever
# appended, values never change: its lines may become more, and no line another one.
set -eu
root="$1" golden="$2"
shift 2
command -v clang >/dev/null || { echo "no clang here" && exit 77; }
[ "$(getconf LONG_BIT)" = 64 ] || { echo "offsets are those of 64 bits" && exit 77; }
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# A struct's layout is dumped where its size is asked for.
cd "$root/zero"
for header in "$@"; do
    echo "#include <zero/$header>"
done >"$dir/structs.c"
awk '/^typedef struct .*{$/ { inside = 1 }
     /^} zero_.*;$/ { if (inside) print "char size_of_" $2 "[sizeof(" $2 ")]"; inside = 0 }' "$@" |
    sed 's/;//g; s/$/;/' >>"$dir/structs.c"
clang -std=c11 -I"$root" -Xclang -fdump-record-layouts -fsyntax-only "$dir/structs.c" |
    sed -n 's/^ *\([0-9][0-9]*\) |   \([a-z].*\) \([a-z_0-9]*\)$/\1 \3: \2/p
            s/^ *0 | struct \(zero_[a-z_]*\)$/\1/p
            s/^ *0 | [a-z].*$/other/p' |
    awk 'NF == 1 { struct = $1; next }
         struct != "other" { print struct "." $2, $1, substr($0, index($0, $3)) }' \
        >"$dir/layout"
grep -ohE '\bZERO_[A-Z0-9_]+ = -?[0-9]+|X\(ZERO_[A-Z_]+, -?[0-9]+' "$@" |
    sed 's/^X(//; s/,//' >>"$dir/layout"
[ "$(wc -l <"$dir/layout")" -ge 130 ] || { echo "the structs are not found" && exit 1; }
sort -o "$dir/layout" "$dir/layout"
sort "$golden" | diff - "$dir/layout" || {
    echo "layout.txt (<) and the headers (>) differ: what was added is recorded there"
    exit 1
}
