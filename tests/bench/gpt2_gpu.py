"""GPT-2's training on a GPU by PyTorch, as it is usually done: fp32 weights, forward and backward in
bf16 by autocast, flash attention, fused AdamW, the norm clipped. The model of examples/gpt2.
gpt2_gpu.sh starts it: layers, heads, width, context, vocabulary, sequences, steps, and "eager" or
"compiled". Prints tokens/s of every step but the first ten; then the share of attention in the
median one: that of all layers, forward and backward, by itself."""

import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from gpt2 import GPT2

layers, heads, width, context, vocab, batch, steps = (int(a) for a in sys.argv[1:8])
WARM = 10

torch.manual_seed(1)
model = GPT2(layers, heads, width, context, vocab).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
                              fused=True)
loss_of = torch.compile(model) if sys.argv[8] == "compiled" else model
text = torch.randint(vocab, (steps, batch, context + 1)).pin_memory()
torch.cuda.synchronize()
times = []
for step in range(steps):
    begin = time.monotonic()
    tokens = text[step].to("cuda", non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    torch.cuda.synchronize()
    if step >= WARM:
        times.append(time.monotonic() - begin)
        print("tokens/s %.0f" % (batch * context / times[-1]), flush=True)


def attention():
    """Seconds of all layers' attention."""
    shape = (batch, heads, context, width // heads)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    d_out = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(layers):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(out, (q, k, v), d_out)
    torch.cuda.synchronize()
    return time.monotonic() - begin


spent = [attention() for _ in range(WARM)][1:]
print("attention %.3f" % (statistics.median(spent) / statistics.median(times)))
