"""The states of a cluster that a run meets, each played once by the step simulator on the same topology graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simcluster.base.errors import InputError
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.simulate import replay
from simcluster.studies.whatif.mitigations import without_machine

MOST = 50
"""Steps that a run may ask for."""


@dataclass
class StepStates:
    """Seconds of a step of a scenario in every state that was asked for, by its words; each is played once."""

    scenario: Scenario
    asked: dict[str, float] = field(default_factory=dict)

    def _played(self, words: str, scenario: Scenario) -> float:
        if words not in self.asked:
            if len(self.asked) >= MOST:
                raise InputError(
                    f"run: more than {MOST} states of the cluster: {words} would be the next; "
                    "give fewer levels (failures.by, failures.left)"
                )
            self.asked[words] = replay(scenario).step_time
        return self.asked[words]

    @cached_property
    def healthy(self) -> float:
        """With all as planned (the scenario's own faults are part of that)."""
        return self._played("healthy", self.scenario)

    def with_fault(self, words: str, fault: dict[str, Any]) -> float:
        """With a fault more."""
        document = self.scenario.document()
        document["faults"] = [*document.get("faults", []), fault]
        changed = from_document(document)
        return self._played(words, changed)

    def slow_gpu(self, rank: int, factor: float) -> float:
        """With a GPU that takes so many times as long."""
        return self.with_fault(f"GPU of rank {rank} {factor:g} x slower", {"kind": "slow_gpu", "rank": rank, "factor": factor})

    def slow_nic(self, rank: int, left: float) -> float:
        """With that share of a NIC's bandwidth left."""
        words = f"NIC of rank {rank} at {left:.0%}"
        return self.with_fault(words, {"kind": "slow_link", "nic_of": rank, "factor": left})

    def fewer_replicas(self, missing: int) -> tuple[float, float]:
        """(seconds of a step with so many replicas fewer, samples of it over those of a whole step)."""
        scenario = self.scenario
        for _ in range(missing):
            smaller, _ = without_machine(scenario, 0)
            if smaller is None:
                raise InputError(f"run.short: shrink: the job has {self.scenario.dp} replicas; {missing} cannot be missing")
            scenario = smaller
        share = scenario.training.global_batch / self.scenario.training.global_batch
        return self._played(f"{missing} replica{'s' * (missing > 1)} fewer", scenario), share


