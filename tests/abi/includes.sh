#!/bin/sh
# Includes point down only: includes.sh <repository> <build directory>
#
# The build enforces it too (cmake/Folders.cmake); this test sees what the build cannot: relative
# paths, the inside of collectives/, and that the build's own enforcement works.
set -eu
root="$1" build="$2"
cd "$root"
status=0

# check <folder> <pattern of what its files may include>
check() {
    find "$1" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \) -print | sort |
        xargs grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*("|<zero/)' /dev/null |
        grep -vE "include[[:space:]]*[\"<]($2)[\">]" >"$seen" || true
    if [ -s "$seen" ]; then
        echo "$1 may not include:"
        cat "$seen"
        status=1
    fi
}
seen="$(mktemp)"
trap 'rm -f "$seen"' EXIT
trap 'exit 1' HUP INT TERM

vocabulary='zero/(types|random)\.h'
public='zero/(zero|trainer|collectives|types|random)\.h'
path='[a-z0-9_/-]+\.(h|cu)'
name='[a-z0-9_]+\.h'

check base "base/$path|$vocabulary"
check collectives/rendezvous "collectives/rendezvous/$path|base/$path|$vocabulary"
check collectives "collectives/$path|base/$path|$vocabulary"
check offload "offload/$path|base/$path|$vocabulary"
check checkpoint "checkpoint/$path|offload/$path|base/$path|$vocabulary"
check zero "(zero|checkpoint|offload|collectives|base)/$path"
check tools/zero-run "tools/options\.h|tools/zero-run/$path|collectives/(rendezvous|control)/$path|base/$path|$vocabulary"
check tools/zero-ckpt "tools/options\.h|tools/zero-ckpt/$path|checkpoint/$path|base/$path|$vocabulary"
for example in examples/*; do
    case "$example" in
    */gpt2) check "$example" "$public|$name|base/(bfloat16|pool|kernels/kernels)\.h" ;;
    */mpi) check "$example" "$public|$name|zero/mpi\.h" ;;
    *) check "$example" "$public|$name" ;;
    esac
done
check tests "(tests|tools|zero|checkpoint|offload|collectives|base|examples)/$path|$name"

# refused <root> <header>: a file that sees only this root of the build must not find the header.
refused() {
    if cd / && echo "#include \"$2\"" |
        cc -std=c11 -D_GNU_SOURCE -fsyntax-only -x c -I"$build/include-roots/$1" \
            -I"$build/include-roots/vocabulary" - 2>/dev/null; then
        echo "the build lets $1 include $2"
        status=1
    fi
}
refused base collectives/comm/comm.h
refused base zero/zero.h
refused collectives.comm collectives/host/host.h
refused collectives.rendezvous collectives/comm/comm.h
refused collectives checkpoint/safetensors/safetensors.h
refused checkpoint collectives/comm/comm.h
refused public base/log.h
exit $status
