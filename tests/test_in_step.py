"""Ranks that go in step are played as one chain, and a chain block by block: the same to the bit as row by row."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st
from test_reference import compare_scenario

from simcluster.base.clock import on_grid
from simcluster.base.profiles import STEADY
from simcluster.base.windows import Window
from simcluster.engine.engine import play
from simcluster.engine.record import Record
from simcluster.planning.ops import MAIN
from simcluster.programs.blocks import ChainRows, Inside, before_by_lanes, blocks_of
from simcluster.programs.chain import Chain, Playing
from simcluster.programs.program import ChainPace
from simcluster.results.result import Result
from simcluster.simulate import replay

# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "blocks"),
    [
        ([(), (0,), (1,)], [0, 1, 2, 3]),
        ([(), (0,), (0,), (1, 2)], [0, 3, 4]),
        ([(), (0,), (0,), (1,), (2, 3)], [0, 4, 5]),
        ([(), (), (0, 1), (2,)], [2, 3, 4]),
    ],
)
def test_a_block_begins_where_all_ways_meet(before: list[tuple[int, ...]], blocks: list[int]) -> None:
    assert blocks_of(before) == blocks


TICKS = st.integers(0, 12).map(lambda number: number / 8)


@st.composite
def chains(draw: st.DrawFn) -> list[ChainPace]:
    """Computations and collectives on a main lane, with collectives beside them that a later row joins."""
    paces: list[ChainPace] = []
    main, beside = -1, []
    for _ in range(draw(st.integers(1, 8))):
        if main >= 0 and draw(st.booleans()):
            paces.append(ChainPace(draw(TICKS), None, draw(st.sampled_from([0.0, 0.25, 1.0])), "tp", (main,)))
            beside.append(len(paces) - 1)
        joins = tuple(beside) if draw(st.booleans()) else ()
        beside = [] if joins else beside
        main = len(paces)
        paces.append(ChainPace(draw(TICKS), draw(st.sampled_from([None, 0.5, 1.0])), 0.0, MAIN, joins))
    return [*paces, ChainPace(draw(TICKS), 1.0, 0.0, MAIN, tuple(beside))]


@given(
    chain=chains(), data=st.data(), window=st.sampled_from([STEADY, Window(2.0, 1.0, 2.5), Window(0.5, on_grid(0.3))])
)
def test_a_chain_block_by_block_is_the_chain_row_by_row(
    chain: list[ChainPace], data: st.DataObject, window: Window
) -> None:
    before = before_by_lanes(chain)
    whole = ChainRows(chain, before, [0] * len(chain), [0, len(chain)])  # all in one block
    begin = data.draw(TICKS)
    changes = sorted(data.draw(st.lists(st.tuples(TICKS, st.sampled_from([0.0, 0.2, 0.7])), max_size=5)))
    blocks = Playing(Chain(chain), begin, (0.0,), (window,))
    rows = Inside(whole, 0, begin, ((0.0, window.at(begin)),))
    edges = [edge for edge in (window.after(begin), window.after(window.after(begin))) if edge < 100.0]
    pressure = 0.0
    for instant, new in sorted([(begin + after, value) for after, value in changes] + [(edge, -1.0) for edge in edges]):
        rows.to(instant)
        pressure = pressure if new < 0 else new
        if rows.running:
            rows.change(instant, ((pressure, window.at(instant)),))
        if new >= 0 and blocks.ends()[0] > instant:
            blocks.press(instant, (new,))
    rows.to_end()
    (end,) = blocks.ends()
    blocks.advance(end)
    start, over = blocks.times()
    assert list(zip(start.tolist(), over.tolist(), strict=True)) == rows.times()
    assert end == max(over.tolist())


@given(
    leads=st.lists(st.lists(TICKS, min_size=1, max_size=3), min_size=2, max_size=3), data=st.data(),
)  # fmt: skip
def test_what_leads_to_a_meeting_begins_when_each_rank_comes(leads: list[list[float]], data: st.DataObject) -> None:
    late = data.draw(st.tuples(*[TICKS] * len(leads)))
    changes = sorted(data.draw(st.lists(st.tuples(TICKS, st.sampled_from([0.0, 0.2, 0.7])), max_size=5)))
    paces: list[ChainPace] = []
    before: list[tuple[int, ...]] = []
    whose, last = [], []
    for rank, lead in enumerate(leads):
        for place, seconds in enumerate(lead):
            before.append((len(paces) - 1,) if place else ())
            paces.append(ChainPace(seconds, 1.0))
            whose.append(rank)
        last.append(len(paces) - 1)
    before.append(tuple(last))
    before += [(len(paces),)] * len(leads)  # they meet, and all go on by themselves
    paces += [ChainPace(1.0), *[ChainPace(0.5, 1.0)] * len(leads)]
    together = Chain(paces, before, [*whose, 0, *range(len(leads))], range(len(paces) - len(leads), len(paces)))
    playing = Playing(together, 0.0, [0.0] * len(leads), [STEADY] * len(leads), late if any(late) else ())
    playing.press_steadily([(now, (pressure,) * len(leads)) for now, pressure in changes])
    met = 0.0
    expected = []
    for lead, begin in zip(leads, late, strict=True):
        alone = Playing(Chain([ChainPace(seconds, 1.0) for seconds in lead]), begin, (0.0,), (STEADY,))
        for now, pressure in changes:
            alone.press(max(now, begin), (pressure,))
        (end,) = alone.ends()
        alone.advance(end)
        expected += list(zip(*[times.tolist() for times in alone.times()], strict=True))
        met = max(met, end)
    playing.advance(100.0)
    start, end_of = (times.tolist() for times in playing.times())
    assert list(zip(start, end_of, strict=True))[: len(expected)] == expected
    assert start[len(expected)] == met
    assert playing.ends() == end_of[-len(leads) :]


# --- ranks in step ----------------------------------------------------------------------------------------------------

FAULTS: dict[str, list[dict[str, Any]]] = {
    "slow": [{"kind": "slow_gpu", "factor": 1.5, "rank": 3}],
    "slow for a while": [{"kind": "slow_gpu", "factor": 3.0, "rank": 3, "start": "1 ms", "end": "3 ms"}],
    "two": [{"kind": "slow_gpu", "factor": 1.5, "rank": 3}, {"kind": "host_stall", "cause": "garbage_collection",
             "seconds": "1 ms", "rank": 5}],
    "jitter": [{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}],
}  # fmt: skip
OVERLAP: list[dict[str, Any]] = [
    {"tensor": True, "grad_reduce": True, "pipeline": True, "interference": "auto"},
    {"tensor": True, "grad_reduce": True, "interference": {"kind": "factor", "compute": 0.5}},
    {"tensor": False, "pipeline": True, "interference": "none"},
]


def run(tiny: Tiny, faults: str, overlap: dict[str, Any], **more: Any) -> Result:
    scenario = tiny(
        cluster={"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 4},
        parallel={"tp": 4, "pp": 2, "dp": 2, "sequence_parallel": True, "zero": 1},
        pipeline={"schedule": "interleaved", "chunks": 2},
        training={"global_batch": 8},
        overlap={"param_gather": True, **overlap},
        faults=FAULTS[faults],
        engine="events",
    )
    return replay(scenario, **more)


def by_op(found: Result) -> Record:
    """The same program with every op by itself."""
    return play(found.lowered.program, found.lowered.capacity)


@pytest.mark.parametrize("overlap", OVERLAP)
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("folded", [True, False])
def test_ranks_in_step_are_each_by_itself(tiny: Tiny, faults: str, overlap: dict[str, Any], folded: bool) -> None:
    found = run(tiny, faults, overlap, folded=folded)
    program, record, stretches = found.lowered.program, found.record, found.lowered.played.in_step
    assert stretches
    assert not program.in_step
    assert all(len(each.ops) > 1 for each in stretches)
    alone = by_op(found)
    assert record.events < 0.7 * alone.events
    for name in ("ready", "start", "end", "last"):
        assert getattr(record, name).tolist() == getattr(alone, name).tolist(), name
    for op in {*record.slowed, *alone.slowed}:
        planned = tuple((row.start, row.end) for row in program.row_sets[program.rows[op]])
        assert record.slowed.get(op, planned) == alone.slowed.get(op, planned), program.describe(op)


def test_nobody_goes_in_step_with_others_on_a_link_that_is_shared(tiny: Tiny) -> None:
    """A dragged transfer is no chain either; and of ops played singly there is none."""
    drag = {"kind": "factor", "compute": 0.2, "communication": 0.2}
    assert run(tiny, "slow", {"tensor": True, "interference": drag}).lowered.played.in_step == []
    assert run(tiny, "slow", OVERLAP[0], collapsed=False).lowered.played.in_step == []
    shared = tiny(
        cluster={"topology": "pcie_ethernet", "nodes": 1, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
        parallel={"tp": 2, "dp": 2}, overlap={"grad_reduce": True}, faults=[{**FAULTS["slow"][0], "rank": 1}],
        engine="events",
    )  # fmt: skip
    program = replay(shared).lowered.played
    assert program.in_step == []


def test_the_main_lane_does_not_go_on_beside_ranks_in_step(tiny: Tiny) -> None:
    """Where the first meeting is on another lane, behind others there: a forward pass began in its backward pass."""
    scenario = tiny(
        cluster={"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2},
        parallel={"tp": 2, "cp": 2, "dp": 2, "sequence_parallel": True},
        overlap={"tensor": True, "tensor_pieces": 4},
        faults=FAULTS["slow"],
    )
    compare_scenario(scenario)
