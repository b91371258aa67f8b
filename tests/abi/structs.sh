#!/bin/sh
# Every public struct with a struct_size is tested with other sizes, and those that a program makes
# have a function that gives one with every field at its default: structs.sh <test> <headers...>
set -eu
client="$1"
shift
structs="$(awk '/^typedef struct .*{$/ { sized = 0 } / struct_size;/ { sized = 1 }
                /^} zero_.*;$/ { if (sized) print substr($2, 1, length($2) - 1); sized = 0 }' "$@")"
[ "$(echo "$structs" | wc -l)" -ge 8 ] || { echo "the structs are not found" && exit 1; }
status=0
for struct in $structs; do
    grep -qE "(INPUT|OUTPUT|GIVEN)\($struct, " "$client" || {
        echo "$struct is not tested by $client"
        status=1
    }
    grep -qE "GIVEN\($struct, " "$client" ||
        cat "$@" | grep -qE "^static inline $struct zero_[a-z_]+_default\(void\)" || {
        echo "$struct has no zero_..._default()"
        status=1
    }
done
exit $status
