"""Costs of the parts of a step on the representative of each stage: passes, sends, and the end of the step.

Variants share them: passes for one split and microbatch, the ends of stages for a layout, sends for a layout and the
size of a microbatch.  Without interference every layer after the first two of a pass takes as long as the second one,
so only passes of up to two layers are timed op by op.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import NamedTuple

from simcluster.base.kept import Kept
from simcluster.planning.ops import Segment
from simcluster.planning.segments import Pass, Passes
from simcluster.planning.works import Collective
from simcluster.scenario.job import interference_of, job_of, passes_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import copies_of, plan_of, schedule_of
from simcluster.schedules import Schedule
from simcluster.step.planned import choices_of
from simcluster.studies.sweep.exchanges import Exchanges, Stages, hops_of, passes_calls, proved
from simcluster.studies.sweep.order import ActionWork, Sent
from simcluster.studies.sweep.stage_network import NotQuickError, RepresentativeCalls, RepresentativeNetwork
from simcluster.studies.sweep.step_tables import Costs, TimedOp


@dataclass(frozen=True)
class SharedCosts:
    """Costs that variants share."""

    networks: Kept = field(default_factory=lambda: Kept(64))
    passes: Kept = field(default_factory=lambda: Kept(256))
    stages: Kept = field(default_factory=lambda: Kept(256))
    exchanges: Kept = field(default_factory=lambda: Kept(512))
    links: Kept = field(default_factory=lambda: Kept(256))
    orders: Kept = field(default_factory=lambda: Kept(128))

    def clear(self) -> None:
        """Forget all of it."""
        for kept in (self.networks, self.passes, self.stages, self.exchanges, self.links):
            kept.clear()


class Order(NamedTuple):
    """A schedule, the sends between its stages, and the stages that hold copies of each other.

    ``sends`` is the set of ``hops``; its hash is computed once.
    """

    schedule: Schedule
    hops: tuple[Sent, ...]
    sends: frozenset[Sent]
    copies: tuple[tuple[int, ...], ...]


def order_of(scenario: Scenario) -> Order:
    """Return the order of a scenario's actions; NotQuickError for one with chunks on two routes."""
    schedule = schedule_of(scenario)
    if len({*chain.from_iterable(schedule.routes)}) < sum(map(len, schedule.routes)):
        raise NotQuickError(f"{schedule.name} has chunks that are on two routes")
    hops = hops_of(schedule)
    return Order(schedule, hops, frozenset(hops), copies_of(schedule))


class StepCosts:
    """The costs of a scenario's step; NotQuickError where it needs a full run.

    ``main_key`` is the cache key of the step up to the last actions.
    """

    def __init__(self, scenario: Scenario, order: Order, shared: SharedCosts) -> None:
        cluster, overlap, training, parallel = scenario.cluster, scenario.overlap, scenario.training, scenario.parallel
        shape = shape_of(scenario)
        of_passes = (
            id(cluster), scenario.model, scenario.software, overlap.interference, overlap.tensor,
            overlap.tensor_pieces, shape, training.precision,
        )  # fmt: skip
        self._passes: _PassCosts = shared.passes.once(of_passes, lambda: _PassCosts(scenario))
        self.casts = self._passes.passes.casts
        job = cache(lambda: job_of(scenario, cluster.device, self._passes.passes))
        of_network = (
            id(cluster), scenario.gpus, parallel.model_copy(update={"zero": 0, "sequence_parallel": False}),
            scenario.collectives, overlap.interference, order.sends, order.copies,
        )  # fmt: skip
        network: RepresentativeNetwork = shared.networks.once(of_network, lambda: _network(scenario, order.schedule))
        of_others = (
            scenario.model, scenario.pipeline, overlap, scenario.software, training.precision, training.memory_recipe
        )  # fmt: skip
        of_stages = network, parallel, of_others
        self._stages: Stages = shared.stages.once(of_stages, lambda: Stages(job()))
        collectives = self._passes.collectives
        self.drawn = network.learn(
            {
                ("passes", *collectives): passes_calls(collectives, order.schedule.num_stages),
                of_stages: lambda: self._stages.calls(order.hops, others=network.blank),
            }
        )
        exchanged = (self.drawn, self._stages, replace(shape, recompute="none"))
        self.exchanges: Exchanges = shared.exchanges.once(exchanged, lambda: Exchanges(job(), self._stages, self.drawn))
        self.main_key = self.drawn, parallel.model_copy(update={"zero": 0}), of_others, of_passes, scenario.microbatches

    def of(self, works: Sequence[ActionWork | Sent]) -> list[Costs]:
        """Return the costs of actions and sends.

        Where sends interfere with computation, an action costs all of its ops.
        """
        sends = [self.exchanges.send(work) if isinstance(work, Sent) else () for work in works]
        whole = not any(op.communication and op.communication.interferes for send in sends for op in send)
        signature = self._passes.signatures(self.drawn)
        return [
            self._passes.of(work, self._stages.part(work), signature[work.stage], self.drawn, whole=whole)
            if isinstance(work, ActionWork)
            else send
            for work, send in zip(works, sends, strict=True)
        ]


class _PassCosts:
    """The costs of passes for one split of a model and one size of a microbatch."""

    def __init__(self, scenario: Scenario) -> None:
        device = scenario.cluster.device
        self.passes: Passes = passes_of(scenario, device)
        every = scenario.training.recompute_every
        self._undisturbed = interference_of(scenario, device) is None
        self._repeats = self._undisturbed and scenario.software is None and every == 1
        everything = Pass((0,), embedding=True, lm_head=True, boundary=scenario.parallel.tp > 1)
        ops = [op for kind in "FBIW" for op in self._segment(kind, everything).ops]
        proved(ops)
        self.collectives = tuple(dict.fromkeys(op.work for op in ops if isinstance(op.work, Collective)))
        self._known: dict[Hashable, Costs] = {}
        self._ops: dict[Hashable, Costs] = {}
        self._numbers: dict[Hashable, int] = {}
        self._signatures: dict[RepresentativeCalls, list[int]] = {}

    def of(self, work: ActionWork, part: Pass, signature: int, drawn: RepresentativeCalls, *, whole: bool) -> Costs:
        """Return the costs of an action on a stage with this signature.

        It is one op if it may be ``whole`` and its duration depends on nothing outside it; else all of its ops.
        """
        found = self._whole(work.kind, part, signature, drawn, work.stage) if whole else ()
        if found:
            return found
        name = drawn, work.stage, work.kind, part
        if name not in self._ops:
            self._ops[name] = drawn.ops(work.stage, self._segment(work.kind, part))
        return self._ops[name]

    def _whole(self, kind: str, part: Pass, signature: int, drawn: RepresentativeCalls, stage: int) -> Costs:
        """Return a pass as one op; no ops if its duration depends on others."""
        layers = len(part.layers)
        counted = layers if self._repeats else part.layers
        name = kind, counted, part.embedding, part.lm_head, part.boundary, part.casts, signature
        found = self._known.get(name)
        if found is None:
            if self._repeats and layers > (1 if part.embedding or part.lm_head or part.boundary else 2):
                plain = Pass(part.layers[:1], casts=part.casts)
                few = [
                    self._whole(kind, each, signature, drawn, stage)
                    for each in (replace(part, layers=part.layers[:1]), plain, replace(plain, layers=part.layers[:2]))
                ]
                found = _repeated(layers, *[op.seconds for op in chain.from_iterable(few)]) if all(few) else ()
            else:
                seconds = drawn.seconds(stage, self._segment(kind, part))
                found = () if seconds is None else (TimedOp(seconds),)
            self._known[name] = found
        return found

    def signatures(self, drawn: RepresentativeCalls) -> list[int]:
        """Return a number for every stage, equal for stages of any network on which collectives cost the same."""
        if drawn not in self._signatures:
            seen = drawn.alone(self.collectives)
            self._signatures[drawn] = [self._numbers.setdefault(each, len(self._numbers)) for each in seen]
        return self._signatures[drawn]

    def _segment(self, kind: str, part: Pass) -> Segment:
        make = {"F": self.passes.forward, "B": self.passes.backward}
        make |= {"I": self.passes.input_grad, "W": self.passes.weight_grad}
        return make[kind](part)


def _repeated(layers: int, first: float, one: float, two: float) -> Costs:
    """Return a pass of equal layers, of which passes of one and two take this long, and one with all else ``first``."""
    return (TimedOp(first + (layers - 1) * (two - one)),)


def _network(scenario: Scenario, schedule: Schedule) -> RepresentativeNetwork:
    choices = choices_of(scenario)
    return RepresentativeNetwork(
        plan_of(scenario, schedule), scenario.cluster.built, choices.methods, choices.interference
    )
