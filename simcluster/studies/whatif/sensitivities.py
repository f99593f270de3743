"""Sensitivity of the step time to each resource of the cluster, to a measured time, and to randomness.

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
from simcluster.base.shown import Displayable
from simcluster.base.tables import Records, rows_to_frame
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.results.path_estimate import path_seconds_under
from simcluster.results.raised import LINKS, UpgradeLimit, find_limit_between
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scale import Scale
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.montecarlo import monte_carlo, remove_randomness

if TYPE_CHECKING:
    from pandas import DataFrame

DrawUnit = Literal["gpu", "kernel", "pass", "step"]
DRAW_UNITS: tuple[DrawUnit, ...] = get_args(DrawUnit)
RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "flops": "peak FLOP/s",
        "memory_bandwidth": "memory bandwidth (HBM)",
        "nvlink": "NVLink bandwidth",
        "network": "network bandwidth (NICs and switches)",
        "pcie": "PCIe bandwidth",
        "between_machines": "between nodes (network and PCIe together)",
        "latency": "latency of links and collectives",
        "launch": "launch time and host work",
        "memory": "memory size",
    }
)
"""Every resource that can be scaled: a factor of ``cluster.scale``, and its name.

``between_machines`` is the network and PCIe at once, so gains of all resources add up without it.
"""

TIME_RESOURCES = ("latency", "launch")
"""Resources of which less is better."""

_KINK = 0.1  # of the larger one: how much the two sides differ where that is reported
_MIN_REPORTED = 5e-4  # percent of the step for a percent: nothing smaller is reported
_NEGLIGIBLE = 1e-6  # of the step: a resource on which it does not depend


@dataclass(frozen=True, slots=True)
class Sensitivity(Displayable):
    """Step time with a little more of a resource, and with as much less of it.

    More is ``1 + by`` times the rate and less the rate over that; of latency and launch time, where less is better, the
    other way round. ``estimate`` is the step's seconds with more to first order, along the unchanged critical path
    (None where the program becomes another one); ``step_time`` (with more) and ``step_time_less`` are simulated.
    ``held`` names the links in series with links of which more gives less than it should.
    """

    resource: str
    by: float
    before: float
    estimate: float | None
    step_time: float
    price: float | None = None
    step_time_less: float | None = None
    held: UpgradeLimit | None = None

    @property
    def gain(self) -> float:
        """Percent of the step time saved per percent more of the resource, as simulated."""
        return (self.before - self.step_time) / self.before / self.by

    @property
    def loss(self) -> float | None:
        """Percent by which the step gets longer per percent less of the resource; None if not known."""
        return None if self.step_time_less is None else (self.step_time_less - self.before) / self.before / self.by

    @property
    def one_sided(self) -> bool:
        """Whether less of the resource costs more (or less) time than more of it saves.

        A time that depends on the resource shrinks to 1 / (1 + by) of itself, and grows by ``by``; both must show that
        the same part of the step does.
        """
        if self.loss is None:
            return False
        more = self.gain * (1 + self.by)
        return abs(more - self.loss) > max(_KINK * max(abs(more), abs(self.loss)), _MIN_REPORTED)

    @property
    def estimated_gain(self) -> float | None:
        """Percent saved per percent more of the resource, estimated from the critical path alone."""
        return None if self.estimate is None else (self.before - self.estimate) / self.before / self.by

    @property
    def gain_per_dollar(self) -> float | None:
        """Percent of the step saved per dollar and GPU; None without a price."""
        return None if self.price is None else self.gain / self.price

    def note(self) -> str:
        """Describe the links that limit the gain, and a gain that differs from the loss; "" for neither."""
        parts = [self.held.in_words()] if self.held else []
        if self.one_sided and self.loss is not None:
            parts.append(f"1 % less costs {self.loss:.3f} %, 1 % more gives {self.gain:.3f} %")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the sensitivity as JSON-ready values."""
        names = ("resource", "by", "before", "estimate", "step_time", "price", "gain", "estimated_gain",
                 "gain_per_dollar", "step_time_less", "loss", "one_sided")  # fmt: skip
        own = {name: getattr(self, name) for name in names}
        return {**own, "held": self.held and self.held.to_dict(), "note": self.note()}


@checked
def sensitivity(
    scenario: ResultLike,
    resources: Sequence[str] = (),
    *,
    by: float = 0.01,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Records[Sensitivity]:
    """Simulate the step with a little more of each resource, one at a time; the most rewarding first.

    ``scenario`` may be its result, where it was simulated already. ``prices`` are dollars per GPU for one percent of a
    resource: with them, the most rewarding per dollar comes first.

    Raises InputError for an unknown resource, a price that is not positive, for ``by`` outside (0, 1], and where all
    these steps would take too long to simulate.
    """
    for name in (*resources, *prices):
        if name not in RESOURCES:
            raise InputError(f"unknown resource {name!r}{did_you_mean(name, RESOURCES)}; use {listed(RESOURCES)}")
    if not 0 < by <= 1:
        raise InputError(f"by: {by!r} must be above 0 and at most 1, as in 0.01 for one percent")
    for name, price in prices.items():
        if not price > 0:
            raise InputError(f"price of {name}: {price!r} must be positive: dollars per GPU for one percent of it")
    base, chosen = to_result(scenario, "sensitivity"), resources or RESOURCES
    require_time_for(base.scenario, 2 * len(chosen), "sensitivity", ops=base.simulated_ops)
    found = [_measure_sensitivity(base, name, by, prices.get(name)) for name in chosen]
    found.sort(key=lambda each: -each.gain)
    return Records(sorted(found, key=lambda each: -(each.gain_per_dollar or 0.0)) if prices else found)


def scale_resource(scenario: Scenario, resource: str, by: float, *, less: bool = False) -> Scenario:
    """Return the scenario with a fraction ``by`` more of a resource, or less of a time such as latency.

    With ``less`` it has as much less of it: the amount that ``by`` more of it would bring back to the present one.
    """
    now: Scale = scenario.cluster.scale
    factor = 1 / (1 + by) if (resource in TIME_RESOURCES) != less else 1 + by
    scale = now.model_copy(update={resource: getattr(now, resource) * factor})
    return scenario.model_copy(update={"cluster": scenario.cluster.with_scale(scale)})


def _measure_sensitivity(base: Result, resource: str, by: float, price: float | None) -> Sensitivity:
    before = base.step_time
    if resource == "memory":  # capacity takes no time
        return Sensitivity(resource, by, before, before, before, price, before)
    more = simulate_scenario(scale_resource(base.scenario, resource, by))
    estimate = path_seconds_under(base.critical_path, base, more)
    worse = simulate_scenario(scale_resource(base.scenario, resource, by, less=True)).step_time
    held = find_limit_between(base.scenario, more.scenario, more) if resource in LINKS else None
    return Sensitivity(resource, by, before, estimate, more.step_time, price, worse, held)


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """A recomputation mode that more GPU memory would allow: its bytes per GPU and step time (s)."""

    recompute: str
    bytes: float
    step_time: float


def simulate_less_recompute(base: Result) -> list[MoreMemory]:
    """Simulate each mode with less recomputation; return the bytes per GPU that it needs and its step time."""
    ways = ("full", "selective", "none")
    now = base.scenario.training.recompute
    found = []
    for recompute in ways[ways.index(now) + 1 :] if now in ways else ():
        training = base.scenario.training.model_copy(update={"recompute": recompute})
        other = simulate_scenario(base.scenario.model_copy(update={"training": training}))
        found.append(MoreMemory(recompute, other.memory.total, other.step_time))
    return found


@dataclass(frozen=True, slots=True)
class GapCause:
    """A resource, and the factor on it that alone would explain a gap to the measured step time.

    ``part`` is the fraction of the step that depends on the resource. ``factor`` is on the rate, of latency and launch
    on the time; None where none explains it.
    """

    resource: str
    part: float
    factor: float | None

    def describe(self) -> str:
        """Describe the cause: peak FLOP/s would have to be 0.870 x the modelled value (61.2% of the step)."""
        name, part = RESOURCES[self.resource], f"{self.part:.1%} of the step"
        if self.factor is None:
            return f"{name} alone cannot close the gap ({part})"
        return f"{name} would have to be {self.factor:.3f} x the modelled value ({part})"

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON-ready values."""
        return {"resource": self.resource, "part": self.part, "factor": self.factor}


def find_gap_causes(found: Sequence[Sensitivity], gap: float) -> list[GapCause]:
    """Return for each resource the factor that alone would explain a gap (s), measured less simulated.

    Most of the step first. A part p of the step S depends on a resource: S (1 - p) + S p / x at x times its rate. So a
    gap g is explained by x = 1 / (1 + g / (S p)), and of latency or launch, where times are asked for, by 1 + g / (S p)
    times the time. To first order: another resource may limit the step long before.
    """
    causes = []
    for each in found:
        part = each.gain * (1 + each.by)
        if part <= _NEGLIGIBLE:
            continue
        times = 1 + gap / (each.before * part)  # as much of its time
        factor = None if times <= 0 else times if each.resource in TIME_RESOURCES else 1 / times
        causes.append(GapCause(each.resource, part, factor))
    return sorted(causes, key=lambda cause: -cause.part)


@checked
def inflation(
    scenarios: Mapping[str, ScenarioLike],
    sigmas: Iterable[float],
    *,
    per: DrawUnit = "kernel",
    replicas: int = 50,
) -> DataFrame:
    """Simulate how lognormal random durations prolong the step, one row per scenario and sigma.

    ``per`` is the unit of a draw: a permanent speed of a ``gpu`` (a fault of kind ``speeds``), or a duration of every
    ``kernel``, ``pass`` or ``step`` of a rank (kind ``jitter``); laws have mean 1 and replace the scenario's faults of
    their kind. ``inflation`` is the mean step of the ``replicas`` over that without chance, ``interval`` half of its 95
    % interval, ``barrier`` the factor of one barrier of all ranks if each draws for a whole step of computing.
    """
    if per not in DRAW_UNITS:
        raise InputError(f"inflation: per {per!r} is not a unit of random draws; use {', '.join(DRAW_UNITS)}")
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
            base = base or simulate_scenario(remove_randomness(drawing))
            found = monte_carlo(drawing, replicas=replicas, base=base)
            low, high = found.interval
            rows.append({
                "scenario": name, "gpus": scenario.gpus, "schedule": scenario.pipeline.schedule_name, "sigma": sigma,
                "inflation": found.mean / found.planned, "interval": (high - low) / 2 / found.planned,
                "barrier": barrier_inflation(scenario.gpus, sigma, per), "method": found.method,
            })  # fmt: skip
    return rows_to_frame(rows)


def barrier_inflation(ranks: int, sigma: float, per: DrawUnit = "step") -> float:
    """Return the factor by which a barrier of ``ranks`` prolongs random compute: the mean of the largest."""
    return largest_lognormal(ranks, sigma) * (math.exp(sigma**2) if per == "gpu" else 1.0)


def largest_lognormal(count: int, sigma: float) -> float:
    """Return the mean of the largest of ``count`` lognormal factors of mean 1 (MODELLING.md G.2).

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
