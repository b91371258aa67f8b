#!/bin/sh
# run_launchers.sh <launcher> <zero-run> <run_place>: ranks started by a real launcher find their
# places and each other; zero-run refuses to start ranks inside it. Two jobs at once don't mix.
set -eu

launcher="$1" zero_run="$2" program="$3"

skip() {
    echo "skipped: this machine has no $1"
    exit 77
}

out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT
trap 'exit 1' HUP INT TERM

# start <ranks> <command...>: by the launcher under test.
case "$launcher" in
openmpi)
    command -v mpirun.openmpi >/dev/null || skip "Open MPI (mpirun.openmpi)"
    name="Open MPI"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    start() { # with a directory of its own: two jobs at once make and remove Open MPI's under them
        sessions="$(mktemp -d -p "$out")"
        ranks="$1"
        shift
        OMPI_MCA_orte_tmpdir_base="$sessions" mpirun.openmpi --oversubscribe -n "$ranks" "$@"
    }
    ;;
hydra)
    command -v mpiexec.hydra >/dev/null || skip "hydra (mpiexec.hydra)"
    name="MPICH"
    start() { ranks="$1"; shift; mpiexec.hydra -n "$ranks" "$@"; }
    ;;
slurm)
    command -v srun >/dev/null && srun -n 1 true 2>/dev/null || skip "Slurm (srun)"
    name="Slurm"
    start() { ranks="$1"; shift; srun --nodes 1 --overcommit -n "$ranks" "$@"; }
    ;;
torchrun)
    command -v torchrun >/dev/null || skip "torchrun"
    name="torchrun"
    start() { ranks="$1"; shift; torchrun --standalone --no-python --nproc-per-node "$ranks" "$@"; }
    ;;
esac

expect() { # expect <ranks> <file>
    seq 0 $(($1 - 1)) | while read -r rank; do
        echo "rank $rank of $1, here $rank of $1, $name"
    done | sort >"$out/expected"
    grep '^rank ' "$2" | sort | diff "$out/expected" -
}

for ranks in 1 2 3; do
    start "$ranks" "$program" >"$out/got" 2>"$out/err" || { cat "$out/err"; exit 1; }
    expect "$ranks" "$out/got"
done

start 2 "$program" >"$out/first" &
first=$!
start 2 "$program" >"$out/second"
wait "$first"
expect 2 "$out/first"
expect 2 "$out/second"

# Each of several processes would start ranks of its own; a single one may. They say so into a file
# themselves: a launcher whose process fails may drop what others have said.
status=0
: >"$out/err"
start 2 sh -c '"$0" -n 2 "$1" 2>>"$2"' "$zero_run" "$program" "$out/err" >"$out/got" 2>&1 ||
    status=$?
[ "$status" != 0 ] || { echo "zero-run started ranks inside $name"; exit 1; }
grep -q "zero-run: .*$name has started several processes" "$out/err" || {
    cat "$out/got" "$out/err"
    exit 1
}
start 1 "$zero_run" -n 2 "$program" >"$out/got"
grep -q '^\[1\] rank 1 of 2, here 1 of 2, zero-run$' "$out/got" || { cat "$out/got"; exit 1; }
