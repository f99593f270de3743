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

from simcluster.planning.fsdp_builder import FsdpBuilder
from simcluster.planning.job import Job, OffloadOptions
from simcluster.planning.offload import make_copy_op, plan_activation_offloads
from simcluster.planning.ops import Dependency, Direction, MemoryChange
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart, DataParallelBuilder
from simcluster.planning.stage_boundaries import SendReceiveBuilder
from simcluster.schedules import Action


class LayerCopyWindows(NamedTuple):
    """Copy plan of a chunk: the layers after which a copy to host memory begins, and the bytes of each copy."""

    marks: tuple[int, ...]
    sizes: tuple[float, ...]

    @classmethod
    def for_layers(cls, layers: Sequence[int], offload: OffloadOptions) -> LayerCopyWindows:
        """Return the copy plan of a chunk with these layers; the plan is empty if nothing can be offloaded."""
        share = offload.activations * len(layers)
        count = min(math.ceil(share - 1e-9), len(layers) - 1)
        if count < 1:
            return cls((), ())
        each, longer = divmod(len(layers), count)
        ends = [each * (number + 1) - 1 + min(number + 1, longer) for number in range(count)]
        sizes = tuple(min(1.0, share / count) * offload.kept_bytes_of_layers([layer]) for layer in layers[:count])
        return cls((layers[0], *(layers[end] for end in ends)), sizes if all(sizes) else ())

    def split_pass(self, work: PassLayers) -> list[PassLayers]:
        """Split a pass into pieces, one up to each layer that starts a copy; the LM head is a separate piece."""
        pieces: list[list[int]] = [[]]
        for layer in work.layers:
            pieces[-1].append(layer)
            if layer in self.marks:
                pieces.append([])
        found = [PassLayers(tuple(layers)) for layers in pieces if layers]
        if work.lm_head or not found:
            found.append(PassLayers((), lm_head=work.lm_head))
        found[0] = replace(found[0], embedding=work.embedding)
        return found

    def mark_index(self, layer: int) -> int:
        """Return the index of the copy mark at a layer; -1 if no copy begins after the layer."""
        return self.marks.index(layer) if layer in self.marks else -1

    def copy_awaited_by(self, piece: PassLayers, last: int) -> int:
        """Return the index of the copy that a piece of a forward waits for; -1 if the piece waits for none."""
        if not piece.layers and not piece.lm_head:
            return -1
        return max(self.mark_index(piece.layers[0] - 1 if piece.layers else last) - 1, -1)


def find_adjacent_backwards(row: Sequence[Action], halves: Sequence[int]) -> set[tuple[int, int]]:
    """Return (microbatch, chunk) of each backward that directly follows its forward, outside fused pairs."""
    return {
        (one.microbatch, one.chunk)
        for place, (one, other) in enumerate(pairwise(row))
        if one.kind == "F" and other.kind in ("B", "I") and one[1:] == other[1:]
        and not {place - 1, place, place + 1} & set(halves)
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ActionPiece:
    """Piece of an action between two activation copies, and the action part that is complete after the piece.

    ``copy_out_after`` is the copy that begins after it, ``copy_back_before`` the one that begins before it; -1: none.
    """

    part: ActionPart
    completed_part: ActionPart | None
    copy_out_after: int = -1
    copy_back_before: int = -1


class LayerOffloadBuilder:
    """Builder of a stage's data-parallel communication that also offloads activations layer by layer."""

    def __init__(self, job: Job, lanes: ProgramBuilder, replicas: DataParallelBuilder | FsdpBuilder) -> None:
        self._job, self._lanes, self._replicas = job, lanes, replicas
        self._key = SendReceiveBuilder(job, lanes).output_key
        self._left: list[_ActionPiece] = []
        stage, offload = lanes.stage, job.offload
        row, halves = job.schedule.rows[stage], job.schedule.fused_positions(stage)
        found = find_adjacent_backwards(row, halves) if offload.activations else set()
        wholes = self._wholes = [job.pass_over_chunk(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        self._windows = {
            (microbatch, chunk): windows
            for microbatch, chunk in sorted(found)
            if (windows := LayerCopyWindows.for_layers(wholes[chunk].layers, offload)).sizes
        }
        self.add_first_gathers, self.finish_step = replicas.add_first_gathers, replicas.finish_step

    def split_action(self, action: Action, step: int) -> list[ActionPart]:
        """Split an action into parts at the points where copies of activations start or must have ended."""
        parts = self._replicas.split_action(action, step)
        windows = self._windows.get(action[1:]) if action.kind != "W" else None
        self._left = [] if windows is None else self._split_parts(action, step, parts, windows)
        if not self._left:
            return parts
        self._add_copy_to_device(action, step, self._lanes.main_lane_end())
        return [piece.part for piece in self._left]

    def add_after_part(self, action: Action, step: int, part: ActionPart, part_end: tuple[object, ...]) -> None:
        """Add the activation copies that begin when an action part ends, and its data-parallel communication."""
        if not self._left:
            return self._replicas.add_after_part(action, step, part, part_end)
        piece, needs = self._left.pop(0), (Dependency(self._lanes.stage, part_end),)
        if piece.copy_out_after >= 0:
            self._add_copy("d2h", action, step, piece.copy_out_after, needs)
        if self._left:
            self._add_copy_to_device(action, step, needs)
        if piece.completed_part:
            self._replicas.add_after_part(action, step, piece.completed_part, part_end)
        return None

    def _split_parts(
        self, action: Action, step: int, parts: Sequence[ActionPart], windows: LayerCopyWindows
    ) -> list[_ActionPiece]:  # fmt: skip
        found: list[_ActionPiece] = []
        for part in parts:
            works = windows.split_pass(part.work)
            works = works if action.kind == "F" else works[::-1]
            for index, work in enumerate(works):
                first, last = index == 0, index == len(works) - 1
                memory = tuple(MemoryChange(pool, start * first, end * last) for pool, start, end in part.memory)
                own = ActionPart(work, part.needs if first else (), part.bucket, memory)
                whole = part if last else None
                if action.kind == "F":
                    found.append(self._make_forward_piece(action, step, own, windows, whole))
                else:
                    found.append(self._make_backward_piece(action, step, own, windows, whole, begins=not found))
        return found

    def _make_forward_piece(
        self, action: Action, step: int, part: ActionPart, windows: LayerCopyWindows, whole: ActionPart | None
    ) -> _ActionPiece:
        chunk = self._wholes[action.chunk]
        over = windows.copy_awaited_by(part.work, chunk.layers[-1])
        end = windows.mark_index(part.work.layers[-1]) if part.work.layers else -1
        away = end if end < len(windows.sizes) else -1
        return _ActionPiece(self._with_copy_wait(action, step, part, windows, over), whole, copy_out_after=away)

    def _make_backward_piece(
        self, action: Action, step: int, part: ActionPart, windows: LayerCopyWindows, whole: ActionPart | None,
        *, begins: bool,
    ) -> _ActionPiece:  # fmt: skip
        """Return a piece of a backward that waits until the activations of its layers are copied back."""
        count = len(windows.sizes)
        top = windows.mark_index(part.work.layers[-1]) if part.work.layers else -1
        if begins and not part.work.lm_head:  # F has no piece that waits for the last copy
            part = self._with_copy_wait(action, step, part, windows, count - 1)
        back = top if 0 <= top < count else -1
        if back >= 0:
            part = replace(part, needs=(*part.needs, self._copy_dependency("back", action, step, back)))
        return _ActionPiece(part, whole, copy_back_before=top - 1 if top >= 1 else -1)

    def _with_copy_wait(
        self, action: Action, step: int, part: ActionPart, windows: LayerCopyWindows, over: int
    ) -> ActionPart:
        if over < 0:
            return part
        freed = MemoryChange("activations", -windows.sizes[over], 0.0)
        needs = (*part.needs, self._copy_dependency("away", action, step, over))
        return replace(part, needs=needs, memory=(*part.memory, freed))

    def _add_copy_to_device(self, action: Action, step: int, needs: tuple[Dependency, ...]) -> None:
        number = self._left[0].copy_back_before
        if number >= 0:
            self._add_copy("h2d", action, step, number, (*needs, self._copy_dependency("away", action, step, number)))

    def _copy_dependency(self, what: str, action: Action, step: int, number: int) -> Dependency:
        forward = action._replace(kind="F")
        return Dependency(self._lanes.stage, (what, *self._key(forward, step), number))

    def _add_copy(self, way: Direction, action: Action, step: int, number: int, needs: tuple[Dependency, ...]) -> None:
        windows = self._windows[action.microbatch, action.chunk]
        size = windows.sizes[number]
        memory = (MemoryChange("activations", size, 0.0),) if way == "h2d" else ()
        copy = make_copy_op(way, "activations", size, memory)
        key = self._copy_dependency("away" if way == "d2h" else "back", action, step, number).key
        self._lanes.append_op(copy, key, needs, step, action.chunk, action.microbatch)


def offloads_activations(job: Job) -> bool:
    """Return whether activations of any microbatch are offloaded on any stage."""
    schedule, offload = job.schedule, job.offload
    for stage, row in enumerate(schedule.rows):
        halves = schedule.fused_positions(stage)
        chunks = {row[trip.producer].chunk for trip in plan_activation_offloads(row, halves, offload.prefetch_actions)}
        if any(job.pass_over_chunk(stage, chunk).layers for chunk in sorted(chunks)):
            return True
        found = sorted({chunk for _, chunk in find_adjacent_backwards(row, halves)})
        if any(LayerCopyWindows.for_layers(job.pass_over_chunk(stage, chunk).layers, offload).sizes for chunk in found):
            return True
    return False
