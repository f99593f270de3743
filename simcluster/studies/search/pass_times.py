"""What passes of a microbatch take at least: planned compute and own communication over tp, alone on free links.

A pass is cut into the parts it goes through: its layers, embedding, LM head.  A part's ops are a stretch of the pass's:
whatever goes beside the main lane in it is joined before its last op, so the pass takes at least the sum of what the
parts take by themselves.  Core attention takes what it takes of documents that are spread evenly, where sequences are
packed with some.  What the host needs to issue kernels is beside all that and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.faults.ranks import mean_attention
from simcluster.model.layers import RankShape
from simcluster.planning.job import DataParallel, Job
from simcluster.planning.ops import Segment
from simcluster.planning.parallel import Plan
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute, Host
from simcluster.scenario.job import batch_of, job_of, methods_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import least_seconds
from simcluster.studies.search.pipelines import PipelineRoute
from simcluster.studies.search.space import Layout

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
Sums = Mapping[Kind, float]


class LayerShape(NamedTuple):
    """What decides the passes of a layer: layouts that share it share their times."""

    micro_batch: int
    sequence_parallel: bool
    recompute: str


@dataclass(frozen=True)
class LeastPassTimes:
    """Least seconds of the parts of a pass, by kind.  ``send_bytes`` cross a stage boundary by each rank; ``gathered``:
    split over tp, so that a pass begins with gathering them (``boundary``)."""

    shape: RankShape
    plain: Sums
    again: Sums
    embedding: Sums
    lm_head: Sums
    boundary: Sums
    send_bytes: float
    gathered: bool
    data: DataParallel
    _known: dict[object, Sums] = field(default_factory=dict, repr=False, compare=False)

    def of(self, layers: range, *, embedding: bool, lm_head: bool) -> Sums:
        """Of a slice with these layers."""
        again = sum(map(self.shape.recomputes, layers))
        name = len(layers), again, embedding, lm_head
        if name not in self._known:
            parts = [(self.plain, len(layers) - again), (self.again, again)]
            parts += [(self.embedding, int(embedding)), (self.lm_head, int(lm_head))]
            self._known[name] = {kind: sum(sums[kind] * count for sums, count in parts if count) for kind in KINDS}
        return self._known[name]


def shape_of_layout(layout: Layout) -> LayerShape:
    """What decides its passes."""
    return LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute)


def slice_times(pipeline: PipelineRoute, times: LeastPassTimes) -> list[Sums]:
    """Least seconds of the passes of every slice."""
    last = len(pipeline.counts) - 1
    return [
        times.of(pipeline.layers(number), embedding=number == 0, lm_head=number == last) for number in range(last + 1)
    ]


def times_of(base: Scenario, layout: Layout, shapes: Sequence[LayerShape]) -> dict[LayerShape, LeastPassTimes]:
    """The times of several shapes on the tp groups that a layout has."""
    jobs = {shape: _job(base, layout, shape) for shape in shapes}
    made = {shape: (_segments(job, shape_of(probe)), job, probe) for shape, (job, probe) in jobs.items()}
    calls = [
        op.work
        for segments, *_ in made.values()
        for segment in segments.values()
        for op in segment.ops
        if isinstance(op.work, Collective)
    ]
    least = _least(base, layout, calls)
    attention = mean_attention(base.faults, base.seed, batch_of(base), base.dp)
    found = {}
    for shape, (segments, job, probe) in made.items():
        seconds = {name: longest(segment, least, attention) for name, segment in segments.items()}
        sums = {
            part: {kind: seconds.get((part, kind), 0.0) for kind in KINDS}
            for part in ("plain", "again", "embedding", "lm_head", "boundary")
        }
        split = layout.tp > 1 and (shape.sequence_parallel or base.pipeline.scatter_gather)
        found[shape] = LeastPassTimes(
            shape_of(probe), sums["plain"], sums["again"], sums["embedding"], sums["lm_head"], sums["boundary"],
            send_bytes=job.send_bytes,
            gathered=split and not shape.sequence_parallel, data=job.data_parallel,
        )  # fmt: skip
    return found


def _least(base: Scenario, layout: Layout, calls: Sequence[Collective]) -> Mapping[Collective, float]:
    """The least seconds of calls over tp, in any of the job's tp groups."""
    wanted = list(dict.fromkeys(calls))
    if not wanted:
        return {}
    plan = tp_groups(layout)
    of_stages = least_seconds([wanted] * plan.pp, plan, base.cluster.built, methods_of(base))
    return {call: min(least[call] for least in of_stages) for call in wanted}


def tp_groups(layout: Layout) -> Plan:
    """A plan with the tp groups of a layout: where tp is the fastest axis they do not depend on the others."""
    if tp_is_fastest(layout):
        return Plan(tp=layout.tp, dp=layout.gpus // layout.tp)
    return Plan(tp=layout.tp, pp=layout.pp, dp=layout.dp, order=layout.order)


def tp_is_fastest(layout: Layout) -> bool:
    """Are the ranks of a tp group neighbours?"""
    return layout.order.index("tp") < min(layout.order.index("dp"), layout.order.index("pp"))


def _job(base: Scenario, layout: Layout, shape: LayerShape) -> tuple[Job, Scenario]:
    """A job of one stage and one microbatch with these passes, and its scenario; its host takes no time to issue."""
    replicas = layout.gpus // layout.tp
    probe = layout._replace(pp=1, dp=replicas, schedule="1f1b", chunks=1, **shape._asdict()).on(base)
    training = probe.training.model_copy(update={"global_batch": replicas * shape.micro_batch})
    pipeline = probe.pipeline.model_copy(update={"layers_per_stage": "even"})
    software = base.software and base.software.model_copy(update={"kernel": 0.0, "collective": 0.0, "microbatch": 0.0})
    probe = probe.model_copy(update={"training": training, "pipeline": pipeline, "software": software})
    return job_of(probe, base.cluster.device), probe


def _segments(job: Job, shape: RankShape) -> dict[tuple[str, Kind], Segment]:
    """The parts of a pass, each by itself, by part and kind."""
    layers = range(job.model.layers)
    parts = {"embedding": Pass((), embedding=True, begins=False), "lm_head": Pass((), lm_head=True, begins=False)}
    for name, again in (("plain", False), ("again", True)):
        layer = next((layer for layer in layers if shape.recomputes(layer) == again), None)
        if layer is not None:
            parts[name] = Pass((layer,), begins=False)
    if shape.tp > 1:
        parts["boundary"] = Pass((), boundary=True, begins=False)
    passes = job.passes
    makers: dict[Kind, Callable[[Pass], Segment]] = {
        "F": passes.forward, "B": passes.backward, "I": passes.input_grad, "W": passes.weight_grad
    }  # fmt: skip
    found: dict[tuple[str, Kind], Segment] = {}
    for name, part in parts.items():
        for kind, make in makers.items():
            if name == "boundary" and kind == "W":
                continue
            if name == "embedding" and kind == "I" and not (shape.sequence_parallel and shape.tp > 1):
                continue  # nothing is before it
            found[name, kind] = make(part)
    return found


def longest(segment: Segment, least: Mapping[Collective, float], attention: float) -> float:
    """Seconds from its first op to its last, by its lanes and what ops wait for; without the host's lane.

    ``attention``: the part of whole sequences' that packed documents leave, the mean of all microbatches, which a
    search plays (``SequenceLengths.without``).
    """
    ends: list[float] = []
    lanes: dict[str, float] = {}
    for op in segment.ops:
        begin = max([lanes.get(op.lane, 0.0), *(ends[other] for other in op.after)])
        work = op.work
        if type(work) not in (Compute, Collective, Host):
            what = f"{type(work).__name__} ({op.name}); compare some, as in simcluster compare SCENARIO --vary tp=1,2"
            raise InputError(f"plan: layouts are searched without {what}")
        if isinstance(work, Collective):
            seconds = least[work]
        else:
            seconds = 0.0 if op.lane == "host" else work.seconds - (1.0 - attention) * work.attention
        ends.append(begin + seconds)
        lanes[op.lane] = ends[-1]
    return ends[-1]
