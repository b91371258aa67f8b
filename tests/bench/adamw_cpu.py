"""A peer's AdamW on processors: adamw_cpu.py pytorch|deepspeed THREADS ELEMENTS. bench_peers starts
it: for each line that comes in it updates once, and prints the seconds that took.

pytorch: torch.optim.AdamW(fused=True) of fp32 weights, alone. deepspeed: the norm of the gradients,
the clip, DeepSpeedCPUAdam, and the new weights copied to bf16."""

import os
import sys
import time

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer

import torch

peer, threads, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
UNITS = 16
weights = [torch.zeros(elements // UNITS, requires_grad=True) for _ in range(UNITS)]
for weight in weights:
    weight.grad = (1e-3 * (1 + torch.arange(elements // UNITS) % 1000)).float()
options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}

if peer == "pytorch":
    optimizer = torch.optim.AdamW(weights, fused=True, **options)
    update = optimizer.step
else:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam(weights, adamw_mode=True, **options)
    copies = [torch.zeros(elements // UNITS, dtype=torch.bfloat16) for _ in range(UNITS)]

    def update():
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        with torch.no_grad():
            for copy, weight in zip(copies, weights):
                copy.copy_(weight)


for _ in sys.stdin:
    begin = time.monotonic()
    update()
    print(time.monotonic() - begin, file=answers, flush=True)
