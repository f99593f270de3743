"""What passes of a microbatch take at least: planned compute and own communication, alone on free links.

A pass is cut into the parts it goes through: its layers, embedding, LM head.  A part's ops are a stretch of the pass's:
whatever goes beside the main lane in it is joined before its last op, so the pass takes at least the sum of what the
parts take by themselves.  Core attention takes what it takes of documents that are spread evenly, where sequences are
packed with some.  What the host needs to issue kernels is beside all that and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from simcluster.devices.interference import Beside
from simcluster.faults.ranks import mean_attention
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model
from simcluster.planning.job import Job
from simcluster.planning.ops import Op, Segment
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute
from simcluster.scenario.job import batch_of, interference_of, job_of, methods_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import least_seconds
from simcluster.studies.search.pipelines import PipelineRoute, Stage
from simcluster.studies.search.space import Layout
from simcluster.studies.search.stretches import least_segment_seconds

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
Sums = Mapping[Kind, float]


class LayerShape(NamedTuple):
    """What decides the passes of a layer: layouts that share it share their times."""

    micro_batch: int
    sequence_parallel: bool
    recompute: str
    cp: int
    cp_comm: str
    ep: int
    etp: int | None


class PassPart(NamedTuple):
    """A part of a pass: a layer that recomputes or does not, with or without experts; or one of the other parts."""

    name: str
    again: bool = False
    mixture: bool = False


EMBEDDING, LM_HEAD, BOUNDARY = PassPart("embedding"), PassPart("lm_head"), PassPart("boundary")


@dataclass(frozen=True)
class PassParts:
    """Segments of the parts of a pass, by part and kind.  ``send_bytes`` cross a stage boundary by each rank;
    ``gathered``: split over tp, so that a pass begins with gathering them."""

    model: Model
    shape: RankShape
    segments: Mapping[tuple[PassPart, Kind], Segment]
    send_bytes: float
    gathered: bool

    @cached_property
    def calls(self) -> list[Collective]:
        """All collectives, each once."""
        ops = (op.work for segment in self.segments.values() for op in segment.ops)
        return list(dict.fromkeys(work for work in ops if isinstance(work, Collective)))


@dataclass(frozen=True)
class LeastPassTimes:
    """Least seconds of the ``parts`` of a pass, by part and kind."""

    made_of: PassParts
    parts: Mapping[PassPart, Sums]
    _known: dict[object, Sums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def boundary(self) -> Sums:
        """Seconds of gathering what arrives split over tp."""
        return self.parts[BOUNDARY]

    def of(self, layers: range, *, embedding: bool, lm_head: bool) -> Sums:
        """Of a slice with these layers."""
        name = layers.start, layers.stop, embedding, lm_head
        if name not in self._known:
            parts = [
                (self.parts[part], count)
                for part, count in self._counts(layers, embedding=embedding, lm_head=lm_head).items()
            ]
            self._known[name] = {kind: sum(sums[kind] * count for sums, count in parts if count) for kind in KINDS}
        return self._known[name]

    def _counts(self, layers: range, *, embedding: bool, lm_head: bool) -> dict[PassPart, int]:
        """How often a slice goes through each part."""
        shape, model = self.made_of.shape, self.made_of.model
        counts = Counter(PassPart("layer", shape.recomputes(layer), model.has_experts(layer)) for layer in layers)
        return {**dict(sorted(counts.items())), EMBEDDING: int(embedding), LM_HEAD: int(lm_head)}


def shape_of_layout(layout: Layout) -> LayerShape:
    """What decides its passes."""
    return LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute, *layout[11:])


def slice_times(pipeline: PipelineRoute, times: LeastPassTimes) -> list[Sums]:
    """Least seconds of the passes of every slice."""
    last = len(pipeline.counts) - 1
    return [times.of(layers, embedding=not number, lm_head=number == last) for number, layers in pipeline.numbered]


def stages_of(pipeline: PipelineRoute, times: LeastPassTimes, many: int, *, split: bool) -> list[Stage]:
    """What every stage does in a step of so ``many`` microbatches, by a schedule that may ``split`` the backward."""
    slices = slice_times(pipeline, times)
    forward = [each["F"] for each in slices]
    backward = [min(each["B"], each["I"] + each["W"]) if split else each["B"] for each in slices]
    forwards, backwards = [0.0, *accumulate(forward)], [0.0, *accumulate(backward)]
    found = []
    for held in pipeline.held:
        first = held.slices[0]
        work = many * sum(forward[number] + backward[number] for number in held.slices)
        drain = 0.0 if split else backwards[first]
        found.append(Stage(forwards[first], work, drain, *held[1:]))
    return found


def parts_of(base: Scenario, layout: Layout) -> PassParts:
    """The parts of a layout's passes: those of any other one on as many GPUs and tp ranks with such layers."""
    job, probe = _job(base, layout)
    split = layout.tp > 1 and (layout.sequence_parallel or base.pipeline.scatter_gather)
    shape = shape_of(probe)
    gathered = split and not layout.sequence_parallel
    return PassParts(base.model, shape, _segments(job, shape), job.send_bytes, gathered)


def times_of(
    base: Scenario, parts: PassParts, least: Mapping[Collective, float], pressure: Mapping[str, float]
) -> LeastPassTimes:
    """The times of passes whose collectives take at ``least`` so many seconds, and press at least so much by axis."""
    attention = mean_attention(base.faults, base.seed, batch_of(base), base.dp)
    found = {
        name: least_segment_seconds(segment, least, attention, pressure) for name, segment in parts.segments.items()
    }
    names = dict.fromkeys((*(part for part, _ in found), BOUNDARY))
    return LeastPassTimes(parts, {part: {kind: found.get((part, kind), 0.0) for kind in KINDS} for part in names})


def least_pressures(base: Scenario, plan: Plan) -> dict[str, float]:
    """How much collectives over tp, cp and ep press computation beside them, by axis: at the least of any group's,
    whatever they send."""
    interference = interference_of(base, base.cluster.device)
    if interference is None:
        return dict.fromkeys(("tp", "cp", "ep"), 0.0)
    hosts = np.array(base.cluster.built.host_of)
    found = {}
    for axis in ("tp", "cp", "ep"):
        where = hosts[plan.groups(axis)]
        far = (where != where[:, :1]).any(axis=1)
        kinds = (False, True) if axis == "ep" else (False,)
        found[axis] = min(
            interference.pressure(Beside(bool(each), 0.0, kind)) for each in np.unique(far) for kind in kinds
        )
    return found


def least_over_tp(base: Scenario, layout: Layout, calls: Sequence[Collective]) -> Mapping[Collective, float]:
    """The least seconds of calls over tp, in any of the job's tp groups."""
    wanted = [call for call in dict.fromkeys(calls) if call.axis == "tp"]
    if not wanted:
        return {}
    plan = tp_groups(layout)
    of_stages = least_seconds([wanted] * plan.pp, plan, base.cluster.built, methods_of(base))
    return {call: min(least[call] for least in of_stages) for call in wanted}


def grid_of(layout: Layout) -> tuple[object, ...]:
    """What decides which ranks talk to which."""
    return layout.gpus, layout.tp, layout.pp, layout.order, layout.cp, layout.ep, layout.etp


def near_of(layout: Layout) -> object:
    """What decides the tp groups of a layout, and who shares its layers."""
    order = () if tp_is_fastest(layout) else (layout.pp, layout.order)
    return layout.gpus, layout.tp, order, layout[11:]


def plan_of_layout(layout: Layout) -> Plan:
    """Its rank grid."""
    return Plan(
        tp=layout.tp, pp=layout.pp, dp=layout.dp, cp=layout.cp, ep=layout.ep, etp=layout.etp or 0, order=layout.order
    )  # fmt: skip


def is_spread(layout: Layout) -> bool:
    """Do its passes talk over other axes than tp?"""
    return layout.cp > 1 or layout.ep > 1


def tp_groups(layout: Layout) -> Plan:
    """A plan with the tp groups of a layout: where tp is the fastest axis they do not depend on the others."""
    if tp_is_fastest(layout):
        return Plan(tp=layout.tp, dp=layout.gpus // layout.tp)
    return plan_of_layout(layout)


def tp_is_fastest(layout: Layout) -> bool:
    """Are the ranks of a tp group neighbours?"""
    slower = [layout.order.index(axis) for axis in ("cp", "dp", "pp") if axis != "cp" or layout.cp > 1]
    return layout.order.index("tp") < min(slower)


def _job(base: Scenario, layout: Layout) -> tuple[Job, Scenario]:
    """A job of one stage and one microbatch with these passes, and its scenario; its host takes no time to issue."""
    replicas = layout.gpus // (layout.tp * layout.cp)
    probe = layout._replace(pp=1, dp=replicas, schedule="1f1b", chunks=1).on(base)
    training = probe.training.model_copy(update={"global_batch": replicas * layout.micro_batch})
    pipeline = probe.pipeline.model_copy(update={"layers_per_stage": "even"})
    software = base.software and base.software.model_copy(update={"kernel": 0.0, "collective": 0.0, "microbatch": 0.0})
    probe = probe.model_copy(update={"training": training, "pipeline": pipeline, "software": software})
    return job_of(probe, base.cluster.device), probe


def _segments(job: Job, shape: RankShape) -> dict[tuple[PassPart, Kind], Segment]:
    """The parts of a pass, each by itself, by part and kind."""
    parts = {EMBEDDING: Pass((), embedding=True, begins=False), LM_HEAD: Pass((), lm_head=True, begins=False)}
    for layer in range(job.model.layers):
        kind_of = PassPart("layer", shape.recomputes(layer), job.model.has_experts(layer))
        parts.setdefault(kind_of, Pass((layer,), begins=False))
    if shape.tp > 1:
        parts[BOUNDARY] = Pass((), boundary=True, begins=False)
    passes = job.passes
    makers: dict[Kind, Callable[[Pass], Segment]] = {
        "F": passes.forward, "B": passes.backward, "I": passes.input_grad, "W": passes.weight_grad
    }  # fmt: skip
    found: dict[tuple[PassPart, Kind], Segment] = {}
    for name, part in parts.items():
        for kind, make in makers.items():
            if name == BOUNDARY and kind == "W":
                continue
            if name == EMBEDDING and kind == "I" and not (shape.sequence_parallel and shape.tp > 1):
                continue  # nothing is before it
            found[name, kind] = _after_another_op(make(part))
    return found


def _after_another_op(segment: Segment) -> Segment:
    """Return a part's ops after an op of no time, so that a ring's first copy overlaps with the first piece of its
    matmul, and the second piece waits for the copy."""
    first = segment.ops[0]
    if first.kind != "send_recv" or not isinstance(first.work, Collective):
        return segment
    before = Op(Compute(0.0), "compute", first.kind, "before")
    rest = [replace(op, after=tuple(number + 1 for number in op.after)) for op in segment.ops[1:]]
    second = [number for number, op in enumerate(rest) if op.stream == "compute"][1]
    rest[second] = replace(rest[second], after=(*rest[second].after, 1))
    return Segment((before, replace(first, lane=first.work.axis, after=(0,)), *rest))
