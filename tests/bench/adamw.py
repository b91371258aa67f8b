"""What zero's update on a GPU is compared with: a bf16 gradient cast to fp32, PyTorch's fused AdamW
of fp32 weights and moments, the new weights copied to bf16. bench_device starts it: for each line
that comes in it does that ten times, and prints the seconds that one took."""

import sys
import time

import torch

elements = int(sys.argv[1])
gradient = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")
weight = torch.zeros(elements, device="cuda", requires_grad=True)
weight.grad = torch.zeros(elements, device="cuda")
work = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")
optimizer = torch.optim.AdamW([weight], lr=1e-2, fused=True)


def update():
    weight.grad.copy_(gradient)
    optimizer.step()
    with torch.no_grad():
        work.copy_(weight)


REPEAT = 10
for _ in sys.stdin:
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(REPEAT):
        update()
    torch.cuda.synchronize()
    print((time.monotonic() - begin) / REPEAT, flush=True)
