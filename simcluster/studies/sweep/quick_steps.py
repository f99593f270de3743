"""Fast path of sweeps: step times that are bit-identical to full runs, computed from costs that variants share.

Where ranks of a stage are equal (no faults, a regular cluster), one rank per stage is simulated, with one op for a
chunk's pass. Kernels, collectives and links are those of a full run, kept between variants: passes by model, split and
microbatch, the network by layout, the order of ops by schedule. The compiled engine simulates them (``step_tables``).
It reports neither breakdown nor memory. Scenarios outside ``studies.fast_path_scopes`` raise NeedsFullRunError.

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
from simcluster.base.gc_pause import pause_gc
from simcluster.base.lru_cache import LruCache
from simcluster.planning.footprint import JobFacts
from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN, HostWork, Op
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import DataParallelBuilder
from simcluster.planning.work_kinds import Collective, Compute, StageSend
from simcluster.results.step_metrics import step_time_metrics
from simcluster.scenario.job_conversion import interference_of, job_facts_of, job_of, pass_maker_of, stage_send_bytes_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_fields import ClusterSpec
from simcluster.scenario.schedule_plan import plan_of, schedule_of, stage_copies_of
from simcluster.schedules import Schedule
from simcluster.step.step_plan import collective_options
from simcluster.studies.fast_path_scopes import QUICK
from simcluster.studies.sweep import stage_network, step_tables
from simcluster.studies.sweep.stage_network import NeedsFullRunError, RepresentativeCalls, StageOp, TimesAlone
from simcluster.studies.sweep.step_tables import ActionWork, Costs, SendWork, StepTemplate, TimedOp, Work

MOST_SECONDS = 512.0
"""Steps below this are exact on the finest grid (``base.clock``), which shared costs are on."""


class _TimedStep(NamedTuple):
    """Step time (s) of a scenario and facts of its job, such as FLOPs per step; no breakdown or memory."""

    step_time: float
    facts: JobFacts


def quick_step_time(scenario: Scenario) -> float:
    """Return the step time (s), bit-identical to the result of ``simulate``.

    Raises NeedsFullRunError where this is not proved exact (``studies.fast_path_scopes``), or a full run has to decide.
    """
    try:
        return _SHARED_STEPS.step_time(scenario)
    except NeedsFullRunError:
        raise
    except InputError as error:  # about variants of the layout, of which this one may not be
        raise NeedsFullRunError(f"only a full run can compute this step: {error}") from error


def quick_step_numbers(scenario: Scenario, step_time: float) -> dict[str, float]:
    """Return the result's numbers that follow from the step time alone, such as throughput and MFU."""
    return step_time_metrics(_TimedStep(step_time, _SHARED_STEPS.job_facts(scenario)))


class QuickStepCalculator:
    """Calculator of step times without full simulation; caches intermediate results that variants share."""

    def __init__(self) -> None:
        self._clusters, self._orders, self._templates = LruCache(8), LruCache(64), LruCache(16)

    def _find_cluster_costs(self, cluster: ClusterSpec) -> _ClusterCosts:
        return self._clusters.get_or_make(id(cluster), lambda: _ClusterCosts(cluster, LruCache(1024)))

    def job_facts(self, scenario: Scenario) -> JobFacts:
        """Return the cached job facts, such as FLOPs and tokens, from which MFU and throughput are computed."""
        batch = scenario.training, scenario.data, scenario.seed  # its real tokens are drawn
        name = "facts", scenario.model, batch, scenario.gpus, scenario.software
        shared = self._find_cluster_costs(scenario.cluster).shared_cache
        return shared.get_or_make(name, lambda: job_facts_of(scenario, scenario.cluster.device))

    @pause_gc()
    def step_time(self, scenario: Scenario) -> float:
        """Return the step time (s) of a scenario; raise NeedsFullRunError if only a full run can compute it."""
        if why := QUICK.find_obstacle(scenario):
            raise NeedsFullRunError(why)
        overlap, stages, shared = scenario.overlap, scenario.parallel.pp, self._find_cluster_costs(scenario.cluster)
        passes = shared.pass_costs(scenario)
        name = scenario.pipeline, stages, scenario.microbatches, overlap.pipeline, passes.casts
        order = self._orders.get_or_make(
            name, lambda: _make_action_order(schedule_of(scenario), overlap=overlap.pipeline, casts=passes.casts)
        )
        if order.copies and (overlap.grad_reduce or overlap.param_gather):
            raise NeedsFullRunError(
                f"{order.schedule} has copies of stages, whose gradients are reduced during the backward"
            )
        layout, drawn = shared.stages_and_calls(scenario, order, passes)
        sends, quiet = drawn.sends(order.sends, stage_send_bytes_of(scenario, passes.passes), overlap.pipeline)
        alone = passes.alone(passes.collectives(order.kinds), drawn)
        of_parts, works = (name, layout.cut, passes.repeats, alone), order.items.distinct_works
        parts = self._orders.get_or_make(of_parts, lambda: layout.action_passes(works, alone, repeats=passes.repeats))
        costs = [*passes.action_costs(parts, alone, drawn, whole=quiet), *sends, *layout.ends(drawn)]
        shapes, kinds = step_tables.find_work_shapes(costs)
        template = self._templates.get_or_make((name, shapes), lambda: StepTemplate(order.items, shapes, stages))
        seconds = step_tables.simulate_template(template, costs, kinds, drawn.capacity, shared.shared_cache)
        if seconds >= MOST_SECONDS:
            raise NeedsFullRunError(f"a step that ends beyond {MOST_SECONDS:g} s is simulated on a coarser grid")
        return seconds


class _ClusterCosts(NamedTuple):
    """Cached networks and pass costs that all variants on one cluster share."""

    cluster: ClusterSpec
    shared_cache: LruCache

    def pass_costs(self, scenario: Scenario) -> _PassCosts:
        """Return the cached costs of passes for this scenario's model, sharding and microbatch size."""
        overlap, training = scenario.overlap, scenario.training
        name = (
            scenario.model, scenario.software, overlap.interference, overlap.tensor, overlap.tensor_pieces,
            shape_of(scenario), training.precision,
        )  # fmt: skip
        return self.shared_cache.get_or_make(name, lambda: _PassCosts(scenario))

    def stages_and_calls(
        self, scenario: Scenario, order: _ActionOrder, passes: _PassCosts
    ) -> tuple[_StageLayers, RepresentativeCalls]:
        """Return the layers of each stage of a layout, and the step's communication calls with their routes."""
        parallel = scenario.parallel
        grid = tuple([value for axis, value in parallel if axis not in ("zero", "sequence_parallel")])
        name = scenario.gpus, grid, scenario.collectives, scenario.overlap.interference, order.hops, order.copies
        find = self.shared_cache.get_or_make
        network = find(
            name,
            lambda: stage_network.RepresentativeNetwork(
                plan_of(scenario, schedule_of(scenario)), self.cluster.built, collective_options(scenario)
            ),
        )

        def stages_with_zero(zero: int) -> _StageLayers:
            split = parallel if zero == parallel.zero else parallel.model_copy(update={"zero": zero})
            name = (
                network, split, scenario.model, scenario.pipeline, scenario.overlap, scenario.software,
                scenario.training.precision, scenario.training.memory_recipe,
            )  # fmt: skip
            made = scenario.model_copy(update={"parallel": split}) if split is not parallel else scenario
            return find(name, lambda: _StageLayers(job_of(made, self.cluster.device, passes.passes), order.hops))

        stages, collectives = stages_with_zero(parallel.zero), passes.collectives(order.kinds)
        every = [stages]
        if not network.learnt:  # variants with another ZeRO are likely to follow
            every.append(stages_with_zero(0 if parallel.zero else 1))

        def calls_of_passes() -> Iterator[StageOp]:
            return ((stage, Op(work, "", "", "")) for stage in range(parallel.pp) for work in collectives)

        return stages, network.route_calls({collectives: calls_of_passes, **{one: one.network_calls for one in every}})


class _ActionOrder(NamedTuple):
    """Order of a schedule's actions and sends, with all pairs of stages that send to each other."""

    schedule: str
    hops: tuple[SendWork, ...]
    copies: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    sends: tuple[SendWork, ...]
    items: step_tables.ScheduleColumns


def _make_action_order(schedule: Schedule, *, overlap: bool, casts: bool) -> _ActionOrder:
    """Return the order of a schedule's actions and sends; NeedsFullRunError if a chunk is on two routes."""
    stages, routes = schedule.num_stages, schedule.routes
    if len({*chain.from_iterable(routes)}) < sum(map(len, routes)):
        raise NeedsFullRunError(f"{schedule.name} has chunks that are on two routes")
    around = [*pairwise(range(stages)), (stages - 1, 0)] if stages > 1 else []
    between = [(one, other) for route in routes for (one, _), (other, _) in pairwise(route) if one != other]
    pairs = dict.fromkeys((*around, *between))
    hops = tuple([hop for one, other in pairs for hop in (SendWork("F", one, other), SendWork("B", other, one))])
    items = step_tables.make_schedule_columns(schedule, casts=casts, overlap=overlap)
    kinds = {work.kind for work in items.distinct_works if isinstance(work, ActionWork)}
    sends = tuple([work for work in items.distinct_works if isinstance(work, SendWork)])
    return _ActionOrder(schedule.name, hops, stage_copies_of(schedule), tuple(sorted(kinds)), sends, items)


class _ActionPasses(NamedTuple):
    """Passes of all actions of a schedule, with the first action of each distinct pass (the only one to be timed)."""

    actions: list[tuple[ActionWork, PassLayers]]
    distinct_numbers: list[int]
    first_indices: list[int]


class _PassCosts:
    """Costs of forward and backward passes, for one sharding of a model and one microbatch size.

    ``repeats``: every layer after the second takes as long as the second.
    """

    def __init__(self, scenario: Scenario) -> None:
        device = scenario.cluster.device
        passes = self.passes = pass_maker_of(scenario, device)
        alike = interference_of(scenario, device) is None and scenario.software is None
        wide = shape_of(scenario).wide_layers
        self.casts, self.repeats = passes.casts, alike and scenario.training.recompute_every == 1 and not wide
        others = [layer for layer in range(scenario.model.layers) if wide and layer not in wide][:1]
        tp = scenario.parallel.tp
        self._whole_pass = PassLayers((0, *others), embedding=True, lm_head=True, gathers_input=tp > 1)
        self._known: dict[Hashable, Costs] = {}
        self._numbers: dict[TimesAlone, int] = {}
        self.collectives, self.alone = cache(self._collectives_of_passes), cache(self._stage_time_classes)

    def _collectives_of_passes(self, kinds: Iterable[str]) -> tuple[Collective, ...]:
        """Return the distinct collectives in these kinds of pass; NeedsFullRunError for unsupported ops."""
        ops = [op for kind in kinds for op in self.passes.segment(kind, self._whole_pass).ops]
        require_proved_ops(ops)
        return tuple(dict.fromkeys(op.work for op in ops if isinstance(op.work, Collective)))

    def _stage_time_classes(self, collectives: tuple[Collective, ...], drawn: RepresentativeCalls) -> tuple[int, ...]:
        """Return a class number for each stage; in stages of one class, collectives take equal times on idle links."""
        return tuple([self._numbers.setdefault(each, len(self._numbers)) for each in drawn.alone(collectives)])

    def action_costs(
        self, parts: _ActionPasses, alone: Sequence[int], drawn: RepresentativeCalls, *, whole: bool
    ) -> list[Costs]:
        """Return the ops and costs of all actions; ``alone`` is the class number of each stage's collective times.

        An action is one op if it may be ``whole`` and its duration depends on nothing outside it; else all of its ops.
        """
        first = [self._cost_as_one_op(*parts.actions[at], alone, drawn) if whole else () for at in parts.first_indices]
        numbered = zip(parts.distinct_numbers, parts.actions, strict=True)
        return [first[number] or self._op_costs(*action, drawn) for number, action in numbered]

    def _op_costs(self, work: ActionWork, part: PassLayers, calls: RepresentativeCalls) -> Costs:
        name = calls, work.stage, work.kind, part
        if name not in self._known:
            self._known[name] = calls.time_ops(work.stage, self.passes.segment(work.kind, part))
        return self._known[name]

    def _cost_as_one_op(
        self, work: ActionWork, part: PassLayers, alone: Sequence[int], drawn: RepresentativeCalls
    ) -> Costs:
        """Return the cost of a whole pass as a single op; () if its duration depends on other stages."""
        name = *_action_key(work, part, repeats=self.repeats), alone[work.stage]
        found = self._known.get(name)
        if found is None:
            layers = len(part.layers)
            if self.repeats and layers > (1 if part.embedding or part.lm_head or part.gathers_input else 2):
                plain = PassLayers(part.layers[:1], casts_weights=part.casts_weights)
                few = replace(part, layers=part.layers[:1]), plain, replace(plain, layers=part.layers[:2])
                timed = [self._cost_as_one_op(work, each, alone, drawn) for each in few]
                found = ()
                if all(timed):
                    first, one, two = [op.seconds for op in chain.from_iterable(timed)]
                    found = (TimedOp(first + (layers - 1) * (two - one)),)
            else:
                seconds = drawn.segment_seconds(work.stage, self.passes.segment(work.kind, part))
                found = () if seconds is None else (TimedOp(seconds),)
            self._known[name] = found
        return found


def _action_key(work: ActionWork, part: PassLayers, *, repeats: bool) -> tuple[Hashable, ...]:
    """Return a key of a pass; passes with equal keys take equal times if their collectives do."""
    layers = len(part.layers) if repeats else part.layers
    return work.kind, layers, part.embedding, part.lm_head, part.gathers_input, part.casts_weights


class _StageLayers:
    """Layers of each stage of a layout, and the ops that end a stage's step (reduction, optimizer, gather)."""

    def __init__(self, job: Job, hops: Sequence[SendWork]) -> None:
        self._job, self._hops, self._ops = job, hops, _list_end_ops(job)
        self.cut = job.slices, job.gather_boundary
        self.ends = cache(self._costs_of_end_ops)

    def action_passes(self, works: Sequence[Work], alone: Sequence[int], *, repeats: bool) -> _ActionPasses:
        """Return the pass (layers, embedding, LM head) of each action in ``works``."""
        job, numbers, number = self._job, dict[Hashable, int](), list[int]()
        actions = []
        for work in works:
            if isinstance(work, ActionWork):
                whole = job.pass_over_chunk(work.stage, work.chunk)
                part = replace(whole, gathers_input=work.arrives and job.gather_boundary, casts_weights=work.casts)
                actions.append((work, part))
                name = *_action_key(work, part, repeats=repeats), alone[work.stage]
                number.append(numbers.setdefault(name, len(numbers)))
        return _ActionPasses(actions, number, [*map(number.index, range(len(numbers)))])

    def network_calls(self) -> Iterator[StageOp]:
        """Yield the communication calls of a step outside forward and backward passes, such as sends."""
        for hop in self._hops:
            lane = hop.lane_name(overlap=self._job.overlap_sends)
            yield hop.stage, Op(StageSend(hop.target, self._job.send_bytes), "", "", "", lane=lane)
        yield from ((stage, op) for stage, ops in enumerate(self._ops) for _, op in ops if op.work.traffic_kind)

    def _costs_of_end_ops(self, calls: RepresentativeCalls) -> list[Costs]:
        return [tuple([calls.time_end_op(stage, *each) for each in ops]) for stage, ops in enumerate(self._ops)]


def require_proved_ops(ops: Iterable[Op]) -> None:
    """Raise NeedsFullRunError if quick steps do not support an op's kind of work."""
    for op in ops:
        if type(op.work) not in (Compute, Collective, HostWork):
            raise NeedsFullRunError(f"quick steps are not proved for {type(op.work).__name__}")


def _list_end_ops(job: Job) -> list[list[tuple[Hashable, Op]]]:
    """Return each stage's ops after its last pass, with keys; stages run ops with equal keys together."""
    known: dict[Hashable, list[tuple[Hashable, Op]]] = {}  # stages that hold as much have equal ends
    found = []
    for stage in range(job.plan.pp):
        parts = [job.pass_over_chunk(stage, chunk) for chunk in range(job.schedule.num_chunks)]
        held = tuple([(len(each.layers), each.embedding, each.lm_head) for each in parts])
        if held not in known:
            builder = ProgramBuilder(stage, pipelined=job.plan.pp > 1)
            DataParallelBuilder(job, builder).finish_step(0)
            lanes = builder.build_program().lanes
            if list(lanes) != [MAIN]:
                raise NeedsFullRunError("an op overlaps with the ops at the end of a step")
            known[held] = [(item.key, op) for item in lanes[MAIN] for op in item.segment.ops]
            require_proved_ops(op for _, op in known[held])
        found.append(known[held])
    return found


_SHARED_STEPS = QuickStepCalculator()
