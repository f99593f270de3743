"""Jobs that arrive and leave: no load where they are not, alone before and after, slower only meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.results.timeline import step_end_times
from simcluster.scenario.scenario import load
from simcluster.studies.multi_job import PlacedJob, SharedJobResult, load_jobs, simulate_jobs, simulate_placed_job
from simcluster.topology import Cluster

TEXT = """
cluster: {topology: dgx_h100, nodes: 4, fabric: {nodes_per_unit: 2, oversubscription: 8}}
jobs:
  - {scenario: tiny_dp, machines: [0, 2], set: {training.global_batch: 64}}
  - {scenario: tiny_dp, set: {gpus: 16, training.global_batch: 128, name: twice the batch}}
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[PlacedJob], Cluster]:
    path = tmp_path_factory.mktemp("jobs") / "jobs.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_jobs(path)


def durations(shared: SharedJobResult) -> Any:
    """Seconds of each step, the first from the start of all jobs."""
    return np.diff(step_end_times(shared.result.spans, shared.result.steps), prepend=0.0)


def test_a_job_that_arrives_after_the_other_has_left_is_alone_to_the_bit(jobs: tuple[list[PlacedJob], Cluster]) -> None:
    (first, second), cluster = jobs
    alone = simulate_placed_job(PlacedJob(first.scenario, first.gpus), cluster).step_time
    apart = simulate_jobs([replace(first, leaves=10.5 * alone), replace(second, arrives=12 * alone)], cluster)
    assert [each.slowdown for each in apart] == [1.0, 1.0]
    assert apart[0].step_time == alone
    assert apart[0].result.steps == 11  # the first that ends at 10.5 steps or later
    assert len(apart[1].measured) >= 8
    meets = simulate_jobs([replace(first, leaves=10.5 * alone), replace(second, arrives=6 * alone)], cluster)
    assert all(each.slowdown > 1.001 for each in meets)


def test_a_job_is_slower_only_while_another_is_there(jobs: tuple[list[PlacedJob], Cluster]) -> None:
    (first, second), cluster = jobs
    alone = simulate_placed_job(PlacedJob(first.scenario, first.gpus), cluster).step_time
    begin, end = 6.0 * alone, 24.0 * alone
    stays, comes = simulate_jobs([first, replace(second, arrives=begin, leaves=end)], cluster)
    left = float(step_end_times(comes.result.spans, comes.result.steps)[-1])
    assert end <= left < end + 2 * comes.step_time
    ends, seconds = step_end_times(stays.result.spans, stays.result.steps), durations(stays)
    before, after = ends <= begin, (ends - seconds) >= left
    assert before.sum() >= 6
    assert after.sum() >= 1
    assert (seconds[before | after] == alone).all()  # to the bit
    assert seconds[~(before | after)].mean() > 1.01 * alone
    assert comes.slowdown > stays.slowdown > 1.0  # the mean over its stay, of which it is alone for a part
    assert ends[stays.measured[-1]] >= left
    both = simulate_jobs([first, replace(second, arrives=begin, leaves=end)], cluster, folded=False)
    assert [each.step_time for each in both] == [stays.step_time, comes.step_time]


@pytest.mark.parametrize("name", ["tiny_3d", "fsdp"])
def test_all_that_a_job_does_is_later_by_its_arrival(name: str) -> None:
    fsdp = {"parallel.tp": 1, "parallel.pp": 1, "parallel.dp": 8, "parallel.zero": 3, "overlap.tensor": False,
            "parallel.sequence_parallel": False, "pipeline.schedule": "1f1b"}  # fmt: skip
    scenario = load("tiny_3d", {"steps": 2, "cluster.nodes": 4, **(fsdp if name == "fsdp" else {})})
    job, cluster = PlacedJob(scenario, tuple(range(8))), scenario.cluster.built
    late = 0.125
    now, later = (simulate_placed_job(replace(job, arrives=at), cluster) for at in (0.0, late))
    first, second = (
        sorted(zip(result.timeline["start"] - at, result.timeline["end"] - at, result.timeline["name"], strict=True))
        for result, at in ((now, 0.0), (later, late))
    )
    assert [row for row in second if row[2] != "arrival"] == first
    assert len(first) > 100


def test_the_file_states_when_jobs_arrive_and_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(TEXT.replace("set: {gpus", "arrives: 40 ms, leaves: 200 ms, set: {gpus"), encoding="utf-8")
    (first, second), _ = load_jobs(path)
    assert (first.arrives, first.stays, second.arrives, second.leaves) == (0.0, True, 0.04, 0.2)
    assert main(["share", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "0 s to the end" in shown
    assert "40.00 ms to 200.0 ms" in shown
    assert main(["share", str(path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(job["arrives_s"], job["leaves_s"]) for job in found] == [(0.0, None), (0.04, 0.2)]
    assert found[0]["slowdown"] > 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrives": 0.3, "leaves": 0.2}, "arrives at 0.3 s and leaves at 0.2 s; a job arrives at 0 s or later"),
        ({"arrives": -1.0}, "a job arrives at 0 s or later"),
        ({"arrives": 0.04, "leaves": 0.0401}, "leaves at 0.0401 s, in its first step"),
        ({"arrives": 1e6}, "or let jobs arrive and leave sooner"),
    ],
)
def test_times_that_cannot_be_are_rejected(
    jobs: tuple[list[PlacedJob], Cluster], change: dict[str, float], words: str
) -> None:
    (first, second), cluster = jobs
    with pytest.raises(InputError, match=words):
        simulate_jobs([first, replace(second, **change)], cluster)


def test_a_single_job_has_no_other_to_arrive_after(jobs: tuple[list[PlacedJob], Cluster]) -> None:
    (first, _), cluster = jobs
    with pytest.raises(InputError, match="no other job is there; remove 'arrives' and 'leaves'"):
        simulate_jobs([replace(first, leaves=1.0)], cluster)
