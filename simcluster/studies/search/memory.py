"""Bytes that a layout holds on its fullest GPU: at least, in closed form, and at most, from its schedule.

Before any backward begins, a microbatch has gone through all slices, so every stage holds what the forwards of its
slices keep of it, beside the model state; more where the schedule is known to do more forwards first: the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.model.layers import RankShape
from simcluster.model.recipes import state_bytes
from simcluster.model.shards import stage_parameters_per_tp_rank
from simcluster.planning.residency import LAYER, MemoryProfile, Residencies, profile, residencies, visits
from simcluster.scenario.fits import waiting_bytes
from simcluster.scenario.job import planned_footprints
from simcluster.scenario.memory_plan import overheads_of, recipe_of, shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.schedules import SCHEDULES, Action
from simcluster.studies.search.pass_times import LayerShape
from simcluster.studies.search.pipelines import PipelineRoute, pipeline_of
from simcluster.studies.search.space import Layout

Kind = tuple[int, tuple[int, ...], int, bool, bool]
"""The first stage of those that hold as much: layers of its slices, all of them, has it the model's ends."""


class LayoutMemory:
    """What layouts of one scenario hold; what they have in common is worked out once."""

    def __init__(self, base: Scenario) -> None:
        self._base = base
        self._recipe = recipe_of(base)
        self._kept: dict[object, float] = {}
        self._pipelines: dict[object, list[Kind] | None] = {}
        self._states: dict[object, float] = {}
        self._most: dict[Layout, float] = {}
        self._walks: dict[object, tuple[float, list[float]]] = {}
        self._alive: dict[object, list[_Moments]] = {}
        self._blocks: dict[object, tuple[Residencies, dict[object, MemoryProfile]]] = {}

    def floor(self, layout: Layout) -> float:
        """Bytes at the least: model state, and one microbatch's activations where none goes to the host."""
        stages = self._stages(layout)
        if stages is None:
            return 0.0
        kept, many = self._kept_of_layer(layout), self._base.training.global_batch // (layout.dp * layout.micro_batch)
        return max(
            self._state(layout, layers, first, last)
            + kept * max(sum(slices), _alive(layout, stage, many) * min(slices))
            for stage, slices, layers, first, last in stages
        )

    def most(self, layout: Layout) -> float:
        """Bytes at the most: its schedule gone through, and what may wait between stages; InputError if it cannot be
        made."""
        name = layout._replace(order=())
        if name not in self._most:
            walked = self._walked(layout)
            if walked is None or layout.zero > 1:
                scenario = layout.on(self._base)
                walked = max(each.total for each in planned_footprints(scenario)) + waiting_bytes(scenario)
            self._most[name] = walked
        return self._most[name]

    def exceeds(self, layout: Layout, capacity: float) -> bool:
        """Does it hold more than so many bytes?  As ``most`` says, but faster where the answer is yes."""
        walked = self._walked(layout)
        return (walked is not None and walked > capacity) or self.most(layout) > capacity

    def _walked(self, layout: Layout) -> float | None:
        """Bytes of the fullest stage and what waits, without what ZeRO 2 and 3 have whole for a while; None where a
        schedule or what goes to the host asks for more than a count of what is alive."""
        base = self._base
        pipeline = pipeline_of(base, layout.schedule, layout.pp, layout.chunks)
        if pipeline is None or base.memory.offload.activations or base.memory.offload.optimizer != "none":
            return None
        name = (layout.tp, layout.pp, layout.dp, *layout[4:9])
        if name not in self._walks:
            scenario = layout.on(base)
            plan = plan_of(scenario, schedule_of(scenario))
            overheads, shape = overheads_of(scenario, plan), shape_of(scenario)
            peaks = self._peaks(layout, pipeline, shape)
            self._walks[name] = (
                waiting_bytes(scenario),
                [
                    overheads.buffers(base.model, shape, last=held.last) + overheads.fragmentation * peak
                    for held, peak in zip(pipeline.held, peaks, strict=True)
                ],
            )
        waiting, stages = self._walks[name]
        return waiting + max(
            comes + self._state(layout, held.layers, held.first, held.last)
            for comes, held in zip(stages, pipeline.held, strict=True)
        )

    def _peaks(self, layout: Layout, pipeline: PipelineRoute, shape: RankShape) -> list[float]:
        """Bytes of activations and working sets of every stage when it holds most of them."""
        counts = layout.schedule, layout.pp, layout.chunks, layout.dp * layout.micro_batch
        if counts not in self._alive:
            schedule = schedule_of(layout.on(self._base))
            self._alive[counts] = [_moments(row, schedule.num_chunks) for row in schedule.rows]
        name = layout.tp, LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute)
        blocks, profiles = self._blocks.setdefault(name, (residencies(self._base.model, shape), {}))
        found, last = [], len(pipeline.counts) - 1
        for moments, held in zip(self._alive[counts], pipeline.held, strict=True):
            known: dict[tuple[str, int], MemoryProfile] = {}
            for kind, chunk in dict.fromkeys(moments.actions):
                number = held.slices[chunk]
                layers = pipeline.layers(number)
                # layers are alike but for recomputing or not
                again = sum(map(shape.recomputes, layers))
                alike = (
                    kind,
                    len(layers),
                    again,
                    shape.recomputes(layers[-1]) if layers else False,
                    number == 0,
                    number == last,
                )
                if alike not in profiles:
                    order = visits(kind, layers, embedding=number == 0, lm_head=number == last, again=blocks.runs_again)
                    profiles[alike] = profile(blocks, order, split=kind in ("I", "W"))
                known[kind, chunk] = profiles[alike]
            found.append(moments.peak(known))
        return found

    def _stages(self, layout: Layout) -> list[Kind] | None:
        """What stages hold, each kind of stage once."""
        name = layout.schedule, layout.pp, layout.chunks
        if name not in self._pipelines:
            found = pipeline_of(self._base, *name)
            self._pipelines[name] = None if found is None else _kinds(found)
        return self._pipelines[name]

    def _state(self, layout: Layout, layers: int, first: bool, last: bool) -> float:
        name = layout.tp, layers, first, last, layout.zero, layout.dp
        if name not in self._states:
            parameters = stage_parameters_per_tp_rank(
                self._base.model, layout.tp, layers=layers, first=first, last=last
            )
            shards = (layout.zero == 3 and self._base.fsdp.shard_group) or layout.dp
            state = state_bytes(parameters, self._recipe, zero=layout.zero, dp=shards)
            optimizer = state.optimizer if self._base.memory.offload.optimizer == "none" else 0.0
            self._states[name] = state.parameters + state.gradients + optimizer
        return self._states[name]

    def _kept_of_layer(self, layout: Layout) -> float:
        """What the forward of a layer keeps of a microbatch, at the least."""
        if self._base.memory.offload.activations:
            return 0.0
        name = layout.tp, LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute)
        if name not in self._kept:
            blocks = residencies(self._base.model, shape_of(layout.on(self._base)))
            layers = range(self._base.model.layers)
            self._kept[name] = min(sum(blocks.of(block, layer).kept for block in LAYER) for layer in layers)
        return self._kept[name]


class _Moments(NamedTuple):
    """The different moments of a stage's row: the action that begins (``actions``), and what is alive by then in every
    chunk [moment, chunk]: forwards without their backward, and input gradients without their weight gradient."""

    actions: list[tuple[str, int]]
    forwards: npt.NDArray[np.float64]
    pending: npt.NDArray[np.float64]

    def peak(self, profiles: Mapping[tuple[str, int], MemoryProfile]) -> float:
        """Bytes when most is held, by what each action leaves and holds while it runs."""
        chunks = range(self.forwards.shape[1])
        left = np.array([profiles["F", chunk].left for chunk in chunks])
        for_weights = np.array([profiles["I", chunk].left if ("I", chunk) in profiles else 0.0 for chunk in chunks])
        inside = np.array([profiles[action].peak.total for action in self.actions])
        return float((self.forwards @ left + self.pending @ for_weights + inside).max())


def _moments(row: Sequence[Action], chunks: int) -> _Moments:
    alive, pending = [0] * chunks, [0] * chunks
    seen: dict[tuple[str, int, tuple[int, ...], tuple[int, ...]], None] = {}
    for kind, _, chunk in row:
        seen[kind, chunk, tuple(alive), tuple(pending)] = None
        if kind == "F":
            alive[chunk] += 1
        elif kind == "I":
            pending[chunk] += 1
        else:
            alive[chunk] -= 1
            pending[chunk] -= kind == "W"
    actions = [(kind, chunk) for kind, chunk, *_ in seen]
    counts = [np.array([moment[place] for moment in seen], dtype=np.float64) for place in (2, 3)]
    return _Moments(actions, *counts)


def _alive(layout: Layout, stage: int, many: int) -> int:
    """How many slices' forwards a stage has done when its first backward begins, by the schedule's own rule."""
    first_forwards = SCHEDULES[layout.schedule].first_forwards
    return first_forwards(layout.pp, many, layout.chunks, stage) if first_forwards else 1


def _kinds(pipeline: PipelineRoute) -> list[Kind]:
    found: dict[tuple[tuple[int, ...], int, bool, bool], int] = {}
    for stage, (slices, layers, first, last) in enumerate(pipeline.held):
        found.setdefault((tuple(pipeline.counts[number] for number in slices), layers, first, last), stage)
    return [(stage, *kept) for kept, stage in found.items()]
