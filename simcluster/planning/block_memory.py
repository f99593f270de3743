"""Memory that each block of a model allocates and frees during a pass.

F leaves what a block keeps, and its backward frees it as soon as that block's backward is over, as autograd does; what
recomputation brings back lives in between. A split backward frees in two steps: I what only I reads, W the rest, with
the gradients and gathered inputs that I left for it. Outputs of kernels that die in the block are not counted.

Pool "activations" is what outlives the pass that makes it, "other" what lives inside one pass (recomputed tensors,
16-bit logits). Both views, the ops' and the walk's, read the same tensors (``model.memory``) in the same order
(``block_phases``), so a timeline of ops that never wait peaks where the walk does. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from simcluster.model.encoder import ENCODER
from simcluster.model.kernel_choices import LayerVariant
from simcluster.model.layer_kind import LayerKind
from simcluster.model.layers import RankShape, layer_kinds
from simcluster.model.memory import (
    backward_working_bytes,
    end_backward_tensors,
    layer_backward_tensors,
    working_bytes,
)
from simcluster.model.saved_tensors import SavedTensor, is_saved
from simcluster.model.transformer import Model
from simcluster.planning.ops import MemoryChange

Phase = Literal["forward", "recompute", "backward", "input_grad", "weight_grad"]
"""Phases of a block in a pass; a backward is whole, or split into the gradients of the input and of the weights."""

BlockKey = tuple[tuple[str, ...], str]
"""Type of a block's layer, () outside layers, and the block's name; equal blocks have equal keys."""

PREDICTION = "mtp"
"""Name of the projection block in front of a layer of multi-token prediction."""


class BlockPhase(NamedTuple):
    """One phase (forward, recompute, backward, ...) of a model block in a pass; embedding and LM head have layer -1."""

    phase: Phase
    block: str
    layer: int


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes that a model block allocates for one microbatch on a rank, split by allocation time and free time.

    ``kept`` from F on, ``recomputed`` later; of both, ``kept_for_weights`` and ``recomputed_for_weights`` until W where
    the backward is split; ``gradients``: what I adds for W; ``working``: logits in the precision of the matmul.
    ``backward_temporary``: what else lives inside the backward. ``separate_recompute``: recompute is a visit before it.
    ``routed`` is the part of all this that scales with the rows that visit the rank's experts, if there are any; of a
    block of the encoder, which scales with image tokens, all.
    """

    kept: float
    kept_for_weights: float
    recomputed: float
    recomputed_for_weights: float
    gradients: float
    working: float
    forward_temporary: float
    backward_temporary: float
    separate_recompute: bool
    routed: BlockMemory | None = None

    def memory_changes(self, phase: Phase, *, split: bool) -> tuple[MemoryChange, ...]:
        """Return the memory changes of one phase; ``split`` is true if the backward runs as two passes, I and W."""
        for_weights = self.recomputed_for_weights if split else 0.0
        inside = self.recomputed - for_weights
        brought, brought_for_weights = (0.0, 0.0) if self.separate_recompute else (inside, for_weights)
        working, temporary = self.working, self.backward_temporary
        found = {
            "forward": (
                MemoryChange("activations", self.kept, 0.0),
                MemoryChange("other", self.working + self.forward_temporary, -self.working - self.forward_temporary),
            ),
            "recompute": (
                MemoryChange("activations", for_weights, 0.0),
                MemoryChange("other", inside + self.forward_temporary, -self.forward_temporary),
            ),
            "backward": (
                MemoryChange("activations", 0.0, -self.kept),
                MemoryChange("other", brought + working + temporary, -inside - working - temporary),
            ),
            "input_grad": (
                MemoryChange("activations", self.gradients + brought_for_weights, self.kept_for_weights - self.kept),
                MemoryChange("other", brought, -inside),
            ),
            "weight_grad": (
                MemoryChange("activations", 0.0, -self.kept_for_weights - self.recomputed_for_weights - self.gradients),
            ),
        }[phase]
        return tuple(change for change in found if change.start or change.end)


@dataclass(frozen=True, slots=True)
class BlockMemoryTable:
    """Memory of every model block, by layer type and block name, for each variant of layers.

    ``blocks_of_layers`` are the names of the blocks of each layer, in forward order, and ``types`` its type; the
    embedding, the LM head and the projections of multi-token prediction have the type ().
    """

    model: Model
    shape: RankShape
    memories: Mapping[LayerVariant, Mapping[BlockKey, BlockMemory]]
    blocks_of_layers: tuple[tuple[str, ...], ...]
    types: tuple[tuple[str, ...], ...]

    def block_key(self, block: str, layer: int) -> BlockKey:
        """Return the type and name of a block, which only equal blocks share."""
        return (self.types[layer] if block in self.blocks_of_layers[layer] else ()), block

    def memory_of_block(self, block: str, layer: int) -> BlockMemory:
        """Return the memory of a block, given its name and its layer."""
        return self.memories[self.shape.layer_variant(layer)][self.block_key(block, layer)]

    def kept_bytes(self, layer: int) -> float:
        """Return the activation bytes per microbatch that a layer's forward keeps for its backward."""
        return sum(self.memory_of_block(block, layer).kept for block in self.blocks_of_layers[layer])

    def recomputed_blocks(self, layer: int) -> tuple[str, ...]:
        """Return the blocks of a layer whose whole forward is recomputed before its backward."""
        if layer < 0 or not self.shape.layer_variant(layer).recomputed:
            return ()
        blocks = self.blocks_of_layers[layer]
        return tuple(block for block in blocks if self.memory_of_block(block, layer).separate_recompute)

    def block_phases(self, kind: str, layers: Sequence[int], *, embedding: bool, lm_head: bool) -> list[BlockPhase]:
        """List the block phases of a pass in execution order; ``kind`` is F, B, I (input) or W (weight gradients).

        Blocks of a layer whose forward runs again do so before the layer's backward. In front of the LM head, unless
        in a separate slice, are the layers of multi-token prediction, each preceded by a projection block; for each
        there is another pass of the LM head.
        """
        predicted = self.model.prediction_layers
        layers = layers if self.shape.separate_prediction or not lm_head else (*layers, *predicted)
        embedding = embedding and (kind == "F" or not self.model.freezes("embedding"))
        first, last = [("embedding", -1)] * embedding, [("lm_head", -1)] * (lm_head * (1 + len(predicted)))
        if kind == "F":
            body = [
                (block, layer)
                for layer in layers
                for block in (*[PREDICTION] * (layer in predicted), *self.blocks_of_layers[layer])
            ]
            return [BlockPhase("forward", *place) for place in (*first, *body, *last)]
        phase: Phase = "backward" if kind == "B" else "input_grad" if kind == "I" else "weight_grad"
        found = [BlockPhase(phase, *place) for place in last]
        for layer in reversed([each for each in layers if self.model.freezes_layer(each) != "no backward"]):
            if kind != "W":
                found += [BlockPhase("recompute", block, layer) for block in self.recomputed_blocks(layer)]
            found += [BlockPhase(phase, block, layer) for block in reversed(self.blocks_of_layers[layer])]
            found += [BlockPhase(phase, PREDICTION, layer)] * (layer in predicted)
        return found + [BlockPhase(phase, *place) for place in first]


@lru_cache(maxsize=16)
def block_memory_table(model: Model, shape: RankShape) -> BlockMemoryTable:
    """Return the memory of all blocks of a model on a rank; the result is cached."""
    types = tuple(model.layer_type(layer) for layer in range(model.encoder_layers.stop))
    names = {each: tuple(kind.name for kind in layer_kinds(model, layer))
             for each, (layer, _) in model.count_layer_types().items()}  # fmt: skip
    return BlockMemoryTable(
        model,
        shape,
        {variant: _block_memories(model, each) for variant, each in shape.list_variants().items()},
        tuple(names[each] for each in types),
        types,
    )


def _block_memories(model: Model, shape: RankShape) -> dict[BlockKey, BlockMemory]:
    found: dict[BlockKey, BlockMemory] = {}
    for layer_type, (layer, _) in model.count_layer_types().items():
        kinds = {kind.name: kind for kind in layer_kinds(model, layer)}
        tensors = layer_backward_tensors(model, shape, layer)
        found |= {
            (layer_type, name): _block_memory(name, kind, tensors, model.layer_model(layer), shape)
            for name, kind in kinds.items()
        }
    tensors, ends = end_backward_tensors(model, shape), model.layer_model(0)
    blocks = dict.fromkeys(("embedding", *(tensor.block for tensor in tensors)))  # a frozen embedding keeps nothing
    return found | {((), name): _block_memory(name, None, tensors, ends, shape) for name in blocks}


def _block_memory(
    name: str, kind: LayerKind | None, tensors: Sequence[SavedTensor], model: Model, shape: RankShape
) -> BlockMemory:
    own = [tensor for tensor in tensors if tensor.block == name]
    module = kind.WHOLE if kind else None
    again = shape.recompute == "full" or (module is not None and shape.recomputes_module(module))
    passing = kind.forward_working_bytes(model, shape) if kind else (0.0, 0.0)
    temporary = backward_working_bytes(name, kind, model, shape)
    found = _sum_block_memory(own, shape, working_bytes(name, model, shape), passing[0], temporary[0], separate=again)
    if name.startswith(ENCODER):
        return replace(found, routed=found)  # all of it scales with a microbatch's images
    rows = [tensor for tensor in own if tensor.routed]
    if not rows:
        return found
    return replace(found, routed=_sum_block_memory(rows, shape, 0.0, passing[1], temporary[1], separate=again))


def _sum_block_memory(
    parts: Sequence[SavedTensor], shape: RankShape, working: float, passing: float, temporary: float, *, separate: bool
) -> BlockMemory:
    def sum_bytes(made: str, *, kept: bool, only_for_weights: bool = False) -> float:
        return sum(
            tensor.bytes
            for tensor in parts
            if tensor.made == made and is_saved(tensor, shape) == kept and (tensor.read == "W" or not only_for_weights)
        )

    return BlockMemory(
        kept=sum_bytes("F", kept=True),
        kept_for_weights=sum_bytes("F", kept=True, only_for_weights=True),
        recomputed=sum_bytes("F", kept=False),
        recomputed_for_weights=sum_bytes("F", kept=False, only_for_weights=True),
        gradients=sum_bytes("I", kept=False),
        working=working,
        forward_temporary=passing,
        backward_temporary=temporary,
        separate_recompute=separate,
    )


# --- the walk -------------------------------------------------------------------------------------------------------


class MemoryLevel(NamedTuple):
    """Bytes in use at one time: saved activations, and other tensors that live within one pass."""

    activations: float
    other: float

    @property
    def total(self) -> float:
        return self.activations + self.other


class MemoryProfile(NamedTuple):
    """Memory of one pass relative to its start: the peak, and the activation bytes that remain when it ends."""

    peak: MemoryLevel
    net_activations: float


def profile_pass(blocks: BlockMemoryTable, phases: Sequence[BlockPhase], *, split: bool) -> MemoryProfile:
    """Compute the memory profile of one pass from its block phases in execution order."""
    known: dict[tuple[int, Phase], tuple[MemoryChange, ...]] = {}  # equal layers share one BlockMemory
    held = {"activations": 0.0, "other": 0.0}
    peak = MemoryLevel(0.0, 0.0)
    for visit in phases:
        own = blocks.memory_of_block(visit.block, visit.layer)
        name = id(own), visit.phase
        changes = known.get(name)
        if changes is None:
            changes = known[name] = own.memory_changes(visit.phase, split=split)
        for change in changes:
            held[change.pool] += change.start
        if held["activations"] + held["other"] > peak.total:
            peak = MemoryLevel(**held)
        for change in changes:
            held[change.pool] += change.end
    if held["activations"] + held["other"] > peak.total:
        peak = MemoryLevel(**held)
    return MemoryProfile(peak, held["activations"])


def peak_of_passes(profiles: Iterable[MemoryProfile]) -> MemoryLevel:
    """Return the highest memory level of a stage that runs passes with these memory profiles in order."""
    held = most = 0.0
    found = MemoryLevel(0.0, 0.0)
    for peak, left in profiles:
        activations, other = peak
        if held + (activations + other) > most:
            found = MemoryLevel(held + activations, other)
            most = found.total
        held += left
    return found
