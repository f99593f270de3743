"""Sensitivity of the step time to cluster resources and random durations, and causes of a gap to a measurement.

One percent more of a rate, or one percent less of a time, is a scenario like any other (``cluster.scale``), and so is
one percent less of it: where another resource is as narrow the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records, rows_to_frame
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.results.link_upgrade import LINK_SCALES, UpgradeLimit, find_scenario_limit
from simcluster.results.path_estimate import estimate_path_seconds
from simcluster.results.result import Result
from simcluster.scenario.cluster_scale import ClusterScale
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.monte_carlo_study import monte_carlo, remove_randomness

if TYPE_CHECKING:
    from pandas import DataFrame

DrawUnit = Literal["gpu", "kernel", "pass", "step"]
DRAW_UNITS: tuple[DrawUnit, ...] = get_args(DrawUnit)
RESOURCES: Mapping[str, str] = {
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
    """Step times (s) with slightly more and slightly less of one resource, such as NVLink bandwidth.

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
        """Percent of step time saved for each percent more of the resource, from the simulation."""
        return (self.before - self.step_time) / self.before / self.by

    @property
    def loss(self) -> float | None:
        """Percent of step time added for each percent less of the resource; None if not simulated."""
        return None if self.step_time_less is None else (self.step_time_less - self.before) / self.before / self.by

    @property
    def one_sided(self) -> bool:
        """Whether time lost by less of the resource clearly differs from time saved by more of the resource.

        A time that depends on the resource shrinks to 1 / (1 + by) of itself, and grows by ``by``; both must show that
        the same part of the step does.
        """
        if self.loss is None:
            return False
        more = self.gain * (1 + self.by)
        return abs(more - self.loss) > max(_KINK * max(abs(more), abs(self.loss)), _MIN_REPORTED)

    @property
    def estimated_gain(self) -> float | None:
        """Percent of step time saved for each percent more of the resource, estimated from the critical path."""
        return None if self.estimate is None else (self.before - self.estimate) / self.before / self.by

    @property
    def gain_per_dollar(self) -> float | None:
        """Percent of step time saved per dollar spent on each GPU; None without a price."""
        return None if self.price is None else self.gain / self.price

    def note(self) -> str:
        """Return a note on links that limit the gain, or on a loss unlike the gain; "" if there is nothing to note."""
        parts = [self.held.describe()] if self.held else []
        if self.one_sided and self.loss is not None:
            parts.append(f"1 % less costs {self.loss:.3f} %, 1 % more gives {self.gain:.3f} %")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the sensitivity as JSON-ready values."""
        names = ("resource", "by", "before", "estimate", "step_time", "price", "gain", "estimated_gain",
                 "gain_per_dollar", "step_time_less", "loss", "one_sided")  # fmt: skip
        own = {name: getattr(self, name) for name in names}
        return {**own, "held": self.held and self.held.to_dict(), "note": self.note()}


@check_arguments
def sensitivity(
    scenario: ResultLike,
    resources: Sequence[str] = (),
    *,
    by: float = 0.01,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Records[Sensitivity]:
    """Simulate the step with slightly more of each resource in turn; return the resource with most gain first.

    ``scenario`` may be its result, where it was simulated already. ``prices`` are dollars per GPU for one percent of a
    resource: with them, the most rewarding per dollar comes first.

    Raises InputError for an unknown resource, a price that is not positive, for ``by`` outside (0, 1], and where all
    these steps would take too long to simulate.
    """
    for name in (*resources, *prices):
        if name not in RESOURCES:
            raise InputError(f"unknown resource {name!r}{did_you_mean(name, RESOURCES)}; use {join_or(RESOURCES)}")
    if not 0 < by <= 1:
        raise InputError(f"by: {by!r} must be above 0 and at most 1, as in 0.01 for one percent")
    for name, price in prices.items():
        if not price > 0:
            raise InputError(f"price of {name}: {price!r} must be positive: dollars per GPU for 1% more of {name}")
    base, chosen = to_result(scenario, "sensitivity"), resources or RESOURCES
    require_time_for_steps(base.scenario, 2 * len(chosen), "sensitivity", ops=base.simulated_ops)
    found = [_measure_sensitivity(base, name, by, prices.get(name)) for name in chosen]
    found.sort(key=lambda each: -each.gain)
    return Records(sorted(found, key=lambda each: -(each.gain_per_dollar or 0.0)) if prices else found)


def scale_resource(scenario: Scenario, resource: str, by: float, *, less: bool = False) -> Scenario:
    """Return the scenario with the fraction ``by`` more of a resource; times such as latency shrink instead.

    With ``less`` it has as much less of it: the amount that ``by`` more of it would bring back to the present one.
    """
    now: ClusterScale = scenario.cluster.scale
    factor = 1 / (1 + by) if (resource in TIME_RESOURCES) != less else 1 + by
    scale = now.model_copy(update={resource: getattr(now, resource) * factor})
    return scenario.model_copy(update={"cluster": scenario.cluster.with_scale(scale)})


def _measure_sensitivity(base: Result, resource: str, by: float, price: float | None) -> Sensitivity:
    before = base.step_time
    if resource == "memory":  # capacity takes no time
        return Sensitivity(resource, by, before, before, before, price, before)
    more = simulate_scenario(scale_resource(base.scenario, resource, by))
    estimate = estimate_path_seconds(base.critical_path, base, more)
    worse = simulate_scenario(scale_resource(base.scenario, resource, by, less=True)).step_time
    held = find_scenario_limit(base.scenario, more.scenario, more) if resource in LINK_SCALES else None
    return Sensitivity(resource, by, before, estimate, more.step_time, price, worse, held)


@dataclass(frozen=True, slots=True)
class LessRecomputation:
    """A recomputation mode that recomputes less but needs more memory: its bytes per GPU and step time (s)."""

    recompute: str
    bytes: float
    step_time: float


def simulate_less_recompute(base: Result) -> list[LessRecomputation]:
    """Simulate every mode with less recomputation than the current mode; return memory and step time of each."""
    ways = ("full", "selective", "none")
    now = base.scenario.training.recompute
    found = []
    for recompute in ways[ways.index(now) + 1 :] if now in ways else ():
        training = base.scenario.training.model_copy(update={"recompute": recompute})
        other = simulate_scenario(base.scenario.model_copy(update={"training": training}))
        found.append(LessRecomputation(recompute, other.memory.total, other.step_time))
    return found


@dataclass(frozen=True, slots=True)
class GapCause:
    """A resource, and the factor on it that would explain the gap between measured and simulated step time.

    ``part`` is the fraction of the step that depends on the resource. ``factor`` is on the rate, of latency and launch
    on the time; None where none explains it.
    """

    resource: str
    part: float
    factor: float | None

    def describe(self) -> str:
        """Return a text such as "peak FLOP/s would have to be 0.870 x the modelled value (61.2% of the step)"."""
        name, part = RESOURCES[self.resource], f"{self.part:.1%} of the step"
        if self.factor is None:
            return f"{name} alone cannot close the gap ({part})"
        return f"{name} would have to be {self.factor:.3f} x the modelled value ({part})"

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON-ready values."""
        return {"resource": self.resource, "part": self.part, "factor": self.factor}


def find_gap_causes(measured: Sequence[Sensitivity], gap: float) -> list[GapCause]:
    """Return, for each resource, the factor that would explain a gap (s) of measured minus simulated step time.

    Most of the step first. A part p of the step S depends on a resource: S (1 - p) + S p / x at x times its rate. So a
    gap g is explained by x = 1 / (1 + g / (S p)), and of latency or launch, where times are asked for, by 1 + g / (S p)
    times the time. To first order: another resource may limit the step long before.
    """
    causes = []
    for each in measured:
        part = each.gain * (1 + each.by)
        if part <= _NEGLIGIBLE:
            continue
        times = 1 + gap / (each.before * part)  # as much of its time
        factor = None if times <= 0 else times if each.resource in TIME_RESOURCES else 1 / times
        causes.append(GapCause(each.resource, part, factor))
    return sorted(causes, key=lambda cause: -cause.part)


@check_arguments
def inflation(
    scenarios: Mapping[str, ScenarioLike], sigmas: Iterable[float], *, per: DrawUnit = "kernel", replicas: int = 50
) -> DataFrame:
    """Simulate how much random durations prolong each scenario's step, for each standard deviation in ``sigmas``.

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
        scenario = to_scenario(given, "inflation")
        own = [one.model_dump(mode="json", exclude_none=True) for one in scenario.document_faults if one.kind != kind]
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
    """Return the factor by which random compute times prolong a step that ends with a barrier of all ranks."""
    return largest_lognormal(ranks, sigma) * (math.exp(sigma**2) if per == "gpu" else 1.0)


def largest_lognormal(count: int, sigma: float) -> float:
    """Return the expected maximum of ``count`` independent lognormal factors with mean 1.

    >>> round(largest_lognormal(1, 0.05), 12), round(largest_lognormal(64, 0.05), 4)
    (1.0, 1.1232)
    """
    from scipy.integrate import quad
    from scipy.stats import norm

    if count < 1 or not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"count must be at least 1, and sigma a finite number, at least 0; got {count} and {sigma}")

    def probability_density(value: float) -> float:
        logarithm = sigma * value - sigma**2 / 2 + norm.logpdf(value) + (count - 1) * norm.logcdf(value)
        return count * math.exp(logarithm)

    middle = float(norm.ppf((count - 0.375) / (count + 0.25)))
    parts = [(middle - 10, middle), (middle, middle + 10 + sigma)]
    return math.fsum(float(quad(probability_density, low, high, limit=400, epsabs=1e-13)[0]) for low, high in parts)
