#!/bin/sh
# torchrun.sh <repository> <build folder>: ranks started by the newest torchrun, on two hosts.
# shellcheck disable=SC2086 # options of a launcher are words
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
torch_packages
enter "$@"
make_hosts n1 n2

bin="$build/bin" torchrun="$environment/bin/torchrun --nproc-per-node 2"
export ZERO_LOG=info
static="--nnodes 2 --node-rank {} --master-addr 10.88.0.1 --master-port 29500"
c10d="--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:29400 --rdzv-id job"

# ends <status of each> <what>
ends() {
    ended
    [ "$statuses" = "$1 $1" ] || fail "$2: ends with $statuses"
}

step "a rendezvous at a fixed address, and one of c10d's"
for how in static c10d; do
    eval "both $torchrun \$$how --no-python $bin/hello"
    ends 0 "$how"
    trained "$how" tcp 4
done

step "one host"
on n1 $torchrun --standalone --no-python "$bin/hello" >"$here/got" 2>&1 || fail "--standalone"
trained "--standalone" shm 2

step "two jobs at a time, with different names"
both $torchrun $c10d --no-python "$bin/hello"
on n1 $torchrun --standalone --no-python "$bin/hello" >"$here/beside" 2>&1 || fail "the other one"
ends 0 "beside another job"
trained "beside another job" tcp 4

step "a rank dies: the others say which"
both $torchrun $c10d --no-python "$bin/tests/watched_rank" again 8
ends 1 "without restarts"
[ "$(grep -c '^watched_rank: .*rank 1 died on n1' "$here/got")" = 3 ] || fail "not all name rank 1"

step "the next start knows that it is the second"
both $torchrun $c10d --max-restarts 2 --no-python "$bin/tests/watched_rank" again 8
ends 0 "with restarts"
[ "$(grep -c 'info core: rank 0 of 4' "$here/got")" = 2 ] || fail "not two starts"

step "zero-run starts no ranks inside"
both $torchrun $static --no-python "$bin/zero-run" -n 2 -- "$bin/hello"
ends 1 "zero-run"
grep -q 'zero-run: .*torchrun has started several processes' "$here/got" || fail "another reason"

small_gpt2 300
train="gpt2 --stage 3 --micro-batches 16 --data $here/text --resume auto --checkpoint $here/checkpoints"
first_step() { grep -q 'step 1 ' "$here/got.n1"; }
agents() { pgrep -f -- "$environment/bin/torchrun"; }

step "SIGTERM to both of torchrun: ranks save, and the next job goes on"
network slow
both $torchrun $c10d --no-python $train
await "the first step" 60 first_step
# shellcheck disable=SC2046 # numbers
kill -TERM $(agents)
ended
grep -q 'stopped on request after step' "$here/got" || fail "not asked to stop"
network fast
both $torchrun $c10d --no-python $train
ends 0 "after SIGTERM"
grep -q 'resumed at step' "$here/got" || fail "started anew"
grep -q "$undisturbed" "$here/got" || fail "not \"$undisturbed\""

step "one of one to two hosts dies: the other one goes on"
rm -r "$here/checkpoints"
network slow
elastic="$(echo "$c10d" | sed 's/--nnodes 2/--nnodes 1:2/') --max-restarts 2"
elastic="$elastic --rdzv-conf last_call_timeout=5"
both $torchrun $elastic --no-python $train --save-every 10
saved() { grep -q "step 50 " "$here/got.n1" && ls -d "$here/checkpoints/step-"*; }
await "a checkpoint" 30 saved
kill_host n2
ended
[ "${statuses% *}" = 0 ] || fail "a host dies: ends with $statuses"
for ranks in 4 2; do grep -q "rank 0 of $ranks, " "$here/got" || fail "not 4 ranks, then 2"; done
grep -q 'resumed at step' "$here/got" || fail "started anew"
grep -q "$undisturbed" "$here/got" || fail "not \"$undisturbed\""
