"""Ranks read from the compiled engine's tables have the same metrics as ranks read from columns of all ops."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster import simulate
from simcluster.engine import job_record
from simcluster.results.result import Result
from simcluster.scenario.scenario import load

SPEEDS = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.05}}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("tiny_3d", {"faults": [SPEEDS]}),
    ("tiny_3d", {"faults": [SPEEDS], "pipeline.p2p": "rendezvous", "steps": 2}),
    ("tiny_3d", {"checkpoint": {"after": 0, "to": "100 GB/s"}}),
    ("tiny_3d", {"collectives.detail": "steps", "faults": [SPEEDS]}),
    ("llama3_70b_16xh100_offload", {}),
    ("fsdp_7b_64xa100", {"faults": [SPEEDS]}),
]


def compiled(scenario: str, changes: dict[str, Any]) -> Result:
    return simulate(load(scenario, {"engine": "compiled", **changes}))


@pytest.mark.parametrize(("scenario", "changes"), CASES)
def test_ranks_of_tables_are_those_of_all_ops(scenario: str, changes: dict[str, Any]) -> None:
    found = compiled(scenario, changes)
    whole = replace(found, record=replace(found.record, make_ranks=None))
    for ours, theirs in zip(found.record.iterate_ranks(), whole.record.iterate_ranks(), strict=True):
        assert (ours.rank, ours.stage) == (theirs.rank, theirs.stage)
        many = len(ours.ops)
        for mine, other in zip(ours.times, theirs.times, strict=True):
            assert np.array_equal(mine[:many], other[:many])
            assert sorted(mine[many:]) == sorted(other[many:])  # messages come in another order
        for name in ("step", "chunk", "microbatch", "pair", "on_main", "previous_ops"):
            assert np.array_equal(getattr(ours.ops, name), getattr(theirs.ops, name))
    assert found.times == whole.times
    assert found.times.of_rank == whole.times.of_rank
    assert found.peaks == whole.peaks
    assert found.waits == whole.waits
    assert found.memory_table().equals(whole.memory_table())


def test_times_that_are_not_kept_are_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compiled("tiny_3d", {"faults": [SPEEDS]})
    monkeypatch.setattr(job_record, "_MAX_KEPT_OPS", 0)
    assert compiled("tiny_3d", {"faults": [SPEEDS]}).to_dict() == whole.to_dict()


def measured() -> str:
    results = [compiled(scenario, changes) for scenario, changes in CASES if scenario == "tiny_3d"]
    return repr([(found.times, found.times.of_rank, found.peaks, found.waits) for found in results])


def test_plain_python_measures_the_same_bits() -> None:
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'tests'}{os.pathsep}{root}"}
    code = "import uncompiled, test_ranks_of_record as t; print(t.measured())"
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    found = subprocess.run(command, env=environment, text=True, check=True, capture_output=True).stdout
    assert found == f"{measured()}\n"
