"""Python code that a file names runs only where whoever runs simcluster says so; what it does wrong is one message."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import InputError
from simcluster.cli import main
from simcluster.documents.trusted_text import ALLOW_PYTHON_VARIABLE
from simcluster.rl.spec import load_rl
from simcluster.rl.step import simulate_rl
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.studies.sweep.sweep import load_sweep

SIZE = {"parallel": {"tp": 1, "pp": 2, "dp": 1}, "training": {"global_batch": 2, "micro_batch": 1}}
DOCUMENT: dict[str, Any] = {
    "name": "theirs",
    "cluster": {"topology": "flat", "gpus": 2},
    "model": {"layers": 2, "hidden_size": 256, "heads": 4, "vocab_size": 1000, "sequence_length": 128},
    **SIZE,
    "pipeline": {"schedule": "theirs.py:f"},
}
PLAIN = {**DOCUMENT, "pipeline": {"schedule": "1f1b"}}
CODE = """
open("ran", "w").close()
from simcluster.schedules import make_schedule
def f(stages, microbatches, chunks=1):
    return make_schedule("1f1b", stages, microbatches, chunks)
def leaves(*counts):
    raise SystemExit(0)
def deeper(*counts):
    return deeper(*counts)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with code beside scenarios; the code leaves a file behind where it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ALLOW_PYTHON_VARIABLE, raising=False)
    Path("theirs.py").write_text(CODE)
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    Path("theirs.yaml").write_text(json.dumps(DOCUMENT))
    Path("plain.yaml").write_text(json.dumps(PLAIN))
    return tmp_path


def ran() -> bool:
    """Did the code run since this was asked?"""
    there = Path("ran").exists()
    Path("ran").unlink(missing_ok=True)
    return there


# --- files ------------------------------------------------------------------------------------------------------------


def study(**sections: Any) -> None:
    Path("study.yaml").write_text(json.dumps({"scenario": "./plain.yaml", **sections}))
    made = load_sweep("study.yaml", {})
    made.make_variant(0).scenario()


def table() -> None:
    Path("rows.csv").write_text("S\ntheirs.py:f\n")
    study(table="rows.csv", columns={"S": "pipeline.schedule"})


def jobs() -> None:
    job = {"scenario": "plain.yaml", "set": {"pipeline.schedule": "theirs.py:f"}}
    document = {"cluster": {"topology": "flat", "gpus": 2}, "jobs": [job]}
    Path("jobs.yaml").write_text(json.dumps(document))
    assert main(["share", "jobs.yaml", "-q"]) == 2
    raise InputError("theirs.py:f is Python code named in a file")


def rl_file() -> None:
    rollout = {"gpus": 1, "prompts": 1, "prompt_tokens": 8, "response": 8}
    document = {"trainer": "plain.yaml", "set": {"pipeline.schedule": "theirs.py:f"}, "rollout": rollout}
    Path("rl.yaml").write_text(json.dumps(document))
    simulate_rl(load_rl("rl.yaml"))


def validation() -> None:
    Path("rows.csv").write_text("S,sec\ntheirs.py:f,1\n")
    columns = {"S": "pipeline.schedule"}
    measured = {"column": "sec", "quantity": "step_time", "unit": "s"}
    document = {"kind": "steps", "name": "v", "about": "a", "source": "s", "original": "o", "table": "rows.csv",
                "scenario": PLAIN, "columns": columns, "label": ["S"], "measured": measured}  # fmt: skip
    Path("measured.yaml").write_text(json.dumps(document))
    assert main(["validate", "measured.yaml", "-q"]) in (0, 2)
    raise InputError("whatever it says of its row, theirs.py:f is Python code named in a file")


def stages() -> None:
    stage = {"until": "0.5T", "set": {"pipeline.schedule": "theirs.py:f"}}
    run = {"tokens": "1T", "stages": [stage, {}], "checkpoint": {"stall": "5 s", "every": "10 min"}}
    simcluster.train_stages({**PLAIN, "run": run})


def saved() -> None:
    result = simcluster.simulate(PLAIN).to_dict()
    result["scenario"]["pipeline"] = DOCUMENT["pipeline"]
    Path("saved.json").write_text(json.dumps(result))
    main(["report", "saved.json", "-o", "page.html", "-q"])
    simcluster.scenario(result["scenario"])


CARRIERS: dict[str, Callable[[], object]] = {
    "scenario": lambda: simcluster.scenario("theirs.yaml"),
    "notebook text": lambda: simcluster.scenario(Path("theirs.yaml").read_text() + "\n"),
    "document": lambda: simcluster.simulate(DOCUMENT),
    "keywords": lambda: Scenario(**DOCUMENT),
    "checked by pydantic": lambda: Scenario.model_validate(
        {**simcluster.scenario(PLAIN).document(), "pipeline": DOCUMENT["pipeline"]}
    ),
    "study": lambda: study(set={"pipeline.schedule": "theirs.py:f"}, vary={"seed": [1]}),
    "axis of a study": lambda: study(vary={"pipeline.schedule": ["theirs.py:f"]}),
    "cell of a table": table,
    "jobs": jobs,
    "RL file": rl_file,
    "validation study": validation,
    "stages of a run": stages,
    "saved result": saved,
    "variant of other processes": lambda: pickle.loads(pickle.dumps(BaseScenario("theirs.yaml"))).with_changes(()),
    "override of something else": lambda: simcluster.scenario("theirs.yaml", {"seed": 1}),
}
"""Ways in which somebody else's words come to a simulation."""


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_file_runs_code(carrier: str) -> None:
    with pytest.raises(ValueError, match=r"theirs\.py:f is Python code named in a file"):
        CARRIERS[carrier]()
    assert not ran()


# --- one's own words --------------------------------------------------------------------------------------------------


def test_own_words_run() -> None:
    own = {"pipeline.schedule": "theirs.py:f"}
    assert simcluster.scenario("plain.yaml", own).pipeline.schedule_name == "1f1b"
    assert ran()
    simcluster.scenario("plain.yaml").with_(own)
    assert ran()
    simcluster.scenario(PLAIN, own)
    assert ran()
    simcluster.scenario("theirs.yaml", allow_python=True).with_(seed=2)
    assert ran()
    simcluster.sweep("plain.yaml", {"pipeline.schedule": ["theirs.py:f"]})
    assert ran()
    variant = pickle.loads(pickle.dumps(BaseScenario.from_scenario(simcluster.scenario("plain.yaml", own))))
    ran()
    variant.with_changes((("seed", 1),))
    assert ran()


def test_a_process_may_allow_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_PYTHON_VARIABLE, "1")
    base = BaseScenario("theirs.yaml")
    monkeypatch.delenv(ALLOW_PYTHON_VARIABLE)
    assert pickle.loads(pickle.dumps(base)).with_changes(()).name == "theirs"  # it is still allowed elsewhere
    assert ran()


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "theirs.yaml", "--full"]) == 2
    told = capsys.readouterr().err
    assert "theirs.yaml:1:" in told
    assert "--allow-python" in told
    assert not ran()
    assert main(["show", "theirs.yaml", "--full", "--allow-python"]) == 0
    assert ran()
    assert main(["show", "plain.yaml", "--full", "pipeline.schedule=theirs.py:f"]) == 0
    assert ran()
    assert main(["show", "theirs.yaml", "--full"]) == 2, "allowed once is not for ever"
    assert not ran()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("leaves.py:f", "cannot run leaves.py: SystemExit: 0"),
        ("theirs.py:leaves", "theirs.py:leaves failed: SystemExit: 0"),
        ("theirs.py:deeper", "theirs.py:deeper failed: RecursionError"),
    ],
)
def test_an_exit_is_no_success(what: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "plain.yaml", "--full", f"pipeline.schedule={what}"]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert main(["schedule", what, "--stages", "2", "--microbatches", "2"]) == 2
