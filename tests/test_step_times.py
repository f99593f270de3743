"""Stragglers in step times by rank: closed forms, properties, formats, and what is not a file of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.interop.replay.step_times import EQUAL, LEAST, StepStragglers, find_step_stragglers

ROOT = Path(__file__).parents[1]
HEADER = "rank,step,seconds"


def written(path: Path, seconds: Mapping[tuple[int, int], float]) -> Path:
    path.write_text("\n".join([HEADER, *(f"{r},{s},{x!r}" for (r, s), x in seconds.items())]), encoding="utf-8")
    return path


def found_in(folder: Path, time: Callable[[int, int], float], ranks: int = 8, steps: int = 10) -> StepStragglers:
    cells = {(rank, step): time(rank, step) for rank in range(ranks) for step in range(steps)}
    return find_step_stragglers(written(folder / "a.csv", cells))


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_a_persistent_and_a_transient_delay(tmp_path: Path) -> None:
    """Rank 3 takes 1.25 s instead of 1, rank 5 once 3 s: T = (9 x 1.25 + 3) / 10."""
    found = found_in(tmp_path, lambda rank, step: 1.25 if rank == 3 else 3.0 if (rank, step) == (5, 7) else 1.0)
    assert found.slowest_s == pytest.approx(1.425)
    assert found.typical_s == 1.0
    assert found.slowdown == pytest.approx(1.425)
    assert found.parts == pytest.approx({"persistent": 0.25, "transient": 0.175, "spread": 0.0})
    slow, late, *others = found.by_rank
    assert (slow.name, slow.factor, slow.slow, slow.events) == ("rank 3", 1.25, True, 0)
    assert slow.slowdown == pytest.approx(1.25)
    assert (late.name, late.factor, late.slow, late.events) == ("rank 5", 1.0, False, 1)
    assert late.slowdown == pytest.approx(1.2)
    assert not [place for place in others if place.slow or place.events]
    assert [each.slowest_s for each in found.remove_ranks[:2]] == pytest.approx([1.2, 1.0])
    assert [each.excess_removed for each in found.remove_ranks[:2]] == pytest.approx([0.225 / 0.425, 1.0])


def test_steps_of_any_length_have_the_same_factors(tmp_path: Path) -> None:
    """What all ranks have in common is no straggling: rank 3 at 1.25 of steps of 1, 2, ... s."""
    found = found_in(tmp_path, lambda rank, step: (1 + step) * (1.25 if rank == 3 else 1.0))
    assert found.slowdown == pytest.approx(1.25)
    assert found.parts == pytest.approx({"persistent": 0.25, "transient": 0.0, "spread": 0.0})


def test_a_node_is_slow_if_all_its_ranks_are(tmp_path: Path) -> None:
    """Node b at 1.2, one rank of node c at 1.5, and all of node a late in step 4; four nodes of two."""

    def time(rank: int, step: int) -> float:
        return {2: 1.2, 3: 1.2, 5: 1.5}.get(rank, 1.8 if rank < 2 and step == 4 else 1.0)

    nodes = "aabbccddeeff"
    rows = [f"{rank},{step},{time(rank, step)},{nodes[rank]}" for rank in range(12) for step in range(10)]
    (tmp_path / "a.csv").write_text("\n".join(["Global Rank,iter,time,host", *rows]))
    found = find_step_stragglers(tmp_path / "a.csv")
    node = {place.name: place for place in found.by_node}
    assert [name for name in "abcdef" if node[name].slow] == ["b"]
    assert node["b"].factor == pytest.approx(1.2)
    assert node["c"].factor == 1.0
    assert node["c"].slowdown == pytest.approx(1.5)
    assert {name: node[name].events for name in "abcdef"} == {**dict.fromkeys("bcdef", 0), "a": 1}
    assert [each.names for each in found.remove_nodes[:2]] == [("c",), ("c", "b")]
    assert [each.slowest_s for each in found.remove_nodes[:2]] == pytest.approx([(9 * 1.2 + 1.8) / 10, 1.08])


def test_only_a_part_of_the_step_is_saved(tmp_path: Path) -> None:
    """Computation of 0.8 s, 1 s on rank 2, in steps of 1.5 s; milliseconds; four microbatches each."""
    rows = [
        f"{rank},{step},{mb},375,{250 if rank == 2 else 200}"
        for rank in range(4) for step in range(5) for mb in range(4)
    ]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(["rank,step,mb,step_time_ms,compute (ms)", *rows]))
    found = find_step_stragglers(tmp_path / "a.csv")
    assert (found.timed, found.step_s) == ("compute (ms)", pytest.approx(1.5))
    assert (found.slowest_s, found.typical_s) == (pytest.approx(1.0), pytest.approx(0.8))
    assert re.search(r"rank 2 +800\.0 ms +13\.33% +100\.0%", str(found))


def test_ranks_that_agree_tell_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Backward times of four ranks, of which one computes 200 ms longer (traceopt-ai/traceml, issue 252)."""
    rows = [f"{rank},{step},{time}" for rank, time in enumerate((293.0, 292.2, 293.0, 293.1)) for step in range(9)]
    (tmp_path / "a.csv").write_text("\n".join(["rank,step,time_ms", *rows]))
    assert main(["stragglers", "--steps", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]) == 0
    said = capsys.readouterr().out
    assert "the ranks agree within 0.5 %" in said
    assert "S and slow ranks cannot be known" in said
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["synchronised"]
    assert told["slowdown"] is None
    assert told["by_rank"] == told["remove_ranks"] == []
    assert told["parts"] == {}
    assert told["slowest_s"] == pytest.approx(0.2931)


@pytest.mark.parametrize(("delay", "slow"), [(0.9 * LEAST, False), (1.1 * LEAST, True)])
def test_from_one_percent_a_rank_is_slow(tmp_path: Path, delay: float, slow: bool) -> None:
    found = found_in(tmp_path, lambda rank, step: 1 + delay * (rank == 3))
    assert delay > EQUAL
    assert [place.name for place in found.by_rank if place.slow] == ["rank 3"] * slow


def test_a_slow_gpu_of_the_simulator_is_found(tmp_path: Path) -> None:
    """The time that each rank computes, of a simulated job with a slow GPU; whole steps are equal."""
    faults = [{"kind": "slow_gpu", "rank": 2, "slowdown": 1.3}]
    result = simcluster.simulate(simcluster.scenario("tiny_dp", faults=faults, steps=4, engine="reference"))
    frame = result.timeline
    computes = frame[frame["stream"] == "compute"].assign(seconds=lambda each: each["end"] - each["start"])
    sums = computes.groupby(["rank", "step"])["seconds"].sum()
    found = find_step_stragglers(written(tmp_path / "a.csv", {(int(r), int(s)): x for (r, s), x in sums.items()}))
    assert found.by_rank[0].name == "rank 2"
    assert found.by_rank[0].factor == pytest.approx(1.3, rel=0.01)
    assert [place.name for place in found.by_rank if place.slow] == ["rank 2"]
    assert found.parts["persistent"] == pytest.approx(found.by_rank[0].factor - 1, rel=0.01)


# --- properties -------------------------------------------------------------------------------------------------------

TABLES = st.integers(3, 6).flatmap(
    lambda ranks: st.lists(
        st.lists(st.floats(0.5, 4.0), min_size=ranks, max_size=ranks), min_size=3, max_size=7
    )
)  # fmt: skip


@given(TABLES, st.integers())
@settings(deadline=None, max_examples=60)
def test_properties(tmp_path_factory: pytest.TempPathFactory, table: list[list[float]], seed: int) -> None:
    """Rows in any order give the same bytes, twice the time the same S; parts add up; removing more saves more."""
    path = tmp_path_factory.getbasetemp() / "property.csv"
    cells = [((rank, step), x) for step, row in enumerate(table) for rank, x in enumerate(row)]
    found = find_step_stragglers(written(path, dict(cells)))
    random.Random(seed).shuffle(cells)
    assert find_step_stragglers(written(path, dict(cells))) == found
    doubled = find_step_stragglers(written(path, {place: 2 * x for place, x in cells}))
    assert (doubled.slowdown, doubled.parts) == (found.slowdown, found.parts)
    assert doubled.slowest_s == 2 * found.slowest_s
    if found.synchronised:
        return
    assert found.slowdown is not None
    assert found.typical_s is not None
    assert found.slowdown >= 1
    assert sum(found.parts.values()) == pytest.approx(found.slowdown - 1)
    assert found.parts["transient"] >= -1e-12
    assert found.parts["persistent"] >= -1e-12
    assert all(1 <= place.slowdown <= found.slowdown * (1 + 1e-12) for place in found.by_rank)
    times = [found.slowest_s, *(each.slowest_s for each in found.remove_ranks), found.typical_s]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(times))
    numpy_table = np.array(table)
    assert found.slowdown == pytest.approx(numpy_table.max(axis=1).mean() / np.median(numpy_table, axis=1).mean())


# --- formats ----------------------------------------------------------------------------------------------------------


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.read_csv(ROOT / "examples/step_times.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    files = (ROOT / "examples/step_times.csv", tmp_path / "a.parquet")
    told, same = (find_step_stragglers(each).to_dict() for each in files)
    assert {**told, "name": ""} == {**same, "name": ""}


def test_an_empty_parquet_file(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"rank": [], "step": [], "seconds": []}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has 0 ranks, and 0 steps"):
        find_step_stragglers(tmp_path / "a.parquet")


def test_a_step_without_all_ranks_does_not_count(tmp_path: Path) -> None:
    cells = {(rank, step): 1.0 + 0.5 * (rank == 2) for rank in range(4) for step in range(5) if (rank, step) != (1, 3)}
    found = find_step_stragglers(written(tmp_path / "a.csv", cells))
    assert (found.steps, found.ranks) == (4, 4)
    assert found.notes == ("1 of 5 steps lack times of some ranks and do not count",)


def megatron_block(step: int, times: Mapping[str, list[float]]) -> str:
    """As megatron/core/timers.py writes it (``_get_all_ranks_time_string``)."""
    rows = []
    for name, each in times.items():
        rows += [f"  {name}:", *(f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(each))]
    line = f" [2026-11-30 10:00:0{step}] iteration {step:8d}/     100 | consumed samples: 8 | lm loss: 1.0E+01 |"
    return "\n".join([line, "times across ranks (ms):", *rows, ""])


def test_timers_of_megatron(tmp_path: Path) -> None:
    """Of all timers those of computation count, forward and backward added."""
    text = "".join(
        megatron_block(step, {"forward-backward": [900.0] * 4, "forward-compute": [100.0, 100.0, 150.0, 100.0],
                              "backward-compute": [200.0] * 4, "optimizer": [5.0, 5.0, 5.0, 50.0]})
        for step in range(1, 6)
    )  # fmt: skip
    (tmp_path / "a.log").write_text(text)
    found = find_step_stragglers(tmp_path / "a.log")
    assert (found.timed, found.steps) == ("forward-compute + backward-compute", 5)
    assert (found.slowest_s, found.typical_s) == (pytest.approx(0.35), pytest.approx(0.3))
    assert [place.name for place in found.by_rank if place.slow] == ["rank 2"]


def test_whole_passes_of_megatron_are_synchronised(tmp_path: Path) -> None:
    """--timing-log-level 1 has no timer but that of all passes, which ends when all ranks end."""
    (tmp_path / "a.log").write_text("".join(megatron_block(s, {"forward-backward": [900.0] * 4}) for s in range(1, 6)))
    found = find_step_stragglers(tmp_path / "a.log")
    assert (found.timed, found.synchronised) == ("forward-backward", True)


def test_extremes_bound_the_slowdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line of megatron/core/README_STRAGGLER.md, and one with another slowest rank."""
    line = "0: INFO:megatron.core.utils:[2024-03-14] | MnRtt/Rnk: {}ms/8 | MxRtt/Rnk: {}ms/{} | MnPwr/Rnk: 601796W/8"
    rows = [line.format(3453.08, 3468.20, 0), line.format(3450.00, 3800.00, 17), line.format(3440.00, 3810.00, 17)]
    (tmp_path / "a.log").write_text("\n".join(rows))
    found = find_step_stragglers(tmp_path / "a.log")
    assert (found.slowdown, found.typical_s, found.parts, found.ranks) == (None, None, {}, None)
    assert found.most_slowdown == pytest.approx((3468.2 + 3800 + 3810) / (3453.08 + 3450 + 3440))
    assert found.times_slowest == ((17, 2), (0, 1))
    assert main(["stragglers", "--steps", str(tmp_path / "a.log")]) == 0
    assert "slowest ranks by reports: 17 (2 of 3), 0 (1 of 3)" in capsys.readouterr().out


def test_min_and_max_of_megatron(tmp_path: Path) -> None:
    """Minima of the sum are at least the sum of minima, maxima at most that of maxima: still a bound."""
    rows = [
        f"(min, max) time across ranks (ms):\n    {'forward-compute '.ljust(48, '.')}: (100.00, {high:.2f})\n"
        f"    {'backward-compute '.ljust(48, '.')}: (200.00, 220.00)\n    {'optimizer '.ljust(48, '.')}: (1.00, 9.00)"
        for high in (150.0, 110.0)
    ]
    (tmp_path / "a.log").write_text("\n".join(rows))
    found = find_step_stragglers(tmp_path / "a.log")
    assert (found.timed, found.steps) == ("forward-compute + backward-compute", 2)
    assert found.most_slowdown == pytest.approx((370 + 330) / 600)
    assert found.times_slowest == ()


def test_reports_of_flagscale(tmp_path: Path) -> None:
    """As flagscale/runner/straggler/report.py writes them, behind torchrun's prefix."""
    lines = []
    for step in (10, 20, 30):
        lines += [f"=== Straggler Report at Step {step} ===", "", "Section Timings (ms):"]
        for name, slow in (("optimizer", 9.0), ("forward", 130.0), ("backward", 200.0)):
            times = [slow if rank == 1 else 100.0 for rank in range(4)]
            lines += ["", f"  {name}:", f"    Min: 100.00ms, Max: {slow:.2f}ms, Avg: 1.00ms, Slowdown: 1.00x"]
            lines += [f"    Rank {rank}: {time:.2f}ms" for rank, time in enumerate(times)]
        lines += ["", "GPU Performance Scores (higher=faster):", "  Rank 1 (rank-1): 0.5000"]
    (tmp_path / "a.log").write_text("\n".join(f"[default0]:{line}" for line in lines))
    found = find_step_stragglers(tmp_path / "a.log")
    assert (found.timed, found.steps, found.ranks) == ("forward + backward", 3, 4)
    assert found.slowdown == pytest.approx(330 / 200)
    assert [place.name for place in found.by_rank if place.slow] == ["rank 1"]


# --- what is not one --------------------------------------------------------------------------------------------------

ROWS = "".join(f"{rank},{step},1.{rank}\n" for rank in range(4) for step in range(4))
BAD = {
    "no step": ("rank,seconds\n1,2\n", "has no column step (or iteration"),
    "no time": ("rank,step,loss\n1,2,3\n", "has no column seconds (or time"),
    "two times": ("rank,step,seconds,step_time_ms\n1,2,3,4\n", "columns seconds and step_time_ms both mean seconds"),
    "a word": (f"{HEADER}\n{ROWS}5,5,fast\n", "row 17: seconds: 'fast' is not a time above 0"),
    "nothing": (f"{HEADER}\n{ROWS}5,5,\n", "row 17: seconds: '' is not a time above 0"),
    "zero": (f"{HEADER}\n{ROWS}5,5,0\n", "row 17: seconds: '0' is not a time above 0"),
    "endless": (f"{HEADER}\n{ROWS}5,5,1e200\n", "row 17: seconds: '1e200' is not a time above 0"),
    "infinite": (f"{HEADER}\n{ROWS}5,5,inf\n", "row 17: seconds: 'inf' is not a time above 0"),
    "half a rank": (f"{HEADER}\n{ROWS}0.5,5,1\n", "row 17: rank: '0.5' is not a whole number"),
    "twice": (f"{HEADER}\n{ROWS}2,3,1\n", "rank 2 has two times in step 3"),
    "two ranks": (f"{HEADER}\n" + ROWS[: ROWS.index("2,0")], "has 2 ranks, and 4 steps"),
    "no full step": (f"{HEADER}\n{ROWS}9,9,1\n", "has 5 ranks, and 0 steps with times of all of them"),
    "two nodes": ("rank,step,seconds,node\n" + ROWS.replace("\n", ",a\n").replace("2,1,1.2,a", "2,1,1.2,b"),
                  "rank 2 is on two nodes, a and b"),
    "too long a part": ("rank,step,seconds,compute_ms\n" + ROWS.replace("\n", ",9000\n"), "row 1: compute_ms is lon"),
    "semicolons": ("rank;step;seconds\n1;2;3\n", "columns are separated by"),
    "empty": ("", "has no rows"),
}  # fmt: skip
BAD_LOGS = {
    "no times": ("iteration 1/ 10 | lm loss: 3 |\n", "has no times of ranks; it must be a table"),
    "no computation": (megatron_block(1, {"optimizer": [1.0, 2.0]}), "times of ranks for optimizer, none of which"),
}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [*(("a.csv", *bad) for bad in BAD.values()), *(("a.log", *bad) for bad in BAD_LOGS.values())],
    ids=[*BAD, *BAD_LOGS],
)
def test_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert main(["stragglers", "--steps", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert str(tmp_path / name) in printed.err
    assert said in printed.err


@pytest.mark.parametrize("name", ["none.csv", "none.log", "none.parquet"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        find_step_stragglers(tmp_path / name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["slow_gpu", "--steps", "{}"], "remove slow_gpu, or --steps"),
        (["--steps", "{}", "--mitigate"], "remove --mitigate, or --steps"),
        (["--steps", "{}", "--heatmap", "a.png"], "remove --heatmap, or --steps"),
        (["--steps", "{}", "--matrix", "a.png"], "remove --matrix, or --steps"),
        (["--steps", "{}", "--parallel.tp", "2"], "remove --set, or --steps"),
        ([], "write simcluster stragglers SCENARIO, or --steps FILE"),
    ],
)
def test_what_needs_a_simulation(capsys: pytest.CaptureFixture[str], given: list[str], said: str) -> None:
    words = [word.format(ROOT / "examples/step_times.csv") for word in given]
    assert main(["stragglers", *words]) == 2
    assert said in capsys.readouterr().err
