"""How much the step time depends on each resource of the cluster: by the critical path, and confirmed by playing.

One percent more of a rate, or one percent less of a time, is a scenario like any other (``cluster.scale``), and so is
one percent less of it: where another resource is as narrow the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.tables import Records, frame_of
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.results.path_estimate import path_seconds_under
from simcluster.results.raised import LINKS, HeldBack, held_between
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scale import Scale
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, replay, result_of
from simcluster.studies.whatif.montecarlo import monte_carlo, without_chance

if TYPE_CHECKING:
    from pandas import DataFrame

Per = Literal["gpu", "kernel", "pass", "step"]
PERS: tuple[Per, ...] = get_args(Per)
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


_NOTHING = 1e-6  # of the step: a resource that it does not depend on


@dataclass(frozen=True, slots=True)
class GapCause:
    """A resource, the ``part`` of the step that goes with it, and the ``factor`` on it that would close the gap alone.

    ``factor`` is on the rate, of latency and launch on the time; None where none closes it.
    """

    resource: str
    part: float
    factor: float | None

    def in_words(self) -> str:
        """Such as: peak FLOP/s at 0.870 of what is counted (61.2 % of the step)."""
        name, part = RESOURCES[self.resource], f"{self.part:.1%} of the step"
        if self.factor is None:
            return f"{name}: not alone ({part})"
        return f"{name}: {self.factor:.3f} x what the device and the cluster say ({part})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"resource": self.resource, "part": self.part, "factor": self.factor}


def gap_causes(found: Sequence[Sensitivity], gap: float) -> list[GapCause]:
    """Of each resource that the step depends on, most of the step first; ``gap`` is measured less simulated (s)."""
    causes = []
    for each in found:
        part = each.gain * (1 + each.by)
        if part <= _NOTHING:
            continue
        times = 1 + gap / (each.before * part)  # as much of its time
        factor = None if times <= 0 else times if each.resource in TIMES else 1 / times
        causes.append(GapCause(each.resource, part, factor))
    return sorted(causes, key=lambda cause: -cause.part)


@checked
def inflation(
    scenarios: Mapping[str, ScenarioLike],
    sigmas: Iterable[float],
    *,
    per: Per = "kernel",
    replicas: int = 50,
) -> DataFrame:
    """Return a row for each scenario and sigma: how lognormal draws of ranks lengthen the step, and a barrier.

    ``per`` is what has a draw: a ``gpu`` a speed for ever (a fault of kind ``speeds``), or every ``kernel``, ``pass``
    or ``step`` of a rank a duration (kind ``jitter``); laws have mean 1 and replace the scenario's own faults of their
    kind.  ``inflation`` is the mean step of the ``replicas`` over that without chance, ``interval`` half of its 95 %
    interval, ``barrier`` what one barrier of all ranks would make of a draw for the whole step, each rank computing all
    of the time.
    """
    if per not in PERS:
        raise InputError(f"inflation: per {per!r} is no part of a job that draws; it can be {', '.join(PERS)}")
    kind = "speeds" if per == "gpu" else "jitter"
    rows: list[dict[str, Any]] = []
    for name, given in scenarios.items():
        scenario = scenario_of(given, "inflation")
        own = [each.model_dump(mode="json", exclude_none=True) for each in scenario.given_faults if each.kind != kind]
        base = None
        for sigma in sigmas:
            law = {"kind": "lognormal", "sigma": sigma}
            drawn = {"kind": kind, "law": law} if per == "gpu" else {"kind": kind, "per": per, "factor": law}
            drawing = scenario.with_({"faults": [*own, drawn]})
            base = base or replay(without_chance(drawing))
            found = monte_carlo(drawing, replicas=replicas, base=base)
            low, high = found.interval
            rows.append({
                "scenario": name, "gpus": scenario.gpus, "schedule": scenario.pipeline.schedule_name, "sigma": sigma,
                "inflation": found.mean / found.planned, "interval": (high - low) / 2 / found.planned,
                "barrier": barrier(scenario.gpus, sigma, per), "method": found.method,
            })  # fmt: skip
    return frame_of(rows)


def barrier(ranks: int, sigma: float, per: Per = "step") -> float:
    """Return the factor of one barrier of ``ranks`` on their computation: the mean of the largest factor on its time.

    A speed of mean 1 makes seconds of 1 / speed, which is lognormal as well, with mean exp(sigma^2).
    """
    return largest_lognormal(ranks, sigma) * (math.exp(sigma**2) if per == "gpu" else 1.0)


def largest_lognormal(count: int, sigma: float) -> float:
    """Return the mean of the largest of ``count`` lognormal factors of mean 1, integrated; MODELLING.md G.2.

    >>> round(largest_lognormal(1, 0.05), 12), round(largest_lognormal(64, 0.05), 4)
    (1.0, 1.1232)
    """
    from scipy.integrate import quad
    from scipy.stats import norm

    if count < 1 or not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"the largest of {count} factors of sigma {sigma}: take 1 or more, and a sigma of 0 or more")

    def density(value: float) -> float:
        logarithm = sigma * value - sigma**2 / 2 + norm.logpdf(value) + (count - 1) * norm.logcdf(value)
        return count * math.exp(logarithm)

    middle = float(norm.ppf((count - 0.375) / (count + 0.25)))
    parts = [(middle - 10, middle), (middle, middle + 10 + sigma)]
    return math.fsum(float(quad(density, low, high, limit=400, epsabs=1e-13)[0]) for low, high in parts)
