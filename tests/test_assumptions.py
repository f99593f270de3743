"""Runs of weeks state what they assume: restarts, spares, repairs, detection; and stating it changes nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.base.progress import current_phases, listen_to_progress
from simcluster.longrun.defaults import READY, RESTART, build_spare_nodes
from simcluster.longrun.long_run import FailureMode, SpareNodes
from simcluster.longrun.studies.advice import ADVICE, advise
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_comparison import compare_policies
from simcluster.longrun.studies.training import TrainingRun, train
from simcluster.scenario.run_section import SparesSpec
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import Scenario, load

FAILURES = {"of": "opt-175b", "times": 200}
BARE = {"run.tokens": "3000B", "run.failures": FAILURES, "run.checkpoint.to": "1 GB/s"}
"""A run by options: it states neither restart nor spares."""
STATED: dict[str, Any] = {
    "run.restart": [part.model_dump(mode="json") for part in RESTART],
    "run.detection": "2 min",
    "run.wrong_diagnosis": 0,
    "run.spares": {"warm": 1, "warm_ready": "2 min", "crews": 4},
    "run.checkpoint.mode": "blocking",
}
KEYS = ("run.restart", "run.detection", "run.wrong_diagnosis", "run.spares.warm", "run.spares.warm_ready",
        "run.spares.crews", "run.checkpoint.mode")  # fmt: skip


@pytest.fixture(scope="module")
def states() -> ClusterStateSimulator:
    return ClusterStateSimulator(load("tiny_dp"))


def bare(**changes: Any) -> Scenario:
    return load("tiny_dp", {**BARE, **{path.replace("__", "."): value for path, value in changes.items()}})


def trained(scenario: Scenario) -> TrainingRun:
    found = train(scenario, played=30)
    assert isinstance(found, TrainingRun)
    return found


def test_what_is_not_stated_is_assumed_with_its_key_until_it_is_stated() -> None:
    one = trained(bare())
    assert [key for key in KEYS if not any(key in words for words in one.assumed)] == []
    stated = trained(load("tiny_dp", {**BARE, **STATED}))
    assert [key for key in KEYS if any(key in words for words in stated.assumed)] == []
    assert (stated.goodput, stated.days) == (one.goodput, one.days)  # the default is what the text states
    assert list(one.assumed) == one.to_dict()["assumed"]
    assert all(f"assumed: {words}" in one.summary() for words in one.assumed)


@pytest.mark.parametrize(("path", "value"), STATED.items())
def test_each_key_that_is_stated_is_assumed_no_more(path: str, value: Any) -> None:
    before, after = (simcluster.train(scenario, played=2).assumed for scenario in (bare(), bare(**{path: value})))
    gone = {key for key in KEYS if key.startswith(path)}
    assert {key for key in KEYS if any(key in words for words in after)} == set(KEYS) - gone
    assert set(after) < set(before)


def test_no_restart_and_a_pool_without_end_are_kept_where_a_scenario_states_them() -> None:
    free = bare(run__restart=[], run__spares={"unlimited": True})
    quick, plain = trained(free), trained(bare())
    assert quick.run.restart == ()
    assert quick.run.spares.unlimited
    assert quick.spare_gpu_hours == 0.0
    assert quick.goodput > plain.goodput
    assert not any("run.restart" in words or "run.spares" in words for words in quick.assumed)
    assert load(free.document()) == free


@pytest.mark.parametrize(("nodes", "spares"), [(1, 1), (12, 1), (13, 2), (48, 4), (2048, 171)])
def test_spares_are_one_for_twelve_nodes(nodes: int, spares: int) -> None:
    """BLOOM: 4 for 48."""
    leaves = FailureMode("node", "stop", 1e-6, repair=FixedTime(seconds="2 d"))
    assert build_spare_nodes(SparesSpec(), nodes, [leaves]) == SpareNodes(0, spares, 0, READY)
    assert build_spare_nodes(SparesSpec(cold=3), nodes, [leaves]) == SpareNodes(0, 0, 3, READY)
    assert build_spare_nodes(SparesSpec(), nodes, []).count == 0


def test_spares_that_are_assumed_cost_nothing_until_they_have_a_price() -> None:
    """Prices are never assumed."""
    assumed, priced, stated = (
        trained(bare(run__price=2, **more)) for more in ({}, {"run__spares__price": 1}, {"run__spares__warm": 1})
    )
    assert assumed.dollars == pytest.approx(2 * assumed.gpu_hours)
    assert "without a price, so not included: run.spares.price" in assumed.summary()
    assert priced.dollars == pytest.approx(2 * assumed.gpu_hours + assumed.spare_gpu_hours)
    assert stated.dollars == pytest.approx(2 * (assumed.gpu_hours + assumed.spare_gpu_hours))


def test_without_failures_that_take_a_node_away_nobody_stands_by() -> None:
    found = trained(bare(run__failures=[{"name": "bug", "of": "job", "mtbf": "1 d"}]))
    assert found.run.spares.count == 0
    assert found.spare_gpu_hours == 0.0
    assert not any("spare" in words or "repaired" in words for words in found.assumed)


@pytest.mark.parametrize("question", ADVICE)
def test_every_advice_states_what_it_assumes(question: str, states: ClusterStateSimulator) -> None:
    bad = {"share": "25%", "times": 20, "cured": 0.2}
    own = [{"name": "node", "of": "host", "mtbf": "4 d", "repair": "6 h", "bad": bad}]
    scenario = bare(run__failures={"also": own}, run__tokens="300B", run__checkpoint={"to": "1 GB/s"})
    found = advise(question, scenario, states=states, played=4)
    assert any("run.restart" in words for words in found.assumed)
    assert any("run.spares.warm" in words for words in found.assumed)
    assert found.to_dict()["assumed"] == list(found.assumed)
    assert all(f"assumed: {words}" in str(found) for words in found.assumed)


def test_check_and_policies_state_what_they_assume() -> None:
    found = simcluster.check(bare())
    assert any("run.restart" in words for words in found.assumed)
    assert found.to_dict()["assumed"] == list(found.assumed)
    assert all(f"assumed: {words}" in str(found) for words in found.assumed)
    stated = {"run.restart": []}
    policies = compare_policies({"default": bare(), "quick": stated}, played=2)
    whose = [words for words in policies.assumed if "run.restart" in words]
    assert [words.split(":")[0] for words in whose] == ["default"]
    assert any(words.startswith("a failure is noticed") for words in policies.assumed)
    assert policies.to_dict()["assumed"] == list(policies.assumed)
    assert all(f"assumed: {words}" in str(policies) for words in policies.assumed)


def test_a_replay_of_a_log_states_what_it_assumes(tmp_path: Path) -> None:
    log = tmp_path / "incidents.csv"
    trained(bare()).incidents.to_csv(log, index=False)
    found = simcluster.replay_failures(bare(), log, {"run.spares": {"warm": 3}}, played=2)
    assert any(words.startswith("a failure is noticed") for words in found.assumed)
    assert any(words.startswith("as it was: 1 spare node,") for words in found.assumed)
    assert found.to_dict()["assumed"] == list(found.assumed)
    assert all(f"assumed: {words}" in str(found) for words in found.assumed)


def test_the_54_days_state_their_restart_and_spares() -> None:
    run = load("llama3_405b_54_days").run
    assert run is not None
    assert run.restart == RESTART
    assert run.detection is not None
    assert run.spares.has_count


# --- a run in which nothing fails -------------------------------------------------------------------------------------


def test_dollars_of_a_trillion_tokens_take_neither_failures_nor_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "tiny_dp", "--run.tokens", "1T", "--run.price", "2.5", "--json", "-"]
    assert cli.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    result = simcluster.simulate(load("tiny_dp"))
    dollars = 1e12 * 4 * 2.5 / result.tokens_per_s / 3600
    assert found["dollars"] == pytest.approx(dollars, rel=1e-4)  # the last step is whole
    assert (found["goodput"], found["checkpoint"]["steps"], found["checkpoint"]["interval_s"]) == (1.0, None, None)
    assert any("no checkpoint is written" in words for words in found["assumed"])
    assert cli.main(argv[:-2]) == 0
    text = capsys.readouterr().out
    assert "checkpoint   none is written: nothing fails" in text
    assert "assumed: no checkpoint is written" in text


def test_checkpoints_that_are_asked_for_are_written_without_failures() -> None:
    given = {"run.tokens": "1B", "run.checkpoint": {"stall": "5 s", "every": "10 steps"}}
    found = trained(load("tiny_dp", given))
    assert found.run.pattern.steps == 10
    assert found.goodput < 1
    assert not any("no checkpoint" in words for words in found.assumed)


def test_a_checklist_of_a_run_without_failures_can_be_gone_through(tmp_path: Path) -> None:
    found = simcluster.check("tiny_dp", [("run.tokens", "1B")])
    assert not any("needs a duration" in point.found for point in found.points)
    assert next(point for point in found.points if point.name == "failures").verdict == "warn"


# --- a model of a config.json -----------------------------------------------------------------------------------------

CONFIG = {
    "model_type": "qwen2", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 32_000, "max_position_embeddings": 131_072,
    "attention_dropout": 0.1,
}  # fmt: skip
SECTIONS = {
    "cluster": {"topology": "dgx_h100", "nodes": 1}, "parallel": {"tp": 1}, "pipeline": {"schedule": "1f1b"},
    "training": {"global_batch": 8, "micro_batch": 1},
}  # fmt: skip


@pytest.mark.parametrize("as_preset", [True, False])
@pytest.mark.parametrize(("longest", "length"), [(131_072, 8192), (8192, 8192), (2048, 2048), (None, 32_768)])
def test_a_config_json_has_the_length_that_its_import_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], longest: int | None, length: int, as_preset: bool
) -> None:
    path = tmp_path / "config.json"
    config = {key: value for key, value in {**CONFIG, "max_position_embeddings": longest}.items() if value is not None}
    path.write_text(json.dumps(config))
    imported = cli.main(["import", "hugging-face", str(path), "--cluster", "dgx_h100", "--gpus", "8"])
    text = capsys.readouterr().out
    own = load({**SECTIONS, "model": {"preset": str(path)} if as_preset else str(path)})
    assert imported == 0
    assert f"sequence_length: {own.model.sequence_length}\n" in text
    assert own.model.sequence_length == min(length, 8192)
    found = simcluster.simulate(own)
    said = [words.split(" (--")[0].removeprefix("# Assumed: ") for words in text.splitlines() if "# Assumed:" in words]
    assert said[:2] == [words.split(" (model.")[0].split(" (--")[0] for words in found.assumed]
    assert "model.sequence_length" in found.assumed[-1]
    assert found.to_dict()["assumed"] == list(found.assumed)
    assert all(f"assumed: {words}" in str(found) for words in found.assumed)


def test_a_length_that_is_given_is_not_assumed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    own = load({**SECTIONS, "model": {"preset": str(path), "sequence_length": 4096}})
    assert own.model.sequence_length == 4096
    assert not any("sequences" in words for words in simcluster.simulate(own).assumed)
    long = load({**SECTIONS, "model": str(path)}, {"model.sequence_length": 16_384})
    assert long.model.sequence_length == 16_384
    assert not any("sequences" in words for words in simcluster.simulate(long).assumed)


def test_check_and_compare_state_the_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, scenario = tmp_path / "config.json", tmp_path / "job.yaml"
    path.write_text(json.dumps(CONFIG))
    scenario.write_text(json.dumps({**SECTIONS, "model": "config.json"}))
    words = "sequences of 8192 tokens (model.sequence_length)"
    assert words in simcluster.check(scenario).to_dict()["assumed"]
    argv = ["compare", str(scenario), "--vary", "training.global_batch=8,16"]
    assert cli.main(argv) == 0
    assert f"assumed: {words}" in capsys.readouterr().out
    assert cli.main([*argv, "--json", "-"]) == 0
    assert all(words in row["assumed"] for row in json.loads(capsys.readouterr().out))


def test_advice_names_the_state_and_counts_points() -> None:
    seen: list[str] = []
    with listen_to_progress(lambda name, seconds: seen.append(", ".join(current_phases()))):
        advise("interval", bare(), played=4, progress=lambda *counts: seen.append(", ".join(current_phases())))
    assert "state 1 of the cluster (healthy)" in seen
    points = [re.fullmatch(r"(\d+) of (\d+) points", text) for text in seen if "points" in text]
    done = [int(each[1]) for each in points if each]
    assert len(done) == len(points) > 2
    assert done == sorted(done)
    assert seen[-1] == f"{done[-1]} of {done[-1]} points"


def test_advice_counts_the_runs_that_are_done(states: ClusterStateSimulator) -> None:
    told: list[tuple[int, int, int]] = []
    advise("interval", bare(), states=states, played=4, progress=lambda *counts: told.append(counts))
    assert told[-1][0] == told[-1][1] > 0
    assert all(done <= total for done, total, _ in told)
    assert any(0 < done < total for done, total, _ in told)
