#!/bin/sh
# Every error that a public header documents is reached by a test: errors.sh <repository> <headers...>
#
# A declaration's errors are those its comment names, and those of the function it refers to ("Errors
# as of ..."). A test reaches one if a statement of it calls the function and names the error, or if
# errors.txt says which line of which test does, because the call is made elsewhere.
set -eu
cd "$1"
shift
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# Pairs "function error" of each comment and the declarations right behind it.
awk '
    function codes(text, name,    rest) {
        rest = text
        while (match(rest, /ZERO_(E_[A-Z]+|NOT_FOUND|AGAIN|PLANNED)/)) {
            known[name] = known[name] " " substr(rest, RSTART, RLENGTH)
            rest = substr(rest, RSTART + RLENGTH)
        }
    }
    function reference(text, name) {
        if (match(text, /[Ee]rrors as (those )?of +zero_[a-z0-9_]+\(\)/)) {
            text = substr(text, RSTART, RLENGTH - 2)
            sub(/.* /, "", text)
            referred[name] = text
        }
    }
    /^\/\*\*/ { comment = ""; inside = 1 }
    inside {
        line = $0
        sub(/^ \*/, "", line)
        comment = comment " " line
    }
    /\*\// { inside = 0; next }
    inside { next }
    /^ZERO_API / {
        if (match($0, /zero_[a-z0-9_]+\(/)) {
            name = substr($0, RSTART, RLENGTH - 1)
            codes(comment, name)
            reference(comment, name)
        }
    }
    /^(typedef|static|#|enum|struct)/ { comment = "" }
    END {
        for (name in referred)
            known[name] = known[name] known[referred[name]]
        for (name in known) {
            count = split(known[name], list, " ")
            for (i = 1; i <= count; i++)
                print name, list[i]
        }
    }
' "$@" | sort -u >"$dir/documented"
[ "$(wc -l <"$dir/documented")" -ge 60 ] || { echo "the errors are not found" && exit 1; }

# Pairs of each statement of a test.
find tests -name '*.c' | sort | xargs awk '
    FNR == 1 { statement = "" }
    { statement = statement " " $0 }
    /[;{}]/ {
        if (statement ~ /ZERO_(E_|NOT_FOUND|AGAIN|PLANNED)/ && statement ~ /zero_[a-z0-9_]+\(/) {
            count = 0
            rest = statement
            while (match(rest, /zero_[a-z0-9_]+\(/)) {
                names[count++] = substr(rest, RSTART, RLENGTH - 1)
                rest = substr(rest, RSTART + RLENGTH)
            }
            rest = statement
            while (match(rest, /ZERO_(E_[A-Z]+|NOT_FOUND|AGAIN|PLANNED)/)) {
                for (i = 0; i < count; i++)
                    print names[i], substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
            }
        }
        statement = ""
    }' | sort -u >"$dir/reached"

status=0
while read -r function error file text; do
    case "$function" in '' | '#'*) continue ;; esac
    grep -qF -- "$text" "$file" || {
        echo "errors.txt: $file does not say: $text"
        status=1
    }
    grep -qx "$function $error" "$dir/documented" || {
        echo "errors.txt: no header says that $function returns $error"
        status=1
    }
    echo "$function $error" >>"$dir/reached"
done <tests/abi/errors.txt
sort -u "$dir/reached" | comm -23 "$dir/documented" - >"$dir/missing"
if [ -s "$dir/missing" ]; then
    echo "documented, and reached by no test:"
    cat "$dir/missing"
    status=1
fi
exit $status
