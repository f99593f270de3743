"""Memory that nearly fits: what leaves the headroom, its marks, and the fastest rows of a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.scenario.memory_plan import HEADROOM, OVER, TIGHT, fit_mark, parse_headroom, usable_bytes
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.studies.whatif.launch_checklist import check_launch

GB = 1e9


@given(memory=st.floats(0, 200 * GB), capacity=st.floats(GB, 192 * GB), headroom=st.floats(0, 0.99))
def test_marks_by_their_definition(memory: float, capacity: float, headroom: float) -> None:
    found = fit_mark(memory, capacity, headroom)
    assert (found == OVER) == (memory > capacity)
    assert (found == TIGHT) == (usable_bytes(capacity, headroom) < memory <= capacity)


@pytest.mark.parametrize(("text", "part"), [("10%", 0.1), ("0.1", 0.1), ("0", 0.0), ("0%", 0.0), ("12.5%", 0.125)])
def test_a_headroom_as_it_is_written(text: str, part: float) -> None:
    assert parse_headroom(text) == pytest.approx(part, abs=1e-15)


@pytest.mark.parametrize("text", ["", "%", "100%", "1", "-1%", "nan", "inf", "some", "10 GB"])
def test_no_headroom(text: str) -> None:
    with pytest.raises(InputError, match="must be the share of GPU memory left free"):
        parse_headroom(text)


@pytest.mark.parametrize("memory", [{}, {"fragmentation": 1.0, "communication_buffers": "2 GB"}])
def test_run_and_check_warn_from_the_same_part_on(memory: dict[str, object]) -> None:
    """Also where the scenario itself states buffers: they are bytes as others, and the same part is left free."""
    base = {"gpus": 1, "parallel": {"dp": 1}, "training.global_batch": 4, "overlap": {}, "memory": memory}
    needs = peak_memory_bytes(simcluster.scenario("tiny_dp", base))
    for share, warned in ((1 - HEADROOM - 0.001, False), (1 - HEADROOM + 0.001, True)):
        device = {"base": "a100-80gb", "memory": f"{needs / share / GB} GB"}
        result = simcluster.simulate(simcluster.scenario("tiny_dp", {**base, "cluster.device": device}))
        assert any(text.startswith("tight: ") for text in result.warnings()) == warned
        (point,) = (each for each in check_launch(result) if each.name == "memory headroom")
        assert (point.verdict == "warn") == warned


# --- sweep ------------------------------------------------------------------------------------------------------------

MICRO = (1, 2, 4)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("quick", [True, False])
def test_the_fastest_of_a_sweep_leave_the_headroom(
    quick: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Micro batches of a job on one GPU: larger ones are faster, hold more, and leave less than is asked or nothing."""
    base = {"gpus": 1, "parallel.dp": 1, "training.global_batch": 4, "overlap.grad_reduce": False}
    scenarios = [simcluster.scenario("tiny_dp", {**base, "training.micro_batch": size}) for size in MICRO]
    results = [simcluster.simulate(each) for each in scenarios]
    sizes = [peak_memory_bytes(each) for each in scenarios] if quick else [each.memory.total for each in results]
    steps = [each.step_time for each in results]
    assert steps[0] > steps[1] > steps[2]
    assert sizes[0] < sizes[1] < sizes[2]
    capacity, headroom = (sizes[1] + sizes[2]) / 2, 1 - (sizes[0] + sizes[1]) / (sizes[1] + sizes[2])
    device = f"cluster.device={{base: a100-80gb, memory: {capacity / GB} GB}}"
    options = [word for path, value in base.items() for word in ("--set", f"{path}={str(value).lower()}")]
    command = ["sweep", "tiny_dp", "--set", device, *options, "--vary", "training.micro_batch=1,2,4",
               "--headroom", f"{headroom}", "-o", str(tmp_path / "rows.csv"), "--executor", "1"]  # fmt: skip
    assert main([*command, *(["--quick"] if quick else []), "--json", str(tmp_path / "summary.json")]) == 0
    text = capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["fastest"] == [0]
    assert summary["ahead_without_headroom"] == [2, 1]
    assert summary["memory_bytes"] == {str(number): size for number, size in enumerate(sizes)}
    lines = [line.rstrip() for line in text.splitlines()]
    assert [line[0] for line in lines if line.endswith(f"GB{OVER}")] == ["2"]
    assert [line[0] for line in lines if line.endswith(f"GB{TIGHT}")] == ["1"]
    assert "faster than these, not recommended (! out of memory, ~ leaves less free)" in lines
    assert main([*command, *(["--quick"] if quick else []), "--headroom", "0", "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["fastest"], summary["ahead_without_headroom"]) == ([1, 0], [2])


@pytest.mark.usefixtures("in_this_process")
def test_a_sweep_of_which_none_leaves_it_and_who_launches_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "tiny_3d", "--vary", "parallel.zero=1,2", "--headroom", "99.999%", "--executor", "1"]
    assert main([*command, "-o", str(tmp_path / "rows.csv")]) == 0
    text = capsys.readouterr().out
    assert "none leaves 100 % of memory free" not in text
    assert "none leaves 99.999 % of memory free; fastest (! out of memory, ~ leaves less free)" in text
    assert "1*" in text
    assert "* ZeRO-2 with pipeline parallelism: torchtitan supports it" in text
