"""Several jobs on one cluster: alone as ever, beside others slower only where their traffic meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import main, make_parser
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.multi_job import PlacedJob, SharedJobResult, load_jobs, simulate_jobs


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
    scenario = simcluster.scenario("tiny_3d")
    (shared,) = simulate_jobs([PlacedJob(scenario, tuple(range(scenario.gpus)))], scenario.cluster.built)
    assert shared.slowdown == 1.0
    assert shared.result.step_time == simcluster.simulate(scenario).step_time


def test_jobs_that_share_no_link_do_not_slow_each_other(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 1], [2, 3]))
    assert [each.slowdown for each in simulate_jobs(placed, cluster)] == [1.0, 1.0]


def test_jobs_that_share_uplinks_slow_each_other(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 2], [1, 3]))
    shared = simulate_jobs(placed, cluster)
    assert shared[0].slowdown == shared[1].slowdown > 1.05
    roomy = simulate_jobs(*load_jobs(jobs_file(tmp_path, [0, 2], [1, 3], oversubscription=1)))
    assert [each.slowdown for each in roomy] == [1.0, 1.0]


def test_folded_is_unfolded(tmp_path: Path) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 2], [1, 3]))
    folded, plain = simulate_jobs(placed, cluster), simulate_jobs(placed, cluster, folded=False)
    for one, other in zip(folded, plain, strict=True):
        assert one.result.step_time == other.result.step_time
        for rank in range(16):
            columns = ["start", "end", "kind", "name", "stage"]
            mine, its = (each.result.timeline_of(rank)[columns].values.tolist() for each in (one, other))
            assert sorted(mine) == sorted(its)


def test_a_short_job_repeats_beside_a_long_one() -> None:
    short = simcluster.scenario("tiny_3d")
    cluster = simcluster.scenario("tiny_3d", {"cluster.nodes": 8, "gpus": 8}).cluster.built
    long = simcluster.scenario("tiny_3d", {"training.global_batch": 4 * short.training.global_batch})
    gpus = short.gpus
    shared = simulate_jobs(
        [PlacedJob(short, tuple(range(gpus))), PlacedJob(long, tuple(range(gpus, 2 * gpus)))], cluster
    )
    assert len(shared[0].measured) > 2 * len(shared[1].measured) >= 16
    assert [each.slowdown for each in shared] == [1.0, 1.0]  # they share no link


# --- one uplink, and nobody leaves before the others are measured -----------------------------------------------------

ONE_UPLINK: dict[str, Any] = {
    "kind": "leaf_spine", "device": "h100", "leaves": 2, "gpus_per_leaf": 2, "spines": 1, "path_latency": "0 s",
    "link": {"line_rate": "400 Gbit/s"}, "uplink": {"line_rate": "400 Gbit/s"},
}  # fmt: skip


def on_one_uplink(batch: int, steps: int = 1) -> Scenario:
    """Two GPUs under different leaves, which compute, then reduce their gradients: 7.4 ms of batch 2, 9.8 ms of 6."""
    size = {"layers": 5, "hidden_size": 1024, "heads": 8, "ffn_hidden_size": 4096, "vocab_size": 1000}
    return from_document({
        "cluster": {"topology": ONE_UPLINK}, "gpus": 2, "steps": steps, "training": {"global_batch": batch},
        "model": {**size, "sequence_length": 512, "tied_embeddings": True},
        "overlap": {"grad_reduce": False, "interference": "none"},
    })  # fmt: skip


def sharing(first: Scenario, second: Scenario) -> list[SharedJobResult]:
    return simulate_jobs([PlacedJob(first, (0, 2)), PlacedJob(second, (1, 3))], first.cluster.built)


def test_jobs_that_are_alike_share_the_uplink_in_all_steps() -> None:
    """Closed form: both reduce at once at half the rate, so a step of c + r takes c + 2 r."""
    job = on_one_uplink(2)
    reducing = simulate_jobs([PlacedJob(job, (0, 2))], job.cluster.built)[0].result.times.breakdown["exposed_dp"]
    for each in sharing(job, job):
        assert each.step_time == pytest.approx(each.alone + reducing, rel=1e-6)


def test_a_short_job_meets_its_neighbour_in_all_measured_steps() -> None:
    """The oracle is a long run: as steps go to many, how the jobs happen to meet averages out.

    A neighbour that left after its one step would make this 1.197 of the short and 1.298 of the long one.
    """
    shared = sharing(on_one_uplink(2), on_one_uplink(6))
    assert [each.alone for each in shared] == pytest.approx([7.426e-3, 9.826e-3], rel=1e-3)
    long_run = sharing(on_one_uplink(2, steps=80), on_one_uplink(6, steps=80))
    assert min(len(each.measured) for each in long_run) >= 80
    for found, expected in zip(shared, long_run, strict=True):
        assert found.slowdown == pytest.approx(expected.slowdown, rel=0.02)
        assert expected.slowdown > 1.35


@settings(max_examples=4)
@given(first=st.integers(1, 8), second=st.integers(1, 8))
def test_nobody_leaves_while_another_is_measured(first: int, second: int) -> None:
    shared = sharing(on_one_uplink(2 * first), on_one_uplink(2 * second))
    for each in shared:
        assert len(each.measured) >= 8
        assert each.measured.start == 1
        assert each.measured.stop < each.result.steps
        reducing = each.result.times.breakdown["exposed_dp"]
        assert 1.0 <= each.slowdown <= (each.alone + reducing) / each.alone
        for other in shared:
            own = other.result.spans
            assert own.start[own.step == other.result.steps - 1].min() >= each.window[1] - 1e-9


def test_a_job_that_would_repeat_for_ever_is_refused() -> None:
    first, second = on_one_uplink(2), on_one_uplink(2, steps=5000)
    with pytest.raises(InputError, match=r"would need .* steps .*; the limit is 4,096"):
        sharing(first, second)


FAULTS: dict[str, dict[str, Any]] = {
    "throttling": {"kind": "slow_gpu", "rank": 5, "factor": 1.5, "start": "1 ms", "period": "3 ms", "duty": 0.5},
    "a machine": {"kind": "slow_gpu", "node": 1, "factor": 1.3, "end": "4 ms"},
    "jitter": {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}, "per": "pass"},
    "stall": {"kind": "host_stall", "cause": "garbage_collection", "seconds": "2 ms", "rank": 2},
    "flap": {"kind": "link_flap", "nic_of": 9, "start": "2 ms", "down": "2 ms", "period": "7 ms"},
    "slow uplinks": {"kind": "slow_link", "uplinks_of": 1, "factor": 0.3, "start": "1 ms", "end": "9 ms"},
    "spells": {"kind": "background_load", "uplinks_of": 0, "share": 0.95, "on": "2 ms", "off": "500 us"},
    "nic": {"kind": "slow_link", "nic_of": 3, "factor": 0.2},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_alone_has_its_own_faults(fault: str) -> None:
    """On any machines of the cluster: ranks and machines are the job's."""
    machines_of_eight = {"topology": "dgx_h100", "nodes": 4}
    changes = {"cluster": machines_of_eight, "gpus": 16, "parallel.dp": 16, "training.global_batch": 64}
    clean = simcluster.scenario("tiny_dp", changes)
    scenario = simcluster.scenario("tiny_dp", {**changes, "faults": [FAULTS[fault]]})
    cluster = scenario.cluster.built
    for machines in ((0, 1), (3, 1)):
        gpus = tuple(gpu for host in machines for gpu, own in enumerate(cluster.host_of) if own == host)
        (shared,) = simulate_jobs([PlacedJob(scenario, gpus)], cluster)
        assert shared.slowdown == 1.0
        expected = simcluster.simulate(scenario)
        assert shared.result.step_time == pytest.approx(expected.step_time, rel=1e-9)
        assert expected.step_time > simcluster.simulate(clean).step_time


@pytest.mark.parametrize("fault", ["throttling", "stall", "slow uplinks"])
def test_folded_is_unfolded_with_faults(tmp_path: Path, fault: str) -> None:
    placed, cluster = load_jobs(jobs_file(tmp_path, [0, 2], [1, 3]))
    faulty = simcluster.scenario("tiny_dp", {**_changes(placed[0]), "faults": [FAULTS[fault]]})
    jobs = [PlacedJob(faulty, placed[0].gpus), placed[1]]
    folded, plain = simulate_jobs(jobs, cluster), simulate_jobs(jobs, cluster, folded=False)
    assert [each.result.step_time for each in folded] == [each.result.step_time for each in plain]
    assert len(folded[0].result.weights) < len(plain[0].result.weights) == 16


def test_a_flapping_link_of_one_job_holds_up_its_neighbour_only_where_they_meet(tmp_path: Path) -> None:
    flap = {"kind": "link_flap", "start": "0 s", "down": "1 ms", "period": "3 ms"}
    flaps = [{**flap, "between": [f"unit0.leaf{rail}", "spine0"]} for rail in range(8)]
    for machines, meets in (([0, 2], True), ([0, 1], False)):
        others = [machine for machine in range(4) if machine not in machines]
        placed, cluster = load_jobs(jobs_file(tmp_path, machines, others))
        faulty = simcluster.scenario("tiny_dp", {**_changes(placed[0]), "faults": flaps})
        clean = simulate_jobs(placed, cluster)
        both = simulate_jobs([PlacedJob(faulty, placed[0].gpus), placed[1]], cluster)
        assert (both[1].result.step_time > clean[1].result.step_time) == meets


def _changes(placed: PlacedJob) -> dict[str, Any]:
    """What makes tiny_dp the job of ``jobs_file``."""
    scenario = placed.scenario
    return {
        "cluster": scenario.document()["cluster"], "gpus": 16, "parallel.dp": 16, "training.global_batch": 256,
        "overlap.grad_reduce": False,
    }  # fmt: skip


def test_steps_with_chance_are_compared_with_the_same_steps() -> None:
    """A short job repeats, and draws anew in every step: alone it is played for as many."""
    jitter = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.2}, "per": "pass"}
    short = simcluster.scenario("tiny_dp", {"faults": [jitter]})
    long = simcluster.scenario("tiny_dp", {"training.global_batch": 2 * short.training.global_batch})
    cluster = simcluster.scenario("tiny_dp", {"cluster.gpus": 8, "gpus": 4}).cluster.built
    gpus = short.gpus
    shared = simulate_jobs(
        [PlacedJob(short, tuple(range(gpus))), PlacedJob(long, tuple(range(gpus, 2 * gpus)))], cluster
    )
    assert shared[0].result.steps > 1
    assert shared[0].slowdown == pytest.approx(1.0, rel=1e-6)


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
    assert all(row["slowdown"] == row["step_time_s"] / row["step_time_alone_s"] for row in rows)
    assert all(8 <= row["steps_measured"] < row["steps_played"] for row in rows)
    assert (tmp_path / "jobs.png").stat().st_size > 10_000


def test_the_picture_is_of_the_same_time_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of the longest while all are there; at the right what each takes, and against itself alone."""
    from simcluster.show import gantt

    drawn: dict[str, Any] = {}
    whole = gantt.compare_gantts
    monkeypatch.setattr(gantt, "compare_gantts", lambda jobs, **how: drawn.update(how) or whole(jobs, **how))
    path = jobs_file(tmp_path, [0, 2], [1, 3])
    assert main(["share", str(path), "--gantt", str(tmp_path / "jobs.png"), "--json", str(tmp_path / "j.json")]) == 0
    rows = json.loads((tmp_path / "j.json").read_text())
    assert drawn["remarks"] == [(format_seconds(row["step_time_s"]), f"{row['slowdown']:.3f} x") for row in rows]
    begin, end = drawn["window"]
    assert end - begin == pytest.approx(2 * max(row["step_time_s"] for row in rows), rel=1e-3)


def test_the_example_of_the_help_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (make_parser("share").epilog or "").splitlines()
    example = lines[1 : lines.index("examples:")]
    (tmp_path / "jobs.yaml").write_text("\n".join(example), encoding="utf-8")
    placed, cluster = load_jobs(tmp_path / "jobs.yaml")
    assert [job.scenario.gpus for job in placed] == [16, 16]
    assert {cluster.host_of[gpu] for gpu in placed[0].gpus} == {0, 2}
    assert main(["share", str(tmp_path / "jobs.yaml"), "--json", "-"]) == 0
    assert all(row["slowdown"] > 1.01 for row in json.loads(capsys.readouterr().out))


def test_a_job_has_the_gpus_of_its_machines_unless_it_says_so(tmp_path: Path) -> None:
    """Or all that are left; what the scenario's file or ``set`` says counts."""
    path = tmp_path / "jobs.yaml"
    head = "cluster: {topology: dgx_h100, nodes: 4}\njobs:\n"
    batch = "training.global_batch: 64"
    jobs = [
        f"machines: [1, 3], set: {{{batch}}}",
        f"set: {{{batch}, gpus: 4}}",
        f"set: {{{batch}, training.micro_batch: 1}}",
    ]
    path.write_text(head + "".join(f"  - {{scenario: tiny_dp, {job}}}\n" for job in [*jobs[:2], "machines: [2]"]))
    assert [len(job.gpus) for job in load_jobs(path)[0]] == [16, 4, 8]
    path.write_text(head + "".join(f"  - {{scenario: tiny_dp, {job}}}\n" for job in [jobs[0], jobs[2]]))
    assert [len(job.gpus) for job in load_jobs(path)[0]] == [16, 16]
    path.write_text(head + "  - {scenario: tiny_dp, machines: [9]}\n")
    with pytest.raises(InputError, match="no node 9; its nodes are 0 to 3: use some"):
        load_jobs(path)
