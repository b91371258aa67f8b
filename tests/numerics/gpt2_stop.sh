#!/bin/sh
# gpt2_stop.sh <zero-run> <gpt2> [openmpi]: gpt2 is asked to stop in every way in which that happens,
# has a checkpoint of its last step, exits with 75, and goes on to the fingerprint of a run that was
# not disturbed. With openmpi: what mpirun has started.
set -eu

zero_run="$1" gpt2="$2" only="${3-}"

dir="$(mktemp -d)"
running=
trap 'rm -rf "$dir"' EXIT
trap '[ -z "$running" ] || kill -KILL $running 2>/dev/null; exit 1' HUP INT TERM

unset ZERO_STOP_SIGNAL
export OPENBLAS_NUM_THREADS=1
seq 1 60000 | tr '0-9' 'a-j' >"$dir/text"

# Every line is there as soon as its step has ended. A step takes a millisecond, and finding whom to
# ask some tens: so a run that is asked is slowed down, for the signal to come in its middle.
steps=150
slow_down='coll.*:delay@1+'
model="--layers 2 --heads 2 --width 32 --context 16 --batch 4 --micro-batches 2 --steps $steps
       --sample 0 --data $dir/text"

fail() {
    echo "$what: $1"
    cat "$dir/out" "$dir/again" 2>/dev/null || :
    exit 1
}

# await <words>: in the output so far.
await() {
    for _ in $(seq 1000); do
        grep -q "$1" "$dir/out" && return
        sleep 0.02
    done
    fail "no \"$1\""
}

# begin <what>: a run without checkpoints.
begin() {
    what="$1"
    rm -rf "$dir/ck" "$dir/again"
    : >"$dir/out"
}

fingerprint() { # fingerprint <file>: the last one
    sed -n 's/^\(\[0\] \)\{0,1\}fingerprint step //p' "$1" | tail -n 1
}

# The run under way, $running, has been asked: it stops, saved.
expect_stopped() {
    status=0
    wait $running || status=$?
    running=
    [ $status = 75 ] || fail "exit code $status"
    last="$(sed -n 's/^\(\[0\] \)\{0,1\}step \([0-9]*\) .*/\2/p' "$dir/out" | tail -n 1)"
    [ -d "$dir/ck/step-$(printf %08d "$last")" ] || fail "no checkpoint of step $last"
    [ "$(ls -d "$dir"/ck/step-* | wc -l)" = 1 ] || fail "more than one checkpoint"
    grep -q "stopped on request after step $last\$" "$dir/out" || fail "it does not say so"
    ! grep -q failed "$dir/out" || fail "a rank is said to have failed"
}

# It goes on where it was, on another number of ranks, to the same end.
expect_same_end() { # expect_same_end <options...>
    env -u ZERO_FAULT "$zero_run" -n 3 -- "$gpt2" "$@" --checkpoint "$dir/ck" --resume auto \
        >"$dir/again" 2>&1 ||
        fail "it does not go on"
    grep -q "resumed at step $last" "$dir/again" || fail "it begins again"
    [ "$(fingerprint "$dir/again")" = "$expected" ] || fail "another fingerprint than $expected"
}

ranks_of() { # ranks_of <zero-run's process>
    for child in $(cat "/proc/$1/task/$1/children"); do
        [ "$(cat "/proc/$child/comm")" = zero-run-guard ] || echo "$child"
    done
}

guardian_of() {
    for child in $(cat "/proc/$1/task/$1/children"); do
        [ "$(cat "/proc/$child/comm")" != zero-run-guard ] || echo "$child"
    done
}

catches_signals() { # catches_signals <process>: SIGTERM, which is bit 14
    mask="$(sed -n 's/^SigCgt:.*\(....\)$/\1/p' "/proc/$1/status")"
    [ $((0x$mask & 0x4000)) != 0 ]
}

await_handler() { # await_handler <process>: until it catches SIGTERM
    for _ in $(seq 1000); do
        catches_signals "$1" && return
        sleep 0.02
    done
    fail "process $1 does not catch SIGTERM"
}

start_rank() { # start_rank <rank> <options...>: as other launchers do
    number="$1"
    shift
    RANK="$number" LOCAL_RANK="$number" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 \
        "$gpt2" "$@" --checkpoint "$dir/ck" >>"$dir/out" 2>&1 &
}

"$zero_run" -n 1 -- "$gpt2" $model >"$dir/out" 2>&1
expected="$(fingerprint "$dir/out")"
[ -n "$expected" ] || fail "no fingerprint"
export ZERO_FAULT="$slow_down"

if [ "$only" = openmpi ]; then
    command -v mpirun.openmpi >/dev/null || {
        echo "skipped: this machine has no Open MPI (mpirun.openmpi)"
        exit 77
    }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_orte_tmpdir_base="$dir"
    for ranks in all one; do
        begin "$ranks of mpirun's"
        mpirun.openmpi --oversubscribe -n 2 "$gpt2" $model --checkpoint "$dir/ck" \
            >"$dir/out" 2>&1 &
        running=$!
        await "^step 3 "
        pids="$(for child in $(cat "/proc/$running/task/$running/children"); do
            [ "$(cat "/proc/$child/comm")" != gpt2 ] || echo "$child"
        done)"
        if [ $ranks = one ]; then pids="$(echo "$pids" | tail -n 1)"; fi
        kill -TERM $pids
        expect_stopped
        expect_same_end $model
    done
    exit 0
fi

# To every process, as systemd, a Slurm step and a container's end do; to one rank; to zero-run.
for order in run ranks guardian rank alone; do
    begin "zero-run, $order first"
    "$zero_run" -n 2 -- "$gpt2" $model --checkpoint "$dir/ck" >"$dir/out" 2>&1 &
    running=$!
    await "step 3 "
    ranks="$(ranks_of $running)" guardian="$(guardian_of $running)"
    case $order in
    run) kill -TERM $running $guardian $ranks ;;
    ranks) kill -TERM $ranks $guardian $running ;;
    guardian) kill -TERM $guardian $running $ranks ;;
    rank) kill -TERM "$(echo "$ranks" | tail -n 1)" ;;
    alone) kill -TERM $running ;;
    esac
    expect_stopped
    expect_same_end $model
done

# Without zero-run: two ranks, of which both or the second one get it.
for which in both second; do
    begin "ranks of another launcher, $which"
    start_rank 0 $model
    first=$!
    start_rank 1 $model
    running="$first $!"
    await "^step 3 "
    if [ $which = both ]; then kill -TERM $running; else kill -TERM $!; fi
    other=0
    wait $! || other=$?
    [ $other = 75 ] || fail "exit code $other of rank 1"
    running=$first
    expect_stopped
    expect_same_end $model
done

# In zero_open(), where one waits for the other: that is before the first step.
begin "before the first step"
start_rank 0 $model
first=$!
running=$first
await_handler $first
kill -TERM $first
start_rank 1 $model
wait $! || [ $? = 75 ] || fail "the other rank"
expect_stopped
[ "$last" = 1 ] || fail "stopped after step $last"
expect_same_end $model

# One process, whose ranks are threads. What a shell starts in the background ignores SIGINT.
begin "threads"
env --default-signal=INT "$gpt2" $model --ranks 2 --checkpoint "$dir/ck" >"$dir/out" 2>&1 &
running=$!
await "^step 3 "
kill -INT $running
expect_stopped
expect_same_end $model

# While ranks wait for one that has not come.
unset ZERO_FAULT
begin "a rank is missing"
for rank in 0 1; do
    MASTER_ADDR=127.0.0.1 MASTER_PORT=29711 WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 RANK=$rank \
        LOCAL_RANK=$rank ZERO_JOB="missing-$$" "$gpt2" $model >>"$dir/out" 2>&1 &
    running="$running $!"
done
for process in $running; do await_handler "$process"; done
sleep 0.5
kill -TERM $running
for process in $running; do
    status=0
    wait "$process" || status=$?
    [ $status = 75 ] || fail "exit code $status"
done
running=
grep -q "asked to stop .* while waiting for rank 2 of 3" "$dir/out" || fail "it does not say so"

# During an evaluation of about a second; Slurm's --signal=USR1 reaches zero-run.
seq 1 600000 | tr '0-9' 'a-j' >"$dir/long"
slow="--layers 2 --heads 2 --width 64 --context 256 --batch 8 --micro-batches 2 --steps 2 --sample 0
      --eval 1 --data $dir/long"
begin "an evaluation"
"$zero_run" -n 1 -- "$gpt2" $slow >"$dir/out" 2>&1
expected="$(fingerprint "$dir/out")"
begin "an evaluation"
ZERO_FAULT="$slow_down" "$zero_run" -n 2 --stop-signal USR1 -- "$gpt2" $slow \
    --checkpoint "$dir/ck" >"$dir/out" 2>&1 &
running=$!
await "step 1 loss"
kill -USR1 $running
expect_stopped
[ "$last" = 1 ] || fail "stopped after step $last"
! grep -q "evaluation step" "$dir/out" || fail "the evaluation has come to its end"
expect_same_end $slow
