"""Factors over time, and computation and transfers that follow them: against hand calculation and integration."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_interference import Row, program, spans, times_of, transfer

from simcluster.base.clock import (
    STEADY,
    TICK,
    AlternatingProfile,
    Profile,
    WindowProfile,
    multiply_profiles,
    slowed_duration,
)
from simcluster.base.errors import DeadlockError
from simcluster.engine.explicit_program import ExplicitProgram

quarters = st.integers(0, 40).map(lambda number: number / 4)


@st.composite
def windows(draw: st.DrawFn) -> WindowProfile:
    """A window on quarters of a second, once or again and again."""
    value, start = draw(st.sampled_from([1.0, 1.5, 2.0, 4.0])), draw(quarters)
    end = start + draw(st.sampled_from([0.25, 1.0, 3.0, math.inf]))
    period = draw(st.sampled_from([0.5, 1.0, math.inf]))
    return WindowProfile(value, start, end, period, 0.25 if period < math.inf else math.inf)


profiles = st.lists(windows(), min_size=1, max_size=3).map(multiply_profiles)


@given(profile=profiles)
def test_a_profile_changes_only_where_it_says(profile: Profile) -> None:
    instants = [number / 16 for number in range(16 * 12)]
    for one, other in pairwise(instants):
        if profile.factor_at(one) != profile.factor_at(other):
            assert one < profile.next_change(one) <= other
    for instant in instants:
        change = profile.next_change(instant)
        assert change > instant
        assert change == math.inf or change * 4 == int(change * 4)


def test_a_window_that_comes_again() -> None:
    window = WindowProfile(2.0, 1.0, 5.0, period=1.5, length=0.5)  # 1 to 1.5, 2.5 to 3, 4 to 4.5
    assert [window.factor_at(instant / 4) for instant in range(22)] == [
        1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1,
    ]  # fmt: skip
    found, now = [], 0.0
    while now < math.inf:
        found.append(now := window.next_change(now))
    assert found == [1.0, 1.5, 2.5, 3.0, 4.0, 4.5, math.inf]


def test_spells_are_the_same_whoever_asks_first() -> None:
    def made() -> AlternatingProfile:
        return AlternatingProfile(0.5, [1.0, 2.0, 1.0, 4.0], first=False)

    early, late = made(), made()
    assert [late.factor_at(instant) for instant in (7.5, 3.5, 2.0, 0.0)] == [0.5, 1.0, 0.5, 1.0]
    assert [early.factor_at(instant) for instant in (0.0, 2.0, 3.5, 7.5)] == [1.0, 0.5, 1.0, 0.5]
    assert [early.next_change(instant) for instant in (0.0, 1.0, 3.0)] == [1.0, 3.0, 4.0]


# --- computation ------------------------------------------------------------------------------------------------------


def test_a_kernel_slows_down_and_recovers() -> None:
    """Half speed from 0.25 to 0.75 s: a quarter is done by then, and a kernel of 1 s takes 1.25 s."""
    made, slow = program([(1.0, 1.0)], [], 0.0, 0.0), WindowProfile(2.0, 0.25, 0.75)
    assert spans(made, speeds={0: slow}) == [(0, 0.0, 1.25)]
    assert slowed_duration(slow, 0.0, 1.0) == 1.25
    assert spans(made, speeds={0: WindowProfile(1.0, 0.25, 0.75)}) == [(0, 0.0, 1.0)]


def test_a_throttling_gpu_does_not_slow_its_collectives() -> None:
    made = program([(1.0, 1.0), (2.0, None), (1.0, 1.0)], [], 0.0, 0.0)
    slow = WindowProfile(2.0, 0.0, math.inf, period=4.0, length=3.0)  # fast from 3 to 4 and from 7 on
    assert spans(made, speeds={0: slow}) == [(0, 0.0, 2.0), (0, 2.0, 4.0), (0, 4.0, 6.0)]


lengths = st.integers(1, 12).map(lambda number: number / 8)
rows = st.lists(st.tuples(lengths, st.sampled_from([1.0, 0.5, 0.0, None])), min_size=1, max_size=5)


@given(main=rows, speed=profiles)
def test_rows_take_the_integral_of_their_speed(main: list[Row], speed: Profile) -> None:
    found = spans(program(main, [], 0.0, 0.0), speeds={0: speed})
    for (seconds, sensitivity), (_, start, end) in zip(main, found, strict=True):
        expected = seconds if sensitivity is None else slowed_duration(speed, start, seconds)
        assert end - start == pytest.approx(expected, abs=8 * TICK)


@given(main=rows, start=quarters, length=quarters, factors=st.lists(st.floats(1, 8), min_size=2, max_size=4))
def test_slower_is_never_faster(main: list[Row], start: float, length: float, factors: list[float]) -> None:
    def end(factor: float) -> float:
        return spans(program(main, [], 0.0, 0.0), speeds={0: WindowProfile(factor, start, start + length)})[-1][2]

    ends = [end(factor) for factor in sorted(factors)]
    assert all(later >= earlier - 8 * TICK for earlier, later in pairwise(ends))


# --- links ------------------------------------------------------------------------------------------------------------


def arrivals(profile: Profile, sizes: list[float], starts: list[float]) -> list[float]:
    """When flows on a link of 1 B/s that begin then are over."""
    made = ExplicitProgram()
    for start, size in zip(starts, sizes, strict=True):
        lane = made.add_lane(0)
        made.add_op(lane, start)
        made.add_op(lane, rendezvous=transfer(made, 0, size))
    found: list[float] = times_of(made, capacities={0: profile}).end[1::2].tolist()
    return found


def test_a_link_at_half_for_half_a_second() -> None:
    assert arrivals(WindowProfile(0.5, 0.25, 0.75), [1.0], [0.0]) == [1.25]


def test_a_flap_holds_a_flow_up_and_loses_nothing() -> None:
    assert arrivals(WindowProfile(0.0, 0.5, 2.5), [1.0], [0.0]) == [3.0]
    assert arrivals(WindowProfile(0.0, 0.5, 2.5), [1.0], [1.0]) == [3.5]


def test_a_link_that_flaps_every_second() -> None:
    """Down in the first quarter of each second: 3 B take a second for every three quarters."""
    assert arrivals(WindowProfile(0.0, 0.0, math.inf, 1.0, 0.25), [3.0], [0.0]) == [4.0]


def test_nobody_looks_at_a_link_that_nobody_uses() -> None:
    """A profile that changes for ever does not keep a run going, and a flow that comes late finds it as it is then."""
    assert arrivals(WindowProfile(0.5, 0.0, math.inf, 1.0, 0.5), [0.25, 1.0], [0.0, 1000.25]) == [0.5, 1001.625]


@given(sizes=st.lists(lengths, min_size=1, max_size=4), starts=st.lists(quarters, min_size=4, max_size=4))
def test_a_link_that_only_might_change(sizes: list[float], starts: list[float]) -> None:
    same = WindowProfile(1.0, 0.0, math.inf, 0.5, 0.25)
    assert arrivals(same, sizes, starts[: len(sizes)]) == arrivals(STEADY, sizes, starts[: len(sizes)])


def test_a_deadlock_is_found_while_links_flap() -> None:
    """One of two parties never comes: the run ends and says so, whatever changes for ever."""
    made = ExplicitProgram()
    lane = made.add_lane(0)
    made.add_op(lane, rendezvous=transfer(made, 0, 2.0))
    made.add_op(lane, rendezvous=transfer(made, 0, 1.0))
    made.meetings[1] = made.meetings[1]._replace(parties=2)
    with pytest.raises(DeadlockError, match="1 of 2 have arrived"):
        times_of(made, capacities={0: WindowProfile(0.5, 0.0, math.inf, 1.0, 0.5)})
