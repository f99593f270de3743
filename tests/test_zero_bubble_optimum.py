"""Automatic zero bubble is the optimum of its goal: against every legal order tried, and against another solver.

Pipelines so small that all orders are enumerated, by an oracle that shares nothing with the search; larger ones whose
optima a constraint solver has proved; and rules that hold at any size.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.schedules import EqualCosts, Kind, check_schedule, peak_in_flight, time_actions, zb_auto, zb_h1, zb_h2
from simcluster.schedules.zb_auto import ALWAYS_PROVED, Goal, OptimizedSchedule, optimize_schedule
from simcluster.schedules.zb_rounds import HeuristicOptions, RoundsBuilder

Stage = tuple[int, int, int]
"""F, I and W of a stage."""


def words(M: int, limit: int, part: float) -> list[str]:
    """Every order of a stage's F, I and W within its memory; microbatches are alike, so each kind is in their order."""
    whole, found = [""], []
    while whole:
        word = whole.pop()
        f, i, w = (word.count(kind) for kind in "FIW")
        if w == M:
            found.append(word)
        if f < M and f - i + part * (i - w) + 1 <= limit + 1e-9:
            whole.append(word + "F")
        whole += [word + "I"] * (i < f) + [word + "W"] * (w < i)
    return found


def ends_of(rows: tuple[str, ...], stages: list[Stage], c: int) -> list[int] | None:
    """The end of every stage when each does its row as early as it can; None where they wait for each other."""
    P, total = len(rows), len(rows[0])
    at, clock = [0] * P, [0] * P
    ends: dict[str, list[list[int]]] = {kind: [[] for _ in rows] for kind in "FIW"}
    moved = True
    while moved:
        moved = False
        for s in range(P):
            while at[s] < total:
                kind = rows[s][at[s]]
                n = len(ends[kind][s])
                ready = 0
                if kind != "W":
                    other = s - 1 if kind == "F" else s + 1
                    if 0 <= other < P:
                        if n == len(ends[kind][other]):
                            break
                        ready = ends[kind][other][n] + c
                clock[s] = max(clock[s], ready) + stages[s]["FIW".index(kind)]
                ends[kind][s].append(clock[s])
                at[s] += 1
                moved = True
    return clock if at == [total] * P else None


def optima(stages: list[Stage], M: int, c: int, limit: int, part: float) -> dict[Goal, tuple[int, int]]:
    """Of all orders the least (longest span, makespan), and the least (makespan, longest span)."""
    begins = list(itertools.accumulate((stage[0] + c for stage in stages[:-1]), initial=0))
    every = set()
    for rows in itertools.product(words(M, limit, part), repeat=len(stages)):
        ends = ends_of(rows, stages, c)
        if ends is not None:
            every.add((max(end - begin for end, begin in zip(ends, begins, strict=True)), max(ends)))
    return {"span": min(every), "step": min((makespan, span) for span, makespan in every)}


def made_for(
    stages: list[Stage], M: int, c: int, limit: int | None, part: float, goal: Goal
) -> tuple[OptimizedSchedule, tuple[float, float]]:
    """What zb-auto makes, checked, and what it reaches: the goal, then the other one."""

    def costs(kind: Kind, stage: int, chunk: int) -> float:
        return stages[stage]["FIW".index(kind)]

    made = optimize_schedule(len(stages), M, costs=costs, latency=c, memory_limit=limit, weight_memory=part, goal=goal)
    timing = time_actions(check_schedule(made.schedule), costs, c)
    reached = max(timing.spans), timing.makespan
    return made, reached if goal == "span" else reached[::-1]


def random_case(rng: random.Random, P: int, M: int) -> tuple[list[Stage], int, int, float]:
    """Times (even and uneven stages, small ones that often tie, zeros), latency, limit and weight memory."""
    pool = rng.choice([range(1, 21), range(3), range(1, 200), range(1, 3)])
    stages = [(rng.choice(pool), rng.choice(pool), rng.choice(pool)) for _ in range(P)]
    if rng.random() < 0.5:
        stages = stages[:1] * P
    return stages, rng.choice([0, 1, 3, 9, 50]), rng.randint(1, M), rng.choice([1, 1, 0.5, 0.8, 0.3, 0])


def test_the_case_that_the_heuristic_missed() -> None:
    """Three alike stages, three microbatches: the heuristic's step took 125."""
    made, reached = made_for([(10, 12, 8)] * 3, 3, 1, None, 1, "step")
    assert made.is_proved_optimal
    assert made.value == made.bound == reached[0] == 122


@pytest.mark.parametrize(("P", "M", "cases"), [(1, 3, 20), (2, 2, 60), (2, 3, 25), (3, 2, 30), (4, 2, 12)])
def test_the_optimum_of_all_orders(P: int, M: int, cases: int) -> None:
    rng = random.Random(P * 10 + M)
    for _ in range(cases):
        stages, c, limit, part = random_case(rng, P, M)
        for goal, want in optima(stages, M, c, limit, part).items():
            made, reached = made_for(stages, M, c, limit, part, goal)
            assert (made.is_proved_optimal, made.value, reached) == (True, want[0], want), (
                stages,
                M,
                c,
                limit,
                part,
                goal,
            )


SOLVED = [
    # stages (F, I, W), microbatches, latency, limit, weight memory, least longest span, least makespan
    ([(8, 1, 20)] * 3, 4, 3, 2, 1, 152, 152),
    ([(3, 9, 14), (15, 8, 2), (2, 6, 10)], 4, 3, 3, 1, 144, 144),
    ([(4, 16, 20)] * 4, 4, 9, 2, 0.5, 348, 348),
    ([(9, 20, 2), (9, 19, 12), (10, 19, 1), (5, 13, 15)], 4, 1, 3, 1, 224, 224),
    ([(12, 12, 13)] * 4, 5, 1, 2, 1, 345, 345),
    ([(19, 1, 4), (20, 4, 8), (9, 15, 13), (17, 2, 7)], 5, 9, 3, 0, 306, 306),
    ([(5, 6, 6), (7, 13, 2), (15, 19, 3), (4, 8, 2), (6, 4, 14)], 5, 9, 2, 1, 495, 495),
    ([(153, 131, 58), (114, 48, 72), (104, 45, 194), (80, 161, 141)], 8, 50, 6, 1, 3163, 3577),
    ([(8, 1, 16), (12, 15, 8), (14, 20, 6), (14, 6, 11)], 8, 1, 8, 1, 328, 342),
]
"""Optima that OR-tools' CP-SAT 9.15 has proved for the same task written as intervals, precedences and reservoirs."""


@pytest.mark.parametrize(("stages", "M", "c", "limit", "part", "span", "step"), SOLVED)
def test_the_optimum_that_another_solver_proves(
    stages: list[Stage], M: int, c: int, limit: int, part: float, span: int, step: int
) -> None:
    for goal, want in (("span", span), ("step", step)):
        made, reached = made_for(stages, M, c, limit, part, goal)  # type: ignore[arg-type]
        assert (made.is_proved_optimal, reached[0]) == (True, want)
        assert max(peak_in_flight(made.schedule)) <= (limit if part == 1 else M)


def heuristic(stages: list[Stage], M: int, c: int, limit: int, goal: Goal) -> float:
    """The best of the paper's heuristic and the schedules by hand: what zb-auto was without a search."""
    each: list[dict[Kind, int]] = [dict(zip(("F", "I", "W"), stage, strict=True)) for stage in stages]
    made = [
        RoundsBuilder(M, limit, 1, each, c, HeuristicOptions(*taste)).build_schedule()
        for taste in itertools.product((False, True), repeat=3)
    ]  # fmt: skip
    made += [
        by_hand for by_hand in (zb_h1(len(stages), M), zb_h2(len(stages), M)) if max(peak_in_flight(by_hand)) <= limit
    ]
    timings = [time_actions(schedule, lambda kind, stage, chunk: each[stage][kind], c) for schedule in made]
    return min(max(timing.spans) if goal == "span" else timing.makespan for timing in timings)


@settings(max_examples=30)
@given(
    stages=st.lists(st.tuples(*[st.integers(0, 30)] * 3), min_size=1, max_size=6),
    M=st.integers(1, 9), c=st.integers(0, 20), limit=st.integers(1, 10), goal=st.sampled_from(["span", "step"]),
)  # fmt: skip
def test_never_above_the_heuristic_nor_below_the_bound(
    stages: list[Stage], M: int, c: int, limit: int, goal: Goal
) -> None:
    made, reached = made_for(stages, M, c, limit, 1, goal)
    assert made.bound <= made.value == reached[0] <= heuristic(stages, M, c, min(limit, M), goal)
    assert made.is_proved_optimal or len(stages) * M > ALWAYS_PROVED
    assert made.value == made.bound or not made.is_proved_optimal
    assert max(peak_in_flight(made.schedule)) <= limit


def test_less_memory_than_stages_is_no_standstill() -> None:
    """The heuristic's rounds wait most of the time where a stage holds fewer microbatches than there are stages."""
    stages = [(10, 12, 8)] * 16
    made, reached = made_for(stages, 32, 1, 8, 1, "span")
    assert made.bound <= reached[0] == made.value < 1.12 * made.bound
    assert heuristic(stages, 32, 1, 8, "span") > 3.5 * made.value


def test_the_goals_are_two() -> None:
    """Steps that go on as stages finish are shorter with one schedule, a step that all wait for with another."""
    stages = [(4, 3, 4), (6, 1, 4), (1, 3, 6)]
    assert made_for(stages, 4, 1, None, 1, "span")[1] == (48, 60)
    assert made_for(stages, 4, 1, None, 1, "step")[1] == (52, 51)


@pytest.mark.parametrize("unit", [1.0, Fraction(1, 7), 0.3e-3, 1e9 / 3])
def test_only_ratios_of_times_matter(unit: float | Fraction) -> None:
    """Rows are the same in any unit, of floats and of fractions."""
    times = EqualCosts(F=10 * unit, B=20 * unit, I=12 * unit, W=8 * unit)
    made = optimize_schedule(4, 6, costs=times, latency=unit, memory_limit=3)
    plain = optimize_schedule(4, 6, costs=EqualCosts(F=10, B=20, I=12, W=8), latency=1, memory_limit=3)
    assert made.schedule == plain.schedule
    assert math.isclose(made.value, plain.value * unit, rel_tol=1e-9)


def test_another_goal_is_refused() -> None:
    with pytest.raises(InputError, match=r"goal is 'makespan'; it must be 'span' \(.*\) or 'step' \("):
        zb_auto(3, 3, goal="makespan")
