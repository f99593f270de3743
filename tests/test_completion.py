"""Shell completion: what comes next on a line, bash's own machinery asked, and words.txt as the models say.

After a change of a section of the scenario, of a topology or of a catalogue:

    python tests/test_completion.py --regenerate
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simcluster import cli
from simcluster.cli.completion import WORDS, complete_line
from simcluster.model.recipes import RECIPES

ROOT = Path(__file__).parent.parent

# --- words.txt --------------------------------------------------------------------------------------------------------


def words_text() -> str:
    """What words.txt has to say."""
    from simcluster.collectives import ALGORITHMS
    from simcluster.documents.builtin_documents import builtin_names
    from simcluster.documents.catalogue import load_presets
    from simcluster.documents.catalogue.devices import device_names
    from simcluster.importers.import_command import KINDS as IMPORTS
    from simcluster.longrun.budget.loss_laws import list_law_names
    from simcluster.longrun.studies.advice import ADVICE
    from simcluster.scenario.scenario_keys import list_scenario_keys
    from simcluster.schedules import SCHEDULES
    from simcluster.show.registry.kinds import KINDS
    from simcluster.show.registry.kinds import list_names as names_of
    from simcluster.studies.whatif.sensitivities import RESOURCES
    from simcluster.traffic.nccl.platforms import platform_names

    found: dict[str, list[str]] = {"cluster.topology": []}
    for key in list_scenario_keys():
        if "*" not in key.path:
            found.setdefault(key.override_path, []).extend(key.choices)
    found |= {
        "cluster.topology": builtin_names("topologies"),
        "model.preset": list(load_presets("models.yaml")),
    }
    parents = {path.rpartition(".")[0] for path in found}
    keep = ("cluster.topology", "overlap.interference", "pipeline.schedule", "software", "cluster.device")
    paths = {path: words for path, words in found.items() if path not in parents or path in keep}
    lists = {
        "+schedules": [*SCHEDULES, "all"],
        "+collectives": list(ALGORITHMS),
        "+algorithms": ["auto", *dict.fromkeys(name for known in ALGORITHMS.values() for name in known)],
        "+laws": [*list_law_names()],
        "+platforms": ["auto", "none", *platform_names()],
        "+devices": list(device_names()),
        "+recipes": list(RECIPES),
        "+resources": [*RESOURCES, "memory"],
        "+imports": list(IMPORTS),
        "+chakra": ["simulate", "write"],
        "+details": ["flow", "steps"],
        "+advice": list(ADVICE),
        "+kinds": list(KINDS),
        "+models": names_of("models"),
        "+shown": [name for kind in KINDS for name in names_of(kind)],
    }
    rows = [*sorted(paths.items()), *sorted(lists.items())]
    return "".join(" ".join([name, *dict.fromkeys(words)]) + "\n" for name, words in rows)


def test_words_are_what_the_models_say() -> None:
    assert WORDS.read_text(encoding="utf-8") == words_text(), "run: python tests/test_completion.py --regenerate"


# --- what comes next --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("simcluster ru", ["run"]),
        ("simcluster sc", ["scaling", "schedule", "schema"]),
        ("simcluster --v", ["--version"]),
        ("simcluster budget p", ["packing"]),
        ("simcluster help ru", ["run"]),
        ("simcluster budget loss --leav", ["--leave-out"]),
        ("simcluster run gpt3_175b_64xa100_", ["gpt3_175b_64xa100_full_recompute"]),
        ("simcluster run tiny_dp --gan", ["--gantt"]),
        ("simcluster run tiny_dp --trace-begins ", ["arrival", "wire"]),
        ("simcluster run tiny_dp --trace-begins=w", ["--trace-begins=wire"]),
        ("simcluster run tiny_dp --set paral", ["parallel."]),
        ("simcluster run tiny_dp --set parallel.t", ["parallel.tp="]),
        ("simcluster run tiny_dp --set training.recompute=s", ["training.recompute=selective"]),
        ("simcluster run tiny_dp --parallel.t", ["--parallel.tp="]),
        ("simcluster run tiny_dp --overlap.grad_reduce ", ["true", "false"]),
        ("simcluster run tiny_dp pipeline.schedule=zb-h", ["pipeline.schedule=zb-h1", "pipeline.schedule=zb-h2"]),
        ("simcluster compare tiny_dp --vary pipeline.schedule=1f1b,zb-h1,gp",
         ["pipeline.schedule=1f1b,zb-h1,gpipe"]),
        ("simcluster compare tiny_dp tiny_3", ["tiny_3d"]),
        ("simcluster topology dgx_h", ["dgx_h100"]),
        ("simcluster topology dgx_h100 --set nod", ["nodes="]),
        ("simcluster topology dgx_h100 nod", ["nodes="]),
        ("simcluster replay profiles --cluster dgx_h100 --cluster.nod", ["--cluster.nodes="]),
        ("simcluster replay profiles --set cluster.fabric.kin", ["cluster.fabric.kind="]),
        ("simcluster schedule 1f1b zb-v dualpipe-", ["dualpipe-v"]),
        ("simcluster validate megascale", ["megascale_table2"]),
        ("simcluster sensitivity tiny_dp --resources nv", ["nvlink"]),
        ("simcluster collective all_r", ["all_reduce"]),
        ("simcluster collective all_reduce --cluster dgx_b2", ["dgx_b200"]),
        ("simcluster chakra s", ["simulate"]),
        ("simcluster completion f", ["fish"]),
        ("A=1 env simcluster chakra s", ["simulate"]),
        ('simcluster run "tiny_3', ["tiny_3d"]),
        ("simcluster nothing ", []),
        ("simcluster run tiny_dp --set 'a", []),
        ("simcluster run tiny_dp --set nothing.at.all", []),
    ],
)  # fmt: skip
def test_answers(line: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(complete_line(line)) == sorted(wanted)


def test_files_stand_beside_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_own.yaml").touch()
    (tmp_path / "tiny folder").mkdir()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    assert complete_line("simcluster run tiny") == ["tiny folder/", "tiny_3d", "tiny_dp", "tiny_own.yaml"]
    assert complete_line(f"simcluster run {tmp_path}/tiny_o") == [f"{tmp_path}/tiny_own.yaml"]
    assert complete_line("simcluster run tiny_dp --json ") == ["tiny folder/", "tiny_own.yaml"]
    assert complete_line("simcluster run ./.h") == ["./.hidden"]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_completes_its_options_and_knows_its_arguments(command: str) -> None:
    parser = cli.make_parser(command)
    found = complete_line(f"simcluster {command} --")
    assert {option for option in parser.options if option.startswith("--")} <= set(found)
    unknown = [action.dest for action in parser._actions
               if not action.option_strings and not action.choices and action.dest not in parser.values]  # fmt: skip
    assert not unknown, "say in the values of commands.toml what these can be"


# --- shells -----------------------------------------------------------------------------------------------------------


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def with_program(folder: Path) -> dict[str, str]:
    """An environment in which ``simcluster`` is this one."""
    program = folder / "simcluster"
    program.write_text(f'#!/bin/sh\n"{sys.executable}" -m simcluster "$@"\necho answered >> "{folder}/log"\n')
    program.chmod(0o755)
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "PS1": "> ", "TERM": "dumb", "HISTFILE": "/dev/null"}


PRINTS = "simcluster() { printf '[%s]' \"$@\"; echo; }"
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], f"source ./script; {PRINTS}"),
    "zsh": (["zsh", "-f", "-i"], f"source ./script; {PRINTS}"),
    "fish": (
        ["fish", "--no-config", "-i"],
        "set -g fish_autosuggestion_enabled 0; source ./script; function simcluster; printf '[%s]' $argv; echo; end",
    ),
}
"""How each shell is started without anybody's settings, and told to print a command line in place of running it."""

TYPED = [
    ("simcluster ru\ttiny_3\t--pipel\tsch\tzb-h1", "[run][tiny_3d][--pipeline.schedule=zb-h1]"),
    ("simcluster compare tiny_d\t--vary parallel.t\t2,4", "[compare][tiny_dp][--vary][parallel.tp=2,4]"),
    ("A=1 simcluster topology dgx_h1\t--js\t-", "[topology][dgx_h100][--json][-]"),
    ('simcluster run "tiny_3\t', "[run][tiny_3d]"),
    ("simcluster run 'a fo\tx\t", "[run][a folder/x $(y).yaml]"),
    ("simcluster run a\\ fo\tx\t", "[run][a folder/x $(y).yaml]"),
    ("simcluster run nothing_like_thi\t", "[run][nothing_like_thi]"),
]
"""Keys, and what the shell then runs."""


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Typed at a real prompt, with TABs, in the shell's own line editor."""
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}: apt-get install {shell}")
    (tmp_path / "script").write_text(script(shell, capsys))
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "x $(y).yaml").touch()
    with Prompt(shell, tmp_path) as prompt:
        for keys, wanted in TYPED:
            assert wanted in prompt.run(keys, wanted)


def test_zsh_needs_no_compinit_before_it_and_fish_finds_its_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the help says how to install them: zsh's on any zsh, fish's as a file that it loads itself."""
    asked = {
        "zsh": 'eval "$(simcluster completion zsh)"; print $_comps[simcluster]',
        "fish": "complete -C 'simcluster run tiny_3'",
    }
    folder = tmp_path / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "simcluster.fish").write_text(script("fish", capsys))
    said = {}
    for shell, command in asked.items():
        if shutil.which(shell):
            environment = {**with_program(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
            done = subprocess.run([shell, "-c", command], env=environment, capture_output=True, text=True, check=True)
            said[shell] = (done.stdout.strip(), done.stderr)
    if not said:
        pytest.skip("needs zsh or fish")
    assert said == {shell: ({"zsh": "_simcluster", "fish": "tiny_3d"}[shell], "") for shell in said}


class Prompt:
    """A shell in a terminal of its own; the program's log says when a TAB has been answered."""

    def __init__(self, shell: str, folder: Path) -> None:
        arguments, ready = SHELLS[shell]
        self.log = folder / "log"
        self.log.touch()
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execvpe(shell, arguments, {**with_program(folder), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)})
        self.run(f"{ready}; echo rea''dy", "ready\r\n")

    def run(self, keys: str, wanted: str) -> str:
        """Type keys and Enter; everything that the shell writes up to the end of its answer."""
        for part in re.split("(?<=\t)", keys):
            answered = len(self.log.read_text())
            os.write(self.terminal, part.encode())
            if part.endswith("\t"):
                self.listen(lambda _, before=answered: len(self.log.read_text()) > before)
            self.listen(lambda _: False, 0.06)
        os.write(self.terminal, b"\n")
        return self.listen(lambda said: wanted in said)

    def listen(self, enough: Callable[[str], bool], seconds: float = 10.0) -> str:
        said, end = b"", time.monotonic() + seconds
        while time.monotonic() < end and not enough(said.decode(errors="replace")):
            if select.select([self.terminal], [], [], 0.02)[0]:
                said += os.read(self.terminal, 65536)
        return said.decode(errors="replace")

    def __enter__(self) -> Prompt:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_ask_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"command simcluster completion {shell} --line" in script(shell, capsys)


if __name__ == "__main__":
    if sys.argv[1:] != ["--regenerate"]:
        sys.exit(__doc__)
    WORDS.write_text(words_text(), encoding="utf-8")
