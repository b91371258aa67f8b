#!/bin/sh
# What is installed can be used: a C and a C++ client, found by pkg-config and by CMake, linked
# shared and static, in a tree that was moved after its installation.
#
# install.sh <build directory> <folder of the clients> <version>
set -eu
build="$1" clients="$2" version="$3"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

cmake --install "$build" --prefix "$here/staged" >"$here/log"
mv "$here/staged" "$here/moved"
libdir="$(dirname "$(find "$here/moved" -name libzero.so)")"

for file in bin/zero-run bin/zero-ckpt share/man/man1/zero-run.1 share/man/man1/zero-ckpt.1 \
    share/man/man7/zero.7 include/zero/zero.h include/zero/mpi.h; do
    [ -f "$here/moved/$file" ] || { echo "$file was not installed" && exit 1; }
done

run() { # run <program>: it prints the library's version
    [ "$(LD_LIBRARY_PATH="$libdir" "$1")" = "$version" ] || {
        echo "$1 does not print $version"
        exit 1
    }
}

export PKG_CONFIG_PATH="$libdir/pkgconfig"
flags="$(pkg-config --cflags --libs zero)"
static_flags="$(pkg-config --cflags --libs --static zero | sed 's/-lzero/-l:libzero.a/')"
cc -std=c11 -Wall -Wextra -Werror "$clients/client.c" $flags -o "$here/c"
cc -std=c11 -Wall -Wextra -Werror "$clients/client.c" $static_flags -o "$here/c_static"
c++ -std=c++11 -Wall -Wextra -Werror "$clients/client.cc" $flags -o "$here/cc"
run "$here/c"
run "$here/cc"
run "$here/c_static"

cmake -G Ninja -S "$clients" -B "$here/cmake" -DCMAKE_PREFIX_PATH="$here/moved" >"$here/log"
cmake --build "$here/cmake" >"$here/log"
run "$here/cmake/client_c"
run "$here/cmake/client_cc"
run "$here/cmake/client_static"
