"""Offloading of activations layer by layer, where a microbatch's backward directly follows its forward.

Transformer Engine's ``cpu_offload.py`` (Megatron-LM's ``--cpu-offloading-num-layers``): the first n of a chunk's L
layers go, never the last, which is needed at once. The layers are cut into n windows of nearly equally many. A copy
begins at the end of the first layer, and at the end of each window, where the GPU waits for the copy before and frees
what it took; so layer k's copy overlaps with window k. The backward begins a window with the copy of layer k back, and
the next window waits for it.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from simcluster.planning.boundaries import BoundaryBuilder
from simcluster.planning.job import Job, Offload
from simcluster.planning.offload import make_copy, plan_offloads
from simcluster.planning.ops import Direction, Item, MemoryChange, Need
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart, ReplicaBuilder
from simcluster.planning.segments import Pass
from simcluster.planning.sharded import FsdpBuilder
from simcluster.schedules import Action


class LayerWindows(NamedTuple):
    """Layers of a chunk after which a copy to the host begins (``marks``), and the bytes of each copy."""

    marks: tuple[int, ...]
    sizes: tuple[float, ...]

    @classmethod
    def of(cls, layers: Sequence[int], offload: Offload) -> LayerWindows:
        """Return the copy windows of a chunk with these layers; none if nothing can be offloaded."""
        share = offload.activations * len(layers)
        count = min(math.ceil(share - 1e-9), len(layers) - 1)
        if count < 1:
            return cls((), ())
        each, longer = divmod(len(layers), count)
        ends = [each * (number + 1) - 1 + min(number + 1, longer) for number in range(count)]
        sizes = tuple(min(1.0, share / count) * offload.kept([layer]) for layer in layers[:count])
        return cls((layers[0], *(layers[end] for end in ends)), sizes if all(sizes) else ())

    def cut(self, work: Pass) -> list[Pass]:
        """Cut a pass after the marks into pieces, with the LM head separate, in the model's order."""
        pieces: list[list[int]] = [[]]
        for layer in work.layers:
            pieces[-1].append(layer)
            if layer in self.marks:
                pieces.append([])
        found = [Pass(tuple(layers)) for layers in pieces if layers]
        if work.lm_head or not found:
            found.append(Pass((), lm_head=work.lm_head))
        found[0] = replace(found[0], embedding=work.embedding)
        return found

    def mark_index(self, layer: int) -> int:
        """Return the number of the mark at a layer; -1 if the layer has none."""
        return self.marks.index(layer) if layer in self.marks else -1

    def copy_before(self, piece: Pass, last: int) -> int:
        """Return the copy that must end before a forward piece begins, -1 for none; ``last`` is the last layer."""
        if not piece.layers and not piece.lm_head:
            return -1
        return max(self.mark_index(piece.layers[0] - 1 if piece.layers else last) - 1, -1)


def find_adjacent(row: Sequence[Action], halves: Sequence[int]) -> set[tuple[int, int]]:
    """Return (microbatch, chunk) of each backward that directly follows its forward, outside fused pairs."""
    return {
        (one.microbatch, one.chunk)
        for place, (one, other) in enumerate(pairwise(row))
        if one.kind == "F" and other.kind in ("B", "I") and one[1:] == other[1:]
        and not {place - 1, place, place + 1} & set(halves)
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Piece:
    """Piece of an action between copies, with the action part that ends with it, if any.

    ``away`` is the copy that begins after it, ``brings`` the copy back that begins before it; -1 for none.
    """

    part: ActionPart
    whole: ActionPart | None
    away: int = -1
    brings: int = -1


class LayerOffload:
    """Data-parallel replicas of a stage whose actions are cut where activations are offloaded layer by layer."""

    def __init__(self, job: Job, lanes: ProgramBuilder, replicas: ReplicaBuilder | FsdpBuilder) -> None:
        self._job, self._lanes, self._replicas = job, lanes, replicas
        self._key = BoundaryBuilder(job, lanes).key
        self._left: list[_Piece] = []
        stage, offload = lanes.stage, job.offload
        found = find_adjacent(job.schedule.rows[stage], job.schedule.fused_at(stage)) if offload.activations else set()
        wholes = self._wholes = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        self._windows = {
            (microbatch, chunk): windows
            for microbatch, chunk in sorted(found)
            if (windows := LayerWindows.of(wholes[chunk].layers, offload)).sizes
        }
        self.before, self.finish = replicas.before, replicas.finish

    def parts(self, action: Action, step: int) -> list[ActionPart]:
        """Return the parts of an action, cut where copies of activations begin or must have ended."""
        parts = self._replicas.parts(action, step)
        windows = self._windows.get(action[1:]) if action.kind != "W" else None
        self._left = [] if windows is None else self._pieces_of_action(action, step, parts, windows)
        if not self._left:
            return parts
        self._add_copy_to_device(action, step, self._lanes.last_end())
        return [piece.part for piece in self._left]

    def after(self, action: Action, step: int, part: ActionPart, made: tuple[object, ...]) -> None:
        """Start the copies that begin at the end of a part, whose key is ``made``."""
        if not self._left:
            return self._replicas.after(action, step, part, made)
        piece, needs = self._left.pop(0), (Need(self._lanes.stage, made),)
        if piece.away >= 0:
            self._add_copy("d2h", action, step, piece.away, needs)
        if self._left:
            self._add_copy_to_device(action, step, needs)
        if piece.whole:
            self._replicas.after(action, step, piece.whole, made)
        return None

    def _pieces_of_action(
        self, action: Action, step: int, parts: Sequence[ActionPart], windows: LayerWindows
    ) -> list[_Piece]:  # fmt: skip
        found: list[_Piece] = []
        for part in parts:
            works = windows.cut(part.work)
            works = works if action.kind == "F" else works[::-1]
            for index, work in enumerate(works):
                first, last = index == 0, index == len(works) - 1
                memory = tuple(MemoryChange(pool, start * first, end * last) for pool, start, end in part.memory)
                own = ActionPart(work, part.needs if first else (), part.bucket, memory)
                whole = part if last else None
                if action.kind == "F":
                    found.append(self._forward_piece(action, step, own, windows, whole))
                else:
                    found.append(self._backward_piece(action, step, own, windows, whole, begins=not found))
        return found

    def _forward_piece(
        self, action: Action, step: int, part: ActionPart, windows: LayerWindows, whole: ActionPart | None
    ) -> _Piece:
        chunk = self._wholes[action.chunk]
        over = windows.copy_before(part.work, chunk.layers[-1])
        end = windows.mark_index(part.work.layers[-1]) if part.work.layers else -1
        away = end if end < len(windows.sizes) else -1
        return _Piece(self._wait_for_copy(action, step, part, windows, over), whole, away=away)

    def _backward_piece(
        self, action: Action, step: int, part: ActionPart, windows: LayerWindows, whole: ActionPart | None,
        *, begins: bool,
    ) -> _Piece:  # fmt: skip
        """Return a piece of B or I, which waits for its activations to be copied back."""
        count = len(windows.sizes)
        top = windows.mark_index(part.work.layers[-1]) if part.work.layers else -1
        if begins and not part.work.lm_head:  # F has no piece that waits for the last copy
            part = self._wait_for_copy(action, step, part, windows, count - 1)
        back = top if 0 <= top < count else -1
        if back >= 0:
            part = replace(part, needs=(*part.needs, self._need_copy("back", action, step, back)))
        return _Piece(part, whole, brings=top - 1 if top >= 1 else -1)

    def _wait_for_copy(
        self, action: Action, step: int, part: ActionPart, windows: LayerWindows, over: int
    ) -> ActionPart:
        if over < 0:
            return part
        freed = MemoryChange("activations", -windows.sizes[over], 0.0)
        needs = (*part.needs, self._need_copy("away", action, step, over))
        return replace(part, needs=needs, memory=(*part.memory, freed))

    def _add_copy_to_device(self, action: Action, step: int, needs: tuple[Need, ...]) -> None:
        number = self._left[0].brings
        if number >= 0:
            self._add_copy("h2d", action, step, number, (*needs, self._need_copy("away", action, step, number)))

    def _need_copy(self, what: str, action: Action, step: int, number: int) -> Need:
        forward = action._replace(kind="F")
        return Need(self._lanes.stage, (what, *self._key(forward, step), number))

    def _add_copy(self, way: Direction, action: Action, step: int, number: int, needs: tuple[Need, ...]) -> None:
        windows = self._windows[action.microbatch, action.chunk]
        size = windows.sizes[number]
        memory = (MemoryChange("activations", size, 0.0),) if way == "h2d" else ()
        segment = make_copy(self._lanes, way, "activations", size, memory)
        key = self._need_copy("away" if way == "d2h" else "back", action, step, number).key
        self._lanes.append_item(way, Item(segment, key, needs, step, action.chunk, action.microbatch))


def moves_activations(job: Job) -> bool:
    """Return whether activations of any microbatch are offloaded on any stage."""
    for stage, row in enumerate(job.schedule.rows):
        halves = job.schedule.fused_at(stage)
        chunks = {row[trip.out].chunk for trip in plan_offloads(row, halves, job.offload.ahead)}
        if any(job.whole(stage, chunk).layers for chunk in sorted(chunks)):
            return True
        adjacents = sorted({chunk for _, chunk in find_adjacent(row, halves)})
        if any(LayerWindows.of(job.whole(stage, chunk).layers, job.offload).sizes for chunk in adjacents):
            return True
    return False
