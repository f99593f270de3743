"""Recorded jobs: published traces with their published results, runs of our own and back, bad traces, what-ifs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_by_hand import ranks_of_spans

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.interop.replay import (
    RecordedJob,
    RecordedTrace,
    build_recorded_job,
    load_recorded_job,
    measure_stragglers,
    read_recorded_trace,
    trace_from_columns,
)
from simcluster.interop.replay.longest_path import LongestPath
from simcluster.interop.replay.questions import QUESTIONS, answer_question, apply_schedule, find_job_schedule
from simcluster.interop.replay.recorded_job import ReplicaClasses, find_replica_classes
from simcluster.interop.replay.recorded_trace import BACKWARD, COLUMNS, FORWARD
from simcluster.interop.replay.step_graph import StepGraph, make_op_filter
from simcluster.interop.replay.straggler_metrics import (
    find_slowest_workers,
    labelled_wait_matrix,
    rank_wait_seconds,
    replayed_spans,
)
from simcluster.interop.replay.trace_writer import (
    recorded_trace_of_result,
    recorded_trace_of_run,
    save_recorded_trace,
    write_recorded_trace,
)
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.results.step_time import measure_step_time
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs
from simcluster.traffic.traffic import Traffic

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("SIMCLUSTER_DATA", ROOT.parent / "shared" / "validation")) / "bytedance"
needs_traces = pytest.mark.skipif(
    not (DATA / "trace-SE.parquet").is_file(),
    reason="needs the published traces: name the directory of measured runs in SIMCLUSTER_DATA",
)

NEAR = pytest.approx  # of the published results: their arithmetic is float32


def published(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{kind}-{name}.json").read_text())
    return found


@needs_traces
@pytest.mark.parametrize(("name", "error"), [("ST", 0.01886371), ("SE", 0.005134846)])
def test_published_traces_give_the_published_results(name: str, error: float) -> None:
    job = load_recorded_job(DATA / f"trace-{name}.parquet")
    found, result = measure_stragglers(job), published("result", name)
    of_step = [(str(step), index) for index, step in enumerate(found.steps)]
    for key, times in (("base", found.measured), ("nodelay", found.replayed), ("noblk", found.ideal)):
        expected = result[f"step_t_{key}"]
        assert len(expected) == len(times)
        assert [times[index] for _, index in of_step] == NEAR([expected[step] for step, _ in of_step], rel=1e-6)
    assert found.slowdown == NEAR(result["blocking_slowdown"], rel=1e-6)
    assert found.launch == NEAR(result["launch_slowdown"], rel=1e-6)
    assert found.by_type == NEAR(result["blocking_decompose_by_optype"], rel=1e-6)
    by_replica, by_stage = (result[f"blocking_decompose_by_{key}"] for key in ("dp_rank", "stage"))
    assert found.by_replica.tolist() == NEAR([by_replica[str(dp)] for dp in range(job.replicas)], rel=1e-6)
    assert found.by_stage.tolist() == NEAR([by_stage[str(stage)] for stage in range(job.stages)], rel=1e-6)
    for mitigation, kind in ((found.worst_workers, "mw"), (found.last_stage, "ms")):
        expected = published(kind, name)
        assert mitigation.removed == NEAR(expected[f"M{kind[1]}"], rel=1e-6, abs=1e-7)
        assert mitigation.added == NEAR(expected["add"], rel=1e-6)
        assert (mitigation.without, mitigation.alone) == NEAR((expected["trem"], expected["tadd"]), rel=1e-6)
    assert found.error <= error


@needs_traces
@pytest.mark.parametrize("name", ["ST", "SE"])
def test_published_traces_play_alike_as_events(name: str) -> None:
    job = load_recorded_job(DATA / f"trace-{name}.parquet")
    times, events = job.simulate_events()
    assert times.tolist() == job.replay_step_seconds(lambda graph: graph.seconds).tolist()
    assert events > 100 * len(job.steps)
    assert find_job_schedule(job) == "1f1b"
    assert (
        answer_question(job, "schedule=1f1b").relative_change == 0.0
    )  # the schedule that was recorded, rebuilt from its rows


@needs_traces
def test_what_published_traces_cannot_say() -> None:
    job = load_recorded_job(DATA / "trace-ST.parquet")
    shorter, faster, other = (answer_question(job, text) for text in ("last-stage=mean", "links=2x", "schedule=zb-h1"))
    assert shorter.relative_change < -0.2  # its last stage takes 1.6 times as long as the others
    assert -0.05 < faster.relative_change < 0
    assert -0.25 < other.relative_change < -0.15
    assert answer_question(job, "last-stage=mean+schedule=zb-h1").changed_seconds < min(
        shorter.changed_seconds, other.changed_seconds
    )


COSTS = Costs(forward=0.010, backward=0.020, weight_grad=0.009, send=0.001, grad_reduce=0.004, optimizer=0.003)
SLOW = {"faults": [{"kind": "slow_gpu", "rank": 3, "factor": 1.4}]}
JOB: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 4},
    "parallel": {"pp": 2, "dp": 2},
    "training": {"global_batch": 16},
}


def from_costs(
    *, stages: int = 3, dp: int = 3, microbatches: int = 5, slowness: dict[int, float] | None = None, **options: Any
) -> tuple[RecordedTrace, float]:
    run = simulate_costs(COSTS, stages=stages, dp=dp, microbatches=microbatches, slowness=slowness, **options)
    blocking = bool(options.get("blocking_sends"))
    return recorded_trace_of_run(
        run, ParallelPlan(tp=1, dp=dp, pp=stages), blocking=blocking, name="own"
    ), run.step_time


@given(
    stages=st.integers(1, 4),
    dp=st.integers(1, 3),
    extra=st.integers(0, 4),
    factor=st.floats(1.0, 2.0),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    blocking=st.booleans(),
)
@settings(max_examples=25)
def test_a_recorded_run_replays_in_its_own_time(
    stages: int, dp: int, extra: int, factor: float, schedule: str, *, blocking: bool
) -> None:
    slow = {dp * stages - 1: factor}
    trace, seconds = from_costs(
        stages=stages, dp=dp, microbatches=stages + extra, slowness=slow, schedule=schedule, blocking_sends=blocking
    )
    found = measure_stragglers(build_recorded_job(trace))
    assert found.measured.tolist() == pytest.approx([seconds], rel=1e-12)
    assert found.replayed.tolist() == pytest.approx([seconds], rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v", "gpipe"])
def test_a_scenario_with_a_slow_gpu_there_and_back(tiny: Any, tmp_path: Path, schedule: str) -> None:
    pipeline = {"schedule": schedule, "chunks": 2 if schedule == "interleaved" else 1}
    result = simulate(tiny(pipeline=pipeline, **SLOW, **JOB))
    write_recorded_trace(result, tmp_path / "own.parquet")
    job = load_recorded_job(tmp_path / "own.parquet")
    found = measure_stragglers(job)
    assert job.notes == ()
    assert found.replayed.tolist() == pytest.approx([result.step_time], rel=1e-9)
    assert found.slowdown > 1.05
    if schedule != "zb-v":  # there the stage with the head, and not the slow one, is the longest
        assert found.worst == ((1, 1),)


@pytest.mark.parametrize("stages", [1, 2])
def test_collectives_beside_passes_are_launched_from_inside_them(tiny: Any, tmp_path: Path, stages: int) -> None:
    job = {"cluster": {"topology": "flat", "gpus": 4}, "training": {"global_batch": 16}}
    beside = {"grad_reduce": True, "param_gather": True, "bucket_size": "100 kB"}
    result = simulate(tiny(parallel={"pp": stages, "zero": 1}, overlap=beside, **SLOW, **job))
    write_recorded_trace(result, tmp_path / "own.parquet")
    replayed = load_recorded_job(tmp_path / "own.parquet")
    assert sum(optype.startswith("launch") for optype in replayed.graphs[0].optype) >= 4
    assert measure_stragglers(replayed).replayed.tolist() == pytest.approx([result.step_time], rel=0.01)
    assert len(replayed_spans(replayed)) == len(read_recorded_trace(tmp_path / "own.parquet"))
    with pytest.raises(InputError, match="change the schedule: the job's collectives overlap with passes"):
        answer_question(replayed, "schedule=gpipe")


def test_uniform_workers_have_no_stragglers() -> None:
    found = measure_stragglers(build_recorded_job(from_costs()[0]))
    assert found.slowdown == pytest.approx(1.0, abs=1e-9)
    assert found.by_worker == pytest.approx(np.ones((3, 3)), abs=1e-9)
    assert found.last_stage.removed is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_slow_worker_is_found_and_explains_the_excess() -> None:
    trace, _ = from_costs(slowness={4: 1.5})  # dp rank 1, stage 1
    found = measure_stragglers(build_recorded_job(trace))
    assert found.worst == ((1, 1),)
    assert found.by_worker.max() == found.by_worker[1, 1]
    assert found.worst_workers.removed is not None
    assert found.worst_workers.removed > 0.9  # all of it, and more: the mean, which it gets, contains the slow one
    assert found.worst_workers.alone > found.last_stage.alone


def test_sends_that_hold_up_their_worker_are_said_in_the_file(tmp_path: Path) -> None:
    trace, seconds = from_costs(blocking_sends=True)
    save_recorded_trace(trace, tmp_path / "own.parquet")
    assert measure_stragglers(load_recorded_job(tmp_path / "own.parquet")).replayed[0] == pytest.approx(
        seconds, rel=1e-12
    )
    assert measure_stragglers(build_recorded_job(replace(trace, blocking=False))).replayed[0] < seconds * 0.999


def test_steps_are_chosen_and_kept_apart() -> None:
    trace, _ = from_costs(steps=3, slowness={0: 1.2}, optimizer_sync="all_reduce")
    whole, one = measure_stragglers(build_recorded_job(trace)), measure_stragglers(build_recorded_job(trace, steps=[1]))
    assert whole.steps == (0, 1, 2)
    assert one.steps == (1,)
    assert one.replayed[0] == whole.replayed[1]
    assert (whole.replayed <= whole.measured * (1 + 1e-12)).all()


def test_the_timeline_of_a_replay_is_one_of_ours() -> None:
    trace, seconds = from_costs()
    job = build_recorded_job(trace)
    found = replayed_spans(job)
    assert len(found) == len(trace)
    weights = dict.fromkeys(job.ranks, 1)
    times = measure_step_time(lambda: ranks_of_spans(found), weights, steps=1)
    assert times.step_seconds == pytest.approx(seconds, rel=1e-12)
    assert sum(times.breakdown.values()) == pytest.approx(seconds, rel=1e-9)
    assert times.breakdown["forward"] == pytest.approx(5 * COSTS.forward, rel=1e-9)
    assert set(found.to_frame()["chunk"]) == {-1, 0}


@st.composite
def programs(draw: Any) -> tuple[ExplicitProgram, np.ndarray[Any, Any]]:
    """Lanes of ops that meet in random groups, all in an order that can happen."""
    lanes, length = draw(st.integers(1, 5)), draw(st.integers(1, 25))
    program = ExplicitProgram()
    for lane in range(lanes):
        program.add_lane(lane)
    ticks = st.integers(0, 1000).map(lambda number: number * 2.0**-12)
    for _ in range(length):
        members = draw(st.lists(st.integers(0, lanes - 1), min_size=1, max_size=lanes, unique=True))
        after = tuple(draw(st.lists(st.integers(0, len(program.seconds) - 1), max_size=3))) if program.seconds else ()
        meets = len(members) > 1
        if meets:
            parts = draw(st.lists(ticks, min_size=1, max_size=2))
            traffics = [Traffic((), 0.0, 1, part) for part in parts]
            program.meetings.append(CommunicationKind(len(members), traffics))
        meeting = len(program.meetings) - 1 if meets else -1
        for lane in members:
            program.add_op(lane, 0.0 if meets else draw(ticks), rendezvous=meeting, after=after)
    meets = [meeting >= 0 for meeting in program.meeting]
    cases = [program.seconds] + [[0.0 if met else draw(ticks) for met in meets] for _ in range(2)]
    return program, np.array(cases).T


@given(programs())
@settings(max_examples=150)
def test_the_longest_path_is_the_engine_to_the_bit(case: tuple[ExplicitProgram, np.ndarray[Any, Any]]) -> None:
    program, seconds = case
    found = LongestPath(program)(seconds)
    for number in range(seconds.shape[1]):
        one = replace(program, seconds=seconds[:, number].tolist())
        times = simulate_tables(one.make_tables([]), str, keeps_times=True).times
        for name in ("ready", "start", "end"):
            assert getattr(times, name).tolist() == getattr(found, name)[:, number].tolist(), name


def test_the_longest_path_refuses_ops_that_wait_for_each_other() -> None:
    program = ExplicitProgram()
    for rank, other in ((0, 1), (1, 0)):
        program.add_op(program.add_lane(rank), 1.0, after=(other,))
    with pytest.raises(InputError, match=r"deadlock: 2 lanes \(op queues\) wait for each other"):
        LongestPath(program)


Change = Callable[[dict[str, Any]], None]


def columns_of(trace: RecordedTrace) -> dict[str, Any]:
    columns = {name: getattr(trace, name).copy() for name in COLUMNS if name != "optype"}
    return {**columns, "optype": np.array(trace.optype_names, dtype=object)[trace.optype]}


def drop(**where: Any) -> Change:
    def change(columns: dict[str, Any]) -> None:
        keep = ~np.all([columns[name] == value for name, value in where.items()], axis=0)
        assert not keep.all()
        for name in columns:
            columns[name] = columns[name][keep]

    return change


def put(column: str, value: float, **where: Any) -> Change:
    def change(columns: dict[str, Any]) -> None:
        chosen = np.all([columns[name] == wanted for name, wanted in where.items()], axis=0)
        assert chosen.any()
        columns[column] = np.where(chosen, value, columns[column])

    return change


def twice(columns: dict[str, Any]) -> None:
    for name in columns:
        columns[name] = np.concatenate([columns[name], columns[name][3:4]])


def without_passes(columns: dict[str, Any]) -> None:
    drop(optype=FORWARD)(columns)
    drop(optype=BACKWARD)(columns)


def embedding(columns: dict[str, Any], stages: int = 3) -> None:
    """An all-reduce between the first and the last stage of every replica, behind all else."""
    chosen = np.flatnonzero((columns["optype"] == "optimizer") & np.isin(columns["stage"], [0, stages - 1]))
    more = {name: values[chosen] for name, values in columns.items()}
    more["optype"] = np.full(len(chosen), "embedding-grads-all-reduce", dtype=object)
    more["start_ts"], more["duration"] = np.full(len(chosen), 5.0), np.full(len(chosen), 1e-3)
    for name, values in columns.items():
        columns[name] = np.concatenate([values, more[name]])


def half_embedding(columns: dict[str, Any]) -> None:
    embedding(columns)
    drop(dp_rank=1, stage=2, optype="embedding-grads-all-reduce")(columns)


BAD: dict[str, tuple[Change, str]] = {
    "empty": (drop(step=0), "no rows"),
    "negative": (
        put("duration", -0.1, dp_rank=1, stage=2, optype=FORWARD, seq_id=3),
        r"row \d+ \(dp_rank 1, stage 2, step 0, forward-compute 3\): duration -0.1 s is negative",
    ),
    "not a number": (
        put("start_ts", np.nan, dp_rank=0, stage=0, optype=BACKWARD, seq_id=0),
        r"row \d+ .*backward-compute 0\): start_ts is not a number",
    ),
    "no such worker": (drop(dp_rank=1, stage=1), "no row of dp_rank 1, stage 1 .*1 of 9 workers"),
    "no replica": (drop(dp_rank=1), "no row of dp_rank 1, stage 0 .*3 of 9"),
    "twice": (twice, r"row \d+ .*duplicate of the op in row 3"),
    "send lost": (
        drop(dp_rank=2, stage=0, optype="forward-send", seq_id=2),
        r"forward-compute 2\) needs a forward-send, but number 2 of dp_rank 2, stage 0 is missing \(4 of 5",
    ),
    "receive lost": (
        drop(dp_rank=0, stage=1, optype="backward-recv", seq_id=4),
        "needs a backward-recv, but number 4 of dp_rank 0, stage 1",
    ),
    "pass lost": (
        drop(dp_rank=0, stage=1, optype=FORWARD, seq_id=4),
        r"row \d+ .*forward-send 4\) belongs to no recorded microbatch pass",
    ),
    "collective lost": (
        drop(dp_rank=1, stage=0, optype="grads-all-reduce"),
        r"grads-all-reduce 0\) has 2 of 3 members; the op of dp_rank 1, stage 0 is missing",
    ),
    "one of two members lost": (
        half_embedding,
        r"row \d+ \(dp_rank 0, stage 2.*dp_rank 0 has 1 embedding-grads-all-reduce .*dp_rank 1 has 0; .*row is missing",
    ),
    "what one replica alone lacks": (
        drop(dp_rank=0, stage=0, optype="optimizer"),
        r"row \d+ \(dp_rank 1, stage 0.*dp_rank 0 has 0; .*a row is missing, or belongs to another step",
    ),
    "other names": (
        lambda columns: columns.update(optype=np.char.replace(columns["optype"].astype(str), "forward-c", "fwd_c")),
        r"has backward-compute but no forward-compute \(is it called 'fwd_compute' there\?\)",
    ),
    "no passes": (without_passes, "record both"),
    "jumping clock": (
        put("start_ts", 1e-3, dp_rank=1, stage=1, optype="forward-recv", seq_id=4),
        "forward-(recv|send).*ends .* ms before its last member begins",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_traces_are_refused_with_their_row(name: str) -> None:
    change, message = BAD[name]
    columns = columns_of(from_costs()[0])
    change(columns)
    with pytest.raises(InputError, match=message):
        measure_stragglers(build_recorded_job(trace_from_columns(columns, name="bad")))


def test_clocks_that_differ_are_shifted_and_said() -> None:
    trace, seconds = from_costs(slowness={4: 1.3})
    columns = columns_of(trace)
    add("start_ts", 0.0075, dp_rank=2, stage=1)(columns)
    job = build_recorded_job(trace_from_columns(columns, name="skewed"))
    assert measure_stragglers(job).replayed[0] == pytest.approx(seconds, rel=1e-6)
    assert measure_stragglers(job).measured[0] == pytest.approx(seconds, rel=1e-6)
    assert len(job.notes) == 1
    said = r"1 of 9 workers' clocks by more than 1 ms, the most for dp_rank 2, stage 1 \(by -7\.5(00)? ms\)"
    assert re.search(said, job.notes[0])


def test_a_collective_that_one_step_lacks_is_missed() -> None:
    """One replica: nothing to compare it with but the other steps."""
    columns = columns_of(from_costs(steps=3, dp=1)[0])
    embedding(columns)
    assert build_recorded_job(trace_from_columns(columns, name="good")).steps == (0, 1, 2)
    drop(step=1, stage=2, optype="embedding-grads-all-reduce")(columns)
    with pytest.raises(InputError, match=r"step 1 has no embedding-grads-all-reduce on stage 2, and most other steps"):
        build_recorded_job(trace_from_columns(columns, name="bad"))


def add(column: str, value: float, **where: Any) -> Change:
    def change(columns: dict[str, Any]) -> None:
        chosen = np.all([columns[name] == wanted for name, wanted in where.items()], axis=0)
        columns[column] = np.where(chosen, columns[column] + value, columns[column])

    return change


def in_microseconds(columns: dict[str, Any]) -> None:
    columns.update({name: columns[name] * 1e6 for name in ("start_ts", "duration")})


def a_clock_is_late(columns: dict[str, Any]) -> None:
    put("duration", 1e-6, optype="forward-recv", seq_id=1)(columns)
    add("start_ts", 50e-6, optype="forward-send", seq_id=1)(columns)


def renamed(columns: dict[str, Any]) -> None:
    columns["optype"] = np.where(columns["optype"] == "optimizer", "my-update", columns["optype"])


def one_replica(columns: dict[str, Any]) -> None:
    drop(dp_rank=2)(columns)
    drop(dp_rank=1)(columns)


NOTES: dict[str, tuple[Change, str]] = {
    "a step lacks a worker": (
        drop(dp_rank=2, stage=1, step=1), "^step 1 has no row of dp_rank 2, stage 1; 1 of 3 steps are skipped: 1$"
    ),
    "a replica is missing": (drop(dp_rank=2), "^rank numbers suggest 3 dp ranks, but only 2 are recorded"),
    "one replica": (one_replica, "^only one dp rank is recorded, and it runs grads-all-reduce"),
    "microseconds": (in_microseconds, "convert them first if they are milliseconds or microseconds"),
    "a late clock": (a_clock_is_late, "by up to 49 us .* these take 0 s in the replay"),
    "another name": (renamed, "unknown op types: my-update; they count as compute of their worker"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_what_is_assumed_is_said(name: str) -> None:
    change, note = NOTES[name]
    columns = columns_of(from_costs(steps=3)[0])
    assert build_recorded_job(trace_from_columns(columns, name="whole")).notes == ()
    change(columns)
    job = build_recorded_job(trace_from_columns(columns, name="changed"))
    assert len(job.notes) == 1
    assert re.search(note, job.notes[0])
    assert job.steps == ((0, 2) if name == "a step lacks a worker" else (0, 1, 2))
    assert job.typical_seconds_by_type.get("my-update", COSTS.optimizer) == pytest.approx(COSTS.optimizer)


@pytest.mark.parametrize("factor", [1.1, 2.0])
def test_replicas_wait_for_the_slow_one(factor: float) -> None:
    """One stage: all that the others wait is what the slow one computes longer."""
    trace, _ = from_costs(stages=1, dp=4, microbatches=5, slowness={2: factor})
    matrix = rank_wait_seconds(build_recorded_job(trace))
    late = 5 * (COSTS.forward + COSTS.backward) * (factor - 1)
    expected = np.zeros((4, 4))
    expected[[0, 1, 3], 2] = late
    np.testing.assert_allclose(matrix, expected, rtol=1e-9)


def test_a_stage_waits_for_its_neighbours() -> None:
    """Two stages, one microbatch: the second waits for the first's forward, the first for the second's whole turn."""
    trace, _ = from_costs(stages=2, dp=1, microbatches=1)
    matrix = rank_wait_seconds(build_recorded_job(trace))
    assert matrix[1, 0] == pytest.approx(COSTS.forward)
    assert matrix[0, 1] == pytest.approx(COSTS.forward + COSTS.backward + COSTS.send)  # its own send, then the other's
    assert matrix.trace() == 0


@given(
    stages=st.integers(1, 4), dp=st.integers(1, 3), extra=st.integers(0, 3), factor=st.floats(1.0, 2.0),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)  # fmt: skip
@settings(max_examples=20)
def test_nobody_waits_while_it_computes(stages: int, dp: int, extra: int, factor: float, schedule: str) -> None:
    trace, seconds = from_costs(
        stages=stages, dp=dp, microbatches=stages + extra, slowness={dp * stages - 1: factor}, schedule=schedule
    )
    matrix = rank_wait_seconds(build_recorded_job(trace))
    busy = np.zeros((dp, stages))
    computes = trace.type_mask([FORWARD, BACKWARD])
    np.add.at(busy, (trace.dp_rank[computes], trace.stage[computes]), trace.duration[computes])
    assert (matrix >= 0).all()
    assert (matrix.sum(axis=1) <= seconds - busy.ravel() + 1e-9).all()
    assert np.diag(matrix).sum() == 0


def test_many_ranks_are_drawn_by_stage() -> None:
    job = build_recorded_job(from_costs(stages=2, dp=130, microbatches=2)[0])
    matrix = labelled_wait_matrix(job)
    assert (matrix.unit, matrix.names) == ("stage", ("0", "1"))
    assert matrix.seconds.sum() == pytest.approx(rank_wait_seconds(job).sum() / 130)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.parquet"
    save_recorded_trace(from_costs(slowness={4: 1.5}, steps=2, optimizer_sync="all_reduce")[0], path)
    return path


def test_files_that_are_none_are_refused(own: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_recorded_trace(tmp_path / "nothing.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(own.read_bytes()[:-40])
    with pytest.raises(InputError, match="not a valid Parquet file"):
        read_recorded_trace(cut)
    import pyarrow.parquet as parquet

    table = parquet.read_table(own)
    parquet.write_table(table.drop_columns(["gmc", "duration"]), cut)
    with pytest.raises(InputError, match="lacks the columns duration, gmc"):
        read_recorded_trace(cut)
    holes = table.to_pandas()
    holes.loc[7, "duration"] = None
    holes.to_parquet(cut)
    with pytest.raises(InputError, match=r"row 7: column duration is empty|duration is no number"):
        load_recorded_job(cut)
    with pytest.raises(InputError, match="has no step 7; choose from: 0, 1"):
        load_recorded_job(own, steps=[7])


def test_without_pyarrow_the_extra_is_named(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _ = from_costs()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'simcluster\[parquet\]'"):
        read_recorded_trace(own)
    with pytest.raises(InputError, match=r"pip install 'simcluster\[parquet\]'"):
        save_recorded_trace(trace, own)


@pytest.fixture(scope="module")
def job() -> RecordedJob:
    return build_recorded_job(from_costs(slowness={4: 1.5}, microbatches=6)[0])


def test_counterfactuals_do_what_they_say(job: RecordedJob) -> None:
    clean = from_costs(microbatches=6)[1]
    answer = answer_question(job, "worker=1,1")
    assert answer.changed_seconds == pytest.approx(clean, rel=0.06)  # the mean contains the slow one itself
    assert answer.changed_seconds > clean
    assert answer_question(job, "stage=1").changed_seconds <= answer.changed_seconds
    assert answer_question(job, "dp=1").relative_change < 0
    assert answer_question(job, "compute=2x+links=2x").changed_seconds == pytest.approx(
        answer_question(job, "links=1x").changed_seconds / 2, rel=1e-9
    )
    assert answer_question(job, f"type={FORWARD}+type={BACKWARD}").changed_seconds < answer.recorded_seconds
    assert answer_question(job, "links=1000x").relative_change < 0


def test_the_schedule_that_was_recorded_is_known_and_rebuilt(job: RecordedJob) -> None:
    assert find_job_schedule(job) == "1f1b"
    assert (
        answer_question(job, "schedule=1f1b").changed_seconds == answer_question(job, "schedule=1f1b").recorded_seconds
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved:2", "zb-v", "v-half"])
def test_another_schedule_takes_what_it_takes_when_played(name: str) -> None:
    """Uniform stages without a head: the rebuilt job is the job on that schedule, up to when receives are posted."""
    plain, _, chunks = name.partition(":")
    costs = Costs(forward=0.010, backward=0.020)
    before = simulate_costs(costs, stages=3, microbatches=6, dp=2)
    after = simulate_costs(costs, stages=3, microbatches=6, dp=2, schedule=plain, chunks=int(chunks or 1))
    answer = answer_question(
        build_recorded_job(recorded_trace_of_run(before, ParallelPlan(tp=1, dp=2, pp=3), name="own")),
        f"schedule={name}",
    )
    assert answer.changed_seconds == pytest.approx(after.step_time, rel=1e-9)


def test_without_its_long_last_stage() -> None:
    run = simulate_costs(
        [Costs(forward=1, backward=2), Costs(forward=1, backward=2), Costs(forward=2, backward=3)],
        stages=3,
        microbatches=6,
    )
    job = build_recorded_job(recorded_trace_of_run(run, ParallelPlan(tp=1, dp=1, pp=3), name="long"))
    even = simulate_costs(Costs(forward=1, backward=2), stages=3, microbatches=6)
    assert answer_question(job, "last-stage=mean").changed_seconds == pytest.approx(even.step_time)
    assert measure_stragglers(job).by_stage.argmax() == 2
    moved = apply_schedule(job, "zb-v").graphs[0]  # the end of the model, and its excess, are on stage 0 of a V
    forward = np.array(moved.optype) == FORWARD
    by_stage = [moved.seconds[forward & (moved.stage == stage)].sum() for stage in range(3)]
    assert by_stage == pytest.approx([12, 6, 6])


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("linx=2x", "did you mean 'links'"),
        ("links", "choose one of"),
        ("links=fast", "speed-up factor"),
        ("links=0x", "speed-up factor"),
        ("worker=1", "a dp rank and a stage"),
        ("worker=9,0", "dp rank from 0 to 2"),
        ("stage=3", "stage from 0 to 2"),
        ("type=gemm", "no ops of that type"),
        ("last-stage=2", "'last-stage' must be 'mean'"),
        ("schedule=zb-h7", "did you mean 'zb-h"),
        ("schedule=interleaved:two", "chunks must be a whole number"),
    ],
)
def test_questions_that_have_no_answer(job: RecordedJob, question: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer_question(job, question)


def test_worst_workers_are_three_percent() -> None:
    assert find_slowest_workers(np.array([[1.0, 1.2], [1.2, 1.1]])) == ((0, 1),)
    assert len(find_slowest_workers(np.ones((50, 2)))) == 3


def test_the_command(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endings = {"heatmap": "png", "gantt": "png", "matrix": "png", "timeline": "parquet", "json": "json"}
    files = {name: tmp_path / f"{name}.{ending}" for name, ending in endings.items()}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    asked = ["--what-if", "worker=1,1", "--what-if", "last-stage=mean+schedule=zb-h1"]
    assert main(["replay", str(own), *asked, *options]) == 0
    text = capsys.readouterr().out
    for expected in ("3 dp ranks x 3 stages, 5 microbatches, 1f1b; 2 steps", "T_ideal", "dp 1 stage 1",
                     "explained by the last stage", "worker=1,1", "half of the measured backward"):  # fmt: skip
        assert expected in text
    assert all(path.stat().st_size > 1000 for path in files.values())
    document = json.loads(files["json"].read_text())
    assert document["worst_workers"]["workers"] == [[1, 1]]
    assert document["waits"][0]["seconds"] >= document["waits"][-1]["seconds"] > 0
    assert [answer["question"] for answer in document["what_if"]] == asked[1::2]
    assert document["slowdown"] == pytest.approx(document["replayed_s"] / document["ideal_s"])


def test_the_command_prints_json_alone(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(own), "--steps", "1", "--json", "-"]) == 0
    assert [step["step"] for step in json.loads(capsys.readouterr().out)["steps"]] == [1]


def test_the_command_refuses_before_it_works(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.parquet"
    shutil.copy(own, other)
    for arguments, message in (
        (["--heatmap", "who.txt"], "a picture ends in"),
        (["--steps", "one"], "whole numbers"),
        (["--what-if", "sun=shine"], "choose one of"),
    ):
        assert main(["replay", str(other), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_help_names_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", "--help"])
    text = capsys.readouterr().out
    assert all(f"{key}=" in text for key in QUESTIONS)


def drawn(job: RecordedJob, seed: int) -> RecordedJob:
    """The job with every op of every worker as long as nobody else's."""
    chance = np.random.default_rng(seed)
    (graph,) = job.graphs
    return replace(job, graphs=(replace(graph, seconds=graph.seconds * chance.lognormal(0, 0.3, graph.seconds.shape)),))


def each_alone(job: RecordedJob) -> ReplicaClasses | None:
    """Every replica by classes is every replica by itself; the classes."""
    of_each = [make_op_filter("dp_rank", replica) for replica in range(job.replicas)]
    assert np.array_equal(job.step_seconds_by_replica(), job.step_seconds_keeping(*of_each))
    return find_replica_classes(job.graphs[0])


@given(
    stages=st.integers(1, 3),
    dp=st.integers(25, 40),
    extra=st.integers(0, 2),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    slow=st.integers(0, 47),
    seed=st.integers(0, 99),
)
@settings(max_examples=5)
def test_alike_replicas_take_what_they_take_among_all(
    stages: int, dp: int, extra: int, schedule: str, slow: int, seed: int
) -> None:
    slowness = {slow % (dp * stages): 1.5}
    run = simulate_costs(COSTS, stages=stages, dp=dp, microbatches=stages + extra, schedule=schedule, slowness=slowness)
    job = build_recorded_job(recorded_trace_of_run(run, ParallelPlan(tp=1, dp=dp, pp=stages), name="own"))
    assert each_alone(drawn(job, seed)) is not None


@pytest.mark.parametrize("slow", [[], [{"kind": "slow_gpu", "rank": 3, "factor": 1.4}]])
def test_collectives_beside_passes(tiny: Any, slow: list[Any]) -> None:
    beside = {"grad_reduce": True, "param_gather": True, "bucket_size": "100 kB"}
    job = {"cluster": {"topology": "flat", "gpus": 26}, "training": {"global_batch": 26}}
    result = simulate(tiny(parallel={"zero": 1}, overlap=beside, faults=slow, **job))
    found = build_recorded_job(recorded_trace_of_result(result, "own"))
    assert any(optype.startswith("launch") for optype in found.graphs[0].optype)
    assert each_alone(drawn(found, 1)) is not None


def graph_of(dp: int = 30, stages: int = 2) -> StepGraph:
    run = simulate_costs(COSTS, stages=stages, dp=dp, microbatches=3)
    (graph,) = build_recorded_job(recorded_trace_of_run(run, ParallelPlan(tp=1, dp=dp, pp=stages), name="own")).graphs
    return graph


def test_what_is_not_alike_is_swept_with_all() -> None:
    graph = graph_of()
    assert find_replica_classes(graph) is not None
    of_two = next(group for group in graph.groups if len(group) == 2)  # a message
    of_all = next(group for group in graph.groups if len(group) == 30)
    others = [group for group in graph.groups if group not in (of_two, of_all)]
    one, other = (next(op for op in of_all if graph.dp_rank[op] == replica) for replica in (0, 1))
    after = list(graph.after)
    after[one] = (other,)
    assert find_replica_classes(replace(graph, after=tuple(after))) is None  # replica 0 waits for replica 1
    assert find_replica_classes(replace(graph, groups=(*others, of_two, of_all[:10], of_all[10:]))) is None
    lonely = replace(graph, groups=(*others, of_all))  # one replica sends without its receiver
    assert find_replica_classes(lonely) is not None
    some = enumerate(graph.groups)
    many = tuple([group for number, group in some if len(group) > 2 or graph.dp_rank[group[0]] > number % 9])
    assert find_replica_classes(replace(graph, groups=many)) is None  # each is alike to hardly any other


def test_few_replicas_are_swept_with_all() -> None:
    assert find_replica_classes(graph_of(dp=4)) is None
