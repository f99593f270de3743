"""What chance makes of a step: the largest of N draws in closed form, beside what the dependency graph makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from simcluster.base.errors import InputError
from simcluster.base.tables import frame_of
from simcluster.documents.argument_types import checked
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay
from simcluster.studies.whatif.montecarlo import monte_carlo, without_chance

if TYPE_CHECKING:
    from pandas import DataFrame

Per = Literal["gpu", "kernel", "pass", "step"]
PERS: tuple[Per, ...] = ("gpu", "kernel", "pass", "step")


@checked
def inflation(
    scenarios: Mapping[str, ScenarioLike],
    sigmas: Iterable[float],
    *,
    per: Per = "kernel",
    replicas: int = 50,
) -> DataFrame:
    """A row for each scenario and sigma: what it makes of the step if ranks draw lognormal factors, and a barrier.

    ``per`` says what has a draw: a ``gpu`` a speed for ever (a fault of kind ``speeds``), or every ``kernel``, ``pass``
    or ``step`` of a rank a duration (kind ``jitter``); laws have mean 1 and stand in the place of the scenario's own of
    their kind.  ``inflation`` is the mean step of the ``replicas`` over that without chance, ``interval`` half of its
    95 % interval, ``barrier`` what one barrier of all ranks would make of a draw for the whole step, each rank
    computing all of the time.
    """
    if per not in PERS:
        raise InputError(f"inflation: per {per!r} is no part of a job that draws; it can be {', '.join(PERS)}")
    rows: list[dict[str, Any]] = []
    for name, given in scenarios.items():
        scenario = scenario_of(given, "inflation")
        base = None
        for sigma in sigmas:
            drawing = scenario.with_({"faults": [*_others(scenario, per), _fault(per, sigma)]})
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
    """What one barrier of so many ranks makes of their computation: the mean of the largest factor on its seconds.

    A speed of mean 1 makes seconds of 1 / speed, which is lognormal as well, with mean exp(sigma^2).
    """
    return largest_lognormal(ranks, sigma) * (math.exp(sigma**2) if per == "gpu" else 1.0)


def _others(scenario: Scenario, per: Per) -> list[dict[str, Any]]:
    """The scenario's faults without those that the study puts its own in the place of."""
    kind = "speeds" if per == "gpu" else "jitter"
    return [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.given_faults if fault.kind != kind]


def _fault(per: Per, sigma: float) -> dict[str, Any]:
    law = {"kind": "lognormal", "sigma": sigma}
    return {"kind": "speeds", "law": law} if per == "gpu" else {"kind": "jitter", "per": per, "factor": law}


def largest_lognormal(count: int, sigma: float) -> float:
    """The mean of the largest of so many lognormal factors of mean 1: what one barrier of that many ranks makes of
    draws for whole steps.  Integrated; MODELLING.md G.2.

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
