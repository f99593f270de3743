"""Memory that each block of a model allocates and frees during a pass.

F leaves what a block keeps, and its backward frees it as soon as that block's backward is over, as autograd does; what
recomputation brings back lives in between. A split backward frees in two steps: I what only I reads, W the rest, with
the gradients and gathered inputs that I left for it. Outputs of kernels that die in the block are not counted.

Pool "activations" is what outlives the pass that makes it, "other" what lives inside one pass (recomputed tensors,
16-bit logits). Both views, the ops' and the walk's, read the same tensors (``memory.tensors``) in the same order
(``visits``), so a timeline of ops that never wait peaks where the walk does. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from simcluster.model.kept import Tensor, is_kept
from simcluster.model.layers import RankShape, kinds_by_name, kinds_of_layer
from simcluster.model.memory import backward_tensors, forward_working_bytes, temporary_bytes, working_bytes
from simcluster.model.transformer import Model
from simcluster.planning.ops import MemoryChange

Phase = Literal["forward", "recompute", "backward", "input_grad", "weight_grad"]
"""What happens to a block: a backward is whole, or split in the gradients of input and weights."""

PREDICTION = "mtp"
"""The block in front of a layer of multi-token prediction."""


class Visit(NamedTuple):
    """One phase (forward, recompute, backward, ...) of a block in a pass; layer -1 for embedding and LM head."""

    phase: Phase
    block: str
    layer: int


@dataclass(frozen=True, slots=True)
class Residency:
    """Bytes of a block's tensors for one microbatch on a rank, by when they are allocated and freed.

    ``kept`` from F on, ``back`` by recomputation; of both, ``kept_for_weights`` and ``back_for_weights`` until W where
    the backward is split; ``gradients``: what I adds for W; ``working``: logits in the precision of the matmul.
    ``temporary``: what else lives inside the backward. ``again``: recomputation is a separate visit, before it.
    ``routed`` is the part of all this that scales with the rows that visit the rank's experts, if there are any.
    """

    kept: float
    kept_for_weights: float
    back: float
    back_for_weights: float
    gradients: float
    working: float
    passing: float
    temporary: float
    again: bool
    routed: Residency | None = None

    def changes(self, phase: Phase, *, split: bool) -> tuple[MemoryChange, ...]:
        """Return the memory changes at the start and end of one phase; ``split``: the backward is I and W."""
        for_weights = self.back_for_weights if split else 0.0
        inside = self.back - for_weights
        brought = 0.0 if self.again else inside
        found = {
            "forward": (
                MemoryChange("activations", self.kept, 0.0),
                MemoryChange("other", self.working + self.passing, -self.working - self.passing),
            ),
            "recompute": (
                MemoryChange("activations", for_weights, 0.0),
                MemoryChange("other", inside + self.passing, -self.passing),
            ),
            "backward": (
                MemoryChange("activations", 0.0, -self.kept),
                MemoryChange("other", brought + self.working + self.temporary, -inside - self.working - self.temporary),
            ),
            "input_grad": (
                MemoryChange(
                    "activations",
                    self.gradients + (0.0 if self.again else for_weights),
                    self.kept_for_weights - self.kept,
                ),
                MemoryChange("other", brought, -inside),
            ),
            "weight_grad": (
                MemoryChange("activations", 0.0, -self.kept_for_weights - self.back_for_weights - self.gradients),
            ),
        }[phase]
        return tuple(change for change in found if change.start or change.end)


@dataclass(frozen=True, slots=True)
class Residencies:
    """Memory of each block by name, for layers that recompute and for those that do not.

    ``layers`` are the names of the blocks of each layer, in forward order.
    """

    model: Model
    shape: RankShape
    recomputed: Mapping[str, Residency]
    plain: Mapping[str, Residency]
    layers: tuple[tuple[str, ...], ...]

    def residency_of(self, block: str, layer: int) -> Residency:
        """Return the memory of a block in the layer of this number."""
        return (self.recomputed if self.shape.recomputes(layer) else self.plain)[block]

    def kept_bytes(self, layer: int) -> float:
        """Return the bytes that the forward of a layer keeps per microbatch."""
        return sum(self.residency_of(block, layer).kept for block in self.layers[layer])

    def recomputed_blocks(self, layer: int) -> tuple[str, ...]:
        """Return the blocks of a layer whose whole forward is recomputed before its backward."""
        if layer < 0 or not self.shape.recomputes(layer):
            return ()
        return tuple(block for block in self.layers[layer] if self.residency_of(block, layer).again)

    def visits(self, kind: str, layers: Sequence[int], *, embedding: bool, lm_head: bool) -> list[Visit]:
        """Return the visits of a pass F, B, I or W (``kind``) in order, over layers, embedding and LM head.

        Blocks of a layer whose forward runs again do so before the layer's backward. In front of the LM head are the
        layers of multi-token prediction, each preceded by a projection block, and another pass of the LM head for each.
        """
        behind = tuple(self.model.prediction_layers) if lm_head else ()
        first, last = [("embedding", -1)] * embedding, [("lm_head", -1)] * (lm_head * (1 + len(behind)))
        if kind == "F":
            body = [(block, layer) for layer in layers for block in self.layers[layer]]
            body += [(block, layer) for layer in behind for block in (PREDICTION, *self.layers[layer])]
            return [Visit("forward", *place) for place in (*first, *body, *last)]
        phase: Phase = "backward" if kind == "B" else "input_grad" if kind == "I" else "weight_grad"
        found = [Visit(phase, *place) for place in last]
        for layer in reversed((*layers, *behind)):
            if kind != "W":
                found += [Visit("recompute", block, layer) for block in self.recomputed_blocks(layer)]
            found += [Visit(phase, block, layer) for block in reversed(self.layers[layer])]
            found += [Visit(phase, PREDICTION, layer)] * (layer in behind)
        return found + [Visit(phase, *place) for place in first]


@lru_cache(maxsize=16)
def block_residencies(model: Model, shape: RankShape) -> Residencies:
    """Return the memory of all blocks of a model on a rank, cached for all stages and passes."""
    layers = tuple(
        tuple(kind.name for kind in kinds_of_layer(model, layer)) for layer in range(model.prediction_layers.stop)
    )  # fmt: skip
    return Residencies(
        model,
        shape,
        _residencies_by_name(model, shape),
        _residencies_by_name(model, replace(shape, recompute="none")),
        layers,
    )


def _residencies_by_name(model: Model, shape: RankShape) -> dict[str, Residency]:
    everything, kinds = backward_tensors(model, shape), kinds_by_name(model)
    found = {}
    for name in dict.fromkeys(tensor.block for tensor in everything):
        own = [tensor for tensor in everything if tensor.block == name]
        module = kinds[name].WHOLE if name in kinds else None
        again = shape.recompute == "full" or (module is not None and shape.reruns(module))
        working = working_bytes(name, model, shape)
        passing, temporary = forward_working_bytes(name, model, shape), temporary_bytes(name, model, shape)
        found[name] = _sum_residency(own, shape, working, passing[0], temporary[0], again=again)
        rows = [tensor for tensor in own if tensor.routed]
        if rows:
            routed = _sum_residency(rows, shape, 0.0, passing[1], temporary[1], again=again)
            found[name] = replace(found[name], routed=routed)
    return found


def _sum_residency(
    parts: Sequence[Tensor], shape: RankShape, working: float, passing: float, temporary: float, *, again: bool
) -> Residency:
    def total(made: str, *, kept: bool, only_for_weights: bool = False) -> float:
        return sum(
            tensor.bytes
            for tensor in parts
            if tensor.made == made and is_kept(tensor, shape) == kept and (tensor.read == "W" or not only_for_weights)
        )

    return Residency(
        kept=total("F", kept=True),
        kept_for_weights=total("F", kept=True, only_for_weights=True),
        back=total("F", kept=False),
        back_for_weights=total("F", kept=False, only_for_weights=True),
        gradients=total("I", kept=False),
        working=working,
        passing=passing,
        temporary=temporary,
        again=again,
    )


# --- the walk -------------------------------------------------------------------------------------------------------


class Level(NamedTuple):
    """Bytes in the memory pools "activations" and "other" at one time."""

    activations: float
    other: float

    @property
    def total(self) -> float:
        return self.activations + self.other


class MemoryProfile(NamedTuple):
    """Memory of a pass relative to its start: the peak level, and the activation bytes that it leaves or frees."""

    peak: Level
    left: float


def profile_pass(blocks: Residencies, order: Sequence[Visit], *, split: bool) -> MemoryProfile:
    """Return the memory profile of one pass, computed visit by visit."""
    known: dict[tuple[int, Phase], tuple[MemoryChange, ...]] = {}  # layers alike share one Residency
    activations = other = 0.0
    peak, most = Level(0.0, 0.0), 0.0
    for visit in order:
        own = blocks.residency_of(visit.block, visit.layer)
        name = id(own), visit.phase
        changes = known.get(name)
        if changes is None:
            changes = known[name] = own.changes(visit.phase, split=split)
        for change in changes:
            if change.pool == "activations":
                activations += change.start
            else:
                other += change.start
        if activations + other > most:
            peak, most = Level(activations, other), activations + other
        for change in changes:
            if change.pool == "activations":
                activations += change.end
            else:
                other += change.end
    if activations + other > most:
        peak = Level(activations, other)
    return MemoryProfile(peak, activations)


def peak_of_row(row: Iterable[MemoryProfile]) -> Level:
    """Return the highest memory level while a stage runs passes with these profiles in order."""
    held = most = 0.0
    found = Level(0.0, 0.0)
    for peak, left in row:
        activations, other = peak
        if held + (activations + other) > most:
            found = Level(held + activations, other)
            most = found.total
        held += left
    return found
