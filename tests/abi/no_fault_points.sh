#!/bin/sh
# A build without ZERO_FAULT_POINTS, as is installed, has nothing that ZERO_FAULT could fail or
# kill, and says so to a user who sets it: no_fault_points.sh <repository> <include roots...>
set -eu
repository="$1"
shift
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

cat >"$here/points.c" <<'C'
#include "base/fault.h"
#include <stdio.h>
int main(void)
{
    struct base_error error = {.result = ZERO_OK};
    const zero_result result = base_fault_check_environment(&error);
    printf("%d %d %s\n", base_fault("alloc"), (int)result, error.message);
    return result == ZERO_E_UNSUPPORTED;
}
C
includes=
for root; do
    includes="$includes -I$root"
done
cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror $includes "$here/points.c" \
    "$repository/base/fault.c" "$repository/base/error.c" -o "$here/points"

env -u ZERO_FAULT "$here/points" >"$here/unset"
grep -qx '0 0 ' "$here/unset" || { cat "$here/unset" && exit 1; }
if ZERO_FAULT=alloc:kill@1 "$here/points" >"$here/set"; then
    echo "a set ZERO_FAULT is not refused:" && cat "$here/set" && exit 1
fi
grep -q "^0 -.* ZERO_FAULT is set to 'alloc:kill@1', and this build has no fault points" "$here/set" || {
    cat "$here/set" && exit 1
}
