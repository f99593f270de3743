"""What would make a job fit: as few changes as possible, each list really fits, and nothing is offered in vain."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from simcluster.cli import main
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_remedies import MOST_CHANGES, find_memory_remedies, try_changes
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate

SCENARIOS = Path(__file__).parent.parent / "scenarios"
ONE_BLOCK = {"pipeline.schedule": "1f1b", "pipeline.chunks": 1}
CASES: dict[str, dict[str, Any]] = {
    "no recompute": {"training.recompute": "none"},
    "half the stages": {"parallel.pp": 4, "parallel.dp": 2, "training.recompute": "none"},
    "no pipeline": {"parallel.pp": 1, "parallel.dp": 8, **ONE_BLOCK},
    "large microbatches": {"training.micro_batch": 8, "training.global_batch": 512, "training.recompute": "none"},
    "all forwards first": {"pipeline.schedule": "gpipe", "pipeline.chunks": 1, "training.recompute": "none"},
    "gated and fused": {
        "model.gated_mlp": True, "model.ffn_hidden_size": 49152, "training.attention": "fused",
        "training.dropout": False, "training.micro_batch": 4, "training.global_batch": 256,
    },
}  # fmt: skip


def gpt(case: str, **more: Any) -> Scenario:
    return load(SCENARIOS / "gpt3_175b_64xa100.yaml", {**CASES[case], **more})


@pytest.mark.parametrize("case", CASES)
def test_what_is_offered_fits_and_less_does_not(case: str) -> None:
    scenario = gpt(case)
    found = find_memory_remedies(scenario).found
    assert found
    assert max(each.total for each in plan_footprints(scenario)) > 80e9
    for remedy in found:
        changed = load(SCENARIOS / "gpt3_175b_64xa100.yaml", {**CASES[case], **remedy.values})
        assert max(each.total for each in plan_footprints(changed)) <= remedy.memory <= 80e9
        assert remedy.changes == found[0].changes
        chosen = {path: value for path, value in remedy.values.items() if path != "parallel.dp"}  # that follows
        for path in chosen if remedy.changes > 1 else ():  # every value of a longer list is needed
            rest = {key: value for key, value in chosen.items() if key != path}
            less = try_changes(scenario, rest)
            assert less is None or max(each.total for each in plan_footprints(less)) > 0.9 * 80e9


@pytest.mark.parametrize("case", ["half the stages", "no pipeline", "all forwards first"])
def test_what_is_offered_fits_when_it_is_played(case: str) -> None:
    small = {"training.global_batch": 32, "overlap.interference": "none"}
    remedy = find_memory_remedies(gpt(case, **small)).found[0]
    changes = [f"{path}={value}" for path, value in {**CASES[case], **small}.items()] + remedy.overrides()
    result = simulate(load(SCENARIOS / "gpt3_175b_64xa100.yaml", changes))
    assert result.fits
    assert result.memory.total <= remedy.memory
    assert result.memory.total == pytest.approx(remedy.memory, rel=0.05)  # what may wait between stages, at its most


def test_one_change_that_is_enough_is_found_before_two() -> None:
    found = find_memory_remedies(gpt("no recompute")).found
    assert [remedy.changes for remedy in found] == [1] * len(found)
    assert {"training.recompute": "selective"} in [dict(remedy.values) for remedy in found]


def test_a_job_that_nothing_helps_hears_what_is_short() -> None:
    changes = {"gpus": 8, "cluster.nodes": 1, "parallel.pp": 1, "parallel.dp": 1, **ONE_BLOCK}
    answer = find_memory_remedies(load(SCENARIOS / "gpt3_175b_64xa100.yaml", changes))
    assert not answer.found
    assert "model state alone needs 393.4 GB per GPU: use more GPUs" in answer.shortage
    assert answer.closest is not None
    assert answer.closest.changes <= MOST_CHANGES


def test_it_is_fast_on_a_thousand_gpus() -> None:
    scenario = load(SCENARIOS / "llama3_405b_1024xh100.yaml", {"training.recompute": "none", "training.micro_batch": 2})
    begun = time.process_time()
    assert find_memory_remedies(scenario).found
    assert time.process_time() - begun < 2.0  # a fifth of a second; room for a busy machine


def test_a_run_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run says both: what fits is looked for once."""
    path = tmp_path / "answer.json"
    assert main(["run", "tiny_dp", "--set", "memory.workspace=79.9 GB", "--json", str(path)]) == 0
    answer = json.loads(path.read_text(encoding="utf-8"))
    assert answer["fits"] is False
    assert answer["fits_with"]["remedies"] == []
    assert answer["fits_with"]["short"]
    assert f"no combination of up to {MOST_CHANGES} changes fits" in capsys.readouterr().out
    assert main(["run", "tiny_dp", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["fits_with"] is None
