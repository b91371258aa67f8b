#!/bin/sh
# run_mpi.sh <openmpi | mpich | hosts> <mpi_hello> <mpi_ranks> [<zero-run>]: programs that have MPI
# lend zero their communicators, on one host; `hosts`: with MPICH on three that are network
# namespaces. MPIRUN is the launcher, if it is another than Debian's.
set -eu
library="$1" hello="$2" ranks="$3" zero_run="${4-}"

here="$(mktemp -d)"
holders=""
trap 'kill $holders 2>/dev/null || true; rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base="$here"
export ZERO_TIMEOUT_S=20
export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none

case "$library" in
openmpi) start() { "${MPIRUN:-mpirun.openmpi}" --oversubscribe --bind-to none -n "$@"; } ;;
mpich | hosts) start() { "${MPIRUN:-mpirun.mpich}" -n "$@"; } ;;
esac

fail() {
    echo "$library: $1"
    cat "$here/out" "$here/err"
    exit 1
}

# run <transport that is to be taken> <command...>
run() {
    transport="$1"
    shift
    ZERO_LOG_LEVEL=info "$@" >"$here/out" 2>"$here/err" || fail "failed: $*"
    [ "$transport" = any ] || grep -q "transport $transport" "$here/err" || fail "not $transport: $*"
}

# One line, whatever the number of ranks, stage and transport.
run any "$hello"
cp "$here/out" "$here/expected"
same() { cmp -s "$here/out" "$here/expected" || fail "another fingerprint: $1"; }

# Hosts. MPICH's ranks talk through memory that network namespaces share, and so can be in several.
# Each has an interface 172.17.0.1 of its own, which leads nowhere, before the one that counts.
make_hosts() {
    for host in 1 2 3; do
        unshare -n sleep 100 &
        holders="$holders $!"
    done
    sleep 0.2
    ip link set lo up && ip link add zero0 type bridge && ip link set zero0 up || return 1
    host=0
    for holder in $holders; do
        host=$((host + 1))
        nsenter -t "$holder" -n sh -euc "ip link set lo up
                ip link add eth0 type bridge
                ip addr add 172.17.0.1/16 dev eth0
                ip link set eth0 up" &&
            ip link add "veth$host" type veth peer name eth1 netns "$holder" &&
            ip link set "veth$host" master zero0 up &&
            nsenter -t "$holder" -n sh -euc "ip addr add 10.31.0.$host/24 dev eth1
                ip link set eth1 up" || return 1
    done
}

# start_on <ranks of hosts, as in "112"> <program>
start_on() {
    # shellcheck disable=SC2016 # for the shell of each rank; the launcher takes all for one host's
    HOSTS="$1" HOLDERS="$holders" start "${#1}" sh -c '
        host="$(echo "$HOSTS" | cut -c $((PMI_RANK + 1)))"
        unset MPI_LOCALNRANKS MPI_LOCALRANKID
        exec nsenter -t "$(echo $HOLDERS | cut -d " " -f "$host")" -n "$0"' "$2"
}

if [ "$library" = hosts ]; then
    if [ "$zero_run" != inside ]; then
        for command in unshare nsenter ip; do
            PATH="$PATH:/usr/sbin:/sbin" command -v $command >/dev/null ||
                { echo "skipped: this machine has no $command" && exit 77; }
        done
        how=-n
        unshare -n true 2>/dev/null || how=-rn
        unshare $how true || { echo "skipped: no network namespaces here" && exit 77; }
        status=0
        unshare $how sh "$0" "$@" inside || status=$?
        exit "$status"
    fi
    PATH="$PATH:/usr/sbin:/sbin"
    make_hosts || { echo "skipped: no bridge between network namespaces" && exit 77; }
    for hosts in 123 1122; do
        ZERO_STAGE=3 run tcp start_on "$hosts" "$hello"
        same "hosts $hosts"
    done
    run shm start_on 222 "$hello"
    same "hosts 222"
    run any start_on 12312 "$ranks"
    exit
fi

for world in 1 3; do
    for stage in 0 3; do
        transport=shm
        [ "$world" -gt 1 ] || transport=any
        ZERO_STAGE=$stage run "$transport" start "$world" "$hello"
        same "$world ranks, stage $stage"
    done
done
ZERO_TRANSPORT=tcp run tcp start 3 "$hello"
same "tcp"
# An address of the user's is not tried.
ZERO_MASTER_ADDR=localhost ZERO_TRANSPORT=tcp run tcp start 2 "$hello"
same "localhost"

# Names that are no word, or longer than zero_config.job, and variables that say nothing.
long="$(printf '%0250d' 0)"
for job in "my run" "läuft" "$long" ""; do
    ZERO_JOB="$job" ZERO_MASTER_ADDR="" ZERO_MASTER_PORT="" ZERO_TRANSPORT=tcp \
        run tcp start 2 "$hello"
    same "job \"$job\""
done

# What rank 0's environment says of the job holds for all; a rank whose own says something else is
# no rank of the job, and none waits for another.
# shellcheck disable=SC2016 # for the shell of each rank
only='[ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" != "$WHO" ] || export ZERO_JOB=mine $PORT; exec "$0"'
WHO=0 PORT=ZERO_MASTER_PORT=23457 ZERO_TRANSPORT=tcp run tcp start 2 sh -c "$only" "$hello"
same "what rank 0 alone says"
if WHO=1 PORT="" start 2 sh -c "$only" "$hello" >"$here/out" 2>"$here/err"; then
    fail "ranks of several jobs have met"
fi
grep -q 'mpi_hello: ' "$here/err" || fail "another message: ranks of several jobs"

# A launcher that is not the MPI's own starts processes of which each is all that MPI knows.
refused() {
    if "$@" "$hello" >"$here/out" 2>"$here/err"; then fail "trained alone: $*"; fi
    grep -q 'mpi_hello: invalid' "$here/err" || fail "another message: $*"
}
[ -z "$zero_run" ] || refused "$zero_run" -n 2
other="mpirun.mpich"
[ "$library" = openmpi ] || other="mpirun.openmpi --oversubscribe"
# shellcheck disable=SC2086 # a command and its option
if [ -z "${MPIRUN-}" ] && command -v ${other%% *} >/dev/null; then refused $other -n 2; fi
ZERO_RANK=0 ZERO_WORLD_SIZE=1 run any "$hello"

# Communicators that were cut from MPI_COMM_WORLD.
run any start 1 "$ranks"
run shm start 5 "$ranks"
ZERO_TRANSPORT=tcp run tcp start 4 "$ranks"
