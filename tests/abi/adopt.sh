#!/bin/sh
# Few lines make a plain trainer a sharded one: adopt.sh <examples/adopt>
#
# Counted are the lines that diff finds added, changed ones included, after comments and blank lines
# are gone. README.md says the same numbers, and the code it shows is that of the programs.
set -eu
cd "$1"
for command in patch clang-format; do
    command -v "$command" >/dev/null || { echo "no $command here" && exit 77; }
done
status=0
here="$(mktemp -d)" a="$here/a" b="$here/b"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM
patch --silent --fuzz=0 --output="$here/sharded01.c" plain.c sharded01.patch
patch --silent --fuzz=0 --output="$here/sharded.c" "$here/sharded01.c" sharded.patch

code() { # code <file>: all comments are //, and no string has //
    ! grep -nE '/\*|\*/|"[^"]*//' "$1" >&2 || exit 1
    sed 's,//.*$,,; s/[[:space:]]*$//; /^$/d' "$1"
}

# check <file> <limit>
check() {
    code "$here/$1" >"$b"
    clang-format --style=file:../../.clang-format --dry-run -Werror "$here/$1" || status=1
    added="$(diff "$a" "$b" | grep -c '^>')"
    echo "$1: $added lines added"
    [ "$added" -lt "$2" ] || { echo "that is not fewer than $2" && status=1; }
    grep -qF "| \`$1\` | $added |" README.md || { echo "README.md has another number" && status=1; }
}
code plain.c >"$a"
check sharded01.c 25
check sharded.c 45

awk '/^```$/ { on = 0 } on && NF { print } /^```c$/ { on = 1 }' README.md >"$a"
[ -s "$a" ] || { echo "README.md shows no code" && status=1; }
while IFS= read -r line; do
    grep -qxF -- "$line" "$here/sharded01.c" "$here/sharded.c" || { echo "in README.md only: $line" && status=1; }
done <"$a"
exit $status
