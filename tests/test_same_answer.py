"""One scenario, one answer: folded = unfolded = uncollapsed = the longest path, every span of every rank, to the bit.

Folding, chains and the fast path change what is computed, never what comes out (MODELLING.md I.1 to I.5): the plain
run, every rank and every op of it an event, is what all others must equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, counts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import DeadlockError, InputError
from simcluster.bench.given_times import Costs, simulate_costs
from simcluster.engine.choose import play_by, play_path
from simcluster.engine.engine import play
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.overlaps import Encounters
from simcluster.engine.record import Record
from simcluster.planning.ops import MAIN
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.reference.record import OpTimes
from simcluster.results.played import Run
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.simulate import replay, simulate
from simcluster.traffic.traffic import Traffic

ECMP = {"kind": "ecmp", "seed": 3, "queue_pairs": 2}
CLUSTERS: list[tuple[dict[str, Any], list[str]]] = [  # with one cable of each, near the first GPUs
    ({"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}, ["node0.gpu1", "node0.nic1"]),
    ({"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4, "routing": ECMP}, ["node0.gpu1", "node0.nic1"]),
    (
        {
            "topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2,
            "fabric": {"nodes_per_unit": 2, "oversubscription": 2.0}, "routing": ECMP,
        },
        ["node0.gpu1", "node0.nic1"],
    ),
    ({"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
     ["node0.gpu1", "node0.pcie0"]),
    ({"topology": "flat", "gpus": 8}, ["gpu1", "switch"]),
]  # fmt: skip
SHAPES = [(1, 1, 4), (2, 2, 2), (2, 1, 4), (1, 4, 2), (4, 2, 1), (1, 2, 3), (2, 2, 1), (1, 2, 4)]  # tp, pp, dp
INTERFERENCE: list[Any] = ["none", "none", "auto", {"kind": "factor", "compute": 0.3, "communication": 0.2}]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny``: any cluster, routes, layout, schedule, overlap and fault."""
    cluster, cable = draw(st.sampled_from(CLUSTERS))
    tp, pp, dp = draw(st.sampled_from(SHAPES))
    schedule = draw(st.sampled_from(list(SCHEDULES) if pp > 1 else ["gpipe", "1f1b"]))
    chunks, microbatches = counts_of(schedule, pp, draw(st.integers(1, 4)))
    zero = draw(st.sampled_from([0, 0, 1, 2, 3] if pp == 1 else [0, 0, 1])) if dp > 1 else 0
    rank = draw(st.integers(0, tp * pp * dp - 1))
    faults = draw(st.lists(st.sampled_from(_faults(rank, cable)), max_size=2, unique_by=lambda fault: fault["kind"]))
    return {
        "cluster": cluster,
        "gpus": tp * pp * dp,
        "model": {"layers": 8, "tied_embeddings": draw(st.booleans())},
        "parallel": {
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "zero": zero,
            "sequence_parallel": tp > 1 and draw(st.booleans()),
            "order": draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("pp", "dp", "cp", "tp")])),
        },
        "pipeline": {
            "schedule": schedule,
            "chunks": chunks,
            "p2p": draw(st.sampled_from(["async", "async", "rendezvous"])) if schedule == "1f1b" else "async",
        },
        "training": {"global_batch": microbatches * dp, "recompute": draw(st.sampled_from(["none", "full"]))},
        "overlap": {
            "grad_reduce": draw(st.booleans()),
            "param_gather": zero > 0 and draw(st.booleans()),
            "tensor": draw(st.booleans()),
            "pipeline": draw(st.booleans()),
            "bucket_size": draw(st.sampled_from(["1 MB", "8 MB"])),
            "interference": draw(st.sampled_from(INTERFERENCE)),
        },
        "faults": faults,
        "steps": draw(st.sampled_from([1, 1, 2])),
    }


def _faults(rank: int, cable: list[str]) -> list[dict[str, Any]]:
    """Slow for ever; slow or gone for a while, in the middle of a step of some milliseconds; and by chance."""
    return [
        {"kind": "slow_gpu", "factor": 1.5, "rank": rank},
        {"kind": "slow_gpu", "factor": 3.0, "rank": rank, "start": "1 ms", "end": "2 ms"},
        {"kind": "slow_link", "between": cable, "factor": 0.5},
        {"kind": "slow_link", "between": cable, "factor": 0.1, "start": "1 ms"},
        {"kind": "link_flap", "between": cable, "start": "1 ms", "down": "1 ms"},
        {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}, "shared_by": "worker"},
        {"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms", "rank": rank},
    ]


def every_way(scenario: Scenario) -> None:
    """Plays the scenario in every way, and compares all of them with the plain one."""
    plain = replay(scenario, folded=False)
    assert len(plain.weights) == scenario.gpus
    spans = {rank: spans_of(plain, rank) for rank in plain.weights}
    ways = [plain, replay(scenario, folded=False), replay(scenario), replay(scenario)]
    for found in ways:
        assert found.step_time == plain.step_time
        for rank in spans if found is not plain else ():
            assert spans_of(found, rank) == spans[rank], f"rank {rank}"


def spans_of(run: Run, rank: int) -> list[tuple[Any, ...]]:
    """All that the timeline says of a rank, in an order that does not depend on how it was played."""
    spans = run.spans.of_rank(run.simulated_for(rank))
    words = np.array(spans.words, dtype=object)
    columns = []
    for name in COLUMNS:
        values = getattr(spans, name)
        if name in ("stream", "kind", "name"):
            values = words[values]
        elif name == "group":  # of the rank that was played: test_fold has the names of the others' groups
            values = np.array([word.rstrip("0123456789") for word in words[values].tolist()], dtype=object)
        elif name == "rank":
            continue
        columns.append(values.tolist())
    return sorted(zip(*columns, strict=True), key=repr)


# --- programs ---------------------------------------------------------------------------------------------------------

TICK = 2.0**-20
LINKS = [4.0e6, 8.0e6, 1.0e7]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Lanes of ops that compute, meet, and move bytes over a few links, in an order that can happen."""
    lanes = draw(st.integers(2, 4))
    program = Program(row_sets=[(SpanRow("compute", "other", "op", -1, "", 0.0, 0.0, 0.0),)])
    for lane in range(lanes):
        program.add_lane(lane, 0, MAIN)
    ticks = st.integers(0, 16).map(lambda number: number * 0.015625)
    for number in range(draw(st.integers(2, 14))):
        members = [number % lanes] if draw(st.booleans()) else draw(_groups(lanes))
        after = tuple(draw(st.lists(st.integers(0, len(program.seconds) - 1), max_size=1))) if program.seconds else ()
        meets = len(members) > 1 or draw(st.booleans())
        if meets:
            program.meetings.append(Meeting(len(members), tuple(draw(st.lists(_traffics(), min_size=1, max_size=2)))))
        for lane in members:
            meeting = len(program.meetings) - 1 if meets else -1
            op = program.add_op(lane, 0, seconds=-1.0 if meets else draw(ticks), meeting=meeting)
            program.after[op] = after
    return program


def _groups(lanes: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, lanes - 1), min_size=1, max_size=lanes, unique=True)


def _traffics() -> st.SearchStrategy[Traffic]:
    """Transfers of some 0.1 s; some are so slow by themselves that others fit beside them."""
    usage = st.sampled_from([((0, 1.0),), ((0, 2.0), (1, 1.0)), ((1, 1.0),), ((2, 1.0),), ()])
    size = st.sampled_from([1e5, 4e5, 4e5, 0.0])
    return st.builds(
        lambda flows, size, rounds, latency, bound: Traffic(flows, size, rounds, latency, bound),
        usage, size, st.integers(1, 3), st.sampled_from([0.0, 1e-3]), st.sampled_from([1e6, 1e8]),
    )  # fmt: skip


@settings(max_examples=60)
@given(program=programs())
def test_what_is_taken_for_a_longest_path_is_what_the_engine_plays(program: Program) -> None:
    record = play(program, LINKS)
    try:
        found = play_path(program, LINKS)
    except NeedsEventsError:
        return
    _equal(found, record)


def _equal(found: Record | OpTimes, record: Record | OpTimes) -> None:
    for name in ("ready", "start", "end", "last"):
        assert getattr(found, name).tolist() == getattr(record, name).tolist(), name


def transfers(*begins: float, size: float = 1e6, bound: float = 1e9, usage: Any = ((0, 1.0),)) -> Program:
    """Transfers of 0.25 s over a link of 4 MB/s, each on a lane of its own that computes before it."""
    program = Program(row_sets=[(SpanRow("compute", "other", "op", -1, "", 0.0, 0.0, 0.0),)])
    for number, begin in enumerate(begins):
        lane = program.add_lane(number, 0, MAIN)
        program.add_op(lane, 0, seconds=begin)
        program.meetings.append(Meeting(1, (Traffic(usage, size, 1, 0.0, bound),)))
        program.add_op(lane, 0, meeting=number)
    return program


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (transfers(0.0, 0.25, 0.5), True),  # one ends as the next begins
        (transfers(0.0, 0.125), False),
        (transfers(0.0, 0.0, bound=1e6), True),  # 1 + 1 of 4 MB/s
        (transfers(0.0, 0.0, 0.5, 0.5, bound=1e6), False),  # 4 of 4: nothing is left over that would prove it
        (transfers(0.0, 0.0, size=0.0), False),
        (transfers(0.0, 0.0, usage=()), True),
    ],
)
def test_when_transfers_hold_each_other_back(program: Program, path: bool) -> None:
    found = play_by("auto", program, LINKS)
    assert found.kind == ("path" if path else "events")
    assert ("hold each other back on a link, the first at" in found.why) == (not path)
    _equal(found, play(program, LINKS))


def test_transfers_meet_from_the_later_begin_on() -> None:
    found = Encounters(transfers(0.0, 0.0), LINKS)
    assert [found.first(np.array([0.0, later])) for later in (0.0, 0.1, 0.25, 0.3)] == [0.0, 0.1, np.inf, np.inf]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"pressure": 0.1, "ranks": (0,)}, "slows down the computation"),
        ({"drag": 0.1, "ranks": (0,)}, "slows down the computation"),
        ({"steps": 0}, "step by step"),
        ({"traffics": (Traffic(((0, 1.0),), 1.0, 1, 0.0),)}, "carries nothing"),
    ],
)
def test_what_is_no_longest_path(changed: dict[str, Any], says: str) -> None:
    program = transfers(0.0)
    program.meetings[0] = replace(program.meetings[0], **changed)
    with pytest.raises(InputError, match=f"engine: path would not be exact here: .*{says}.*; use engine: auto"):
        play_by("path", program, [0.0])


def test_a_deadlock_is_explained_whatever_plays_it() -> None:
    program = transfers(0.0, 0.0)
    program.after[0], program.after[2] = (3,), (1,)
    for engine in ("auto", "events", "path"):
        with pytest.raises(DeadlockError, match="deadlock: 2 lanes wait for each other"):
            play_by(engine, program, LINKS)


# --- the scenario's key -----------------------------------------------------------------------------------------------


def test_the_result_says_which(tiny: Tiny) -> None:
    sections = {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"tp": 2, "dp": 2}}

    def engine_of(**more: Any) -> dict[str, Any]:
        return dict(simulate(tiny(**sections, **more)).to_dict()["engine"])

    ours = engine_of()
    assert ours.pop("events") > 0
    assert ours == {
        "kind": "simpy",
        "why": "SimPy takes less than 0.5 s for 194 ops",
        "ranks_simulated": 1,
        "ranks_total": 4,
    }
    asked = engine_of(engine="reference")
    assert (asked["kind"], asked["why"], asked["ranks_simulated"]) == ("reference", "engine: reference", 4)


# --- given times --------------------------------------------------------------------------------------------------


@st.composite
def given_costs(draw: st.DrawFn) -> Costs:
    seconds = st.floats(0.0, 2.0)
    backward = draw(seconds)
    return Costs(
        forward=draw(seconds),
        backward=backward,
        weight_grad=draw(st.sampled_from([None, 0.3 * backward])),
        tensor_parallel=draw(st.sampled_from([0.0, 0.01])),
        collectives=draw(st.sampled_from([0, 2, 3])),
        send=draw(st.sampled_from([0.0, 0.013])),
        grad_reduce=draw(st.sampled_from([0.0, 0.5])),
        optimizer=draw(st.sampled_from([0.0, 0.1])),
        launch=draw(st.sampled_from([0.0, 0.001])),
        send_launch=draw(st.sampled_from([0.0, 0.002])),
    )


_STUCK = ("breadth-first", "zb-h2", "zb-v", "v-half", "dualpipe-v")
"""At a rendezvous after every pass their stages wait for each other for ever."""


@settings(max_examples=30)
@given(
    schedule=st.sampled_from([name for name, entry in SCHEDULES.items() if not entry.made_for_times]),
    costs=given_costs(),
    tp=st.sampled_from([1, 2]),
    steps=st.sampled_from([1, 2]),
    way=st.sampled_from([{}, {"blocking_sends": True}, {"rendezvous": True}]),
    together=st.booleans(),
)
def test_given_times_are_a_longest_path(
    schedule: str, costs: Costs, tp: int, steps: int, way: dict[str, bool], together: bool
) -> None:
    """What events give, to the bit."""
    chunks, microbatches = counts_of(schedule, 4, 8)
    shape: dict[str, Any] = {
        "stages": 4, "microbatches": microbatches, "schedule": schedule, "chunks": chunks, "tp": tp, "dp": 2,
        "steps": steps, **({} if schedule in _STUCK else way),
    }  # fmt: skip
    if together:
        shape |= {"optimizer_sync": "all_reduce", "sync": 0.003}
    path = simulate_costs(costs, **shape, engine="path")
    _equal(path.record.times, simulate_costs(costs, **shape, engine="events").record.times)


def test_slices_that_differ() -> None:
    slices = [Costs(forward=1.0 + number, backward=2.0, send=0.125 * number) for number in range(8)]
    shape: dict[str, Any] = {"stages": 4, "microbatches": 8, "schedule": "interleaved", "chunks": 2}
    found = [[simulate_costs(each, **shape, engine=engine).step_time for each in (slices, slices[::-1])]
             for engine in ("path", "events")]  # fmt: skip
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
