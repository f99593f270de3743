"""The command line's frame: exit statuses, overrides in their spellings, what commands share."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, format_seconds_short
from simcluster.cli import outputs, terminal
from simcluster.cli.arguments import TOP_LEVEL_KEYS
from simcluster.cli.common import read_overrides
from simcluster.scenario.key_paths import is_section
from simcluster.scenario.scenario import Scenario
from simcluster.show.output_blocks import table_lines
from simcluster.show.table_cells import format_signed_seconds


@pytest.mark.parametrize(
    ("argv", "kept", "overrides"),
    [
        (["run", "x.yaml", "--parallel.tp", "8"], ["run", "x.yaml"], ["parallel.tp=8"]),
        (["run", "--parallel.tp=8", "x.yaml"], ["run", "x.yaml"], ["parallel.tp=8"]),
        (["run", "x.yaml", "parallel.tp=8", "gpus=64"], ["run", "x.yaml"], ["parallel.tp=8", "gpus=64"]),
        (["run", "x.yaml", "--set", "a.b=1", "--json", "-"], ["run", "x.yaml", "--set", "a.b=1", "--json", "-"], []),
        (["run", "x.yaml", "--gpus", "64", "--seed=3"], ["run", "x.yaml"], ["gpus=64", "seed=3"]),
        (["run", "x.yaml", "--memory", "a=b.png"], ["run", "x.yaml", "--memory", "a=b.png"], []),
        (["run", "x.yaml", "--seed.x", "-1"], ["run", "x.yaml"], ["seed.x=-1"]),
        (["run", "dir=a/x.yaml"], ["run"], ["dir=a/x.yaml"]),
        (["run", "--a.b=c=d"], ["run"], ["a.b=c=d"]),
        (["run", "./a=b.yaml", "--json=x.json"], ["run", "./a=b.yaml", "--json=x.json"], []),
        (["run", "x.yaml", "--explain", "a.b=1", "-q", "c=2"], ["run", "x.yaml", "--explain", "-q"], ["a.b=1", "c=2"]),
        (["plan", "x.yaml", "--gpus", "64"], ["plan", "x.yaml", "--gpus", "64"], []),  # an option of the command
        (["report", "x", "-o", "a=b.html"], ["report", "x", "-o", "a=b.html"], []),
    ],
)
def test_split_overrides(argv: list[str], kept: list[str], overrides: list[str]) -> None:
    assert cli.make_parser(argv[0]).split_overrides(argv) == (kept, overrides)


def test_plain_keys_are_those_of_a_scenario_that_are_no_section() -> None:
    """And those of a section that a name says."""
    plain = {key for key in Scenario.model_fields if not is_section(key)}
    assert {*TOP_LEVEL_KEYS} == plain | {"cluster", "model", "software"}


def test_an_override_needs_a_value() -> None:
    with pytest.raises(InputError, match=r"--parallel\.tp needs a value"):
        cli.make_parser("run").split_overrides(["run", "--parallel.tp"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["schedul"], ["unknown command 'schedul'", "did you mean 'schedule'"]),
        (["schedule"], ["required"]),
        (["schedule", "1f1b", "--stages", "4", "--microbatchs", "8"], ["microbatches"]),
        (["schedule", "1f1b", "--stages", "four", "--microbatches", "8"], ["four"]),
        (["--verison"], ["'--verison'", "did you mean '--version'"]),
        (["run"], ["scenario is required", "see simcluster run --help"]),
        (["run", "a", "b"], ["unexpected argument 'b'"]),
        (["--quiet", "run"], ["unknown option '--quiet'", "options come after the command"]),
        (["budget", "los"], ["unknown command 'los'", "did you mean 'loss'"]),
        (["help", "ru"], ["unknown command 'ru'", "did you mean 'run'"]),
        (["list", "--yes"], ["unknown option '--yes'"]),
        (["topology", "flat", "--allow-python"], ["unknown option '--allow-python'"]),
    ],
)
def test_usage_errors_exit_2(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("simcluster: error: ")
    assert [word for word in words if word not in error] == [], error


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "schedule" in capsys.readouterr().out
    for option in ("--version", "-V"):
        assert cli.main([option]) == 0
        assert capsys.readouterr().out.startswith("simcluster ")


@pytest.mark.parametrize("argv", [[], ["help"], ["-h"], ["--help"]])
def test_the_help_of_the_program_is_one_screen(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    shown = {line[11:].split()[0] for line in lines if line[11:12].strip()}
    assert {*cli.COMMANDS, "budget"} - {*cli.BUDGET.values()} <= shown


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ("help run", "run --help"),
        ("budget loss --help", "scaling --help"),
        ("help budget", "budget"),
        ("budget walls --parameters 7B --tokens 2T", "walls --parameters 7B --tokens 2T"),
    ],
)
def test_two_ways_to_ask_for_the_same(asked: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for argv in (asked, same):
        assert cli.main(argv.split()) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""


def test_the_help_of_an_import_shows_what_its_kind_takes(capsys: pytest.CaptureFixture[str]) -> None:
    from simcluster.importers.import_command import KINDS

    assert tuple(cli.ENTRIES["import"]["kinds"]) == KINDS
    assert cli.main(["import", "astra-network", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--device" in shown
    assert "--gpus" not in shown
    assert "simcluster import nemo" not in shown


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (InputError("no"), 2, "simcluster: error: no\n"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("ours"), 1, "internal failure"),
    ],
)
def test_what_escapes_becomes_a_status(
    raised: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise raised

    monkeypatch.setattr(cli, "_dispatch_command", fail)
    assert cli.main([]) == status
    error = capsys.readouterr().err
    assert message in error
    assert ("Traceback" in error) == (status == 1)


def test_a_reader_that_left_is_no_complaint() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "simcluster", "schedule", "gpipe", "--stages", "4", "--microbatches", "8"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


HEAVY = ["numpy", "pandas", "networkx", "pydantic", "matplotlib", "simpy", "ruamel.yaml"]
TAB = "completion bash --line"


@pytest.mark.parametrize(
    ("command", "heavy", "printed"),
    [
        ("--help", HEAVY, "Simulate training steps"),
        ("topology --help", HEAVY, "simcluster topology dgx_h100 --set nodes=128"),
        ("collective --help", HEAVY, "--split %K|/K"),
        (f"{TAB} 'simcluster run tiny_dp --set parallel.t'", HEAVY, "parallel.tp="),
        (f"{TAB} 'simcluster compare tiny_3'", HEAVY, "tiny_3d"),
        (f"{TAB} 'simcluster schedule zb-v'", HEAVY, "zb-v"),
        ("collective all_reduce --size 1GiB --gpus 8 --cluster flat_8", ["pandas", "matplotlib"], "4.189663 ms"),
    ],
)
def test_nothing_heavy_is_imported_without_need(command: str, heavy: list[str], printed: str) -> None:
    code = f"""import sys; from simcluster.cli import main; main({shlex.split(command)})
print([module for module in {heavy} if module in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert printed in done.stdout


# --- what commands share ----------------------------------------------------------------------------------------------


def test_overrides_of_set_and_shorter_spellings() -> None:
    args = argparse.Namespace(set=["parallel.tp=8"], overrides=["steps=2"])
    assert read_overrides(args) == [("parallel.tp", 8), ("steps", 2)]


def test_table_columns_are_aligned() -> None:
    assert table_lines(["name", "s"], [["a", "1.5"], ["long", "10"]]) == ["name    s", "a     1.5", "long   10"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (13.0, "13.00 s"), (2e-6, "2.000 us"), (0.5, "500.0 ms"), (0.0, "0 s"), (1.0, "1.000 s"), (999.96, "1000 s"),
        (9999.4, "9999 s"), (12345.0, "12,345 s"), (-12345.0, "-12,345 s"), (-0.25, "-250.0 ms"), (0.99996, "1.000 s"),
        (3.5e-13, "0.3500 ps"),
    ],
)  # fmt: skip
def test_seconds_have_four_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_ticks_are_round() -> None:
    assert [format_seconds_short(each) for each in (20.0, 2.5e-6, 0.0, 0.1254, 1000.0)] == [
        "20 s", "2.5 us", "0 s", "125.4 ms", "1000 s"
    ]  # fmt: skip


def test_differences_are_readable() -> None:
    seconds = (3.866e-05, -13.0, 0.0, 1e-13)
    assert [format_signed_seconds(each) for each in seconds] == ["+38.66 us", "-13.00 s", "0", "0"]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.write_json("-", {"b": 0.1, "a": None})
    assert capsys.readouterr().out == '{\n  "b": 0.1,\n  "a": null\n}\n'
    terminal.write_json(str(tmp_path / "x.json"), [1])
    assert (tmp_path / "x.json").read_text() == "[\n  1\n]\n"


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; create it first"):
        outputs.check_output_path(str(tmp_path / "nowhere" / "x.json"))
    with pytest.raises(InputError, match="is a folder"):
        outputs.check_output_path(str(tmp_path))
