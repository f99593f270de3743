"""PyTorch profiles: real ones of CPUs, synthetic ones of GPUs whose every figure is known, bad ones, and back again."""

from __future__ import annotations

import copy
import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gpu_profiles import GROUP_ARGS, Job, Rank, documents, played, step_seconds, write
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.interop.kineto import ProfiledJob, load_profiles, profile_loader
from simcluster.interop.kineto.collective_matching import align_clocks
from simcluster.interop.kineto.communications import (
    CommCall,
    ProcessGroups,
    builtin_classifier,
    find_timeline_axis,
    parse_collective_kind,
    parse_comm_call,
)
from simcluster.interop.kineto.profile_metrics import (
    QUESTIONS,
    answer_profile_question,
    apply_profile_what_if,
    collective_bandwidths,
    model_part_times,
    rank_state_seconds,
    slowdown_by_rank_and_type,
)
from simcluster.interop.kineto.profile_writer import write_profiles
from simcluster.interop.kineto.rank_profile import PhaseLayer
from simcluster.interop.replay import measure_stragglers
from simcluster.interop.replay.straggler_metrics import rank_wait_seconds
from simcluster.scenario.document_resolution import load_cluster

REAL = Path(__file__).parent / "inputs" / "kineto"
SLOW = Job(slow={2: 1.25}, clock={1: 1500.0, 2: -700.0, 3: 2.5e6})
Documents = list[dict[str, Any]]


def load(found: Documents, tmp_path: Path, steps: list[int] | None = None) -> ProfiledJob:
    return load_profiles(write(found, tmp_path / "profiles"), steps)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> ProfiledJob:
    return load(documents(SLOW), tmp_path_factory.mktemp("slow"))


def near(seconds: float | list[float]) -> Any:
    """Files count nanoseconds."""
    return pytest.approx(seconds, abs=3e-9)


def test_replay_takes_what_was_recorded(slow: ProfiledJob) -> None:
    found = measure_stragglers(slow)
    assert found.measured.tolist() == near(step_seconds(SLOW))
    assert found.replayed.tolist() == near(step_seconds(SLOW))
    assert slow.simulate_events()[0].tolist() == found.replayed.tolist()
    assert slow.steps == (5, 6)


def test_the_slow_rank_is_found(slow: ProfiledJob) -> None:
    found, even = measure_stragglers(slow), SLOW.with_(slow=dict.fromkeys(range(4), (3 + 1.25) / 4))
    assert found.slowdown == pytest.approx(sum(step_seconds(SLOW)) / sum(step_seconds(even)), rel=1e-6)
    assert found.worst == ((2, 0),)
    assert found.by_replica.tolist() == pytest.approx([1.0, 1.0, found.slowdown, 1.0], rel=1e-6)
    assert next(iter(found.by_type)) == "backward"
    assert found.by_type["comm:all_reduce:default_pg"] == pytest.approx(1.0, abs=1e-6)


def spans(pairs: list[tuple[float, float]]) -> set[int]:
    """Whole microseconds that are in one of the spans."""
    return {us for start, end in pairs for us in range(round(start), round(end))}


def states(rank: Rank, ranks: list[Rank], first: float, last: float) -> dict[str, float]:
    """A rank's states by counting microseconds."""
    compute, comm = spans(rank.compute), spans(rank.comm)
    arrived = [max(each) for each in zip(*(other.arrivals for other in ranks), strict=True)]
    late = spans([(start, at) for (start, _), at in zip(rank.comm, arrived, strict=True)]) - compute
    exposed = comm - compute - late
    states = {"computing": compute, "exposed": exposed, "waiting": late}
    found = {name: len({us for us in each if first <= us < last}) * 1e-6 for name, each in states.items()}
    return found | {"overlap": len(comm & compute) / len(comm)}


def test_where_time_went_is_what_counting_microseconds_gives(slow: ProfiledJob) -> None:
    ranks = played(SLOW)
    for found in rank_state_seconds(slow):
        known = states(ranks[found.rank], ranks, 0.0, 1e9)
        assert found.overlap == pytest.approx(known["overlap"], rel=1e-6)
        for name in ("computing", "exposed", "waiting"):
            assert getattr(found, name) == near(known[name] / SLOW.steps), name
        whole = found.computing + found.exposed + found.waiting + found.copying + found.idle
        assert whole == near(float(slow.measured_step_seconds.mean()))
    waiting = [found.waiting for found in rank_state_seconds(slow)]
    assert waiting[2] == near(0.0)
    assert min(waiting[0], waiting[1], waiting[3]) > 1e-4


def test_compute_is_known_by_layer_and_phase(slow: ProfiledJob) -> None:
    found = {part.label: part.seconds.tolist() for part in model_part_times(slow)}
    for layer in range(SLOW.layers):
        assert found[PhaseLayer("forward", f"layers.{layer}")] == near([200e-6, 200e-6, 250e-6, 200e-6])
        assert found[PhaseLayer("backward", f"layers.{layer}")] == near([400e-6, 400e-6, 500e-6, 400e-6])
    assert found[PhaseLayer("optimizer", "")] == near([100e-6] * 4)
    assert len(found) == 2 * SLOW.layers + 1


def pipeline_profiles(folder: Path, *faults: str) -> ProfiledJob:
    """What a job of four stages and two replicas would record."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(
        "name: four stages\ncluster: {topology: flat, gpus: 8}\n"
        "model: {layers: 4, hidden_size: 256, heads: 8, kv_heads: 8, ffn_hidden_size: 1024, vocab_size: 1000,"
        " sequence_length: 128, gated_mlp: false, tied_embeddings: false}\n"
        "parallel: {pp: 4, dp: 2}\npipeline: {schedule: 1f1b}\ntraining: {global_batch: 8}\n"
    )
    to = ["--trace", str(folder / "profiles"), "--trace-ranks", "all", "--json", str(folder / "run.json")]
    assert main(["run", str(scenario), "--set", f"faults=[{', '.join(faults)}]", *to]) == 0
    return load_profiles(folder / "profiles")


def test_a_layer_is_compared_among_the_ranks_that_have_it(tmp_path: Path) -> None:
    """A healthy pipeline is even, though each layer is on one rank of four; a slow rank is slow by what it is."""
    parts = model_part_times(pipeline_profiles(tmp_path))
    assert {len(part.rank_indices) for part in parts if part.label.layer} == {2}
    assert [part.slowest_rank[1] for part in parts if part.slowest_rank] == pytest.approx([0.0] * len(parts), abs=0.01)
    by_layer = {part.label: part for part in parts}[PhaseLayer("forward", "layers.0")]
    assert by_layer.mean_seconds == by_layer.seconds[by_layer.rank_indices[0]] == by_layer.seconds.sum() / 2


def test_a_slow_rank_of_a_pipeline_is_seen_in_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = pipeline_profiles(tmp_path, "{kind: slow_gpu, rank: 5, factor: 1.2}")
    slow = {
        part.label: part.slowest_rank
        for part in model_part_times(job)
        if part.slowest_rank and part.slowest_rank[1] > 0.05
    }
    assert {place for place, _ in slow.values()} == {5}
    for label in (PhaseLayer("forward", "layers.2"), PhaseLayer("backward", "layers.2")):
        assert slow[label][1] == pytest.approx(0.2, rel=0.03)
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "profiles"), "--json", str(tmp_path / "out.json")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"forward layers\.2 +2 +[\d.]+ us +\+(19|20)\.\d% \(rank 5\)", text)
    assert "+300" not in text
    rows = json.loads((tmp_path / "out.json").read_text())["layers"]
    assert [row["ranks"] for row in rows if row["layer"] == "layers.2"] == [[4, 5]] * 2


def test_bus_bandwidth_counts_from_the_last_arrival(slow: ProfiledJob) -> None:
    (found,) = collective_bandwidths(slow, load_cluster("dgx_h100", []))
    size = 2 * (1 << 20)
    assert (found.kind, found.group, found.ranks) == ("all_reduce", "default_pg", (0, 1, 2, 3))
    assert (found.bytes, found.count) == (size, SLOW.layers * SLOW.steps)
    assert found.seconds == near(300e-6)
    assert found.bus_bandwidth == pytest.approx(size * 2 * 3 / 4 / 300e-6, rel=1e-4)
    assert found.modelled is not None
    assert 5e-6 < found.modelled < 300e-6
    assert found.modelled_bus_bandwidth == pytest.approx(size * 1.5 / found.modelled)


def test_offsets_of_clocks_are_told(slow: ProfiledJob) -> None:
    (note,) = slow.notes
    assert "rank 1 +1500.0 us, rank 2 -700.0 us, rank 3 +2500000.0 us" in note


ASKED = {
    "links=2x": {"transfer": 150.0},
    "links=0.1x": {"transfer": 3000.0},
    "compute=2x": {"forward": 100.0, "backward": 200.0, "update": 50.0},
    "compute=0.5x+links=0.5x": {"forward": 400.0, "backward": 800.0, "update": 200.0, "transfer": 600.0},
    "worker=2": {"slow": {2: 1.0625}},
    "rank=2": {"slow": {2: 1.0625}},
    "type=comm:all_reduce:default_pg": {},
    "host=3x": {},
}


@pytest.mark.parametrize("sync_events", [True, False])
@pytest.mark.parametrize("question", ASKED)
def test_a_what_if_is_the_job_that_is_so(question: str, sync_events: bool, tmp_path: Path) -> None:
    """Also where waits between streams are not recorded but inferred."""
    job = load(documents(SLOW.with_(sync_events=sync_events)), tmp_path)
    assert any("inferred" in note for note in job.notes) is not sync_events
    known = step_seconds(SLOW.with_(**ASKED[question]))
    assert answer_profile_question(job, question).changed_seconds == near(float(np.mean(known)))


@pytest.mark.parametrize("sync_events", [True, False])
def test_waits_that_cost_nothing_are_known_too(sync_events: bool, tmp_path: Path) -> None:
    """All-reduces hidden behind compute: slower links would not be."""
    known = SLOW.with_(tail=900.0, transfer=50.0, sync_events=sync_events, steps=1)
    job = load(documents(known), tmp_path)
    assert measure_stragglers(job).replayed.tolist() == near(step_seconds(known))
    after = step_seconds(known.with_(transfer=2500.0))
    assert after[0] > 2 * step_seconds(known)[0]
    assert answer_profile_question(job, "links=0.02x").changed_seconds == near(after[0])


def test_recorded_waits_are_taken_as_they_are(tmp_path: Path) -> None:
    """The optimizer waits for the first all-reduce alone; what had ended when it began suggests all of them."""
    known = SLOW.with_(tail=900.0, transfer=50.0, first=True, steps=1)
    slower = step_seconds(known.with_(transfer=2500.0))[0]
    assert answer_profile_question(load(documents(known), tmp_path), "links=0.02x").changed_seconds == near(slower)


@pytest.mark.parametrize("launch", [5.0, 30.0])
def test_a_host_that_waits_goes_on_when_the_device_is_done(launch: float, tmp_path: Path) -> None:
    """It reads a number back after forward; then faster compute lets it launch backward earlier."""
    known = SLOW.with_(item=True, backward=20.0, launch=launch, slow={})
    job = load(documents(known), tmp_path)
    assert measure_stragglers(job).error < 1e-6
    faster = step_seconds(known.with_(forward=100.0, backward=10.0, update=50.0))
    assert answer_profile_question(job, "compute=2x").changed_seconds == near(faster[0])


def test_small_kernels_wait_for_their_launches(tmp_path: Path) -> None:
    known = SLOW.with_(forward=2.0, backward=2.0, update=2.0, transfer=2.0, slow={}, launch=20.0)
    job = load(documents(known), tmp_path)
    assert measure_stragglers(job).error < 1e-6
    assert answer_profile_question(job, "host=2x").changed_seconds == near(step_seconds(known.with_(launch=10.0))[0])
    assert answer_profile_question(job, "compute=2x").relative_change > -0.01


def test_a_layer_can_be_taken_out(slow: ProfiledJob) -> None:
    """Rank 2 computes 750 us less, but its last all-reduce then waits 100 us for the one before."""
    assert answer_profile_question(slow, "layer=layers.1").changed_seconds == near(
        float(slow.measured_step_seconds.mean()) - 750e-6 + 100e-6
    )


@given(
    forward=st.integers(50, 300),
    backward=st.integers(50, 500),
    transfer=st.integers(20, 900),
    factor=st.floats(1.0, 2.0),
    ahead=st.lists(st.integers(-(10**6), 10**6), min_size=3, max_size=3),
    lag=st.integers(0, 8),
    sync_events=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_such_job_replays(
    tmp_path_factory: pytest.TempPathFactory, forward: int, backward: int, transfer: int, factor: float,
    ahead: list[int], lag: int, sync_events: bool,
) -> None:  # fmt: skip
    known = Job(
        ranks=3, layers=3, steps=1, forward=forward, backward=backward, transfer=transfer, slow={1: factor},
        clock=dict(enumerate(map(float, ahead))), lag=lag, sync_events=sync_events,
    )  # fmt: skip
    job = load(documents(known), tmp_path_factory.mktemp("any"))
    assert measure_stragglers(job).replayed.tolist() == pytest.approx(step_seconds(known), abs=20e-9)
    for found in rank_state_seconds(job):
        parts = (found.computing, found.exposed, found.waiting, found.copying, found.idle)
        assert min(parts) > -1e-9
        assert sum(parts) == near(float(job.measured_step_seconds[0]))


def same(one: ProfiledJob, other: ProfiledJob) -> None:
    """Two jobs with the same ops, waits and times."""
    assert one.ranks == other.ranks
    assert one.steps == other.steps
    for a, b in zip(one.profiled_steps, other.profiled_steps, strict=True):
        streams = [(lane, len(ops)) for lane, ops in a.lanes.items() if lane[1] != "main"]
        assert streams == [(lane, len(ops)) for lane, ops in b.lanes.items() if lane[1] != "main"]
        assert len(a.groups) == len(b.groups)
        for lane, _ in streams:
            for x, y in zip(a.lanes[lane], b.lanes[lane], strict=True):
                assert (a.names[x], a.optype[x]) == (b.names[y], b.optype[y])
                assert a.labels[x] == b.labels[y] or not a.on_device
                assert float(a.seconds[x, 0]) == pytest.approx(float(b.seconds[y, 0]), abs=10e-9)
                waited = [[g.names[o] for o in g.after[op] if g.sources[o]] for g, op in ((a, x), (b, y))]
                assert waited[0] == waited[1]


@pytest.mark.parametrize("source", ["gpu", "inferred", "cpu"])
def test_what_is_written_is_read_again(source: str, tmp_path: Path) -> None:
    known = SLOW.with_(sync_events=source == "gpu")
    job = load_profiles(REAL) if source == "cpu" else load(documents(known), tmp_path)
    paths = write_profiles(job, tmp_path / "again")
    assert [path.name for path in paths] == [f"rank{rank}.json.gz" for rank in job.ranks]
    again = load_profiles(tmp_path / "again")
    same(job, again)
    one, other = measure_stragglers(job), measure_stragglers(again)
    assert other.measured.tolist() == pytest.approx(one.replayed.tolist(), abs=50e-9)
    assert other.replayed.tolist() == pytest.approx(one.replayed.tolist(), abs=50e-9)
    assert other.slowdown == pytest.approx(one.slowdown, rel=3e-4)
    assert [call.bytes for call in collective_bandwidths(job)] == [call.bytes for call in collective_bandwidths(again)]
    assert [part.label for part in model_part_times(job)] == [part.label for part in model_part_times(again)]


def test_a_what_if_is_written_too(slow: ProfiledJob, tmp_path: Path) -> None:
    write_profiles(apply_profile_what_if(slow, "links=0.1x"), tmp_path / "again")
    again = load_profiles(tmp_path / "again")
    assert again.measured_step_seconds.tolist() == pytest.approx(step_seconds(SLOW.with_(transfer=3000.0)), abs=50e-9)


def test_written_profiles_are_as_other_tools_want_them(slow: ProfiledJob, tmp_path: Path) -> None:
    """HolisticTraceAnalysis looks for the rank in the text; Perfetto drops events that overlap on a track."""
    for rank, path in enumerate(write_profiles(slow, tmp_path / "again")):
        text = gzip.decompress(path.read_bytes()).decode()
        match = re.search(r'"rank":\s+(\d+)', text)
        assert match is not None
        assert int(match[1]) == rank
        kernels = [event for event in json.loads(text)["traceEvents"] if event.get("cat") == "kernel"]
        launches = {
            event["args"]["correlation"]: event["ts"]
            for event in json.loads(text)["traceEvents"]
            if event["name"] == "cudaLaunchKernel"
        }
        assert len(kernels) == SLOW.steps * (3 * SLOW.layers + 1)
        for stream in (7, 20):
            own = sorted((event["ts"], event["dur"]) for event in kernels if event["tid"] == stream)
            ends = [round(ts + dur, 3) for ts, dur in own]
            assert all(end <= following[0] for end, following in zip(ends, own[1:], strict=False))
        assert all(launches[event["args"]["correlation"]] <= event["ts"] + 0.1 for event in kernels)


def test_nothing_is_written_over_other_profiles(slow: ProfiledJob, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(InputError, match=r"contains mine\.json; name an empty folder"):
        write_profiles(slow, tmp_path)


def test_ranks_are_read_side_by_side_as_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, told = write(documents(SLOW), tmp_path / "profiles"), list[tuple[int, int]]()
    alone = load_profiles(folder)
    monkeypatch.setattr(profile_loader, "_SMALL_BYTES", 0)
    together = load_profiles(folder, workers=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (together.ranks, together.notes) == (alone.ranks, alone.notes)
    for one, other in zip(alone.profiled_steps, together.profiled_steps, strict=True):
        for name in ("optype", "lanes", "after", "groups", "labels", "names", "removed_gap_seconds", "offset"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("worker", "seconds", "recorded_start", "recorded_end"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
        assert repr(one.sources) == repr(other.sources)  # NaN is not itself
    assert measure_stragglers(together).to_dict() == measure_stragglers(alone).to_dict()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_file_that_is_cut_is_named_whoever_reads(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(documents(SLOW), tmp_path / "profiles")
    monkeypatch.setattr(profile_loader, "_SMALL_BYTES", 0)
    first, *_, last = sorted(folder.iterdir())
    for file in (first, last):
        file.write_bytes(b"{")
    with pytest.raises(InputError, match=re.escape(str(first))):
        load_profiles(folder, workers=workers)


def test_real_profiles_of_two_gloo_ranks() -> None:
    """Made by inputs/kineto/make_traces.py: rank 1 has four times the batch."""
    job = load_profiles(REAL)
    found = measure_stragglers(job)
    assert job.ranks == (0, 1)
    assert job.steps == (2, 3, 4)
    assert found.error < 0.01
    assert found.worst == ((1, 0),)
    assert found.by_replica[1] > 1.2 > found.by_replica[0]
    calls = {call.bytes: call for call in collective_bandwidths(job)}
    assert {size: call.count for size, call in calls.items()} == {4.0: 3, 2 * (256 * 256 + 256) * 4.0: 6}
    names = {(part.label.phase, part.label.layer) for part in model_part_times(job)}
    for layer in range(4):
        assert {("forward", f"layers.{layer}"), ("backward", f"layers.{layer}")} <= names
    first, second = rank_state_seconds(job)
    assert first.waiting > 10 * second.waiting
    assert first.computing < second.computing / 2
    for graph in job.graphs:
        launching = {before for op, each in enumerate(graph.after) for before in each if op in sum(graph.groups, ())}
        assert {graph.optype[op] for op in launching} <= {"forward", "backward", "other"}
    faster = answer_profile_question(job, "worker=1")
    assert -0.6 < faster.relative_change < -0.2


@pytest.mark.programs
def test_profiles_made_now(tmp_path: Path) -> None:
    subprocess.run([sys.executable, REAL / "make_traces.py", tmp_path], check=True, timeout=300)
    job = load_profiles(tmp_path)
    assert measure_stragglers(job).error < 0.05
    assert job.ranks == (0, 1)


def events(found: Documents, rank: int, **wanted: str) -> list[dict[str, Any]]:
    return [
        event
        for event in found[rank]["traceEvents"]
        if all(str(event.get(key)).startswith(value) for key, value in wanted.items())
    ]


def spoil(rank: int, number: int, changes: dict[str, Any], **wanted: str) -> Callable[[Documents], None]:
    """Another value in an event of a rank, or in its arguments."""

    def change(found: Documents) -> None:
        event = events(found, rank, **wanted)[number]
        for name, value in changes.items():
            (event if name in ("ts", "dur") else event["args"])[name] = value

    return change


def fewer_collectives(found: Documents) -> None:
    found[1]["traceEvents"].remove(events(found, 1, name="ncclDev")[2])


def no_steps(found: Documents) -> None:
    for event in events(found, 2, name="ProfilerStep"):
        event["name"] = "something"


def no_common_step(found: Documents) -> None:
    for number, event in enumerate(events(found, 2, name="ProfilerStep")):
        event["name"] = f"ProfilerStep#{100 + number}"


def no_kernels(found: Documents) -> None:
    found[3]["traceEvents"] = [e for e in found[3]["traceEvents"] if e.get("cat") not in ("kernel", "cuda_sync")]


KERNEL, NCCL = {"cat": "kernel"}, {"name": "ncclDev"}
BAD: dict[str, tuple[Callable[[Documents], None], str]] = {
    "negative": (
        spoil(1, 3, {"dur": -5.0}, **KERNEL),
        r"rank1\.json\.gz, event \d+ \('sm90_xmma_gemm_bf16_forward'\): dur is -5.0; it must be .* from 0 on",
    ),
    "no number": (
        spoil(1, 3, {"ts": "soon"}, **KERNEL),
        r"rank1\.json\.gz, event \d+ \('sm90.*'\): ts is 'soon'; it must be a number of microseconds",
    ),
    "infinite": (
        spoil(1, 3, {"ts": float("nan")}, **KERNEL),
        r"event \d+ \('sm90.*'\): ts is nan; it must be a number",
    ),
    "fewer collectives": (
        fewer_collectives,
        r"step 5: rank 0, event \d+ \(nccl.*\): all_reduce of 2097152 B in group 0 \(default_pg\), Seq 3 "
        r"is call number 2 of its group in the step, but rank 1 has all_reduce .*, Seq 4 in this place \(event \d+\)",
    ),
    "another collective": (
        spoil(1, 2, {"Collective name": "broadcast"}, **NCCL),
        r"but rank 1 has broadcast of 2097152 B in group 0 \(default_pg\), Seq 3 in this place",
    ),
    "another size": (spoil(1, 2, {"In msg nelems": 7}, **NCCL), r"but rank 1 has all_reduce of 14 B in group 0"),
    "skipped number": (spoil(1, 2, {"Seq": 1000}, **NCCL), r"rank 1 has all_reduce .* Seq 4 in this place"),
    "no steps": (no_steps, r"rank2\.json\.gz \(rank 2\) has no ProfilerStep# annotation, but rank0\.json\.gz has"),
    "no common step": (no_common_step, r"no step is in the profiles of all ranks"),
    "no events": (
        lambda found: found[0].update(traceEvents=[]),
        r"rank0\.json\.gz has no events with times: nothing was recorded, or the file is truncated",
    ),
    "no list": (
        lambda found: found[0].pop("traceEvents"),
        r"rank0\.json\.gz has no list 'traceEvents'; give a trace that PyTorch's profiler exported",
    ),
    "no kernels": (no_kernels, r"rank3\.json\.gz \(rank 3\) has no kernels, but other ranks have"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_profiles_are_refused_by_name(what: str, tmp_path: Path) -> None:
    """Of one step, so that there is no other to go on with."""
    found = documents(SLOW.with_(steps=1))
    spoilt, message = BAD[what]
    spoilt(found)
    with pytest.raises(InputError, match=message):
        load(found, tmp_path)


def test_files_that_are_cut_are_named(tmp_path: Path) -> None:
    folder = write(documents(SLOW), tmp_path / "profiles")
    path = folder / "rank1.json.gz"
    whole = path.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], r"its gzip stream is incomplete or damaged"),
        (gzip.compress(gzip.decompress(whole)[:5000]), r"it is truncated \(line 1, byte \d+.*remove the file"),
        (b"hello", r"it is not JSON"),
        (b"\x80abc{}", r"it is not text"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"rank1\.json\.gz: {message}"):
            load_profiles(folder)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no profiles"):
        load_profiles(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        load_profiles(tmp_path / "nothing.json")
    folder = write(documents(SLOW), tmp_path / "profiles")
    shutil.copy(folder / "rank1.json.gz", folder / "rank9.json.gz")
    with pytest.raises(InputError, match=r"rank1\.json\.gz and rank9\.json\.gz are both of rank 1"):
        load_profiles(folder)


def test_a_missing_rank_is_told(tmp_path: Path) -> None:
    """Its collectives are those of the others; who waited for it is not known."""
    found = documents(SLOW)
    job = load([found[0], found[1], found[3]], tmp_path)
    assert any("1 of 4 ranks have no profile (2)" in note for note in job.notes)
    (call,) = collective_bandwidths(job)
    assert call.seconds > 301e-6
    assert measure_stragglers(job).error < 1e-6


def test_one_rank_alone_replays(tmp_path: Path) -> None:
    job = load([documents(SLOW)[2]], tmp_path)
    assert measure_stragglers(job).replayed.tolist() == near(step_seconds(SLOW))
    assert collective_bandwidths(job) == []


def test_steps_can_be_chosen(tmp_path: Path) -> None:
    assert load(documents(SLOW), tmp_path, [6]).steps == (6,)
    with pytest.raises(InputError, match="has no step 7; choose from: 5, 6"):
        load(documents(SLOW), tmp_path, [7])


def without_steps(found: Documents) -> None:
    for rank in range(4):
        for event in events(found, rank, name="ProfilerStep"):
            event["name"] = "mine"


def without_launches(found: Documents) -> None:
    """Leave what profiles of the device alone have (no CPU activities)."""
    for each in found:
        each["traceEvents"] = [e for e in each["traceEvents"] if e.get("cat") in ("kernel", "user_annotation")]


def without_groups(found: Documents) -> None:
    for rank in range(4):
        del found[rank]["distributedInfo"]["pg_config"], found[rank]["distributedInfo"]["world_size"]
        for event in events(found, rank, name="ncclDev"):
            for name in GROUP_ARGS:
                del event["args"][name]


def without_a_marker(found: Documents) -> None:
    for rank in range(4):
        found[rank]["traceEvents"].remove(events(found, rank, name="ProfilerStep#6")[0])


NOTES: dict[str, tuple[Callable[[Documents], None], tuple[int, ...], str, float]] = {
    "cut": (
        lambda found: found[1]["traceEvents"].remove(events(found, 1, name="ncclDev")[-1]), (5,),
        r"^step 6 is skipped as truncated: rank 0, event .* has only 3 calls in that group, rank 0 has 4", 1e-6,
    ),
    "lacks": (
        lambda found: events(found, 3, name="ProfilerStep#5")[0].update(name="ProfilerStep#99"), (6,),
        r"rank 3's profile lacks step 5; skipped steps: 5, 99", 1e-6,
    ),
    "no steps": (without_steps, (0,), "count as one step, number 0", 1e-6),
    "no launches": (without_launches, (5, 6), "no launch", 1e-3),
    "no groups": (without_groups, (5, 6), "32 collectives do not state their process group", 1e-6),
    "outside": (without_a_marker, (5,), "^52 ops of all ranks were launched outside every step and are skipped$", 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("what", NOTES)
def test_what_is_assumed_is_said(what: str, tmp_path: Path) -> None:
    change, steps, note, error = NOTES[what]
    made = SLOW.with_(steps=1) if what == "no steps" else SLOW
    found = documents(made)
    change(found)
    job = load(found, tmp_path)
    assert job.steps == steps
    assert any(re.search(note, each) for each in job.notes)
    assert measure_stragglers(job).replayed.tolist() == pytest.approx(step_seconds(made)[-len(steps) :], rel=error)
    assert len(job.graphs[0].groups) == SLOW.layers


@given(st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_clocks_are_found_whoever_shares_collectives(offsets: list[float], random: Any) -> None:
    """A chain of pairs is enough; ends that one rank sees late do not move the median."""
    shared = []
    for number in range(len(offsets) * 9):
        pair = number % (len(offsets) - 1)
        start = number * 1.0
        late = 0.3 if number // (len(offsets) - 1) % 9 == 4 else 0.0
        shared.append(
            {
                rank: (start - offsets[rank], start + 0.5 - offsets[rank] + (late if rank == pair else 0.0))
                for rank in (pair, pair + 1)
            }
        )
    ranks = list(range(len(offsets)))
    found = align_clocks(ranks, dict.fromkeys(ranks, ""), shared)
    for rank in ranks:
        assert found.by_rank[rank] == pytest.approx(offsets[rank] - offsets[0], abs=1e-9)


def test_clocks_of_one_host_are_one_unless_that_cannot_be() -> None:
    hosts = {0: "a", 1: "a"}
    found = align_clocks([0, 1], hosts, [{0: (0.0, 1.0), 1: (0.5, 1.2)}])
    assert found.by_rank == {0: 0.0, 1: 0.0}
    found = align_clocks([0, 1], hosts, [{0: (0.0, 1.0), 1: (2.5, 3.0)}])
    assert found.by_rank == {0: 0.0, 1: -2.0}


def test_what_clocks_cannot_tell_is_said() -> None:
    hosts = dict.fromkeys(range(3), "")
    alone = align_clocks([0, 1, 2], hosts, [{0: (0.0, 1.0), 1: (0.0, 1.0)}])
    assert any("rank 2 shared no collective" in note for note in alone.notes)
    drifting = [{0: (float(n), n + 0.5), 1: (n * 1.0001, n * 1.0001 + 0.5)} for n in range(40)]
    found = align_clocks([0, 1], {0: "", 1: ""}, drifting)
    assert any("rank 1's clock drifts by +100.0 us per s" in note for note in found.notes)
    crossed = [{0: (0.0, 1.0), 1: (0.0, 1.0)}] * 3 + [{0: (5.0, 6.0), 1: (8.0, 9.0)}]
    found = align_clocks([0, 1], {0: "", 1: ""}, crossed)
    assert any("1 of 4 collectives still end on one rank before they begin on another" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
    ],
)
def test_kinds_of_collectives(text: str, kind: str) -> None:
    assert parse_collective_kind(text) == kind


def test_sizes_are_the_full_buffer() -> None:
    """Of an all-gather what is gathered, of a reduce-scatter what a rank gives (nccl-tests)."""
    groups = ProcessGroups.from_distributed_info({"pg_config": [{"pg_name": "3", "pg_desc": "dp", "ranks": [1, 5]}]})
    args = {"In msg nelems": 10, "Out msg nelems": 20, "dtype": "BFloat16", "Process Group Name": "3", "Group size": 2}
    gather = parse_comm_call(
        "ncclDevKernel_AllGather_RING_LL", args | {"Collective name": "_allgather_base"}, groups, 1
    )
    assert (gather.kind, gather.bytes, gather.ranks, gather.op_type) == (
        "all_gather",
        40.0,
        (1, 5),
        "comm:all_gather:dp",
    )
    args |= {"In msg nelems": 20, "Out msg nelems": 10, "Collective name": "_reduce_scatter_base"}
    assert parse_comm_call("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", args, groups, 1).bytes == 40.0
    strided = args | {"Process Group Name": "9", "Group size": 3, "Global rank start": 2, "Global rank stride": 4}
    assert parse_comm_call("ncclDevKernel", strided, groups, 2).ranks == (2, 6, 10)
    shortened = strided | {"Process Group Ranks": "[2, 6, ...]"}
    assert parse_comm_call("ncclDevKernel", shortened, groups, 2).ranks == (2, 6, 10)


def test_messages_meet_by_who_sends_to_whom(tmp_path: Path) -> None:
    """Rank 0's transfers become sends to rank 1, whose become receives; PyTorch names the other side only."""
    found = documents(SLOW.with_(steps=1, ranks=2, slow={1: 1.5}))
    for rank, kind in ((0, "send"), (1, "recv")):
        for event in events(found, rank, name="ncclDev"):
            event["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            event["args"] |= {"Collective name": kind, **({"Dst Rank": "1"} if kind == "send" else {"Src Rank": 0})}
    job = load(found, tmp_path)
    assert [len(group) for group in job.graphs[0].groups] == [2] * SLOW.layers
    (call,) = collective_bandwidths(job)
    assert (call.kind, call.ranks, call.count) == ("send", (0, 1), SLOW.layers)
    assert measure_stragglers(job).replayed.tolist() == near(step_seconds(SLOW.with_(steps=1, ranks=2, slow={1: 1.5})))


def test_messages_that_do_not_say_between_whom_are_told(tmp_path: Path) -> None:
    """Several in one kernel: of two ranks they meet, of more nobody knows."""
    for ranks in (2, 4):
        known = SLOW.with_(steps=1, ranks=ranks)
        found = documents(known)
        for rank in range(ranks):
            for event in events(found, rank, name="ncclDev"):
                event["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
                event["args"]["Collective name"] = "coalesced"
        (tmp_path / str(ranks)).mkdir()
        job = load(found, tmp_path / str(ranks))
        told = [note for note in job.notes if "do not state their ranks" in note]
        assert len(told) == (ranks > 2)
        assert len(job.graphs[0].groups) == (SLOW.layers if ranks == 2 else 0)


def test_the_command_replays_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(documents(SLOW), tmp_path / "profiles")
    arguments = [
        "replay",
        str(folder),
        "--what-if",
        "links=2x",
        "--cluster",
        "dgx_h100",
        "--export",
        str(tmp_path / "x"),
    ]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    text = capsys.readouterr().out
    for wanted in (
        "profiles of 4 ranks on GPUs, steps 5, 6", "mean error 0.00%", "S                1.1525", "rank 2       1.1525",
        "rank 0-1, 3  1.0000",
        "all_reduce default_pg", "10.49 GB/s", "wrote 4 profiles with links=2x",
        "forward layers.0-3       4  212.5 us  +25.0% (rank 2)",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert re.search(r"links=2x +3\.250? ms +-4\.41%", text)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["slowdown"] == pytest.approx(1.1525424)
    assert [rank["slowdown"] for rank in found["ranks"]].index(max(r["slowdown"] for r in found["ranks"])) == 2
    assert found["collectives"][0]["bus_bandwidth"] == pytest.approx(10.49e9, rel=1e-3)
    assert load_profiles(tmp_path / "x").measured_step_seconds.mean() == pytest.approx(3.25e-3, abs=1e-7)


def test_the_timeline_is_the_replay(tmp_path: Path) -> None:
    """Kernels and collectives of all ranks, when the plain arithmetic of the job has them."""
    folder = write(documents(SLOW.with_(steps=2)), tmp_path / "profiles")
    kinds = {"timeline": "csv", "gantt": "png", "heatmap": "png"}
    files = {name: tmp_path / f"{name}.{end}" for name, end in kinds.items()}
    assert (
        main(["replay", str(folder), *(text for name, path in files.items() for text in (f"--{name}", str(path)))]) == 0
    )
    assert all(path.stat().st_size > 10_000 for path in files.values())
    table = pd.read_csv(files["timeline"])
    job = load_profiles(folder)
    assert table["end"].max() == pytest.approx(job.replay_step_seconds(lambda graph: graph.seconds).sum())
    assert set(table["stream"]) == {"compute", "dp"}
    assert set(table[table["stream"] == "compute"]["kind"]) == {"forward", "backward", "optimizer"}
    seconds = (table["end"] - table["start"]).groupby([table["rank"], table["kind"]]).sum()
    slow = max(SLOW.slow, key=lambda rank: SLOW.slow[rank])
    assert seconds[slow, "forward"] == pytest.approx(SLOW.slow[slow] * seconds[0, "forward"], rel=0.01)
    reduced = table[table["stream"] == "dp"]
    assert (reduced["layer"] >= -1).all()
    assert set(reduced["group"]) == {"default_pg"}
    assert reduced[reduced["rank"] == 0]["start"].tolist() == reduced[reduced["rank"] == 1]["start"].tolist()
    worst = slowdown_by_rank_and_type(job, ["forward", "backward"])
    assert np.unravel_index(int(worst.argmax()), worst.shape)[0] == slow


def test_ranks_wait_for_the_slow_one(slow: ProfiledJob) -> None:
    """What the breakdown counts as waiting is waiting for somebody: here for rank 2, which nobody keeps waiting."""
    matrix = rank_wait_seconds(slow)
    waiting = [rank.waiting for rank in rank_state_seconds(slow)]
    assert matrix.sum(axis=1).tolist() == pytest.approx(waiting, abs=1e-8)
    assert matrix[:, 2].sum() == pytest.approx(matrix.sum())
    assert matrix[2].sum() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("what", "axis"), [
    ("default_pg", "dp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("mesh_tp", "tp"), ("DATA_PARALLEL_GROUP", "dp"),
    ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("CONTEXT_PARALLEL_GROUP", "cp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
])  # fmt: skip
def test_groups_are_on_the_stream_of_their_axis(what: str, axis: str) -> None:
    comm = CommCall("all_reduce", "3", what, (0, 1), 2, 8.0, "Float", -1, None)
    assert find_timeline_axis(comm) == axis
    assert find_timeline_axis(comm._replace(kind="send")) == "pp"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what-if", "worker=7"], "give a rank that has a profile: 0, 1, 2, 3"),
        (["--what-if", "wroker=7"], "did you mean 'worker'?"),
        (["--what-if", "links=fast"], "the value must be a speed-up factor above 0, as in 2x"),
        (["--what-if", "layer=head"], "the layers are layers.0, layers.1"),
        (["--what-if", "type=gemm"], "its types are backward, comm:all_reduce:default_pg, forward"),
        (["--heatmap", "a.txt"], "a picture ends in"),
        (["--timeline", "a.txt"], ".parquet"),
        (["--export", "x", "--what-if", "links=2x", "--what-if", "host=2x"], "at most one --what-if"),
        (["--cluster.nodes", "4"], "cluster.nodes=4: overrides change the cluster, but --cluster is missing"),
        (["links=2x"], "write --what-if links=2x"),
        (["--cluster", "dgx_h100", "--cluster.nodse", "4"], "did you mean 'nodes'?"),
        (["--cluster", "dgx_h100", "nodes=1", "gpus_per_node=2"], "has 2 GPUs, but a profile is of rank 3"),
    ],
)
def test_the_command_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(documents(SLOW.with_(steps=1)), tmp_path / "profiles")
    assert main(["replay", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_cluster_must_have_all_ranks(tmp_path: Path) -> None:
    found = copy.deepcopy(documents(SLOW.with_(steps=1, ranks=2)))
    job = load(found, tmp_path)
    small = load_cluster("dgx_h100", [("gpus_per_node", 1), ("nodes", 1)])
    with pytest.raises(InputError, match="has 1 GPUs, but a profile is of rank 1"):
        collective_bandwidths(job, small)


def test_the_cluster_can_be_changed_on_the_line_in_every_spelling(tmp_path: Path) -> None:
    """One GPU a machine: the same collective goes over the network."""
    folder = write(documents(SLOW.with_(steps=1)), tmp_path / "profiles")
    found = {}
    for name, arguments in {
        "one machine": [],
        "four": ["--cluster.nodes", "4", "--cluster.gpus_per_node=1"],
        "four, short": ["nodes=4", "--set", "gpus_per_node=1"],
    }.items():
        assert main(["replay", str(folder), "--cluster", "dgx_h100", *arguments, "--json", str(tmp_path / "x")]) == 0
        (call,) = json.loads((tmp_path / "x").read_text())["collectives"]
        found[name] = call["modelled"]
    assert found["four"] == found["four, short"] > 1.5 * found["one machine"]


def test_every_question_is_explained_by_example() -> None:
    for key, question in QUESTIONS.items():
        assert question.help_text.startswith(f"{key}=")


DEEPEP = {  # of DeepSeek-V3's published training profile (deepseek-ai/profile-data@4496024, train.json): us in all
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 24>(int4*, float*)": 49448.0,
    "void dpsk::ep::internode::dispatch<false, 8, false, 8>(int4*, float*)": 17383.0,
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)": 13621.0,
    "void dpsk::ep::internode::cached_notify<false>(int, int)": 23610.0,
    "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, int*)": 8968.0,
}
COMPUTE = 109000.0


def profile_of(tmp_path: Path, kernels: list[tuple[str, float, float, Any]]) -> ProfiledJob:
    """A profile of one rank of eight: kernels with their begin, duration (us) and stream, launched at the begin."""
    end = max(begin + length for _, begin, length, _ in kernels)
    found: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0.0, "dur": end}
    ]
    for number, (name, begin, length, stream) in enumerate(kernels, 1):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 1e-3}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin, "dur": length}
        found.append({**call, "ts": begin / 1e3, "args": {"correlation": number}})
        found.append({**kernel, "args": {"correlation": number, "stream": stream, "device": 0}})
    about = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    (tmp_path / "rank0.json").write_text(json.dumps({**about, "traceEvents": found}))
    return load_profiles(tmp_path)


def test_the_dispatcher_of_deepseeks_profile_is_communication(tmp_path: Path) -> None:
    """113.0 ms of communication beside 109 ms of computation that begins with it: 4.03 ms of it are exposed."""
    begin, kernels = 0.0, [("sm90_fp8_gemm", 0.0, COMPUTE, 7)]
    for name, length in DEEPEP.items():
        kernels.append((name, begin, length, 27))
        begin += length
    assert begin == pytest.approx(113030.0)
    (found,) = rank_state_seconds(profile_of(tmp_path, kernels))
    assert found.overlap == pytest.approx(COMPUTE / begin, rel=1e-3)
    assert found.exposed + found.waiting == pytest.approx((begin - COMPUTE) * 1e-6, rel=1e-3)
    assert found.computing == pytest.approx(COMPUTE * 1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        *[(name, True) for name in DEEPEP],
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", True),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", True),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", True),
        ("void uccl::internode::dispatch<false, 8>(int4*)", True),
        ("void primus_turbo::deep_ep::intranode::cached_notify_combine<8>(void**)", True),
        ("void hybrid_ep::dispatch_kernel<bf16>(void*)", True),
        ("_ZN4fork2xx9internode8dispatchILb0EEEvPv", True),
        ("void step::kernel<float>(float*)", False),
        ("void moe::dispatch_rows<float>(float*)", False),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168>(void*)", False),
    ],
)
def test_a_dispatcher_is_known_in_any_namespace(name: str, communicates: bool) -> None:
    assert (builtin_classifier().classify(name) == "communication") == communicates


@pytest.mark.parametrize(
    ("text", "number"), [("0x0", 0), ("0x7F9c2400a010", 0x7F9C2400A010), ("0XA", 10), ("7", 7), ("0012", 12)]
)
def test_streams_in_text_are_numbers(tmp_path: Path, text: str, number: int) -> None:
    """As ROCm's Kineto writes them; 0 leaves the thread's number."""
    ops = {}
    for stream in (text, number):
        job = profile_of(tmp_path, [("sm90_gemm_bf16", 0.0, 90.0, stream), ("sm90_gemm_bf16", 100.0, 90.0, stream)])
        ops[stream] = rank_state_seconds(job)
    assert ops[text] == ops[number]


@pytest.mark.parametrize("text", ["0x", "stream 7", "0xg", "1.5", "", "٣", "0x" + "f" * 17, None, 1.5])
def test_other_texts_are_rejected(tmp_path: Path, text: Any) -> None:
    with pytest.raises(InputError, match=r"event 2 \(.?sm90_gemm_bf16.?\): stream is .*; it must be a whole number"):
        profile_of(tmp_path, [("sm90_gemm_bf16", 0.0, 90.0, text)])
