"""GPT-2 as examples/gpt2 has it, by PyTorch: what its training is compared with."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, heads, width, context):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def attention(self, x):
        b, t, width = x.shape
        size = width // self.heads
        q, k, v = (y.view(b, t, self.heads, size).transpose(1, 2)
                   for y in self.attn(x).split(width, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / size ** 0.5 + self.mask
            y = scores.softmax(-1) @ v
        return self.attn_proj(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        h = self.fc(self.ln_2(x))
        return x + self.mlp_proj(F.gelu(h, approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, context, vocab):
        super().__init__()
        self.vocab = vocab
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(heads, width, context) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, token, target):
        x = self.wte(token) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, self.vocab), target.reshape(-1))
