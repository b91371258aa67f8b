"""Golden numbers for examples/gpt2, from an implementation of its own in PyTorch, in float64.

    pip install torch numpy && python3 make_gpt2.py

writes, beside itself,

    gpt2_init.safetensors    first weights, F32, under Hugging Face's names
    gpt2_tokens.bin          the data, uint16 without a header
    gpt2_golden.safetensors  F64: `logits` and `grad.*` of micro-batch 0 of step 1, `loss`, `norm`
                             and `rate` of every step, `after.*` the weights after the last

No test needs torch: these files are in the tree. The model is written from the paper (Radford et
al. 2019) and the layout of Hugging Face's checkpoints; the batches, schedule and clipping are
those examples/gpt2 documents. The sizes are odd on purpose: nothing is a multiple of a vector.
"""

import json
import math
import pathlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 2, 3, 18, 9, 37
BATCH, MICRO_BATCHES, STEPS = 2, 2, 3
LR, MIN_LR, WARMUP = 2e-2, 4e-3, 1
# Epsilon is large, because the gradient of a key's bias is zero but for rounding, and Adam would
# blow that rounding up to whole steps.
BETA1, BETA2, EPS, DECAY, CLIP = 0.9, 0.95, 1e-4, 0.1, 0.5
TOKENS = 101

HERE = pathlib.Path(__file__).parent


def shapes():
    yield "wte.weight", (VOCAB, WIDTH)
    yield "wpe.weight", (CONTEXT, WIDTH)
    for layer in range(LAYERS):
        block = f"h.{layer}."
        yield block + "ln_1.weight", (WIDTH,)
        yield block + "ln_1.bias", (WIDTH,)
        yield block + "attn.c_attn.weight", (WIDTH, 3 * WIDTH)
        yield block + "attn.c_attn.bias", (3 * WIDTH,)
        yield block + "attn.c_proj.weight", (WIDTH, WIDTH)
        yield block + "attn.c_proj.bias", (WIDTH,)
        yield block + "ln_2.weight", (WIDTH,)
        yield block + "ln_2.bias", (WIDTH,)
        yield block + "mlp.c_fc.weight", (WIDTH, 4 * WIDTH)
        yield block + "mlp.c_fc.bias", (4 * WIDTH,)
        yield block + "mlp.c_proj.weight", (4 * WIDTH, WIDTH)
        yield block + "mlp.c_proj.bias", (WIDTH,)
    yield "ln_f.weight", (WIDTH,)
    yield "ln_f.bias", (WIDTH,)


def first_weights(generator):
    weights = {}
    for name, shape in shapes():
        values = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float32)
        if "ln_" in name and name.endswith("weight"):
            values += 1
        weights[name] = values
    return weights


def layer_norm(x, w, name):
    return F.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], eps=1e-5)


def linear(x, w, name):
    return x @ w[name + ".weight"] + w[name + ".bias"]


def attention(x, w, name):
    batch, length, _ = x.shape
    split = linear(x, w, name + ".c_attn").split(WIDTH, dim=2)
    q, k, v = (t.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for t in split)
    scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -math.inf).softmax(3) @ v
    return linear(mixed.transpose(1, 2).reshape(batch, length, WIDTH), w, name + ".c_proj")


def mlp(x, w, name):
    return linear(F.gelu(linear(x, w, name + ".c_fc"), approximate="tanh"), w, name + ".c_proj")


def logits_of(w, tokens):
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for layer in range(LAYERS):
        x = x + attention(layer_norm(x, w, f"h.{layer}.ln_1"), w, f"h.{layer}.attn")
        x = x + mlp(layer_norm(x, w, f"h.{layer}.ln_2"), w, f"h.{layer}.mlp")
    return layer_norm(x, w, "ln_f") @ w["wte.weight"].T


def micro_batch(data, step, index):
    """Inputs and targets; step counts from 0."""
    rows = (len(data) - 1) // CONTEXT * CONTEXT
    windows = []
    for b in range(BATCH):
        start = ((step * MICRO_BATCHES + index) * BATCH + b) * CONTEXT % rows
        windows.append(data[start : start + CONTEXT + 1])
    windows = torch.stack(windows)
    return windows[:, :-1], windows[:, 1:]


def rate(n):
    if n <= WARMUP:
        return LR * n / WARMUP
    share = (n - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * share))


def write_safetensors(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, values in tensors.items():
        array = np.ascontiguousarray(values.detach().numpy())
        kind = {"float32": "F32", "float64": "F64"}[str(array.dtype)]
        blob = array.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    generator = torch.Generator().manual_seed(20240520)
    init = first_weights(generator)
    data = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    weights = {k: v.double().requires_grad_() for k, v in init.items()}
    groups = [
        {"params": [w for w in weights.values() if w.dim() == 2], "weight_decay": DECAY},
        {"params": [w for w in weights.values() if w.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS)

    golden, trace = {}, {"loss": [], "norm": [], "rate": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for index in range(MICRO_BATCHES):
            tokens, targets = micro_batch(data, step, index)
            logits = logits_of(weights, tokens)
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
            (loss / MICRO_BATCHES).backward()
            total += loss.item() / MICRO_BATCHES
            if step == 0 and index == 0:
                golden["logits"] = logits.reshape(-1, VOCAB)
                for name, w in weights.items():
                    golden["grad." + name] = w.grad * MICRO_BATCHES
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(step + 1)
        optimizer.step()
        trace["loss"].append(total)
        trace["norm"].append(norm.item())
        trace["rate"].append(rate(step + 1))
        print(f"step {step + 1} loss {total:.6f} norm {norm.item():.6f} lr {rate(step + 1):.3e}")
    for name, values in trace.items():
        golden[name] = torch.tensor(values, dtype=torch.float64)
    for name, w in weights.items():
        golden["after." + name] = w

    write_safetensors(HERE / "gpt2_init.safetensors", init)
    write_safetensors(HERE / "gpt2_golden.safetensors", golden)
    (HERE / "gpt2_tokens.bin").write_bytes(data.numpy().astype("<u2").tobytes())


if __name__ == "__main__":
    main()
