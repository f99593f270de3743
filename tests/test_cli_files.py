"""What a command reads is never written over, no output is lost, and closed standard streams stop nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from simcluster import cli
from simcluster.documents.builtin_documents import builtin_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario, its topology, and links to them."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(builtin_path("topologies", "flat"), "flat.yaml")
    document = yaml.safe_load(builtin_path("scenarios", "tiny_dp").read_text(encoding="utf-8"))
    document["cluster"]["topology"] = "flat.yaml"
    Path("me.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    Path("link.yaml").symlink_to("me.yaml")
    os.link("me.yaml", "twin.yaml")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "run me.yaml --json me.yaml", "run me.yaml --json ./link.yaml", "run me.yaml --json twin.yaml",
        "run link.yaml --json me.yaml", "run me.yaml --trace flat.yaml", "run me.yaml --json flat.yaml",
        "compare tiny_dp me.yaml --json me.yaml",
        "topology flat.yaml --json flat.yaml", "sweep me.yaml training.micro_batch=1,2 -o me.csv --json me.yaml",
        "diff tiny_dp me.yaml --json flat.yaml", "report me.yaml -o a.html --json me.yaml",
    ],
)  # fmt: skip
def test_no_output_replaces_an_input(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    status, said = cli.main(command.split()), capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before
    assert status == 2
    assert "it is also an input; choose another name" in said


def test_a_result_is_replaced_by_the_next(here: Path) -> None:
    for _ in range(2):
        assert cli.main(["run", "me.yaml", "-q", "--json", "a.json", "--timeline", "a.csv"]) == 0


@pytest.mark.parametrize("names", [("z.csv", "z.csv"), ("z.csv", "./z.csv"), ("link.csv", "z.csv")])
def test_two_outputs_have_two_names(names: tuple[str, str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("link.csv").symlink_to("z.csv")
    assert cli.main(["run", "me.yaml", "--timeline", names[0], "--memory", names[1]]) == 2
    assert "two outputs have this name" in capsys.readouterr().err
    assert not Path("z.csv").exists()


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device(closed: str, here: Path) -> None:
    # The program starts alike for every command; this one imports the least, run the most.
    words = "run me.yaml" if closed.count("-") > 1 else "schedule 1f1b --stages 2 --microbatches 4"
    command = f"'{sys.executable}' -m simcluster {words} --json x.json {closed}"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert found.returncode == 0
    assert Path("x.json").read_text(encoding="utf-8").startswith("{")
    assert bool(found.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert found.stderr == ("" if "2>&-" in closed else "wrote x.json\n")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_takes_closed_streams(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python has them in a process whose caller has closed them."""
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    status = cli.main([name, "--help"]), cli.main([name, "--no-such-option"])
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    assert status == (0, 2)
