#!/bin/sh
# What an ordinary user gets in a login shell or in a container, with state on NVMe: the same bits
# by whatever engine the system lets the user have, the reason in the plan, and a way out where the
# configuration insists: run_ordinary.sh <zero-run> <hello> <limited> <stride>
#
# Stride 1 tries each limit of open files with each engine, 3 each limit with one of them.
set -eu
zero_run="$1" hello="$2" limited="$3" stride="$4"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$dir"
mkdir -m 777 "$dir/nvme"
mkdir -m 555 "$dir/home"
expected="$("$hello")"
others='-o offload_params=nvme -o offload_grads=nvme -o persist_numel=off'

fail() {
    echo "$*:"
    cat "$dir/said"
    exit 1
}

# Runs a program of two ranks under limits: ordinary "limits" [options of zero-run]
ordinary() {
    limits="$1"
    shift
    status=0
    (cd "$dir/home" && "$limited" $limits user -- "$zero_run" -n 2 -o offload_optimizer=nvme \
        -o nvme_dir="$dir/nvme" $others -o stage=3 -o log=core=debug "$@" -- "$hello") \
        >"$dir/said" 2>&1 || status=$?
    [ "$status" != 77 ] || { cat "$dir/said" && exit 77; }
}

# It runs, by one of these engines, and what is said of a better one: runs "limits" engines words
runs() {
    ordinary "bare $1"
    [ "$status" = 0 ] && grep -q "$expected" "$dir/said" || fail "$1: status $status"
    grep -Eq "  io           ($2)," "$dir/said" || fail "$1: not by $2"
    [ -z "$3" ] || grep -q "  io=auto      has nothing better.*: .*$3" "$dir/said" || fail "$1: not $3"
}

runs memlock=8192 'uring|uring-plain|threads' ''
runs memlock=64 'uring-plain|threads' 'may lock 64 KiB (ulimit -l'
runs memlock=0 'uring-plain|threads' 'may lock 0 KiB (ulimit -l'
runs refuse=EPERM threads 'forbidden here .*(EPERM)'
runs refuse=ENOSYS threads 'no io_uring.*(ENOSYS)'
runs 'refuse=EPERM memlock=0' threads 'forbidden here .*(EPERM)'

# What was given is binding, and its error names the way out.
refused() {
    ordinary "bare $1" -o "io=$2"
    [ "$status" = 1 ] || fail "$1, io=$2: status $status"
    for words in "io=$2: " "$3" 'io=auto' 'io=threads'; do
        grep -q -- "$words" "$dir/said" || fail "$1, io=$2: not $words"
    done
}

refused memlock=0 uring 'LimitMEMLOCK='
refused memlock=64 uring 'ulimit -l'
refused refuse=EPERM uring 'seccomp'
refused refuse=ENOSYS uring-plain 'seccomp'

# A plan is made by the same rules.
for limits in memlock=64 memlock=8192 refuse=EPERM; do
    ordinary "bare $limits" --plan --probe
    [ "$status" = 0 ] && grep -Eq '^  io           (uring-plain|threads), ' "$dir/said" &&
        grep -q '^  io=auto      has nothing better: ' "$dir/said" &&
        ! grep -q '^  locking ' "$dir/said" || # these engines lock nothing
        fail "plan with $limits: status $status"
done

# What counts is what the ranks register, 2 MiB each, and not the 32 MiB of the probe.
others=
ordinary 'bare memlock=8192'
engine="$(sed -n 's/.*  io           \([a-z-]*\),.*/\1/p' "$dir/said" | head -n 1)"
[ "$status" = 0 ] && [ -n "$engine" ] || fail "state alone with memlock=8192: status $status"
ordinary 'bare memlock=8192' --plan --probe
[ "$status" = 0 ] && grep -q "^  io           $engine, " "$dir/said" ||
    fail "plan of state alone with memlock=8192: status $status, ranks have $engine"
[ "$engine" != uring ] || ! grep -q 'has nothing better' "$dir/said" ||
    fail 'plan of state alone with memlock=8192: uring, and a reason against it'

# Too few open files: it runs, or the limit is named, and never the kernel's version.
export ZERO_OFFLOAD_OPTIMIZER=nvme ZERO_NVME_DIR="$dir/nvme"
number=-1
for files in 5 6 7 8 9 10 11 12 13 14 15 16 20; do
    for io in auto uring threads; do
        number=$((number + 1))
        [ $(((number + number / 3) % stride)) = 0 ] || continue
        status=0
        ZERO_IO=$io "$limited" files=$files -- "$hello" >"$dir/said" 2>&1 || status=$?
        [ "$status" != 77 ] || exit 77
        [ "$status" = 0 ] || [ "$status" = 127 ] || grep -q 'ulimit -n' "$dir/said" ||
            fail "$files files, io=$io: status $status"
        ! grep -q 'Linux\|kernel' "$dir/said" || fail "$files files, io=$io: the kernel's fault"
    done
done
