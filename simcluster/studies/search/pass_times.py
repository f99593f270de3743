"""Lower bounds of a microbatch's pass times: planned compute, and communication on uncontended links.

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
from simcluster.faults.rank_effects import mean_attention_load
from simcluster.model.kernel_choices import LayerVariant
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model
from simcluster.planning.job import Job
from simcluster.planning.ops import HostWork, Op, Segment
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective, Compute
from simcluster.scenario.job_conversion import collective_methods, job_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import batch_sizes_of
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_link_times import least_call_seconds
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.stage_outlines import PipelineRoute, StageOutline

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
HOST_LANE = "host"
Sums = Mapping[Kind, float]


class LayerPassSettings(NamedTuple):
    """Values of a layout that determine the ops in a layer's forward and backward passes."""

    micro_batch: int
    sequence_parallel: bool
    recompute: str
    cp: int
    cp_comm: str
    ep: int
    etp: int | None


class PassPart(NamedTuple):
    """Part of a pass: the embedding and encoder, the LM head, or one layer, by its variant and number of its type."""

    name: str
    variant: LayerVariant = LayerVariant(False, False)
    layer_type: int = 0


EMBEDDING, LM_HEAD, BOUNDARY = PassPart("embedding"), PassPart("lm_head"), PassPart("boundary")


@dataclass(frozen=True)
class PassSegments:
    """Ops of forward and backward passes, in segments by part of the model and kind of pass.

    Each rank sends ``send_bytes`` across a stage boundary. ``needs_gather``: they are split over tp, so that a pass
    begins with gathering them.
    """

    model: Model
    shape: RankShape
    segments: Mapping[tuple[PassPart, Kind], Segment]
    send_bytes: float
    needs_gather: bool

    def layer_part(self, layer: int) -> PassPart:
        """Return the part of a pass that a layer is."""
        return _layer_part(self.model, self.shape, layer)

    @cached_property
    def collectives(self) -> list[Collective]:
        """Distinct collectives that occur in these op segments."""
        ops = (op.work for segment in self.segments.values() for op in segment.ops)
        return list(dict.fromkeys(work for work in ops if isinstance(work, Collective)))


@dataclass(frozen=True)
class LeastPassTimes:
    """Least time (s) of each part of the model (a layer, embedding, LM head) in each kind of pass."""

    pass_segments: PassSegments
    parts: Mapping[PassPart, Sums]
    _known: dict[object, Sums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def gather_times(self) -> Sums:
        """Least time (s), by kind of pass, of gathering an input that is sent in tp shards."""
        return self.parts[BOUNDARY]

    def slice_times(self, layers: range, *, embedding: bool, lm_head: bool) -> Sums:
        """Return the least pass times (s), by kind of pass, of a model slice with these layers."""
        name = layers.start, layers.stop, embedding, lm_head
        if name not in self._known:
            counts = Counter(map(self.pass_segments.layer_part, layers))
            times = {**dict(sorted(counts.items())), EMBEDDING: int(embedding), LM_HEAD: int(lm_head)}
            own = [(self.parts[part], count) for part, count in times.items() if count]
            self._known[name] = {kind: sum(sums[kind] * count for sums, count in own) for kind in KINDS}
        return self._known[name]

    def times_by_slice(self, pipeline: PipelineRoute) -> list[Sums]:
        """Return the least pass times (s), by kind of pass, of every slice of a pipeline."""
        last = len(pipeline.layers_per_slice) - 1
        each = enumerate(pipeline.layer_ranges)
        return [self.slice_times(layers, embedding=not number, lm_head=number == last) for number, layers in each]

    def outline_stages(self, pipeline: PipelineRoute, microbatches: int, *, split: bool) -> list[StageOutline]:
        """Return each stage's outline of a step, for whole or ``split`` backward passes."""
        slices = self.times_by_slice(pipeline)
        forward = [each["F"] for each in slices]
        backward = [min(each["B"], each["I"] + each["W"]) if split else each["B"] for each in slices]
        forwards, backwards = [0.0, *accumulate(forward)], [0.0, *accumulate(backward)]
        found = []
        for own, held in zip(pipeline.slices_by_stage, pipeline.contents_by_stage, strict=True):
            work = microbatches * sum(forward[number] + backward[number] for number in own)
            found.append(StageOutline(forwards[own[0]], work, 0.0 if split else backwards[own[0]], held))
        return found


def layer_pass_settings(layout: Layout) -> LayerPassSettings:
    """Return the values of a layout that determine the ops in the passes of its layers."""
    return LayerPassSettings(layout.micro_batch, layout.sequence_parallel, layout.recompute, *layout[11:])


def make_pass_segments(base: Scenario, layout: Layout) -> PassSegments:
    """Return the op segments of a layout's passes; they depend only on GPUs, tp and layer settings."""
    replicas = layout.gpus // (layout.tp * layout.cp)
    probe = layout._replace(pp=1, dp=replicas, schedule="1f1b", chunks=1).apply_to(base)  # one stage, one microbatch
    training = probe.training.model_copy(update={"global_batch": replicas * layout.micro_batch})
    pipeline = probe.pipeline.model_copy(update={"layers_per_stage": "even"})
    software = base.software and base.software.model_copy(update={"kernel": 0.0, "collective": 0.0, "microbatch": 0.0})
    probe = probe.model_copy(update={"training": training, "pipeline": pipeline, "software": software})
    job, shape = job_of(probe, base.cluster.device), shape_of(probe)
    gathered = layout.tp > 1 and not layout.sequence_parallel and base.pipeline.scatter_gather
    return PassSegments(base.model, shape, _make_part_segments(job, shape), job.send_bytes, gathered)


def least_pass_times(base: Scenario, parts: PassSegments, least: Mapping[Collective, float]) -> LeastPassTimes:
    """Return the least times (s) of passes, given the least times (s) of their collectives."""
    attention = mean_attention_load(base.faults, base.seed, batch_sizes_of(base), base.dp)
    found = {name: least_segment_seconds(segment, least, attention) for name, segment in parts.segments.items()}
    names = dict.fromkeys((*(part for part, _ in found), BOUNDARY))
    return LeastPassTimes(parts, {part: {kind: found.get((part, kind), 0.0) for kind in KINDS} for part in names})


def least_segment_seconds(segment: Segment, least: Mapping[Collective, float], attention: float) -> float:
    """Return the longest path (s) through an op segment, given the least times (s) of its collectives.

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
            what = f"{type(work).__name__} ({op.name}); compare layouts by simcluster compare SCENARIO --vary tp=1,2"
            raise InputError(f"plan: the layout search does not support {what}")
        else:
            packed = (1.0 - attention) * work.attention if isinstance(work, Compute) else 0.0
            seconds = 0.0 if op.lane == HOST_LANE else work.seconds - packed
        begin = max([lanes.get(op.lane, 0.0), *(ends[other] for other in op.after)])
        ends[number] = lanes[op.lane] = begin + seconds
    return max(lanes.values())


def least_tp_seconds(base: Scenario, layout: Layout, calls: Sequence[Collective]) -> dict[Collective, float]:
    """Return the least times (s) of tp collectives, in the fastest tp group of the job."""
    wanted = [call for call in dict.fromkeys(calls) if call.axis == "tp"]
    if not wanted:
        return {}
    fastest = _are_tp_ranks_adjacent(layout)  # then its groups do not depend on the other axes
    plan = ParallelPlan(tp=layout.tp, dp=layout.gpus // layout.tp) if fastest else layout.rank_grid
    of_stages = least_call_seconds([wanted] * plan.pp, plan, base.cluster.built, collective_methods(base))
    return {call: min(least[call] for least in of_stages) for call in wanted}


def tp_groups_key(layout: Layout) -> object:
    """Return a key; layouts with equal keys have the same tp groups and the same work per layer and rank."""
    order = () if _are_tp_ranks_adjacent(layout) else (layout.pp, layout.order)
    return layout.gpus, layout.tp, order, layout[11:]


def _are_tp_ranks_adjacent(layout: Layout) -> bool:
    """Return whether each tp group has consecutive ranks, that is, whether tp is the innermost axis."""
    slower = [layout.order.index(axis) for axis in ("cp", "dp", "pp") if axis != "cp" or layout.cp > 1]
    return layout.order.index("tp") < min(slower)


def _layer_part(model: Model, shape: RankShape, layer: int) -> PassPart:
    return PassPart("layer", shape.layer_variant(layer), [*model.count_layer_types()].index(model.layer_type(layer)))


def _make_part_segments(job: Job, shape: RankShape) -> dict[tuple[PassPart, Kind], Segment]:
    parts = {EMBEDDING: PassLayers(job.slices.encoder, embedding=True, starts_action=False)}
    parts[LM_HEAD] = PassLayers((), lm_head=True, starts_action=False)
    for layer in range(job.model.layers):
        parts.setdefault(_layer_part(job.model, shape, layer), PassLayers((layer,), starts_action=False))
    if shape.tp > 1:
        parts[BOUNDARY] = PassLayers((), gathers_input=True, starts_action=False)
    found: dict[tuple[PassPart, Kind], Segment] = {}
    for kind in KINDS:
        for name, part in parts.items():
            if (name, kind) == (BOUNDARY, "W"):
                continue
            if (name, kind) == (EMBEDDING, "I") and not (part.layers or (shape.sequence_parallel and shape.tp > 1)):
                continue  # nothing is before it
            found[name, kind] = _prepend_empty_op(job.pass_maker.segment(kind, part))
    return found


def _prepend_empty_op(segment: Segment) -> Segment:
    """Prepend an op of zero duration to a segment, in place of the part of the model that comes before.

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
