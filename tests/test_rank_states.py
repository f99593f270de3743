"""What a rank is doing at any instant: every state by hand, and which of two holds it up where both do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from ops_by_hand import ranks_of_spans
from test_metrics import Row, only, spans

from simcluster.results.rank_states import RankStates
from simcluster.results.rank_time import BREAKDOWN, RankBreakdown
from simcluster.results.span_states import make_span_bits

BARRIER = "barrier"  # in place of a kind: a checkpoint's span of that name


def of_rank(
    rows: Sequence[tuple[str, str, float, float, float]],
    total: float,
    stage_ends: Sequence[float] = (),
    worked: float = np.inf,
    steps: Sequence[int] = (),
) -> RankBreakdown:
    """Time of one rank of stage 0, from (stream, kind, ready, start, end); all stages end at ``total`` unless given."""
    full: list[Row] = [(0, stream, kind, 0, *times) for stream, kind, *times in rows]
    table = spans(full, steps)
    if BARRIER in table.words:
        barriers = table.kind == table.word_code(BARRIER)
        names = np.where(barriers, table.word_code(BARRIER), -1)
        kinds = np.where(barriers, table.word_code("checkpoint"), table.kind)
        table = replace(table, name=names, kind=kinds)
    ends = dict(enumerate(stage_ends or (total, total)))
    ((_, _, ops, times),) = ranks_of_spans(table)
    measure = RankStates(make_span_bits(ops)).measure
    found = RankBreakdown.from_seconds(measure(*times[:3], total, ends[0], min(worked, total), len(ends) == 1))
    assert tuple(found.states) == BREAKDOWN
    return found


ORDER = ("tp", "cp", "ep", "pp", "dp")


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ORDER, 2)))
def test_the_inner_axis_holds_up_whoever_is_on_two(first: str, second: str) -> None:
    """2 s of both, of which the inner one counts; 1 s before and 4 s behind of one alone; 3 s beside compute."""
    found = of_rank(
        [
            (first, "a", 0, 0, 3),
            (second, "a", 1, 1, 10),
            ("compute", "forward", 7, 7, 10),
        ],
        10,
    )
    assert only(found.states) == {f"exposed_{first}": 3, f"exposed_{second}": 4, "forward": 3}
    assert (found.communication, found.overlapped) == (10, 3)


@pytest.mark.parametrize("stream", ["tp", "cp", "ep", "dp", "pp", "d2h"])
def test_only_members_of_groups_within_a_stage_are_stragglers(stream: str) -> None:
    found = of_rank([("compute", "forward", 0, 0, 1), (stream, "a", 1, 4, 6), ("compute", "backward", 6, 6, 7)], 7)
    waited = "bubble" if stream in ("pp", "d2h") else "straggler_wait"
    moved = "other" if stream == "d2h" else f"exposed_{stream}"
    assert only(found.states) == {"forward": 1, waited: 3, moved: 2, "backward": 1}
    assert found.communication == (0 if stream == "d2h" else 2)


COMPUTES = {
    "forward": "forward", "backward": "backward", "input_grad": "backward", "weight_grad": "backward",
    "recompute": "recompute", "optimizer": "optimizer", "other": "other",
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPUTES)
def test_kinds_of_compute(kind: str) -> None:
    """Of whatever kind, it hides what is beside it, a stall and a copy too."""
    beside = [("host", "data", 0, 0, 2), ("d2h", "copy", 0, 0, 2), ("dp", "a", 0, 0, 2)]
    found = of_rank([("compute", kind, 0, 0, 2), *beside], 2)
    assert only(found.states) == {COMPUTES[kind]: 2}
    assert (found.communication, found.overlapped) == (2, 2)


# By name: rows of (stream, kind, ready, start, end) from 0 to 10, and what they make of those 10 s.
HOST: dict[str, tuple[list[tuple[str, str, float, float, float]], dict[str, float]]] = {
    "data": ([("host", "data", 0, 0, 4), ("compute", "forward", 4, 4, 10)], {"data": 4, "forward": 6}),
    "validation": (
        [("compute", "forward", 0, 0, 6), ("host", "validation", 6, 6, 10)],
        {"forward": 6, "validation": 4},
    ),
    "a part of a checkpoint without a barrier": (
        [("compute", "forward", 0, 0, 6), ("host", "checkpoint", 6, 6, 9), ("compute", "other", 9, 9, 10)],
        {"forward": 6, "checkpoint": 3, "other": 1},
    ),
    "the first of two stalls": (
        [("host", "data", 0, 0, 5), ("host", "checkpoint", 0, 0, 2), ("host", "validation", 4, 4, 6),
         ("compute", "forward", 6, 6, 10)],
        {"checkpoint": 2, "data": 3, "validation": 1, "forward": 4},
    ),
    "communication ahead of a stall": (
        [("tp", "a", 0, 0, 3), ("host", "data", 1, 1, 5), ("compute", "forward", 5, 5, 10)],
        {"exposed_tp": 3, "data": 2, "forward": 5},
    ),
    "a copy that is waited for": (
        [("compute", "forward", 0, 0, 2), ("d2h", "copy", 1, 1, 6), ("compute", "backward", 6, 6, 10)],
        {"forward": 2, "offload": 4, "backward": 4},
    ),
    "a copy in the middle of a bubble": (
        [("compute", "forward", 0, 0, 2), ("d2h", "copy", 2, 2, 4), ("compute", "backward", 6, 6, 10)],
        {"forward": 2, "bubble": 4, "backward": 4},
    ),
    "an optimizer of the host beside its copies": (
        [("compute", "backward", 0, 0, 4), ("host", "optimizer", 4, 4, 8), ("d2h", "copy", 5, 5, 9),
         ("compute", "forward", 9, 9, 10)],
        {"backward": 4, "optimizer": 4, "offload": 1, "forward": 1},
    ),
    "a copy for a checkpoint beside one of offload": (
        [("compute", "backward", 0, 0, 4), ("d2h", "checkpoint", 4, 4, 7), ("h2d", "copy", 4, 4, 9),
         ("compute", "forward", 9, 9, 10)],
        {"backward": 4, "checkpoint": 3, "offload": 2, "forward": 1},
    ),
    "launches of the host": (
        [("compute", "backward", 0, 0, 4), ("host", "launch", 4, 4, 7), ("compute", "forward", 7, 7, 10)],
        {"backward": 4, "other": 3, "forward": 3},
    ),
    "writing beside work": (
        [("compute", "forward", 0, 0, 4), ("storage", "checkpoint", 1, 1, 10), ("compute", "backward", 4, 4, 10)],
        {"forward": 4, "backward": 6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOST)
def test_what_its_host_does(case: str) -> None:
    rows, expected = HOST[case]
    found = of_rank(rows, 10)
    assert only(found.states) == expected
    assert sum(found.states.values()) == 10


def test_behind_the_last_work_only_a_checkpoint_is_written() -> None:
    """Compute to 4, a write to 9 of which the last 3 s are behind everybody's work; a stage of its own or two."""
    rows = [("compute", "forward", 0.0, 0.0, 4.0), ("storage", "checkpoint", 4.0, 4.0, 9.0)]
    assert only(of_rank(rows, 9, [4, 6], worked=6).states) == {"forward": 4, "bubble": 2, "checkpoint": 3}
    assert only(of_rank(rows, 9, [6], worked=6).states) == {"forward": 4, "straggler_wait": 2, "checkpoint": 3}
    assert only(of_rank(rows, 9, [5, 6], worked=6).states) == {
        "forward": 4, "straggler_wait": 1, "bubble": 1, "checkpoint": 3,
    }  # fmt: skip
    assert only(of_rank(rows, 9).states) == {"forward": 4, "checkpoint": 5}


def test_training_stands_from_its_part_of_a_checkpoint_to_the_barrier() -> None:
    """Of each step by itself: copies from 2 to 3, the barrier of all from 6 to 7, and the same in the next 10 s."""
    once = [("compute", "forward", 0.0, 0.0, 2.0), ("d2h", "checkpoint", 2.0, 2.0, 3.0), ("pp", BARRIER, 3.0, 6.0, 7.0),
            ("compute", "backward", 7.0, 7.0, 10.0)]  # fmt: skip
    twice = [*once, *[(stream, kind, *(at + 10 for at in times)) for stream, kind, *times in once]]
    states = {"forward": 4.0, "checkpoint": 8.0, "exposed_pp": 2.0, "backward": 6.0}
    found = of_rank(twice, 20, steps=[0] * 4 + [1] * 4)
    assert only(found.states) == states


@pytest.mark.parametrize(
    ("stage_ends", "expected"),
    [
        ((10,), {"straggler_wait": 8}),  # a pipeline of one stage has no bubble
        ((10, 10), {"bubble": 1, "straggler_wait": 7}),
        ((7, 10), {"bubble": 4, "straggler_wait": 4}),
        ((3, 10), {"bubble": 8}),
    ],
)
def test_who_is_done_waits_for_its_own_stage_and_then_for_others(
    stage_ends: tuple[float, ...], expected: dict[str, float]
) -> None:
    """Compute from 0 to 1 and 2 to 3 of 10 s: idle in between, and from 3 on."""
    found = of_rank([("compute", "forward", 0, 0, 1), ("compute", "forward", 2, 2, 3)], 10, stage_ends)
    assert only(found.states) == {"forward": 2, **expected}


def test_a_rank_without_work_waits() -> None:
    """For the others of its stage, at the very begin for other stages; writes that end meanwhile hold nothing up."""
    assert only(of_rank([("compute", "forward", 0, 0, 0)], 5).states) == {"straggler_wait": 5}
    assert only(of_rank([("compute", "forward", 4, 4, 5)], 5).states) == {"bubble": 4, "forward": 1}
    assert only(of_rank([("storage", "copy", 0, 0, 2)], 5).states) == {"straggler_wait": 5}
