"""Attention on a rank that has a part of every sequence: what it computes piece by piece, and what it hands round.

Context parallelism (cp) splits the tokens of a sequence over ranks; queries must still meet the keys and values of all
of them.  By ``ring`` these are handed from rank to rank while the piece that has come is worked on (arXiv:2310.01889;
Transformer Engine's p2p, with zig-zag shares, so that under a causal mask all pieces of all ranks are the same work);
by ``all_gather`` every rank first gets all of them (arXiv:2407.21783, section 3.3.2); by ``all_to_all`` ranks trade
tokens for heads, and each does whole sequences (arXiv:2309.14509).  Counting only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from simcluster.model.kernels import Kernel
from simcluster.model.layer_sections import RankShape, local_sizes, memory
from simcluster.model.transformer import Model


@dataclass(frozen=True, slots=True)
class Context:
    """How the ``ranks`` of a cp group share a sequence.

    Bytes on one rank, of its own tokens: ``queries``, the attention's ``outputs``, ``keys`` with values, and those as
    they travel in an all-to-all, where fewer heads than ranks are repeated.
    """

    by: str
    ranks: int
    queries: float
    outputs: float
    keys: float
    keys_traded: float

    def pieces(self, core: Kernel) -> Sequence[tuple[Kernel, ...]]:
        """The attention kernel in the pieces in which keys and values come round; each but the first is merged in.

        A piece reads the queries and its own keys and values; merging reads two partial outputs and writes one (for
        gradients: adds what came to what is there).
        """
        if self.by != "ring":
            return [(core,)]
        scale = 1.0 / self.ranks
        back = core.name.endswith("_grad")
        others = (2 if back else 1) * self.keys * (self.ranks - 1)  # keys and values of others; back, their gradients
        piece = replace(core, n=max(core.n // self.ranks, 1), flops=core.flops * scale, bytes=core.bytes - others)
        partial = self.queries if back else self.outputs
        merged = memory("attention_merge_grad" if back else "attention_merge", 3 * partial)
        return [(piece,), *repeat((piece, merged), self.ranks - 1)]


def context_of(model: Model, shape: RankShape) -> Context | None:
    """Of a rank of this shape; None where sequences are whole."""
    if shape.cp == 1:
        return None
    local = local_sizes(model, shape)
    heads = local.kv // local.head_dim
    each = shape.element_bytes * local.tokens
    keys = each * (local.kv + local.value)
    traded = keys * max(heads, shape.cp) / heads
    return Context(shape.cp_comm, shape.cp, each * local.query, each * local.output, keys, traded)
