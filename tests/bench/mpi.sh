#!/bin/sh
# Runs bench_mpi with each MPI it was built with: mpi.sh <folder of the programs>. 2 ranks, and 4.
set -eu

# Open MPI's refusals: to run as root, and more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

run() { # run <library> <package> <command that starts ranks...>
    library="$1" package="$2"
    shift 2
    if ! [ -x "$programs/bench_mpi_$library" ]; then
        echo "$library: its rows are left out, it is not here ($package)"
        return
    fi
    for ranks in 2 4; do
        "$@" "$ranks" "$programs/bench_mpi_$library"
    done
}

programs="$1"
run openmpi libopenmpi-dev mpirun.openmpi --oversubscribe --bind-to none -np
run mpich libmpich-dev mpirun.mpich -n
