"""Step times of a sweep's variants, to the bit those of a full run, from costs that variants share: an accelerator.

Where ranks of a stage are equal (no faults, a regular cluster), one rank per stage is simulated, with one op for a
chunk's pass.  Kernels, collectives and links are those of a full run, kept between variants: passes by model, split and
microbatch, the network by layout, the order of ops by schedule.  The compiled engine simulates them (``step_tables``).
It reports neither breakdown nor memory.  Scenarios outside ``quick_scope`` are rejected (NotQuickError).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.kept import Kept
from simcluster.planning.footprint import Facts
from simcluster.results.numbers import timed_numbers
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.job import facts_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import Schedule
from simcluster.studies.sweep.costs import Order, SharedCosts, StepCosts, order_of
from simcluster.studies.sweep.order import schedule_items
from simcluster.studies.sweep.quick_scope import QUICK
from simcluster.studies.sweep.stage_network import NotQuickError
from simcluster.studies.sweep.step_tables import MainPart, StepTemplate, shape_of

MOST_SECONDS = 512.0
"""Steps below this are exact on the finest grid (``base.clock``), which shared costs are on."""
_CLUSTERS = 8


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step of which only the time is known."""

    step_time: float
    facts: Facts


def quick_step(scenario: Scenario) -> float:
    """Return the step time (s) that ``simulate`` gives, to the bit.

    Raises NotQuickError where this is not proved to be exact (``quick_scope``), or only a full run can tell.
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


@dataclass
class QuickSteps:
    """Step times, with all that variants share; clusters are known by identity, so they are kept with their parts."""

    clusters: dict[int, ClusterSpec] = field(default_factory=dict)
    shared: SharedCosts = field(default_factory=SharedCosts)
    items: Kept = field(default_factory=lambda: Kept(128))
    templates: Kept = field(default_factory=lambda: Kept(128))
    facts: Kept = field(default_factory=lambda: Kept(64))
    mains: Kept = field(default_factory=lambda: Kept(4))

    def facts_of(self, scenario: Scenario) -> Facts:
        """Return what MFU and throughput are computed from, which few variants change."""
        self._keep(scenario.cluster)
        batch = scenario.training, scenario.data, scenario.seed  # what is real of it is drawn
        name = id(scenario.cluster), scenario.model, batch, scenario.gpus, scenario.software
        return self.facts.once(name, lambda: facts_of(scenario, scenario.cluster.device))

    @collector_off()
    def step(self, scenario: Scenario) -> float:
        """Return the step time (s); see ``quick_step``."""
        why = QUICK.obstacle(scenario)
        if why:
            raise NotQuickError(why)
        name = scenario.pipeline, scenario.parallel.pp, scenario.microbatches
        order: Order = self.shared.orders.once(name, lambda: order_of(scenario))
        if order.copies and (scenario.overlap.grad_reduce or scenario.overlap.param_gather):
            raise NotQuickError(
                f"{order.schedule.name} has copies of stages, whose gradients are reduced during the backward"
            )
        self._keep(scenario.cluster)
        costs = StepCosts(scenario, order, self.shared)
        main: MainPart = self.mains.once(costs.main_key, lambda: self._main(scenario, order.schedule, costs))
        seconds = main.step_seconds(costs.exchanges.ends)
        if seconds >= MOST_SECONDS:
            raise NotQuickError(f"a step that ends beyond {MOST_SECONDS:g} s is simulated on a coarser grid")
        return seconds

    def _main(self, scenario: Scenario, schedule: Schedule, costs: StepCosts) -> MainPart:
        """Return the step up to the last actions."""
        overlap, stages = scenario.overlap.pipeline, scenario.parallel.pp
        order = scenario.pipeline, stages, scenario.microbatches, overlap, costs.casts
        items = self.items.once(order, lambda: schedule_items(schedule, casts=costs.casts, overlap=overlap))
        found = costs.of(items.works)
        shapes = tuple([shape_of(each) for each in found])
        template = self.templates.once((order, shapes), lambda: StepTemplate(items, shapes, stages))
        return MainPart(template, [*chain.from_iterable(found)], costs.drawn.capacity, self.shared.links)

    def _keep(self, cluster: ClusterSpec) -> None:
        """Keep a cluster, so that no other one gets its identity; forget everything if there are too many."""
        if id(cluster) in self.clusters:
            return
        if len(self.clusters) == _CLUSTERS:
            self.clusters.clear()
            self.shared.clear()
            self.facts.clear()
            self.mains.clear()
        self.clusters[id(cluster)] = cluster


_STEPS = QuickSteps()
