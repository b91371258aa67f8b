#!/bin/sh
# --help and the man page tell of the same commands, options and exit statuses:
# options.sh <program> <page>
set -eu
program="$1" page="$2"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# compare <what>: $dir/help and $dir/page are the same.
compare() {
    diff "$dir/help" "$dir/page" || { echo "$1: --help (<) and the man page (>) differ"; exit 1; }
}

# An option stands at the start of its line, a short one before its long one.
"$program" --help >"$dir/text"
sed -n '/^  [ -]/s/^ *\(-[^ ,]*\)\(, \(-[^ ]*\)\)\{0,1\} .*/\1 \3/p' "$dir/text" |
    tr -s ' ' '\n' | sed '/^$/d' | sort >"$dir/help"
sed -n 's/^\.It Fl //p' "$page" | sed 's/ , Fl /\n/g' | sed 's/ .*//; s/^/-/' | sort >"$dir/page"
compare options
[ "$(wc -l <"$dir/help")" -ge 10 ] || { echo "the options of --help are not found"; exit 1; }

# The synopsis has them all but -h and the long form of -n.
sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/ | -/ Fl -/gp; t; /^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' \
    "$page" | grep -o 'Fl [-a-z]*' | sed 's/^Fl /-/; /^--$/d' | sort -u >"$dir/synopsis"
grep -vx -e -h -e --ranks "$dir/page" | diff - "$dir/synopsis" ||
    { echo "options: the man page (<) and its synopsis (>) differ"; exit 1; }

# Commands, where it has any: in the page as in the synopsis.
if grep -qx Commands: "$dir/text"; then
    sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' "$dir/text" | sort >"$dir/help"
    sed -n 's/^\.It Cm \([a-z]*\)$/\1/p' "$page" | sort >"$dir/page"
    compare commands
    sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/^\.Cm \([a-z]*\)$/\1/p' "$page" |
        sort >"$dir/page"
    compare "commands of the synopsis"
fi

sed -n '/^Exit status:/,$s/^ *\([0-9][0-9]*\)   .*/\1/p' "$dir/text" >"$dir/help"
sed -n '/^\.Sh EXIT STATUS/,$s/^\.It \([0-9][0-9]*\)$/\1/p' "$page" >"$dir/page"
compare statuses
[ "$(wc -l <"$dir/page")" -ge 8 ] || { echo "the statuses are not found"; exit 1; }
