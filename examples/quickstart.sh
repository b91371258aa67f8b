#!/bin/sh
# From a fresh clone to a GPT-2 that trains on two ranks at stage 3, on the text of the checkout.
# Further arguments go to gpt2 and win over those below: quickstart.sh --data my-texts --steps 1000
set -eu
cd "$(dirname "$0")/.."

cmake/setup-debian.sh
cmake --preset default -DZERO_GPT2=ON
cmake --build --preset default -j "$(nproc)" --target zero-run gpt2

case " $* " in
*" --data "*) ;;
*) set -- "$@" --data README.md base checkpoint collectives examples tests zero ;;
esac
exec build/bin/zero-run -n 2 -- build/bin/gpt2 --stage 3 --steps 800 --fingerprint 200 "$@"
