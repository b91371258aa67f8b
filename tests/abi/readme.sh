#!/bin/sh
# The README's programs are those of examples/, and they are short, kernels counted: readme.sh
# <repository>
set -eu
cd "$1"
number=0
for program in examples/hello.c examples/hello_cuda.cu examples/groups.c; do
    number=$((number + 1))
    awk -v n="$number" '/^```$/ { on = 0 } on { print } /^```c(uda)?$/ { on = ++count == n }' README.md |
        diff - "$program" || {
        echo "README.md (<) and $program (>) differ"
        exit 1
    }
    lines="$(wc -l <"$program")"
    [ "$lines" -lt "$([ "${program##*.}" = cu ] && echo 105 || echo 80)" ] || { echo "$program has $lines lines" && exit 1; }
done
