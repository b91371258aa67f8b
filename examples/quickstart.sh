#!/bin/sh
# From a fresh clone to a GPT-2 that trains on two ranks at stage 3, on the text of the checkout.
# Further arguments go to gpt2 and win over those below.
set -eu
cd "$(dirname "$0")/.."

cmake/setup-debian.sh
cmake --preset default -DZERO_GPT2=ON
cmake --build --preset default -j "$(nproc)" --target zero-run gpt2

exec build/bin/zero-run -n 2 -- build/bin/gpt2 --stage 3 \
    --data base checkpoint collectives examples tests zero README.md \
    --layers 4 --heads 4 --width 128 --context 128 --batch 8 --steps 60 \
    --lr 2e-3 --warmup 10 --schedule cosine --min-lr 2e-4 --clip 1 \
    --sample 200 --fingerprint 60 "$@"
