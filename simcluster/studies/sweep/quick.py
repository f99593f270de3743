"""Fast path of sweeps: step times of variants, equal to full runs to the bit, from costs that variants share.

Where ranks of a stage are equal (no faults, a regular cluster), one rank per stage is simulated, with one op for a
chunk's pass. Kernels, collectives and links are those of a full run, kept between variants: passes by model, split and
microbatch, the network by layout, the order of ops by schedule. The compiled engine simulates them (``step_tables``).
It reports neither breakdown nor memory. Scenarios outside ``studies.scopes`` are rejected (NotQuickError).

Without interference every layer after the first two of a pass takes as long as the second one, so only passes of up to
two layers are timed op by op.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import pause_gc
from simcluster.base.kept import LruCache
from simcluster.planning.footprint import Facts
from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, Op
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ReplicaBuilder
from simcluster.planning.segments import Pass
from simcluster.planning.works import Collective, Compute, HostWork, Transfer
from simcluster.results.numbers import step_time_metrics
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.job import facts_of, interference_of, job_of, passes_of, send_bytes_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import copies_of, plan_of, schedule_of
from simcluster.schedules import Schedule
from simcluster.step.planned import collective_options
from simcluster.studies.scopes import QUICK
from simcluster.studies.sweep.stage_network import (
    NotQuickError,
    RepresentativeCalls,
    RepresentativeNetwork,
    StageOp,
    TimesAlone,
)
from simcluster.studies.sweep.step_tables import (
    ActionWork,
    Costs,
    Items,
    SendWork,
    StepTemplate,
    TimedOp,
    Work,
    find_shapes,
    schedule_items,
    step_seconds,
)

MOST_SECONDS = 512.0
"""Steps below this are exact on the finest grid (``base.clock``), which shared costs are on."""


class _TimedStep(NamedTuple):
    """A step of which only the time (s) and the job's facts are known."""

    step_time: float
    facts: Facts


def quick_step(scenario: Scenario) -> float:
    """Return the step time (s) that ``simulate`` gives, to the bit.

    Raises NotQuickError where this is not proved to be exact (``studies.scopes``), or only a full run can decide.
    """
    try:
        return _SHARED_STEPS.step(scenario)
    except NotQuickError:
        raise
    except InputError as error:  # about variants of the layout, of which this one may not be
        raise NotQuickError(f"only a full run can decide: {error}") from error


def quick_numbers(scenario: Scenario, step_time: float) -> dict[str, float]:
    """Return the numbers of the result JSON that follow from the step time alone."""
    return step_time_metrics(_TimedStep(step_time, _SHARED_STEPS.facts_of(scenario)))


class QuickSteps:
    """Calculator of quick step times, with caches of all that variants share."""

    def __init__(self) -> None:
        self._clusters, self._orders, self._templates = LruCache(8), LruCache(64), LruCache(16)

    def _cache_for(self, cluster: ClusterSpec) -> _OnCluster:
        """Return the cache for variants on this cluster; it keeps the cluster, whose id is the key, alive."""
        return self._clusters.fetch(id(cluster), lambda: _OnCluster(cluster, LruCache(1024)))

    def facts_of(self, scenario: Scenario) -> Facts:
        """Return the cached job facts (FLOPs, tokens) from which MFU and throughput of a scenario are computed."""
        batch = scenario.training, scenario.data, scenario.seed  # its real tokens are drawn
        name = "facts", scenario.model, batch, scenario.gpus, scenario.software
        return self._cache_for(scenario.cluster).kept.fetch(name, lambda: facts_of(scenario, scenario.cluster.device))

    @pause_gc()
    def step(self, scenario: Scenario) -> float:
        """Return the step time (s) of a scenario; raise NotQuickError if it needs a full run."""
        if why := QUICK.obstacle(scenario):
            raise NotQuickError(why)
        overlap, stages, shared = scenario.overlap, scenario.parallel.pp, self._cache_for(scenario.cluster)
        passes = shared.passes(scenario)
        name = scenario.pipeline, stages, scenario.microbatches, overlap.pipeline, passes.casts
        order = self._orders.fetch(
            name, lambda: _make_order(schedule_of(scenario), overlap=overlap.pipeline, casts=passes.casts)
        )
        if order.copies and (overlap.grad_reduce or overlap.param_gather):
            raise NotQuickError(
                f"{order.schedule} has copies of stages, whose gradients are reduced during the backward"
            )
        layout, drawn = shared.stages(scenario, order, passes)
        sends, quiet = drawn.sends(order.sends, send_bytes_of(scenario, passes.passes), overlap.pipeline)
        alone = passes.alone(passes.collectives(order.kinds), drawn)
        of_parts = name, layout.cut, passes.repeats, alone
        parts = self._orders.fetch(of_parts, lambda: layout.parts(order.items.works, alone, repeats=passes.repeats))
        costs = [*passes.of(parts, alone, drawn, whole=quiet), *sends, *layout.ends(drawn)]
        shapes, kinds = find_shapes(costs)
        template = self._templates.fetch((name, shapes), lambda: StepTemplate(order.items, shapes, stages))
        seconds = step_seconds(template, costs, kinds, drawn.capacity, shared.kept)
        if seconds >= MOST_SECONDS:
            raise NotQuickError(f"a step that ends beyond {MOST_SECONDS:g} s is simulated on a coarser grid")
        return seconds


class _OnCluster(NamedTuple):
    """Networks and costs that variants on one cluster share."""

    cluster: ClusterSpec
    kept: LruCache

    def passes(self, scenario: Scenario) -> _PassCosts:
        """Return the cached costs of passes for the scenario's model split and microbatch size."""
        overlap, training = scenario.overlap, scenario.training
        name = (
            scenario.model, scenario.software, overlap.interference, overlap.tensor, overlap.tensor_pieces,
            shape_of(scenario), training.precision,
        )  # fmt: skip
        return self.kept.fetch(name, lambda: _PassCosts(scenario))

    def stages(self, scenario: Scenario, order: _Order, passes: _PassCosts) -> tuple[_Stages, RepresentativeCalls]:
        """Return the stages of a layout, and the network calls of its step routed over the links."""
        parallel = scenario.parallel
        grid = tuple([value for axis, value in parallel if axis not in ("zero", "sequence_parallel")])
        name = scenario.gpus, grid, scenario.collectives, scenario.overlap.interference, order.hops, order.copies
        network = self.kept.fetch(
            name,
            lambda: RepresentativeNetwork(
                plan_of(scenario, schedule_of(scenario)), self.cluster.built, collective_options(scenario)
            ),
        )

        def with_zero(zero: int) -> _Stages:
            split = parallel if zero == parallel.zero else parallel.model_copy(update={"zero": zero})
            name = (
                network, split, scenario.model, scenario.pipeline, scenario.overlap, scenario.software,
                scenario.training.precision, scenario.training.memory_recipe,
            )  # fmt: skip
            made = scenario.model_copy(update={"parallel": split}) if split is not parallel else scenario
            return self.kept.fetch(name, lambda: _Stages(job_of(made, self.cluster.device, passes.passes), order.hops))

        stages, collectives = with_zero(parallel.zero), passes.collectives(order.kinds)
        every = [stages]
        if not network.learnt:  # variants with another ZeRO are likely to follow
            every.append(with_zero(0 if parallel.zero else 1))

        def of_passes() -> Iterator[StageOp]:
            return ((stage, Op(work, "", "", "")) for stage in range(parallel.pp) for work in collectives)

        return stages, network.learn({collectives: of_passes, **{each: each.calls for each in every}})


class _Order(NamedTuple):
    """Order of a schedule's actions and sends, and its ``hops``: all sends between stages, for any number of chunks."""

    schedule: str
    hops: tuple[SendWork, ...]
    copies: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    sends: tuple[SendWork, ...]
    items: Items


def _make_order(schedule: Schedule, *, overlap: bool, casts: bool) -> _Order:
    """Return the order of a schedule's actions and sends; NotQuickError if chunks are on two routes."""
    stages, routes = schedule.num_stages, schedule.routes
    if len({*chain.from_iterable(routes)}) < sum(map(len, routes)):
        raise NotQuickError(f"{schedule.name} has chunks that are on two routes")
    around = [*pairwise(range(stages)), (stages - 1, 0)] if stages > 1 else []
    between = [(one, other) for route in routes for (one, _), (other, _) in pairwise(route) if one != other]
    pairs = dict.fromkeys((*around, *between))
    hops = tuple([hop for one, other in pairs for hop in (SendWork("F", one, other), SendWork("B", other, one))])
    items = schedule_items(schedule, casts=casts, overlap=overlap)
    kinds = {work.kind for work in items.works if isinstance(work, ActionWork)}
    sends = tuple([work for work in items.works if isinstance(work, SendWork)])
    return _Order(schedule.name, hops, copies_of(schedule), tuple(sorted(kinds)), sends, items)


class _Parts(NamedTuple):
    """Actions of a schedule with their layers, of which only the ``first`` of equal ones (same ``number``) is timed."""

    actions: list[tuple[ActionWork, Pass]]
    number: list[int]
    first: list[int]


class _PassCosts:
    """Costs of forward and backward passes for one split of a model and one microbatch size.

    ``repeats``: every layer after the second takes as long as the second.
    """

    def __init__(self, scenario: Scenario) -> None:
        device = scenario.cluster.device
        passes = self.passes = passes_of(scenario, device)
        alike = interference_of(scenario, device) is None and scenario.software is None
        self.casts, self.repeats = passes.casts, alike and scenario.training.recompute_every == 1
        self._whole_pass = Pass((0,), embedding=True, lm_head=True, boundary=scenario.parallel.tp > 1)
        self._known: dict[Hashable, Costs] = {}
        self._numbers: dict[TimesAlone, int] = {}
        self.collectives, self.alone = cache(self._collectives_of_passes), cache(self._ids_of_times_alone)

    def _collectives_of_passes(self, kinds: Iterable[str]) -> tuple[Collective, ...]:
        """Return the distinct collectives of passes of these kinds; NotQuickError for unproved kinds of work."""
        ops = [op for kind in kinds for op in self.passes.segment(kind, self._whole_pass).ops]
        require_proved(ops)
        return tuple(dict.fromkeys(op.work for op in ops if isinstance(op.work, Collective)))

    def _ids_of_times_alone(self, collectives: tuple[Collective, ...], drawn: RepresentativeCalls) -> tuple[int, ...]:
        """Return an integer per stage, equal for stages whose collectives take equally long alone."""
        return tuple([self._numbers.setdefault(each, len(self._numbers)) for each in drawn.alone(collectives)])

    def of(self, parts: _Parts, alone: Sequence[int], drawn: RepresentativeCalls, *, whole: bool) -> list[Costs]:
        """Return the costs of actions; ``alone`` has the integer per stage of its collectives' times alone.

        An action is one op if it may be ``whole`` and its duration depends on nothing outside it; else all of its ops.
        """
        first = [self._pass_as_one_op(*parts.actions[at], alone, drawn) if whole else () for at in parts.first]
        numbered = zip(parts.number, parts.actions, strict=True)
        return [first[number] or self._op_costs(*action, drawn) for number, action in numbered]

    def _op_costs(self, work: ActionWork, part: Pass, drawn: RepresentativeCalls) -> Costs:
        name = drawn, work.stage, work.kind, part
        if name not in self._known:
            self._known[name] = drawn.ops(work.stage, self.passes.segment(work.kind, part))
        return self._known[name]

    def _pass_as_one_op(self, work: ActionWork, part: Pass, alone: Sequence[int], drawn: RepresentativeCalls) -> Costs:
        """Return the cost of a pass as a single op; no ops if its duration depends on other stages."""
        name = *_action_key(work, part, repeats=self.repeats), alone[work.stage]
        found = self._known.get(name)
        if found is None:
            layers = len(part.layers)
            if self.repeats and layers > (1 if part.embedding or part.lm_head or part.boundary else 2):
                plain = Pass(part.layers[:1], casts=part.casts)
                few = replace(part, layers=part.layers[:1]), plain, replace(plain, layers=part.layers[:2])
                timed = [self._pass_as_one_op(work, each, alone, drawn) for each in few]
                found = ()
                if all(timed):
                    first, one, two = [op.seconds for op in chain.from_iterable(timed)]
                    found = (TimedOp(first + (layers - 1) * (two - one)),)
            else:
                seconds = drawn.seconds(work.stage, self.passes.segment(work.kind, part))
                found = () if seconds is None else (TimedOp(seconds),)
            self._known[name] = found
        return found


def _action_key(work: ActionWork, part: Pass, *, repeats: bool) -> tuple[Hashable, ...]:
    """Return the key of an action's duration; the times of its stage's collectives are not part of it."""
    layers = len(part.layers) if repeats else part.layers
    return work.kind, layers, part.embedding, part.lm_head, part.boundary, part.casts


class _Stages:
    """Layers of a layout's stages, and their ops after the last action of a step, for any number of microbatches."""

    def __init__(self, job: Job, hops: Sequence[SendWork]) -> None:
        self._job, self._hops, self._ops = job, hops, _end_ops(job)
        self.cut = job.slices, job.gather_boundary
        self.ends = cache(self._costs_of_end_ops)

    def parts(self, works: Sequence[Work], alone: Sequence[int], *, repeats: bool) -> _Parts:
        """Return the actions of a schedule with the layers of their stages and chunks."""
        job, numbers, number = self._job, dict[Hashable, int](), list[int]()
        actions = []
        for work in works:
            if isinstance(work, ActionWork):
                whole = job.whole(work.stage, work.chunk)
                part = replace(whole, boundary=work.arrives and job.gather_boundary, casts=work.casts)
                actions.append((work, part))
                name = *_action_key(work, part, repeats=repeats), alone[work.stage]
                number.append(numbers.setdefault(name, len(numbers)))
        return _Parts(actions, number, [*map(number.index, range(len(numbers)))])

    def calls(self) -> Iterator[StageOp]:
        """Yield the network calls of a step outside forward and backward passes."""
        for hop in self._hops:
            lane = hop.lane(overlap=self._job.overlap_sends)
            yield hop.stage, Op(Transfer(hop.target, self._job.send_bytes), "", "", "", lane=lane)
        yield from ((stage, op) for stage, ops in enumerate(self._ops) for _, op in ops if op.work.traffic_kind)

    def _costs_of_end_ops(self, drawn: RepresentativeCalls) -> list[Costs]:
        return [tuple([drawn.end(stage, *each) for each in ops]) for stage, ops in enumerate(self._ops)]


def require_proved(ops: Iterable[Op]) -> None:
    """Raise NotQuickError for ops of a kind of work that quick steps are not proved for."""
    for op in ops:
        if type(op.work) not in (Compute, Collective, HostWork):
            raise NotQuickError(f"quick steps are not proved for {type(op.work).__name__}")


def _end_ops(job: Job) -> list[list[tuple[Hashable, Op]]]:
    """Return every stage's ops after its last action, with keys that are equal for ops of stages that meet."""
    known: dict[Hashable, list[tuple[Hashable, Op]]] = {}  # stages that hold as much have equal ends
    found = []
    for stage in range(job.plan.pp):
        parts = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        held = tuple([(len(each.layers), each.embedding, each.lm_head) for each in parts])
        if held not in known:
            builder = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
            ReplicaBuilder(job, builder).finish(0)
            lanes = builder.program().lanes
            if list(lanes) != [MAIN]:
                raise NotQuickError("something overlaps with the end of a step")
            known[held] = [(item.key, op) for item in lanes[MAIN] for op in item.segment.ops]
            require_proved(op for _, op in known[held])
        found.append(known[held])
    return found


_SHARED_STEPS = QuickSteps()
