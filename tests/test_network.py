"""Bytes over shared links: hand calculations, an independent simulator in rationals, and conservation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simcluster.base.clock import TICK
from simcluster.base.errors import DeadlockError
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.traffic.traffic import Traffic

Start = tuple[float, Traffic]
Change = tuple[float, int, float]  # instant, link, new capacity


def flow(links: Iterable[int], size: float, latency: float = 0.0, rounds: int = 1) -> Traffic:
    return Traffic(tuple((link, 1.0) for link in sorted(links)), size, rounds, latency)


@dataclass(frozen=True)
class Changes:
    """A profile that takes the value of the last change of a link so far, as a part of its first capacity."""

    capacity: float
    changes: tuple[tuple[float, float], ...]

    def factor_at(self, instant: float) -> float:
        return next((value / self.capacity for when, value in reversed(self.changes) if when <= instant), 1.0)

    def next_change(self, instant: float) -> float:
        return min((when for when, _ in self.changes if when > instant), default=math.inf)


def simulate(capacity: Sequence[float], starts: Sequence[Start], changes: Sequence[Change] = ()) -> list[float]:
    """Return when each activity ends."""
    program = ExplicitProgram()
    for instant, traffic in starts:
        lane = program.add_lane(0)
        program.add_op(lane, instant)
        program.meetings.append(CommunicationKind(1, [traffic]))
        program.add_op(lane, rendezvous=len(program.meetings) - 1)
    of_link = {
        link: Changes(capacity[link], tuple((when, value) for when, own, value in sorted(changes, key=itemgetter(0))
                                            if own == link))
        for _, link, _ in changes
    }  # fmt: skip
    found: list[float] = simulate_tables(
        program.make_tables(capacity, capacities=of_link), str, keeps_times=False
    ).lane_end.tolist()
    return found


# --- hand calculations ------------------------------------------------------------------------------------------------


def test_one_flow_pays_its_latency_and_its_bytes() -> None:
    assert simulate([4.0], [(1.0, flow([0], 8.0, latency=0.5))]) == [3.5]


def test_a_path_is_as_fast_as_its_narrowest_link() -> None:
    assert simulate([4.0, 2.0, 8.0], [(0.0, flow([0, 1, 2], 8.0))]) == [4.0]


def test_two_equal_flows_end_together_at_twice_the_time() -> None:
    assert simulate([4.0], [(0.0, flow([0], 8.0)), (0.0, flow([0], 8.0))]) == [4.0, 4.0]


def test_a_late_joiner() -> None:
    """8 B at 4 B/s; when half is left another 8 B joins: the first ends at 1 + 4/2, the other 4 B later, alone."""
    assert simulate([4.0], [(0.0, flow([0], 8.0)), (1.0, flow([0], 8.0))]) == [3.0, 4.0]


def test_textbook_rates_over_time() -> None:
    """A over links 1 and 2, B and C beside it: 1/2, 1/2, 3/2; when C is over nothing changes for A, B sets its rate."""
    capacity = [1.0, 2.0]
    a, b, c = flow([0, 1], 2.0), flow([0], 1.0), flow([1], 1.5)
    assert simulate(capacity, [(0.0, a), (0.0, b), (0.0, c)]) == [3.0, 2.0, 1.0]


def test_latency_occupies_nothing() -> None:
    """The first 4 s of the second flow are latency: the first has the link to itself, to its end at 2 s."""
    assert simulate([4.0], [(0.0, flow([0], 8.0)), (0.0, flow([0], 8.0, latency=4.0))]) == [2.0, 6.0]


def test_every_round_pays_its_latency_and_its_bytes() -> None:
    assert simulate([4.0], [(0.0, flow([0], 8.0, latency=0.25, rounds=6))]) == [6 * 2.25]


def test_an_activity_with_two_flows_on_a_link_takes_two_shares() -> None:
    ring = Traffic(((0, 2.0), (1, 1.0)), 4.0, 1, 0.0)
    assert simulate([6.0, 100.0], [(0.0, ring), (0.0, flow([0], 4.0))]) == [2.0, 2.0]


def test_without_links_only_latency_is_left() -> None:
    assert simulate([], [(1.0, Traffic((), 0.0, 3, 2.0))]) == [7.0]


def test_no_bytes_cost_latency_only_even_on_a_dead_link() -> None:
    assert simulate([0.0, 5.0], [(0.0, flow([0], 0.0, latency=2.0)), (0.0, flow([1], 0.0))]) == [2.0, 0.0]


def test_four_flows_over_two_uplinks_of_host_speed_get_half_of_it() -> None:
    """2:1 oversubscription (MODELLING.md C.3): 25 of 50."""
    hosts, up = [50.0] * 4, [50.0] * 2
    assert simulate(hosts + up, [(0.0, flow([host, 4 + host % 2], 100.0)) for host in range(4)]) == [4.0] * 4


def test_a_bound_holds_alone_and_beside_others() -> None:
    """1 B/s at most by its protocol: the other gets 3 of the link's 4 B/s, and all of it never reaches the first."""
    bounded = Traffic(((0, 1.0),), 4.0, 1, 0.0, bound=1.0)
    assert simulate([4.0], [(0.0, bounded)]) == [4.0]
    assert simulate([4.0], [(0.0, bounded), (0.0, flow([0], 6.0))]) == [4.0, 2.0]


# --- capacity that changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ([(1.0, 0, 2.0)], 3.0),  # 4 of 8 B left, at half the speed
        ([(1.0, 0, 8.0)], 1.5),
        ([(1.0, 0, 0.0), (11.0, 0, 4.0)], 12.0),  # cut and mended
        ([(0.0, 0, 0.0), (3.0, 0, 4.0)], 5.0),
        ([(1.0, 0, 1.0), (1.0, 0, 4.0)], 2.0),  # both in one instant: nothing happened
        ([(2.0, 0, 1.0)], 2.0),  # in the instant in which it ends
        ([(1.0, 1, 1.0)], 2.0),  # somebody else's link
    ],
)
def test_a_change_on_the_way(changes: list[Change], end: float) -> None:
    assert simulate([4.0, 4.0], [(0.0, flow([0], 8.0))], changes) == [end]


def test_what_never_ends_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError):
        simulate([4.0], [(0.0, flow([0], 8.0))], [(1.0, 0, 0.0)])


def test_a_change_before_the_start_counts() -> None:
    assert simulate([4.0], [(1.0, flow([0], 8.0))], [(0.0, 0, 2.0)]) == [5.0]


def test_a_change_on_a_shared_link_reaches_all_who_share() -> None:
    """Each gets 2 B/s for 1 s; then the link is dead for 2 s; then 4 B/s each for the 6 B left."""
    starts = [(0.0, flow([0], 8.0)), (0.0, flow([0, 1], 8.0))]
    assert simulate([4.0, 100.0], starts, [(1.0, 0, 0.0), (3.0, 0, 8.0)]) == [4.5, 4.5]


def test_who_comes_first_to_a_link_has_it_however_early_others_began() -> None:
    """The first one's latency ends at 4 s: the second is gone by then, and did not have to share."""
    assert simulate([1.0], [(0.0, flow([0], 1.0, latency=4.0)), (1.0, flow([0], 2.0, latency=0.5))]) == [5.0, 3.5]
    assert simulate([1.0], [(0.0, flow([0], 1.0, latency=3.0)), (1.0, flow([0], 2.0, latency=0.5))]) == [4.5, 4.0]


# --- against an independent simulator ---------------------------------------------------------------------------------

NUM_LINKS = 3
quarters = st.integers(0, 24).map(lambda number: number / 4)
traffics = st.builds(
    Traffic,
    usage=st.dictionaries(st.integers(0, NUM_LINKS - 1), st.integers(1, 2).map(float), min_size=1).map(
        lambda flows: tuple(sorted(flows.items()))
    ),
    round_bytes=st.integers(0, 12).map(float),
    rounds=st.integers(1, 3),
    latency=quarters,
)
jobs = st.lists(st.tuples(quarters, traffics), min_size=1, max_size=6)
capacities = st.lists(st.integers(1, 9).map(float), min_size=NUM_LINKS, max_size=NUM_LINKS)
capacity_changes = st.lists(
    st.tuples(quarters, st.integers(0, NUM_LINKS - 1), st.integers(0, 9).map(float)),
    max_size=4,
    unique_by=lambda change: change[:2],
)


def eager(capacity: Sequence[float], starts: Sequence[Start], changes: Sequence[Change]) -> list[float]:
    """The same in rationals, solving everything for everybody at every event: progressive filling link by link."""
    cap = [Fraction(value) for value in capacity]
    joins = [Fraction(instant) + traffic.rounds * Fraction(traffic.latency) for instant, traffic in starts]
    left = [Fraction(traffic.round_bytes) * traffic.rounds for _, traffic in starts]
    ends: list[float | Fraction] = [math.inf] * len(starts)
    todo = sorted({*joins, *(Fraction(change[0]) for change in changes)})
    now = Fraction(0)
    while True:
        for instant, link, value in changes:
            if instant == now:
                cap[link] = Fraction(value)
        active = [n for n in range(len(starts)) if joins[n] <= now and ends[n] == math.inf]
        for n in active:
            if left[n] == 0:
                ends[n] = now
        active = [n for n in active if ends[n] == math.inf]
        rates = filled({n: dict(starts[n][1].usage) for n in active}, cap)
        nexts = [instant for instant in todo if instant > now]
        nexts += [now + left[n] / rates[n] for n in active if rates[n] > 0]
        if not nexts:
            return [float(end) for end in ends]
        step = min(nexts) - now
        for n in active:
            left[n] -= rates[n] * step
        now += step


def filled(usages: dict[int, dict[int, float]], cap: Sequence[Fraction]) -> dict[int, Fraction]:
    rates: dict[int, Fraction] = {}
    while len(rates) < len(usages):
        levels = {}
        for link, total in enumerate(cap):
            moving = sum(Fraction(usage.get(link, 0)) for n, usage in usages.items() if n not in rates)
            if moving:
                levels[link] = (
                    total - sum(Fraction(usages[n].get(link, 0)) * rate for n, rate in rates.items())
                ) / moving
        narrow = min(levels, key=lambda link: levels[link])
        rates |= {n: levels[narrow] for n, usage in usages.items() if n not in rates and narrow in usage}
    return rates


@given(capacity=capacities, starts=jobs, changes=capacity_changes)
@settings(max_examples=150)
def test_lazy_is_eager(capacity: list[float], starts: list[Start], changes: list[Change]) -> None:
    """Re-solving only what changed gives the completion times of solving everything always.

    The clock's grid rounds every duration by half a tick a round, and a late end delays others by as much.
    """
    allowed = 64 * len(starts) * (len(starts) + len(changes)) * TICK
    expected = eager(capacity, starts, changes)
    assume(math.isfinite(max(expected)))
    assert simulate(capacity, starts, changes) == pytest.approx(expected, rel=0, abs=allowed)


@given(capacity=capacities, starts=jobs, changes=capacity_changes, data=st.data())
def test_who_is_named_first_does_not_matter(
    capacity: list[float], starts: list[Start], changes: list[Change], data: st.DataObject
) -> None:
    assume(math.isfinite(max(eager(capacity, starts, changes))))
    order = data.draw(st.permutations(range(len(starts))))
    shuffled = simulate(capacity, [starts[n] for n in order], changes)
    ends = simulate(capacity, starts, changes)
    assert [ends[n] for n in order] == shuffled


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12), rate=st.integers(1, 1000))
def test_bytes_are_conserved(sizes: list[int], rate: int) -> None:
    """A link that is never idle carries all bytes in bytes / capacity, however they share it."""
    ends = simulate([float(rate)], [(0.0, flow([0], float(size))) for size in sizes])
    assert max(ends) == pytest.approx(sum(sizes) / rate, rel=1e-12, abs=2 * len(sizes) * TICK)
    for size, end in zip(sizes, ends, strict=True):
        carried = sum(min(size, other) for other in sizes)
        assert end == pytest.approx(carried / rate, rel=1e-12, abs=2 * len(sizes) * TICK)


@given(capacity=capacities, starts=jobs, exponent=st.integers(-3, 3))
def test_bytes_and_bandwidths_may_have_another_unit(capacity: list[float], starts: list[Start], exponent: int) -> None:
    unit = 2.0**exponent
    scaled = [
        (instant, Traffic(traffic.usage, unit * traffic.round_bytes, traffic.rounds, traffic.latency))
        for instant, traffic in starts
    ]
    assert simulate([unit * value for value in capacity], scaled) == simulate(capacity, starts)
