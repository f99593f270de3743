"""Flow and steps: equal to the bit where theory says so (MODELLING.md D.6), different where it says why."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conftest import Table, Tiny
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import TICK, round_to_tick
from simcluster.base.errors import DeadlockError, InputError
from simcluster.collectives import Hop, Phase
from simcluster.engine.communication_kinds import hops_with_traffic
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.scenario.document_resolution import load_cluster
from simcluster.step.simulate import simulate as run
from simcluster.studies.bench.collective import collective_times, concurrent_collective_times
from simcluster.studies.bench.collective_loads import busiest_links_of_collective
from simcluster.topology import Cluster, parse_topology

RINGS = ("all_reduce", "reduce_scatter", "all_gather")
ranks = st.integers(2, 9)
sizes = st.one_of(st.integers(1, 2**32).map(float), st.floats(1.0, 1e11))
rates = st.integers(1, 900)  # GB/s
latencies = st.integers(0, 20_000)  # ns
times = st.one_of(st.integers(0, 5).map(lambda each: each * 1e-5), st.floats(0.0, 0.1)).map(round_to_tick)


def flat(gpus: int, rate: int = 50, latency: int = 5000) -> Cluster:
    link = {"line_rate": f"{rate} GB/s"}
    document = {"kind": "flat", "device": "h100", "gpus": gpus, "link": link, "path_latency": f"{latency} ns"}
    return parse_topology(document).build()


def two_leaves(gpus_per_leaf: int, latency: str = "8 us", uplink: str = "1000 GB/s") -> Cluster:
    """Hops under a leaf have half the latency of hops across."""
    return parse_topology(
        {
            "kind": "leaf_spine",
            "device": "h100",
            "leaves": 2,
            "gpus_per_leaf": gpus_per_leaf,
            "spines": 1,
            "link": {"line_rate": "50 GB/s"},
            "uplink": {"line_rate": uplink},
            "path_latency": latency,
        }
    ).build()


# --- equal ------------------------------------------------------------------------------------------------------------


@given(n=ranks, kind=st.sampled_from(RINGS), size=sizes, rate=rates, latency=latencies, data=st.data())
def test_on_a_ring_of_equal_hops_all_finish_together_whenever_they_arrive(
    n: int, kind: str, size: float, rate: int, latency: int, data: st.DataObject
) -> None:
    """max arrival + T0 for every rank, in both details, to the bit."""
    cluster, arrivals = flat(n, rate, latency), data.draw(st.lists(times, min_size=n, max_size=n))
    flow = collective_times(cluster, range(n), kind, size, detail="flow", arrivals=arrivals)
    steps = collective_times(cluster, range(n), kind, size, detail="steps", arrivals=arrivals)
    alone = collective_times(cluster, range(n), kind, size).duration
    assert flow.finishes == steps.finishes == (max(arrivals) + alone,) * n
    assert flow.duration == steps.duration == alone


@given(first=times, second=times, size=sizes, detail=st.sampled_from(["flow", "steps"]))
def test_a_send_begins_when_both_ends_are_there(first: float, second: float, size: float, detail: str) -> None:
    cluster = flat(3)
    time = collective_times(cluster, [2, 0], "send", size, detail=detail, arrivals=[first, second])
    alone = round_to_tick(5e-6) + round_to_tick(size / 50e9)
    assert time.finishes == (max(first, second) + alone,) * 2


@given(n=ranks, kind=st.sampled_from(RINGS), percent=st.integers(1, 99), data=st.data())
def test_one_slow_link_sets_the_pace_of_all(n: int, kind: str, percent: int, data: st.DataObject) -> None:
    cluster, slow = flat(n), data.draw(st.integers(0, n - 1))
    slowed = cluster.with_scaled_links([(f"gpu{slow}", "switch", percent / 100)])
    flow, steps = (collective_times(slowed, range(n), kind, 2.0**28, detail=detail) for detail in ("flow", "steps"))
    assert flow.duration == steps.duration


@given(groups=st.integers(1, 4), n=st.sampled_from([2, 4]), size=sizes, kind=st.sampled_from(RINGS), start=times)
def test_equal_rings_at_once_on_shared_links(groups: int, n: int, size: float, kind: str, start: float) -> None:
    """Rings across an uplink that all of them share, in step with each other."""
    cluster = two_leaves(8, uplink="50 GB/s")
    members = [[group + 8 * (place % 2) + 4 * (place // 2) for place in range(n)] for group in range(groups)]
    arrivals = [[start] * n] * groups
    flow, steps = (
        concurrent_collective_times(cluster, members, kind, size, detail=detail, arrivals=arrivals)
        for detail in ("flow", "steps")
    )
    assert [time.finishes for time in flow] == [time.finishes for time in steps]


# --- different, and why -----------------------------------------------------------------------------------------------


def test_unequal_latencies_a_flow_takes_the_mean_and_steps_the_longest() -> None:
    """D.6 (iii).  Ring 0 - 1 | 2 - 3: two hops of 4 us, two of 8 us.

    Each hop pays its latency before it can send its next round, so the longest sets the pace of the steps; a flow
    counts what a chunk pays on its way around.
    """
    cluster = two_leaves(2)
    flow, steps = (
        collective_times(cluster, range(4), "all_reduce", 2.0**20, detail=detail) for detail in ("flow", "steps")
    )
    transfer = round_to_tick(2.0**20 / 4 / 50e9)
    assert flow.duration == 6 * (round_to_tick(6e-6) + transfer)
    assert steps.duration == 6 * (round_to_tick(8e-6) + transfer)


def test_behind_a_slow_link_those_that_arrived_early_are_ahead() -> None:
    """D.6 (ii), on a ring with a slow hop: what could be sent before the last rank came need not be sent after it."""
    cluster = flat(8, latency=0).with_scaled_links([("gpu0", "switch", 0.1)])
    arrivals = [0.0] * 4 + [0.03] + [0.0] * 3
    flow, steps = (
        collective_times(cluster, range(8), "all_reduce", 2.0**28, detail=detail, arrivals=arrivals)
        for detail in ("flow", "steps")
    )
    slow_round = 2.0**28 / 8 / 5e9
    assert flow.duration == pytest.approx(14 * slow_round, rel=1e-9)
    early = 3  # rounds of the hop 7 -> 0 that need nothing of rank 4: its data pass 5, 6 and 7 first
    assert arrivals[4] > early * slow_round
    assert steps.duration == pytest.approx((14 - early) * slow_round + early * slow_round / 10, rel=1e-9)


@given(n=ranks, data=st.data())
def test_slow_links_and_late_ranks_never_make_steps_later_than_the_flow(n: int, data: st.DataObject) -> None:
    cluster = flat(n).with_scaled_links([(f"gpu{data.draw(st.integers(0, n - 1))}", "switch", 0.3)])
    arrivals = data.draw(st.lists(times, min_size=n, max_size=n))
    flow, steps = (
        collective_times(cluster, range(n), "all_reduce", 2.0**24, detail=detail, arrivals=arrivals)
        for detail in ("flow", "steps")
    )
    assert steps.duration <= flow.duration


@pytest.mark.parametrize("latency", [0, 20_000])
def test_other_traffic_meets_a_flow_after_its_latency_and_steps_between_their_rounds(latency: int) -> None:
    """D.6 (i): two rings on the same GPUs, the second 0.1 ms after the first.

    Without latency both are one stream and agree.  With it, a flow has paid all of it before it shares anything, while
    steps pause in every round and leave the links to the other ring meanwhile.
    """
    cluster, groups, arrivals = flat(4, latency=latency), [range(4)] * 2, [[0.0] * 4, [1e-4] * 4]
    flow, steps = (
        concurrent_collective_times(cluster, groups, "all_reduce", 2.0**23, detail=detail, arrivals=arrivals)
        for detail in ("flow", "steps")
    )
    last = [max(time.finishes[0] for time in both) for both in (flow, steps)]
    if latency:
        assert last[1] < 0.99 * last[0]
    else:
        assert last[0] == pytest.approx(last[1], rel=0, abs=100 * TICK)
    alone = collective_times(cluster, range(4), "all_reduce", 2.0**23).duration
    assert all(alone < time.duration < 2 * alone + TICK for time in (*flow, *steps))


def test_rings_that_share_nvlink_do_not_agree_and_keep_their_bounds() -> None:
    """D.6 (v): 8 rails of 2 machines cross the same NVLinks; no detail beats the busiest link."""
    cluster = load_cluster("dgx_h100", [("nodes", 2)])
    flow, steps = (
        collective_times(cluster, range(16), "all_reduce", 1e9, detail=detail, nccl="none")
        for detail in ("flow", "steps")
    )
    limit = busiest_links_of_collective(cluster, [range(16)], "all_reduce", 1e9, nccl="none")
    assert limit.busy < flow.duration < steps.duration
    assert flow.duration == pytest.approx(limit.busy + limit.latency, rel=1e-9)


# --- the player -------------------------------------------------------------------------------------------------------


def simulate(cluster: Cluster, phases: list[Phase], size: float, arrivals: list[float]) -> list[float]:
    """Return when every rank is done; one that arrives at infinity never comes."""
    gpus, program = range(len(arrivals)), ExplicitProgram()
    hops, traffics = hops_with_traffic(cluster, gpus, phases, size, None)
    program.meetings.append(CommunicationKind(len(gpus), traffics, hops=hops))
    for position, arrival in enumerate(arrivals):
        lane = program.add_lane(position)
        if math.isfinite(arrival):
            program.add_op(lane, arrival)
            program.add_op(lane, rendezvous=0, position=position)
    found: list[float] = simulate_tables(
        program.make_tables(cluster.capacity), str, keeps_times=False
    ).lane_end.tolist()
    return found


def test_nobody_finishes_without_the_rank_that_never_comes() -> None:
    hops = tuple(Hop(source=i, target=(i + 1) % 4, share=0.25, chunk=i) for i in range(4))
    phases = [Phase(rounds=3, hops=hops, chunks=4, reduces=True)]
    with pytest.raises(DeadlockError):
        simulate(flat(4), phases, 4e6, [0.0, 0.0, math.inf, 0.0])


def test_a_rank_without_hops_is_done_when_it_arrives() -> None:
    phases = [Phase(rounds=1, hops=(Hop(source=0, target=1, share=1.0),), chunks=1, reduces=False)]
    assert simulate(flat(3, latency=0), phases, 50e9, [0.0, 0.5, 7.0]) == [1.5, 1.5, 7.0]
    assert simulate(flat(2), [Phase(rounds=0, hops=(), chunks=1, reduces=False)], 1.0, [1.0, 2.0]) == [1.0, 2.0]


def test_channels_do_not_wait_for_each_other() -> None:
    """Two hops of one rank in two channels: one to a slow GPU, one to a fast one."""
    cluster = flat(3, latency=0).with_scaled_links([("gpu2", "switch", 0.1)])
    to = (Hop(0, 1, 0.5, channel=0), Hop(0, 2, 0.5, channel=1))
    finishes = simulate(cluster, [Phase(rounds=4, hops=to, chunks=1, reduces=False)], 1e9, [0.0] * 3)
    assert finishes[1] == pytest.approx(4 * 0.5e9 / 45e9, rel=1e-9)  # 5 GB/s of its 50 go to the other
    assert finishes[0] == finishes[2] == pytest.approx(4 * 0.5e9 / 5e9, rel=1e-9)


def test_in_one_channel_the_slow_hop_holds_back_the_fast_one() -> None:
    cluster = flat(3, latency=0).with_scaled_links([("gpu2", "switch", 0.1)])
    to = (Hop(0, 1, 0.5), Hop(0, 2, 0.5))
    finishes = simulate(cluster, [Phase(rounds=4, hops=to, chunks=1, reduces=False)], 1e9, [0.0] * 3)
    assert finishes[1] == pytest.approx(3 * 0.1 + 0.5e9 / 45e9, rel=1e-9)
    assert finishes[2] == pytest.approx(4 * 0.1, rel=1e-9)


def test_rounds_with_other_partners_follow_each_other_without_a_barrier() -> None:
    """Rank 1 has no part in the second round and is done after the first."""
    near = Phase(rounds=1, hops=(Hop(0, 1, 0.5), Hop(1, 0, 0.5)), chunks=2, reduces=True)
    far = Phase(rounds=1, hops=(Hop(0, 2, 0.5), Hop(2, 0, 0.5)), chunks=2, reduces=True)
    assert simulate(flat(3, latency=0), [near, far], 100e9, [0.0, 0.0, 0.25]) == [2.0, 1.0, 2.0]
    assert simulate(flat(3, latency=0), [near, far], 100e9, [0.0, 0.0, 1.25]) == [2.25, 1.0, 2.25]


def test_a_pipeline_has_no_rounds_to_be_played_in_steps() -> None:
    chain = Phase(rounds=1, hops=(Hop(0, 1, 1.0), Hop(1, 2, 1.0)), chunks=1, reduces=False, pipelined=True)
    with pytest.raises(InputError, match="use detail: flow"):
        simulate(flat(3), [chain], 1.0, [0.0] * 3)


# --- in a whole step --------------------------------------------------------------------------------------------------


def scenario(tiny: Tiny, *, detail: str, faults: list[dict[str, Any]]) -> Any:
    return tiny(
        cluster={"topology": "flat", "gpus": 8},
        parallel={"tp": 4, "dp": 2},
        collectives={"detail": detail},
        engine="compiled",
        faults=faults,
    )


def test_in_steps_is_in_flow_when_all_arrive_together(tiny: Tiny, table: Table) -> None:
    """MODELLING.md D.6, through a whole step: equal links, every group alone on them."""
    flow = run(scenario(tiny, detail="flow", faults=[]), folded=False)
    steps = run(scenario(tiny, detail="steps", faults=[]))
    assert steps.record.events > flow.record.events  # it did play rounds
    for rank in range(8):
        assert table(steps, rank).equals(table(flow, rank))


def test_in_steps_is_in_flow_when_one_arrives_late(tiny: Tiny, table: Table) -> None:
    """D.6 again: with unequal arrivals every rank still ends at the last arrival plus the duration."""
    slow = [{"kind": "slow_gpu", "rank": 5, "factor": 1.7}]
    flow = run(scenario(tiny, detail="flow", faults=slow), folded=False)
    steps = run(scenario(tiny, detail="steps", faults=slow))
    assert steps.step_time == flow.step_time
    for rank in range(8):
        ours, theirs = table(steps, rank), table(flow, rank)
        assert ours["end"].tolist() == theirs["end"].tolist()
        assert ours["ready"].tolist() == theirs["ready"].tolist()
