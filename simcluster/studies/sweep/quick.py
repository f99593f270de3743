"""Step times of a sweep's variants, to the bit those of a full run, from costs that variants share: an accelerator.

Where ranks of a stage are equal (no faults, a regular cluster), one rank per stage is simulated, with one op for a
chunk's pass.  Kernels, collectives and links are those of a full run, kept between variants: passes by model, split and
microbatch, the network by layout, the order of ops by schedule.  The compiled engine simulates them (``step_tables``).
It reports neither breakdown nor memory.  Scenarios outside ``studies.scopes`` are rejected (NotQuickError).

Without interference every layer after the first two of a pass takes as long as the second one, so only passes of up to
two layers are timed op by op.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.kept import Kept
from simcluster.planning.footprint import Facts
from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import Replicas
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute, Host, Transfer
from simcluster.results.numbers import timed_numbers
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.job import facts_of, interference_of, job_of, passes_of, send_bytes_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import copies_of, plan_of, schedule_of
from simcluster.schedules import Schedule
from simcluster.step.planned import choices_of
from simcluster.studies.scopes import QUICK
from simcluster.studies.sweep.stage_network import NotQuickError, RepresentativeCalls, RepresentativeNetwork, StageOp
from simcluster.studies.sweep.step_tables import (
    ActionWork,
    Costs,
    End,
    Items,
    Sent,
    StepTemplate,
    TimedOp,
    Work,
    schedule_items,
    shapes_of,
    step_seconds,
)

MOST_SECONDS = 512.0
"""Steps below this are exact on the finest grid (``base.clock``), which shared costs are on."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step of which only the time is known."""

    step_time: float
    facts: Facts


def quick_step(scenario: Scenario) -> float:
    """Return the step time (s) that ``simulate`` gives, to the bit.

    Raises NotQuickError where this is not proved to be exact (``studies.scopes``), or only a full run can tell.
    """
    try:
        return _STEPS.step(scenario)
    except NotQuickError:
        raise
    except InputError as error:  # of what all variants of the layout may do, some of which this one does not
        raise NotQuickError(f"only a full run can tell whether it does what is refused: {error}") from error


def quick_numbers(scenario: Scenario, step_time: float) -> dict[str, float]:
    """Return the numbers of the result JSON that follow from the step time alone."""
    return timed_numbers(_Timed(step_time, _STEPS.facts_of(scenario)))


class QuickSteps:
    """Step times, with all that variants share."""

    def __init__(self) -> None:
        self._clusters, self._orders, self._templates = Kept(8), Kept(256), Kept(128)

    def _shared(self, cluster: ClusterSpec) -> _SharedCosts:
        """Return what variants on this cluster share."""
        shared: _SharedCosts = self._clusters.once(id(cluster), lambda: _SharedCosts(cluster, Kept(64), Kept(1024)))
        return shared

    def facts_of(self, scenario: Scenario) -> Facts:
        """Return what MFU and throughput are computed from, which few variants change."""
        batch = scenario.training, scenario.data, scenario.seed  # what is real of it is drawn
        name = "facts", scenario.model, batch, scenario.gpus, scenario.software
        return self._shared(scenario.cluster).costs.once(name, lambda: facts_of(scenario, scenario.cluster.device))

    @collector_off()
    def step(self, scenario: Scenario) -> float:
        """Return the step time (s); see ``quick_step``."""
        why = QUICK.obstacle(scenario)
        if why:
            raise NotQuickError(why)
        schedule, overlap, stages = schedule_of(scenario), scenario.overlap, scenario.parallel.pp
        name = scenario.pipeline, stages, scenario.microbatches
        hops: _Hops = self._orders.once(name, lambda: _hops_of(schedule))
        if copies_of(schedule) and (overlap.grad_reduce or overlap.param_gather):
            raise NotQuickError(
                f"{schedule.name} has copies of stages, whose gradients are reduced during the backward"
            )
        shared = self._shared(scenario.cluster)
        costs = _StepCosts(scenario, schedule, hops, shared)
        order = *name, overlap.pipeline, costs.casts
        items: Items = self._orders.once(
            order, lambda: schedule_items(schedule, casts=costs.casts, overlap=overlap.pipeline)
        )
        found = costs.of(items.works)
        shapes = shapes_of(found)
        template: StepTemplate = self._templates.once((order, shapes), lambda: StepTemplate(items, shapes, stages))
        seconds = step_seconds(template, found, costs.drawn.capacity, shared.costs)
        if seconds >= MOST_SECONDS:
            raise NotQuickError(f"a step that ends beyond {MOST_SECONDS:g} s is simulated on a coarser grid")
        return seconds


_Hops = tuple[Sent, ...]


class _SharedCosts(NamedTuple):
    """Networks and costs that variants on one cluster share; the cluster is kept since its identity is their name."""

    cluster: ClusterSpec
    networks: Kept
    costs: Kept


def _hops_of(schedule: Schedule) -> _Hops:
    """Return the sends between stages, also those of variants whose chunks continue on the first stage.

    NotQuickError for a schedule with chunks on two routes.
    """
    stages, routes = schedule.num_stages, schedule.routes
    if len({*chain.from_iterable(routes)}) < sum(map(len, routes)):
        raise NotQuickError(f"{schedule.name} has chunks that are on two routes")
    around = [*pairwise(range(stages)), (stages - 1, 0)] if stages > 1 else []
    between = [(one, other) for route in routes for (one, _), (other, _) in pairwise(route) if one != other]
    pairs = dict.fromkeys((*around, *between))
    return tuple([hop for one, other in pairs for hop in (Sent("F", one, other), Sent("B", other, one))])


class _StepCosts:
    """The costs of a scenario's step; NotQuickError where it needs a full run.

    ``hops`` are those of the ``schedule``, ``shared`` is what variants on the same cluster share.
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, hops: _Hops, shared: _SharedCosts) -> None:
        overlap, training, parallel = scenario.overlap, scenario.training, scenario.parallel
        of_passes = (
            scenario.model, scenario.software, overlap.interference, overlap.tensor, overlap.tensor_pieces,
            shape_of(scenario), training.precision,
        )  # fmt: skip
        self._passes: _PassCosts = shared.costs.once(of_passes, lambda: _PassCosts(scenario))
        passes, collectives = self._passes.passes, self._passes.collectives
        self.casts = passes.casts
        of_network = (
            scenario.gpus, parallel.model_copy(update={"zero": 0, "sequence_parallel": False}),
            scenario.collectives, overlap.interference, hops, copies_of(schedule),
        )  # fmt: skip
        plan = plan_of(scenario, schedule)
        network: RepresentativeNetwork = shared.networks.once(
            of_network, lambda: RepresentativeNetwork(plan, scenario.cluster.built, choices_of(scenario))
        )
        of_stages = (
            network, parallel, scenario.model, scenario.pipeline, overlap, scenario.software, training.precision,
            training.memory_recipe,
        )  # fmt: skip
        self._stages: _Stages = shared.costs.once(
            of_stages, lambda: _Stages(job_of(scenario, scenario.cluster.device, passes))
        )
        self._send_bytes, self._overlaps = send_bytes_of(scenario, passes), overlap.pipeline
        self.drawn = network.learn({
            ("passes", *collectives): lambda: (
                (stage, Op(work, "", "", "")) for stage in range(schedule.num_stages) for work in collectives
            ),
            of_stages: lambda: self._stages.calls(hops, others=network.blank),
        })  # fmt: skip

    def of(self, works: Sequence[Work]) -> list[Costs]:
        """Return the costs of works.

        Where sends interfere with computation, an action costs all of its ops.
        """
        drawn, size, overlap, passes = self.drawn, self._send_bytes, self._overlaps, self._passes
        sends = {work: drawn.send(work, size, overlap=overlap) for work in works if isinstance(work, Sent)}
        kinds = [op.communication for op in chain.from_iterable(sends.values())]
        whole = not any(kind and (kind.pressure or kind.drag) for kind in kinds)
        alone = [passes.numbers.setdefault(each, len(passes.numbers)) for each in drawn.alone(passes.collectives)]
        found = []
        for work in works:
            if isinstance(work, Sent):
                found.append(sends[work])
            elif isinstance(work, End):
                found.append(self._stages.end(work.stage, drawn))
            else:
                found.append(passes.of(work, self._stages.part(work), alone[work.stage], drawn, whole=whole))
        return found


class _PassCosts:
    """The costs of passes for one split of a model and one size of a microbatch."""

    def __init__(self, scenario: Scenario) -> None:
        device = scenario.cluster.device
        passes = self.passes = passes_of(scenario, device)
        makers = passes.forward, passes.backward, passes.input_grad, passes.weight_grad
        self._make = dict(zip("FBIW", makers, strict=True))
        alike = interference_of(scenario, device) is None and scenario.software is None
        self._repeats = alike and scenario.training.recompute_every == 1
        everything = Pass((0,), embedding=True, lm_head=True, boundary=scenario.parallel.tp > 1)
        ops = [op for make in makers for op in make(everything).ops]
        proved(ops)
        self.collectives = tuple(dict.fromkeys(op.work for op in ops if isinstance(op.work, Collective)))
        self.numbers: dict[Hashable, int] = {}  # of what collectives take alone: faster to look up
        self._known: dict[Hashable, Costs] = {}

    def of(self, work: ActionWork, part: Pass, alone: int, drawn: RepresentativeCalls, *, whole: bool) -> Costs:
        """Return the costs of an action on a stage, given the number of what its collectives take ``alone``.

        It is one op if it may be ``whole`` and its duration depends on nothing outside it; else all of its ops.
        """
        found = self._whole(work.kind, part, alone, drawn, work.stage) if whole else ()
        if found:
            return found
        name = drawn, work.stage, work.kind, part
        if name not in self._known:
            self._known[name] = drawn.ops(work.stage, self._make[work.kind](part))
        return self._known[name]

    def _whole(self, kind: str, part: Pass, alone: int, drawn: RepresentativeCalls, stage: int) -> Costs:
        """Return a pass as one op; no ops if its duration depends on others."""
        layers = len(part.layers)
        counted = layers if self._repeats else part.layers
        name = kind, counted, part.embedding, part.lm_head, part.boundary, part.casts, alone
        found = self._known.get(name)
        if found is None:
            if self._repeats and layers > (1 if part.embedding or part.lm_head or part.boundary else 2):
                plain = Pass(part.layers[:1], casts=part.casts)
                parts = replace(part, layers=part.layers[:1]), plain, replace(plain, layers=part.layers[:2])
                few = [self._whole(kind, each, alone, drawn, stage) for each in parts]
                found = ()
                if all(few):
                    first, one, two = [op.seconds for op in chain.from_iterable(few)]
                    found = (TimedOp(first + (layers - 1) * (two - one)),)
            else:
                seconds = drawn.seconds(stage, self._make[kind](part))
                found = () if seconds is None else (TimedOp(seconds),)
            self._known[name] = found
        return found


class _Stages:
    """The layers of a layout's stages, and their ops after the last action, for any number of microbatches."""

    def __init__(self, job: Job) -> None:
        self._job, self._ops = job, _ends(job)
        self.part, self.end = cache(self._part), cache(self._end)

    def _part(self, work: ActionWork) -> Pass:
        """Return the layers of an action."""
        gathers = work.arrives and self._job.gather_boundary
        return replace(self._job.whole(work.stage, work.chunk), boundary=gathers, casts=work.casts)

    def calls(self, hops: _Hops, *, others: bool) -> Iterator[StageOp]:
        """Yield a step's calls of the network outside passes, and those of ``others`` with another ZeRO."""
        job, ends = self._job, [*enumerate(self._ops)]
        for hop in hops:
            yield (
                hop.stage,
                Op(Transfer(hop.target, job.send_bytes), "", "", "", lane=hop.lane(overlap=job.overlap_sends)),
            )
        if others:
            own = job.data_parallel
            ends += enumerate(_ends(replace(job, data_parallel=replace(own, zero=0 if own.zero else 1))))
        yield from ((stage, op) for stage, ops in ends for _, op in ops if op.work.moves)

    def _end(self, stage: int, drawn: RepresentativeCalls) -> Costs:
        """Return the ops of a stage after its last action, with their costs on these links."""
        found = []
        for key, op in self._ops[stage]:
            (timed,) = drawn.ops(stage, Segment((op,)))
            meets = timed.communication is not None
            found.append(timed._replace(meeting=(drawn.communication(stage, op)[0], key)) if meets else timed)
        return tuple(found)


def proved(ops: Iterable[Op]) -> None:
    """Raise NotQuickError for work of a kind that quick steps are not proved for in passes and at the end."""
    for op in ops:
        if type(op.work) not in (Compute, Collective, Host):
            raise NotQuickError(f"quick steps are not proved for {type(op.work).__name__}")


def _ends(job: Job) -> list[list[tuple[Hashable, Op]]]:
    """Return the ops after every stage's last action, with the names under which they meet."""
    known: dict[Hashable, list[tuple[Hashable, Op]]] = {}  # stages that hold as much have equal ends
    found = []
    for stage in range(job.plan.pp):
        parts = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        held = tuple([(len(each.layers), each.embedding, each.lm_head) for each in parts])
        if held not in known:
            builder = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
            Replicas(job, builder).finish(0)
            lanes = builder.program().lanes
            if list(lanes) != [MAIN]:
                raise NotQuickError("something overlaps with the end of a step")
            known[held] = [(item.key, op) for item in lanes[MAIN] for op in item.segment.ops]
            proved(op for _, op in known[held])
        found.append(known[held])
    return found


_STEPS = QuickSteps()
