"""Tensors that make up a stage's activation memory at its peak, by block and name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from simcluster.model.kept import Tensor, is_kept
from simcluster.model.layers import RankShape
from simcluster.model.memory import backward_tensors
from simcluster.planning.job import Slices
from simcluster.planning.residency import Residencies, Visit
from simcluster.schedules import Schedule

_Place = tuple[str, bool]
"""A block by its tensors' name, and whether its layer recomputes."""

_State = Literal["F", "again", "in I", "I"]
"""F is over; what W reads runs again or has; I is at work; I is over, and W is not."""


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """Tensor of a block, with its bytes and the number of instances ``alive`` at the memory peak."""

    block: str
    tensor: str
    bytes: float
    alive: int

    @property
    def total(self) -> float:
        """Bytes of all instances of the tensor."""
        return self.bytes * self.alive


def list_peak_tensors(blocks: Residencies, schedule: Schedule, slices: Slices, stage: int) -> list[PeakTensor]:
    """Return the tensors in a rank's memory when the activations of its stage peak, the largest first.

    With even shares of experts, and nothing in host memory.
    """
    found: Counter[tuple[str, str, float]] = Counter()
    for (state, place), count in _count_alive(blocks, schedule, slices, stage).items():
        shape = _shape_at(blocks, place)
        for tensor in backward_tensors(blocks.model, shape):
            if tensor.block == place[0] and _is_alive(tensor, state, kept=is_kept(tensor, shape)):
                found[tensor.block, tensor.name, tensor.bytes] += count
    parts = [PeakTensor(*name, alive) for name, alive in found.items() if alive]
    return sorted(parts, key=lambda part: -part.total)


def _is_alive(tensor: Tensor, state: _State, *, kept: bool) -> bool:
    for_weights = tensor.read == "W"
    return {
        "F": kept,
        "again": for_weights and not kept and tensor.made == "F",
        "in I": tensor.made == "I",
        "I": for_weights,
    }[state]


def _count_alive(blocks: Residencies, schedule: Schedule, slices: Slices, stage: int) -> Counter[tuple[_State, _Place]]:
    states: Counter[tuple[_State, _Place]] = Counter()
    found, held, most = states.copy(), 0.0, 0.0
    for action in schedule.rows[stage]:
        split = action.kind in ("I", "W")
        for visit in _list_visits(blocks, schedule, slices, stage, action.kind, action.chunk):
            own = blocks.residency_of(visit.block, visit.layer)
            place = visit.block, blocks.shape.recomputes(visit.layer)
            changes = own.changes(visit.phase, split=split)
            held += sum(change.start for change in changes)
            states["F", place] += visit.phase == "forward"
            states["again", place] += split and visit.phase == ("recompute" if own.again else "input_grad")
            states["in I", place] += visit.phase == "input_grad"
            if held > most:
                most, found = held, states.copy()
            held += sum(change.end for change in changes)
            states["F", place] -= visit.phase in ("backward", "input_grad")
            states["again", place] -= visit.phase == "input_grad"
            states["in I", place] -= visit.phase == "input_grad"
            states["I", place] += (visit.phase == "input_grad") - (visit.phase == "weight_grad")
    return found


def _list_visits(
    blocks: Residencies, schedule: Schedule, slices: Slices, stage: int, kind: str, chunk: int
) -> Iterable[Visit]:
    number = schedule.slice_of(stage, chunk)
    last = number == len(slices.counts) - 1
    return blocks.visits(kind, slices.layers_of(number), embedding=number == 0, lm_head=last)


def _shape_at(blocks: Residencies, place: _Place) -> RankShape:
    return blocks.shape if place[1] else replace(blocks.shape, recompute="none")
