#!/bin/sh
# A failure is shown once, by the program, which gets it as a result: run_once.sh <gpt2> <hello>
set -eu
gpt2="$1" hello="$2"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
awk 'BEGIN { for (i = 0; i < 500; i++) print "some text to train on" }' >"$dir/text"

# Runs a program that fails, and counts the lines of standard error with these words.
once() { # once <words> <program> [arguments...]
    words="$1"
    shift
    ! "$@" >"$dir/out" 2>"$dir/said" || { echo "it did not fail: $*" && exit 1; }
    count="$(grep -c -- "$words" "$dir/said" || :)"
    [ "$count" = 1 ] || { echo "'$words' $count times, not once:" && cat "$dir/said" && exit 1; }
}

train() {
    once "$1" "$gpt2" --data "$dir/text" --layers 1 --width 32 --heads 2 --context 16 --steps 2 \
        --checkpoint "$dir/checkpoints" --save-every 2 --sample 0 --resume auto
}

# The last save fails while the program waits for it.
mkdir "$dir/checkpoints"
ZERO_FAULT=io.write:enospc@1+ train ENOSPC

# The only checkpoint is damaged, and there is nothing else to try.
"$gpt2" --data "$dir/text" --layers 1 --width 32 --heads 2 --context 16 --steps 2 \
    --checkpoint "$dir/checkpoints" --save-every 2 --sample 0 >"$dir/out" 2>"$dir/said" ||
    { cat "$dir/said" && exit 1; }
shard="$(find "$dir/checkpoints" -name 'shard-00000.zst' -path '*step-*')"
: >"$shard"
train 'nothing else in .* can be loaded'
! grep -q 'trying' "$dir/said" || { echo "there is nothing to try:" && cat "$dir/said" && exit 1; }

# Nothing can be opened.
ZERO_OFFLOAD_OPTIMIZER=nvme ZERO_NVME_DIR="$dir/missing" once ENOENT "$hello"
ZERO_STAGE=7 once ZERO_STAGE=7 "$hello"
