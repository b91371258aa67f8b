#!/bin/sh
# The first command of the README, in a copy of the checkout: quickstart.sh <repository>
set -eu
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
cd "$1"
tar -c --exclude='./build*' --exclude=.git . | tar -x -C "$dir"
cd "$dir"
./examples/quickstart.sh >output 2>&1 || { tail -n 40 output && exit 1; }
for line in 'kill -9 of rank 1' 'restart 1 of 1, with 2 ranks' 'resumed at step 400' \
    'fingerprint step 800' '1 restart, '; do
    grep -q -e "$line" output || { echo "not in the output: $line" && tail -n 40 output && exit 1; }
done
