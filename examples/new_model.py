"""A language model that is in no library: gated short convolutions, attention in every fourth layer, SwiGLU."""

import torch
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCABULARY = 2048, 32, 8, 7168, 24, 65536
TP_PLAN = {
    "*.in_*": "colwise", "*.conv": "colwise", "*.query": "colwise", "*.key": "colwise", "*.value": "colwise",
    "*.gate": "colwise", "*.up": "colwise", "*.out": "rowwise", "*.down": "rowwise",
}  # fmt: skip


def linear(width_in: int, width_out: int) -> nn.Linear:
    return nn.Linear(width_in, width_out, bias=False)


class ShortConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_read, self.in_write, self.in_value = (linear(HIDDEN, HIDDEN) for _ in range(3))
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, groups=HIDDEN, padding=2, bias=False)
        self.out = linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = (self.in_write(x) * self.in_value(x)).transpose(1, 2)
        mixed = self.conv(inner)[..., : x.shape[1]].transpose(1, 2)
        return self.out(self.in_read(x) * mixed)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)
        self.key, self.value = (linear(HIDDEN, HIDDEN // HEADS * KV_HEADS) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (each(x).unflatten(-1, (-1, HIDDEN // HEADS)) for each in (self.query, self.key, self.value))
        heads = (each.transpose(1, 2) for each in parts)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.mixer = Attention() if number % 4 == 3 else ShortConvolution()
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.norm(x))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class NewModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), linear(HIDDEN, VOCABULARY)
        self.layers, self.norm = nn.ModuleList([Layer(number) for number in range(LAYERS)]), nn.RMSNorm(HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build() -> nn.Module:
    """Return the module that simcluster import torch traces."""
    return NewModel()
