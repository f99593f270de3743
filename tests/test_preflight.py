"""simcluster check: every point of the checklist turns when what it looks at is wrong, and remedies are as played."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from typing import Any

import pytest

import simcluster
from simcluster.base.units import format_seconds
from simcluster.cli import main
from simcluster.scenario.memory_remedies import try_changes
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.checklist_points import CHECKS, ChecklistPoint, _check_contention
from simcluster.studies.whatif.launch_checklist import check_launch, make_checklist, worst_verdict
from simcluster.studies.whatif.remedies import Remedy, format_changes, list_exposure_remedies

GPT = "gpt3_175b_64xa100"
SLOW = ("slow_gpu", "model.layers=8", "training.global_batch=16")


@cache
def points(name: str, *overrides: str) -> dict[str, ChecklistPoint]:
    return {point.name: point for point in check_launch(simulate(simcluster.scenario(name, overrides)))}


@cache
def looked_at(*overrides: str) -> dict[str, ChecklistPoint]:
    """The points of a tiny job before anything is tried."""
    result = simulate(simcluster.scenario("tiny_3d", ["training.global_batch=8", *overrides]))
    return {point.name: point for point in (check(result) for check in CHECKS)}


def test_a_published_run_passes_every_point() -> None:
    found = points(GPT)
    assert len(found) == len(CHECKS)
    assert {point.verdict for point in found.values()} == {"pass"}
    assert worst_verdict(list(found.values())) == "pass"
    assert all(any(letter.isdigit() for letter in point.found) for point in found.values())


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("divisibility", ["training.global_batch=2"]),
        ("memory headroom", ["cluster.scale.memory=0.001"]),
        ("tp inside the NVLink domain", ["parallel.tp=4", "parallel.pp=1"]),
        ("batch against the critical batch", ["training.global_batch=2048"]),
        ("pipeline bubble", ["training.global_batch=2"]),
        ("exposed communication", ["cluster.scale.nvlink=0.01"]),
        ("balance of stages", ["model.vocab_size=2000000"]),
        ("ZeRO under the pipeline", ["parallel.zero=2"]),
        ("launch-bound microbatches", ["cluster.scale.launch=50"]),
    ],
)
def test_each_point_turns_when_its_matter_is_wrong(name: str, overrides: list[str]) -> None:
    before, after = looked_at()[name], looked_at(*overrides)[name]
    assert after.verdict != "pass"
    assert ("pass", "warn", "fail").index(after.verdict) >= ("pass", "warn", "fail").index(before.verdict)
    assert after.found != before.found


def test_rings_that_share_uplinks_turn_their_point() -> None:
    """Eight leaves with half as many uplinks as GPUs, and 64 rings, each over one GPU of every leaf."""
    changes: dict[str, object] = {
        "cluster": {"topology": "leaf_spine_512"}, "gpus": 512, "parallel": {"tp": 64, "pp": 1}, "model.heads": 64,
        "model.kv_heads": 64, "training.global_batch": 8, "overlap.grad_reduce": False,
    }  # fmt: skip
    found = _check_contention(simulate(simcluster.scenario("tiny_3d", changes)))
    assert found.verdict != "pass", found


def test_a_remedy_is_what_its_scenario_gives() -> None:
    found = points(*SLOW)["pipeline bubble"]
    assert found.verdict != "pass"
    assert found.remedy is not None
    scenario = simcluster.scenario(SLOW[0], SLOW[1:])
    changed = try_changes(scenario, found.remedy.values)
    assert changed is not None
    assert simulate(changed).step_time == found.remedy.step_time < simulate(scenario).step_time
    by_hand = simcluster.scenario(SLOW[0], [*SLOW[1:], *format_changes(found.remedy.values)])
    assert simulate(by_hand).step_time == found.remedy.step_time


def test_changes_are_written_as_the_command_line_reads_them() -> None:
    values = {"overlap.tensor": True, "parallel.order": ("tp", "dp"), "training.micro_batch": 2}
    assert list(format_changes(values)) == ["overlap.tensor=true", "parallel.order=[tp, dp]", "training.micro_batch=2"]


PRINTED = re.compile(r"(--set .*?)   (\S+ \S+) per step \(([+-][0-9.]+%)(: it meets the rule, but is slower)?\)")
"""A remedy in the command's text: options, step time, change."""

CHECKED: tuple[tuple[str, list[str]], ...] = (
    ("tiny_3d", ["--parallel.order", "[tp, cp, pp, dp]"]),
    ("tiny_3d", ["--parallel.zero", "2", "--set", "pipeline.schedule=gpipe"]),
    ("tiny_3d", ["--parallel.tp", "4", "--parallel.pp", "1"]),
    ("tiny_3d", ["--training.global_batch", "2"]),
    ("tiny_dp", []),
    ("tiny_dp", ["--parallel.zero", "3", "--fsdp.prefetch", "0", "--training.micro_batch", "2"]),
    ("slow_gpu", ["--model.layers", "8", "--training.global_batch", "16"]),
)


@pytest.mark.parametrize(("name", "own"), CHECKED, ids=range(len(CHECKED)))
def test_every_printed_remedy_is_a_command_that_gives_its_time(
    name: str, own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is pasted behind ``simcluster run SCENARIO``: it runs, fits and takes as long as it says."""
    assert main(["check", name, *own]) == 0
    printed = {found.groups()[:2] for found in PRINTED.finditer(capsys.readouterr().out)}
    assert printed
    for options, seconds in sorted(printed):
        assert main(["run", name, *shlex.split(options), "--json", "-"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert format_seconds(result["step_time_s"]) == seconds, options
        assert result["fits"]


def test_what_is_changed_is_changed_whole() -> None:
    """Half as many stages are twice as many replicas, and the file says how many: the error of half a remedy."""
    remedies = points(*SLOW)["pipeline bubble"].remedies
    (fewer,) = [remedy for remedy in remedies if "parallel.pp" in remedy.values]
    assert fewer.values == {"parallel.pp": 2, "parallel.dp": 4}
    with pytest.raises(simcluster.InputError, match="set dp to 4"):
        simcluster.scenario(SLOW[0], [*SLOW[1:], "parallel.pp=2"])


def test_a_mixture_whose_experts_are_all_on_every_rank_is_warned_of() -> None:
    moe = '{"experts": 64, "top_k": 2, "expert_ffn_hidden_size": 256}'
    base = ("tiny_3d", "model.gated_mlp=true", f"model.moe={moe}", "faults=null")
    point = points(*base)["expert parallelism"]
    assert (point.verdict, point.found) == ("warn", "ep 1: 64 of 64 experts per rank")
    assert point.remedy is not None
    assert point.remedy.values["parallel.ep"] > 1
    assert point.remedy.step_time < point.remedy.before
    assert points(*base, *format_changes(point.remedy.values))["expert parallelism"].verdict == "pass"


def test_a_remedy_says_what_its_point_says_then() -> None:
    overrides = ["parallel.zero=2"]
    base = simulate(simcluster.scenario("tiny_3d", overrides))
    for check in CHECKS:
        point = check(base)
        remedies = points("tiny_3d", *overrides)[point.name].remedies
        times = [remedy.step_time for remedy in remedies]
        for remedy in remedies:
            again = check(simulate(simcluster.scenario("tiny_3d", [*overrides, *format_changes(remedy.values)])))
            assert remedy.point_result == (again.verdict, again.found)
            assert remedy.before == base.step_time
        if remedies and point.must_shorten_step:
            assert times == sorted(times)
            assert times[0] < base.step_time


def test_gradients_reduced_in_every_microbatch_are_named_and_ended() -> None:
    """175B, TP 8, PP 4, DP 8, ZeRO-2, 32 microbatches: ZeRO-1 takes 29 % off the step, one reduction a step 27 %."""
    document: dict[str, Any] = {
        "cluster": {"topology": "dgx_a100", "nodes": 32},
        "gpus": 256,
        "model": {"preset": "gpt3-175b"},
        "parallel": {"tp": 8, "pp": 4, "zero": 2, "sequence_parallel": True},
        "training": {"global_batch": 256, "memory_recipe": "bf16-12"},
        "overlap": {"grad_reduce": True},
    }
    base = simulate(simcluster.scenario("tiny_3d", {"faults": None, **document}))
    assert base.step_time == pytest.approx(19.15, abs=5e-3)
    assert base.times.bubble_fraction == pytest.approx(0.093, abs=5e-4)
    assert base.to_dict()["schedule_bubble_fraction"] == pytest.approx(3 / 35)  # 8.6 %
    found = {point.name: point for point in (check(base) for check in CHECKS)}
    assert "gradients are reduced in each of 32 microbatches" in found["ZeRO under the pipeline"].found
    assert found["pipeline bubble"].verdict == "pass"
    first = list_exposure_remedies(base)[:6]
    tried = ({"parallel.zero": 1}, 13.58, -0.291), ({"fsdp.sync_every_microbatch": False}, 14.04, -0.267)
    for values, seconds, gain in tried:
        assert values in first
        changed = try_changes(base.scenario, values)
        assert changed is not None
        step = simulate(changed).step_time
        assert step == pytest.approx(seconds, abs=5e-3)
        assert step / base.step_time - 1 == pytest.approx(gain, abs=0.0015)


def test_a_rules_fix_that_is_slower_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """tp over two machines and so few sequences that stages would mostly wait: more stages keep the rule, and cost."""
    overrides = ["parallel.tp=4", "parallel.pp=1", "training.global_batch=2"]
    found = points("tiny_3d", *overrides)["tp inside the NVLink domain"]
    assert found.verdict == "fail"
    slower = [each for each in found.remedies if each.change > 0]
    assert slower
    assert all(each.point_result is not None and each.point_result[0] == "pass" for each in slower)
    assert main(["check", "tiny_3d", *(f"--set={text}" for text in overrides)]) == 0
    assert f"({slower[0].change:+.1%}: it meets the rule, but is slower)" in capsys.readouterr().out


def test_a_remedy_that_does_not_fit_is_not_offered() -> None:
    """One stage is the shortest step and holds twice the model."""
    free = points("tiny_3d")["pipeline bubble"].remedy
    assert free is not None
    assert free.values["parallel.pp"] == 1
    capacity = simulate(simcluster.scenario("tiny_3d")).facts.memory
    small = (free.memory - 1) / capacity
    for point in points("tiny_3d", f"cluster.scale.memory={small}").values():
        assert all(remedy.memory <= small * capacity for remedy in point.remedies)
        assert all(remedy.values != free.values for remedy in point.remedies)


def test_a_gpu_that_is_nearly_full_has_remedies_too(capsys: pytest.CaptureFixture[str]) -> None:
    """One that fits and is tight is a warning; so is a remedy for another point that stays tight."""
    base = simulate(simcluster.scenario("tiny_3d"))
    scale = f"cluster.scale.memory={base.memory.total / base.facts.memory / 0.93}"
    full = points("tiny_3d", scale)["memory headroom"]
    assert full.verdict == "warn"
    assert full.remedy is not None
    assert full.remedy.point_result is not None
    assert full.remedy.point_result[0] == "pass"
    assert main(["check", "tiny_3d", "--set", scale]) == 0
    assert ", tight: 0.5 of 0.5 GB" in capsys.readouterr().out


def test_changes_that_help_each_other_are_put_together() -> None:
    """The best remedy and what makes its step shorter still: shorter than each alone."""
    result = simulate(simcluster.scenario("tiny_3d"))
    found = make_checklist(result)
    times = [remedy.step_time for remedy in found.fastest]
    assert times == sorted(times)
    assert times[0] < min(each.step_time for point in found.points for each in point.remedies)
    for remedy in found.fastest:
        changed = try_changes(result.scenario, remedy.values)
        assert changed is not None
        assert simulate(changed).step_time == remedy.step_time


def test_options_are_quoted_for_a_shell() -> None:
    remedy = Remedy({"parallel.order": ("tp", "dp"), "training.micro_batch": 2}, 1.0, 2.0, 0.0)
    assert remedy.shell_options() == "--set 'parallel.order=[tp, dp]' --set training.micro_batch=2"
    assert shlex.split(remedy.shell_options()) == [
        "--set",
        "parallel.order=[tp, dp]",
        "--set",
        "training.micro_batch=2",
    ]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny_3d"]) == 0
    out = capsys.readouterr().out
    assert "FAIL  exposed communication" in out
    assert "fix, as simulated: --set" in out
    assert main(["check", "tiny_3d", "--strict", "--json", "-"]) == 2
    streams = capsys.readouterr()
    assert "not ready to launch" in streams.err
    listed = json.loads(streams.out)
    assert listed["verdict"] == "fail"
    assert listed["points"][0]["name"] == "divisibility"
    remedy = next(point["remedy"] for point in listed["points"] if point["remedy"])
    assert set(remedy) == {"set", "step_time_s", "change", "peak_memory_bytes", "then"}
    assert set(remedy["then"]) == {"verdict", "found"}
    assert listed["fastest"][0]["step_time_s"] < listed["step_time_s"]


def test_a_scenario_that_cannot_be_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tiny_3d", "--parallel.tp", "3"]) == 2
    assert "parallel" in capsys.readouterr().err
