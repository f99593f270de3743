"""Every kind of work is asked, not looked up: what ``WORKS`` names is played alike by all, or refused by its name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from conftest import tiny_scenario

from simcluster.base.errors import InputError
from simcluster.engine.stage_sweep import BatchStepTimer
from simcluster.planning import work_kinds
from simcluster.planning.ops import MAIN, Op, OpWork, Segment, StageProgram, WorkItem
from simcluster.planning.work_kinds import WORKS, FixedCollective
from simcluster.reference.communication import JobCommunication
from simcluster.reference.dependency_graph import build_dependency_graph
from simcluster.reference.step_simulation import ReferenceSimulation
from simcluster.results.simulated_run import Run
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import plan_step
from simcluster.studies.search.pass_times import least_segment_seconds
from simcluster.studies.sweep.quick_steps import require_proved_ops

every_kind = pytest.mark.parametrize("work", WORKS.values(), ids=lambda work: type(work).__name__)
lanes = pytest.mark.parametrize("lane", [MAIN, "beside"])
RANKS = range(4)


@cache
def job(*, steps: bool = False, disturbed: bool = False) -> Scenario:
    sections: dict[str, Any] = {"collectives": {"detail": "steps"}} if steps else {}
    if disturbed:
        sections = {
            "overlap": {"interference": {"kind": "factor", "compute": 0.2, "communication": 0.1}},
            "faults": [{"kind": "slow_gpu", "rank": 1, "factor": 1.3}],
        }
    return tiny_scenario(
        gpus=4, cluster={"topology": "dgx_h100", "nodes": 2, "gpus_per_node": 2}, parallel={"pp": 2, "dp": 2},
        model={"layers": 2}, training={"global_batch": 2}, **sections,
    )  # fmt: skip


def stream(work: OpWork) -> str:
    group = work.group(0)
    if isinstance(group, tuple):
        return group[1] if group[0] == "copy" else "pp"
    return group or ("host" if work.sensitivity is None else "compute")


def with_work(programs: Sequence[StageProgram], work: OpWork, lane: str) -> list[StageProgram]:
    """Programs that do it at the end of their main lanes, or on a lane of its own from the beginning.

    What goes from stage 0 to stage 1 is done with all that goes the same way.
    """
    pair = [each for each in WORKS.values() if each.group(int(each.joins)) == ("send", 0, 1)]
    found = []
    for program in programs:
        doing = [work]
        if stream(work) == "pp":
            doing = [each for each in pair if each.joins == (program.stage == 1)]
        own = {name: list(items) for name, items in program.lanes.items()}
        for each in doing:
            op = Op(each, stream(each), "mine", "mine", lane=lane)
            key = ("receive", "mine") if each.joins else "mine"
            own.setdefault(lane, []).append(WorkItem(Segment((op,)), key))
        found.append(StageProgram(program.stage, own))
    return found


def spans(run: Run, rank: int) -> dict[str, Any]:
    return run.timeline_of(rank)[list(COLUMNS)].to_dict("list")  # type: ignore[no-any-return]


def is_played_alike(work: OpWork, lane: str, scenario: Scenario) -> None:
    """The reference does it, and so do other engines, folded or not; it takes its time."""
    change = partial(with_work, work=work, lane=lane)
    plain = simulate_scenario(scenario.model_copy(update={"engine": "reference"}), change=change)
    mine = [seconds for rank in RANKS for seconds in durations(plain, rank)]
    assert mine
    assert all(each >= max(work.seconds, 1e-9) * (1 - 1e-9) for each in mine)
    for fewer in (True,) if scenario.collectives.detail == "steps" else (True, False):
        fast = simulate_scenario(scenario, change=change, folded=fewer)
        assert fast.step_time == plain.step_time
        assert [spans(fast, rank) for rank in (1, 2)] == [spans(plain, rank) for rank in (1, 2)]
    if lane == MAIN:
        assert plain.step_time > without(scenario)


@cache
def without(scenario: Scenario) -> float:
    return simulate_scenario(scenario).step_time


def durations(run: Run, rank: int) -> list[float]:
    table = run.timeline_of(rank)
    return (table.end - table.start)[table.name == "mine"].tolist()  # type: ignore[no-any-return]


@every_kind
@lanes
def test_the_reference_and_events_play_every_kind(work: OpWork, lane: str) -> None:
    is_played_alike(work, lane, job(disturbed=True))


@every_kind
def test_in_steps_every_kind_is_played_too(work: OpWork) -> None:
    is_played_alike(work, "beside", job(steps=True))


@every_kind
def test_simpy_on_folded_ranks_simulates_every_kind(work: OpWork) -> None:
    scenario, change = job(), partial(with_work, work=work, lane=MAIN)
    simpy = simulate_scenario(scenario.model_copy(update={"engine": "simpy"}), change=change)
    assert (
        simpy.step_time
        == simulate_scenario(scenario.model_copy(update={"engine": "reference"}), change=change).step_time
    )


def sweeps_alike(work: OpWork) -> None:
    """With the durations of the reference the sweep of replicas takes as long."""
    scenario = job()
    made = plan_step(scenario, partial(with_work, work=work, lane=MAIN))
    layout, cluster, choices = made.job.plan, scenario.cluster.built, made.collective_options
    sweep = BatchStepTimer(made.programs, layout)
    stages = layout.stage_of_every_rank()
    communication = JobCommunication(layout, cluster, choices.methods, choices.interference)
    nodes = build_dependency_graph({rank: made.programs[stages[rank]] for rank in RANKS}, communication.peer_rank)
    ReferenceSimulation(nodes, cluster, communication, [1.0] * len(RANKS), {}, {}, in_steps=False)
    of = {(node.rank, node.key): node.end - node.start for lane in nodes.values() for node in lane}

    def seconds(stage: int, number: int) -> Any:
        item, op = sweep.ops[stage][number]
        index = next(place for place, each in enumerate(item.segment.ops) if each is op)
        return np.array([[of[rank, (item.key, index)] for rank in sweep.stage_ranks[stage].tolist()]])

    last = max(node.end for lane in nodes.values() for node in lane)
    assert sweep(seconds, 1).tolist() == pytest.approx([last], rel=1e-12)


def refuses(work: OpWork, what: Any) -> bool:
    """Is it refused, by its name?"""
    try:
        what()
    except InputError as error:
        if type(work).__name__ not in str(error):
            raise
        return True
    return False


@every_kind
def test_the_sweep_of_replicas_plays_every_kind_or_refuses_it(work: OpWork) -> None:
    refuses(work, lambda: sweeps_alike(work))


@every_kind
def test_shortcuts_know_what_passes_are_made_of(work: OpWork) -> None:
    op = Op(work, stream(work), "mine", "mine")
    refused = refuses(work, lambda: require_proved_ops([op]))
    least: Any = {work: 1.0}
    assert refuses(work, lambda: least_segment_seconds(Segment((op,)), least, 1.0)) == refused


@every_kind
def test_changes_of_works_keep_what_they_do_not_change(work: OpWork) -> None:
    free = work.without_duration()
    assert work.joins or (free.seconds == 0.0 and free.traffic_kind == "" and free.group(0) == work.group(0))
    assert work.with_stage_offset(0) == work
    assert work.with_stage_offset(2).group(3 if work.joins else 2) in (work.group(0), ("send", 2, 3))
    assert work.with_slowdown(1.0) == work
    assert len({work, work.with_slowdown(1.0)}) == 1
    assert (work.seconds >= 0) == (work.group(0) is None or isinstance(work, FixedCollective))


def test_every_kind_of_this_package_is_named() -> None:
    there = {each for each in vars(work_kinds).values() if isinstance(each, type) and issubclass(each, OpWork)}
    assert there - {OpWork} == set(WORKS)
    assert all(type(example) is kind for kind, example in WORKS.items())
