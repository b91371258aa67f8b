"""A rank of GPT-2's training by PyTorch's DistributedDataParallel over gloo, fp32: the model of
examples/gpt2. ddp.sh starts it. Prints tokens/s of every step, over all ranks."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

layers, heads, width, context, vocab, batch, steps = (int(a) for a in sys.argv[1:8])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def attention(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, heads, width // heads).transpose(1, 2)
                   for y in self.attn(x).split(width, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5 + self.mask
            y = scores.softmax(-1) @ v
        return self.attn_proj(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        h = self.fc(self.ln_2(x))
        return x + self.mlp_proj(F.gelu(h, approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, token, target):
        x = self.wte(token) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, vocab), target.reshape(-1))


torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = nn.parallel.DistributedDataParallel(GPT2())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
generator = torch.Generator().manual_seed(rank)
for step in range(steps):
    begin = time.monotonic()
    text = torch.randint(vocab, (batch, context + 1), generator=generator)
    loss = model(text[:, :-1], text[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    dist.barrier()
    if rank == 0:
        print("tokens/s %.0f" % (world * batch * context / (time.monotonic() - begin)), flush=True)
