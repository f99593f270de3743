"""The compiled engine: what one can compute by hand, and the network of the reference."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy

from simcluster.base.clock import (
    AlternatingProfile,
    ClockRangeError,
    Profile,
    WindowProfile,
    round_to_tick,
    simulate_on_exact_grid,
)
from simcluster.base.errors import DeadlockError, InputError
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import EngineRun, simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.reference.fluid_network import FluidNetwork, FluidTransfer, run_events
from simcluster.step.simulate import simulate
from simcluster.traffic.traffic import Traffic

CAPACITY = [16.0, 8.0]
"""B/s: powers of two, so that seconds lie on the grid."""


def run(program: ExplicitProgram, capacity: list[float] = CAPACITY, **varying: Any) -> EngineRun:
    return simulate_tables(program.make_tables(capacity, **varying), "op {}".format, keeps_times=True)


def ends(program: ExplicitProgram, **varying: Any) -> list[float]:
    times = run(program, **varying).times
    assert times is not None
    return times.end.tolist()


def moves(
    size: float, *links: int, flows: float = 1.0, rounds: int = 1, latency: float = 0.0, bound: float = math.inf
) -> Traffic:
    return Traffic(tuple((link, flows) for link in links), size, rounds, latency, bound)


def transfers(*traffics: Traffic, begin: float = 0.0) -> ExplicitProgram:
    """Transfers on lanes of their own, op after op: a wait and a transfer each; the first waits for nothing."""
    program = ExplicitProgram()
    for rank, traffic in enumerate(traffics):
        lane = program.add_lane(rank)
        program.add_op(lane, begin if rank else 0.0)
        program.meetings.append(CommunicationKind(1, [traffic]))
        program.add_op(lane, rendezvous=rank)
    return program


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_ops_of_a_lane_follow_each_other_and_wait_for_others() -> None:
    program = ExplicitProgram()
    first, second = program.add_lane(0), program.add_lane(1)
    a = program.add_op(first, 2.0)
    b = program.add_op(first, 1.0)
    program.add_op(second, 0.5, after=[b, a])
    program.add_op(second, 0.25)
    found = run(program)
    assert found.times is not None
    assert found.times.ready.tolist() == [0.0, 2.0, 3.0, 3.5]
    assert found.times.end.tolist() == [2.0, 3.0, 3.5, 3.75]
    assert found.times.last_arrival.tolist() == [0, 1, 2, 3]
    assert found.lane_end.tolist() == [3.0, 3.75]


def test_a_meeting_begins_at_the_last_arrival_and_ends_for_all() -> None:
    program = ExplicitProgram(meetings=[CommunicationKind(3, [moves(0.0, latency=1.0)])])
    ops = []
    for rank, begin in enumerate([1.0, 4.0, 4.0]):
        lane = program.add_lane(rank)
        program.add_op(lane, begin)
        ops.append(program.add_op(lane, rendezvous=0))
    times = run(program).times
    assert times is not None
    assert times.ready[ops].tolist() == [1.0, 4.0, 4.0]
    assert times.start[ops].tolist() == [4.0] * 3
    assert times.end[ops].tolist() == [5.0] * 3
    assert times.last_arrival[ops].tolist() == [ops[1]] * 3  # of those who come last the lowest rank


def test_a_deadlock_says_what_every_lane_waits_for() -> None:
    program = ExplicitProgram(meetings=[CommunicationKind(2, [moves(0.0)]), CommunicationKind(2, [moves(0.0)])])
    for rank in range(2):
        lane = program.add_lane(rank)
        program.add_op(lane, rendezvous=rank)
        program.add_op(lane, rendezvous=1 - rank)
    lane = program.add_lane(2)
    program.add_op(lane, 1.0, after=[3])
    with pytest.raises(DeadlockError) as problem:
        run(program)
    assert str(problem.value) == (
        "deadlock: 3 lanes (op queues) wait for each other for ever\n"
        "  op 0 waits for the other members of its group (1 of 2 have arrived)\n"
        "  op 2 waits for the other members of its group (1 of 2 have arrived)\n"
        "  op 4 waits for op 3\n"
        "  Every send needs a receive, and all members of a group must run its collectives in the same order."
    )


def test_what_leaves_one_grid_goes_to_the_next_and_what_never_ends_is_refused() -> None:
    program = ExplicitProgram()
    program.add_op(program.add_lane(0), 600.0 + 2.0**-44)
    assert simulate_on_exact_grid(lambda: ends(program)) == [600.0]
    program.seconds = [math.inf]
    with pytest.raises(InputError, match="the most that can be simulated"):
        simulate_on_exact_grid(lambda: ends(program))


# --- links ------------------------------------------------------------------------------------------------------------


def test_two_transfers_share_a_link_while_both_move() -> None:
    # 32 B at 16 B/s for 1 s, both at 8 B/s: the first has 16 B left, 2 s; the second moves 16 of its 32 B, then 1 s
    assert ends(transfers(moves(32.0, 0), moves(32.0, 0), begin=1.0)) == [0.0, 3.0, 1.0, 4.0]


def test_latency_occupies_nothing_and_is_paid_in_every_round() -> None:
    assert ends(transfers(moves(32.0, 0), moves(16.0, 0, rounds=2, latency=1.0))) == [0.0, 2.0, 0.0, 4.0]


def test_a_slower_link_a_bound_and_more_flows_hold_back() -> None:
    assert ends(transfers(moves(32.0, 0, 1)))[1] == 4.0
    assert ends(transfers(moves(32.0, 0, bound=4.0)))[1] == 8.0
    assert ends(transfers(moves(32.0, 0, flows=4.0)))[1] == 8.0
    assert ends(transfers(moves(32.0, 0), moves(8.0, 0, bound=4.0)))[1] == 2.0 + 0.5  # 12 B/s for 2 s, 16 for 0.5 s


def test_activities_of_a_communication_follow_each_other() -> None:
    program = ExplicitProgram(
        meetings=[CommunicationKind(1, [moves(16.0, 0), moves(0.0, latency=1.0), moves(16.0, 1)])]
    )
    program.add_op(program.add_lane(0), rendezvous=0)
    assert ends(program) == [4.0]


def test_a_link_that_varies_is_followed_over_endless_changes() -> None:
    half_the_time = AlternatingProfile(
        0.0, iter(lambda: 2.0**-6, None), first=True
    )  # 1/64 s without capacity, 1/64 with
    assert ends(transfers(moves(16.0, 0, rounds=400)), capacities={0: half_the_time})[1] == 800.0
    once = WindowProfile(0.5, 1.0, 3.0)
    assert ends(transfers(moves(64.0, 0)), capacities={0: once})[1] == 5.0


# --- ranks ------------------------------------------------------------------------------------------------------------


def beside(pressure: float, drag: float, sensitivity: float, *, begin: float = 0.0) -> ExplicitProgram:
    """A computation of 4 s, and a transfer of 2 s alone from ``begin`` on, on one rank."""
    program = ExplicitProgram(
        meetings=[CommunicationKind(1, [moves(32.0, 0)], ranks=[0], pressure=pressure, drag=drag)]
    )
    program.add_op(program.add_lane(0), 4.0, sensitivity=sensitivity)
    lane = program.add_lane(0)
    program.add_op(lane, begin)
    program.add_op(lane, rendezvous=0)
    return program


def test_communication_slows_computation_down_while_it_moves() -> None:
    assert ends(beside(0.5, 0.0, 1.0)) == [round_to_tick(2 + 4 - round_to_tick(2 / 1.5)), 0.0, 2.0]
    assert ends(beside(0.5, 0.0, 2.0, begin=1.0)) == [5.0, 1.0, 3.0]
    assert ends(beside(0.5, 0.0, 0.0)) == [4.0, 0.0, 2.0]
    assert ends(beside(0.5, 0.0, -1.0)) == [4.0, 0.0, 2.0]  # the host's work


def test_computation_drags_communication_down_while_it_goes_on() -> None:
    assert ends(beside(0.0, 1.0, 0.0)) == [4.0, 0.0, 4.0]
    assert ends(beside(0.0, 1.0, 0.0, begin=3.0)) == [4.0, 3.0, 5.5]
    assert ends(beside(0.0, 1.0, -1.0)) == [4.0, 0.0, 2.0]


def test_ranks_that_vary_compute_at_the_speed_of_every_moment() -> None:
    program = ExplicitProgram()
    for rank in range(2):
        lane = program.add_lane(rank)
        program.add_op(lane, 1.0)
        program.add_op(lane, 2.0, sensitivity=0.0)
    assert ends(program, speeds={1: WindowProfile(2.0, 0.5, 2.0)}) == [1.0, 3.0, 1.0, 3.5]
    assert ends(program, speeds={1: WindowProfile(2.0, 3.0, 4.0)}) == [1.0, 3.0, 1.0, 3.0]


def test_slowness_and_own_seconds_are_of_instances() -> None:
    program = ExplicitProgram()
    lane = program.add_lane(0)
    program.add_op(lane, 1.0, sensitivity=0.0)
    program.add_op(lane, 1.0)
    tables = program.make_tables(CAPACITY)
    slow = tables._replace(instances=tables.instances._replace(slowness=np.array([1.5])))
    assert simulate_tables(slow, str, keeps_times=False).lane_end.tolist() == [2.5]  # the host is not slower
    own = {"own_seconds": np.array([1], np.int32), "seconds": np.array([9.0, 3.0, 4.0])}
    mine = tables._replace(instances=tables.instances._replace(**own))
    assert simulate_tables(mine, str, keeps_times=False).lane_end.tolist() == [7.0]


# --- hop by hop -------------------------------------------------------------------------------------------------------


def ring(*arrivals: float, rounds: int) -> ExplicitProgram:
    """A ring in which each hop has a link of its own and takes 1 s a round."""
    count = len(arrivals)
    numbers = np.arange(count, dtype=np.int32)
    hops = np.stack([0 * numbers, 0 * numbers + rounds, numbers, (numbers + 1) % count, 0 * numbers], axis=1)
    program = ExplicitProgram(
        meetings=[CommunicationKind(count, [moves(1.0, link) for link in range(count)], hops=hops)] * 2
    )
    for rank, arrival in enumerate(arrivals):
        lane = program.add_lane(rank)
        program.add_op(lane, arrival)
        program.add_op(lane, rendezvous=0, position=rank)
        program.add_op(lane, rendezvous=1, position=rank)
    return program


def test_a_ring_goes_round_by_round_and_again() -> None:
    found = run(ring(0.0, 0.0, 0.0, 0.0, rounds=3), [1.0] * 4)
    assert found.times is not None
    assert found.times.end.reshape(4, 3).tolist() == [[0.0, 3.0, 6.0]] * 4


def test_a_late_rank_holds_up_its_neighbours_first() -> None:
    times = run(ring(0.0, 0.0, 5.0, 0.0, rounds=2), [1.0] * 4).times
    assert times is not None
    ready, start, end, last = (each.reshape(4, 3)[:, 1] for each in times)
    assert ready.tolist() == start.tolist() == [0.0, 0.0, 5.0, 0.0]
    assert end.tolist() == [7.0, 7.0, 7.0, 7.0] or end[0] < 7.0
    assert last.tolist() == [7] * 4


# --- the network of the reference -------------------------------------------------------------------------------------

Flight = tuple[float, tuple[Traffic, ...]]


def draw(seed: int) -> tuple[list[Flight], list[float], dict[int, Profile]]:
    """Communications that begin at some time, on links of which some vary."""
    rng = random.Random(seed)
    links = rng.randint(1, 6)

    def traffic() -> Traffic:
        usage = tuple(
            (link, rng.choice([1.0, 2.0, 1 / 3, 0.1, 7.7, 1e-5]))
            for link in sorted(rng.sample(range(links), rng.randint(0, links)))
        )
        bound = rng.choice([math.inf, math.inf, rng.uniform(0.1, 3.0)])
        size = rng.choice([0.0, 1.0, rng.uniform(0.1, 5.0)])
        return Traffic(usage, size, rng.choice([1, 2, 7]), rng.choice([0.0, 0.5, rng.random()]), bound)

    flights = [
        (
            round_to_tick(rng.choice([0.0, 0.5, rng.uniform(0.0, 3.0)])),
            tuple(traffic() for _ in range(rng.randint(1, 3))),
        )
        for _ in range(rng.randint(1, 9))
    ]
    varying: dict[int, Profile] = {
        link: WindowProfile(
            rng.choice([0.0, 0.5]), round_to_tick(rng.random()), period=round_to_tick(1.0 + rng.random()), length=0.5
        )
        for link in range(links)
        if rng.random() < 0.3
    }
    return flights, [rng.choice([1.0, 10.0, rng.uniform(0.5, 2.0)]) for _ in range(links)], varying


def by_reference(flights: list[Flight], capacity: list[float], varying: Mapping[int, Profile]) -> list[float]:
    env = simpy.Environment()
    network = FluidNetwork(env, capacity, varying)
    found = [math.nan] * len(flights)

    def fly(number: int, begin: float, traffics: tuple[Traffic, ...]) -> Iterator[simpy.Event]:
        yield env.timeout(begin)
        for traffic in traffics:
            yield from network.run_transfer(FluidTransfer(env, traffic))
        found[number] = env.now

    for number, flight in enumerate(flights):
        env.process(fly(number, *flight))
    run_events(env)
    if not all(map(math.isfinite, found)):
        raise ClockRangeError
    return found


def explicit(flights: list[Flight]) -> ExplicitProgram:
    program = ExplicitProgram()
    for rank, (begin, traffics) in enumerate(flights):
        lane = program.add_lane(rank)
        program.add_op(lane, begin)
        program.meetings.append(CommunicationKind(1, traffics))
        program.add_op(lane, rendezvous=rank)
    return program


def by_tables(flights: list[Flight], capacity: list[float], varying: Mapping[int, Profile]) -> list[float]:
    tables = explicit(flights).make_tables(capacity, capacities=varying)
    return simulate_tables(tables, str, keeps_times=False).lane_end.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_links_are_shared_as_in_the_reference(seed: int) -> None:
    assert simulate_on_exact_grid(lambda: by_tables(*draw(seed))) == simulate_on_exact_grid(
        lambda: by_reference(*draw(seed))
    )


def small_steps() -> list[float]:
    """A step of one GPU, which has no rendezvous, and one of eight."""
    document = {"model": "llama3-8b", "training": {"global_batch": 8, "recompute": "full"}, "engine": "compiled"}
    return [simulate({**document, "cluster": {"topology": "flat", "gpus": gpus}}).step_time for gpus in (1, 8)]


def test_plain_python_gives_the_same_bits() -> None:
    code = "import uncompiled, test_events as t; print([t.by_tables(*t.draw(s)) for s in range(40)], t.small_steps())"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'tests'}{os.pathsep}{root}"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    found = subprocess.run(command, env=environment, text=True, check=True, capture_output=True).stdout
    assert found == f"{[by_tables(*draw(seed)) for seed in range(40)]} {small_steps()}\n"
