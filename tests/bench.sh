#!/bin/sh
# Builds the default preset and prints a row for everything that has a limit to be compared with:
# ./tests/bench.sh. Or only some programs' rows: ./tests/bench.sh update gpt2.
#
# A row is the median of 9 rounds that measure reference, ours, reference; a round counts when the
# reference's two times differ by less than 10 %. Where fewer than 5 count, the machine was too busy
# and the row says "noisy", which is neither met nor failed.
# `network` also measures between two hosts, which are network namespaces, and, where ZERO_PYTHON is
# a Python with PyTorch, gpt2's steps there beside DDP and FSDP.
# `deaths` kills ranks on hosts of this machine, and prints how soon the others return an error.
# `save` writes and removes about a GiB below build/: what it measures is that disk.
set -eu
cd "$(dirname "$0")/.."

more="peers" # by name only: a Python with PyTorch and DeepSpeed, ZERO_PYTHON or python3
all="update reduce collectives network mpi step gpt2 share local codec save offload deaths"

for name in "$@"; do
    case " $all $more " in
    *" $name "*) ;;
    *)
        echo "tests/bench.sh: no benchmark '$name'; there are: $all $more" >&2
        exit 2
        ;;
    esac
done

names="${*:-$all}"
cmake/setup-debian.sh test
[ -f build/CMakeCache.txt ] || cmake --preset default
cmake -DZERO_TESTS=ON -DZERO_FAULT_POINTS=ON build
case " $names " in *" network "*) hosts="bench_hosts gpt2" ;; *) hosts="" ;; esac
cmake --build --preset default -j "$(nproc)" --target $hosts $(printf 'bench_%s ' $names)

for name in $names; do
    echo "== $name"
    case "$name" in
    mpi) tests/bench/mpi.sh build/bin/tests ;;
    peers) build/bin/tests/bench_peers "${ZERO_PYTHON:-python3}" ;;
    network)
        build/bin/tests/bench_network
        tests/bench/hosts.sh build/bin/tests
        [ -z "${ZERO_PYTHON-}" ] || tests/bench/hosts.sh build/bin/tests train build/bin "$ZERO_PYTHON"
        ;;
    deaths) build/bin/tests/fault.hosts_kills build/bin/tests/far_rank 100 ;;
    save) build/bin/tests/bench_save build build/bin/zero-run ;;
    *) "build/bin/tests/bench_$name" ;;
    esac
done
