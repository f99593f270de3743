"""Step times of a sweep's variants, to the bit those of a full run, from costs that variants share: an accelerator.

Where ranks of a stage are equal (no faults, a regular cluster), one rank per stage is simulated, with one op for a
chunk's pass.  Kernels, collectives and links are those of a full run, kept between variants: passes by model, split and
microbatch, the network by layout, the order of ops by schedule.  The compiled engine simulates them (``step_tables``).
It reports neither breakdown nor memory.  Scenarios outside ``studies.scopes`` are rejected (NotQuickError).
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.kept import Kept
from simcluster.planning.footprint import Facts
from simcluster.results.numbers import timed_numbers
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.job import facts_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import copies_of, schedule_of
from simcluster.studies.scopes import QUICK
from simcluster.studies.sweep.costs import Hops, SharedCosts, StepCosts, hops_of
from simcluster.studies.sweep.stage_network import NotQuickError
from simcluster.studies.sweep.step_tables import Items, StepTemplate, schedule_items, shapes_of, step_seconds

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

    def _shared(self, cluster: ClusterSpec) -> SharedCosts:
        """Return what variants on this cluster share."""
        shared: SharedCosts = self._clusters.once(id(cluster), lambda: SharedCosts(cluster, Kept(64), Kept(1024)))
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
        hops: Hops = self._orders.once(name, lambda: hops_of(schedule))
        if copies_of(schedule) and (overlap.grad_reduce or overlap.param_gather):
            raise NotQuickError(
                f"{schedule.name} has copies of stages, whose gradients are reduced during the backward"
            )
        shared = self._shared(scenario.cluster)
        costs = StepCosts(scenario, schedule, hops, shared)
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


_STEPS = QuickSteps()
