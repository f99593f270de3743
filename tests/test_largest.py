"""The largest value that fits, and what a job's ranks hold by stage of ZeRO: against every value, and against runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.job_memory import job_memory, memory_by_category
from simcluster.studies.whatif.largest_value import largest_that_fits

SMALL = {"cluster.scale.memory": 0.008}  # 640 MB, so that few values fit


def in_memory(part: float) -> list[tuple[str, float]]:
    return [("cluster.scale.memory", part)]


@pytest.mark.parametrize(
    ("path", "values", "part"),
    [
        ("training.micro_batch", range(1, 5), 0.0077),  # legal: 1, 2, 4
        ("model.layers", range(2, 9), 0.0067),  # pp 2 wants even ones
        ("model.layers", range(1, 3), 0.002),
        ("model.sequence_length", range(2031, 2036), 0.0077),  # tp 2 wants even ones
    ],
)
def test_it_is_the_largest_of_all(path: str, values: range, part: float) -> None:
    """Every value played: those that make a job, in order, fit up to the one that is found."""
    fits: dict[int, tuple[bool, float]] = {}
    for value in values:
        try:
            played = simulate(load("tiny_3d", [*in_memory(part), (path, value)]))
        except InputError:
            continue
        fits[value] = played.fits, played.memory.total
    found = largest_that_fits("tiny_3d", path, in_memory(part))
    good = [value for value, (verdict, _) in fits.items() if verdict]
    assert sorted(fits) == sorted(good) + [value for value in fits if value not in good]  # fitting ones come first
    assert found.value == (max(good) if good else None)
    assert found.memory == (fits[found.value][1] if found.value else None)
    above = [value for value in fits if value not in good]
    if above:
        assert found.next_value == min(above)
        assert found.next_memory == fits[min(above)][1]
        assert found.next_memory > found.capacity >= (found.memory or 0.0)
    assert all(value not in fits and (found.value or 0) < value for value in found.skipped)


def test_gpt3_on_64_a100() -> None:
    """Micro batch 2, as nothing is left for 4; 3 does not divide the batch; 120 layers, 24 being a multiple of all."""
    found = simcluster.largest_that_fits("gpt3_175b_64xa100", "training.micro_batch")
    assert (found.own, found.value, found.next_value, list(found.skipped)) == (1, 2, 4, [3])
    assert found.skipped[3].startswith("training.global_batch: 64 is not a multiple of dp 1 x micro_batch 3")
    assert found.scenario is not None
    assert found.scenario.training.micro_batch == 2
    text = found.summary()
    assert text.startswith("largest training.micro_batch that fits: 2   (77.82 of 80.0 GB on the fullest GPU;")
    assert "4 needs 104.83 GB" in text


@pytest.mark.parametrize(("batch", "own", "value", "after"), [(5120, 4, 320, 640), (136, 2, 34, None)])
def test_divisors_that_are_far_apart(batch: int, own: int, value: int, after: int | None) -> None:
    """Micro batches must divide 1,280, which 512 does not, and 34, of which 17 is the next behind 2."""
    changes = [("training.global_batch", batch), ("training.micro_batch", own)]
    found = largest_that_fits("tiny_dp", "training.micro_batch", changes)
    assert (found.value, found.next_value) == (value, after)


def test_a_scenario_a_mapping_and_a_name_are_one() -> None:
    scenario = load("tiny_3d", SMALL)
    found = largest_that_fits(scenario, "training.micro_batch").to_dict()
    assert found == largest_that_fits(scenario.document(), "training.micro_batch").to_dict()
    assert found == largest_that_fits("tiny_3d", "training.micro_batch", list(SMALL.items())).to_dict()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("training.micro_batches", "training.micro_batches is not a scenario key"),
        ("training.precision", "is 'bf16-mixed' in this scenario, but only whole numbers"),
        ("training.global_batch", "does not change the memory"),
    ],
)
def test_what_has_no_largest_value(path: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        largest_that_fits("tiny_dp", path)


def test_where_more_is_less() -> None:
    with pytest.raises(InputError, match=r"pipeline\.chunks: memory does not grow with it"):
        largest_that_fits("gpt3_175b_64xa100", "pipeline.chunks")


# --- what a job holds -------------------------------------------------------------------------------------------------


def test_each_stage_and_each_zero_is_what_runs_hold() -> None:
    """The own rung is the run's; other rungs shard what they say; parts sum to the total."""
    scenario = load("tiny_3d")
    memory, result = job_memory(scenario), simulate(scenario)
    assert max(memory.stages, key=lambda held: held.total) == result.memory
    for held in memory.stages:
        assert sum(memory_by_category(held).values()) == pytest.approx(held.total, rel=1e-12)
    none, one, two, three = (rung.footprint for rung in memory.rungs)
    assert none is not None
    assert one is not None
    assert two is not None
    assert three is not None
    assert [rung.own for rung in memory.rungs] == [False, True, False, False]
    assert one == result.memory
    assert memory.rungs[1].step_time == result.step_time
    assert one.optimizer == pytest.approx(none.optimizer / 2)  # over dp 2
    assert (two.optimizer, two.parameters) == (one.optimizer, one.parameters)
    assert one.total < none.total
    assert three.total < none.total  # here two layers of two are whole for their use
    assert two.gradients > one.gradients  # what is summed is whole besides: two layers are less than a bucket


def test_one_replica_has_no_rungs() -> None:
    assert job_memory(load("tiny_3d", {"gpus": 4, "parallel.dp": 1, "parallel.zero": 0})).rungs == ()


def test_the_command_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", "tiny_3d", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes_per_parameter"]["recipe"] == "mixed-18"
    assert [rung["zero"] for rung in document["zero"]] == [0, 1, 2, 3]
    assert len(document["stages"]) == 2
    assert cli.main(["memory", "tiny_3d", "--parallel.zero", "0"]) == 0
    text = capsys.readouterr().out
    assert "18 B per parameter (weights 2, gradients 4, optimizer 12: mixed-18, by default)" in text
    assert "0 (yours)" in text
    assert "ZeRO 2 holds more gradients than ZeRO 1 here" in text


def test_the_command_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", "--parameters", "13B", "--recipe", "bf16-12", "--dp", "8", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rung["bytes"] for rung in document["zero"]] == [156e9, 65e9, 42.25e9, 19.5e9]
    assert cli.main(["memory", "--parameters", "13B", "--recipe", "bf16-12"]) == 0
    text = capsys.readouterr().out
    assert "12 B per parameter (weights 2, gradients 2, optimizer 8: bf16-12)" in text
    assert "3.69x" in text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "memory needs either a scenario"),
        (["tiny_dp", "--parameters", "13B"], "memory needs either a scenario"),
        (["tiny_dp", "--dp", "8"], "change a scenario with --parallel.dp VALUE"),
        (["--parameters", "13B", "--largest", "model.layers"], "--largest and --set need a scenario"),
    ],
)
def test_one_thing_at_a_time(asked: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["memory", *asked]) == 2
    assert said in capsys.readouterr().err
