#!/bin/sh
# Two hosts of this machine (network namespaces, a link between them), and what goes over the link:
#
#   hosts.sh <folder of the programs> [<megabits a second of the link>...]
#       collectives of ranks on two hosts against those of Open MPI and MPICH. Default: 1000, and a
#       link that is not slowed down (0).
#   hosts.sh <folder of the programs> train <folder of gpt2 and zero-run> <python> [<megabits>]
#       gpt2's steps, stages 1 and 3, against PyTorch's DDP and FSDP with gloo, if that Python has it.
set -eu
export PATH="$PATH:/usr/sbin:/sbin" PYTHONDONTWRITEBYTECODE=1
here="$(cd "$(dirname "$0")" && pwd)"
programs="$(cd "$1" && pwd)"
shift

if [ "$(id -u)" -ne 0 ]; then
    exec unshare --user --map-root-user "$here/hosts.sh" "$programs" "$@"
fi
command -v ip >/dev/null || { echo "hosts: left out, the command ip is not here (iproute2)"; exit 0; }

dir="$(mktemp -d)"
holders=""
trap 'kill $holders 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# A process that keeps the namespaces of a host; it ends with this script.
hold() { # hold <name>
    unshare --net --uts setpriv --pdeathsig KILL sleep infinity &
    holder=$!
    holders="$holders $holder"
    while [ "$(readlink "/proc/$holder/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    echo "$holder" >"$dir/$1"
    inside "$1" hostname "$1"
    inside "$1" ip link set lo up
}

inside() { # inside <name> <command...>
    holder="$(cat "$dir/$1")"
    shift
    nsenter --target "$holder" --net --uts -- "$@"
}

# The link: 10.77.0.1 and .2, with a bucket that lets a quarter of a MiB pass at once.
shape() { # shape <megabits a second; 0: as fast as it can>
    for name in hosta hostb; do
        inside $name tc qdisc del dev eth0 root 2>/dev/null || true
        [ "$1" = 0 ] ||
            inside $name tc qdisc add dev eth0 root tbf rate "$1mbit" burst 256k latency 50ms
    done
}

make_hosts() {
    hold hosta 2>/dev/null && hold hostb || { echo "hosts: left out, no network namespaces here"; exit 0; }
    ip link add eth0 netns "$(cat "$dir/hosta")" type veth peer name eth0 netns "$(cat "$dir/hostb")"
    inside hosta ip addr add 10.77.0.1/24 dev eth0
    inside hostb ip addr add 10.77.0.2/24 dev eth0
    for name in hosta hostb; do inside $name ip link set eth0 up; done
    # What mpirun takes for ssh: options, a host, and a command for its shell.
    cat >"$dir/agent" <<END
#!/bin/sh
while :; do case "\$1" in -*) shift ;; *) break ;; esac; done
case "\$1" in 10.77.0.1) name=hosta ;; *) name=hostb ;; esac
shift
exec nsenter --target "\$(cat "$dir/\$name")" --net --uts -- sh -c "\$*"
END
    chmod +x "$dir/agent"
}

# ------------------------------------------------------------------ collectives

openmpi() { # openmpi <transport>
    inside hosta mpirun.openmpi --mca plm_rsh_agent "$dir/agent" --mca pml ob1 \
        --mca btl tcp,vader,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
        --host 10.77.0.1:1,10.77.0.2:1 -np 2 --bind-to none \
        "$programs/bench_hosts_openmpi" 10.77.0.1 "$1"
}

mpich() { # mpich <transport>
    UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 inside hosta mpirun.mpich -launcher ssh \
        -launcher-exec "$dir/agent" -iface eth0 -hosts 10.77.0.1:1,10.77.0.2:1 -n 2 \
        "$programs/bench_hosts_mpich" 10.77.0.1 "$1"
}

collectives() { # collectives <megabits>...
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    [ $# -gt 0 ] || set -- 1000 0
    for rate in "$@"; do
        shape "$rate"
        [ "$rate" = 0 ] && echo "two hosts, a link as fast as it can be:" ||
            echo "two hosts, a link of $rate Mbit/s:"
        for library in openmpi mpich; do
            [ -x "$programs/bench_hosts_$library" ] || continue
            for transport in tcp; do $library "$transport"; done
        done
    done
}

# ------------------------------------------------------------------ training

layers=4 heads=8 width=256 context=256 vocab=2048 batch=4 steps=8

# The median of what the steps but the first two print.
median() {
    sed -n 's/.*tokens\/s \([0-9]*\).*/\1/p' | tail -n +3 | sort -n |
        awk '{a[NR] = $1} END {if (NR > 0) print a[int((NR + 1) / 2)]}'
}

# Rank 0 on hosta and rank 1 on hostb, each on a processor of its own.
both() { # both <command...>
    port=$((20000 + ($$ + port) % 20000))
    for rank in 1 0; do
        [ $rank = 0 ] && name=hosta || name=hostb
        RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 \
            MASTER_PORT=$port GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 \
            inside $name taskset -c $rank "$@" &
    done | median
}

ours() { # ours <stage>
    both "$trainer/gpt2" --stage "$1" --threads 1 --layers $layers --heads $heads --width $width \
        --context $context --vocab $vocab --batch $batch --steps $steps --data "$dir/data.bin" \
        --clip 1 --sample 0
}

theirs() { # theirs <ddp or fsdp>
    both "$python" "$here/ddp.py" $layers $heads $width $context $vocab $batch $steps "$1"
}

compare() { # compare <stage> <ddp or fsdp>
    for round in 1 2 3 4 5; do
        a="$(ours "$1")" b="$(theirs "$2")"
        [ -n "$a" ] && [ -n "$b" ] || { echo "hosts: a run of round $round failed" >&2; exit 1; }
        echo "$a $b" | awk '{printf "%.3f zero %d, PyTorch %d tokens/s\n", $1 / $2, $1, $2}'
    done | tee "$dir/ratios"
    sort -n "$dir/ratios" | awk -v of="stage $1 over $2 with gloo" \
        'NR == 1 {low = $1} NR == 3 {mid = $1} NR == 5 {high = $1}
         END {printf "gpt2, 2 hosts, %s: %.3f [%.3f, %.3f], target 1\n", of, mid, low, high}'
}

train() { # train <folder of gpt2> <python> [<megabits>]
    trainer="$(cd "$1" && pwd)" python="$2" port=0
    "$python" -c "import torch" 2>/dev/null || { echo "hosts: $python has no torch"; exit 0; }
    "$python" "$here/tokens.py" "$dir/data.bin" $vocab
    shape "${3:-1000}"
    compare 1 ddp
    compare 3 fsdp
}

make_hosts
case "${1-}" in
train)
    shift
    train "$@"
    ;;
*) collectives "$@" ;;
esac
