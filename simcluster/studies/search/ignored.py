"""Parts of a scenario that a search for layouts ignores, and the scenario without them."""

from __future__ import annotations

from typing import NamedTuple

from simcluster.scenario.scenario import Scenario


def alone(scenario: Scenario) -> Scenario:
    """The scenario as it is planned for: one step, no faults, collectives as flows."""
    flows = scenario.collectives.model_copy(update={"detail": "flow"})
    updates = {"steps": 1, "replicas": 1, "collectives": flows, "measured": None}
    return scenario.without_faults().model_copy(update=updates)


class Ignored(NamedTuple):
    """Parts of a scenario that a search ignores: kinds of ``faults`` and ``keys``, sorted."""

    faults: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> Ignored:
        """Return what ``alone`` changes of a scenario's step."""
        faults = {fault.kind for fault in scenario.faults if fault.without() != fault}
        several = [key for key in ("replicas", "steps") if getattr(scenario, key) > 1]
        detail = [] if scenario.collectives.detail == "flow" else ["collectives.detail"]
        return cls(tuple(sorted(faults)), (*detail, *several))

    def in_words(self) -> list[str]:
        """Return a sentence for each of the two that there is."""
        what = {"sequence_lengths": "documents of different lengths (sequence_lengths)"}
        named = ", ".join(what.get(kind, kind) for kind in self.faults)
        told = [f"not in times and memory: the scenario's faults ({named}); run the winner with them"] if named else []
        keys = f"planned for one step, with collectives as flows: no effect has {', '.join(self.keys)}"
        return [*told, *([keys] if self.keys else [])]
