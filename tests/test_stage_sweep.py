"""The sweep of replicas beside the reference: the same step to the bit, whatever every op takes in every replica."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_scenario
from drawn.scenarios import documents
from drawn.scopes import SCOPES
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.base.loops import add_scaled_factors, latest_end_per_group
from simcluster.engine.stage_sweep import BatchStepTimer
from simcluster.faults.fast_streams import FastStreams
from simcluster.faults.random_factors import LognormalFactors, NormalFactors
from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Collective, Compute, FixedCollective, StageReceive, StageSend
from simcluster.reference.communication import JobCommunication
from simcluster.reference.dependency_graph import build_dependency_graph
from simcluster.reference.step_simulation import ReferenceSimulation
from simcluster.scenario.scenario import Scenario
from simcluster.step.step_plan import plan_job
from simcluster.traffic.collective_methods import MethodChooser

REPLICAS = 2
TICK = 2.0**-10


def certain(document: dict[str, Any]) -> dict[str, Any]:
    """A drawn scenario without faults: what chance makes of it is drawn here."""
    return {**document, "faults": [], "overlap": {**document["overlap"], "interference": "none"}}


class Drawn:
    """What ops take in each replica: of a communication the same for all its members, else each rank its own."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._known: dict[object, Any] = {}

    def of(self, stage: int, number: int, item: WorkItem, op: Op, ranks: int) -> Any:
        """Seconds [replica, rank of the stage or 1]."""
        alone = not isinstance(op.work, Collective | FixedCollective | StageSend | StageReceive)
        name: object = (stage, number)
        if isinstance(op.work, Collective | FixedCollective):
            name = op.work.axis, item.key, [each is op for each in item.segment.ops].index(True)
        if isinstance(op.work, StageSend | StageReceive):
            name = item.key if isinstance(op.work, StageSend) else item.key[1]  # type: ignore[index]
        if name not in self._known:
            self._known[name] = TICK * self._random.integers(0, 9, (REPLICAS, ranks if alone else 1))
        return self._known[name]


def ops_of(program: StageProgram) -> Iterator[tuple[WorkItem, Op]]:
    """In the order in which the sweep numbers them."""
    return ((item, op) for items in program.lanes.values() for item in items for op in item.segment.ops)


def fixed(program: StageProgram, seconds: list[float]) -> StageProgram:
    """The program of a rank whose ops take so long."""
    left = iter(seconds)

    def given_time(op: Op) -> Op:
        own, work = next(left), op.work
        if isinstance(work, Collective | FixedCollective):
            return replace(op, work=FixedCollective(work.axis, own))
        if isinstance(work, StageSend):
            return replace(op, work=replace(work, seconds=own))
        return op if isinstance(work, StageReceive) else replace(op, work=Compute(own))

    lanes = {
        name: [item._replace(segment=Segment(tuple(map(given_time, item.segment.ops)))) for item in items]
        for name, items in program.lanes.items()
    }
    return replace(program, lanes=lanes)


def by_reference(
    scenario: Scenario, programs: list[StageProgram], layout: ParallelPlan, seconds: list[Any]
) -> list[float]:
    """The step of each replica, played one by one."""
    cluster, found = scenario.cluster.built, []
    places = {int(rank): (stage, place) for stage, ranks in enumerate(layout.stage_ranks())
              for place, rank in enumerate(ranks)}  # fmt: skip
    for replica in range(REPLICAS):
        own = {}
        for rank in range(layout.num_ranks):
            stage, place = places[rank]
            mine = [each[replica, place % each.shape[1]] for each in seconds[stage]]
            own[rank] = fixed(programs[stage], mine)
        communication = JobCommunication(layout, cluster, MethodChooser({}), None)
        lanes = build_dependency_graph(own, communication.peer_rank)
        ReferenceSimulation(lanes, cluster, communication, [1.0] * layout.num_ranks, {}, {}, in_steps=False)
        found.append(max(node.end for nodes in lanes.values() for node in nodes))
    return found


@settings(max_examples=6)
@given(document=documents(SCOPES["replicas"]).map(certain), seed=st.integers(0, 2**32 - 1))
def test_the_sweep_is_the_reference_replica_by_replica(document: dict[str, Any], seed: int) -> None:
    scenario = tiny_scenario(**document)
    planned, _ = plan_job(scenario, scenario.cluster.device)
    programs, layout = build_stage_programs(planned), planned.plan
    sweep, drawn = BatchStepTimer(programs, layout), Drawn(seed)
    seconds = [
        [drawn.of(stage, number, *each, len(ranks)) for number, each in enumerate(ops_of(program))]
        for stage, (program, ranks) in enumerate(zip(programs, sweep.stage_ranks, strict=True))
    ]
    found = sweep(lambda stage, number: seconds[stage][number], REPLICAS)
    assert found.tolist() == by_reference(scenario, programs, layout, seconds)


def loop_digest() -> str:
    """Return a digest of the arrays that the loops return, compiled or in plain Python, for drawn arrays."""
    streams, digest = FastStreams(), hashlib.sha256()
    for count in (7, 1024):
        for law in (LognormalFactors(kind="lognormal", sigma=0.3), NormalFactors(kind="normal", sigma=0.7)):
            digest.update(law.draw(streams(3, count), count).tobytes())
            digest.update(streams(4, count).gumbel(size=count).tobytes())
    few, many = (np.random.default_rng(5).random((3, places)) for places in (4, 64))
    latest = latest_end_per_group(many, 4), latest_end_per_group(many, 1)
    for found in (*latest, add_scaled_factors(few, 0.3, many), add_scaled_factors(many, 0.3, many)):
        digest.update(found.tobytes())
    return digest.hexdigest()


def test_plain_python_has_the_same_bits() -> None:
    code = "import uncompiled, test_stage_sweep as t; print(t.loop_digest())"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'tests'}{os.pathsep}{root}"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    found = subprocess.run(command, env=environment, text=True, check=True, capture_output=True).stdout
    assert found == f"{loop_digest()}\n"


def test_a_sweep_says_that_ops_wait_for_each_other() -> None:
    """Before anything is played."""
    planned, _ = plan_job(tiny_scenario(), tiny_scenario().cluster.device)
    programs = build_stage_programs(planned)
    first, *_, last = lane = programs[0].lanes[MAIN]
    lane[0] = first._replace(needs=(Dependency(0, last.key),))
    with pytest.raises(InputError, match="ops wait for each other"):
        BatchStepTimer(programs, planned.plan)
