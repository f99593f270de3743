"""What commands say beside their answer: how far they are, what they wrote, what they lack; on any terminal."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import PLANNED

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.base.progress import current_phases, listen_to_progress, report_phase, report_step_start
from simcluster.cli import COMMANDS, main, make_parser, outputs, terminal
from simcluster.interop.commands.profile_report import join_names, merge_equal_rows
from simcluster.scenario.scenario import from_document, load
from simcluster.scenario.sections import Engine
from simcluster.step.simulate import simulate

PACKAGE = Path(simcluster.__file__).parent
KINETO = Path(__file__).parent / "inputs" / "kineto"

# --- what was written -------------------------------------------------------------------------------------------------

ENDINGS = {"json": ".json", "figure": ".png", "links": ".csv", "csv": ".csv", "memory": ".csv", "table": ".csv",
           "page": ".html", "scenario": ".yaml", "device": ".yaml", "any": ".x"}  # fmt: skip
POSITIONAL = {"kind": "megatron", "action": "simulate", "shell": "bash"}
FILES = [(name, dest) for name in COMMANDS for dest in make_parser(name).files]


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(("command", "dest"), FILES)
def test_every_file_that_is_written_is_named(
    command: str, dest: str, quiet: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    parser = make_parser(command)
    path = tmp_path / f"it{ENDINGS[parser.files[dest]]}"
    argv = [command, *["-q"] * quiet]
    for action in parser._actions:
        if action.dest == dest:
            argv += [action.option_strings[0], str(path)]
        elif action.required and action.option_strings:
            argv += [action.option_strings[0], str(tmp_path / f"other{ENDINGS[parser.files.get(action.dest, 'any')]}")]
        elif not action.option_strings and action.required:
            argv.append(POSITIONAL.get(action.dest, "x"))

    def writes(args: Namespace) -> None:
        Path(getattr(args, dest)).write_text("")

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=lambda _: SimpleNamespace(run=writes)))
    monkeypatch.setattr(outputs, "require_libraries", lambda args: None)
    assert main(argv) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == ("" if quiet else f"wrote {path}\n")


def test_a_file_that_was_there_and_is_left_alone_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it.json"
    path.write_text("")
    monkeypatch.setattr(
        cli, "importlib", SimpleNamespace(import_module=lambda _: SimpleNamespace(run=lambda args: None))
    )
    assert main(["run", "tiny_dp", "--json", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_options_that_write_say_so_in_their_entry() -> None:
    """Or nobody would check their path beforehand, nor name what was written."""
    own = {("run", "--trace"), ("replay", "--export"), ("chakra", "--output"), ("calibrate", "--measure-only")}
    silent = [
        (name, option)
        for name in COMMANDS
        for action in make_parser(name)._actions
        for option in action.option_strings[-1:]
        if re.match(r"(draw(?! only)|write|the page to write)\b", action.help or "")
        and not isinstance(action.const, bool) and action.dest not in make_parser(name).files
    ]  # fmt: skip
    assert set(silent) <= own, silent


# --- progress ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def for_a_while(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_log_has_a_line_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_LOG_INTERVAL", 0.05)
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with terminal.track_progress("fit"):
        for_a_while(0.08)
        terminal.show_progress_text("point 3")
        for_a_while(0.08)
    lines = log.getvalue().splitlines()
    for_a_while(0.08)
    assert lines[0] == "simcluster fit: 0 s, working"
    assert lines[-1] == "simcluster fit: 0 s, point 3"
    assert log.getvalue().splitlines() == lines, "none behind the end"


def test_a_terminal_has_one_line_that_goes_before_anything_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_FIRST_DELAY", 0.02)
    monkeypatch.setattr(sys, "stderr", both := Terminal())
    monkeypatch.setattr(sys, "stdout", both)
    with terminal.track_progress("check"):
        assert both.getvalue() == "", "what is quick says nothing"
        for_a_while(0.05)
        sys.stdout.write("answer\n")
    assert both.getvalue().startswith("\r\x1b[Ksimcluster check: 0 s, working")
    assert both.getvalue().endswith("working\r\x1b[Kanswer\n")
    assert sys.stdout is both


def test_the_line_fits_the_terminal_and_outlives_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    line = terminal._ProgressLine("run", shown)
    line.set_text("x" * 100)
    line.show()
    assert len(shown.getvalue().removeprefix("\r\x1b[K")) == 39
    monkeypatch.setattr(os, "getpid", lambda: -1)
    before = shown.getvalue()
    line.show()
    line.clear()
    assert shown.getvalue() == before


def test_a_line_names_the_phases_and_the_share_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter(("0%", "50%"))
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    with terminal.track_progress("run"):
        line = terminal._ProgressLine.current
        assert line
        with report_phase("state 2 of the cluster"), report_phase(lambda: f"simulating, {next(shares)} of ops done"):
            line.show()
            report_step_start("tiny")
            line.show()
        line.set_text("3/10 (30%)")
        with report_phase("3 of 10 points"):
            line.show()
    assert log.getvalue().splitlines() == [
        "simcluster run: 0 s, state 2 of the cluster, simulating, 0% of ops done",
        "simcluster run: 0 s, step 1: tiny, state 2 of the cluster, simulating, 50% of ops done",
        "simcluster run: 0 s, 3/10 (30%), 3 of 10 points",
    ]


@pytest.mark.parametrize("engine", ["auto", "compiled", "simpy", "reference"])
def test_every_engine_names_what_it_is_at(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at calls of functions: phases in order, and a share that only grows."""
    seen: list[str] = []
    scenario = load("tiny_dp", {"overlap.interference": "none"})

    def look(*_: object) -> None:
        seen.append(", ".join(current_phases()))

    PLANNED.clear()  # it is planned here, not taken from another test
    before = sys.gettrace()
    sys.settrace(look)
    try:
        simulate(scenario, engine=engine)
    finally:
        sys.settrace(before)
    named = list(dict.fromkeys(text.partition(",")[0] for text in seen if text))
    assert named == ["planning", "preparing", "simulating"]
    shares = [int(text.split()[1].rstrip("%")) for text in seen if "%" in text]
    assert shares == sorted(shares)
    assert bool(shares) == (engine != "reference")  # SimPy reports none; the check of a folded step does
    assert engine != "events" or shares[-1] > 50
    assert not list(current_phases())


def test_a_command_hears_which_steps_are_played() -> None:
    heard: list[str] = []
    tiny = load("tiny_dp")
    with listen_to_progress(lambda name, estimate: None if estimate else heard.append(name)):
        simulate(tiny)
    report_step_start("nobody hears it")
    assert heard == [tiny.name]


# --- what is missing --------------------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


def test_all_that_is_missing_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "pyarrow", "distributed")
    monkeypatch.setattr(cli, "importlib", None)  # no command is even imported
    table = str(tmp_path / "t.parquet")
    argv = ["sweep", "tiny_dp", "--vary", "training.micro_batch=1,2", "-o", table, "--executor", "dask://host:1"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"{table}: Parquet needs pyarrow; --executor dask://host:1 needs Dask" in said
    assert "pip install 'simcluster[dask,parquet]', or " in said


@pytest.mark.parametrize(
    ("argv", "lacks", "named"),
    [
        (["calibrate", "-o", "x.yaml"], ("torch", "scipy"), "measuring needs PyTorch; fitting needs scipy; pip"),
        (["calibrate", "-o", "x.yaml", "--measure-only"], ("torch", "scipy"), "measuring needs PyTorch; pip"),
        (["calibrate", "-o", "x.yaml", "--from", "x.jsonl"], ("torch", "scipy"), "fitting needs scipy; pip"),
        (["chakra", "simulate", "traces"], ("google.protobuf",), "needs protobuf; pip install 'simcluster[chakra]'"),
        (["replay", "trace.parquet"], ("pyarrow",), "trace.parquet: Parquet needs pyarrow; pip"),
        (["report", "a.json", "--timeline", "b.parquet", "-o", "r.html"], ("pyarrow",), "b.parquet: Parquet needs"),
    ],
)
def test_missing_extras_are_named_by_command(
    argv: list[str], lacks: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    without(monkeypatch, *lacks)
    assert main(argv) == 2
    assert named in capsys.readouterr().err


def test_what_is_there_is_not_missed() -> None:
    outputs.require_libraries(Namespace(command="run", timeline=None, set=["x=y.parquet"], executor="4"))
    assert outputs.is_installed("json.decoder")
    assert not outputs.is_installed("no_such_module_anywhere")
    assert not outputs.is_installed("no_such_package.module")


# --- any encoding -----------------------------------------------------------------------------------------------------

TOLD = (
    ["run", "tiny_dp", "--explain"],
    ["run", "slow_gpu"],
    ["compare", "tiny_dp", "--vary", "training.micro_batch=2,4"],
    ["diff", "tiny_dp", "tiny_dp", "--set", "training.micro_batch=2"],
    ["check", "tiny_dp"],
    ["memory", "tiny_dp"],
    ["walls", "--parameters", "8B"],
    ["schedule", "1f1b", "zb-v", "--stages", "4", "--microbatches", "6"],
    ["topology", "dgx_h100"],
    ["collective", "all_reduce", "--size", "1MiB:4MiB", "--gpus", "16", "--cluster", "dgx_h100"],
    ["sensitivity", "tiny_dp"],
    ["replay", str(KINETO)],
    ["run", "--help"],
)


@pytest.mark.parametrize(("name", "argv"), [*(("ascii", argv) for argv in TOLD), ("cp1252", TOLD[0])])
def test_no_encoding_is_too_small(name: str, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=name) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    status = main(argv)
    out.flush()
    err.flush()
    told, wrong = (stream.buffer.getvalue().decode(name) for stream in (out, err))  # type: ignore[attr-defined]
    assert status == 0, wrong
    assert told
    assert "internal failure" not in wrong


def test_bars_and_signs_have_plain_ones() -> None:
    assert terminal.convert_to_ascii("██▏░ 2 × 3 ± 1 → ≥ … Jürgen µs") == "##|. 2 x 3 +- 1 -> >= ... Jurgen us"


def test_every_sign_of_the_texts_has_a_plain_one() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "report" not in path.parts and path.name != "terminal.py"]
    signs = {sign for path in files for sign in path.read_text(encoding="utf-8") if not sign.isascii()}
    assert len(signs) > 5
    assert not {sign for sign in signs if "?" in terminal.convert_to_ascii(sign)}


def test_json_stays_what_it_is_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["run", "tiny_dp", "--set", "name=größer → 2 ×", "--json", "-"]) == 0
    assert json.loads(raw.getvalue())["scenario"]["name"] == "größer → 2 ×"


# --- a measurement is of its run --------------------------------------------------------------------------------------


def measured(changes: Any = ()) -> Any:
    return load("gpt3_175b_64xa100", changes)


@pytest.mark.parametrize(
    "changes",
    [{"pipeline.schedule": "1f1b"}, {"cluster.nodes": 16}, {"faults+": [{"kind": "slow_gpu", "rank": 0, "factor": 2}]},
     {"software.late": "1 ms"}, {"pipeline.schedule": "1f1b", "name": "another"}],
)  # fmt: skip
def test_what_changes_the_step_takes_the_comparison_away(changes: dict[str, Any]) -> None:
    try:
        found = measured(changes)
    except InputError:
        pytest.skip("no such scenario")
    assert found.measured_step_time is None
    assert next(iter(changes)) in found.measured.comparison_obstacle()
    assert from_document(found.document()) == found


@pytest.mark.parametrize(
    "changes",
    [{}, {"name": "another"}, {"engine": "simpy"}, {"memory.workspace": "1 GB"}, {"pipeline.schedule": "interleaved"},
     {"pipeline.schedule": "1f1b", "measured.step_time": "15 s"}],
)  # fmt: skip
def test_what_leaves_the_step_alone_leaves_the_comparison(changes: dict[str, Any]) -> None:
    found = measured(changes)
    assert found.measured_step_time == (15.0 if "measured.step_time" in changes else 13.75)
    assert found.measured.comparison_obstacle() == ""


def test_changes_of_a_changed_scenario_add_up() -> None:
    once = measured({"pipeline.schedule": "1f1b"})
    twice = from_document(once.document(), {"training.recompute": "full"})
    assert twice.measured.changed == ("pipeline.schedule", "training.recompute")
    assert "measured before a change of pipeline.schedule, training.recompute" in twice.measured.comparison_obstacle()


# --- equal rows -------------------------------------------------------------------------------------------------------


def test_rows_that_say_the_same_are_one() -> None:
    rows = merge_equal_rows([("rank 3", ["a"]), ("rank 0", ["b"]), ("rank 1", ["a"]), ("rank 2", ["a"])])
    assert [(join_names(names), cells) for cells, names in rows.items()] == [("rank 1-3", ("a",)), ("rank 0", ("b",))]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["forward"], "forward"),
        (["forward", "backward", "other"], "forward and 2 more"),
        (["layers.7", "layers.0", "layers.8"], "layers.0, 7-8"),
        ([f"rank {2 * place}" for place in range(7)], "rank 0, 2, 4, 6 and 3 more ranges"),
        (["layers.1", "blocks.2"], "layers.1 and 1 more"),
    ],
)
def test_names_in_few_words(names: list[str], told: str) -> None:
    assert join_names(names) == told
