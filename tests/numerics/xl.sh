#!/bin/sh
# A model whose state does not fit in memory trains: xl.sh <zero-run> <gpt2> <data> [small]
#
# GPT-2 XL's shape (1.5 billion parameters) on two ranks at stage 3, with state, parameters and sums
# of gradients on NVMe, takes two steps in less than 6 GiB: all processes together, what they share
# counted once. And 48 layers of that width need no more memory than 12 do, but for the tables of
# each. About 50 GB have to be free in $TMPDIR. With `small`: the same of a shape that takes seconds.
set -eu
zero_run="$1" gpt2="$2" data="$3"
case "${4:-xl}" in
xl) shape="--heads 25 --width 1600 --vocab 50257 --context 64" limit=6144 layer=2048 tile=2MiB ;;
small) shape="--heads 4 --width 128 --context 32" limit=256 layer=256 tile=256KiB ;;
*) echo "usage: xl.sh <zero-run> <gpt2> <data> [small]" >&2 && exit 2 ;;
esac
dir="$(mktemp -d)" job=

# The job writes into the directory as long as it runs.
end() {
    [ -z "$job" ] || { kill "$job" && wait "$job" || true; }
    rm -rf "$dir"
}
trap end EXIT
trap 'exit 1' HUP INT TERM

# KiB of the processes whose smaps_rollup are read; one that has ended meanwhile has none.
add_up() {
    xargs -r cat 2>/dev/null | awk '/^Pss:/ { sum += $2 } END { print sum + 0 }'
}

# KiB that the job has: all processes whose command line has the directory. What they share and map,
# or unmap, while it is looked at counts twice in one of two orders.
memory() {
    processes="$(grep -lsF "$dir" /proc/[0-9]*/cmdline | sed 's/cmdline$/smaps_rollup/' | sort)"
    one="$(echo "$processes" | add_up)" other="$(echo "$processes" | sort -r | add_up)"
    echo $((one < other ? one : other))
}

# train <layers>: sets $most, the KiB that the job had at most.
train() {
    set -- --layers "$1" $shape --stage 3 --batch 1 --micro-batches 2 --steps 2 --warmup 1 \
        --recompute --sample 0 --data "$data" --offload-optimizer nvme --offload-params nvme \
        --offload-grads nvme --nvme-dir "$dir" --tile "$tile"
    "$zero_run" --plan --world 2 -- "$gpt2" "$@" >"$dir/plan" 2>"$dir/said" || {
        tail -n 1 "$dir/said" && exit 1
    }
    "$zero_run" -n 2 -- "$gpt2" "$@" >"$dir/said" 2>&1 &
    job=$! most=0
    while kill -0 "$job" 2>/dev/null; do
        now="$(memory)"
        most=$((now > most ? now : most))
        sleep 0.1
    done
    status=0
    wait "$job" || status=$?
    job=
    [ "$status" = 0 ] && grep -q ' step 2 loss ' "$dir/said" || { cat "$dir/said" && exit 1; }
}

train 12
few=$most
train 48
grep -hE '^  (a step .* disk|expected|need) |[]] (step|time|memory|fingerprint) ' "$dir/plan" "$dir/said"
echo "at most $((few / 1024)) MiB at 12 layers, $((most / 1024)) MiB at 48"
[ "$most" -lt $((limit * 1024)) ] || { echo "that is more than $limit MiB" && exit 1; }
[ $((most - few)) -lt $((36 * layer)) ] || { echo "that is more than $layer KiB a layer" && exit 1; }
