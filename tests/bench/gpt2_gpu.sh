#!/bin/sh
# gpt2's tokens/s on a GPU over PyTorch's, eager with flash attention, and compiled: GPT-2 124M, bf16,
# context 1024. gpt2_gpu.sh <folder of gpt2> [python with torch]. Prints each of five rounds, in which
# all train by turns; then the medians of the ratios, and of the shares of attention in PyTorch's
# steps (bench_gpt2_gpu has zero's).
set -eu
export PYTHONDONTWRITEBYTECODE=1

[ $# = 1 ] || [ $# = 2 ] || { echo "usage: $0 <folder of gpt2> [python with torch]" >&2; exit 2; }
programs="$1" python="${2:-python3}" here="$(cd "$(dirname "$0")" && pwd)"
layers=12 heads=12 width=768 context=1024 vocab=50304 batch=16 steps=40

texts="$(mktemp -d)"
trap 'rm -rf "$texts"' EXIT
trap 'exit 1' HUP INT TERM
# Any tokens do; a .bin file is 16-bit tokens behind llm.c's header of 256 words.
"$python" - "$texts/data.bin" $vocab <<'END'
import array, random, sys
random.seed(1)
tokens = [random.randrange(int(sys.argv[2])) for _ in range(1 << 21)]
with open(sys.argv[1], "wb") as out:
    array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
    array.array("H", tokens).tofile(out)
END

# The median of what the steps but the first ten print.
median() {
    sed -n 's/.*tokens\/s \([0-9]*\).*/\1/p' | sort -n |
        awk '{a[NR] = $1} END {if (NR > 0) print a[int((NR + 1) / 2)]}'
}

ours() {
    "$programs/gpt2" --device cuda --dtype bf16 --layers $layers --heads $heads --width $width \
        --context $context --vocab $vocab --batch $batch --steps $steps --data "$texts/data.bin" \
        --clip 1 --sample 0 >"$texts/ours" || return 1
    grep -v '^step [0-9] \|^step 10 ' "$texts/ours" | median
}

theirs() { # theirs eager|compiled
    "$python" "$here/gpt2_gpu.py" $layers $heads $width $context $vocab $batch $steps "$1" \
        >"$texts/$1" || return 1
    sed -n 's/^attention //p' "$texts/$1" >>"$texts/$1.attention"
    median <"$texts/$1"
}

for round in 1 2 3 4 5; do
    a="$(ours)" || a=""
    b="$(theirs eager)" || b=""
    c="$(theirs compiled)" || c=""
    if [ -z "$a" ] || [ -z "$b" ] || [ -z "$c" ]; then
        echo "$0: a run of round $round failed" >&2
        exit 1
    fi
    echo "$a $b $c" | tee -a "$texts/rounds" |
        awk '{printf "%.3f %.3f zero %d, PyTorch %d, compiled %d tokens/s\n", $1 / $2, $1 / $3, $1, $2, $3}'
done
awk '{print $1 / $2}' "$texts/rounds" | sort -n |
    awk 'NR == 3 {printf "gpt2 124M, bf16, over PyTorch: %.3f, target 1\n", $1}'
awk '{print $1 / $3}' "$texts/rounds" | sort -n |
    awk 'NR == 3 {printf "gpt2 124M, bf16, over PyTorch compiled: %.3f, target 0.8\n", $1}'
for kind in eager compiled; do
    sort -n "$texts/$kind.attention" |
        awk -v kind=$kind 'NR == 3 {print "attention in a step of PyTorch, " kind ": " $1}'
done
