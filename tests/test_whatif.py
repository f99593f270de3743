"""What the step would take if a kind of op cost nothing: against the same step with those costs given as zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import documents

import simcluster
from simcluster.engine.tabulate import JobTables, tabulate_job
from simcluster.planning.ops import StageProgram
from simcluster.results.simulated_run import Run
from simcluster.schedules import Schedule, schedule_entry
from simcluster.show.explanation import explain_run
from simcluster.show.output_blocks import render_as_text
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.bench import fixed_durations as fixed
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs
from simcluster.studies.whatif.free_ops import (
    FreeOpsResult,
    list_free_kinds,
    make_kind_free,
    path_seconds_by_kind,
    what_if_free,
)

COSTS = Costs(
    forward=1.0, backward=2.5, tensor_parallel=0.25, weight_grad=1.0, send=0.125, grad_reduce=3.0, optimizer=0.5
)
ZEROED: dict[str, dict[str, float]] = {
    "forward": {"forward": 0.0},
    "backward": {"backward": 0.0, "weight_grad": 0.0},
    "input_grad": {"backward": 1.0},
    "optimizer": {"optimizer": 0.0},
    "tp": {"tensor_parallel": 0.0},
    "tp all_reduce": {"tensor_parallel": 0.0},
    "pp send": {"send": 0.0},
    "dp": {"grad_reduce": 0.0},
    "communication": {"tensor_parallel": 0.0, "send": 0.0, "grad_reduce": 0.0},
}


def free_costs(costs: Costs, kind: str, **shape: Any) -> Run:
    """simulate_costs with a kind of op free."""

    def without(programs: Sequence[StageProgram], *arguments: Any, **choices: Any) -> JobTables:
        return tabulate_job(make_kind_free(programs, kind), *arguments, **choices)

    with mock.patch.object(fixed, "tabulate_job", without):
        return simulate_costs(costs, **shape)


def made_once(schedule: str, chunks: int) -> Schedule:
    """The same order of actions whatever the costs."""
    return schedule_entry(schedule)(4, 8, chunks)


@pytest.mark.parametrize(
    ("kind", "schedule", "chunks"),
    [
        (kind, schedule, chunks)
        for schedule, chunks in [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("gpipe", 1)]
        for kind in ZEROED
        if kind != "input_grad" or schedule == "zb-h1"  # the others have no I
    ],
)
def test_free_is_a_cost_of_zero(kind: str, schedule: str, chunks: int) -> None:
    shape: dict[str, Any] = {"stages": 4, "microbatches": 8, "schedule": made_once(schedule, chunks), "chunks": chunks}
    shape |= {"tp": 2, "dp": 2}
    found = free_costs(COSTS, kind, **shape)
    assert found.step_time == simulate_costs(replace(COSTS, **ZEROED[kind]), **shape).step_time
    assert found.step_time < simulate_costs(COSTS, **shape).step_time


@pytest.mark.parametrize(("P", "M"), [(4, 8), (3, 7), (2, 1)])
def test_free_sends_of_1f1b(P: int, M: int) -> None:
    """MODELLING.md E.1: they cost 2c[(P - 1) + (M - 1) - ceil((M - 1) / P)], which the path shows and freeing gives."""
    c = 0.125
    costs = Costs(forward=1.0, backward=2.5, send=c)
    run = simulate_costs(costs, stages=P, microbatches=M)
    saved = run.step_time - free_costs(costs, "pp", stages=P, microbatches=M).step_time
    assert saved == 2 * c * ((P - 1) + (M - 1) - math.ceil((M - 1) / P)) == path_seconds_by_kind(run)["pp"]


@settings(max_examples=12)
@given(document=documents(), data=st.data())
def test_a_free_kind_takes_no_time(tiny: Tiny, document: dict[str, Any], data: st.DataObject) -> None:
    """Its entries of the breakdown are zero, and it is gone from the path; the rest of the compute is as it was."""
    result = simulate(tiny(**document))
    kind = data.draw(st.sampled_from([name for name in list_free_kinds(result) if " " not in name]))
    found = simulate_scenario(result.scenario, change=lambda programs: make_kind_free(programs, kind))
    breakdown, before = found.times.breakdown, result.times.breakdown
    if kind == "communication":
        assert found.times.communication == 0
    elif kind in ("forward", "backward", "recompute", "optimizer"):
        assert breakdown[kind] == 0
    else:
        assert breakdown[f"exposed_{kind}"] == 0
    for entry in ("forward", "backward", "recompute", "optimizer"):
        if entry != kind:
            assert breakdown[entry] == pytest.approx(before[entry], rel=1e-9, abs=1e-15)
    assert path_seconds_by_kind(found).get(kind, 0.0) == 0
    plain = simulate_scenario(result.scenario, folded=False, change=lambda programs: make_kind_free(programs, kind))
    assert found.step_time == plain.step_time


def test_the_path_gives_a_lower_bound_where_nothing_shares_links(tiny: Tiny) -> None:
    result = simulate(
        tiny(
            cluster={"topology": "dgx_a100", "nodes": 1},
            parallel={"tp": 2, "pp": 4, "sequence_parallel": True},
            training={"global_batch": 8, "recompute": "selective", "attention": "unfused"},
        )
    )
    found = {each.kind: each for each in what_if_free(result)}
    assert list(found) == ["forward", "backward", "recompute", "optimizer", "tp", "pp", "communication"]
    for each in found.values():
        assert each.estimate == result.step_time - each.on_path
        assert each.estimate - 1e-12 <= each.step_time <= result.step_time
    assert found["communication"].step_time <= min(found["tp"].step_time, found["pp"].step_time)
    assert found["forward"].step_time < result.step_time
    narrow = what_if_free(result, ["tp all_gather", "tp"])
    assert [each.kind for each in narrow] == ["tp all_gather", "tp"]
    assert narrow[1].step_time < narrow[0].step_time < result.step_time


def test_a_step_that_is_longer_without_a_cost_says_why(tiny: Tiny) -> None:
    result = simulate(tiny())
    why = "None of the changes slows anything down in isolation: dp ops take longer"
    said = render_as_text(
        explain_run(result, [FreeOpsResult("forward", 1.0, 2.0, 3.0, why), FreeOpsResult("backward", 1.0, 2.0, 3.0)])
    )
    assert f"without forward: {why}" in said
    assert "without backward" not in said
    for each in what_if_free(result):
        assert bool(each.note) == (each.step_time > result.step_time * (1 + 1e-9))


def test_an_unknown_kind_is_refused(tiny: Tiny) -> None:
    result = simulate(tiny())
    with pytest.raises(simcluster.InputError, match=r"no ops of kind 'tp'; its kinds of op are forward, backward"):
        simcluster.what_if_free(result, ["tp"])
