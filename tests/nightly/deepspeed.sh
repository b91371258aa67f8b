#!/bin/sh
# deepspeed.sh <repository> <build folder>: ranks started by the newest DeepSpeed's launcher, on one host
# and on two, by pdsh and without ssh.
# shellcheck disable=SC2086 # options of a launcher are words
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
need pdsh pdsh
torch_packages
enter "$@"
make_hosts n1 n2
make_agent
mkdir "$here/ssh"
ln -s "$here/agent" "$here/ssh/ssh"
# It wants to know an accelerator; it leaves files in the directory in which it starts.
export DS_ACCELERATOR=cpu ZERO_LOG=info PATH="$here/ssh:$environment/bin:$PATH" HOME="$here"
cd "$here"
bin="$build/bin" deepspeed="timeout -k 5 120 deepspeed"
printf 'n1 slots=2\nn2 slots=2\n' >"$here/hostfile"

step "one host"
on n1 $deepspeed --num_gpus 2 --no_python "$bin/hello" >"$here/got" 2>&1 || fail "one host"
trained "one host" shm 2

step "two hosts by pdsh"
by_pdsh() {
    on n1 $deepspeed --hostfile "$here/hostfile" --master_addr 10.88.0.1 --no_python "$@" \
        >"$here/got" 2>&1
}
by_pdsh "$bin/hello" || fail "pdsh"
trained "pdsh" tcp 4

step "two hosts without ssh"
both $deepspeed --hostfile "$here/hostfile" --no_ssh --node_rank {} --master_addr 10.88.0.1 --no_python \
    "$bin/hello"
ended
[ "$statuses" = "0 0" ] || fail "--no_ssh: ends with $statuses"
trained "--no_ssh" tcp 4

step "a rank dies: the others say which, and nothing is left" # a program that knows no --local_rank=N
! by_pdsh --no_local_rank "$bin/tests/watched_rank" again 8 || fail "a job whose rank 1 was killed succeeds"
grep -q 'watched_rank: .*rank 1 died on n1' "$here/got" || fail "no rank names rank 1"
none_left "after a death" "$bin/tests/watched_rank"

step "zero-run starts no ranks inside"
! by_pdsh --no_local_rank "$bin/zero-run" -n 2 -- "$bin/hello" || fail "zero-run"
grep -q 'zero-run: .* has started several processes' "$here/got" || fail "another reason"
