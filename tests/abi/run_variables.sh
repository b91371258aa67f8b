#!/bin/sh
# What zero-run gives to the ranks is named by --help and the man page:
# run_variables.sh <zero-run> <zero-run.1>
set -eu
zero_run="$1" page="$2"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

"$zero_run" --help >"$dir/text"
{
    "$zero_run" -o a=b --metrics "$dir/metrics" -- env
    "$zero_run" --plan -- sh -c 'env; echo >&$ZERO_PLAN_FD' 2>&1
} | sed -n 's/^\(ZERO_[A-Z_]*\|[A-Z_]*RANK\|[A-Z_]*WORLD_SIZE\|MASTER_[A-Z]*\)=.*/\1/p' |
    sort -u >"$dir/variables"
[ "$(wc -l <"$dir/variables")" -ge 16 ] || { echo "variables are missing"; exit 1; }
while read -r variable; do
    grep -qw "$variable" "$dir/text" && grep -qw "$variable" "$page" ||
        { echo "$variable is not told of"; exit 1; }
done <"$dir/variables"
