#!/bin/sh
# --help and the man page tell of the same options and exit statuses:
# run_options.sh <zero-run> <zero-run.1>
set -eu
zero_run="$1" page="$2"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT

# An option stands at the start of its line, a short one before its long one.
"$zero_run" --help >"$dir/text"
sed -n '/^  [ -]/s/^ *\(-[^ ,]*\)\(, \(-[^ ]*\)\)\{0,1\} .*/\1 \3/p' "$dir/text" |
    tr -s ' ' '\n' | sed '/^$/d' | sort >"$dir/help"
sed -n 's/^\.It Fl //p' "$page" | sed 's/ , Fl /\n/g' | sed 's/ .*//; s/^/-/' | sort >"$dir/page"
diff "$dir/help" "$dir/page" || { echo "options: --help (<) and the man page (>) differ"; exit 1; }
grep -qx -e --timeout "$dir/help" || { echo "the options of --help are not found"; exit 1; }

# The synopsis has them all but -h and the long form of -n.
sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' "$page" | tr ' ' '\n' |
    sed -n 's/^-\([a-z]\)/--\1/p; s/^\([no]\)$/-\1/p' | sort -u >"$dir/synopsis"
grep -vx -e -h -e --ranks "$dir/page" | diff - "$dir/synopsis" ||
    { echo "options: the man page (<) and its synopsis (>) differ"; exit 1; }

sed -n '/^Exit status:/,$s/^ *\([0-9][0-9]*\)   .*/\1/p' "$dir/text" >"$dir/help"
sed -n '/^\.Sh EXIT STATUS/,$s/^\.It \([0-9][0-9]*\)$/\1/p' "$page" >"$dir/page"
diff "$dir/help" "$dir/page" || { echo "statuses: --help (<) and the man page (>) differ"; exit 1; }
[ "$(wc -l <"$dir/page")" -ge 10 ] || { echo "the statuses are not found"; exit 1; }

# What the ranks are given is named in both.
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
