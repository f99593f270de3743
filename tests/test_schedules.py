"""Pipeline schedules: a suite that every schedule inherits, golden rows, and the closed forms on exact rationals."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction
from functools import cache

import pytest
from conftest import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.schedules import (
    SCHEDULES,
    EqualCosts,
    Schedule,
    check_schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    peak_in_flight,
    schedule_entry,
    time_actions,
)
from simcluster.schedules.text import order_lines

SHAPES = [
    *[(1, 1, 1), (1, 4, 1), (1, 3, 2), (2, 1, 1), (2, 2, 2), (2, 5, 4), (4, 2, 1), (3, 7, 1)],
    *[(2, 4, 1), (4, 8, 1), (4, 8, 2), (6, 12, 1), (6, 12, 3)],
]
TIMES = st.fractions(min_value=Fraction(1, 12), max_value=20, max_denominator=12)


def every_schedule() -> list[Schedule]:
    """Each registered schedule in each shape that it accepts."""
    made = []
    for name, make in SCHEDULES.items():
        accepted: list[Schedule] = []
        for shape in SHAPES:
            try:
                schedule = make(*shape)
            except InputError:
                continue
            accepted += [schedule] * (schedule not in accepted)  # 1 chunk may stand for as many as there are
        assert len(accepted) >= 3, f"{name} refuses nearly everything; add shapes that it takes"
        made += accepted
    return made


UNIT = 210  # has the denominators of all costs and latencies: whole numbers are exact, too, and ten times as quick


def uneven_costs(kind: str, stage: int, chunk: int) -> Fraction:
    """Every stage, chunk and kind of its own, with no pattern that could hide a mix-up."""
    return Fraction((7 * stage + 3 * chunk + {"F": 2, "B": 11, "I": 5, "W": 4}[kind]) % 13 + 1, 3)


@cache
def uneven_units(kind: str, stage: int, chunk: int) -> int:
    """The same in units, ``UNIT`` of which are 1."""
    return in_units(uneven_costs(kind, stage, chunk))


def in_units(time: Fraction) -> int:
    units = time * UNIT
    assert units.denominator == 1
    return units.numerator


def described(schedule: Schedule) -> str:
    return f"{schedule.name}-{schedule.num_stages}-{schedule.num_microbatches}-{schedule.num_chunks}"


inherited = for_each("schedule", every_schedule(), described)


# --- what every schedule obeys --------------------------------------------------------------------------------------


@inherited
def test_is_sound_and_reproducible(schedule: Schedule) -> None:
    assert check_schedule(schedule) is schedule
    shape = (schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)
    assert SCHEDULES[schedule.name](*shape) == schedule


@inherited
def test_every_microbatch_visits_every_virtual_stage_once(schedule: Schedule) -> None:
    counts = Counter(
        (action.kind, action.microbatch, stage, action.chunk)
        for stage, row in enumerate(schedule.rows)
        for action in row
    )
    assert set(counts.values()) == {1}
    hops = sorted(itertools.product(range(schedule.num_stages), range(schedule.num_chunks)))
    for microbatch in range(schedule.num_microbatches):
        for stage, chunk in hops:
            kinds = [kind for kind in "FBIW" if (kind, microbatch, stage, chunk) in counts]
            on_its_way = (stage, chunk) in schedule.microbatch_route(microbatch)
            assert kinds in ((["F", "B"], ["F", "I", "W"]) if on_its_way else ([],)), (microbatch, stage, chunk)
    assert sorted(hop for route in schedule.routes for hop in route) == hops  # every chunk is on one way
    assert len({len(route) for route in schedule.routes}) == 1  # and every way goes through the whole model


@inherited
def test_hops_follow_the_route(schedule: Schedule) -> None:
    for microbatch in range(schedule.num_microbatches):
        route = schedule.microbatch_route(microbatch)
        for place, hop in enumerate(route):
            assert schedule.virtual_stage(microbatch, *hop) == place
            assert schedule.previous_hop(microbatch, *hop) == (route[place - 1] if place else None)
            assert schedule.next_hop(microbatch, *hop) == (route[place + 1] if hop != route[-1] else None)


@inherited
@pytest.mark.parametrize("latency", [Fraction(0), Fraction(5, 7)])
def test_play_is_the_longest_path(schedule: Schedule, latency: Fraction) -> None:
    timing = time_actions(schedule, uneven_units, in_units(latency))
    assert (timing.starts, timing.ends) == longest_paths(schedule, in_units(latency))
    assert timing.makespan == max(row[-1] for row in timing.ends)


@inherited
def test_work_is_conserved_and_bounds_the_makespan(schedule: Schedule) -> None:
    timing = time_actions(schedule, uneven_costs)
    for stage, row in enumerate(schedule.rows):
        assert timing.busy[stage] == sum(uneven_costs(a.kind, stage, a.chunk) for a in row)
        assert timing.idle[stage] == timing.makespan - timing.busy[stage] >= 0
        assert timing.busy[stage] <= timing.spans[stage] <= timing.makespan
    through = sum(uneven_costs("F", *hop) + uneven_costs("B", *hop) for hop in schedule.microbatch_route(0))
    if not any(action.kind == "I" for row in schedule.rows for action in row):
        assert timing.makespan >= through
    mean_busy = sum(timing.busy) / schedule.num_stages
    assert timing.bubble_over_total == 1 - mean_busy / timing.makespan
    assert timing.bubble_over_ideal == timing.makespan / mean_busy - 1


@inherited
def test_slower_parts_never_speed_it_up(schedule: Schedule) -> None:
    latency = in_units(Fraction(1, 5))
    base = time_actions(schedule, uneven_units, latency).makespan
    assert time_actions(schedule, uneven_units, 2 * latency).makespan >= base
    for slow in itertools.product("FBIW", range(schedule.num_stages), range(schedule.num_chunks)):

        def costs(kind: str, stage: int, chunk: int, slow: tuple[str, int, int] = slow) -> int:
            return uneven_units(kind, stage, chunk) + UNIT * ((kind, stage, chunk) == slow)

        slowed = time_actions(schedule, costs, latency)
        assert slowed.makespan >= base


@inherited
def test_time_scales(schedule: Schedule) -> None:
    base = time_actions(schedule, uneven_costs, Fraction(1, 5))
    scaled = time_actions(schedule, lambda kind, stage, chunk: 7 * uneven_costs(kind, stage, chunk), Fraction(7, 5))
    assert scaled.ends == tuple(tuple(7 * end for end in row) for row in base.ends)
    assert scaled.bubble_over_total == base.bubble_over_total


@inherited
def test_in_flight_peak_is_that_of_the_timeline(schedule: Schedule) -> None:
    timing = time_actions(schedule, uneven_units, in_units(Fraction(1, 2)))
    for stage, row in enumerate(schedule.rows):
        events = []  # at equal time the release (0) comes before the allocation (1)
        for action, start, end in zip(row, timing.starts[stage], timing.ends[stage], strict=True):
            if action.kind == "F":
                events.append((start, 1, 1))
            elif action.kind in "BW":
                events.append((end, 0, -1))
        alive = list(itertools.accumulate(change for _, _, change in sorted(events)))
        assert alive[-1] == 0
        assert max(alive) == timing.peak_in_flight[stage] <= schedule.num_microbatches * schedule.num_chunks
    assert timing.peak_in_flight == peak_in_flight(schedule)


@inherited
def test_what_its_entry_says_of_it_is_so(schedule: Schedule) -> None:
    """The search prunes by it, so that a wrong fact would lose layouts in silence."""
    entry, chunks = SCHEDULES[schedule.name], schedule.num_chunks
    stages, microbatches = schedule.num_stages, schedule.num_microbatches
    splits = any(action.kind == "W" for row in schedule.rows for action in row)
    assert entry.splits_backward or not splits
    assert entry.takes_chunks or entry(stages, microbatches) == schedule
    assert not entry.needs_whole_groups or microbatches % stages == 0
    if entry.route:
        assert schedule.routes == (entry.route(stages, chunks if entry.takes_chunks else 1),)
    if entry.first_forwards:
        for stage, row in enumerate(schedule.rows):
            first = next(place for place, action in enumerate(row) if action.kind != "F")
            assert entry.first_forwards(stages, microbatches, chunks, stage) == first


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_takes_chunks_or_refuses_them(name: str) -> None:
    with nullcontext() if SCHEDULES[name].takes_chunks else pytest.raises(InputError, match="chunk"):
        assert SCHEDULES[name](4, 8, 4).num_chunks == 4


@pytest.mark.parametrize("name", SCHEDULES)
@for_each("shape", [(0, 4, 1), (4, 0, 1), (4, 4, 0), (-1, 4, 1), (True, 4, 1), (2, 2.0, 1)])
def test_counts_below_one_are_refused(name: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match=f"schedule '{name}': .* whole number of at least 1"):
        SCHEDULES[name](*shape)


def longest_paths(schedule: Schedule, latency: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Starts and ends by relaxation over the edges of the model, written naively and on its own."""
    place_of = {
        (action.kind, action.microbatch, schedule.microbatch_route(action.microbatch).index((stage, action.chunk))): (
            stage,
            position,
        )
        for stage, row in enumerate(schedule.rows)
        for position, action in enumerate(row)
    }
    partner = {}  # the two halves of a pair, which begin and end together
    for stage in range(schedule.num_stages):
        for position in schedule.fused_positions(stage):
            partner[stage, position] = (stage, position + 1)
            partner[stage, position + 1] = (stage, position)

    def gradient(microbatch: int, place: int) -> tuple[int, int] | None:
        return place_of.get(("B", microbatch, place)) or place_of.get(("I", microbatch, place))

    def duration(stage: int, position: int) -> int:
        both = [position, partner[stage, position][1]] if (stage, position) in partner else [position]
        actions = [schedule.rows[stage][each] for each in both]
        return sum(uneven_units(action.kind, stage, action.chunk) for action in actions)

    start = [[0] * len(row) for row in schedule.rows]
    changed = True
    while changed:
        changed = False
        for (kind, microbatch, place), (stage, position) in place_of.items():
            needs = {
                "F": [place_of.get(("F", microbatch, place - 1))],
                "W": [gradient(microbatch, place)],
            }.get(kind, [place_of["F", microbatch, place], gradient(microbatch, place + 1)])
            needs += (
                [(stage, position - 1)] if position and partner.get((stage, position)) != (stage, position - 1) else []
            )
            arrivals = [
                start[there][index] + duration(there, index) + (latency if there != stage else 0)
                for there, index in filter(None, needs)
            ]
            if (stage, position) in partner:
                arrivals.append(start[stage][partner[stage, position][1]])
            if arrivals and max(arrivals) > start[stage][position]:
                start[stage][position] = max(arrivals)
                changed = True
    ends = tuple(
        tuple(begin + duration(stage, position) for position, begin in enumerate(row))
        for stage, row in enumerate(start)
    )
    return tuple(map(tuple, start)), ends


# --- closed forms ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(P=st.integers(1, 7), M=st.integers(1, 20), F=TIMES, B=TIMES, c=st.fractions(0, 30, max_denominator=12))
def test_gpipe_and_1f1b_on_random_costs(P: int, M: int, F: Fraction, B: Fraction, c: Fraction) -> None:
    ideal = (M + P - 1) * (F + B)
    for make in (gpipe, one_f_one_b):
        timing = time_actions(make(P, M), EqualCosts(F=F, B=B))
        assert timing.makespan == ideal
        assert timing.bubble_over_total == Fraction(P - 1, M + P - 1)
        assert timing.bubble_over_ideal == Fraction(P - 1, M)
    assert time_actions(gpipe(P, M), EqualCosts(F=F, B=B), c).makespan == ideal + 2 * (P - 1) * c
    extra = 2 * c * ((P - 1) + (M - 1) - -(-(M - 1) // P))
    assert time_actions(one_f_one_b(P, M), EqualCosts(F=F, B=B), c).makespan == ideal + extra


@settings(max_examples=60, deadline=None)
@given(P=st.integers(1, 6), groups=st.integers(1, 4), v=st.integers(1, 4), f=TIMES, b=TIMES, part=st.fractions(0, 1))
def test_interleaved_on_random_costs(P: int, groups: int, v: int, f: Fraction, b: Fraction, part: Fraction) -> None:
    M = groups * P
    schedule = interleaved(P, M, v)
    timing = time_actions(schedule, EqualCosts(F=f, B=b))
    assert timing.makespan == M * v * (f + b) + (P - 1) * (f + b)
    assert timing.bubble_over_ideal == Fraction(P - 1, M * v)
    c = part * min(f, b)
    extra = 2 * c * (v * P - 1) if P > 1 else 0
    assert time_actions(schedule, EqualCosts(F=f, B=b), c).makespan == timing.makespan + extra


@settings(max_examples=40, deadline=None)
@given(
    stages=st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=6),
    M=st.integers(1, 12),
)
def test_unequal_stages(stages: list[tuple[Fraction, Fraction]], M: int) -> None:
    def costs(kind: str, stage: int, chunk: int) -> Fraction:
        return stages[stage][kind != "F"]

    P = len(stages)
    through = sum(f + b for f, b in stages)
    most_f, most_b = max(f for f, _ in stages), max(b for _, b in stages)
    assert time_actions(gpipe(P, M), costs).makespan == through + (M - 1) * (most_f + most_b)
    alternating = time_actions(one_f_one_b(P, M), costs).makespan
    whole = [f + b for f, b in stages]
    assert max(sum(whole[:k]) + M * whole[k] for k in range(P)) <= alternating
    assert alternating <= through + (M - 1) * (most_f + most_b)


def test_floats_meet_the_bubble_to_1e_12() -> None:
    for P, M, F, B in [(8, 32, 0.1, 0.2), (16, 512, 1.37e-3, 2.91e-3), (64, 100, 3e-6, 7e-6)]:
        for make in (gpipe, one_f_one_b):
            timing = time_actions(make(P, M), EqualCosts(F=F, B=B))
            assert timing.bubble_over_total == pytest.approx((P - 1) / (M + P - 1), rel=1e-12)
    assert time_actions(one_f_one_b(8, 32), EqualCosts(F=1, B=2)).bubble_over_total == pytest.approx(0.179, abs=5e-4)


@pytest.mark.parametrize(
    ("P", "M", "v"), [(1, 1, 1), (1, 6, 3), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 32, 3), (3, 3, 4)]
)
def test_in_flight_peaks(P: int, M: int, v: int) -> None:
    ranks = range(P)
    assert peak_in_flight(gpipe(P, M)) == (M,) * P
    assert peak_in_flight(one_f_one_b(P, M)) == tuple(min(P - d, M) for d in ranks)
    chunks = tuple(min(2 * (P - 1 - d) + (v - 1) * P + 1, M * v) for d in ranks)
    assert peak_in_flight(interleaved(P, M, v)) == chunks


@pytest.mark.parametrize("P", [1, 2, 5])
def test_corners(P: int) -> None:
    costs = EqualCosts(F=Fraction(3), B=Fraction(7))
    assert one_f_one_b(P, 1).rows == gpipe(P, 1).rows
    assert time_actions(one_f_one_b(P, 1), costs).makespan == P * 10
    assert time_actions(interleaved(1, P, 3), costs, latency=9).makespan == P * 3 * 10  # one stage sends nothing
    assert time_actions(interleaved(P, 2 * P), costs).makespan == time_actions(one_f_one_b(P, 2 * P), costs).makespan


# --- golden rows, letter for letter ---------------------------------------------------------------------------------

GOLDEN_1F1B = """
r0 F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
r1 F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7
r2 F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7
r3 F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7
"""
GOLDEN_GPIPE = """
r0 F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
r1 F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
r2 F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
r3 F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7
"""
GOLDEN_INTERLEAVED = """
r0 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0
r1 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 B0.1 F5.0 B1.1 F6.0 B2.1 F7.0 B3.1 F4.1 B0.0 F5.1 B1.0 F6.1 B2.0 F7.1 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0
r2 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 B0.1 F3.1 B1.1 F4.0 B2.1 F5.0 B3.1 F6.0 B0.0 F7.0 B1.0 F4.1 B2.0 F5.1 B3.0 F6.1 B4.1 F7.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0
r3 F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0
"""  # noqa: E501


@pytest.mark.parametrize(
    ("name", "chunks", "golden", "makespan", "peaks"),
    [
        ("1f1b", 1, GOLDEN_1F1B, 33, (4, 3, 2, 1)),
        ("gpipe", 1, GOLDEN_GPIPE, 33, (8, 8, 8, 8)),
        ("interleaved", 2, GOLDEN_INTERLEAVED, 57, (11, 9, 7, 5)),
    ],
)
def test_golden_rows(name: str, chunks: int, golden: str, makespan: int, peaks: tuple[int, ...]) -> None:
    schedule = schedule_entry(name)(4, 8, chunks)
    assert order_lines(schedule) == golden.strip().split("\n")
    timing = time_actions(schedule, EqualCosts(F=1, B=2))
    assert (timing.makespan, timing.idle, timing.peak_in_flight) == (makespan, (9, 9, 9, 9), peaks)
