#!/bin/sh
# run_managers.sh <launcher> <hello> [hosts]: no variable says where rank 0 is, and ranks of a real
# launcher ask it: hydra by PMI-1, where ZERO_PMI=1 says so, and Open MPI by PMIx. With `hosts` two of
# them, as network namespaces, each with an interface and a name of its own.
set -eu

launcher="$1" program="$2" where="${3-one}"
fingerprint=195ee058fc65f0548182bf856bf28f7a

skip() {
    echo "skipped: this machine has no $1"
    exit 77
}

fail() {
    echo "$1"
    cat "$out/got" "$out/err"
    exit 1
}

case "$launcher" in
openmpi) command -v mpirun.openmpi >/dev/null || skip "Open MPI (mpirun.openmpi)" ;;
hydra) command -v mpiexec.hydra >/dev/null || skip "hydra (mpiexec.hydra)" ;;
esac
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ZERO_LOG=info

if [ "$where" = hosts ] && [ "${RUN_MANAGERS_INSIDE:-}" = "" ]; then
    command -v ip >/dev/null && command -v nsenter >/dev/null || skip "ip (iproute2) or nsenter"
    unshare --user --map-root-user --net true 2>/dev/null || skip "user and network namespaces"
    RUN_MANAGERS_INSIDE=1 exec unshare --user --map-root-user --net "$0" "$@"
fi

out="$(mktemp -d)"
holders=""
trap 'for holder in $holders; do kill "$holder"; done; rm -rf "$out"' EXIT
trap 'exit 1' HUP INT TERM
export TMPDIR="$out"

# Hosts a and b are 10.32.0.1 and 10.32.0.2.
make_host() { # make_host <number> <name>
    unshare --net --uts sh -c 'hostname "$1"; echo >"$2"; exec sleep 300' sh "$2" "$out/up.$1" &
    holders="$holders $!"
    while ! [ -e "$out/up.$1" ]; do sleep 0.02; done
    echo "$!" >"$out/host.10.32.0.$1"
    ip link add "v$1" type veth peer name eth0 netns "$!"
    ip link set "v$1" master br0 up
    nsenter -t "$!" -n sh -c 'ip link set lo up && ip addr add "10.32.0.$1/24" dev eth0 &&
                              ip link set eth0 up' sh "$1"
}

# In place of ssh: agent [options] <host> <command...>
make_agent() {
    cat >"$out/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host="\$1"
shift
exec nsenter -t "\$(cat "$out/host.\$host")" -n -u sh -c "\$*"
AGENT
    chmod +x "$out/agent"
}

if [ "$where" = hosts ]; then
    ip link set lo up
    ip link add br0 type bridge
    ip link set br0 up
    make_host 1 a || skip "pairs of interfaces (veth) between network namespaces"
    make_host 2 b
    make_agent
fi

# start <ranks> <command...>: by the launcher under test, from host a.
start() {
    ranks="$1"
    shift
    case "$where.$launcher" in
    one.hydra) mpiexec.hydra $extra -n "$ranks" "$@" ;;
    one.openmpi) mpirun.openmpi --oversubscribe -n "$ranks" "$@" ;;
    hosts.hydra)
        nsenter -t "$(cat "$out/host.10.32.0.1")" -n -u mpiexec.hydra -launcher ssh \
            -launcher-exec "$out/agent" -iface eth0 -hosts 10.32.0.1:2,10.32.0.2:2 -n "$ranks" "$@"
        ;;
    hosts.openmpi)
        nsenter -t "$(cat "$out/host.10.32.0.1")" -n -u mpirun.openmpi \
            --mca plm_rsh_agent "$out/agent" --mca oob_tcp_if_include eth0 \
            --host 10.32.0.1:2,10.32.0.2:2 --oversubscribe --bind-to none -np "$ranks" "$@"
        ;;
    esac
}
extra=""

# expect <ranks> <transport> <text> <command...>: the ranks train, and the log has the text.
expect() {
    count="$1" transport="$2" text="$3"
    shift 3
    start "$count" "$@" >"$out/got" 2>"$out/err" || fail "$*: failed"
    grep -q "$fingerprint" "$out/got" || fail "$*: another fingerprint, or none"
    grep -q "rank 0 of $count, .*transport $transport" "$out/err" || fail "$*: not by $transport"
    grep -q "$text" "$out/err" || fail "$*: no \"$text\""
}

# refuse <text> <command...>: one rank fails, and says so in one line.
refuse() {
    text="$1"
    shift
    ! start 1 "$@" >"$out/got" 2>"$out/err" || fail "$*: did not fail"
    grep -q "^hello: .*$text" "$out/err" || fail "$*: no \"$text\""
}

# Open MPI's own variables; PMIX_* stay.
without="env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_LOCAL_RANK
         -u OMPI_COMM_WORLD_LOCAL_SIZE -u OMPI_COMM_WORLD_NODE_RANK"
gone="-u PMIX_SERVER_URI2 -u PMIX_SERVER_URI21 -u PMIX_SERVER_URI3 -u PMIX_SERVER_URI4
      -u PMIX_SERVER_URI41"

case "$where.$launcher" in
one.hydra)
    expect 3 tcp "PMI-1 says" env ZERO_PMI=1 ZERO_TRANSPORT=tcp "$program"
    refuse "ZERO_PMI=1, for a program without MPI" env ZERO_TRANSPORT=tcp PMI_SIZE=2 "$program"
    extra="-pmi-port" # the server alone says which rank of how many a process is
    expect 2 tcp "PMI-1 says" env ZERO_PMI=1 ZERO_TRANSPORT=tcp "$program"
    expect 2 shm "rank 0 of 2" env ZERO_PMI=1 "$program"
    refuse "ZERO_PMI=1 asks the launcher" "$program"
    ;;
one.openmpi)
    expect 3 tcp "PMIx says" env ZERO_TRANSPORT=tcp "$program"
    expect 2 shm "rank 0 of 2" $without "$program"
    expect 2 tcp "PMIx says" $without ZERO_TRANSPORT=tcp "$program"
    # Where it is not there, and no variable says how many ranks are here, they may all be here.
    expect 2 shm "PMIx can't be asked: .*; only ranks of this host can meet" sh -c '
        RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 LOCAL_RANK=$OMPI_COMM_WORLD_RANK
        export RANK WORLD_SIZE LOCAL_RANK
        exec "$@"' sh $without $gone "$program"
    refuse "known to PMIx only" $without ZERO_PMI=0 "$program"
    refuse "PMIx can't be asked: PMIx_Init: " $without $gone "$program"
    ;;
hosts.hydra)
    expect 4 tcp "of 10.32.0.1, PMI-1 says" env ZERO_PMI=1 "$program"
    ;;
hosts.openmpi)
    expect 4 tcp "of 10.32.0.1, PMIx says" "$program"
    expect 3 tcp "of 10.32.0.1, PMIx says" $without "$program"
    ;;
esac
