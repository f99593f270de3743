"""What jitter makes of a step: the largest of N draws in closed form, beside what the dependency graph makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from simcluster.base.tables import frame_of
from simcluster.longrun.barriers import largest_lognormal
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.studies.whatif.montecarlo import monte_carlo

if TYPE_CHECKING:
    from pandas import DataFrame


def inflation(
    scenarios: Mapping[str, ScenarioLike],
    sigmas: Iterable[float],
    *,
    per: Literal["kernel", "pass", "step"] = "kernel",
    replicas: int = 50,
) -> DataFrame:
    """A row for each scenario and sigma of its jitter (lognormal, mean 1; in the place of any that it has).

    ``inflation`` is the mean step of the ``replicas`` over that without jitter, ``interval`` half of its 95 % interval,
    ``barrier`` what one barrier of all ranks would make of draws for whole steps, each rank computing all of the time.
    """
    rows: list[dict[str, Any]] = []
    for name, given in scenarios.items():
        scenario = scenario_of(given, "inflation")
        others = [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.given_faults
                  if fault.kind != "jitter"]  # fmt: skip
        for sigma in sigmas:
            jitter = {"kind": "jitter", "per": per, "factor": {"kind": "lognormal", "sigma": sigma}}
            found = monte_carlo(scenario.with_({"faults": [*others, jitter]}), replicas=replicas)
            low, high = found.interval
            rows.append({
                "scenario": name, "gpus": scenario.gpus, "schedule": scenario.pipeline.schedule_name, "sigma": sigma,
                "inflation": found.mean / found.planned, "interval": (high - low) / 2 / found.planned,
                "barrier": largest_lognormal(scenario.gpus, sigma), "method": found.method,
            })  # fmt: skip
    return frame_of(rows)
