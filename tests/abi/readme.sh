#!/bin/sh
# The README's program is examples/hello.c, and that is short: readme.sh <repository>
set -eu
cd "$1"
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' | diff - examples/hello.c || {
    echo "README.md (<) and examples/hello.c (>) differ"
    exit 1
}
lines="$(wc -l <examples/hello.c)"
[ "$lines" -lt 80 ] || { echo "examples/hello.c has $lines lines" && exit 1; }
