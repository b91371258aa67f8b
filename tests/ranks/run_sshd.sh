#!/bin/sh
# run_sshd.sh <remote_agents> [<zero-run> <synthetic_rank>]: agents on two hosts that a real sshd lets
# in, and what is said where it does not; then jobs of zero-run's on both.
# run_sshd.sh <remote_agents> <zero-run> <far_rank> lost: jobs of which host b is lost. Hosts are network namespaces; the test is host a. All is in namespaces of its own,
# which end with it: no process is left, and no file outside of a temporary directory is changed.
set -eu

skip() {
    echo "skipped: this machine has no $1"
    exit 77
}

if [ "$1" != inside ]; then
    PATH="$PATH:/usr/sbin:/sbin"
    export PATH
    sshd="$(command -v sshd)" || skip "sshd (openssh-server)"
    for command in ssh ssh-keygen ip unshare nsenter hostname; do
        command -v "$command" >/dev/null || skip "command $command"
    done
    [ "$(id -u)" = 0 ] || skip "root here, which sshd has to be (this user is $(id -un))"
    [ "$(cat /proc/self/setgroups)" = allow ] ||
        skip "other users, which sshd takes rights away by: this is a user namespace of root alone"
    unshare --net --mount --pid --fork --kill-child true 2>/dev/null ||
        skip "network, mount and process namespaces: unshare(2) is not allowed"
    out="$(mktemp -d)"
    trap 'rm -rf "$out"' EXIT
    trap 'exit 1' HUP INT TERM
    status=0
    unshare --net --mount --pid --fork --kill-child --mount-proc \
        "$0" inside "$out" "$sshd" "$@" || status=$?
    exit "$status"
fi

out="$2" sshd="$3" agents="$4" zero_run="${5-}" program="${6-}" lost="${7-}"

# ---------------------------------------------------------------- hosts

# on <host> <command...>
on() {
    host="$1"
    shift
    nsenter --net="/run/netns/$host" --uts="$out/uts-$host" "$@"
}

mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
# An account without a password is no locked one.
sed 's/^root:[^:]*:/root:*:/' /etc/shadow >"$out/shadow"
mount --bind "$out/shadow" /etc/shadow
ip link add br0 type bridge 2>/dev/null && ip link set br0 up ||
    skip "bridge between network namespaces"
number=0
for host in a b c; do
    number=$((number + 1))
    touch "$out/uts-$host"
    unshare --uts="$out/uts-$host" hostname "host-$host"
    ip netns add "$host"
    ip link add "v$host" type veth peer name "w$host" netns "$host"
    ip link set "v$host" master br0 up
    on "$host" ip link set lo up
    on "$host" ip addr add "10.77.0.$number/24" dev "w$host"
    on "$host" ip link set "w$host" up
done

# ---------------------------------------------------------------- sshd on a and b, none on c

for key in host-a host-b host-x user stranger; do
    ssh-keygen -q -t ed25519 -N "" -f "$out/$key"
done
cp "$out/user.pub" "$out/authorized"
known() { # known <address> <key>
    echo "$1 $(cut -d' ' -f1,2 "$out/$2.pub")"
}
known 10.77.0.1 host-a >"$out/known"
known 10.77.0.2 host-b >>"$out/known"
known 10.77.0.2 host-x >"$out/known-other"
: >"$out/known-none"

config() { # config <name> <key> <known hosts>
    cat >"$out/$1" <<END
IdentityFile $out/$2
IdentitiesOnly yes
UserKnownHostsFile $out/$3
GlobalKnownHostsFile /dev/null
END
}
config ssh user known
config ssh-stranger stranger known
config ssh-unknown user known-none
config ssh-other user known-other

for host in a b; do
    cat >"$out/sshd-$host" <<END
HostKey $out/host-$host
AuthorizedKeysFile $out/authorized
Banner $out/banner
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PidFile none
StrictModes no
UsePAM no
END
    echo "Authorized users only" >"$out/banner"
    on "$host" "$sshd" -f "$out/sshd-$host" -E "$out/log-$host"
done

# ---------------------------------------------------------------- what is expected

fail() {
    echo "FAILED: $1"
    cat "$out/got" "$out/log-a" "$out/log-b"
    exit 1
}

await() { # await <words>: until the output has them
    for _ in $(seq 600); do
        grep -q -- "$1" "$out/got" 2>/dev/null && return
        sleep 0.05
    done
    fail "no \"$1\" in"
}

# The coordinator goes on until its input ends, which is this pipe.
mkfifo "$out/go"
start() { # start <config> <silence> <host>...
    config="$1" silence="$2"
    shift 2
    : >"$out/got"
    on a "$agents" "ssh -F $out/$config" "$silence" "$@" <"$out/go" >"$out/got" 2>&1 &
    coordinator=$!
    exec 9>"$out/go"
}
stop() {
    exec 9>&-
    wait "$coordinator" || :
}

no_agent() { # until none is left
    for _ in $(seq 600); do
        pgrep -f -- "^$agents --agent" >/dev/null || return 0
        sleep 0.05
    done
    fail "an agent is left: $(pgrep -af -- "$agents --agent")"
}

refused() { # refused <config> <host> <line>
    start "$1" 20000 "$2"
    wait "$coordinator" || :
    exec 9>&-
    [ "$(cat "$out/got")" = "$3" ] || fail "expected: $3"
}

says() { # says <words>: in the output of a job
    grep -q -- "$1" "$out/got" || fail "no \"$1\" in"
}

no_process() { # of a job, on any host
    for _ in $(seq 600); do
        pgrep -f -- "^$zero_run|^$program|^sleep 987" >/dev/null || return 0
        sleep 0.05
    done
    fail "processes are left: $(pgrep -af -- "^$zero_run|^$program|^sleep 987")"
}

# ---------------------------------------------------------------- host b is lost

# Its ranks have saved by then. The job goes on from there on host a.
lose_host() { # lose_host <command...>
    rm -rf "$out/checkpoints"
    : >"$out/got"
    on a timeout 100 "$zero_run" --rsh "ssh -F $out/ssh" --hosts 10.77.0.1:2,10.77.0.2:2 -n 2:4 \
        --agent-timeout 3 --grace 2 -o stall_s=2 -- "$program" "$out/checkpoints" 3 30 \
        </dev/null >"$out/got" 2>&1 &
    coordinator=$!
    for rank in 0 1 2 3; do await "rank $rank in step"; done
    "$@"
    status=0
    wait "$coordinator" || status=$?
    [ "$status" = 0 ] || fail "status $status"
    for rank in 0 1; do says "rank $rank failed.* rank [23] .*host-b"; done
    says "host 10.77.0.2 with ranks 2 to 3 is lost"
    says "restart 1 of 2, with 2 ranks"
    says "resumed [1-9]"
    says "as undisturbed"
    no_process # on host b neither, though it is told nothing
}

pull_cable() {
    on b ip link set wb down
}

kill_all() { # that are on host b, its sshd as well
    for process in /proc/[0-9]*; do
        [ "$process/ns/net" -ef /run/netns/b ] && kill -9 "${process#/proc/}" || :
    done
}

if [ "$lost" = lost ]; then
    lose_host pull_cable
    on b ip link set wb up
    lose_host kill_all
    echo "passed"
    exit 0
fi

# ---------------------------------------------------------------- agents

# Host a is this machine, b is reached by ssh.
start ssh 20000 10.77.0.1 10.77.0.2
await "^host 10.77.0.1: host-a, process [0-9]*, 8388608 bytes$"
await "^host 10.77.0.2: host-b, process [0-9]*, 8388608 bytes$"
[ "$(wc -l <"$out/got")" = 2 ] || fail "more than two lines"
pgrep -af "$agents --agent" | grep -qv ssh || fail "no agent runs"
stop
no_agent

refused ssh 10.77.0.9 "host 10.77.0.9: ssh: connect to host 10.77.0.9 port 22: No route to host: \`ssh ... \
10.77.0.9 true\` by hand has to work first"
refused ssh 10.77.0.3 "host 10.77.0.3: ssh: connect to host 10.77.0.3 port 22: Connection refused: \`ssh ... \
10.77.0.3 true\` by hand has to work first"
refused ssh-stranger 10.77.0.2 \
    "host 10.77.0.2: ssh: root@10.77.0.2: Permission denied (publickey): it lets this user in with \
a password only, or not at all; \`ssh-copy-id 10.77.0.2\` gives it a key"
refused ssh-unknown 10.77.0.2 \
    "host 10.77.0.2: ssh: Host key verification failed: its key is not known here; \`ssh \
10.77.0.2\` by hand asks whether it is right"
refused ssh-other 10.77.0.2 \
    "host 10.77.0.2: ssh: Host key verification failed: its key is another one than known_hosts \
has; if that is right, \`ssh-keygen -R 10.77.0.2\` forgets the old one"

# An agent is killed; then the coordinator is, and no agent stays.
start ssh 20000 10.77.0.1 10.77.0.2
await "^host 10.77.0.1: host-a"
await "^host 10.77.0.2: host-b"
kill -9 "$(sed -n 's/.*: host-b, process \([0-9]*\),.*/\1/p' "$out/got")"
await "^host 10.77.0.2: the agent was killed, or ssh has lost it"
grep -q "^host 10.77.0.1: the agent" "$out/got" && fail "the other agent has ended as well"
kill -9 "$(pgrep -f -- "^$agents ssh")"
wait "$coordinator" || :
exec 9>&-
no_agent

# A cable is pulled: only silence tells.
start ssh 1500 10.77.0.2
await "^host 10.77.0.2: host-b"
on b ip link set wb down
await "^host 10.77.0.2: it has not been heard for 1.5"
stop
on b ip link set wb up

# ---------------------------------------------------------------- jobs of zero-run's

[ -n "$zero_run" ] || { echo "passed"; exit 0; }

# job <config> <status> <hosts> <command...>: on host a, to its end
job() {
    config="$1" expected="$2" hosts="$3" status=0
    shift 3
    on a timeout 100 "$zero_run" --rsh "ssh -F $out/$config" --hosts "$hosts" "$@" \
        </dev/null >"$out/got" 2>"$out/err" || status=$?
    cat "$out/err" >>"$out/got"
    [ "$status" = "$expected" ] || fail "status $status instead of $expected"
}

# The ranks end well if their fingerprint is the one of a single host. Nothing else is said.
job ssh 0 10.77.0.1:2,10.77.0.2:2 -- "$program" 2 f32 5
[ ! -s "$out/err" ] || fail "standard error has"
no_process
printf '10.77.0.1 slots=1\n10.77.0.2 slots=2 # the larger one\n' >"$out/hostfile"
status=0
on a "$zero_run" --rsh "ssh -F $out/ssh" --hostfile "$out/hostfile" -- \
    sh -c 'echo "$ZERO_RANK of $ZERO_WORLD_SIZE on $(hostname)"' >"$out/got" 2>&1 || status=$?
[ "$status" = 0 ] || fail "status $status"
says "0 of 3 on host-a$"
says "1 of 3 on host-b$"
says "2 of 3 on host-b$"

job ssh 69 10.77.0.1:1,10.77.0.9:1 -- "$program" 2 f32 5
says "host 10.77.0.9: ssh: connect to host 10.77.0.9 port 22: No route to host"
job ssh-stranger 69 10.77.0.1:1,10.77.0.2:1 -- "$program" 2 f32 5
says "host 10.77.0.2: ssh: root@10.77.0.2: Permission denied (publickey)"
job ssh-unknown 69 10.77.0.1:1,10.77.0.2:1 -- "$program" 2 f32 5
says "host 10.77.0.2: ssh: Host key verification failed"
no_process

# ssh's own name for a host, and the name of this machine, are known to ssh or here only: ranks meet at
# the addresses that ssh has used.
printf 'Host alias-b\n    HostName 10.77.0.2\n' >>"$out/ssh"
job ssh 0 alias-b:1,10.77.0.1:1 -- "$program" 2 f32 5
job ssh 0 localhost:1,10.77.0.2:1 -- "$program" 2 f32 5

# A rank of the other host fails: its host is named, and the others are ended.
job ssh 7 10.77.0.1:2,10.77.0.2:2 -- sh -c 'if [ "$ZERO_RANK" = 3 ]; then exit 7; fi; sleep 987'
says "rank 3"
says "10.77.0.2"
no_process

# The coordinator is killed, or the agent of the other host: nothing stays. These hosts have one table
# of processes, so that the guardian of one ends the ranks of both.
sleepers() { # until all four ranks sleep
    for _ in $(seq 600); do
        [ "$(pgrep -c -f "^sleep 987")" = 4 ] && return
        sleep 0.05
    done
    fail "not all ranks have come"
}
agent_of() { # agent_of <host>: its number; its guardian, which is younger, is called the same
    for process in $(pgrep -f -- "^$zero_run --agent"); do
        [ "/proc/$process/ns/net" -ef "/run/netns/$1" ] || continue
        echo "$process"
        return
    done
}
for victim in coordinator agent; do
    on a "$zero_run" --rsh "ssh -F $out/ssh" --hosts 10.77.0.1:2,10.77.0.2:2 -- sleep 987 \
        </dev/null >"$out/got" 2>&1 &
    coordinator=$!
    sleepers
    case "$victim" in
    coordinator) kill -9 "$(pgrep -f -- "^$zero_run --rsh")" ;;
    agent) kill -9 "$(agent_of b)" ;;
    esac
    wait "$coordinator" || :
    no_process
done
says "host 10.77.0.2 with ranks 2 to 3 is lost: its agent"
echo "passed"
