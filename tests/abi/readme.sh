#!/bin/sh
# The README's program is that of examples/, and the examples are short, kernels counted: readme.sh
# <repository>
set -eu
cd "$1"
awk '/^```$/ { on = 0 } on { print } /^```c$/ { on = 1 }' README.md | diff - examples/hello.c || {
    echo "README.md (<) and examples/hello.c (>) differ"
    exit 1
}
for program in examples/hello.c examples/hello_cuda.cu examples/groups.c; do
    lines="$(wc -l <"$program")"
    [ "$lines" -lt "$([ "${program##*.}" = cu ] && echo 105 || echo 80)" ] || { echo "$program has $lines lines" && exit 1; }
done
