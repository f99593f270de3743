"""Schedules of the papers, letter for letter, and their closed forms on exact rationals.

The rows are read as `order_lines` prints them: F3.1 is microbatch 3, chunk 1; [F3|B1] a fused pair.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.schedules import (
    EqualCosts,
    Schedule,
    breadth_first,
    check_schedule,
    chimera,
    dualpipe,
    dualpipe_v,
    gpipe,
    hanayo,
    interleaved,
    one_f_one_b,
    peak_in_flight,
    time_actions,
    v_half,
    v_min,
    zb_auto,
    zb_h1,
    zb_h2,
    zb_v,
)
from simcluster.schedules.paired_passes import one_f_one_b_in_pairs
from simcluster.schedules.text import order_lines

UNIT = EqualCosts(F=1, B=2, I=1, W=1)
TIMES = st.fractions(min_value=Fraction(1, 12), max_value=20, max_denominator=12)
PARTS = st.fractions(min_value=Fraction(1, 12), max_value=1, max_denominator=12)
many = settings(max_examples=60, deadline=None)

ZB_H1 = """
r0 F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
r1 F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
r2 F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
r3 F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
"""
ZB_H2 = """
r0 F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7
r1 F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
r2 F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7
r3 F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7
"""
ZB_V = """
r0 F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F2.1 I2.1 W2.1 F3.1 I3.1 W3.1 F7.0 I0.0 W0.0 F4.1 I4.1 W4.1 I1.0 W1.0 F5.1 I5.1 W5.1 I2.0 W2.0 F6.1 I6.1 W6.1 I3.0 W3.0 F7.1 I7.1 W7.1 I4.0 W4.0 I5.0 W5.0 I6.0 W6.0 I7.0 W7.0
r1 F0.0 F1.0 F2.0 F3.0 F4.0 F0.1 F5.0 F1.1 I0.1 W0.1 F2.1 I1.1 W1.1 F3.1 I2.1 W2.1 F6.0 I0.0 W0.0 F4.1 I3.1 W3.1 F7.0 I1.0 W1.0 F5.1 I4.1 W4.1 I2.0 W2.0 F6.1 I5.1 W5.1 I3.0 W3.0 F7.1 I6.1 W6.1 I4.0 I7.1 I5.0 W4.0 I6.0 W5.0 I7.0 W6.0 W7.1 W7.0
r2 F0.0 F1.0 F2.0 F0.1 F3.0 F1.1 F4.0 F2.1 I0.1 W0.1 F3.1 I1.1 W1.1 F5.0 I0.0 W0.0 F4.1 I2.1 W2.1 F6.0 I1.0 W1.0 F5.1 I3.1 W3.1 F7.0 I2.0 W2.0 F6.1 I4.1 W4.1 I3.0 W3.0 F7.1 I5.1 W5.1 I4.0 I6.1 I5.0 I7.1 I6.0 W4.0 I7.0 W5.0 W6.1 W7.1 W6.0 W7.0
r3 F0.0 F0.1 F1.0 F1.1 F2.0 F2.1 F3.0 F3.1 I0.1 W0.1 F4.0 I0.0 W0.0 F4.1 I1.1 W1.1 F5.0 I1.0 W1.0 F5.1 I2.1 W2.1 F6.0 I2.0 W2.0 F6.1 I3.1 W3.1 F7.0 I3.0 W3.0 F7.1 I4.1 W4.1 I4.0 I5.1 I5.0 I6.1 I6.0 I7.1 I7.0 W4.0 W5.1 W6.1 W7.1 W5.0 W6.0 W7.0
"""  # noqa: E501
DUALPIPE_V = """
r0 F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 [F3.0|B1.1] [F2.1|B0.0] [F4.0|B2.1] [F3.1|B1.0] [F5.0|B3.1] [F4.1|B2.0] [F6.0|B4.1] [F5.1|B3.0] [F7.0|B5.1] [F6.1|B4.0] B6.1 [F7.1|B5.0] B7.1 I6.0 W6.0 I7.0 W7.0
r1 F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 [F2.1|B0.0] [F3.0|B1.1] [F3.1|B1.0] [F4.0|B2.1] [F4.1|B2.0] [F5.0|B3.1] [F5.1|B3.0] [F6.0|B4.1] [F6.1|B4.0] [F7.0|B5.1] [F7.1|B5.0] B6.1 B6.0 I7.1 I7.0 W7.1 W7.0
"""  # noqa: E501
DUALPIPE = """
r0 F0.0 F1.0 F2.0 F4.1 I4.1 W4.1 F5.1 [F3.0|B5.1] [F6.1|B0.0] B6.1 [F7.1|B1.0] B7.1 I2.0 W2.0 I3.0 W3.0
r1 F0.0 F4.1 F1.0 F5.1 F2.0 B4.1 [F6.1|B0.0] [F3.0|B5.1] [F7.1|B1.0] B6.1 B2.0 I7.1 I3.0 W7.1 W3.0
r2 F4.1 F0.0 F5.1 F1.0 F6.1 B0.0 [F2.0|B4.1] [F7.1|B1.0] [F3.0|B5.1] B2.0 B6.1 I3.0 I7.1 W3.0 W7.1
r3 F4.1 F5.1 F6.1 F0.0 I0.0 W0.0 F1.0 [F7.1|B1.0] [F2.0|B4.1] B2.0 [F3.0|B5.1] B3.0 I6.1 W6.1 I7.1 W7.1
"""
CHIMERA = """
r0 F0.0 F1.0 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0
r1 F0.0 F2.1 F1.0 F3.1 B2.1 B0.0 B3.1 B1.0
r2 F2.1 F0.0 F3.1 F1.0 B0.0 B2.1 B1.0 B3.1
r3 F2.1 F3.1 F0.0 B0.0 F1.0 B1.0 B2.1 B3.1
"""
HANAYO = """
r0 F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0 B2.0 B3.0
r1 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 B0.1 F2.1 B1.1 F3.1 B2.1 B0.0 B3.1 B1.0 B2.0 B3.0
r2 F0.0 F1.0 F2.0 F0.1 F3.0 F1.1 F2.1 B0.1 F3.1 B1.1 B0.0 B2.1 B1.0 B3.1 B2.0 B3.0
r3 F0.0 F0.1 F1.0 F1.1 F2.0 F2.1 F3.0 F3.1 B0.1 B0.0 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0
"""
LOOPED = """
r0 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B3.1 B2.1 B1.1 B0.1 B3.0 B2.0 B1.0 B0.0
r1 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B3.1 B2.1 B1.1 B0.1 B3.0 B2.0 B1.0 B0.0
"""

# schedule, rows, costs, makespan, longest span of a stage, peaks
PUBLISHED = {
    "breadth-first": (breadth_first(2, 4, 2), LOOPED, UNIT, 27, 27, (8, 8)),
    "zb-h1": (zb_h1(4, 8), ZB_H1, UNIT, 27, 27, (4, 4, 4, 4)),
    "zb-h2": (zb_h2(4, 8), ZB_H2, UNIT, 27, 24, (7, 7, 7, 7)),
    "zb-v": (zb_v(4, 8), ZB_V, UNIT, 51, 48, (8, 8, 8, 8)),
    "dualpipe-v": (dualpipe_v(2, 8), DUALPIPE_V, UNIT, 50, 50, (5, 5)),
    "dualpipe": (dualpipe(4, 8), DUALPIPE, UNIT, 26, 26, (5, 5, 5, 5)),
    "chimera F = B": (chimera(4, 4), CHIMERA, EqualCosts(F=1, B=1), 10, 10, (3, 4, 4, 3)),
    "chimera 2 F = B": (chimera(4, 4), CHIMERA, UNIT, 16, 16, (3, 4, 4, 3)),
    "hanayo": (hanayo(4, 4), HANAYO, EqualCosts(F=1, B=1), 22, 22, (5, 6, 7, 8)),
}


@pytest.mark.parametrize(("schedule", "rows", "costs", "makespan", "span", "peaks"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_rows(
    schedule: Schedule, rows: str, costs: EqualCosts[int], makespan: int, span: int, peaks: tuple[int, ...]
) -> None:
    assert order_lines(schedule) == rows.strip().split("\n")
    timing = time_actions(check_schedule(schedule), costs)
    assert (timing.makespan, max(timing.spans), timing.peak_in_flight) == (makespan, span, peaks)


# --- closed forms on random rational times --------------------------------------------------------------------------


def split(F: Fraction, I: Fraction, W: Fraction) -> EqualCosts[Fraction]:  # noqa: E741
    return EqualCosts(F=F, B=I + W, I=I, W=W)


@many
@given(P=st.integers(1, 6), more=st.integers(0, 12), v=st.integers(1, 4), f=TIMES, b=TIMES)
def test_breadth_first(P: int, more: int, v: int, f: Fraction, b: Fraction) -> None:
    M = P + more
    timing = time_actions(breadth_first(P, M, v), EqualCosts(F=f, B=b))
    assert timing.makespan == (M * v + P - 1) * (f + b)
    assert timing.peak_in_flight == (M * v,) * P


@many
@given(P=st.integers(1, 6), spare=st.integers(0, 4), v=st.integers(1, 4), groups=st.integers(0, 3), data=st.data())
def test_interleaved_in_groups(P: int, spare: int, v: int, groups: int, data: st.DataObject) -> None:
    g = P + spare
    rest = data.draw(st.sampled_from([0, *range(P, g)] if groups else [g, *range(P, g)]))
    M = groups * g + rest
    f, b = data.draw(TIMES), data.draw(TIMES)
    schedule = check_schedule(interleaved(P, M, v, group_size=g))
    timing = time_actions(schedule, EqualCosts(F=f, B=b))
    assert timing.makespan == (M * v + P - 1) * (f + b)
    assert timing.peak_in_flight == tuple(min(2 * (P - 1 - r) + (v - 1) * g + 1, M * v) for r in range(P))


@many
@given(P=st.integers(1, 6), v=st.integers(1, 4), groups=st.integers(1, 3))
def test_interleaved_in_pairs(P: int, v: int, groups: int) -> None:
    """A pair is as long as its halves, and the next ones are only needed at its end: one more ahead makes up for it."""
    M = groups * P
    schedule = check_schedule(interleaved(P, M, v, pairs=True))
    timing = time_actions(schedule, EqualCosts(F=Fraction(2), B=Fraction(3)))
    assert timing.makespan == (M * v + P - 1) * 5
    assert timing.peak_in_flight == tuple(min(2 * (P - 1 - r) + (v - 1) * P + 2, M * v) for r in range(P))
    ahead = [min(2 * (P - 1 - r) + (v - 1) * P + 1, M * v) for r in range(P)]
    assert [len(fused) for fused in schedule.fused] == [M * v - warmup for warmup in ahead]


@many
@given(P=st.integers(1, 6), M=st.integers(1, 12))
def test_1f1b_in_pairs(P: int, M: int) -> None:
    """A pair is as long as both of its passes; of two microbatches it is a pass of one that is twice as long."""
    costs = EqualCosts(F=Fraction(2), B=Fraction(3))
    timing = time_actions(check_schedule(one_f_one_b_in_pairs(P, M, pairs="forward-backward")), costs)
    assert timing.makespan == (M + P - 1) * 5
    assert timing.peak_in_flight == tuple(min(2 * (P - 1 - r) + 2, M) for r in range(P))
    timing = time_actions(check_schedule(one_f_one_b_in_pairs(P, 2 * M, pairs="microbatches")), costs)
    assert timing.makespan == (M + P - 1) * 10
    assert timing.peak_in_flight == tuple(2 * min(P - r, M) for r in range(P))
    with pytest.raises(InputError, match=f"{2 * M - 1} is not divisible by 2; use {2 * M} micro"):
        one_f_one_b_in_pairs(P, 2 * M - 1, pairs="microbatches")


def test_groups_of_the_number_of_stages_are_the_default() -> None:
    assert interleaved(4, 8, 3, group_size=4) == interleaved(4, 8, 3)
    with pytest.raises(InputError, match="in groups of 3; a group needs at least one microbatch per stage: use"):
        interleaved(4, 8, 2, group_size=3)
    with pytest.raises(InputError, match=r"14 microbatches on 4 .* leave 2 for the last group.* use 12 or 16 micro"):
        interleaved(4, 14, 2, group_size=6)


def test_larger_groups_hide_messages() -> None:
    costs = EqualCosts(F=1, B=2)
    steps = [
        time_actions(interleaved(4, 24, 2, group_size=g), costs, latency=Fraction(3, 2)).makespan for g in (4, 6, 8, 12)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]


@many
@given(P=st.integers(1, 7), more=st.integers(0, 12), F=TIMES, I=TIMES, W=TIMES)
def test_zb_h1(P: int, more: int, F: Fraction, I: Fraction, W: Fraction) -> None:  # noqa: E741
    M = P + more
    timing = time_actions(zb_h1(P, M), split(F, I, W))
    assert timing.makespan == M * (F + I + W) + (P - 1) * max(F, I, F + I - W)
    assert timing.peak_in_flight == (P,) * P


@many
@given(P=st.integers(1, 6), more=st.integers(0, 12), F=TIMES, I=TIMES, W=TIMES)
def test_zb_h2(P: int, more: int, F: Fraction, I: Fraction, W: Fraction) -> None:  # noqa: E741
    M = 2 * P - 1 + more
    timing = time_actions(zb_h2(P, M), split(F, I, W))
    assert timing.makespan == M * (F + I + W) + (P - 1) * max(F, I - F, F + I - 2 * W)
    assert timing.peak_in_flight == (2 * P - 1,) * P
    if W <= F:
        assert max(timing.spans) == M * (F + I + W) + max(Fraction(0), (P - 1) * (F + I - 2 * W))


@many
@given(P=st.integers(1, 6), more=st.integers(0, 12), f=TIMES)
def test_zb_v(P: int, more: int, f: Fraction) -> None:
    M = 2 * P - 1 + more
    timing = time_actions(zb_v(P, M), split(f, f, f))
    assert timing.spans == (6 * M * f,) * P  # no bubble
    assert timing.makespan == 6 * M * f + (P - 1) * f
    assert timing.peak_in_flight == (2 * P,) * P


@pytest.mark.parametrize("P", [2, 3, 4, 5, 6, 7, 8, 12, 21])
def test_v_half_and_v_min(P: int) -> None:
    for M in (2 * P, 2 * P + 1, 3 * P + 2):
        half, least = time_actions(v_half(P, M), UNIT), time_actions(v_min(P, M), UNIT)
        assert half.makespan == 6 * M + (3 * P - 4 if P % 2 else max(1, 3 * P - 7))
        assert least.makespan == 6 * M + 4 * P - 5
        assert max(half.peak_in_flight) == P + 2 - P % 2
        assert max(least.peak_in_flight) == 2 * -(-(P + 2) // 3)
        classic = time_actions(one_f_one_b(P, M), EqualCosts(F=2, B=4))  # a stage of two such chunks
        assert half.makespan < least.makespan < classic.makespan == 6 * M + 6 * (P - 1)


def test_v_half_and_v_min_as_measured_in_the_papers_repository() -> None:
    for P, M, half, least in [(4, 8, 6, 4), (8, 16, 10, 8)]:
        assert max(peak_in_flight(v_half(P, M))) == half
        assert max(peak_in_flight(v_min(P, M))) == least
    assert (time_actions(v_half(4, 8), UNIT).makespan - 48, time_actions(v_min(4, 8), UNIT).makespan - 48) == (5, 11)


@many
@given(pairs=st.integers(1, 4), more=st.integers(0, 8), F=TIMES, w=PARTS, fb=PARTS)
def test_dualpipe(pairs: int, more: int, F: Fraction, w: Fraction, fb: Fraction) -> None:
    P, M, W = 2 * pairs, 4 * pairs + 2 * more, F * w  # F = I >= W
    B = F + W
    timing = time_actions(dualpipe(P, M), split(F, F, W))
    assert timing.makespan == M * (F + B) + (P // 2 - 1) * (F + B + B - 3 * W)
    assert timing.peak_in_flight == (P + 1,) * P
    together = B + F * fb  # the pair overlaps: its README's formula is the bubble of the stages in the middle
    overlapped = time_actions(dualpipe(P, M), split(F, F, W), pair=lambda forward, backward: together)
    assert overlapped.idle[P // 2] == overlapped.idle[P // 2 - 1] == (P // 2 - 1) * (together + B - 3 * W)
    assert max(overlapped.idle) == overlapped.idle[P // 2]


def test_dualpipe_where_f_and_i_differ() -> None:
    timing = time_actions(dualpipe(4, 8), EqualCosts(F=9, B=13, I=11, W=2))
    assert timing.makespan == 8 * 22 + 27  # and not the 29 of the README's formula, which wants F = I


@many
@given(P=st.integers(1, 5), more=st.integers(0, 10), f=TIMES, w=PARTS)
def test_dualpipe_v(P: int, more: int, f: Fraction, w: Fraction) -> None:
    M, w = 2 * P + more, f * w
    b = f + w
    timing = time_actions(dualpipe_v(P, M), split(f, f, w))
    assert timing.makespan == 2 * M * (f + b) + (P - 1) * (f + b + b - 3 * w)
    assert timing.peak_in_flight == (2 * P + 1,) * P


@many
@given(pairs=st.integers(1, 4), k=st.integers(1, 4), F=TIMES, B=TIMES)
def test_chimera(pairs: int, k: int, F: Fraction, B: Fraction) -> None:
    D = 2 * pairs
    timing = time_actions(chimera(D, k * D), EqualCosts(F=F, B=B))
    assert timing.makespan == k * D * (F + B) + (D - 2) * (max(F, B) + (k - 1) * abs(B - F))
    assert timing.peak_in_flight == tuple(D // 2 + 1 + min(d, D - 1 - d) for d in range(D))


@many
@given(P=st.integers(1, 5), k=st.integers(1, 4), W=st.integers(1, 3), f=TIMES, b=TIMES)
def test_hanayo(P: int, k: int, W: int, f: Fraction, b: Fraction) -> None:
    M = k * P
    timing = time_actions(hanayo(P, M, 2 * W), EqualCosts(F=f, B=b))
    assert timing.makespan == 2 * W * M * (f + b) + 2 * (P - 1) * (max(f, b) + (k - 1) * abs(b - f))
    assert timing.peak_in_flight == tuple(2 * W * P - (P - 1 - d) for d in range(P))


LATENCY = {
    "zb-h1": (zb_h1, 4, 8, 12),
    "zb-h1, M = P": (zb_h1, 4, 4, 10),
    "zb-h2": (zb_h2, 4, 8, 3),
    "zb-v": (zb_v, 4, 16, 13),
    "zb-v of 8": (zb_v, 8, 32, 33),
    "dualpipe": (dualpipe, 4, 16, 15),
    "dualpipe of 8": (dualpipe, 8, 32, 37),
    "dualpipe-v": (dualpipe_v, 4, 16, 28),
}


@pytest.mark.parametrize(("make", "P", "M", "hops"), LATENCY.values(), ids=LATENCY)
def test_small_latencies_cost_so_many_hops(make, P: int, M: int, hops: int) -> None:
    costs = split(Fraction(1), Fraction(1), Fraction(1))
    c = Fraction(1, 1000)
    assert time_actions(make(P, M), costs, c).makespan == time_actions(make(P, M), costs).makespan + hops * c


# --- automatic zero bubble ------------------------------------------------------------------------------------------

# (F, I, W, latency): {memory limit: (makespan, longest span), both less M (F + I + W)}; P = 4, M = 8; figures of the
# heuristic in the repository of arXiv:2401.10241, the optimum but in one case (12, where 10 can be)
AUTOMATIC = {
    (1, 1, 1, 0): {4: (3, 3), 6: (3, 1), 7: (3, 0), 8: (3, 0)},
    (10, 12, 8, 0): {4: (42, 42), 6: (30, 26), 7: (30, 18), 8: (30, 10)},
    (10, 12, 8, 1): {4: (54, 54), 6: (33, 32), 7: (33, 24), 8: (33, 16)},
    (10, 15, 6, 0): {4: (57, 57), 6: (45, 45), 7: (39, 39), 8: (33, 33)},
}
BY_LIMIT = [(times, limit, want) for times, limits in AUTOMATIC.items() for limit, want in limits.items()]


@pytest.mark.parametrize(("times", "limit", "want"), BY_LIMIT)
def test_automatic_zero_bubble_as_in_the_papers_repository(
    times: tuple[int, int, int, int], limit: int, want: tuple[int, int]
) -> None:
    F, I, W, c = times  # noqa: E741
    costs = EqualCosts(F=F, B=I + W, I=I, W=W)
    schedule = check_schedule(zb_auto(4, 8, costs=costs, latency=c, memory_limit=limit))
    timing = time_actions(schedule, costs, c)
    assert (timing.makespan - 8 * (F + I + W), max(timing.spans) - 8 * (F + I + W)) == want
    assert max(timing.peak_in_flight) <= limit
    if (times, limit) == ((10, 12, 8, 1), 8):
        row = "r1 F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 F7 I3 W0 W1 I4 I5 W2 I6 W3 I7 W4 W5 W6 W7"
        assert order_lines(schedule)[1] == row


@many
@given(
    P=st.integers(1, 5), M=st.integers(1, 10), limit=st.integers(1, 10), F=TIMES, I=TIMES, W=TIMES,
    c=st.fractions(0, 5, max_denominator=12),
)  # fmt: skip
def test_automatic_zero_bubble_keeps_its_limit_and_is_never_worse_than_by_hand(
    P: int,
    M: int,
    limit: int,
    F: Fraction,
    I: Fraction,  # noqa: E741
    W: Fraction,
    c: Fraction,
) -> None:
    schedule = check_schedule(zb_auto(P, M, costs=split(F, I, W), latency=c, memory_limit=limit))
    assert max(peak_in_flight(schedule)) <= limit
    span = max(time_actions(schedule, split(F, I, W), c).spans)
    for make in (zb_h1, zb_h2):
        if max(peak_in_flight(make(P, M))) <= limit:
            assert span <= max(time_actions(make(P, M), split(F, I, W), c).spans)


def test_automatic_zero_bubble_takes_stages_as_they_are() -> None:
    def uneven(kind: str, stage: int, chunk: int) -> int:
        return {"F": 10, "B": 20, "I": 12, "W": 8}[kind] * (3 if stage == 2 else 2)

    alike = zb_auto(4, 12, costs=EqualCosts(F=10, B=20, I=12, W=8), memory_limit=5)
    made = zb_auto(4, 12, costs=uneven, memory_limit=5)
    assert max(time_actions(alike, uneven).spans) == 1112
    assert max(time_actions(made, uneven).spans) == 1080 == 12 * 3 * 30  # the slowest stage never waits
    for limit in (0, -1, True):
        with pytest.raises(InputError, match=r"memory_limit is .* a stage must be able to hold at least 1"):
            zb_auto(4, 8, memory_limit=limit)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        (dualpipe, (3, 12, 1), "both must be even.* use 8 on 4"),
        (dualpipe, (4, 9, 1), "both must be even.* use 8 on 4"),
        (dualpipe, (4, 6, 1), "at least two microbatches per stage: use 8 on 4"),
        (dualpipe_v, (4, 7, 1), "at least two per stage: use 8 or more"),
        (chimera, (3, 6, 1), "both must be even.* use 6 on 4"),
        (chimera, (4, 5, 1), "both must be even.* use 6 on 4"),
        (hanayo, (4, 8, 3), "3 chunks per stage must be even.* use 2 or 4"),
        (zb_v, (4, 8, 3), "has 2 chunks per stage .*, not 3; set chunks to 2, or omit it"),
        (dualpipe, (4, 8, 4), "a copy of the model for each direction"),
        (zb_h1, (4, 8, 2), "has one chunk per stage, not 2"),
    ],
)
def test_refusals_name_a_fix(make, shape: tuple[int, int, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make(*shape)


@pytest.mark.parametrize("make", [zb_v, v_half, v_min, dualpipe_v, dualpipe, chimera, hanayo])
def test_one_chunk_stands_for_as_many_as_there_are(make) -> None:
    assert make(4, 8) == make(4, 8, 2)


def test_every_small_shape_plays() -> None:
    for make, P, M in itertools.product((zb_h1, zb_h2, zb_v, v_half, v_min, hanayo), range(1, 7), range(1, 9)):
        check_schedule(make(P, M))


def test_peaks_against_gpipe_and_1f1b() -> None:
    """Half-stages count half: ZB-V holds what 1F1B's first stage holds, V-half about half of it, V-min a third."""
    P, M = 12, 48
    worst = {make: Fraction(max(peak_in_flight(make(P, M))), 2) for make in (zb_v, v_half, v_min)}
    assert max(peak_in_flight(gpipe(P, M))) == M
    assert worst[zb_v] == max(peak_in_flight(one_f_one_b(P, M))) == P
    assert worst[v_half] == Fraction(P, 2) + 1
    assert worst[v_min] == 5  # P / 3 and one more
