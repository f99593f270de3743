"""Runs on other processes and machines, kept in a store, killed and gone on with: the same bytes; policies beside."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import AtOnce
from test_documents_cited import undescribed

from simcluster import cli
from simcluster.base import version
from simcluster.base.errors import InputError
from simcluster.cli.sweep import ProgressBar
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.long_run import FailureMode, LongRun
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies import run_chunks
from simcluster.longrun.studies.advice import advise
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_comparison import PolicyComparison, _apply_changes, compare_policies
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.longrun.studies.run_chunks import remove_labels, run_digest
from simcluster.longrun.studies.training import train
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import Scenario, from_document, load
from simcluster.show import plots

HOST = {"name": "host", "of": "host", "mtbf": "1 d", "repair": "1 d"}
RUN: dict[str, Any] = {
    "days": "10 d",
    "price": 2.0,
    "failures": {"also": [HOST, {"name": "hot", "effect": "slow", "mtbf": "20 h", "by": [1.1, 1.3], "lasts": "3 h"}]},
    "checkpoint": {"stall": "20 s", "every": "1 h"},
    "restart": [{"part": "warm up", "takes": "5 min"}],
    "spares": {"warm": 1},
}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load("tiny_dp", {"run": RUN})


@pytest.fixture(scope="module")
def run(scenario: Scenario) -> LongRun:
    return build_long_run(scenario, ClusterStateSimulator(scenario))


@pytest.fixture(scope="module")
def alone(scenario: Scenario) -> str:
    return told(scenario)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 10 runs."""
    monkeypatch.setattr(run_chunks, "MOST_PER_CHUNK", 10)


def told(scenario: Scenario, played: int = 40, **more: Any) -> str:
    return json.dumps(train(scenario, played=played, **more).to_dict())


# --- wherever it is played --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_the_same_bytes_on_any_executor(scenario: Scenario, alone: str) -> None:
    assert told(scenario) == alone
    assert told(scenario, workers=2) == alone
    assert told(scenario, workers=AtOnce()) == alone
    with ThreadPoolExecutor(3) as threads:
        assert told(scenario, workers=threads) == alone


@pytest.mark.programs
def test_dask_gives_the_same_bytes(scenario: Scenario, alone: str, dask_address: str) -> None:
    assert told(scenario, workers=dask_address) == alone
    both = {"as it is": scenario, "none": {"run.spares.warm": 0}}
    there, here = (compare_policies(both, played=20, workers=workers) for workers in (dask_address, 1))
    assert there.to_dict() == here.to_dict()


def test_advice_is_the_same_on_processes(scenario: Scenario) -> None:
    own, shared = (advise("restart", scenario, played=8, workers=workers).to_dict() for workers in (1, 2))
    assert json.dumps(own) == json.dumps(shared)


def test_a_process_that_is_killed_is_said(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of two are; which is heard of first is chance."""
    monkeypatch.setattr(run_chunks, "simulate_runs", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(InputError, match=r"runs (0 to 2|2 to 4): the process was killed; out of memory\?"):
        train(scenario, played=4, workers=2)


def test_what_is_sent_plays_alike(run: LongRun) -> None:
    own, sent = simulate_runs(run, 1, 5).arrays_by_name(), simulate_runs(remove_labels(run), 1, 5).arrays_by_name()
    assert all(np.array_equal(own[name], sent[name], equal_nan=True) for name in own)


# --- nothing is lost, nothing outlives what it was made from ----------------------------------------------------------


def test_equal_content_equal_digest(scenario: Scenario, run: LongRun) -> None:
    assert run_digest(run) == run_digest(build_long_run(scenario, ClusterStateSimulator(scenario)))
    host, hot = run.causes
    pace = np.array(hot.paces)
    pace[0, 0] += 1e-12
    others = [
        replace(run, until=run.until + 1e-6),
        replace(run, misdiagnosis_share=0.1),
        replace(run, pattern=replace(run.pattern, steps=run.pattern.steps + 1)),
        replace(run, causes=(hot, host)),
        replace(run, causes=(replace(host, repair=FixedTime(seconds="86401 s")), hot)),
        replace(run, causes=(host, replace(hot, paces=pace))),
        replace(run, causes=(host, replace(hot, device_class=np.zeros(hot.devices, dtype=np.int64)))),
    ]
    found = [run_digest(each) for each in (run, *others[:-1])]
    assert len(set(found)) == len(found)
    assert (run_digest(others[-1]) == run_digest(run)) == (pace.shape[1] == 1)


def test_what_no_digest_knows_is_refused() -> None:
    pattern = CheckpointPattern(1.0, 60, SnapshotCost(1.0))
    with pytest.raises(TypeError, match="the digest of a run does not support"):
        run_digest(LongRun(pattern, (FailureMode("a", "stop", 1e-3, detect=object()),)))  # type: ignore[arg-type]


@pytest.mark.usefixtures("small")
def test_a_store_is_used_by_who_asks_the_same(
    scenario: Scenario, alone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "runs"
    seen: list[tuple[int, int]] = []

    def again(changed: Scenario = scenario, played: int = 40) -> tuple[str, int]:
        """What is told, and how many runs were there before."""
        seen.clear()
        found = told(changed, played, store=store, progress=lambda done, total, _: seen.append((done, total)))
        assert seen[-1] == (played, played)
        return found, seen[0][0]

    assert again(played=20)[1] == 0
    assert again() == (alone, 20)
    assert again() == (alone, 40)
    assert again(load("tiny_dp", {"run": {**RUN, "price": 3.0}}))[1] == 40  # what it costs is not played
    assert again(load("tiny_dp", {"run": {**RUN, "days": "11 d"}}))[1] == 0
    assert again(load("tiny_dp", {"run": RUN, "seed": 1}))[1] == 0
    monkeypatch.setattr(run_chunks, "sources_digest", lambda: "another simulator")
    assert again() == (alone, 0)


def test_the_digest_of_the_sources_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package" / "base"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1")
    monkeypatch.setattr(version, "__file__", str(package / "sources.py"))
    digest = version.sources_digest.__wrapped__
    first = digest()
    (package / "a.py").write_text("2")
    second = digest()
    (package / "b.py").write_text("")
    third = digest()
    (package / "devices.yaml").write_text("h100: {}")
    assert len({first, second, third, digest()}) == 4


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from simcluster.longrun.studies import run_chunks
from simcluster.cli import main
run_chunks.MOST_PER_CHUNK = int(sys.argv[2])
import simcluster.longrun.commands.train as command
command.ProgressBar.__call__ = lambda self, done, total, wrong: print(done, flush=True)
if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.usefixtures("small")
def test_a_run_killed_twice_equals_an_undisturbed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL of the command and its processes; 100,000 runs of Llama 3's 54 days: see tests/benchmarks."""
    killed(tmp_path, ["tiny_dp", "--set", f"run={json.dumps(RUN)}", "--played", "200"], times=2)
    capsys.readouterr()


def killed(folder: Path, arguments: list[str], *, times: int) -> None:
    """Play it with a store, kill it after a few chunks more, so many times; then to its end, and without a store."""
    script, store, together = folder / "run.py", folder / "runs", run_chunks.MOST_PER_CHUNK
    script.write_text(KILLED)
    command = ["train", *arguments, "--workers", "2", "--store", str(store)]
    before = 0
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, str(script), str(Path(__file__).parent.parent), str(together), *command],
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        reached = next((int(line) for line in process.stdout if int(line) >= before + 3 * together), None)
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL, "it must be killed before it is finished"
        with closing(sqlite3.connect(store)) as kept:
            now = kept.execute("SELECT count(*) FROM rows").fetchone()[0] * together
        assert reached is not None
        assert now >= reached, "what was told to be done is on disk"
        before = now
    resumed, undisturbed = folder / "resumed.json", folder / "undisturbed.json"
    with pytest.MonkeyPatch.context() as patch:
        seen: list[int] = []
        patch.setattr(ProgressBar, "__call__", lambda self, done, total, wrong: seen.append(done))
        assert cli.main([*command, "--json", str(resumed)]) == 0
        assert seen[0] == before, "what was on disk is not played again"
        assert cli.main(["train", *arguments, "--json", str(undisturbed)]) == 0
    assert resumed.read_bytes() == undisturbed.read_bytes()


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(scenario: Scenario) -> PolicyComparison:
    policies = {"as it is": scenario, "none": {"run.spares.warm": 0}, "again": {"run.spares.warm": 1}}
    return compare_policies({**policies, "never": {"run.checkpoint.stall": "2 h"}}, played=40)


def test_a_policy_is_what_train_says_of_it(scenario: Scenario, compared: PolicyComparison, alone: str) -> None:
    assert json.dumps(compared.runs["as it is"].to_dict()) == alone
    other = train(load("tiny_dp", {"run": {**RUN, "spares": {"warm": 0}}}), played=40)
    assert compared.tables["goodput"].loc["none", "mean"] == other.goodput
    assert compared.tables["dollars"].loc["none", "mean"] == pytest.approx(other.dollars, rel=1e-12)
    gap = other.outcomes.seconds_by_category()["productive"] / other.outcomes.wall
    gap = gap - compared.runs["as it is"].shares["productive"]
    assert compared.table.loc["none", "difference"] == pytest.approx(gap.mean(), rel=1e-9)


def test_changes_of_the_run_alone_are_changes_of_the_document(scenario: Scenario) -> None:
    for changes in ({"run.spares.hot": 3, "run.failures": "rsc-1"}, {"run": RUN}, {"training.global_batch": 32}):
        assert _apply_changes(scenario, changes) == from_document(scenario.document(), changes)
    assert _apply_changes(scenario, {"run.spares.hot": 3}).cluster is scenario.cluster
    with pytest.raises(InputError, match=r"run\.spares\.hott"):
        _apply_changes(scenario, {"run.spares.hott": 3})


def test_the_same_policy_again_differs_by_nothing(compared: PolicyComparison) -> None:
    row = compared.table.loc["again"]
    assert (row["difference"], row["difference_half_width"]) == (0, 0)
    assert compared.table["mean"].idxmax() == compared.best
    twins = replace(compared, runs={name: compared.runs[name] for name in ("as it is", "again")})
    assert twins.sentence == "as it is and again are equal, and the best of the 2."
    cheapest = replace(compared, measure="dollars")
    assert cheapest.best == "none"
    assert cheapest.sentence.startswith("none is the best of the 4: -")
    assert cheapest.sentence.endswith("$ against as it is.")


def test_json_keys_of_policies_are_those_of_the_contract(compared: PolicyComparison) -> None:
    whole = replace(compared, refused={"bad": "why"})
    assert undescribed("Policies compared", whole.to_dict()) == []
    assert whole.combined_table()["status"].tolist() == ["ok"] * 4 + ["refused"]


def test_every_policy_is_drawn_with_its_interval(compared: PolicyComparison) -> None:
    figure = plots.policies(compared)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(compared.runs)
    assert [text.get_text() for text in axes.texts[1:]] == [
        f"{mean:.2%}".replace("%", "\N{NO-BREAK SPACE}%") for mean in compared.table["mean"]
    ]
    drawn = [float(bar.get_children()[0].get_xdata()[0]) for bar in axes.containers]
    assert drawn == pytest.approx((100 * compared.table["difference"].iloc[1:]).tolist())


ARGV = ["train", "tiny_dp", "--set", f"run={json.dumps(RUN)}", "--played", "10"]


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, picture = tmp_path / "table.csv", tmp_path / "policies.png"
    argv = [*ARGV, "--vary", "run.spares.warm=0,1", "--against", "run.spares.warm=2 run.checkpoint.every='90 min'"]
    argv += ["--vary", "run.price=2,-1", "--measure", "days", "--store", str(tmp_path / "runs")]
    assert cli.main([*argv, "-o", str(table), "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "4 policies, 10 runs of each on the same failures" in text
    assert "spares.warm 2, checkpoint.every 90 min" in text
    assert "refused\n  spares.warm 0, price -1: " in text
    assert picture.stat().st_size > 10_000
    assert table.read_text().count(",refused,") == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--against", "run.spares.hott=8"], "did you mean"),
        (["--against", "run.spares.hot=8 'x"], "No closing quotation; write e.g."),
        (["--against", "run.price=-1"], "run.price"),
        (["--vary", "run.spares.warm=2", "--log", "log.csv"], "--log is for one policy"),
        (["--measure", "days"], "--measure is for several policies"),
        (["--vary", "run.spares.warm=2", "--run.price", "null", "--measure", "dollars"], "has no price"),
        (["--executor", "dask:/x"], "must be a number of processes, or dask://HOST:PORT"),
        (["--executor", "2", "--workers", "2"], "give one of them"),
        (["--store", "no/such/folder"], "the folder no/such does not exist"),
    ],
)
def test_bad_input_is_one_message(more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ARGV, *more]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out
