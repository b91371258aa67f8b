#!/bin/sh
# Installs the Debian packages that zero is built (and tested) with. Says nothing when none is
# missing.
#
#   setup-debian.sh          what the library and the examples need
#   setup-debian.sh test     and what tests/run.sh needs
#   setup-debian.sh nightly  and what `ctest --preset nightly` needs
set -eu

packages="cmake gcc libc6-dev libhwloc-dev libjansson-dev libopenblas-dev liburing-dev"
packages="$packages libxxhash-dev libzstd-dev"
packages="$packages ninja-build patch pkg-config"
test_packages="clang clang-format clang-tidy g++ iproute2 libcmocka-dev libmpich-dev libopenmpi-dev"
test_packages="$test_packages libucx-dev lld mandoc mpich openmpi-bin openssl python3"
test_packages="$test_packages python3-yaml shellcheck"
# Debian starts an sshd with its package: only where no service manager runs, as in a container.
# Elsewhere the test that starts one of its own is left out if there is none.
[ -d /run/systemd/system ] || test_packages="$test_packages openssh-client openssh-server"
nightly_packages="default-jre-headless munge pdsh python3-venv slurm-wlm"

case "$#:${1-}" in
0:) ;;
1:test) packages="$packages $test_packages" ;;
1:nightly) packages="$packages $test_packages $nightly_packages" ;;
*)
    echo "usage: setup-debian.sh [test | nightly]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is not Debian; what zero is built with there: $packages" >&2
    exit 0
fi

missing=""
for package in $packages; do
    case "$(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null)" in
    "installed "*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    sudo=""
elif command -v sudo >/dev/null; then
    sudo="sudo"
else
    echo "setup: these packages are missing, and this user is neither root nor has sudo:" >&2
    echo "    apt-get install$missing" >&2
    exit 1
fi

echo "setup: ${sudo:+$sudo }apt-get install$missing"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
