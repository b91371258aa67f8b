#!/bin/sh
# The largest GPT-2 that trains on one GPU with this host's memory: moments and master weights on the
# host and updated by the GPU, gradients of a few units at a time, activations computed again.
# gpt2_largest.sh <folder of gpt2 and zero-run> [width [layers that are surely too many]]. As many
# layers as the plan and the GPU's memory allow, and fewer while a run finds it has not enough; then
# prints parameters, memory and tokens/s of the third step. Without a GPU that is a skip.
set -eu
export PYTHONDONTWRITEBYTECODE=1 ZERO_OFFLOAD_UPDATE=device

[ $# -ge 1 ] && [ $# -le 3 ] || { echo "usage: $0 <folder of gpt2> [width [layers]]" >&2; exit 2; }
programs="$1" width="${2:-4096}" too_many="${3:-512}"
context=1024 vocab=50304 batch=8 tries=8
memory="$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits 2>/dev/null |
    head -n 1)" || true
case "$memory" in
'' | *[!0-9]*) echo "$0: no GPU here: nvidia-smi lists none" >&2; exit 77 ;;
esac

texts="$(mktemp -d)"
trap 'rm -rf "$texts"' EXIT
trap 'exit 1' HUP INT TERM
# Any tokens do; a .bin file is 16-bit tokens behind llm.c's header of 256 words.
python3 - "$texts/data.bin" $vocab <<'END_OF_PROGRAM'
import array, random, sys
random.seed(1)
tokens = [random.randrange(int(sys.argv[2])) for _ in range(1 << 17)]
with open(sys.argv[1], "wb") as out:
    array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
    array.array("H", tokens).tofile(out)
END_OF_PROGRAM

# Told to end, it does so sooner than who tells it so kills it: gpu.sh after 10 s.
train() { # train <layers> [<options of zero-run>]
    layers="$1"
    shift
    "$programs/zero-run" -n 1 --grace 3 "$@" -- "$programs/gpt2" --device cuda --dtype bf16 \
        --stage 2 --layers "$layers" --heads $((width / 64)) --width "$width" --context $context \
        --vocab $vocab --batch $batch --steps 3 --lr 1e-4 --data "$texts/data.bin" --sample 0 \
        --threads "$(nproc)" --offload-optimizer host --recompute
}

# Whether the plan fits the host, and with the activations the GPU; says what it needs. A token has
# its residual stream a layer, which is in bf16 as all else, and less than 32 times that beside it;
# there are logits, and sums of the embeddings' gradient in fp32. Where the host's limit isn't known,
# a run shows it.
fits() { # fits <layers>
    train "$1" --plan=json >"$texts/plan" 2>"$texts/error" || return 1
    python3 - "$texts/plan" "$memory" "$1" $width $((batch * context)) $vocab <<'END_OF_PROGRAM'
import json, sys
plan = json.load(open(sys.argv[1]))
mib, layers, width, tokens, vocab = map(int, sys.argv[2:])
gpu = sum(part["bytes"] for part in plan["memory"]["tiers"]["gpu"].values())
activations = 2 * width * tokens * (layers + 32) + (1 << 28) + 4 * width * vocab
print("parameters %.3f G, host %.1f GiB, GPU %.1f GiB and about %.1f GiB of activations"
      % (plan["model"]["elements"] / 1e9, plan["host"]["need"] / 2**30, gpu / 2**30,
         activations / 2**30))
sys.exit(not (plan["host"]["fits"] is not False and gpu + activations < 0.98 * mib * 2**20))
END_OF_PROGRAM
}

most=0 above="$too_many"
while [ $((above - most)) -gt 1 ]; do
    middle=$(((most + above) / 2))
    if fits $middle >"$texts/need"; then
        most=$middle
    else
        above=$middle
    fi
done
while [ "$most" -gt 0 ] && [ "$tries" -gt 0 ]; do
    if ! fits "$most" >"$texts/need"; then
        echo "$most layers: they no longer fit: $(cat "$texts/need")" >&2
        most=$((most - 1))
        continue
    fi
    if train "$most" >"$texts/run" 2>&1; then
        rate="$(sed -n 's/.*step 3 .*tokens\/s \([0-9]*\).*/\1/p' "$texts/run")"
        if [ -z "$rate" ]; then
            echo "$0: no tokens/s of a third step: $(tail -n 3 "$texts/run")" >&2
            exit 1
        fi
        echo "largest gpt2: $most layers of width $width: $(cat "$texts/need"): $rate tokens/s"
        grep 'memory a rank' "$texts/run"
        exit 0
    fi
    echo "$most layers: $(cat "$texts/need"): it failed:" >&2
    tail -n 3 "$texts/run" >&2
    most=$((most - 1)) tries=$((tries - 1))
done
echo "$0: none trains: $(tail -n 3 "$texts/error" 2>/dev/null)" >&2
exit 1
