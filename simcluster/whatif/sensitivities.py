"""How much the step time depends on each resource of the cluster: by the critical path, and confirmed by playing.

One percent more of a rate, or one percent less of a time, is a scenario like any other (``cluster.scale``).  Imports
the door, results and scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from simcluster.documents.complaints import did_you_mean, listed
from simcluster.errors import InputError
from simcluster.measuring.replanned import path_seconds_under
from simcluster.result import Result
from simcluster.scenario.scale import Scale
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import prepare, replay

RESOURCES: Mapping[str, str] = MappingProxyType(
    {
        "flops": "peak FLOP/s",
        "memory_bandwidth": "memory bandwidth (HBM)",
        "nvlink": "NVLink bandwidth",
        "network": "network bandwidth (NICs and switches)",
        "pcie": "PCIe bandwidth",
        "latency": "latency of links and collectives",
        "launch": "launch time and host work",
        "memory": "memory size",
    }
)
"""Every resource that can be more or less: a factor of ``cluster.scale``, and what people call it."""

TIMES = ("latency", "launch")
"""Of these, less is better."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What ``by`` (0.01 is one percent) more of a resource does to the step; less of latency and of launch time.

    ``estimate`` is the step's seconds to first order, along the critical path as it is (None where the program becomes
    another one); ``step_time`` is played.  ``gain`` is the percent by which the step gets shorter for each percent.
    """

    resource: str
    by: float
    before: float
    estimate: float | None
    step_time: float
    price: float | None = None

    @property
    def gain(self) -> float:
        """Percent of the step for each percent of the resource, as played."""
        return (self.before - self.step_time) / self.before / self.by

    @property
    def estimated_gain(self) -> float | None:
        """The same by the critical path alone."""
        return None if self.estimate is None else (self.before - self.estimate) / self.before / self.by

    @property
    def gain_per_dollar(self) -> float | None:
        """Percent of the step for each dollar per GPU, where a price is known."""
        return None if self.price is None else self.gain / self.price

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        derived = {"gain": self.gain, "estimated_gain": self.estimated_gain, "gain_per_dollar": self.gain_per_dollar}
        return {**asdict(self), **derived}


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """What more memory would allow: less recomputation, at this many bytes a GPU, and the step that it gives."""

    recompute: str
    bytes: float
    step_time: float


def sensitivity(
    scenario: Scenario | Result,
    resources: Sequence[str] = (),
    *,
    by: float = 0.01,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> list[Sensitivity]:
    """The step with a little more of each resource, one at a time; the most rewarding first.

    ``scenario`` may be its result, where it was played already.  ``prices`` are dollars per GPU for one percent of a
    resource: with them, the most rewarding per dollar comes first.
    Raises InputError for an unknown resource, a price that is not positive, and for ``by`` outside (0, 1].
    """
    for name in (*resources, *prices):
        if name not in RESOURCES:
            raise InputError(f"unknown resource {name!r}{did_you_mean(name, RESOURCES)}; use {listed(RESOURCES)}")
    if not 0 < by <= 1:
        raise InputError(f"by how much: {by!r} must be above 0 and at most 1, as in 0.01 for one percent")
    for name, price in prices.items():
        if not price > 0:
            raise InputError(f"price of {name}: {price!r} must be positive: dollars per GPU for one percent of it")
    base = scenario if isinstance(scenario, Result) else replay(scenario)
    found = [_of(base, name, by, prices.get(name)) for name in resources or RESOURCES]
    return sorted(found, key=lambda each: (-(each.gain_per_dollar or 0.0), -each.gain) if prices else (0.0, -each.gain))


def scaled(scenario: Scenario, resource: str, by: float) -> Scenario:
    """The scenario with ``by`` more of a resource than it has now (less, where less is better)."""
    now: Scale = scenario.cluster.scale
    factor = 1 / (1 + by) if resource in TIMES else 1 + by
    scale = now.model_copy(update={resource: getattr(now, resource) * factor})
    return scenario.model_copy(update={"cluster": scenario.cluster.with_scale(scale)})


def _of(base: Result, resource: str, by: float, price: float | None) -> Sensitivity:
    before = base.step_time
    if resource == "memory":  # holds, and takes no time
        return Sensitivity(resource, by, before, before, before, price)
    other = scaled(base.scenario, resource, by)
    estimate = path_seconds_under(base.critical_path, base.lowered, prepare(other).lowered)
    return Sensitivity(resource, by, before, estimate, replay(other).step_time, price)


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
