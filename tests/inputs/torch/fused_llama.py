"""Llama 3 8B as Megatron-LM writes it: one matmul for Q, K and V, and one for gate and up."""

import torch
from torch import nn
from torch.nn import functional

H, HEADS, KV, D, FFN, LAYERS, V = 4096, 32, 8, 128, 14336, 32, 128256
TP_PLAN = {"*.qkv": "colwise", "*.proj": "rowwise", "*.fc1": "colwise", "*.fc2": "rowwise"}


def rotate(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(H), nn.RMSNorm(H)
        self.qkv, self.proj = nn.Linear(H, (HEADS + 2 * KV) * D, bias=False), nn.Linear(HEADS * D, H, bias=False)
        self.fc1, self.fc2 = nn.Linear(H, 2 * FFN, bias=False), nn.Linear(FFN, H, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        n = HEADS // KV
        qkv = self.qkv(self.norm1(x)).view(b, s, KV, n + 2, D)
        q, k, v = qkv.split((n, 1, 1), 3)
        q, k, v = (e.reshape(b, s, -1, D).transpose(1, 2) for e in (q, k, v))
        q, k = (e * cos + rotate(e) * sin for e in (q, k))
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, -1))
        g, u = self.fc1(self.norm2(x)).view(b, s, 2, FFN).unbind(2)
        return x + self.fc2(functional.silu(g) * u)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V, bias=False)
        self.layers, self.norm = nn.ModuleList([Layer() for _ in range(LAYERS)]), nn.RMSNorm(H)

    def forward(self, ids):
        x = self.embed(ids)
        t = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * torch.ones(D // 2)
        t = torch.cat((t, t), -1)
        cos, sin = t.cos().bfloat16(), t.sin().bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def build():
    return Model()
