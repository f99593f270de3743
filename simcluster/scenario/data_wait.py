"""Effect of the data loader on training: how long each step waits for data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import NamedSeconds, format_seconds
from simcluster.faults.stalls import HostStall, Stall
from simcluster.scenario.schedule_plan import batch_sizes_of, plan_of, schedule_of

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


class LateBatches(HostStall):
    """Fault: ranks wait for their batches, for ``late[rank][step]`` seconds (set by ``LoaderEffect``)."""

    seconds: NamedSeconds = 0.0
    late: tuple[tuple[float, ...], ...]

    @property
    def is_neutral(self) -> bool:
        return not any(any(own) for own in self.late)

    @property
    def delays_all_equally(self) -> bool:
        return len(set(self.late)) == 1

    def stalls(self, rank: int, seed: int, steps: int) -> list[Stall]:
        found = enumerate(self.late[rank])
        return [Stall(step, self.cause, seconds, 0.0) for step, seconds in found if seconds]


@dataclass(frozen=True)
class LoaderEffect:
    """Effect of the data loader on a step: loading times, and the waiting time that is not hidden.

    ``batch_delays[host][step]`` is how late batches are (s), with ``hosts`` in that order; ``batch`` is the time of the
    slowest host's batch on one of ``workers``; ``loads_ahead``: batches are loaded before a step needs them.
    """

    step: float
    batch: float
    workers: int
    loads_ahead: bool
    batch_delays: tuple[tuple[float, ...], ...]
    hosts: tuple[int, ...]

    @property
    def exposed_seconds(self) -> float:
        """Mean time (s) that a step waits for the data of the slowest host."""
        return float(np.array(self.batch_delays).max(axis=0).mean())

    def delayed_scenario(self, scenario: Scenario) -> Scenario:
        """Return the scenario to simulate, with the data loader replaced by a fault that delays batches."""
        place = {host: number for number, host in enumerate(self.hosts)}
        late = tuple(self.batch_delays[place[host]] for host in scenario.cluster.built.host_of[: scenario.gpus])
        fault = LateBatches.model_validate({"kind": "host_stall", "cause": "data_loading", "late": late})
        return without_loader(scenario).model_copy(update={"faults": (*scenario.faults, fault)})

    def to_dict(self) -> dict[str, Any]:
        """Return the data loader's effect as a dict for the result JSON."""
        return {"step_s": self.step, "batch_s": self.batch, "workers": self.workers, "exposed_s": self.exposed_seconds}

    def summary_lines(self) -> list[str]:
        """Return the lines about the data loader in a run's summary."""
        together = f", {self.workers} workers {format_seconds(self.batch / self.workers)}" if self.workers > 1 else ""
        exposed = f"{format_seconds(self.exposed_seconds)} exposed" if self.exposed_seconds > 0 else "all hidden"
        return [
            f"  loader       {format_seconds(self.batch)} per batch and worker{together}; without the loader a step "
            f"takes {format_seconds(self.step)}: {exposed}{self._remedy_hint}"
        ]

    @property
    def _remedy_hint(self) -> str:
        enough = math.ceil(self.batch / self.step * (1 - 1e-9))
        if self.exposed_seconds == 0 or (self.loads_ahead and enough <= self.workers):
            return ""
        ahead = "" if self.loads_ahead else " that load ahead (prefetch: 2)"
        return f"; {enough} worker{'s' * (enough > 1)}{ahead} would hide the loading"


def without_loader(scenario: Scenario) -> Scenario:
    """Return the scenario without its data loader."""
    if scenario.data is None or scenario.data.loader is None:
        return scenario
    return scenario.model_copy(update={"data": scenario.data.model_copy(update={"loader": None})})


def tokens_per_host(scenario: Scenario) -> tuple[tuple[int, ...], Floats]:
    """Return the job's hosts, and the number of tokens per step that each host loads."""
    plan, batch = plan_of(scenario, schedule_of(scenario)), batch_sizes_of(scenario)
    replicas: dict[int, set[int]] = {}
    for rank, host in enumerate(scenario.cluster.built.host_of[: scenario.gpus]):
        replicas.setdefault(host, set()).add(plan.coordinates(rank)["dp"])
    each = batch.microbatches * batch.micro_batch * batch.length
    hosts = tuple(sorted(replicas))
    return hosts, np.array([float(each * len(replicas[host])) for host in hosts])
