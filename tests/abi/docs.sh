#!/bin/sh
# The pages point to what is there: docs.sh <repository>
#
# Links lead to files, and what looks like a source file's name (in backquotes, by its path or by its
# last part) is one. Commands are in fences, where docs_commands.sh finds them.
set -eu
cd "$1"
pages="$(ls ./*.md docs/*.md docs/*/*.md | grep -v -e CHANGELOG)"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
bad=0

find base collectives offload checkpoint zero tools examples tests docs cmake -type f 2>/dev/null |
    sed 'p; s/.*\///' | sort -u >"$dir/files"
for page in $pages; do
    # Prose: without what stands in fences.
    awk '/^```/ { on = !on; next } !on' "$page" >"$dir/prose"
    grep -o '](\([^)#]*\)' "$dir/prose" | sed 's/^](//' | grep -v -e '^http' -e '^$' >"$dir/links" || true
    while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || { echo "$page: no $link"; bad=1; }
    done <"$dir/links"
    grep -o '`[A-Za-z0-9_/.-]*\.\(c\|h\|cu\|sh\|cmake\|in\)`' "$dir/prose" | tr -d '`' |
        grep -v '^\*' | sort -u >"$dir/names" || true
    while read -r name; do
        grep -qx -e "$name" "$dir/files" || { echo "$page: no file $name"; bad=1; }
    done <"$dir/names"
    # Prose is plain: of ten sentences nine have at most 30 words. Tables and headings don't count.
    words="$(awk '/^```/ { on = !on; next } on || /^[|#]/ || /^    / { next } /^(\* |[0-9]+\. |$)/ { print "" } { print }' "$page" |
        awk -v RS= '{ gsub(/[ \n]+/, " "); gsub(/[.!?]\)? [A-Z`*\[(0-9]/, ".\n&"); print }' |
        awk 'NF { print NF }' | sort -n | awk '{ n[NR] = $1 } END { print NR ? n[int(NR * 0.9) + (NR < 10)] : 0 }')"
    [ "${words:-0}" -le 30 ] || { echo "$page: one sentence in ten has $words words or more"; bad=1; }
    if grep -n '^    \$ ' "$page"; then
        echo "$page: commands belong into fences"
        bad=1
    fi
done
[ "$(wc -l <README.md)" -le 250 ] || { echo "README.md has more than 250 lines"; bad=1; }
exit "$bad"
