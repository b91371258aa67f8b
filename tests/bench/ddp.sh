#!/bin/sh
# gpt2's tokens/s at two ranks over those of PyTorch's DistributedDataParallel with gloo: the same
# model, fp32, one thread a rank. On request only: ddp.sh <folder of the programs> <folder of a
# virtual environment>, which is made, with torch from PyPI (PYTHON, TORCH: which), if it is not
# there. Prints each of five rounds, in which both train by turns; then the median of the ratios.
set -eu
export PYTHONDONTWRITEBYTECODE=1

[ $# = 2 ] || { echo "usage: $0 <folder of gpt2 and zero-run> <virtual environment>" >&2; exit 2; }
programs="$1" environment="$2" here="$(cd "$(dirname "$0")" && pwd)"
layers=4 heads=8 width=256 context=256 vocab=2048 batch=4 steps=8

if ! [ -x "$environment/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install "${TORCH:-torch}"
fi

texts="$(mktemp -d)"
trap 'rm -rf "$texts"' EXIT
trap 'exit 1' HUP INT TERM
# Any tokens do; a .bin file is 16-bit tokens behind llm.c's header of 256 words.
"$environment/bin/python" "$here/tokens.py" "$texts/data.bin" $vocab

# The median of what the steps but the first two print.
median() {
    sed -n 's/.*tokens\/s \([0-9]*\).*/\1/p' | tail -n +3 | sort -n |
        awk '{a[NR] = $1} END {if (NR > 0) print a[int((NR + 1) / 2)]}'
}

ours() {
    "$programs/zero-run" -n 2 --bind core -- "$programs/gpt2" --stage 1 --threads 1 --layers $layers \
        --heads $heads --width $width --context $context --vocab $vocab --batch $batch --steps $steps \
        --data "$texts/data.bin" --clip 1 --sample 0 | median
}

theirs() {
    for rank in 1 0; do
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) \
            OMP_NUM_THREADS=1 taskset -c $rank "$environment/bin/python" "$here/ddp.py" $layers $heads \
            $width $context $vocab $batch $steps &
    done | median
}

for round in 1 2 3 4 5; do
    a="$(ours)" b="$(theirs)"
    if [ -z "$a" ] || [ -z "$b" ]; then
        echo "$0: a run of round $round failed" >&2
        exit 1
    fi
    echo "$a $b" | awk '{printf "%.3f zero %d, DDP %d tokens/s\n", $1 / $2, $1, $2}'
done | tee "$texts/ratios"
sort -n "$texts/ratios" | awk 'NR == 3 {printf "gpt2, 2 ranks, over DDP with gloo: %.3f, target 1\n", $1}'
