#!/bin/sh
# What is one of several is named in each list of them, and described: lists.sh <repository>
set -eu
cd "$1"
bad=0

named() { # named <tables of operations...>: as in .name = "lion"
    sed -n 's/^    \.name = "\([a-z0-9-]*\)",$/\1/p' "$@"
}

look() { # look "<names>" <files that have each...>
    [ -n "$1" ] || { echo "no names for $2"; exit 1; }
    names="$1"
    shift
    for file; do
        for name in $names; do
            grep -iqw -e "$name" "$file" || { echo "$file: no $name"; bad=1; }
        done
    done
}

look "$(named zero/optim/*.c)" zero/model.h docs/man/zero.7 docs/architecture.md \
    offload/FORMAT.md tools/zero-ckpt/elements.c tools/zero-ckpt/zero-ckpt.1 \
    tests/unit/optim_checks.c tests/unit/optim_values.c tests/numerics/synthetic.c \
    tests/numerics/synthetic_matrix.c tests/CMakeLists.txt tests/numerics/optimizers_golden.c \
    tests/cuda/resident.c
look "$(grep -o '\<BASE_RULE_[A-Z]*,' base/kernels/kernels.h | tr -d ,)" \
    base/kernels/kernels_loop.h tests/unit/kernels_bits.c
look "$(named offload/io/*.c | grep -vx auto)" zero/config/config_key.c zero/configuration.h \
    docs/man/zero.7 docs/guides/configuration.md docs/architecture.md \
    examples/gpt2/gpt2_option_table.c
look "$(sed -n 's/^    {"\([a-z]*\)", &coll_transport_.*/\1/p' collectives/transport/transport_list.c)" \
    zero/config/config_key.c zero/configuration.h docs/man/zero.7 docs/guides/configuration.md \
    docs/architecture.md
look "$(grep -oh '"[A-Z][A-Z0-9]*_[A-Z0-9_]*"' collectives/rendezvous/launcher_*.c \
    collectives/rendezvous/job_*.c collectives/rendezvous/hosts_of_job.c \
    collectives/rendezvous/master_address.c | grep -v -e '_"' -e '"_' | tr -d '"' | sort -u)" \
    docs/guides/launchers.md
exit "$bad"
