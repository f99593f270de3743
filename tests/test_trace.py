"""Traces that a run writes: what is in them, that they are read again as the step they came from, and what is refused.

What other programs make of them is in test_trace_consumers.py.
"""

from __future__ import annotations

import errno
import gzip
import json
import re
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simcluster import InputError, Result, simulate
from simcluster.cli import main
from simcluster.interop.export.trace_export import MAX_RANKS, MERGED_FILE, check_trace_path, write_trace
from simcluster.interop.kineto.chrome_trace import complete_event
from simcluster.interop.kineto.chrome_trace import write_chrome_trace as write_events
from simcluster.interop.kineto.profile_loader import load_profiles
from simcluster.interop.kineto.profile_metrics import apply_profile_what_if
from simcluster.interop.replay import measure_stragglers
from simcluster.scenario.scenario import load, load_text
from simcluster.studies.multi_job import PlacedJob, simulate_jobs

ROOT = Path(__file__).parent.parent
TINY = ROOT / "scenarios" / "tiny_3d.yaml"
FLAT = """
name: tiny model, 4 replicas
cluster: {topology: flat, gpus: 4}
model: {layers: 4, hidden_size: 1024, heads: 16, vocab_size: 8192, sequence_length: 1024}
training: {global_batch: 32, micro_batch: 4}
"""
Event = dict[str, Any]


def run(**settings: Any) -> Result:
    """The tiny job on tp x pp x dp with these settings, played once; dots are double underscores."""
    return played(json.dumps([(name.replace("__", "."), value) for name, value in settings.items()]))


@cache
def played(settings: str) -> Result:
    return simulate(load(TINY, [(name, value) for name, value in json.loads(settings)]))


def events_of(path: Path) -> list[Event]:
    return parsed(path.read_bytes())


@lru_cache(maxsize=9)  # the files of one folder, which many tests look at
def parsed(packed: bytes) -> list[Event]:
    found: list[Event] = json.loads(gzip.decompress(packed))["traceEvents"]
    return found


def kernels_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]


def nanoseconds(event: Event) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


@pytest.fixture(scope="module")
def tiny() -> Result:
    return run()


@pytest.fixture(scope="module")
def folder(tiny: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All ranks of the tiny job."""
    path = tmp_path_factory.mktemp("all") / "trace"
    written = write_trace(tiny, path, ranks=range(8))
    assert written.files == (*(path / f"rank{rank:03}.json.gz" for rank in range(8)), path / MERGED_FILE)
    return path


VARIANTS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "blocking": {"overlap__pipeline": False},
    "rendezvous": {"pipeline__p2p": "rendezvous"},
    "gpipe": {"pipeline__schedule": "gpipe"},
    "interleaved": {"pipeline__schedule": "interleaved", "pipeline__chunks": 2},
    "zb-h1": {"pipeline__schedule": "zb-h1"},
    "zb-v": {"pipeline__schedule": "zb-v"},
    "recompute": {"training__recompute": "full"},
    "zero 3": {"parallel__pp": 1, "parallel__dp": 4, "parallel__zero": 3},
    "tensor beside": {"overlap__tensor": True},
    "all beside": {"overlap__tensor": True, "overlap__grad_reduce": True, "overlap__param_gather": True},
    "no interference": {"overlap__interference": "none", "overlap__grad_reduce": True},
    "in steps": {"collectives__detail": "steps"},
    "slow": {"faults": [{"kind": "slow_gpu", "rank": 3, "factor": 1.3}]},
    "jitter": {"faults": [{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.05}}]},
    "slow host": {"software": "torch-eager"},
    "host that stalls": {
        "faults": [{"kind": "host_stall", "cause": "garbage_collection", "rank": 5, "seconds": "2 ms"}]
    },
    "offload": {"memory__offload": {"optimizer": "stream"}},
    "update on the host": {"memory__offload": {"optimizer": "host", "host_update": "100 GB/s"}},
    "two steps": {"steps": 2},
}


ALL = ("1f1b", "rendezvous", "interleaved", "all beside", "slow", "jitter")


@pytest.mark.parametrize(("name", "ranks"), [*((name, None) for name in VARIANTS), *((name, range(8)) for name in ALL)])
def test_a_replay_of_the_trace_gives_the_step_back(name: str, ranks: range | None, tmp_path: Path) -> None:
    """From the simulated ranks alone, and from all."""
    result = run(**VARIANTS[name])
    write_trace(result, tmp_path / "trace", ranks=ranks)
    found = measure_stragglers(load_profiles(tmp_path / "trace"))
    total = result.step_time * result.steps
    assert found.measured.sum() == pytest.approx(total, abs=2e-9 * result.steps)
    assert found.replayed.sum() == pytest.approx(total, abs=5e-9 * result.steps)


@pytest.mark.parametrize("name", ["1f1b", "rendezvous", "all beside"])
def test_from_the_wire_on_it_is_the_same_step(name: str, tmp_path: Path) -> None:
    """Of ranks that are alike.  Where one is late, a reader takes short waits for what kernels need to begin."""
    result = run(**VARIANTS[name])
    write_trace(result, tmp_path / "trace", ranks=range(8), begins="wire")
    stragglers = measure_stragglers(load_profiles(tmp_path / "trace"))
    assert stragglers.replayed[0] == pytest.approx(result.step_time, abs=5e-9)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zb-h1", "zero 3", "all beside"])
def test_a_what_if_of_the_trace_is_what_the_simulation_says(name: str, tmp_path: Path) -> None:
    """All GPUs 1.5 times as slow, then the replay makes them faster: what waits for what is in the trace, binding or
    not.  (No interference: that is in the kernels' recorded times.)"""
    settings = {**VARIANTS[name], "overlap__interference": "none"}
    slow = run(**settings, faults=[{"kind": "slow_gpu", "rank": rank, "factor": 1.5} for rank in range(8)])
    fast = run(**settings)
    assert slow.step_time > 1.02 * fast.step_time
    write_trace(slow, tmp_path / "trace", ranks=range(8))
    job = apply_profile_what_if(load_profiles(tmp_path / "trace"), "compute=1.5x")
    assert job.replay_step_seconds(lambda graph: graph.seconds)[0] == pytest.approx(fast.step_time, abs=50e-9)


def test_a_replay_blames_the_slow_rank(tmp_path: Path) -> None:
    """A replay puts what is typical in its place, as it does for real profiles."""
    text = FLAT + "faults: [{kind: slow_gpu, rank: 2, factor: 1.4}]"
    write_trace(simulate(load_text(text)), tmp_path / "trace", ranks=range(4))
    assert measure_stragglers(load_profiles(tmp_path / "trace")).worst == ((2, 0),)


def test_one_of_several_jobs_is_a_trace_of_its_own(tmp_path: Path) -> None:
    """And of more than ten steps, whose ends, begin plus duration, are rounded behind the begin of the next."""
    own = load(TINY, {"training.global_batch": 4, "model.layers": 2})
    cluster = load(TINY, {"cluster.nodes": 8, "gpus": 8}).cluster.built
    first, second = (PlacedJob(own, tuple(range(begin, begin + own.gpus))) for begin in (0, own.gpus))
    result = simulate_jobs([first, second], cluster)[1].result
    assert write_trace(result, tmp_path / "trace", ranks=range(8)).job_ranks == 8
    found = measure_stragglers(load_profiles(tmp_path / "trace"))
    assert found.replayed.sum() == pytest.approx(result.step_time * result.steps, abs=5e-9)


def test_a_rank_is_written_as_the_one_that_was_simulated_for_it(tiny: Result, folder: Path) -> None:
    assert tiny.representative_of(7) == 4
    one, other = kernels_of(events_of(folder / "rank004.json.gz")), kernels_of(events_of(folder / "rank007.json.gz"))
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in one] == [
        (e["name"], e["ts"], e["dur"], e["tid"]) for e in other
    ]
    assert {e["pid"] for e in other} == {7}


def test_every_span_is_a_kernel(tiny: Result, folder: Path) -> None:
    for rank in range(8):
        spans = tiny.timeline_of(rank)
        kernels = kernels_of(events_of(folder / f"rank{rank:03}.json.gz"))
        first = min(event["ts"] for event in kernels_of(events_of(folder / "rank000.json.gz")))
        there = sorted((round((event["ts"] - first) * 1000), round(event["dur"] * 1000)) for event in kernels)
        started = (spans["ready"] * 1e9).round().astype(int)
        ends = (spans["end"] * 1e9).round().astype(int)
        assert there == sorted(zip(started.tolist(), (ends - started).tolist(), strict=True))


def test_tracks_do_not_overlap(folder: Path) -> None:
    """Perfetto drops what overlaps on a track without being inside of it."""
    for path in [*sorted(folder.glob("*.json.gz")), folder / MERGED_FILE]:
        tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for event in events_of(path):
            if event["ph"] == "X":
                tracks[event["pid"], event["tid"]].append(nanoseconds(event))
        assert len(tracks) > 3
        for spans in tracks.values():
            open_: list[int] = []
            for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
                while open_ and open_[-1] <= start:
                    open_.pop()
                assert not open_ or end <= open_[-1]
                open_.append(end)


def test_kernels_are_launched_in_time_by_a_call_of_their_own(folder: Path) -> None:
    for path in sorted(folder.glob("*.json.gz")):
        events = events_of(path)
        launches = {e["args"]["correlation"]: e for e in events if e["name"] == "cudaLaunchKernel"}
        kernels = kernels_of(events)
        assert len(launches) == len(kernels)
        assert min(launches) >= 2**31  # smaller ones break HolisticTraceAnalysis with pandas 3
        (step,) = (nanoseconds(event) for event in events if event["name"].startswith("ProfilerStep#"))
        for kernel in kernels:
            launch = nanoseconds(launches[kernel["args"]["correlation"]])[0]
            assert step[0] <= launch < step[1]
            assert launch <= nanoseconds(kernel)[0] + 1000
            assert kernel["tid"] == kernel["args"]["stream"] > 0


def test_the_head_names_rank_and_groups(folder: Path) -> None:
    text = gzip.decompress((folder / "rank005.json.gz").read_bytes()).decode()
    match = re.search(r'"rank":\s+(\d+)', text.splitlines()[0])
    assert match
    assert match[1] == "5"
    groups = {each["pg_name"]: each["ranks"] for each in json.loads(text)["distributedInfo"]["pg_config"]}
    assert groups["tp2"] == [4, 5]
    assert groups["pipeline1"] == [1, 5]


def test_collectives_say_what_they_move_and_between_whom(tiny: Result, folder: Path) -> None:
    table = tiny.timeline_of(0)
    sizes = {(row.kind, row.name): row.bytes for row in table.itertuples() if row.stream in ("tp", "dp", "pp")}
    size_of = {"BFloat16": 2, "Float": 4, "Byte": 1}
    seen = set()
    for event in kernels_of(events_of(folder / "rank000.json.gz")):
        args = event["args"]
        if not event["name"].startswith("nccl"):
            assert "Collective name" not in args
            continue
        assert re.match("^nccl.*Kernel", event["name"])
        purpose = event["name"].partition("(")[2][:-1]
        called = {"allreduce": "all_reduce", "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}
        kind = called.get(args["Collective name"], args["Collective name"])
        whole = "Out msg nelems" if kind in ("all_gather", "recv") else "In msg nelems"
        assert args[whole] * size_of[args["dtype"]] == sizes[kind, purpose]
        ranks = json.loads(args["Process Group Ranks"])
        assert 0 in ranks
        assert len(ranks) == args["Group size"]
        if kind in ("all_gather", "reduce_scatter"):
            assert max(args["In msg nelems"], args["Out msg nelems"]) == args["Group size"] * min(
                args["In msg nelems"], args["Out msg nelems"]
            )
        seen.add(kind)
    assert seen == {"all_reduce", "all_gather", "reduce_scatter", "send", "recv"}


def test_members_agree_on_every_call(folder: Path) -> None:
    """The n-th call of a group is the same on all members, and over at the same instant."""
    calls: dict[tuple[Any, ...], list[tuple[str, int]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json.gz")):
        for event in kernels_of(events_of(path)):
            args = event["args"]
            if "Collective name" in args:
                key = args["Process Group Name"], args.get("Src Rank"), args.get("Dst Rank"), args["Seq"]
                calls[key].append((event["name"], nanoseconds(event)[1]))
    for key, members in calls.items():
        size = 2 if key[1] is not None else {"tp": 2, "dp": 2, "em": 2, "wo": 8, "mo": 4}[key[0][:2]]
        assert len(members) == size, key
        assert len(set(members)) == 1, key


def test_long_groups_are_written_once(tmp_path: Path) -> None:
    """PyTorch shortens them in every call, too; the file's head has all ranks."""
    result = run(cluster={"topology": "flat", "gpus": 64}, parallel={"tp": 1, "dp": 64}, training__global_batch=64)
    (path, _) = write_trace(result, tmp_path / "trace").files
    calls = [event["args"] for event in kernels_of(events_of(path)) if "Collective name" in event["args"]]
    assert calls
    assert all(args["Process Group Ranks"].endswith("28, 29, ...]") for args in calls)
    head = json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["pg_config"]
    assert [group["ranks"] for group in head if group["pg_name"] == "dp0"] == [list(range(64))]
    stragglers = measure_stragglers(load_profiles(tmp_path / "trace"))
    assert stragglers.replayed[0] == pytest.approx(result.step_time, abs=5e-9)


def test_no_kernel_of_compute_is_taken_for_something_else(folder: Path) -> None:
    for event in kernels_of(events_of(folder / "rank000.json.gz")):
        if not event["name"].startswith("nccl"):
            assert not re.search("Sync|Memcpy|Memset|^dma", event["name"])


def test_messages_have_arrows(folder: Path) -> None:
    events = events_of(folder / MERGED_FILE)
    kernels = {(e["pid"], e["tid"], *nanoseconds(e)): e for e in kernels_of(events)}
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in ("s", "f"):
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
    assert len(ends) == 4 * 8  # 4 pipelines, 4 microbatches, there and back
    for pair in ends.values():
        inside = []
        for phase in "sf":
            time = round(pair[phase]["ts"] * 1000)
            inside += [
                kernel for (pid, tid, start, end), kernel in kernels.items()
                if (pid, tid) == (pair[phase]["pid"], pair[phase]["tid"]) and start <= time < end
            ]  # fmt: skip
        sent, received = inside
        assert (sent["args"]["Src Rank"], sent["args"]["Dst Rank"]) == (sent["pid"], received["pid"])
        assert sent["args"]["Seq"] == received["args"]["Seq"]
        assert pair["s"]["ts"] <= pair["f"]["ts"]


def test_arrows_need_both_ends(tiny: Result, tmp_path: Path) -> None:
    write_trace(tiny, tmp_path / "one.json.gz", ranks=[0, 1, 6])
    assert not [event for event in events_of(tmp_path / "one.json.gz") if event["ph"] in "sf"]


def test_memory_reaches_the_peak(tiny: Result, folder: Path) -> None:
    highest: dict[int, float] = defaultdict(float)
    for event in events_of(folder / MERGED_FILE):
        if event["ph"] == "C" and event["name"].startswith("memory"):
            levels = event["args"]
            assert levels["total"] == sum(levels.values()) - levels["total"]
            highest[event["pid"]] = max(highest[event["pid"]], levels["total"])
    assert max(highest.values()) == pytest.approx(tiny.memory.total, abs=10)
    assert highest[tiny.memory_peak.rank] == max(highest.values())


def test_links_carry_something_and_never_more_than_they_can(folder: Path) -> None:
    levels = [
        event["args"]["%"]
        for event in events_of(folder / MERGED_FILE)
        if event["ph"] == "C" and event["name"][:4] != "memo"
    ]
    assert 0 < max(levels) <= 100
    assert min(levels) == 0


def test_passes_are_over_the_compute_stream(folder: Path) -> None:
    names = [
        event["name"]
        for event in sorted(events_of(folder / "rank000.json.gz"), key=lambda event: event["ts"])
        if event.get("cat") == "gpu_user_annotation"
    ]
    assert names == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3", "optimizer"]


def test_chunks_are_in_the_names_of_passes(tmp_path: Path) -> None:
    write_trace(run(**VARIANTS["interleaved"]), tmp_path / "trace.json")
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"F0.0", "F0.1", "B3.1"} <= names


def test_steps_are_numbered_from_one(tmp_path: Path) -> None:
    """HolisticTraceAnalysis leaves step 0 out of its search for stragglers."""
    write_trace(run(steps=3), tmp_path / "trace")
    steps = [e for e in events_of(tmp_path / "trace" / "rank000.json.gz") if e["name"].startswith("ProfilerStep#")]
    assert [event["name"] for event in steps] == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
    ends = [nanoseconds(event) for event in steps]
    assert all(one[1] == other[0] for one, other in pairwise(ends))


def test_copies_to_the_host_are_copies(tmp_path: Path) -> None:
    write_trace(run(**VARIANTS["offload"]), tmp_path / "trace")
    copies = [e for e in events_of(tmp_path / "trace" / "rank000.json.gz") if e.get("cat") == "gpu_memcpy"]
    assert {event["name"].split(" (")[0] for event in copies} == {"Memcpy DtoH", "Memcpy HtoD"}


def covered(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds inside any of the spans."""
    total, until = 0, -1
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def hta_times(path: Path) -> tuple[int, int, int, float]:
    """compute, non-compute and idle time (ns) and overlap as HolisticTraceAnalysis defines them, from a rank's file."""
    kernels = kernels_of(events_of(path))
    compute = [nanoseconds(event) for event in kernels if not re.match("nccl|Memcpy", event["name"])]
    comm = [nanoseconds(event) for event in kernels if event["name"].startswith("nccl")]
    every = [nanoseconds(event) for event in kernels]
    busy, computing, talking = covered(every), covered(compute), covered(comm)
    window = max(end for _, end in every) - min(start for start, _ in every)
    both = computing + talking - covered(compute + comm)
    return computing, busy - computing, window - busy, both / talking


@pytest.mark.parametrize("name", ["1f1b", "rendezvous", "zb-h1", "all beside", "slow", "recompute"])
def test_times_are_the_breakdowns(name: str, tmp_path: Path) -> None:
    """export.py's table of definitions, with collectives from the wire on."""
    result = run(**VARIANTS[name])
    write_trace(result, tmp_path / "trace", begins="wire")
    for rank in result.weights:
        of_rank, table = result.times.of_rank[rank], result.timeline_of(rank)
        states = of_rank.states
        compute, talk, idle, overlap = hta_times(tmp_path / "trace" / f"rank{rank:03}.json.gz")
        work = sum(states[kind] for kind in ("forward", "backward", "recompute", "optimizer", "other"))
        exposed = sum(seconds for kind, seconds in states.items() if kind.startswith("exposed_"))
        outside = table["start"].min() + result.step_time - table["end"].max()
        assert compute == pytest.approx(work * 1e9, abs=len(table))
        assert talk == pytest.approx(exposed * 1e9, abs=len(table))
        waiting = states["bubble"] + states["straggler_wait"] - outside
        assert idle == pytest.approx(waiting * 1e9, abs=len(table))
        assert overlap == pytest.approx(of_rank.overlapped / of_rank.communication, abs=1e-5)


def test_from_arrival_on_waiting_is_in_the_collectives(tmp_path: Path) -> None:
    result = simulate(load_text(FLAT + "faults: [{kind: slow_gpu, rank: 2, factor: 1.4}]"))
    write_trace(result, tmp_path / "trace", ranks=range(4))
    for rank in (0, 2):
        states = result.times.of_rank[result.representative_of(rank)].states
        _, talk, _, _ = hta_times(tmp_path / "trace" / f"rank{rank:03}.json.gz")
        behind = result.step_time - result.timeline_of(rank)["end"].max()  # until the slow rank has updated too
        assert talk == pytest.approx((states["exposed_dp"] + states["straggler_wait"] - behind) * 1e9, abs=100)
    assert result.times.of_rank[0].states["straggler_wait"] > 1e-3


def test_the_same_run_gives_the_same_bytes(tiny: Result, folder: Path, tmp_path: Path) -> None:
    written = write_trace(run(), tmp_path / "again", ranks=range(8))
    for path in written.files:
        assert path.read_bytes() == (folder / path.relative_to(tmp_path / "again")).read_bytes()
    write_trace(tiny, tmp_path / "again.json.gz", ranks=range(8))
    assert (tmp_path / "again.json.gz").read_bytes() == (folder / MERGED_FILE).read_bytes()
    write_trace(tiny, tmp_path / "plain.json", ranks=range(8))
    assert (tmp_path / "plain.json").read_bytes() == gzip.decompress((folder / MERGED_FILE).read_bytes())


def test_a_folder_can_be_written_again(tiny: Result, tmp_path: Path) -> None:
    one = write_trace(tiny, tmp_path / "trace")
    assert one == write_trace(tiny, tmp_path / "trace")
    assert one.ranks == (0, 4)
    with pytest.raises(InputError, match=r"contains rank004\.json\.gz; name an empty folder"):
        write_trace(tiny, tmp_path / "trace", ranks=[0])


def test_which_ranks_are_written_is_said(tiny: Result, tmp_path: Path) -> None:
    written = write_trace(tiny, tmp_path / "trace.json")
    assert written.summary() == f"trace: 2 of 8 ranks in {tmp_path / 'trace.json'} (one per class of equal ranks)"
    assert write_trace(tiny, tmp_path / "trace.json", ranks=[5, 0, 5]).ranks == (0, 5)
    apart = simulate(load(TINY), folded=False)
    assert write_trace(apart, tmp_path / "trace.json").selection == "all"


def test_of_too_many_that_differ_some_are_written(tmp_path: Path) -> None:
    settings = {"cluster": {"topology": "flat", "gpus": 80}, "parallel": {"dp": 80}, "training.global_batch": 80}
    result = simulate(load(TINY, settings.items()), folded=False)
    written = write_trace(result, tmp_path / "trace.json")
    assert len(written.ranks) == MAX_RANKS
    assert (written.ranks[0], written.ranks[-1]) == (0, 79)
    assert written.selection == "64 of 80 distinct ranks, spread over the job"


def test_writing_holds_no_more_than_a_little(tmp_path: Path) -> None:
    def endless() -> Iterator[str]:
        for place in range(30_000):
            yield complete_event("kernel", "a name", (0, 7), place * 1000, place * 1000 + 500, '"stream":7')

    tracemalloc.start()
    write_events(tmp_path / "big.json", {"schemaVersion": 1}, endless())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "big.json").stat().st_size > 3e6
    assert peak < 1e6
    assert len(json.loads((tmp_path / "big.json").read_text())["traceEvents"]) == 30_000


def test_no_events_are_a_trace_too(tmp_path: Path) -> None:
    write_events(tmp_path / "none.json", {"schemaVersion": 1}, [])
    assert json.loads((tmp_path / "none.json").read_text()) == {"schemaVersion": 1, "traceEvents": []}


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    assert main(["run", str(TINY), "--trace", str(path), "--trace-ranks", "0,4-5"]) == 0
    assert f"trace: 3 of 8 ranks in {path} (as requested)" in capsys.readouterr().out
    assert sorted(each.name for each in path.iterdir()) == [
        "merged", "rank000.json.gz", "rank004.json.gz", "rank005.json.gz",
    ]  # fmt: skip
    assert main(["replay", str(path)]) == 0


def test_stdout_is_the_answer_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(TINY), "--json", "-", "--trace", str(tmp_path / "t.json.gz"), "--trace-ranks", "all"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["gpus"] == 8
    assert "trace: 8 of 8 ranks" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "{tmp}/none/trace.json"], "the folder {tmp}/none does not exist; create it first"),
        (["--trace", "{tmp}/trace.pftrace"], "a trace is a file that ends in .json or .json.gz, or a folder"),
        (["--trace", "{tmp}/file"], "a trace is a file that ends in .json or .json.gz, or a folder"),
        (["--trace", "{tmp}/folder.json"], "it is a folder; name a file"),
        (["--trace", "{tmp}/foreign"], "the folder contains mine.json; name an empty folder"),
        (["--trace", "{tmp}/t.json", "--trace-ranks", "8"], "there is no rank 8; this job has ranks 0 to 7"),
        (["--trace", "{tmp}/t.json", "--trace-ranks", "0-9"], "there is no rank 9; this job has ranks 0 to 7"),
        (["--trace", "{tmp}/t.json", "--trace-ranks", "5-3"], "'5-3' is a descending range; write 3-5"),
        (
            ["--trace", "{tmp}/t.json", "--trace-ranks", "first"],
            "'first' is not a rank; write whole numbers or ranges",
        ),
        (["--trace", "{tmp}/t.json", "--trace-ranks", ""], "--trace-ranks needs a value"),
        (["--trace-ranks", "0"], "applies to a trace; name its file with --trace"),
        (["--trace", "{tmp}/t.json", "--replicas", "3"], "this scenario has 3 replicas; use --replicas 1"),
    ],
)
def test_bad_requests_are_refused_before_the_work(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine.json").write_text("{}")
    replicas = "studies.whatif.frozen_link_error"
    for name in "cli.run.simulate", f"{replicas}.simulate_scenario", f"{replicas}.monte_carlo":
        monkeypatch.setattr(f"simcluster.{name}", lambda *_, **__: pytest.fail("it was simulated"))
    scenario = ROOT / "scenarios" / ("jitter_8.yaml" if "--replicas" in arguments else "tiny_3d.yaml")
    assert main(["run", str(scenario), *(each.format(tmp=tmp_path) for each in arguments)]) == 2
    captured = capsys.readouterr()
    assert message.format(tmp=tmp_path) in captured.err
    assert captured.out == ""


def test_ranks_that_are_not_there_are_refused(tiny: Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no rank 8; the job has ranks 0 to 7"):
        write_trace(tiny, tmp_path / "trace.json", ranks=[0, 8])
    with pytest.raises(InputError, match="there is no rank to write"):
        write_trace(tiny, tmp_path / "trace.json", ranks=[])
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_may_not_be_written(tiny: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, since root may write everywhere."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"cannot write .*trace\.json: Permission denied"):
        write_trace(tiny, tmp_path / "trace.json")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"cannot write profiles to .*folder: Permission denied"):
        write_trace(tiny, tmp_path / "folder")


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """No file of this process may grow beyond 20 kB: writing fails in the middle, as on a full disk."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from simcluster.cli import main\n"
        f"sys.exit(main(['run', {str(TINY)!r}, '--trace', {str(tmp_path / 'trace.json')!r}]))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert re.search(r"cannot write \S*/trace\.json: File too large", found.stderr)
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_where_a_trace_can_go(tmp_path: Path) -> None:
    assert check_trace_path(tmp_path / "step.json.gz") == tmp_path / "step.json.gz"
    assert check_trace_path(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "v1.2").mkdir()
    assert check_trace_path(tmp_path / "v1.2") == tmp_path / "v1.2"
