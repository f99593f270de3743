"""What is measured of a run part by part is what is measured of all of its spans at once, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster import load, simulate
from simcluster.engine import op_parts
from simcluster.reference.record_parts import LargeRecord
from simcluster.results.result import Result

SPEEDS = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.05}}
SMALL = {"faults": [SPEEDS], "engine": "compiled"}


def both(
    scenario: str, changes: dict[str, Any], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Result, Result]:
    """A run that is measured in parts of so many ops, and one that is measured whole."""
    whole = simulate(load(scenario, changes))
    assert whole._in_parts is None
    monkeypatch.setattr(op_parts, "_AT_ONCE", at_once)
    return simulate(load(scenario, changes)), whole


@pytest.mark.parametrize(
    ("scenario", "changes", "at_once", "parts"),
    [
        ("tiny_3d", SMALL, 500, 2),
        ("tiny_3d", {**SMALL, "pipeline.p2p": "rendezvous", "steps": 2}, 1_000, 2),
        ("fsdp_7b_64xa100", SMALL, 5_000, 8),
    ],
)  # fmt: skip
def test_parts_are_measured_as_the_whole(
    scenario: str, changes: dict[str, Any], at_once: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, whole = both(scenario, changes, at_once, monkeypatch)
    assert isinstance(found.record, LargeRecord)
    assert len(found.record.make_parts) >= parts
    assert found._in_parts is not None
    assert found.times == whole.times
    assert found.times.of_rank == whole.times.of_rank
    assert found.peaks == whole.peaks
    assert found.waits == whole.waits
    assert found.to_dict() == whole.to_dict()


def test_a_job_that_writes_to_storage_is_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may continue when all else is over."""
    found, _ = both("tiny_3d", {**SMALL, "checkpoint": {"after": 0, "to": "100 GB/s"}}, 1_000, monkeypatch)
    assert not isinstance(found.record, LargeRecord)
