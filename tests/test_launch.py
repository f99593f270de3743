"""The checklist of a whole launch, and the small version of a job: points against closed forms, files that run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import long_run_forms as forms
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.cli import main
from simcluster.longrun import closed_forms
from simcluster.longrun.budget.critical_batch import fresh_equivalent
from simcluster.longrun.checkpoint_pattern import STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.launch.launch_check import RUN_CHECKS, LaunchCheck
from simcluster.longrun.launch.run_checks import CheckpointOverhead
from simcluster.longrun.launch.run_under_check import RunUnderCheck
from simcluster.longrun.long_run import FailureMode, LongRun
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_closed_forms import two_level_efficiency
from simcluster.scenario.run_section import ValidationSpec
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import Scenario
from simcluster.studies.whatif.checklist_points import CHECKS, ChecklistPoint

HOUR = 3600.0
OF_GOLDEN = FailureMode("any", "stop", 1 / (3 * HOUR))


def saving_cost(steps: int, step: float = 13.71, checkpoint: float = 60.0) -> float:
    return CheckpointOverhead.from_run(
        LongRun(CheckpointPattern(step, steps, SnapshotCost(checkpoint)), (OF_GOLDEN,))
    ).whole


@pytest.mark.parametrize(("steps", "percent"), [(10, 44.40), (50, 11.93), (83, 10.54), (100, 10.72), (200, 14.88)])
def test_overhead_of_saving_is_the_textbooks(steps: int, percent: float) -> None:
    """T/(K t) + K t/(2 M) with T 60 s, M 3 h, t 13.71 s."""
    assert 100 * saving_cost(steps) == pytest.approx(percent, abs=0.005)


@given(st.integers(1, 5000), st.floats(0.1, 100), st.floats(1, 1000))
@settings(max_examples=30, deadline=None)
def test_no_interval_costs_less_than_the_best_one(steps: int, step: float, checkpoint: float) -> None:
    """sqrt(2 T/M) is the least of T/(K t) + K t/(2 M), which Young's interval has."""
    assert saving_cost(steps, step, checkpoint) >= math.sqrt(2 * checkpoint / (3 * HOUR)) * (1 - 1e-12)


def test_what_is_written_behind_training_is_at_stake_for_longer() -> None:
    saving = SnapshotCost(5.0, write=100.0, slowed=0.1)
    run = LongRun(CheckpointPattern(2.0, 300, saving), (OF_GOLDEN,))
    waste = closed_forms.async_lost_share(600.0, 5.0, 100.0, 0.1, 3 * HOUR, 0.0)
    assert CheckpointOverhead.from_run(run).whole == pytest.approx(waste, rel=1e-12)
    silent = replace(OF_GOLDEN, name="silent", effect="silent", lasts=FixedTime(seconds="1 h"))
    assert CheckpointOverhead.from_run(replace(run, causes=(OF_GOLDEN, silent))).redone == pytest.approx(
        2 * CheckpointOverhead.from_run(run).redone
    )


def test_copies_in_memory_and_on_storage_are_two_levels() -> None:
    deep = FailureMode("deep", "stop", 1 / (30 * HOUR), survives=STORAGE)
    pattern = CheckpointPattern(2.0, 100, SnapshotCost(20.0), memory=SnapshotCost(1.0), snapshots_per_stored=7)
    run = LongRun(pattern, (OF_GOLDEN, deep))
    assert CheckpointOverhead.from_run(run).whole == pytest.approx(1 - two_level_efficiency(run), rel=1e-6)


# --- points -----------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "tokens": "300B",
    "failures": {"also": [{"name": "any", "of": "job", "mtbf": "3 h", "repair": "4 h"}]},
    "checkpoint": {"every": "728 steps", "to": "100 GB/s"},
    "spares": {"warm": 12, "warm_ready": "0 s"},
    "price": 2,
}


@cache
def states() -> ClusterStateSimulator:
    """Of a tiny job, played once for all tests."""
    return ClusterStateSimulator(simcluster.scenario("tiny_3d"))


def launch(changes: Mapping[str, Any] | None = None, **run: Any) -> tuple[RunUnderCheck, Any]:
    """A tiny job with a run, and what changes it."""
    document: dict[str, Any] = {"run": {**RUN, **run}, **(changes or {})}

    def again(values: Mapping[str, Any]) -> Scenario:
        return simcluster.scenario("tiny_3d", document | dict(values))

    return RunUnderCheck.from_scenario(again({}), states=states()), again


def point(name: str, changes: Mapping[str, Any] | None = None, **run: Any) -> ChecklistPoint:
    found, again = launch(changes, **run)
    (check,) = [each for each in RUN_CHECKS if each.name == name]
    seen = check.evaluate(found, again)
    assert seen is not None
    return seen


def often(seconds: float) -> str:
    return f"{max(1, round(seconds / states().healthy_step_time))} steps"


def test_tokens_and_budget_by_hand() -> None:
    scenario = simcluster.scenario("tiny_3d")
    tokens = scenario.training.global_batch * scenario.model.sequence_length
    assert f"{tokens:,} = {scenario.training.global_batch}" in point("tokens per step").found
    budget = point("budget")
    assert budget.verdict == "pass"
    assert f"{math.ceil(300e9 / tokens):,} steps x {tokens:,} tokens" in budget.found
    assert point("budget", tokens=None, days="7 d").verdict == "warn"
    assert point("budget", tokens=tokens * 1.5).verdict == "warn"  # two whole steps


def test_padding_is_told() -> None:
    documents = {"kind": "lognormal", "median": 100.0, "sigma": 1.0}
    padded = {"data": {"documents": documents, "packing": "pad"}}
    found = point("tokens per step", padded)
    assert found.verdict == "fail"
    assert "real" in found.found
    assert point("tokens per step", {"data": {"documents": documents, "packing": "cut"}}).verdict == "pass"


@pytest.mark.parametrize(("unique", "verdict"), [("75B", "pass"), ("74B", "warn"), ("7B", "fail")])
def test_epochs_against_muennighoff(unique: str, verdict: str) -> None:
    found = point("epochs", {"data": {"unique": unique}})
    assert found.verdict == verdict
    count = float(unique.removesuffix("B")) * 1e9
    worth = fresh_equivalent(300e9, count, 15.387756) / count
    assert f"{300e9 / count:.3g} epochs of {count / 1e9:#.4g}B tokens" in found.found
    assert f"worth {worth:.3g}" in found.found
    with pytest.raises(AssertionError):
        point("epochs")  # no data section


def test_interval_is_mended_by_the_best_one() -> None:
    wide = point("checkpoint interval", checkpoint={"every": often(2 * HOUR), "stall": "60 s"})
    assert wide.verdict == "fail"
    assert wide.remedy is not None
    assert wide.remedy.point_result is not None
    least = f"{math.sqrt(2 * 60 / (3 * HOUR)):.1%}"  # to first order, as the point's
    assert wide.remedy.point_result[0] == "warn"
    assert least[:4] in wide.remedy.point_result[1]
    fine = point("checkpoint interval", checkpoint={"every": often(600), "stall": "1 s"})
    assert fine.verdict == "pass"
    assert fine.remedies == ()
    best = point("checkpoint interval", checkpoint={"every": "auto", "stall": "1 s"})
    assert best.found.endswith("near the optimum")
    often_enough = point("checkpoint interval", checkpoint={"every": "1 step", "mode": "snapshot", "stall": "1 ms",
                                                            "write": "60 s", "slowed": 0})  # fmt: skip
    assert often_enough.verdict == "fail"
    assert "write less often" in often_enough.found


def test_resume_state_wants_all_of_the_optimizer() -> None:
    assert point("resume state").verdict == "pass"
    less = point("resume state", checkpoint={**RUN["checkpoint"], "bytes_per_parameter": 10})
    assert less.verdict == "warn"
    assert less.remedy is not None
    assert less.remedy.values == {"run.checkpoint.bytes_per_parameter": 14.0}
    assert point("resume state", checkpoint={**RUN["checkpoint"], "bytes_per_parameter": 1}).verdict == "fail"


def test_recipe_is_said_or_warned_of() -> None:
    assert point("memory recipe").verdict == "warn"
    assert point("memory recipe", {"training.memory_recipe": "mixed-18"}).verdict == "pass"


def test_snapshots_need_host_memory() -> None:
    snapshot = {"every": "auto", "mode": "snapshot", "to": "100 GB/s"}
    small = {"cluster.host_memory": "1 MB"}
    assert point("host memory").verdict == "pass"
    assert point("host memory", small, checkpoint=snapshot).verdict == "fail"
    assert point("host memory", {"cluster.host_memory": "1 TB"}, checkpoint=snapshot).verdict == "pass"


@pytest.mark.parametrize("spares", [0, 1, 2, 3, 5, 8])
def test_spares_are_erlangs(spares: int) -> None:
    """4/3 machines in repair, so long as an outage takes no time in which nothing strikes."""
    found = point("spares", spares={"warm": spares, "warm_ready": "0 s"}, detection="0 s", restart=[])
    short = closed_forms.erlang_b(spares + 1, 4 / 3)
    assert f"short of nodes {short:.2%}" in found.found
    assert found.verdict == ("pass" if short <= 0.001 else "warn" if short <= 0.05 else "fail")
    if found.verdict != "pass":
        assert found.remedy is not None
        assert found.remedy.values["run.spares.warm"] == forms.spares_for(0.001, 1 / (3 * HOUR), 4 * HOUR)


def test_spares_for_racks_are_not_erlangs() -> None:
    rack = {"name": "power", "of": "rack", "machines": 2, "mtbf": "9 d", "repair": "6 h"}
    found = point("spares", failures=[rack])
    assert (found.verdict, "short of nodes" in found.found) == ("warn", False)
    assert "so Erlang B does not hold" in found.found
    assert "advise spares" in found.advice


def test_validation_takes_its_share() -> None:
    """Forward passes of so many batches over all that every so many steps take."""
    assert point("validation").verdict == "warn"
    one = states().validation_seconds_per_step(ValidationSpec(every="1 step", batches=1))
    share = 10 * one / (10 * one + 1000 * states().healthy_step_time)
    found = point("validation", validation={"every": "1000 steps", "batches": 10})
    assert found.verdict == "pass"
    assert found.found.startswith(f"{share:.2%}")
    often = point("validation", validation={"every": "10 steps", "batches": 10})
    assert often.verdict == "fail"
    assert often.remedy is not None
    assert often.remedy.point_result == ("pass", often.remedy.point_result[1] if often.remedy.point_result else "")


def test_a_loader_that_does_not_keep_up_is_told() -> None:
    step = states().healthy_step_time
    for seconds, verdict in ((0.9 * step, "pass"), (1.05 * step, "warn"), (2 * step, "fail")):
        scenario = simcluster.scenario("tiny_3d", {"run": RUN, "data": {"loader": {"batch": f"{seconds!r} s"}}})
        (check,) = [each for each in RUN_CHECKS if each.name == "data loader"]
        found = check.evaluate(RunUnderCheck.from_scenario(scenario), launch()[1])
        assert found is not None
        assert found.verdict == verdict
        assert f"{max(0.0, 1 - step / seconds):.1%} of the step" in found.found


def test_a_pool_without_end_and_a_run_without_failures_are_warned_of() -> None:
    assert point("spares", spares={"unlimited": True}).verdict == "warn"
    found = point("failures", failures={})
    assert found.verdict == "warn"
    assert found.remedy is not None
    assert found.remedy.values == {"run.failures": "llama3"}
    assert point("spares", failures={}).verdict == "pass"


def test_days_and_dollars_are_the_played_runs() -> None:
    found, again = launch()
    (check,) = [each for each in RUN_CHECKS if each.name == "days and dollars"]
    seen = check.evaluate(found, again)
    assert seen is not None
    played = found.simulated_runs
    assert float(found.run.goal) * found.run.pattern.step / 86400 < float(seen.found.split()[0])  # failures take time
    assert f"{played.numbers['mean'].astype(float).to_dict()['days']:.4g} days" in seen.found
    assert "$" in seen.found
    assert "no price" in point("days and dollars", price=None).found


# --- the whole --------------------------------------------------------------------------------------------------------


def test_check_tells_once_what_cannot_be_known() -> None:
    found = simcluster.check("tiny_3d", [("run.tokens", "1B"), ("run.failures", "rsc-1")])
    assert isinstance(found, LaunchCheck)
    of_run = found.points[len(CHECKS) :]
    assert [each.name for each in of_run] == [
        each.name for each in RUN_CHECKS if each.name not in ("epochs", "data loader")
    ]
    failing = [each for each in of_run if each.verdict == "fail"]
    assert sum("needs a duration" in each.found for each in failing) == 1
    assert len(failing) == 4
    assert {each.found for each in failing[1:]} == {"unknown: see checkpoint interval"}
    assert str(found).count("needs a duration") == 1


def test_a_scenario_its_name_and_its_document_give_the_same() -> None:
    scenario = simcluster.scenario("tiny_dp")
    found = [simcluster.check(each) for each in ("tiny_dp", scenario, scenario.document())]
    assert found[0].to_dict()["points"] == found[1].to_dict()["points"] == found[2].to_dict()["points"]
    assert found[0].verdict == found[1].verdict
    assert "days and dollars" not in found[0].summary()  # it has no run


def test_the_command_writes_the_small_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.yaml"
    assert main(["check", "tiny_3d", "--small", str(path)]) == 0
    told = capsys.readouterr().out
    assert f"wrote {path}: 2 GPUs of one node (tp 2, pp 1, dp 1), 2 of 4 layers: expect " in told
    small = simcluster.scenario(path)
    result = simcluster.simulate(small)
    assert f"{result.memory.total / 1e9:.1f} GB on the fullest GPU, MFU {result.mfu:.1%}" in told
    assert f"# As simulated: expect {told.rpartition('expect ')[2].strip()}." in path.read_text()
    assert main(["check", "tiny_3d", "--small", str(path), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)["small"]
    assert document["step_time_s"] == result.step_time
    assert document["scenario"] == small.document()
    assert {row["path"] for row in document["changed"]} >= {"parallel.pp", "model.layers"}
