# shellcheck shell=sh disable=SC2034 # variables that the tests use
# Sourced by the tests of this folder. What is not installed is an error here, never a skip.
#
#     . common.sh; enter "$@"     goes on as root in namespaces of its own: network, mounts, processes.
#                                 Whatever was started ends with them, also after a failure.
#     $here                       a temporary directory, which goes at the end
#     $repository $build          its two arguments

PATH="$PATH:/usr/sbin:/sbin"
export PATH PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
repository="$1" build="$2"
fingerprint=195ee058fc65f0548182bf856bf28f7a # of hello, on any number of ranks

missing() { # missing <what> <how to get it>
    echo "${0##*/}: this machine has no $1: $2" >&2
    exit 1
}

# need <command> <Debian package>
need() {
    command -v "$1" >/dev/null || missing "$1" "\`cmake/setup-debian.sh nightly\` installs $2"
}

# packages <name> <packages...>: $environment is a virtual environment of that name in the build folder, with
# packages of PyPI. It stays there: remove it to have newer ones. Before enter(): behind that there is no
# network.
packages() {
    environment="$build/nightly/$1"
    shift
    need python3 python3
    mkdir -p "$environment"
    { # several tests at a time may want it
        flock 9
        if [ "$(cat "$environment/has" 2>/dev/null)" != "$*" ]; then
            { python3 -m venv "$environment" && "$environment/bin/pip" install -q "$@"; } ||
                missing "$*" "pip has not installed it into $environment"
            echo "$*" >"$environment/has"
        fi
    } 9>"$environment/lock"
    [ "${NIGHTLY_HERE-}" = "" ] || "$environment/bin/pip" list --format freeze 2>/dev/null |
        grep -E "^($(echo "$*" | sed 's/\[[a-z]*]//g; s/ /|/g'))==" || missing "$*" "remove $environment, which is damaged"
}

# What wants torch, which is large, shares an environment.
torch_packages() { packages torch torch deepspeed "ray[train]"; }

enter() {
    if [ "${NIGHTLY_HERE-}" = "" ]; then
        need unshare util-linux
        need ip iproute2
        [ "$(id -u)" = 0 ] || missing "rights to make namespaces" "run this test as root"
        NIGHTLY_HERE="$(mktemp -d)"
        export NIGHTLY_HERE
        trap 'rm -rf "$NIGHTLY_HERE"' EXIT
        trap 'exit 1' HUP INT TERM
        status=0
        setpriv --pdeathsig KILL \
            unshare --net --mount --uts --pid --fork --kill-child --mount-proc "$0" "$@" &
        wait "$!" || status=$?
        exit "$status"
    fi
    here="$NIGHTLY_HERE"
    chmod 755 "$here"
    export TMPDIR="$here"
    ip link set lo up
    : >"$here/got"
    : >"$here/err"
}

fail() { # fail <what>: with what the last command has written, and logs that are named in $logs
    echo "FAILED: $1"
    for file in "$here/got" "$here/got.n1" "$here/got.n2" "$here/err" ${logs-}; do
        [ -s "$file" ] && echo "--- ${file##*/}" && tail -n 60 "$file"
    done
    exit 1
}

step() { echo "== $1"; }

# ---------------------------------------------------------------- hosts

# make_hosts <name...>: hosts with 10.88.0.1, 10.88.0.2 and so on. Each has a name, interfaces, and shared
# memory of its own. This process is on another one, which is 10.88.0.254.
make_hosts() {
    echo "127.0.0.1 localhost" >"$here/hosts"
    number=0
    for host in "$@"; do
        number=$((number + 1))
        echo "10.88.0.$number $host" >>"$here/hosts"
    done
    echo "10.88.0.254 $(hostname)" >>"$here/hosts"
    mount --bind "$here/hosts" /etc/hosts
    ip link add br0 type bridge
    ip addr add 10.88.0.254/24 dev br0
    ip link set br0 up
    number=0
    for host in "$@"; do
        number=$((number + 1))
        # shellcheck disable=SC2016 # for the shell of the host
        unshare --net --uts --mount --ipc sh -euc 'hostname "$1"
            mount -t tmpfs tmpfs /dev/shm
            echo up >"$2"
            exec sleep infinity' sh "$host" "$here/up.$host" &
        echo "$!" >"$here/holder.$host"
        while ! [ -s "$here/up.$host" ]; do sleep 0.02; done
        ip link add "v$number" type veth peer name eth0 netns "$!"
        ip link set "v$number" master br0 up
        on "$host" ip link set lo up
        on "$host" ip addr add "10.88.0.$number/24" dev eth0
        on "$host" ip link set eth0 up
    done
}

# on <host> <command...>
on() {
    holder="$(cat "$here/holder.$1")"
    shift
    nsenter -t "$holder" --net --uts --mount --ipc "$@"
}

# both <command...>: on hosts n1 and n2, with 0 and 1 in place of each {}. ended: when both have ended, or
# after a minute; $statuses says how, and $here/got has what they have written.
both() {
    : >"$here/got"
    for host in n1 n2; do
        (
            status=0
            # shellcheck disable=SC2046 # no word of a command has blanks
            on "$host" timeout -k 5 90 $(echo "$*" | sed "s/{}/$((${host#n} - 1))/g") \
                >"$here/got.$host" 2>&1 || status=$?
            echo "$status" >"$here/status.$host"
        ) &
        [ $host = n2 ] || first=$!
    done
    second=$!
}
ended() {
    wait "$first" "$second"
    statuses="$(cat "$here/status.n1") $(cat "$here/status.n2")"
    cat "$here/got.n1" "$here/got.n2" >"$here/got"
}

# kill_host <host>: all of its processes.
kill_host() {
    network="$(on "$1" readlink /proc/self/ns/net)"
    for process in /proc/[0-9]*; do
        [ "${process#/proc/}" = "$(cat "$here/holder.$1")" ] ||
            [ "$(readlink "$process/ns/net")" != "$network" ] || kill -KILL "${process#/proc/}"
    done
}

# network slow | fast: between n1 and n2. A step on a slow one takes what it takes on any machine.
network() {
    for host in n1 n2; do
        on "$host" tc qdisc del dev eth0 root 2>/dev/null || true
        [ "$1" = fast ] ||
            on "$host" tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 400ms
    done
}

# small_gpt2 <steps>: a program gpt2 of a small model in $PATH, and a text in $here/text. $undisturbed is
# the line with its fingerprint at stage 3 and 16 micro-batches.
small_gpt2() {
    mkdir "$here/bin" "$here/text"
    ln -s "$build/bin/zero-run" "$here/bin/zero-run"
    cat >"$here/bin/gpt2" <<RANK
#!/bin/sh
exec "$build/bin/gpt2" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --sample 0 --steps $1 "\$@"
RANK
    chmod +x "$here/bin/gpt2"
    head -c 20000 "$repository/examples/clusters/README.md" >"$here/text/a.txt"
    PATH="$here/bin:$PATH"
    gpt2 --stage 3 --micro-batches 16 --data "$here/text" >"$here/got" 2>&1 || fail "gpt2 alone"
    undisturbed="$(grep -o "fingerprint step $1 .*" "$here/got")"
}

# failing_ranks: a program $here/fails, whose rank 1 ends with 9 in its first two starts; it counts them in
# the file that is its argument.
failing_ranks() {
    cat >"$here/fails" <<'RANK'
#!/bin/sh
[ "$ZERO_RANK" = 1 ] || exit 0
echo again >>"$1"
[ "$(wc -l <"$1")" -gt 2 ] || exit 9
RANK
    chmod +x "$here/fails"
}

# A command that stands in for ssh: [options] <host> <command...>, in $here/agent.
make_agent() {
    cat >"$here/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do
    case "\$1" in -[ilop]) shift ;; esac
    shift
done
host="\${1#*@}"
shift
[ -e "$here/holder.\$host" ] || host="\$(sed -n "s/^\$host //p" "$here/hosts")"
exec nsenter -t "\$(cat "$here/holder.\$host")" --net --uts --mount --ipc sh -c "\$*"
AGENT
    chmod +x "$here/agent"
}

# ---------------------------------------------------------------- what ranks say

# trained <what> <transport> <ranks>: hello's ranks have ended with its fingerprint, by this transport.
trained() {
    grep -q "$fingerprint" "$here/got" || fail "$1: another fingerprint, or none"
    [ "$2" = any ] || cat "$here/got" "$here/err" |
        grep -q "rank 0 of $3, .*transport $2" || fail "$1: no $3 ranks by $2"
}

# none_left <what> <words>: no process with these words in its command line is left, in 20 seconds.
none_left() {
    tries=0
    while pgrep -f -- "$2" >"$here/left"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "$1: left behind: $(pgrep -af -- "$2")"
        sleep 0.1
    done
}

# await <what> <seconds> <command...>: until it succeeds.
await() {
    what="$1" tries=$((5 * $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "$what: not in time"
        sleep 0.2
    done
}
