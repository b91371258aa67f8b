"""A rank of GPT-2's training by PyTorch over gloo, fp32: the model of examples/gpt2, replicated by
DistributedDataParallel or, if the last argument is "fsdp", sharded by fully_shard() in units of a
block. ddp.sh and hosts.sh start it. Prints tokens/s of every step, over all ranks."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from gpt2 import GPT2

layers, heads, width, context, vocab, batch, steps = (int(a) for a in sys.argv[1:8])
sharded = sys.argv[8:] == ["fsdp"]

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = GPT2(layers, heads, width, context, vocab)
if sharded:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = nn.parallel.DistributedDataParallel(model)
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
