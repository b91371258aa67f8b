#!/bin/sh
# ray.sh <repository> <build folder>: examples/clusters/ray, and Ray Train, on a Ray
# cluster of two hosts.
# shellcheck disable=SC2086 # options of a launcher are words
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
torch_packages
enter "$@"
make_hosts n1 n2
small_gpt2 300
export RAY_USAGE_STATS_ENABLED=0 RAY_DISABLE_IMPORT_WARNING=1 HOME="$here" PATH="$environment/bin:$PATH"
export ZERO_LOG=info CPUS=1

memory="--object-store-memory 100000000 --num-cpus 3"
on n1 ray start --head --node-ip-address 10.88.0.1 --port 6379 --temp-dir "$here/r" \
    --include-dashboard false $memory >"$here/got" 2>&1 || fail "ray start --head"
on n2 ray start --address 10.88.0.1:6379 --node-ip-address 10.88.0.2 $memory >"$here/got" 2>&1 ||
    fail "ray start"
export RAY_ADDRESS=10.88.0.1:6379
ranks() {
    on n1 timeout -k 5 120 python3 "$repository/examples/clusters/ray/ray_ranks.py" "$@" >"$here/got" 2>&1
}

train="gpt2 --stage 3 --micro-batches 16 --data $here/text --checkpoint $here/checkpoints --resume auto"
saved() { ls -d "$here/checkpoints/step-"*; }

step "four ranks on two hosts, of which Ray loses one"
network slow
ranks 4 $train --save-every 10 &
ranks=$!
await "a checkpoint" 60 saved
one="$(pgrep -f "^$build/bin/gpt2" | tail -n 1)"
kill -KILL "$(ps -o ppid= "$one" | tr -d ' ')"
await "the end of a rank whose task is gone" 20 sh -c "! kill -0 $one"
network fast
wait "$ranks" || fail "ray_ranks.py"
grep -q 'rank 0 of 4, .*transport tcp' "$here/got" || fail "not 4 ranks by tcp"
grep -q 'gpt2: rank [0-9] died on n[12]' "$here/got" || fail "no rank says which one has died"
grep -q 'resumed at step' "$here/got" || fail "started anew, or not again"
grep -q "$undisturbed" "$here/got" || fail "not \"$undisturbed\""

step "ranks fail: they are started again, RESTARTS times"
failing_ranks
RESTARTS=2 ranks 2 "$here/fails" "$here/starts" || fail "not after two restarts"
rm "$here/starts"
status=0
RESTARTS=1 ranks 2 "$here/fails" "$here/starts" || status=$?
[ "$status" = 9 ] || fail "exit status $status, should be 9"

step "Ray Train starts the ranks"
cat >"$here/train.py" <<TRAIN
import subprocess
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
TorchTrainer(lambda: subprocess.run(["$build/bin/hello"], check=True),
             scaling_config=ScalingConfig(num_workers=4, placement_strategy="SPREAD"),
             run_config=RunConfig(storage_path="$here/store")).fit()
TRAIN
on n1 timeout -k 5 120 python3 "$here/train.py" >"$here/got" 2>&1 || fail "Ray Train"
trained "Ray Train" tcp 4
