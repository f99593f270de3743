"""GPUs of which no two are equally fast: what a law and a table say, and who is held up by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny

from simcluster.base.errors import InputError
from simcluster.faults.device_speeds import GpuSpeeds
from simcluster.scenario.job_conversion import rank_slowdowns
from simcluster.scenario.scenario import from_document, load, load_text
from simcluster.step.simulate import simulate

EIGHT = {"cluster": {"topology": "flat", "gpus": 8}, "training": {"global_batch": 8}}
LAW = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.05}}


def test_a_law_has_mean_1_and_a_rank_its_speed_however_many_there_are() -> None:
    law = GpuSpeeds.model_validate({**LAW, "seed": 0})
    many, few = law.slowdown_per_rank(100_000, 7), law.slowdown_per_rank(8, 7)
    assert few.tolist() == many[:8].tolist()
    assert float((1 / many).mean()) == pytest.approx(1, abs=3 * 0.05 / np.sqrt(len(many)))
    assert float((1 / many).std()) == pytest.approx(0.05, rel=0.02)


def test_a_table_says_what_slow_gpus_say(tiny: Tiny) -> None:
    table = {"kind": "speeds", "table": [[1, 0.8], [6, 0.5]]}
    one_by_one = [{"kind": "slow_gpu", "rank": 1, "speed": 0.8}, {"kind": "slow_gpu", "rank": 6, "speed": 0.5}]
    job = {**EIGHT, "parallel": {"tp": 2, "pp": 2}}
    found, meant = simulate(tiny(**job, faults=[table])), simulate(tiny(**job, faults=one_by_one))
    assert rank_slowdowns(found.scenario) == rank_slowdowns(meant.scenario)
    assert found.step_time == meant.step_time


def test_a_gpu_may_be_faster_than_its_device_says(tiny: Tiny) -> None:
    job = {**EIGHT, "parallel": {"dp": 8}}
    faster = simulate(tiny(**job, faults=[{"kind": "speeds", "table": [[rank, 1.25] for rank in range(8)]}]))
    assert faster.step_time < simulate(tiny(**job)).step_time


def test_a_table_is_a_file_beside_the_scenario(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text("rank,speed\n# measured on Monday\n1,0.8\n\n6, 0.5  # hot\n")
    said = "name: x\ncluster: {topology: flat, gpus: 8}\ngpus: 8\nmodel: {preset: llama3-8b}\n"
    said += "training: {global_batch: 8}\nfaults:\n  - {kind: speeds, table: speeds.csv}\n"
    found = load_text(said, folder=tmp_path)
    assert found.faults[0].table == ((1, 0.8), (6, 0.5))  # type: ignore[union-attr]


@pytest.mark.parametrize(("fault", "rule"), [
    ({}, "set one: law"),
    ({"law": LAW["law"], "table": [[0, 0.5]]}, "both set"),
    ({"table": [[0, 0.5], [0, 0.6]]}, "two speeds for rank 0"),
    ({"table": [[8, 0.5]]}, "there is no rank 8"),
    ({"table": [[0, 0]]}, "0.01"),
])  # fmt: skip
def test_what_is_no_speed_is_refused(tiny: Tiny, fault: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        tiny(**EIGHT, faults=[{"kind": "speeds", **fault}])


@pytest.mark.parametrize("text", ["rank,speed\n", "0,0.9\nx\n", "0,0.9,1\n", "0.5,0.9\n"])
def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    from simcluster.documents.csv_tables import read_relative_speeds

    (tmp_path / "speeds.csv").write_text(text)
    with pytest.raises(InputError, match=r"speeds.csv:(\d: .* is not rank,speed| has no line)"):
        read_relative_speeds(tmp_path / "speeds.csv")


def test_speeds_go_with_their_gpus_when_some_leave() -> None:
    table = GpuSpeeds.model_validate({"kind": "speeds", "table": [[0, 0.5], [3, 0.9]]})
    left = table.for_remaining_ranks([0, 0, 1, 1], {2: 0, 3: 1})
    assert left is not None
    assert left.table == ((1, 0.9),)
    assert table.for_remaining_ranks([0, 0, 1, 1], {1: 0}) is None


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"kind": "slow_gpu", "rank": 1, "factor": 1.5}, {"slowdown": 1.5}),
        ({"kind": "slow_gpu", "rank": 1, "speed": 0.5}, {"slowdown": 2.0}),
        ({"kind": "slow_link", "nic_of": 0, "factor": 0.5}, {"speed": 0.5}),
        ({"kind": "slow_link", "nic_of": 0, "slowdown": 2}, {"speed": 0.5}),
    ],
)
def test_a_pace_is_written_in_the_sense_of_its_kind(given: dict[str, Any], written: dict[str, float]) -> None:
    """Every spelling is read; what is written has no ``factor`` and reads back as the same fault."""
    scenario = load("tiny_3d", {"faults": [given]})
    (fault,) = scenario.document()["faults"]
    paces = {key: value for key, value in fault.items() if key in ("slowdown", "speed", "factor")}
    assert paces == written
    assert from_document(scenario.document()) == scenario
