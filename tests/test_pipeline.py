"""The pipeline section of a scenario: schedules of every kind, uneven slices, two copies of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Table, Tiny, table_of, tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.scenario import from_document, load
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, Schedule, make_schedule, peak_in_flight, schedule_entry
from simcluster.schedules.specs import RowsSpec
from simcluster.schedules.torch_csv import to_csv
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.step.step_plan import plan_job

DGX = {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}
PIPE: dict[str, Any] = {"cluster": DGX, "gpus": 4, "parallel": {"pp": 4}, "training": {"global_batch": 8}}

SCENARIO = """\
name: mine
cluster: {topology: dgx_a100, nodes: 1}
gpus: 4
model: {layers: 8, hidden_size: 256, heads: 8, vocab_size: 1000, sequence_length: 128}
parallel: {pp: 4}
pipeline:
  schedule: SCHEDULE
training: {global_batch: 8}
"""


def pipe(tiny: Tiny, **sections: Any) -> Any:
    """A scenario of 4 stages and 8 microbatches with sections changed."""
    return tiny(**{**PIPE, "model": {"layers": 8}, **sections})


def counts(scenario: Any) -> tuple[int, ...]:
    """Layers of its slices."""
    return plan_job(scenario, scenario.cluster.device)[0].slices.counts


def order(scenario: Any) -> Schedule:
    """The schedule that its run plays."""
    return plan_job(scenario, scenario.cluster.device)[0].schedule


# --- schedules written out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8)])
def test_rows_are_the_schedule(name: str, stages: int, microbatches: int) -> None:
    schedule = make_schedule(name, stages, microbatches, 2 if SCHEDULES[name].takes_chunks else 1)
    document = json.loads(json.dumps(RowsSpec.from_schedule(schedule).model_dump(mode="json", exclude_none=True)))
    assert RowsSpec.model_validate(document).schedule_function()(stages, microbatches) == schedule


def test_rows_in_a_scenario_play_as_the_name_does(tiny: Tiny) -> None:
    rows = {"name": "rows", "rows": ["F0 F1 B0 B1", "F0 B0 F1 B1"]}
    two: dict[str, Any] = {"gpus": 2, "parallel": {"pp": 2}, "training": {"global_batch": 2}}
    written = pipe(tiny, **two, pipeline={"schedule": rows})
    assert simulate(written).step_time == simulate(pipe(tiny, **two, pipeline={"schedule": "1f1b"})).step_time
    assert from_document(json.loads(json.dumps(written.document()))) == written


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"name": "gpip"}, ["'gpip' is not a schedule"]),
        ({"name": "1f1b", "group_size": 4}, ["unknown key 'group_size'", "pairs"]),
        ({"name": "gpipe", "group_size": 4}, ["'gpipe' takes no parameters"]),
        ({"name": "interleaved", "group": 4}, ["unknown key 'group'", "group_size"]),
        ({"name": "zb-auto", "memory_limit": 0}, ["memory_limit", "1"]),
        ([1, 2], ["must be a schedule's name"]),
        ({"name": "rows", "rows": ["F0 X0", "F0 B0"]}, ["'X0' is not an action"]),
        ({"name": "rows", "rows": ["F0 B0"] * 2, "routes": ["0.0 1"]}, ["'1' is not a hop"]),
        ({"name": "rows", "rows": ["F0 B0"] * 3}, ["is for 3 stages and 1 microbatches", "the job has 2 and 2"]),
        ({"name": "rows", "rows": ["F0 F1 B0 B1", "F0 B0 B1 F1"]}, ["B1 comes before F1", "^^ <-- here"]),
    ],
)
def test_a_broken_schedule_is_refused(schedule: Any, words: list[str], tiny: Tiny) -> None:
    with pytest.raises(InputError) as caught:
        pipe(
            tiny,
            gpus=2,
            parallel={"pp": 2},
            training={"global_batch": 2},
            pipeline={"schedule": schedule},
        )
    message = str(caught.value)
    assert "pipeline.schedule" in message
    assert all(word in message for word in words), message


def test_groups_of_interleaving(tiny: Tiny) -> None:
    spec = {"name": "interleaved", "group_size": 8}
    wide = pipe(tiny, pipeline={"schedule": spec, "chunks": 2})
    assert schedule_of(wide) == make_schedule(wide.pipeline.schedule, 4, 8, 2)
    assert schedule_of(wide) != schedule_entry("interleaved")(4, 8, 2)
    assert from_document(wide.document()) == wide
    plain = pipe(tiny, pipeline={"schedule": {"name": "interleaved"}, "chunks": 2})
    assert plain.pipeline.schedule == "interleaved"


# --- schedules in files and in Python -------------------------------------------------------------------------------


def test_a_csv_file_beside_the_scenario(tmp_path: Path) -> None:
    schedule = schedule_entry("zb-h1")(4, 8)
    (tmp_path / "mine.csv").write_text(to_csv(schedule))
    (tmp_path / "run.yaml").write_text(SCENARIO.replace("SCHEDULE", "mine.csv"))
    scenario = load(tmp_path / "run.yaml")
    assert scenario.pipeline.schedule_name == "mine.csv"
    assert schedule_of(scenario).rows == schedule.rows
    assert from_document(scenario.document()) == scenario  # wherever that is read
    named = load(tmp_path / "run.yaml", {"pipeline.schedule": "zb-h1"})
    assert simulate(scenario).step_time == simulate(named).step_time


def test_a_function_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from simcluster.schedules import interleaved\n\n\n"
        "def twice(stages, microbatches, chunks):\n    return interleaved(stages, microbatches, 2)\n"
    )
    (tmp_path / "run.yaml").write_text(SCENARIO.replace("SCHEDULE", "mine.py:twice"))
    scenario = load(tmp_path / "run.yaml", allow_python=True)
    assert schedule_of(scenario) == schedule_entry("interleaved")(4, 8, 2)
    assert schedule_of(scenario.with_({"parallel.pp": 2, "gpus": 2})).num_stages == 2  # called anew
    assert from_document(scenario.document()) == scenario


def test_paths_of_overrides_are_relative_to_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.yaml").write_text(SCENARIO.replace("SCHEDULE", "1f1b"))
    (tmp_path / "mine.csv").write_text(to_csv(schedule_entry("gpipe")(4, 8)))
    monkeypatch.chdir(tmp_path)
    assert load("sub/run.yaml", ["pipeline.schedule=mine.csv"]).pipeline.schedule_name == "mine.csv"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere.csv", ["run.yaml:7:3: pipeline.schedule", "nowhere.csv: no such file"]),
        ("bad.csv", ["run.yaml:7:3: pipeline.schedule", "line 1, cell 2: '0X1' is not an action"]),
        ("late.csv", ["pipeline.schedule", "deadlocks", "<-- here"]),
        ("other.csv", ["pipeline.schedule", "is for 4 stages and 4 microbatches, but the job has 4 and 8"]),
        ("mine.py:nothing", ["pipeline.schedule", "has no function 'nothing'"]),
        ("mine.py:fails", ["pipeline.schedule", "mine.py:fails failed: ZeroDivisionError"]),
        ("mine.py:wrong", ["pipeline.schedule", "returned str; it must return a simcluster.schedules.Schedule"]),
        ("mine.py:broken", ["pipeline.schedule", "stage 0: F0 occurs twice", "<-- here"]),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, words: list[str], tmp_path: Path) -> None:
    good = to_csv(schedule_entry("gpipe")(4, 8)).splitlines()
    (tmp_path / "bad.csv").write_text("0F0,0X1\n" + "\n".join(good[1:]) + "\n")
    backward_first = [row.split(",") for row in good]
    backward_first[1] = ["1F0", "1B0", *[cell for cell in backward_first[1] if cell not in ("1F0", "1B0")]]
    (tmp_path / "late.csv").write_text("\n".join(",".join(row) for row in backward_first) + "\n")
    (tmp_path / "other.csv").write_text(to_csv(schedule_entry("gpipe")(4, 4)))
    (tmp_path / "mine.py").write_text(
        "import dataclasses\nfrom simcluster.schedules import gpipe\n"
        "def fails(*counts):\n    return 1 // 0\n"
        "def wrong(*counts):\n    return 'gpipe'\n"
        "def broken(*counts):\n"
        "    made = gpipe(*counts)\n"
        "    return dataclasses.replace(made, rows=(made.rows[0] + made.rows[0][:1], *made.rows[1:]))\n"
    )
    (tmp_path / "run.yaml").write_text(SCENARIO.replace("SCHEDULE", text))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "run.yaml", allow_python=True)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_schedule_from_python(tiny: Tiny) -> None:
    scenario = pipe(tiny)
    expected = simulate(pipe(tiny, pipeline={"schedule": "gpipe"})).step_time
    result = simcluster.simulate(scenario, schedule=schedule_entry("gpipe"))
    assert result.step_time == expected
    assert simcluster.simulate(scenario, schedule=schedule_entry("gpipe")(4, 8)).step_time == expected
    again = from_document(result.to_dict()["scenario"])  # the result says what was played
    assert simulate(again).step_time == expected
    with pytest.raises(InputError, match="is for 2 stages"):
        simulate(scenario, schedule=schedule_entry("gpipe")(2, 8))


# --- made for times -------------------------------------------------------------------------------------------------


def test_zb_auto_goes_by_the_times_of_the_run(tiny: Tiny) -> None:
    """A large vocabulary makes the last stage slow, which a schedule for equal stages does not know."""
    model = {"layers": 8, "vocab_size": 100_000}
    own = pipe(tiny, model=model, pipeline={"schedule": "zb-auto"})
    alike = {"name": "zb-auto", "forward": 1, "input": 1, "weight": 1}
    given_times = pipe(tiny, model=model, pipeline={"schedule": alike})
    assert order(own).rows != order(given_times).rows
    assert simulate(own).step_time <= simulate(given_times).step_time
    limited = pipe(tiny, model=model, pipeline={"schedule": {"name": "zb-auto", "memory_limit": 4}})
    assert max(peak_in_flight(order(limited))) <= 4


def test_zb_auto_says_what_it_holds_beyond_1f1b(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    """In a run's warnings unless its memory is limited, and with its schedule, as many as it holds."""
    own = simulate(pipe(tiny, pipeline={"schedule": "zb-auto"}))
    most, stages = max(peak_in_flight(own.job.schedule)), own.scenario.parallel.pp
    (warning,) = (text for text in own.to_dict()["warnings"] if "zb-auto" in text)
    assert most > stages
    assert f"up to {most} microbatches on a stage, {most / stages:.3g} x the {stages} of 1F1B" in warning
    limited = simulate(own.scenario.with_({"pipeline.schedule": {"name": "zb-auto", "memory_limit": stages}}))
    assert limited.memory.activations < own.memory.activations
    assert not [text for each in (limited, simulate(pipe(tiny))) for text in each.warnings() if "1F1B" in text]

    def noted(*more: str) -> tuple[str, list[str]]:
        args = ("schedule", "zb-auto", "--stages", "4", "--microbatches", "16", *more)
        assert main([*args, "--json", "-"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(list(args)) == 0
        text = capsys.readouterr().out
        assert all(note in text for note in document["notes"])
        return text, document["notes"]

    assert "holds activations of up to 7 microbatches on a stage, 1.75 x the 4 of 1F1B; --memory-limit 4" in noted()[0]
    assert len(noted("--memory-limit", "4")[1]) == 1


def test_zb_auto_of_a_scenario_makes_its_step_short(tiny: Tiny) -> None:
    """The optimizer waits for the gradient norm of all stages, so the makespan counts, unless another goal is asked."""
    model = {"layers": 8, "vocab_size": 1000}

    def made(**goal: str) -> Any:
        schedule = {"name": "zb-auto", "memory_limit": 5, **goal}
        return pipe(tiny, model=model, pipeline={"schedule": schedule, "layers_per_stage": [1, 3, 3, 1]})

    assert order(made()).rows == order(made(goal="step")).rows != order(made(goal="span")).rows
    assert simulate(made()).step_time <= simulate(made(goal="span")).step_time
    with pytest.raises(InputError, match=r"goal.*makespan"):
        made(goal="makespan")


# --- layers per stage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ({}, (2, 2, 2, 2)),
        ({"layers_per_stage": [1, 3, 3, 1]}, (1, 3, 3, 1)),
        ({"layers_per_stage": [0, 4, 4, 0]}, (0, 4, 4, 0)),
        ({"schedule": "interleaved", "chunks": 2}, (1,) * 8),
        ({"schedule": "interleaved", "chunks": 2, "layers_per_stage": [1, 3, 3, 1]}, (0, 2, 2, 1, 1, 1, 1, 0)),
        ({"schedule": "hanayo", "chunks": 1, "layers_per_stage": [0, 1, 1, 1, 1, 1, 1, 2]}, (0, 1, 1, 1, 1, 1, 1, 2)),
        ({"schedule": "zb-v", "layers_per_stage": [2, 3, 2, 1]}, None),
        ({"schedule": "dualpipe-v", "layers_per_stage": "auto"}, (1,) * 8),
    ],
)  # fmt: skip
def test_how_layers_are_cut(pipeline: dict[str, Any], expected: tuple[int, ...] | None, tiny: Tiny) -> None:
    if expected is None:
        with pytest.raises(InputError, match=r"pipeline\.layers_per_stage: slice 4 of 8 has no layer"):
            pipe(tiny, pipeline=pipeline)
        return
    scenario = pipe(tiny, pipeline=pipeline)
    assert counts(scenario) == expected
    assert from_document(scenario.document()) == scenario


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        ({"layers_per_stage": [4, 4]}, ["lists 2 numbers; there must be 4, one per stage"]),
        ({"layers_per_stage": [3, 3, 3, 3]}, ["adds up to 12 layers, but model.layers is 8"]),
        ({"layers_per_stage": [4, 0, 2, 2]}, ["slice 1 of 4 has no layer", "only the first"]),
        ({"schedule": "zb-h1", "layers_per_stage": [0, 4, 2, 2]}, ["zb-h1 splits the backward"]),
        ({"layers_per_stage": "some"}, ["must be even, auto or a list", "'some'"]),
        ({"layers_per_stage": [2, 2, 2, -2]}, ["must be even, auto or a list"]),
        (
            {"schedule": "interleaved", "chunks": 4, "layers_per_stage": "auto"},
            ["8 layers are fewer than the 16 slices"],
        ),
    ],
)
def test_a_cut_that_does_not_go_is_refused(pipeline: dict[str, Any], words: list[str], tiny: Tiny) -> None:
    with pytest.raises(InputError) as caught:
        pipe(tiny, pipeline=pipeline)
    assert all(word in str(caught.value) for word in ["pipeline.layers_per_stage", *words]), str(caught.value)


def test_the_offered_cut_works(tiny: Tiny) -> None:
    with pytest.raises(InputError, match=r"pp 4 does not divide model\.layers 9.*layers_per_stage: auto"):
        pipe(tiny, model={"layers": 9})
    assert sum(counts(pipe(tiny, model={"layers": 9}, pipeline={"layers_per_stage": "auto"}))) == 9


def test_auto_is_no_slower_than_even(tiny: Tiny) -> None:
    """With a large vocabulary the LM head takes as long as several layers."""
    model = {"layers": 24, "vocab_size": 50_000}
    even = pipe(tiny, model=model)
    auto = pipe(tiny, model=model, pipeline={"layers_per_stage": "auto"})
    assert counts(even) == (6, 6, 6, 6)
    assert counts(auto)[-1] < 6
    assert sorted(counts(auto)[:-1])[0] >= sorted(counts(auto)[:-1])[-1] - 1
    assert simulate(auto).step_time < simulate(even).step_time


def test_auto_knows_which_layers_recompute(tiny: Tiny) -> None:
    """Layers 0 and 7 of 14 recompute: 3, 4, 3, 4 layers take at most 12 thirds, where 4, 4, 3, 3 would take 13."""
    model = {"layers": 14, "vocab_size": 64, "hidden_size": 4096, "heads": 32}
    training = {"global_batch": 16, "recompute": "full", "recompute_every": 7}
    auto = pipe(tiny, model=model, training=training, pipeline={"layers_per_stage": "auto"})
    first, second, third, last = counts(auto)
    assert (first, second) == (3, 4)
    assert third + last == 7
    blind = auto.with_({"pipeline.layers_per_stage": [4, 4, 3, 3]})
    assert simulate(auto).step_time < simulate(blind).step_time


def test_parameters_go_with_the_layers(tiny: Tiny) -> None:
    """All stages together hold the model once, however it is cut."""
    scenarios = [pipe(tiny, pipeline={"layers_per_stage": cut}) for cut in ("even", [0, 4, 4, 0], [5, 1, 1, 1])]
    totals = []
    for scenario in scenarios:
        facts = plan_job(scenario, scenario.cluster.device)[1]
        totals.append(sum(footprint.parameters for footprint in facts.footprints))
        simulate(scenario)
    assert totals[0] == totals[1] == totals[2]


@given(st.data())
@settings(max_examples=10)
def test_any_cut_plays_and_folds(data: st.DataObject) -> None:
    pp = data.draw(st.sampled_from([2, 4]))
    cut = data.draw(st.lists(st.integers(1, 3), min_size=pp, max_size=pp))
    cut[0] -= data.draw(st.integers(0, 1))
    scenario = tiny_scenario(
        cluster=DGX,
        model={"layers": sum(cut)},
        parallel={"pp": pp, "zero": 1},
        training={"global_batch": 16},
        pipeline={"layers_per_stage": cut},
        overlap={"grad_reduce": True, "param_gather": True},
    )
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert all(table_of(folded, rank).equals(table_of(plain, rank)) for rank in range(scenario.gpus))


# --- two copies of the model ----------------------------------------------------------------------------------------

TWICE: dict[str, Any] = {"cluster": DGX, "parallel": {"pp": 4, "dp": 2}, "training": {"global_batch": 16}}


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("schedule", ["dualpipe", "chimera"])
def test_copies_fold_exactly(schedule: str, overlap: bool, zero: int, tiny: Tiny, table: Table) -> None:
    scenario = tiny(
        **{**TWICE, "parallel": {**TWICE["parallel"], "zero": zero}},
        model={"layers": 8, "tied_embeddings": True},
        pipeline={"schedule": schedule},
        overlap={"grad_reduce": overlap, "param_gather": overlap and zero > 0, "bucket_size": "1 MB"},
        steps=2,
    )
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(plain.weights)
    for rank in range(8):
        assert table(folded, rank).equals(table(plain, rank))


def test_gradients_of_copies_are_summed_over_both_stages(tiny: Tiny) -> None:
    scenario = tiny(**TWICE, model={"layers": 8}, pipeline={"schedule": "dualpipe"})
    job, facts = plan_job(scenario, scenario.cluster.device)
    assert job.plan.copies == ((0, 3), (1, 2))
    assert job.replicas == 4
    assert [sorted(group) for group in job.plan.groups("dp").tolist()] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    once = tiny(**TWICE, model={"layers": 8}, pipeline={"schedule": "1f1b"})
    single, alone = plan_job(once, once.cluster.device)
    assert sum(each.parameters for each in facts.footprints) == 2 * sum(each.parameters for each in alone.footprints)
    sums: dict[str, float] = {}
    for name, made in (("twice", job), ("once", single)):
        for program in build_stage_programs(made):
            for lane in program.lanes.values():
                for item in lane:
                    for op in item.segment.ops:
                        if op.name == "gradients" and isinstance(op.work, Collective):
                            sums[name] = sums.get(name, 0.0) + op.work.size
    assert sums["twice"] == 2 * sums["once"]


@pytest.mark.parametrize("overlap", [False, True])
def test_copies_sum_the_same_parts_in_the_same_order(overlap: bool, tiny: Tiny) -> None:
    """Members of a group run its collectives in one order, each of one size: what a part is called is its slice."""
    scenario = tiny(
        **{**TWICE, "parallel": {**TWICE["parallel"], "zero": 1}},
        model={"layers": 8},
        pipeline={"schedule": "dualpipe"},
        overlap={"grad_reduce": overlap, "param_gather": overlap, "bucket_size": "1 MB"},
    )
    job, _ = plan_job(scenario, scenario.cluster.device)
    travels = [
        [
            (item.key, op.work.kind, op.work.size)
            for lane in ("main", "dp")
            for item in program.lanes.get(lane, [])
            for op in item.segment.ops
            if isinstance(op.work, Collective) and op.work.axis == "dp"
        ]
        for program in build_stage_programs(job)
    ]
    assert len({size for _, _, size in travels[0]}) > 1
    assert travels[0] == travels[3]
    assert travels[1] == travels[2]
    assert travels[0] != travels[1]


def test_copies_with_what_they_cannot_have(tiny: Tiny) -> None:
    apart = {
        "name": "rows",
        "rows": ["F0.0 F1.1 B0.0 B1.1", "F0.0 F1.1 B0.0 B1.1", "F0.0 F1.1 B0.0 B1.1"],
        "routes": ["0.0 1.0 2.0", "1.1 2.1 0.1"],
        "route_of": [0, 1],
    }
    with pytest.raises(InputError, match=r"slices of stage 0 have copies on different stages, \(0, 1\) and \(0, 2\)"):
        tiny(cluster=DGX, gpus=3, model={"layers": 3}, parallel={"pp": 3}, training={"global_batch": 2},
             pipeline={"schedule": apart})  # fmt: skip
