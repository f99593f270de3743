"""simcluster stragglers and simcluster run --replicas; who waited for whom of every rank; what can be done about it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster.cli import main
from simcluster.interop.replay.trace_writer import recorded_trace_of_result
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.results.waits import Wait, wait_matrix
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.mitigations import drop_node_and_move_ranks, find_slow_nodes, mitigations

SLOW = {"kind": "slow_gpu", "rank": 5, "factor": 1.4}
JOB: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 8},
    "parallel": {"pp": 2, "dp": 4},
    "training": {"global_batch": 32},
}
NODES = {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2}


# --- who waited for whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [{"pp": 2, "dp": 8}, {"tp": 2, "pp": 2, "dp": 4}])
def test_folded_waits_become_those_of_every_rank(tiny: Any, parallel: dict[str, int]) -> None:
    """What each rank waits in all, and for whom most wait, is what playing every rank by itself gives."""
    sections = {"cluster": {"topology": "flat", "gpus": 16}, "training": {"global_batch": 32}}
    scenario = tiny(**sections, parallel=parallel, faults=[SLOW])
    folded, plain = simulate(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(plain.weights) == 16
    assert folded.wait_matrix.unit == "rank"
    np.testing.assert_allclose(folded.wait_matrix.waited_seconds, plain.wait_matrix.waited_seconds, rtol=1e-12)
    assert folded.wait_matrix.awaited_seconds.argmax() == plain.wait_matrix.awaited_seconds.argmax() == 5


def test_a_rank_waits_for_its_own_neighbour_not_for_the_one_that_was_played() -> None:
    plan = ParallelPlan(dp=4, pp=2)  # ranks 0 to 3, then 4 to 7
    found = wait_matrix([Wait(0, 4, "pipeline", 1.0)], plan, class_of=[0] * 4 + [1] * 4, host_of=[0] * 8)
    assert np.argwhere(found.seconds).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    alike = wait_matrix([Wait(0, 1, "group", 1.0)], plan, class_of=[0, 0, 1, 1, 2, 2, 2, 2], host_of=[0] * 8)
    assert not np.diag(alike.seconds).any()


def test_waits_are_gathered_by_worker_machine_and_stage(tiny: Any) -> None:
    plan = ParallelPlan(tp=2, dp=2, pp=2)
    one = [Wait(0, 5, "pipeline", 3.0)]
    options: dict[str, Any] = {"class_of": range(8), "host_of": [0, 0, 1, 1, 2, 2, 3, 3]}
    by_worker = wait_matrix(one, plan, **options, unit="worker")
    assert by_worker.names == ("0,0", "1,0", "0,1", "1,1")
    assert by_worker.seconds[0, 2] == by_worker.seconds.sum() == 1.5  # a mean over its two ranks
    assert wait_matrix(one, plan, **options, unit="machine").seconds[0, 2] == 1.5
    assert wait_matrix(one, plan, **options, unit="stage", steps=3).seconds[0, 1] == 0.25
    large = ParallelPlan(tp=8, dp=16, pp=4)
    hosts = [rank // 8 for rank in range(512)]
    assert wait_matrix([], large, class_of=range(512), host_of=hosts).unit == "worker"


def test_gradients_that_wait_beside_computation_make_nobody_wait(tiny: Any) -> None:
    """A bucket of a fast rank is early for its all-reduce while the rank still computes: only what is idle counts."""
    overlap = {"grad_reduce": True, "bucket_size": "2 MB", "interference": "none"}
    job = {
        **JOB,
        "parallel": {"dp": 8},
        "model": {"layers": 8, "sequence_length": 8192},
        "training": {"global_batch": 8},
    }
    result = simulate(tiny(**job, overlap=overlap, faults=[SLOW]))
    spans = result.timeline_of(0)
    computing = spans[spans["stream"] == "compute"]
    busy = float((computing["end"] - computing["start"]).sum())
    background = spans[(spans["stream"] == "dp") & (spans["start"] > spans["ready"])]
    assert float((background["start"] - background["ready"]).sum()) > result.step_time - busy  # early, all in all
    assert 0.1 * result.step_time < result.wait_matrix.waited_seconds[0] <= result.step_time - busy


# --- traces of our own ------------------------------------------------------------------------------------------------


def test_a_recorded_pass_is_as_long_as_its_ops(tiny: Any) -> None:
    """A backward pass that begins with a collective does not make the forward of its microbatch last until then."""
    sections: dict[str, Any] = {**JOB, "overlap": {"tensor": True}}
    sections.pop("parallel")
    job = simulate(tiny(**sections, parallel={"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True}))
    trace = recorded_trace_of_result(job, "own")
    lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
    for code, stage, seconds in zip(trace.optype, trace.stage, trace.duration, strict=True):
        lengths[trace.optype_names[code], int(stage)].append(float(seconds))
    for (optype, stage), passes in lengths.items():
        if optype.endswith("compute"):
            assert max(passes) < 1.02 * min(passes), (optype, stage)


# --- what pays --------------------------------------------------------------------------------------------------------


def test_dropping_a_machine_leaves_the_job_a_replica_less(tiny: Any) -> None:
    late = {"kind": "slow_gpu", "rank": 7, "factor": 1.1}
    scenario = tiny(cluster=NODES, parallel={"pp": 2, "dp": 4}, training={"global_batch": 24}, faults=[SLOW, late])
    assert find_slow_nodes(scenario) == [2, 3]
    left, note = drop_node_and_move_ranks(scenario, 2)
    assert left is not None
    assert (left.gpus, left.dp, left.training.global_batch, note) == (6, 3, 24, "")
    assert [fault.ranks for fault in left.faults] == [(5,)]  # rank 7 moved up into the gap, rank 5 is gone
    smaller, said = drop_node_and_move_ranks(tiny(cluster=NODES, parallel={"pp": 2, "dp": 4}, faults=[SLOW]), 2)
    assert smaller is not None
    assert "is not divisible" in said
    assert drop_node_and_move_ranks(tiny(cluster=NODES, parallel={"tp": 2, "pp": 4}, faults=[SLOW]), 2)[0] is None


def test_faults_of_links_move_with_their_machine(tiny: Any) -> None:
    """Without machine 2 (ranks 4 and 5), rank 7 is rank 5 and machine 3 is machine 2; between switches all stays."""
    slow = {"kind": "slow_link", "factor": 0.5}
    found = [{**slow, "nic_of": 7}, {**slow, "nic_of": 4}, {**slow, "uplinks_of": 3}, {**slow, "uplinks_of": 2},
             {**slow, "between": ["unit0.leaf0", "node0.nic0"]}]  # fmt: skip
    left, _ = drop_node_and_move_ranks(tiny(cluster=NODES, parallel={"pp": 2, "dp": 4}, faults=found), 2)
    assert left is not None
    assert [(fault.nic_of, fault.uplinks_of, fault.between) for fault in left.faults] == [
        (5, None, None), (None, 2, None), (None, None, ("unit0.leaf0", "node0.nic0")),
    ]  # fmt: skip


def test_mitigations_are_played(tiny: Any) -> None:
    model = {"vocab_size": 32000, "layers": 8}
    result = simulate(tiny(cluster=NODES, parallel={"pp": 2, "dp": 4}, training={"global_batch": 24}, model=model,
                           faults=[SLOW]))  # fmt: skip
    found = {each.what.split(" (")[0]: each for each in mitigations(result)}
    assert set(found) == {
        "rebalance the stages",
        "replace node 2 with a healthy one",
        "drop node 2, continue with dp 3",
    }
    replaced = found["replace node 2 with a healthy one"]
    assert replaced.step_time == result.without_faults
    assert replaced.pays == pytest.approx(1 - replaced.step_time / result.step_time)
    dropped = found["drop node 2, continue with dp 3"]
    assert dropped.gpus == 6
    assert dropped.pays_per_gpu > dropped.pays


def test_planned_collections_and_dealt_out_sequences(tiny: Any) -> None:
    stall = {"kind": "host_stall", "cause": "garbage_collection", "seconds": "2 ms", "every": 4, "first": "random"}
    documents = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 20, "sigma": 1.5}}
    result = simulate(tiny(**JOB, steps=4, faults=[stall, documents]))
    found = {each.what.split(" (")[0]: each for each in mitigations(result)}
    assert found["plan the garbage collection: all ranks together, between steps"].pays > 0.01
    assert found["redistribute the sequences"].pays > 0


# --- the commands -----------------------------------------------------------------------------------------------------


def test_the_command_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {option: tmp_path / f"{option}.png" for option in ("heatmap", "matrix")}
    files = [text for option, path in names.items() for text in (f"--{option}", str(path))]
    faults = "faults=[{kind: slow_gpu, rank: 5, factor: 1.3}]"
    assert (
        main(["stragglers", "tiny_3d", "--set", faults, "--mitigate", *files, "--json", str(tmp_path / "s.json")]) == 0
    )
    out = capsys.readouterr().out
    for words in (
        "T_ideal",
        "slow gpu, rank 5, slowdown 1.3",
        "by trace",
        "the longest waits",
        "remedy",
        "dp rank 0",
        "slowdown explained by the slowest 3 % of workers",
        "slowdown explained by the last stage",
    ):
        assert words in out
    assert all(path.stat().st_size > 10_000 for path in names.values())
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["slowdown"] == pytest.approx(document["step_time_s"] / document["clean_s"])
    assert document["waits"][0]["seconds"] >= document["waits"][-1]["seconds"] > 0
    assert document["mitigations"]


def test_the_command_refuses_a_file_it_cannot_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stragglers", "tiny_3d", "--matrix", "waits.txt"]) == 2
    assert "a picture ends in" in capsys.readouterr().err


def test_run_with_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = "faults=[{kind: jitter, factor: {kind: lognormal, sigma: 0.1}}]"
    picture, numbers = tmp_path / "h.png", tmp_path / "r.json"
    command = [
        "run",
        "tiny_dp",
        "--set",
        faults,
        "--replicas",
        "60",
        "--histogram",
        str(picture),
        "--json",
        str(numbers),
    ]
    assert main(command) == 0
    assert "60 replicas" in capsys.readouterr().out
    document = json.loads(numbers.read_text())
    found = document["step_time_distribution_s"]
    assert found["mean_95_s"][0] < found["mean_s"] < found["mean_95_s"][1]
    assert found["mean_s"] > found["without_chance_s"] == document["step_time_s"]
    assert document["scenario"]["replicas"] == 60
    assert document["scenario"]["faults"][0]["kind"] == "jitter"
    assert picture.stat().st_size > 10_000
    assert main(["run", "tiny_dp", "--histogram", str(picture)]) == 2
    assert "there is only one replica" in capsys.readouterr().err
