"""How much the step time depends on each resource of the cluster: by the critical path, and confirmed by playing.

One percent more of a rate, or one percent less of a time, is a scenario like any other (``cluster.scale``), and so is
one percent less of it: where another resource is as narrow the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.tables import Records
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.results.path_estimate import path_seconds_under
from simcluster.results.raised import LINKS, HeldBack, held_between
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.scale import Scale
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, replay, result_of

RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "flops": "peak FLOP/s",
        "memory_bandwidth": "memory bandwidth (HBM)",
        "nvlink": "NVLink bandwidth",
        "network": "network bandwidth (NICs and switches)",
        "pcie": "PCIe bandwidth",
        "between_machines": "between machines (network and PCIe together)",
        "latency": "latency of links and collectives",
        "launch": "launch time and host work",
        "memory": "memory size",
    }
)
"""Every resource that can be more or less: a factor of ``cluster.scale``, and what people call it.

``between_machines`` is the network and PCIe at once, so gains of all resources add up without it.
"""

TIMES = ("latency", "launch")
"""Of these, less is better."""

_KINK = 0.1  # of the larger one: by so much the two sides differ where it is told
_TOLD = 5e-4  # percent of the step for a percent: nothing smaller is told


@dataclass(frozen=True, slots=True)
class Sensitivity(Shown):
    """What ``by`` (0.01 is one percent) more of a resource does to the step, and as much less of it.

    More is ``1 + by`` times the rate and less the rate over that; of latency and launch time, where less is better,
    the other way round.  ``estimate`` is the step's seconds with more to first order, along the critical path as it is
    (None where the program becomes another one); ``step_time`` (with more) and ``step_time_less`` are played.  ``held``
    says what is in series with links of which more gives less than it should.
    """

    resource: str
    by: float
    before: float
    estimate: float | None
    step_time: float
    price: float | None = None
    step_time_less: float | None = None
    held: HeldBack | None = None

    @property
    def gain(self) -> float:
        """Percent of the step for each percent more of the resource, as played."""
        return (self.before - self.step_time) / self.before / self.by

    @property
    def loss(self) -> float | None:
        """Percent by which the step gets longer for each percent less of the resource; None where that is not known."""
        return None if self.step_time_less is None else (self.step_time_less - self.before) / self.before / self.by

    @property
    def one_sided(self) -> bool:
        """Does less of it cost another part of the step than more of it gives?

        A time that goes with the resource shrinks to 1 / (1 + by) of itself, and grows by ``by``; both must say that
        the same part of the step does.
        """
        if self.loss is None:
            return False
        more = self.gain * (1 + self.by)
        return abs(more - self.loss) > max(_KINK * max(abs(more), abs(self.loss)), _TOLD)

    @property
    def estimated_gain(self) -> float | None:
        """The gain by the critical path alone."""
        return None if self.estimate is None else (self.before - self.estimate) / self.before / self.by

    @property
    def gain_per_dollar(self) -> float | None:
        """Percent of the step for each dollar per GPU, where a price is known."""
        return None if self.price is None else self.gain / self.price

    def note(self) -> str:
        """What somebody must know who reads the gain: what holds it back, and that the two sides differ; or ""."""
        parts = [self.held.in_words()] if self.held else []
        if self.one_sided and self.loss is not None:
            parts.append(f"1 % less costs {self.loss:.3f} %, 1 % more gives {self.gain:.3f} %")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        fields = {name: getattr(self, name) for name in ("resource", "by", "before", "estimate", "step_time", "price")}
        derived = {"gain": self.gain, "estimated_gain": self.estimated_gain, "gain_per_dollar": self.gain_per_dollar}
        less = {"step_time_less": self.step_time_less, "loss": self.loss, "one_sided": self.one_sided}
        return {**fields, **derived, **less, "held": self.held and self.held.to_dict(), "note": self.note()}


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """What more memory would allow: less recomputation, at this many bytes a GPU, and the step that it gives."""

    recompute: str
    bytes: float
    step_time: float


@checked
def sensitivity(
    scenario: ResultLike,
    resources: Sequence[str] = (),
    *,
    by: float = 0.01,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Records[Sensitivity]:
    """The step with a little more of each resource, one at a time; the most rewarding first.

    ``scenario`` may be its result, where it was played already.  ``prices`` are dollars per GPU for one percent of a
    resource: with them, the most rewarding per dollar comes first.
    Raises InputError for an unknown resource, a price that is not positive, for ``by`` outside (0, 1], and where
    playing all these steps would take longer than is begun.
    """
    for name in (*resources, *prices):
        if name not in RESOURCES:
            raise InputError(f"unknown resource {name!r}{did_you_mean(name, RESOURCES)}; use {listed(RESOURCES)}")
    if not 0 < by <= 1:
        raise InputError(f"by how much: {by!r} must be above 0 and at most 1, as in 0.01 for one percent")
    for name, price in prices.items():
        if not price > 0:
            raise InputError(f"price of {name}: {price!r} must be positive: dollars per GPU for one percent of it")
    base, chosen = result_of(scenario, "sensitivity"), resources or RESOURCES
    require_time_for(base.scenario, 2 * len(chosen), "sensitivity", ops=base.ops_played)
    found = [_of(base, name, by, prices.get(name)) for name in chosen]
    found.sort(key=lambda each: -each.gain)
    return Records(sorted(found, key=lambda each: -(each.gain_per_dollar or 0.0)) if prices else found)


def scaled(scenario: Scenario, resource: str, by: float) -> Scenario:
    """The scenario with ``by`` more of a resource than it has now (less, where less is better)."""
    return _times(scenario, resource, 1 / (1 + by) if resource in TIMES else 1 + by)


def less(scenario: Scenario, resource: str, by: float) -> Scenario:
    """The scenario with as much less of a resource: what ``scaled`` would bring back to what it is now."""
    return _times(scenario, resource, 1 + by if resource in TIMES else 1 / (1 + by))


def _times(scenario: Scenario, resource: str, factor: float) -> Scenario:
    now: Scale = scenario.cluster.scale
    scale = now.model_copy(update={resource: getattr(now, resource) * factor})
    return scenario.model_copy(update={"cluster": scenario.cluster.with_scale(scale)})


def _of(base: Result, resource: str, by: float, price: float | None) -> Sensitivity:
    before = base.step_time
    if resource == "memory":  # holds, and takes no time
        return Sensitivity(resource, by, before, before, before, price, before)
    more = replay(scaled(base.scenario, resource, by))
    estimate = path_seconds_under(base.critical_path, base, more)
    worse = replay(less(base.scenario, resource, by)).step_time
    held = held_between(base.scenario, more.scenario, more) if resource in LINKS else None
    return Sensitivity(resource, by, before, estimate, more.step_time, price, worse, held)


def more_memory(base: Result) -> list[MoreMemory]:
    """Each way to recompute less, the bytes a GPU would need for it, and the step: what memory is worth."""
    ways = ("full", "selective", "none")
    now = base.scenario.training.recompute
    found = []
    for recompute in ways[ways.index(now) + 1 :] if now in ways else ():
        training = base.scenario.training.model_copy(update={"recompute": recompute})
        played = replay(base.scenario.model_copy(update={"training": training}))
        found.append(MoreMemory(recompute, played.memory.total, played.step_time))
    return found
