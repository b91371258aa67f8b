#!/bin/sh
# A plan of 16,384 ranks of GPT-2 XL takes little memory, at stage 0 and at stage 3:
# run_plan_large.sh <zero-run> <gpt2> <data> <MiB that planning may take; 0: any>
set -eu
zero_run="$1" gpt2="$2" data="$3" most="$4"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

for stage in 0 3; do
    python3 - "$dir/plan" "$most" "$zero_run" --plan=json --world 16384 -n 8 -o stage="$stage" \
        -o memory_limit=off -- "$gpt2" --layers 48 --width 1600 --heads 25 --vocab 50257 \
        --context 1024 --data "$data" <<'CHECK'
import json, resource, subprocess, sys
path, most, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with open(path, "wb") as out:
    subprocess.run(command, stdout=out, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
with open(path) as text:
    plan = json.load(text)
ranks = plan["host"]["rank_bytes"]
if plan["world"] != 16384 or len(ranks) != 16384 or min(ranks) <= 0:
    sys.exit(f"not a plan of 16384 ranks: {plan['world']}, {len(ranks)} of them")
if most and used > most:
    sys.exit(f"planning took {used:.0f} MiB, more than {most}")
CHECK
done
