"""Schedules as text for people, and the command that prints them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.schedules import EqualCosts, gpipe, interleaved, one_f_one_b, time_actions
from simcluster.schedules.actions import parse_row
from simcluster.schedules.text import order_lines
from simcluster.schedules.text_grid import draw_grid, find_common_unit

GRID_1F1B = """\
t  0     2     4     6     8     10    12    14    16    18    20    22    24    26    28    30    32
r0 F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4--- .  B5--- .  B6--- .  B7---
r1 .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5--- .  B6--- .  B7--- .  .
r2 .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6--- .  B7--- .  .  .  .
r3 .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 B7--- .  .  .  .  .  ."""


def test_grid_of_1f1b() -> None:
    assert draw_grid(one_f_one_b(4, 8)) == GRID_1F1B.split("\n")


def test_long_actions_need_no_wide_columns() -> None:
    timing = time_actions(gpipe(2, 2), EqualCosts(F=6, B=10), latency=2)
    assert draw_grid(gpipe(2, 2), timing, unit=2) == [
        "t  0    10   20   30   40   50",
        "r0 F0 F1 ..........B0-- B1--",
        "r1 ....F0 F1 B0-- B1-- ......",
    ]


@pytest.mark.parametrize("width", [13, 20, 33, 60])
def test_a_long_grid_goes_on_below(width: int) -> None:
    schedule = interleaved(2, 4, 2)
    timing = time_actions(schedule, EqualCosts(F=Fraction(1), B=Fraction(3, 2)), Fraction(1, 2))
    lines = draw_grid(schedule, timing, unit=Fraction(1, 2), width=width)
    assert max(map(len, lines)) <= width
    blocks = "\n".join(lines).split("\n\n")
    assert all(len(block.split("\n")) == 3 for block in blocks)
    for stage in range(2):
        drawn = "".join(block.split("\n")[1 + stage][3:].ljust(1) + " " for block in blocks)
        for action in schedule.rows[stage]:
            assert drawn.count(action.label(2)) == 1


def test_grid_refuses_a_unit_that_does_not_divide() -> None:
    timing = time_actions(one_f_one_b(2, 2), EqualCosts(F=1.0, B=1.5))
    with pytest.raises(InputError, match="not a multiple of the unit 1; choose a unit"):
        draw_grid(one_f_one_b(2, 2), timing)
    assert len(draw_grid(one_f_one_b(2, 2), timing, unit=0.5)) == 3


@given(st.lists(st.fractions(0, 50, max_denominator=30), max_size=5))
def test_common_unit_is_the_largest_that_divides_all(times: list[Fraction]) -> None:
    unit = find_common_unit(times)
    multiples = [time / unit for time in times]
    assert all(multiple.denominator == 1 for multiple in multiples)
    if any(times):
        assert math.gcd(*(int(multiple) for multiple in multiples)) == 1
    else:
        assert unit == 1


def test_stage_names_line_up_beyond_ten() -> None:
    lines = order_lines(gpipe(11, 1))
    assert (lines[0], lines[10]) == ("r0  F0 B0", "r10 F0 B0")


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_command_prints_order_grid_bubble_and_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "1f1b", "--stages", "4", "--microbatches", "8"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for expected in (
        *order_lines(one_f_one_b(4, 8)),
        GRID_1F1B,
        "assumed: F = 1, B = 2 for one microbatch through one stage, latency 0 between stages, all stages equal",
        "makespan           33\n",
        "bubble over total  27.27%",
        "bubble over ideal  37.50%",
        "bubble of span     27.27%",
        "r0       24     9    33               4          4\n",
        "r3       24     9    24               1          1\n",
    ):
        assert expected in out


def test_command_writes_json_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["schedule", "interleaved", "--stages", "4", "--microbatches", "8", "--chunks", "2"]
    arguments += ["--forward", "0.2", "--backward", "0.4", "--latency", "0.05"]  # a chunk takes half of that
    assert main([*arguments, "--json", "-"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["makespan"] == float(Fraction(57, 10) + 2 * Fraction(1, 20) * 7)
    assert document["peak_in_flight"] == [11, 9, 7, 5]
    assert document["peak_of_a_stage"] == [5.5, 4.5, 3.5, 2.5]
    assert [parse_row(row)[0] for row in document["rows"]] == list(interleaved(4, 8, 2).rows)
    target = tmp_path / "out.json"
    assert main([*arguments, "--json", str(target)]) == 0
    assert target.read_text() == text
    assert "time (one column = 0.05, a dot is idle)" in capsys.readouterr().out


def test_command_leaves_out_what_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "1f1b", "--stages", "64", "--microbatches", "64", "--forward", "1.001"]) == 0
    out = capsys.readouterr().out
    assert "order: too long to print, 8,192 actions; --json FILE writes it" in out
    assert "time: too large" in out
    assert "bubble over total  49.61%" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["1fb1", "--stages", "4", "--microbatches", "8"], "did you mean '1f1b'"),
        (["1f1b", "--stages", "4"], "missing options: --microbatches"),
        (["1f1b"], "missing options: --stages and --microbatches"),
        ([], "NAME is required"),
        (["1f1b", "gpipe", "--stages", "4", "--microbatches", "8", "--chunks", "2"], "no such schedule takes chunks"),
        (
            ["1f1b", "--stages", "4", "--microbatches", "8", "--backward", "3", "--input", "1", "--weight", "1"],
            "the sum",
        ),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--backward", "3", "--input", "4"], "the sum of"),
        (["1f1b", "zb-v", "--stages", "4", "--microbatches", "8", "--csv", "x.csv"], "--csv writes one schedule"),
        (["all", "--stages", "4", "--microbatches", "8", "--csv", "x.csv"], "--csv writes one schedule"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--csv", "x.txt"], "a schedule ends in .csv"),
        (["--csv", "x.csv"], "NAME is required"),
        (["--gallery", "x.png", "--csv", "x.csv"], "need a NAME"),
        (["--gallery", "x.jpeg"], "a picture ends in"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--plot", "x.txt"], "a picture ends in"),
        (["nowhere.csv"], "nowhere.csv: no such file"),
        (["nowhere.py:f", "--stages", "4", "--microbatches", "8"], "cannot read nowhere.py: there is no such file"),
        (["dualpipe", "--stages", "3", "--microbatches", "8"], "both must be even"),
        (["1f1b", "--stages", "0", "--microbatches", "8"], "'0' is not a whole number of at least 1"),
        (["1f1b", "--stages", "4.5", "--microbatches", "8"], "'4.5' is not a whole number"),
        (["1f1b", "--stages", "99999", "--microbatches", "99999"], "actions are too many"),
        (["gpipe", "--stages", "4", "--microbatches", "8", "--chunks", "2"], "use schedule 'interleaved'"),
        (["interleaved", "--stages", "4", "--microbatches", "6"], "such as 4 or 8"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--forward", "-1"], "--forward"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--forward", "nan"], "'nan' is not a time"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--forward", "2 ms"], "number without unit"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--latency", "1e999999999"], "is not a time"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--forward", "0", "--backward", "0"], "both zero"),
        (["1f1b", "--stages", "4", "--microbatches", "8", "--json", "/no/such/folder/x.json"], "does not exist"),
    ],
)
def test_command_refuses_clearly(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main(["schedule", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_command_compares_several(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ["1f1b", "interleaved", "zb-h2", "zb-v", "dualpipe"]
    assert main(["schedule", *names, "--stages", "4", "--microbatches", "8"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("4 stages, 8 microbatches; assumed: F = 1, B = 2 (I = 1, W = 1) for one microbatch")
    assert "(1/2 of that per chunk)" in lines[0]
    table = {line.split()[0]: " ".join(line.split()) for line in lines[3:8]}
    assert table["1f1b"] == "1f1b 1 33 27.27% 37.50% 27.27% 1x 4 4 3 2 1"
    assert table["interleaved"] == "interleaved 2 28.5 15.79% 18.75% 15.79% 1x 5.5 5.5 4.5 3.5 2.5"
    assert table["zb-h2"] == "zb-h2 1 27 11.11% 12.50% 0.00% 1x 7 7 7 7 7"
    assert table["zb-v"] == "zb-v 2 25.5 5.88% 6.25% 0.00% 1x 4 4 4 4 4"
    assert table["dualpipe"] == "dualpipe 1 26 7.69% 8.33% 7.69% 2x 5 5 5 5 5"
    assert [line for line in lines if line in names] == names  # a grid of each
    assert main(["schedule", *names, "--stages", "4", "--microbatches", "8", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["schedule"] for each in document["schedules"]] == names
    assert [each["copies_of_weights"] for each in document["schedules"]] == [1, 1, 1, 1, 2]
    assert document["schedules"][3]["ideal"] == document["schedules"][3]["longest_span"] == 24


@pytest.mark.parametrize("names", [["1f1b"], ["1f1b", "zb-v", "dualpipe-v"]])
def test_a_table_alone_has_a_line_for_each_and_no_grid(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    counts = ["--stages", "8", "--microbatches", "32"]
    assert main(["schedule", *names, *counts, "--table"]) == 0
    text = capsys.readouterr().out
    assert "bubble/total" in text
    assert [line.split()[0] for line in text.splitlines() if line.partition(" ")[0] in names] == names
    assert "r0" not in text
    assert len(text.splitlines()) == 7 + len(names)


def test_command_names_what_refuses_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "all", "--stages", "3", "--microbatches", "5", "--chunks", "4"]) == 0
    out = capsys.readouterr().out
    assert "invalid: interleaved: 5 microbatches on 3 stages; the microbatches must be a multiple" in out
    assert "invalid: chimera:" in out
    assert "\nhanayo              4 " in out


def test_command_saves_and_loads_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "mine.csv"
    assert main(["schedule", "zb-v", "--stages", "4", "--microbatches", "8", "--csv", str(target)]) == 0
    assert capsys.readouterr().err == f"wrote {target}\n"
    assert main(["schedule", str(target), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schedule"], document["makespan"]) == ("mine.csv", 25.5)
    assert main(["schedule", str(target), "zb-v", "--stages", "4", "--microbatches", "8"]) == 0
    rows = [line.split()[1:] for line in capsys.readouterr().out.split("\n")[3:5]]
    assert rows[0] == rows[1]
    assert main(["schedule", str(target), "--stages", "5"]) == 2
    assert "has 4 stages, but --stages is 5; omit --stages" in capsys.readouterr().err
    assert main(["schedule", "chimera", "--stages", "2", "--microbatches", "2", "--csv", str(target)]) == 0
    assert "note: chimera holds every model slice on two ranks" in capsys.readouterr().err
    target.write_text("0F0,0SEND_F0,0B0\n1F0,1B0\n")
    assert main(["schedule", str(target)]) == 0
    assert "ignored 1 SEND_F" in capsys.readouterr().err
    target.write_text("0B0,0F0\n")
    assert main(["schedule", str(target)]) == 2
    assert "^^ <-- here, B0 comes before F0" in capsys.readouterr().err


def test_command_takes_a_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from simcluster.schedules import one_f_one_b\n"
        "def good(stages, microbatches, chunks):\n    return one_f_one_b(stages, microbatches)\n"
        "def wrong(stages, microbatches, chunks):\n    return stages / 0\n"
        "def none(stages, microbatches, chunks):\n    pass\n"
    )
    counts = ["--stages", "2", "--microbatches", "3"]
    assert main(["schedule", f"{source}:good", *counts]) == 0
    assert "r0 F0 F1 B0 F2 B1 B2" in capsys.readouterr().out
    for function, says in [
        ("wrong", "failed: ZeroDivisionError"),
        ("none", "returned None; it must return a simcluster.schedules.Schedule"),
        ("other", "has no function 'other'"),
    ]:
        assert main(["schedule", f"{source}:{function}", *counts]) == 2
        assert says in capsys.readouterr().err
    source.write_text("1 +\n")
    assert main(["schedule", f"{source}:good", *counts]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_command_gives_parameters_to_the_schedules_that_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--forward", "10", "--input", "12", "--weight", "8", "--latency", "1"]
    counts = ["--stages", "4", "--microbatches", "8", "--json", "-"]
    assert main(["schedule", "zb-auto", *counts, *times, "--memory-limit", "6"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["makespan"] - 240, document["longest_span"] - 240) == (33, 32)
    assert max(document["peak_in_flight"]) <= 6
    grouped = [
        "interleaved",
        "--stages",
        "2",
        "--microbatches",
        "6",
        "--chunks",
        "2",
        "--group-size",
        "3",
        "--json",
        "-",
    ]
    assert main(["schedule", *grouped]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][1].startswith("F0.0 F1.0 F2.0 F0.1 B0.1")
    assert main(["schedule", "dualpipe", *counts, "--pair", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] < 26
    assert main(["schedule", "zb-h1", *counts, "--backward", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["input"], document["weight"]) == (1.5, 1.5)


def test_command_says_how_near_zb_auto_is_to_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--forward", "10", "--input", "12", "--weight", "8", "--latency", "1"]
    small = ["schedule", "zb-auto", "--stages", "3", "--microbatches", "3", *times]
    assert main([*small, "--goal", "step"]) == 0
    says = "zb-auto: one step whose optimizer waits for all, 122, is optimal within the memory limit"
    assert says in capsys.readouterr().out
    large = ["schedule", "zb-auto", "--stages", "8", "--microbatches", "32", *times, "--memory-limit", "7"]
    assert main(large) == 0
    says = "the lower bound at this memory limit is 1080, and not all values between were tried"
    assert says in capsys.readouterr().out
    assert main([*large, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["goal"] == {"name": "span", "value": document["longest_span"], "bound": 1080, "proved": False}
    assert main([*small, "--goal", "makespan"]) == 2
    assert "must be one of span, step" in capsys.readouterr().err


def test_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, gallery = tmp_path / "plot.svg", tmp_path / "gallery.png"
    assert main(["schedule", "1f1b", "dualpipe", "--stages", "4", "--microbatches", "8", "--plot", str(plot)]) == 0
    assert "<svg" in plot.read_text()[:400]
    capsys.readouterr()
    assert main(["schedule", "--gallery", str(gallery), "--stages", "2", "--microbatches", "4"]) == 0
    assert capsys.readouterr().out == ""
    assert gallery.read_bytes().startswith(b"\x89PNG")
