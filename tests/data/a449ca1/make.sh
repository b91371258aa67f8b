#!/bin/sh
# Makes the files beside this script again: make.sh SOURCES BUILD OUT.
#
# SOURCES is a checkout of the commit, BUILD its build folder with zero-run, zero-ckpt and the shared
# library, OUT an empty directory for what is made. Fails unless the commit itself comes back from
# each file to the fingerprints of a run that was never interrupted.
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
sources="$1" build="$2" out="$3"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

"${CC:-cc}" -std=c11 -O1 -Wall -Wextra -I"$sources" "$here/make.c" "$here/job.c" \
    -L"$build/lib" -lzero -Wl,-rpath,"$build/lib" -o "$scratch/make"

ranks() { # ranks <kind>
    if [ "$1" = adamw ]; then echo 2; else echo 3; fi
}

run() { # run <kind> <what> [path]
    "$build/bin/zero-run" --prefix never -n "$(ranks "$1")" -- "$scratch/make" "$@"
}

killed() { # the same, of ranks that end by SIGKILL
    run "$@" 2>"$scratch/stderr" && exit 1
    ! grep "^make:" "$scratch/stderr" >&2
}

pack() { # pack <file> <kind>
    zstd -q --ultra -22 "$1" -o "$out/$2/$(basename "$1").zst"
    chmod 644 "$out/$2/$(basename "$1").zst"
}

keep_tiles() { # keep_tiles <kind>
    for file in "$scratch/$1"/zero-*.slots; do
        pack "$file" "$1"
    done
}

for kind in adamw others; do
    mkdir "$scratch/$kind" "$scratch/$kind/saved" "$out/$kind"
    run $kind whole
    killed $kind first "$scratch/$kind"
    keep_tiles $kind
    killed $kind recovered "$scratch/$kind"
    run $kind loaded "$scratch/$kind/saved/step-00000003"
    run $kind imported "$scratch/$kind/weights.safetensors"
    "$build/bin/zero-ckpt" export --state "$scratch/$kind/saved" \
        "$scratch/$kind/state.safetensors" >&2
    cp -r "$scratch/$kind/saved/step-00000003" "$out/$kind"
    for file in weights state; do
        pack "$scratch/$kind/$file.safetensors" $kind
    done
done >"$scratch/lines"

# One fingerprint of each job and step, but for the runs that begin with imported weights.
awk '{ key = $1 " " ($2 == "imported" ? $2 : "trained") " " $3 }
     !(key in seen) { seen[key] = $4; print key, $4 }
     seen[key] != $4 { print "differs: " $0 >"/dev/stderr"; exit 1 }' "$scratch/lines" \
    >"$out/fingerprints"
