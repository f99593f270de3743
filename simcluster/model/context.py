"""Attention on a rank that has a part of every sequence: what it computes piece by piece, and what it hands round.

Context parallelism (cp) splits the tokens of a sequence over ranks; queries must still meet the keys and values of all
of them.  By ``ring`` these are handed from rank to rank while the piece that has come is worked on (arXiv:2310.01889;
Transformer Engine's p2p); by ``all_gather`` every rank first gets all of them (arXiv:2407.21783, section 3.3.2); by
``all_to_all`` ranks trade tokens for heads, and each does whole sequences (arXiv:2309.14509).

Under a causal mask shares decide the work.  ``zigzag``: a rank has one piece from the front and one from the back, and
all pieces of all ranks are the same work: the diagonal one half, of each other half of its queries or of its keys.
``contiguous``: the last rank meets all other pieces whole, (2 cp - 1) / cp times the mean, and all wait for it: every
rank is counted as the last (arXiv:2310.01889 as written; PyTorch with load balancing off).

``torch``: as torch.distributed.tensor.experimental._attention does, whose ring works on pieces also of keys that were
gathered (rotate_method allgather).  Heads are repeated before it, as torchtitan's models do; partial outputs and
gradients are summed in fp32, and gradients go round in fp32, always hop by hop.  Counting only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from simcluster.model.choices import CONTEXT_METHODS, ContextMethod
from simcluster.model.core_sections import backward_passes, traders_of
from simcluster.model.kernels import Kernel
from simcluster.model.layer_sections import FP32_BYTES, RankShape, local_sizes, memory
from simcluster.model.transformer import Model

_HALVES = 0.75  # of a rank's queries, in the passes around a piece: all of them, or one half of the zigzag


@dataclass(frozen=True, slots=True)
class Context:
    """How the ranks of a cp group share a sequence: ``traders`` trade heads, and keys go over ``ranks`` such groups.

    Bytes on one rank, of its own tokens: ``queries``, the attention's ``outputs``, ``keys`` with values, and those as
    they travel: ``keys_traded`` in an all-to-all, where fewer heads than ranks are repeated; ``keys_handed`` round a
    ring or gathered, with ``gradients_handed`` for theirs.  ``balanced``: pieces of all ranks are the same work.
    ``torch``: with PyTorch's ring, ``traced`` into a compiled graph, where each exchange is waited for where it is
    asked for (torch.distributed._functional_collectives).  ``passes`` go before and behind a backward kernel.
    """

    method: ContextMethod
    traders: int
    ranks: int
    queries: float
    outputs: float
    keys: float
    keys_traded: float
    keys_handed: float
    gradients_handed: float
    element_bytes: float
    causal: bool
    balanced: bool
    torch: bool
    traced: bool
    passes: tuple[Kernel, Kernel]

    @property
    def in_pieces(self) -> bool:
        """Is the kernel cut into pieces, one for the keys of each rank?"""
        return self.ranks > 1 and (self.torch or self.method.keys == "ring")

    @property
    def slowest(self) -> float:
        """Work of the rank that all wait for, by the mean of all."""
        uneven = self.causal and not self.balanced
        return (2.0 * self.ranks - 1.0) / self.ranks if uneven else 1.0

    def pieces(self, core: Kernel) -> Sequence[tuple[Kernel, ...]]:
        """The attention kernel in the pieces in which keys and values come round; each but the first is merged in.

        A piece reads the queries and its own keys and values; merging reads two partial outputs and writes one (for
        gradients: adds what came to what is there).  Backward, each is a call with passes of its own around the kernel.
        """
        if not self.in_pieces:
            return [(replace(core, flops=core.flops * self.slowest),)]
        back = core.name.endswith("_grad")
        others = self.keys_traded * (self.ranks - 1)  # keys and values of others
        others *= 2 if back else 1  # and their gradients
        keys = max(core.n // self.ranks, 1)
        first = replace(core, n=keys, flops=core.flops / self.ranks, bytes=core.bytes - others)
        if not self.causal:
            later = first
        elif self.balanced:
            later = replace(first, n=max(keys // 2, 1))  # half of the pairs, and no mask in it
        else:
            later = replace(first, flops=2.0 * first.flops)
        merged = self._merged(back=back)
        if not back:
            return [(first,), *repeat((later, merged), self.ranks - 1)]
        part = _HALVES if self.causal and self.balanced else 1.0
        before, behind = (replace(kernel, bytes=kernel.bytes * part) for kernel in self.passes)
        return [(first,), *repeat((before, later, behind, merged), self.ranks - 1)]

    def _merged(self, *, back: bool) -> Kernel:
        """What puts a piece's result to those before: three accesses, or reading and writing sums in fp32."""
        name = "attention_merge_grad" if back else "attention_merge"
        partial = self.queries if back else self.outputs
        if not self.torch:
            return memory(name, 3 * partial)
        elements, added = partial / self.element_bytes, self.element_bytes + 2 * FP32_BYTES
        if back:  # of queries, and of keys and values, which are then copied into one buffer to be sent
            handed = self.keys_handed / self.element_bytes
            return memory(name, elements * added + handed * (added + 2 * FP32_BYTES))
        if self.traced:
            return memory(name, elements * added)
        steps = self.element_bytes + FP32_BYTES + 3 * 3 * FP32_BYTES  # to fp32; a difference, a product, a difference
        return memory(name, elements * steps)


def context_of(model: Model, shape: RankShape) -> Context:
    """Return how the ranks of cp (two or more) share the core attention of a rank of this shape."""
    local = local_sizes(model, shape)
    heads = local.kv // local.head_dim
    each = shape.element_bytes * local.tokens
    queries, outputs, keys = each * local.query, each * local.output, each * (local.kv + local.value)
    torch = {"torch": True, "transformer-engine": False}[shape.ring]
    method, traders = CONTEXT_METHODS[shape.cp_comm], traders_of(shape, local.heads, heads)
    traded = keys * max(heads, traders) / heads
    handed = queries + outputs if torch else traded  # with a key and a value for every query head
    return Context(
        method=method,
        traders=traders,
        ranks=shape.cp // traders,
        queries=queries,
        outputs=outputs,
        keys=keys,
        keys_traded=traded,
        keys_handed=handed,
        gradients_handed=handed * FP32_BYTES / shape.element_bytes if torch else handed,
        element_bytes=shape.element_bytes,
        causal=model.causal,
        balanced={"zigzag": True, "contiguous": False}[shape.cp_shares],
        torch=torch,
        traced=shape.kernels == "compiled",
        passes=backward_passes(shape, local),
    )
