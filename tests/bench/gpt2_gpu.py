"""gpt2's tokens/s on one GPU beside PyTorch's: GPT-2 124M, bf16, context 1024, 16 sequences a step.

    gpt2_gpu.py FOLDER_OF_GPT2 [ROUNDS]

PyTorch trains as it is usually done: fp32 weights, forward and backward in bf16 by autocast, flash
attention, fused AdamW, the norm clipped; once eager and once compiled. Each round runs the three
programs in turn, 30 steps each behind 10 warm ones, and takes the median step of each. Then come the
medians of the rounds' ratios, the share of attention in a step of PyTorch (bench_gpt2_gpu has that of
gpt2), and the share of the GPU's peak: 6 operations a parameter and token, and 6 a layer, position of
the context and element of the width for causal attention, over a large bf16 product's rate."""

import array
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt2 import GPT2

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, BATCH = 12, 12, 768, 1024, 50304, 16
WARM, STEPS = 10, 30
TOKENS = BATCH * CONTEXT


def median_rate(seconds):
    return TOKENS / statistics.median(seconds)


class Theirs:
    """A model of PyTorch's, with its optimizer."""

    def __init__(self, compiled):
        torch.manual_seed(1)
        self.model = GPT2(LAYERS, HEADS, WIDTH, CONTEXT, VOCAB).cuda()
        self.loss_of = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)
        self.text = torch.randint(VOCAB, (BATCH, CONTEXT + 1)).pin_memory()

    def step(self):
        begin = time.monotonic()
        tokens = self.text.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.loss_of(tokens[:, :-1], tokens[:, 1:])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        torch.cuda.synchronize()
        return time.monotonic() - begin

    def rate(self):
        seconds = [self.step() for _ in range(WARM + STEPS)][WARM:]
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return median_rate(seconds)


def our_rate(program, text):
    """Of a run of gpt2, whose steps print their tokens/s."""
    arguments = {"device": "cuda", "dtype": "bf16", "layers": LAYERS, "heads": HEADS,
                 "width": WIDTH, "context": CONTEXT, "vocab": VOCAB, "batch": BATCH,
                 "steps": WARM + STEPS, "data": text, "clip": 1, "sample": 0}
    words = [word for key, value in arguments.items() for word in ("--" + key, str(value))]
    said = subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
    rates = [int(rate) for rate in re.findall(r"^step .* tokens/s (\d+)", said, re.MULTILINE)]
    if len(rates) != WARM + STEPS:
        sys.exit("%s printed %d steps:\n%s" % (program, len(rates), said))
    return statistics.median(rates[WARM:])


def attention():
    """Seconds of all layers' attention, forward and backward."""
    shape = (BATCH, HEADS, CONTEXT, WIDTH // HEADS)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    d_out = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(LAYERS):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), d_out)
    torch.cuda.synchronize()
    return time.monotonic() - begin


def peak():
    """Operations a second of a large product of bf16 matrices."""
    side, repeat = 8192, 20
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(repeat):
            a @ b
        torch.cuda.synchronize()
        rates.append(repeat * 2 * side ** 3 / (time.monotonic() - begin))
    return statistics.median(rates)


def write_text(path):
    """Any tokens do: 16-bit ones behind llm.c's header of 256 words."""
    random.seed(1)
    tokens = array.array("H", (random.randrange(VOCAB) for _ in range(1 << 20)))
    with open(path, "wb") as out:
        array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
        tokens.tofile(out)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: gpt2_gpu.py FOLDER_OF_GPT2 [ROUNDS]")
    program, count = os.path.join(sys.argv[1], "gpt2"), int((sys.argv[2:] or ["5"])[0])
    eager, compiled = Theirs(False), Theirs(True)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "data.bin")
        write_text(text)
        for _ in range(count):
            rounds.append((our_rate(program, text), eager.rate(), compiled.rate()))
            print("zero %.0f, PyTorch %.0f, compiled %.0f tokens/s" % rounds[-1], flush=True)
    ours, eagers, compileds = ([r[i] for r in rounds] for i in range(3))
    for name, theirs, target in ("eager", eagers, 1), ("compiled", compileds, 0.9):
        ratios = [a / b for a, b in zip(ours, theirs)]
        print("gpt2 124M, bf16, over PyTorch %s: %.3f [%.3f, %.3f] of %d rounds, target %g"
              % (name, statistics.median(ratios), min(ratios), max(ratios), count, target))
    seconds = statistics.median([attention() for _ in range(WARM)][1:])
    for name, theirs in ("eager", eagers), ("compiled", compileds):
        print("attention in a step of PyTorch, %s: %.3f of it"
              % (name, seconds * statistics.median(theirs) / TOKENS))
    parameters = 12 * LAYERS * WIDTH ** 2 + VOCAB * WIDTH
    operations, most = 6 * parameters + 6 * LAYERS * CONTEXT * WIDTH, peak()
    for name, rates in ("zero", ours), ("PyTorch", eagers), ("compiled", compileds):
        print("%s: %.3f of a bf16 product's %.0f Tflop/s"
              % (name, statistics.median(rates) * operations / most, most / 1e12))


if __name__ == "__main__":
    main()
