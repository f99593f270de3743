"""Least times of a microbatch's passes: planned compute, and communication alone on free links.

A pass is cut into its parts: layers, embedding, LM head. Ops that overlap with the main lane of a part are joined
before its last op, so a pass takes at least the sum of its parts, and a part its longest path, with computation
undisturbed. Where sequences are packed with documents, core attention takes the mean of all microbatches. Host work
that issues kernels is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.faults.ranks import mean_attention
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model
from simcluster.planning.job import Job
from simcluster.planning.ops import Op, Segment
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute, HostWork
from simcluster.scenario.job import batch_of, collective_methods, job_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import least_seconds
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.pipelines import PipelineRoute, Stage

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
HOST_LANE = "host"
Sums = Mapping[Kind, float]


class LayerShape(NamedTuple):
    """Values of a layout that determine the passes of a layer."""

    micro_batch: int
    sequence_parallel: bool
    recompute: str
    cp: int
    cp_comm: str
    ep: int
    etp: int | None


class PassPart(NamedTuple):
    """Part of a pass: embedding, LM head or a layer, which may recompute (``again``) and have experts."""

    name: str
    again: bool = False
    mixture: bool = False


EMBEDDING, LM_HEAD, BOUNDARY = PassPart("embedding"), PassPart("lm_head"), PassPart("boundary")


@dataclass(frozen=True)
class PassParts:
    """Op segments that make up a forward or backward pass, keyed by (part of the model, kind of pass).

    Each rank sends ``send_bytes`` across a stage boundary. ``gathered``: they are split over tp, so that a pass begins
    with gathering them.
    """

    model: Model
    shape: RankShape
    segments: Mapping[tuple[PassPart, Kind], Segment]
    send_bytes: float
    gathered: bool

    @cached_property
    def calls(self) -> list[Collective]:
        """Distinct collectives of all op segments."""
        ops = (op.work for segment in self.segments.values() for op in segment.ops)
        return list(dict.fromkeys(work for work in ops if isinstance(work, Collective)))


@dataclass(frozen=True)
class LeastPassTimes:
    """Least time (s) of each part of the model in each kind of pass."""

    made_of: PassParts
    parts: Mapping[PassPart, Sums]
    _known: dict[object, Sums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def boundary(self) -> Sums:
        """Time (s) to gather an input that is split over tp, by kind of pass."""
        return self.parts[BOUNDARY]

    def of(self, layers: range, *, embedding: bool, lm_head: bool) -> Sums:
        """Return the least time (s) of a model slice with these layers, by kind of pass."""
        name = layers.start, layers.stop, embedding, lm_head
        if name not in self._known:
            shape, model = self.made_of.shape, self.made_of.model
            counts = Counter(PassPart("layer", shape.recomputes(each), model.has_experts(each)) for each in layers)
            times = {**dict(sorted(counts.items())), EMBEDDING: int(embedding), LM_HEAD: int(lm_head)}
            own = [(self.parts[part], count) for part, count in times.items() if count]
            self._known[name] = {kind: sum(sums[kind] * count for sums, count in own) for kind in KINDS}
        return self._known[name]

    def of_slices(self, pipeline: PipelineRoute) -> list[Sums]:
        """Return the least time (s) of each slice of a pipeline, by kind of pass."""
        last = len(pipeline.counts) - 1
        each = enumerate(pipeline.layers)
        return [self.of(layers, embedding=not number, lm_head=number == last) for number, layers in each]

    def stages(self, pipeline: PipelineRoute, many: int, *, split: bool) -> list[Stage]:
        """Return each stage's outline of a step of ``many`` microbatches; ``split``: backwards are split in I and W."""
        slices = self.of_slices(pipeline)
        forward = [each["F"] for each in slices]
        backward = [min(each["B"], each["I"] + each["W"]) if split else each["B"] for each in slices]
        forwards, backwards = [0.0, *accumulate(forward)], [0.0, *accumulate(backward)]
        found = []
        for own, held in zip(pipeline.slices, pipeline.held, strict=True):
            work = many * sum(forward[number] + backward[number] for number in own)
            found.append(Stage(forwards[own[0]], work, 0.0 if split else backwards[own[0]], held))
        return found


def layer_shape_of(layout: Layout) -> LayerShape:
    """Return the values of a layout that determine the passes of its layers."""
    return LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute, *layout[11:])


def make_pass_parts(base: Scenario, layout: Layout) -> PassParts:
    """Return the op segments of passes, equal for all layouts with the same GPUs, tp ranks and layer shape."""
    replicas = layout.gpus // (layout.tp * layout.cp)
    probe = layout._replace(pp=1, dp=replicas, schedule="1f1b", chunks=1).on(base)  # one stage, one microbatch
    training = probe.training.model_copy(update={"global_batch": replicas * layout.micro_batch})
    pipeline = probe.pipeline.model_copy(update={"layers_per_stage": "even"})
    software = base.software and base.software.model_copy(update={"kernel": 0.0, "collective": 0.0, "microbatch": 0.0})
    probe = probe.model_copy(update={"training": training, "pipeline": pipeline, "software": software})
    job, shape = job_of(probe, base.cluster.device), shape_of(probe)
    gathered = layout.tp > 1 and not layout.sequence_parallel and base.pipeline.scatter_gather
    return PassParts(base.model, shape, _part_segments(job, shape), job.send_bytes, gathered)


def least_times(base: Scenario, parts: PassParts, least: Mapping[Collective, float]) -> LeastPassTimes:
    """Return the least times of passes, given the ``least`` times (s) of their collectives."""
    attention = mean_attention(base.faults, base.seed, batch_of(base), base.dp)
    found = {name: least_segment_seconds(segment, least, attention) for name, segment in parts.segments.items()}
    names = dict.fromkeys((*(part for part, _ in found), BOUNDARY))
    return LeastPassTimes(parts, {part: {kind: found.get((part, kind), 0.0) for kind in KINDS} for part in names})


def least_segment_seconds(segment: Segment, least: Mapping[Collective, float], attention: float) -> float:
    """Return the longest path (s) through a segment, given the ``least`` seconds of its collectives.

    ``attention`` is the fraction of whole sequences' core attention that packed documents leave. Raises InputError for
    kinds of ops that the search does not know.
    """
    ends: dict[int, float] = {}
    lanes: dict[str, float] = {}
    for number, op in enumerate(segment.ops):
        work = op.work
        if isinstance(work, Collective):
            seconds = least[work]
        elif type(work) not in (Compute, HostWork):
            what = f"{type(work).__name__} ({op.name}); compare some, as in simcluster compare SCENARIO --vary tp=1,2"
            raise InputError(f"plan: layouts are searched without {what}")
        else:
            packed = (1.0 - attention) * work.attention if isinstance(work, Compute) else 0.0
            seconds = 0.0 if op.lane == HOST_LANE else work.seconds - packed
        begin = max([lanes.get(op.lane, 0.0), *(ends[other] for other in op.after)])
        ends[number] = lanes[op.lane] = begin + seconds
    return max(lanes.values())


def least_tp_seconds(base: Scenario, layout: Layout, calls: Sequence[Collective]) -> dict[Collective, float]:
    """Return the least times (s) of collectives over tp, in the fastest tp group of the job."""
    wanted = [call for call in dict.fromkeys(calls) if call.axis == "tp"]
    if not wanted:
        return {}
    fastest = _tp_is_fastest(layout)  # then its groups do not depend on the other axes
    plan = Plan(tp=layout.tp, dp=layout.gpus // layout.tp) if fastest else layout.plan
    of_stages = least_seconds([wanted] * plan.pp, plan, base.cluster.built, collective_methods(base))
    return {call: min(least[call] for least in of_stages) for call in wanted}


def tp_groups_key(layout: Layout) -> object:
    """Return a key of a layout that is equal for layouts with the same tp groups and the same ranks per layer."""
    order = () if _tp_is_fastest(layout) else (layout.pp, layout.order)
    return layout.gpus, layout.tp, order, layout[11:]


def _tp_is_fastest(layout: Layout) -> bool:
    """Return whether the ranks of a tp group are neighbours."""
    slower = [layout.order.index(axis) for axis in ("cp", "dp", "pp") if axis != "cp" or layout.cp > 1]
    return layout.order.index("tp") < min(slower)


def _part_segments(job: Job, shape: RankShape) -> dict[tuple[PassPart, Kind], Segment]:
    """Return the op segments of passes, keyed by (part of the model, kind of pass)."""
    parts = {EMBEDDING: Pass((), embedding=True, begins=False), LM_HEAD: Pass((), lm_head=True, begins=False)}
    for layer in range(job.model.layers):
        kind_of = PassPart("layer", shape.recomputes(layer), job.model.has_experts(layer))
        parts.setdefault(kind_of, Pass((layer,), begins=False))
    if shape.tp > 1:
        parts[BOUNDARY] = Pass((), boundary=True, begins=False)
    found: dict[tuple[PassPart, Kind], Segment] = {}
    for kind in KINDS:
        for name, part in parts.items():
            if (name, kind) == (BOUNDARY, "W"):
                continue
            if (name, kind) == (EMBEDDING, "I") and not (shape.sequence_parallel and shape.tp > 1):
                continue  # nothing is before it
            found[name, kind] = _prepend_op(job.passes.segment(kind, part))
    return found


def _prepend_op(segment: Segment) -> Segment:
    """Return the segment of a model part with an op of zero time before it, which represents the previous part.

    A ring's first copy overlaps with the first piece of its matmul, and the second piece waits for the copy.
    """
    first = segment.ops[0]
    if first.kind != "send_recv" or not isinstance(first.work, Collective):
        return segment
    before = Op(Compute(0.0), "compute", first.kind, "before")
    rest = [replace(op, after=tuple(number + 1 for number in op.after)) for op in segment.ops[1:]]
    second = [number for number, op in enumerate(rest) if op.stream == "compute"][1]
    rest[second] = replace(rest[second], after=(*rest[second].after, 1))
    return Segment((before, replace(first, lane=first.work.axis, after=(0,)), *rest))
