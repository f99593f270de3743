"""Several jobs on one cluster: alone as ever, beside others slower only where their traffic meets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simcluster
from simcluster.cli import main
from simcluster.together import Placed, load_jobs, simulate_together


def jobs_file(folder: Path, first: list[int], second: list[int], oversubscription: float = 4) -> Path:
    """Two jobs of 16 GPUs that reduce their gradients after the backward, on given machines of four."""
    change = "{gpus: 16, parallel.dp: 16, training.global_batch: 256, overlap.grad_reduce: false}"
    path = folder / "jobs.yaml"
    path.write_text(
        "cluster: {topology: dgx_h100, nodes: 4, fabric: {nodes_per_unit: 2, "
        f"oversubscription: {oversubscription}}}}}\n"
        f"jobs:\n  - {{scenario: tiny_dp, machines: {first}, set: {change}}}\n"
        f"  - {{scenario: tiny_dp, machines: {second}, set: {change}}}\n",
        encoding="utf-8",
    )
    return path


def test_a_job_alone_is_the_scenario_itself() -> None:
    scenario = simcluster.load("tiny_3d")
    (shared,) = simulate_together([Placed(scenario, tuple(range(scenario.gpus)))], scenario.cluster.built)
    assert shared.slowdown == 1.0
    assert shared.result.step_time == simcluster.simulate(scenario).step_time


def test_jobs_that_share_no_link_do_not_slow_each_other(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 1], [2, 3]))
    assert [each.slowdown for each in simulate_together(placed, cluster)] == [1.0, 1.0]


def test_jobs_that_share_uplinks_slow_each_other(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 2], [1, 3]))
    shared = simulate_together(placed, cluster)
    assert shared[0].slowdown == shared[1].slowdown > 1.05
    roomy = simulate_together(*load_jobs(jobs_file(tmp_path, [0, 2], [1, 3], oversubscription=1)))
    assert [each.slowdown for each in roomy] == [1.0, 1.0]


def test_folded_is_unfolded(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 2], [1, 3]))
    folded, plain = simulate_together(placed, cluster), simulate_together(placed, cluster, folded=False)
    for one, other in zip(folded, plain, strict=True):
        assert one.result.step_time == other.result.step_time
        for rank in range(16):
            columns = ["start", "end", "kind", "name", "stage"]
            mine, its = (each.result.timeline_of(rank)[columns].values.tolist() for each in (one, other))
            assert sorted(mine) == sorted(its)


def test_a_short_job_repeats_beside_a_long_one() -> None:
    short = simcluster.load("tiny_3d")
    cluster = simcluster.load("tiny_3d", {"cluster.nodes": 8, "gpus": 8}).cluster.built
    long = simcluster.load("tiny_3d", {"training.global_batch": 4 * short.training.global_batch})
    gpus = short.gpus
    shared = simulate_together([Placed(short, tuple(range(gpus))), Placed(long, tuple(range(gpus, 2 * gpus)))], cluster)
    assert shared[0].result.steps > 1 == shared[1].result.steps
    assert shared[0].result.step_time == pytest.approx(shared[0].alone, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cluster: {topology: dgx_h100}\njobs: []\n", ["jobs"]),
        ("cluster: {topology: dgx_h100}\njobs: [{scenario: tiny_dp, machine: [0]}]\n", ["machine", "machines"]),
        (
            "cluster: {topology: dgx_h100, nodes: 1}\njobs: [{scenario: tiny_dp, machines: [0], set: {gpus: 4}}]\n",
            ["4 ranks", "8 GPUs"],
        ),
        ("cluster: {topology: flat, gpus: 4}\njobs: [{scenario: tiny_dp}, {scenario: tiny_dp}]\n", ["only 0", "free"]),
        (
            "cluster: {topology: flat, gpus: 8}\njobs: [{scenario: tiny_dp, machines: [0, 1, 2, 3], set: {gpus: 4}},"
            " {scenario: tiny_dp, machines: [3, 4, 5, 6], set: {gpus: 4}}]\n",
            ["gpu3", "one job"],
        ),
    ],
)
def test_bad_jobs_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str]
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["share", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("simcluster: error: ")
    assert all(word in shown for word in words), shown


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = jobs_file(tmp_path, [0, 2], [1, 3])
    assert main(["share", str(path), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["gpus"] for row in rows] == [16, 16]
    assert main(["share", str(path), "--gantt", str(tmp_path / "jobs.png")]) == 0
    assert f"{rows[0]['slowdown']:.3f} x" in capsys.readouterr().out
    assert (tmp_path / "jobs.png").stat().st_size > 10_000
