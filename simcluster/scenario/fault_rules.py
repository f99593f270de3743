"""Rules between the faults of a scenario and the rest of it, and between each other.  Pure functions of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.documents.complaints import Complaint

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields


def fault_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Every rule that a fault of the scenario breaks."""
    first: dict[str, int] = {}
    for place, fault in enumerate(scenario.faults):
        for path, what in fault.complaints(scenario):
            yield ("faults", place, *path), what
        if fault.ONCE and first.setdefault(fault.kind, place) < place:
            yield ("faults", place), f"{fault.ONCE}, faults.{first[fault.kind]} has it already; keep one"
