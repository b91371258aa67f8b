#!/bin/sh
# From a fresh clone to a GPT-2 that trains on two ranks at stage 3, on the text of the checkout.
# After step 400 one rank is killed: the job starts again and goes on from its newest checkpoint.
# Further arguments go to gpt2 and win over those below: quickstart.sh --data my-texts --steps 1000
set -eu
cd "$(dirname "$0")/.."
checkpoints=build/quickstart

cmake/setup-debian.sh
cmake --preset default -DZERO_GPT2=ON
cmake --build --preset default -j "$(nproc)" --target zero-run gpt2

# Whether a process is rank 1 of this job.
is_rank_1() { # is_rank_1 </proc/pid>
    [ "$(cat "$1/comm")" = gpt2 ] && [ "$(readlink "$1/cwd")" = "$PWD" ] &&
        tr '\0' '\n' <"$1/environ" | grep -qx 'RANK=1'
}

kill_rank_1() {
    for process in /proc/[0-9]*; do
        if is_rank_1 "$process" 2>/dev/null; then
            echo "quickstart.sh: kill -9 of rank 1, to see what becomes of it" >&2
            kill -9 "${process#/proc/}"
        fi
    done
}

# Waits for a checkpoint, as long as zero-run is there, which takes this shell's place.
kill_after_step_400() {
    while kill -0 "$$" 2>/dev/null; do
        if [ -e "$checkpoints/step-00000400" ]; then
            kill_rank_1
            return
        fi
        sleep 0.1
    done
}

case " $* " in
*" --data "*) ;;
*) set -- "$@" --data README.md base checkpoint collectives examples tests tools zero ;;
esac
rm -rf "$checkpoints"
kill_after_step_400 &
exec build/bin/zero-run -n 2 --max-restarts 1 -- build/bin/gpt2 --stage 3 --steps 800 \
    --fingerprint 200 --checkpoint "$checkpoints" --save-every 200 --resume auto "$@"
