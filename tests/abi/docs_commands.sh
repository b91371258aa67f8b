#!/bin/sh
# Runs the commands of a page: docs_commands.sh <repository> <build folder> <page>
#
# A fenced block whose first word is `sh` holds commands. They run in the order of the page, in one
# scratch folder that looks like a checkout with its build in build/. What follows `sh` changes that:
#
#     sh                    runs here.
#     sh fails=75           runs here, and its last command ends with this status.
#     sh needs=WORD         runs here, where that command is there.
#     sh by=TEST            the test of that name runs it.
#     sh elsewhere          on a cluster: nothing runs it.
#
# A block `text` right behind one that runs has lines of its output, in their order; three dots in a
# line stand for anything.
set -eu
repository="$1" build="$2" page="$3"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# Block N goes to $dir/N.sh, what `sh` is followed by to $dir/N.how, output to $dir/N.text.
awk -v dir="$dir" '
    !open && /^```sh( |$)/ {
        open = 1; n++; file = dir "/" n ".sh"
        how = substr($0, 6); sub(/^ /, "", how)
        print how >(dir "/" n ".how"); print "# " n >file; last = NR; next
    }
    !open && /^```text$/ && n && NR - last <= 2 { open = 1; file = dir "/" n ".text"; next }
    !open && /^```/ { open = 1; file = ""; next }
    open && /^```/ { open = 0; if (file ~ /sh$/) last = NR; next }
    open && file { print >file }' "$repository/$page"

mkdir "$dir/work"
ln -s "$build" "$dir/work/build"
for entry in "$repository"/*; do
    case "${entry##*/}" in
    build | build-*) ;;
    *) ln -s "$entry" "$dir/work/" ;;
    esac
done
[ -x "$build/bin/gpt2" ] || { echo "gpt2 is not built" && exit 77; }

known_test() {
    [ -e "$dir/tests" ] || ctest --test-dir "$build" -N | sed -n 's/^ *Test *#[0-9]*: //p' >"$dir/tests"
    grep -qx "$1" "$dir/tests" || { echo "$page: there is no test $1"; exit 1; }
}

# Each line of the page, as a pattern, is found in the output behind the line before.
compare() { # compare <expected> <output>
    awk -v expected="$1" '
        BEGIN {
            while ((getline line <expected) > 0) {
                gsub(/[][\\.^$*+?(){}|]/, "\\\\&", line)
                gsub(/\\\.\\\.\\\./, ".*", line)
                want[++count] = "^" line "$"
            }
            at = 1
        }
        at <= count && $0 ~ want[at] { at++ }
        END { if (at <= count) { print "not in the output: " want[at]; exit 1 } }' "$2"
}

run() { # run <number> <status>
    status=0
    (cd "$dir/work" && sh -eu "$dir/$1.sh") >"$dir/output" 2>&1 </dev/null || status=$?
    if [ "$status" != "$2" ] ||
        { [ -e "$dir/$1.text" ] && ! compare "$dir/$1.text" "$dir/output"; }; then
        echo "$page, block $1: exit status $status, should be $2; commands and output:"
        cat "$dir/$1.sh" "$dir/output"
        exit 1
    fi
}

number=0
for how in $(cd "$dir" && ls | sed -n 's/\.how$//p' | sort -n); do
    number="$how"
    case "$(cat "$dir/$how.how")" in
    '') run "$how" 0 ;;
    fails=*) run "$how" "$(sed 's/fails=//' "$dir/$how.how")" ;;
    by=*) known_test "$(sed 's/by=//' "$dir/$how.how")" ;;
    needs=*)
        program="$(sed 's/needs=//' "$dir/$how.how")"
        if command -v "$program" >/dev/null; then run "$how" 0; else echo "block $how needs $program"; fi
        ;;
    elsewhere) ;;
    *)
        echo "$page: a block of commands says: $(cat "$dir/$how.how")"
        exit 1
        ;;
    esac
done
[ "$number" -gt 0 ] || { echo "$page has no commands" && exit 1; }
