#!/bin/sh
# What zero-run --plan prints of a program is what its ranks plan when they are there, and what does
# not fit is said, once: run_plan.sh <zero-run> <program> [arguments...]
set -eu
zero_run="$1"
shift
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# Rows of memory and slots: where the plan's number and the real one must be the same.
rows() {
    sed -n '/memory, bytes of this rank$/,/the host.s .* together$/p; /slots$/,/configuration$/p'
}

for setting in "1 0 auto" "2 1 copy" "3 2 shared" "3 3 copy" "2 3 shared"; do
    set -- $setting "$@"
    ranks="$1" stage="$2" gather="$3"
    shift 3
    "$zero_run" --plan --world "$ranks" -o stage="$stage" -o gather="$gather" -- "$@" \
        2>"$dir/said" | rows >"$dir/planned"
    "$zero_run" -n "$ranks" -o stage="$stage" -o gather="$gather" -o log=core=debug \
        --prefix always -- "$@" 2>&1 | sed -n 's/^\[0\] zero[^:]*: \(core: \)\{0,1\}//p' >"$dir/log"
    rows <"$dir/log" >"$dir/made"
    [ "$(wc -l <"$dir/planned")" -ge 15 ] || { echo "no rows in the plan" && exit 1; }
    diff "$dir/planned" "$dir/made" || {
        echo "$ranks ranks, stage $stage, $gather: planned (<) and made (>) differ"
        exit 1
    }
done

# State in files: what moves it, how long a step takes it, and nothing of it is made. Nothing is
# measured unless that is asked for.
files="-o stage=3 -o offload_optimizer=nvme -o offload_params=nvme -o persist_numel=off"
"$zero_run" --plan $files -o nvme_dir="$dir" -- "$@" >"$dir/plan" 2>"$dir/said"
grep -q '^  compress     auto, by [1-4] threads*: the first updates decide$' "$dir/plan" &&
    ! grep -Eq '( written by all ranks: |^  (in memory|computing|expected|prefetch) )' "$dir/plan" || {
    echo "a plan without a probe expects something:" && cat "$dir/plan" "$dir/said" && exit 1
}
"$zero_run" --plan --probe $files -o nvme_dir="$dir" -- "$@" >"$dir/plan" 2>"$dir/said"
grep -Eq ' in memory at once, in (2 MiB pages \((reserved|transparent)\)|4 KiB pages)$' "$dir/plan" &&
    grep -Eq '^  io           (uring|threads|sync), (past the cache in units of [0-9]+ bytes|through the cache: this file system has no O_DIRECT)$' "$dir/plan" &&
    grep -q '^  a step       [0-9.]* .* read and [0-9.]* .* written by all ranks: about ' "$dir/plan" &&
    grep -Eq '^  compress     auto, by [1-4] threads?: to 0\.[0-9]+ of ' "$dir/plan" &&
    grep -Eq '^  in memory    about [0-9.e+-]+ s, as a rank copies [0-9.]+ .iB a second when all of the host do$' "$dir/plan" &&
    grep -Eq '^  computing    about [0-9.e+-]+ s, as a rank updates [0-9.]+ .iB of state a ' "$dir/plan" &&
    grep -Eq '^  expected     about [0-9.e+-]+ s a step, beside forward and backward; the limit is (the disk|memory|computing|compression)$' "$dir/plan" &&
    grep -Eq '^  prefetch     4 units ahead, (enough: .* late|too few: .* prefetch_units=[0-9]+ would be enough)$' "$dir/plan" || {
    echo "nothing is expected of the disk:" && cat "$dir/plan" "$dir/said" && exit 1
}
ZERO_FAULT=pages.reserved@1+,pages.transparent@1+,file.direct:einval@1 "$zero_run" --plan=json \
    --probe $files -o nvme_dir="$dir" -- "$@" >"$dir/plan" 2>"$dir/said"
grep -q '"pages": "4 KiB pages",' "$dir/plan" && grep -q '"direct_unit": 0,' "$dir/plan" &&
    grep -Eq '"limit": "(disk|memory|compute|compression)"' "$dir/plan" &&
    grep -Eq '"step_s": [0-9.e+-]+' "$dir/plan" &&
    grep -Eq '"prefetch_needed": [1-9]' "$dir/plan" || {
    echo "not how files are used:" && cat "$dir/plan" "$dir/said" && exit 1
}
[ -z "$(find "$dir" -name '*.slots')" ] || { echo "a plan has made files" && exit 1; }

# JSON, of a world that is not there.
"$zero_run" --plan=json --world 7 -o stage=3 -- "$@" >"$dir/plan" 2>"$dir/said"
grep -q '"world": 7,' "$dir/plan" || { echo "no JSON:" && cat "$dir/plan" && exit 1; }

# Of several hosts: what ranks that are elsewhere need is not asked of this one.
"$zero_run" --plan=json --world 7 -n 3 -o stage=3 -- "$@" >"$dir/plan" 2>"$dir/said"
grep -q '"ranks_here": 3,' "$dir/plan" && grep -q '"transport": "tcp",' "$dir/plan" || {
    echo "not a plan of several hosts:" && cat "$dir/plan" "$dir/said" && exit 1
}
"$zero_run" --plan --world 7 -n 3 -o stage=3 -- "$@" >"$dir/plan" 2>"$dir/said"
grep -q "^the host's 3 of 7 ranks together$" "$dir/plan" || {
    echo "not said how many are here:" && cat "$dir/plan" "$dir/said" && exit 1
}

status=0
"$zero_run" --plan -o memory_limit=4KiB -- "$@" >"$dir/plan" 2>"$dir/said" || status=$?
[ "$status" = 65 ] || { echo "a plan that does not fit: $status" && exit 1; }
grep -q '^  fits         no: ' "$dir/plan"
grep -q 'the plan does not fit: .*(memory_limit)' "$dir/said"

status=0
ZERO_MEMORY_LIMIT=4KiB "$@" >"$dir/said" 2>&1 || status=$?
[ "$status" = 1 ] && [ "$(wc -l <"$dir/said")" = 1 ] && grep -q '(memory_limit)' "$dir/said" || {
    echo "status $status, and instead of one line:" && cat "$dir/said" && exit 1
}
