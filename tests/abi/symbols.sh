#!/bin/sh
# What the shared library exports is what the headers declare and what the symbol map lists; and it
# calls nothing that ends the process or prints.
#
# symbols.sh <libzero.so> <libzero.map> <headers...>
set -eu
library="$1" map="$2"
shift 2
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

cat "$@" | tr '\n' ' ' | grep -oE 'ZERO_API [^;()]*\(' | grep -oE 'zero_[a-z0-9_]+\($' |
    tr -d '(' | sort >"$here/declared"
grep -oE '\bzero_[a-z0-9_]+;' "$map" | tr -d ';' | sort >"$here/mapped"
nm -D --defined-only "$library" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' |
    sort >"$here/exported"

[ -s "$here/declared" ] || { echo "no declaration found" && exit 1; }
status=0
for list in mapped exported; do
    if ! diff "$here/declared" "$here/$list" >"$here/difference"; then
        echo "declared in the headers (<) and $list (>) differ:"
        cat "$here/difference"
        status=1
    fi
done

# Training programs define these themselves.
if grep -xE 'zero_(grad|grads|init|fill|buffer|memory)' "$here/exported"; then
    echo "exported, and reserved for programs"
    status=1
fi

# assert() in builds that have it, what sanitizers bring along, and _exit(), which base/fault.c calls
# when ZERO_FAULT asks for the end of the process, are no calls of ours.
nm -D --undefined-only "$library" | awk '{ sub("@.*", "", $2); print $2 }' |
    grep -xE 'abort|exit|_Exit|quick_exit|v?printf|v?fprintf|puts|putchar|perror|stdout|stderr' \
        >"$here/forbidden" || true
if [ -s "$here/forbidden" ]; then
    echo "the library ends the process or prints:"
    cat "$here/forbidden"
    status=1
fi
exit $status
