"""The step time of a scenario by a short way, to the bit what a full run says: an accelerator for sweeps of variants.

``quick_step`` is its door.  Where all ranks of a stage do the same (no faults, a regular cluster), a step is that of
one rank a stage.  What its parts take is known from the same kernels, collectives and links as in a full run, and kept
between variants that share them: passes by model, split and microbatch, the network by the layout, the order of ops by
the schedule.  Then it is a longest path (``stepping``), and from where transfers meet on a link on what these make of
it (``contended``).  There is no timeline, so neither breakdown nor memory.  Where the short way is not proved to be
exact (``quick_scope``) it says so (NotQuickError) and gives no number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.kept import Kept
from simcluster.engine.choose import play_by
from simcluster.planning.footprint import Facts
from simcluster.results.numbers import timed_numbers
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.job import facts_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.studies.sweep.alike import NotQuickError
from simcluster.studies.sweep.contended import MOST_SECONDS, contended
from simcluster.studies.sweep.costs import SharedCosts, StepCosts
from simcluster.studies.sweep.late import little_late
from simcluster.studies.sweep.quick_scope import QUICK
from simcluster.studies.sweep.stepping import Walk


@dataclass(frozen=True, slots=True)
class Quick:
    """A step: its seconds, and how they were found.

    ``kind`` is how it was played, as one longest "path" or as "events"; "bound" if the step takes at least so long.
    ``why`` not as a path, or why it may take longer.
    """

    step_time: float
    kind: Literal["path", "events", "bound"]
    why: str


@dataclass(frozen=True, slots=True)
class _Timed:
    """What is known of a step that was not played in full."""

    step_time: float
    facts: Facts


def quick_step(scenario: Scenario, *, bound: bool = False) -> Quick:
    """The step time that ``simulate`` gives, to the bit: an accelerator for one rank a stage; NotQuickError where it is
    not proved to be exact (``quick_scope``), or only a full run can tell.

    With ``bound``, what needs events is not played but as a path on which nothing holds anything back: a lower bound,
    marked as such, and several times as fast.
    """
    try:
        return _WAY.step(scenario, bound=bound)
    except NotQuickError:
        raise
    except InputError as error:  # of what all variants of the layout may do, some of which this one does not
        raise NotQuickError(f"only a full run can tell whether it does what is refused: {error}") from error


def quick_numbers(scenario: Scenario, quick: Quick) -> dict[str, float]:
    """Of the result JSON what follows from the step time alone."""
    return timed_numbers(_Timed(quick.step_time, _WAY.facts_of(scenario)))


@dataclass
class QuickWay:
    """What variants share.  Clusters are known by the object, which is kept as long as anything of it is."""

    clusters: dict[int, ClusterSpec] = field(default_factory=dict)
    shared: SharedCosts = field(default_factory=SharedCosts)
    walks: Kept = field(default_factory=lambda: Kept(128))
    facts: Kept = field(default_factory=lambda: Kept(64))

    def facts_of(self, scenario: Scenario) -> Facts:
        """What a step is worth, which few of the variants change."""
        self._keep(scenario.cluster)
        batch = scenario.training, scenario.data, scenario.seed  # what is real of it is drawn
        name = id(scenario.cluster), scenario.model, batch, scenario.gpus, scenario.software
        return self.facts.once(name, lambda: facts_of(scenario, scenario.cluster.device))

    @collector_off()
    def step(self, scenario: Scenario, *, bound: bool = False) -> Quick:
        """See ``quick_step``."""
        why = QUICK.obstacle(scenario)
        if why:
            raise NotQuickError(why)
        schedule = schedule_of(scenario)
        if any(schedule.fused) or len(schedule.routes) > 1:
            raise NotQuickError(f"{schedule.name} plays pairs of actions, or holds the model more than once")
        parallel, pipeline, overlap = scenario.parallel, scenario.pipeline, scenario.overlap
        cluster = scenario.cluster
        self._keep(cluster)
        costs = StepCosts(scenario, schedule, self.shared)
        casts = costs.casts
        order = (pipeline, parallel.pp, scenario.microbatches, overlap.pipeline, casts)
        walk = self.walks.once(order, lambda: Walk(schedule, overlap=overlap.pipeline, casts=casts))
        costed = costs.of(walk.works)
        exchanges = costs.exchanges
        crossings = self.shared.links.crossings(costs.drawn, exchanges.meetings(walk.works))
        stepped = walk.step(costed, crossings.seconds, exchanges.last)
        pressed = any(each.meeting and (each.meeting.pressure or each.meeting.drag) for each in costed)
        met = crossings.met(stepped.begins, lambda name: walk.begins(name, stepped))
        first = () if pressed or crossings.instant else next(met, None)
        if first is None:
            return _exact(Quick(stepped.total, "path", ""))
        why = _PRESSED if pressed else _MET
        if bound:
            return Quick(stepped.total, "bound", why)
        if first:
            contenders = self.shared.links.contenders(crossings)
            step = walk, stepped, exchanges.last, crossings, contenders, (first, *met)
            total = little_late(*step) or contended(*step)
            if total < MOST_SECONDS:
                return Quick(total, "events", why)
        program = walk.program(costed, exchanges.last, costs.drawn.ranks)
        record = play_by("auto", program, costs.drawn.capacity)
        return _exact(Quick(float(record.end.max()), "path" if record.kind == "path" else "events", record.why))

    def _keep(self, cluster: ClusterSpec) -> None:
        """As long as a cluster is kept no other one has its identity; with too many of them all is forgotten."""
        if id(cluster) in self.clusters:
            return
        if len(self.clusters) == _CLUSTERS:
            self.clusters.clear()
            self.shared.clear()
            self.facts.clear()
        self.clusters[id(cluster)] = cluster


def _exact(quick: Quick) -> Quick:
    """NotQuickError for a step that takes a coarser grid than what variants share is on."""
    if quick.step_time >= MOST_SECONDS:
        raise NotQuickError(f"a step that ends beyond {MOST_SECONDS:g} s is played on a coarser grid")
    return quick


_CLUSTERS = 8
_PRESSED = "communication slows down the computation beside it (overlap.interference)"
_MET = "transfers are under way together on a link that they may fill"
_WAY = QuickWay()
