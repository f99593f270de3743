"""Max-min fair rates: the textbook case, the certificate of optimality, and that order and grouping change no bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.traffic.fairness import Sharer, Shares, Usage, fair_rates, solo_rate

Usages = Mapping[int, Usage]

NUM_LINKS = 5
capacities = st.lists(st.integers(1, 12).map(float), min_size=NUM_LINKS, max_size=NUM_LINKS)
usage = st.dictionaries(st.integers(0, NUM_LINKS - 1), st.integers(1, 3).map(float), min_size=1).map(
    lambda flows: tuple(sorted(flows.items()))
)
activities = st.lists(usage, min_size=1, max_size=8).map(lambda usages: dict(enumerate(usages)))


def exact_rates(usages: Usages, capacity: Sequence[float]) -> dict[int, Fraction]:
    """Progressive filling as the textbook writes it, in rationals, one link at a time."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(usages):
        levels = {}
        for link in range(len(capacity)):
            flows = {key: Fraction(dict(usage).get(link, 0)) for key, usage in usages.items()}
            moving = sum(flow for key, flow in flows.items() if key not in rates)
            if moving:
                used = sum(flow * rates[key] for key, flow in flows.items() if key in rates)
                levels[link] = (Fraction(capacity[link]) - used) / moving
        link = min(levels, key=lambda each: levels[each])
        for key, usage in usages.items():
            if key not in rates and link in dict(usage):
                rates[key] = levels[link]
    return rates


def test_textbook() -> None:
    """Links of 1 and 2; A over both, B over the first, C over the second: 1/2, 1/2, 3/2 (MODELLING.md C.2)."""
    usages = {0: ((0, 1.0), (1, 1.0)), 1: ((0, 1.0),), 2: ((1, 1.0),)}
    assert fair_rates(usages, [1.0, 2.0]) == {0: 0.5, 1: 0.5, 2: 1.5}


def test_an_activity_is_as_fast_as_its_most_crowded_link() -> None:
    assert solo_rate(((0, 1.0), (1, 3.0)), [2.0, 3.0]) == 1.0
    assert solo_rate((), [2.0]) == math.inf
    assert fair_rates({7: ()}, [2.0]) == {7: math.inf}


def test_a_link_without_capacity_stops_only_who_crosses_it() -> None:
    usages = {0: ((0, 1.0), (1, 1.0)), 1: ((1, 1.0),)}
    assert fair_rates(usages, [0.0, 4.0]) == {0: 0.0, 1: 4.0}


@given(usages=activities, capacity=capacities)
def test_rates_are_those_of_the_textbook_in_rationals(usages: Usages, capacity: list[float]) -> None:
    exact = exact_rates(usages, capacity)
    rates = fair_rates(usages, capacity)
    assert rates.keys() == exact.keys()
    assert all(math.isclose(rates[key], exact[key], rel_tol=1e-12) for key in exact)


@given(usages=activities, capacity=capacities)
def test_bottleneck_certificate(usages: Usages, capacity: list[float]) -> None:
    """No link carries more than it can; every activity crosses a full link on which nobody is faster."""
    rates = fair_rates(usages, capacity)
    load = [math.fsum(dict(usages[key]).get(link, 0.0) * rates[key] for key in usages) for link in range(NUM_LINKS)]
    slack = 1e-12
    assert all(load[link] <= capacity[link] * (1 + slack) for link in range(NUM_LINKS))
    for key, own in usages.items():
        full = [link for link, _ in own if load[link] >= capacity[link] * (1 - slack)]
        fastest = {link: max(rates[k] for k, other in usages.items() if link in dict(other)) for link in full}
        assert any(rates[key] >= fastest[link] * (1 - slack) for link in full)


@given(usages=activities, capacity=capacities, data=st.data())
def test_order_and_names_change_no_bit(usages: Usages, capacity: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(usages)))
    renamed = fair_rates({1000 - key: usages[key] for key in order}, capacity)
    assert {1000 - key: rate for key, rate in renamed.items()} == fair_rates(usages, capacity)


@given(first=activities, second=activities, capacity=capacities, more=capacities)
def test_components_one_by_one_are_the_whole(
    first: Usages, second: Usages, capacity: list[float], more: list[float]
) -> None:
    """Activities on other links change no bit of the solution: what re-solving one component rests on."""
    moved = {100 + key: tuple((NUM_LINKS + link, flows) for link, flows in usage) for key, usage in second.items()}
    together = fair_rates({**first, **moved}, [*capacity, *more])
    apart = fair_rates(first, capacity) | {100 + key: rate for key, rate in fair_rates(second, more).items()}
    assert together == apart


@given(usages=activities, capacity=capacities, data=st.data())
def test_usage_two_is_two_activities_bit_for_bit(usages: Usages, capacity: list[float], data: st.DataObject) -> None:
    """What lets one activity stand for many equal ones (folding)."""
    twin = data.draw(st.sampled_from(sorted(usages)))
    doubled = {**usages, twin: tuple((link, 2 * flows) for link, flows in usages[twin])}
    twins = {**usages, 999: usages[twin]}
    apart = fair_rates(twins, capacity)
    assert apart.pop(999) == apart[twin]
    assert fair_rates(doubled, capacity) == apart


def test_a_bound_leaves_the_rest_to_the_others() -> None:
    usages = {0: ((0, 1.0), (1, 1.0)), 1: ((0, 1.0),), 2: ((1, 1.0),)}
    assert fair_rates(usages, [1.0, 2.0], {0: 0.25}) == {0: 0.25, 1: 0.75, 2: 1.75}
    assert fair_rates({0: ()}, [], {0: 3.0}) == {0: 3.0}


@given(usages=activities, capacity=capacities, bounds=st.dictionaries(st.integers(0, 7), st.integers(1, 6).map(float)))
def test_a_bound_is_a_link_of_ones_own(usages: Usages, capacity: list[float], bounds: dict[int, float]) -> None:
    bounds = {key: bound for key, bound in bounds.items() if key in usages}
    own = {key: NUM_LINKS + place for place, key in enumerate(bounds)}
    linked = {key: (*usage, (own[key], 1.0)) if key in own else usage for key, usage in usages.items()}
    assert fair_rates(usages, capacity, bounds) == fair_rates(linked, [*capacity, *bounds.values()])


@given(usages=activities, capacity=capacities, exponent=st.integers(-20, 40))
def test_units_change_no_bit(usages: Usages, capacity: list[float], exponent: int) -> None:
    scale = 2.0**exponent
    scaled = fair_rates(usages, [scale * each for each in capacity])
    assert scaled == {key: scale * rate for key, rate in fair_rates(usages, capacity).items()}


# --- solved again and again, and from anywhere ------------------------------------------------------------------------

NUM_MORE = 12
any_flows = st.one_of(st.integers(1, 3).map(float), st.integers(1, 2**40).map(lambda part: part / 2**40))
any_usage = st.dictionaries(st.integers(0, NUM_MORE - 1), any_flows, min_size=1, max_size=5).map(
    lambda flows: tuple(sorted(flows.items()))
)
uneven_usage = st.dictionaries(st.integers(0, NUM_MORE - 1), st.floats(0.01, 3.0), min_size=1, max_size=5).map(
    lambda flows: tuple(sorted(flows.items()))
)
any_bound = st.one_of(st.just(math.inf), st.sampled_from([0.1, 0.3]), st.floats(0.001, 4.0))
any_capacity = st.one_of(st.integers(0, 12).map(float), st.floats(0.1, 12.0))
any_capacities = st.lists(any_capacity, min_size=NUM_MORE, max_size=NUM_MORE)


def wanting(usages: st.SearchStrategy[Usage], most: int = 40) -> st.SearchStrategy[list[tuple[Usage, float]]]:
    return st.lists(st.tuples(usages, any_bound), min_size=1, max_size=most)


def rates_of(wants: Sequence[tuple[Usage, float]], capacity: Sequence[float]) -> list[float]:
    bounds = {key: bound for key, (_, bound) in enumerate(wants)}
    return list(fair_rates({key: usage for key, (usage, _) in enumerate(wants)}, capacity, bounds).values())


@contextmanager
def beginning(*, many: int, patience: float = 20_000) -> Iterator[None]:
    """Progressive filling from ``many`` changed links on or after ``patience`` visits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simcluster.traffic.fairness._MANY", many)
        patch.setattr("simcluster.traffic.fairness._PATIENCE", patience)
        yield


@given(wants=st.one_of(wanting(any_usage), wanting(uneven_usage)), capacity=any_capacities)
def test_filling_and_the_search_give_the_same_bits(wants: list[tuple[Usage, float]], capacity: list[float]) -> None:
    with beginning(many=10**9, patience=math.inf):
        searched = rates_of(wants, capacity)
    with beginning(many=-1):
        assert rates_of(wants, capacity) == searched
    with beginning(many=10**9, patience=len(wants) // 2):
        assert rates_of(wants, capacity) == searched


@given(seed=st.integers(0, 2**32), flows=st.integers(1, 400), hops=st.integers(1, 5))
@settings(max_examples=30)
def test_filling_and_the_search_give_the_same_bits_on_a_crowd(seed: int, flows: int, hops: int) -> None:
    draw = Random(seed)
    capacity = [draw.choice([25e9, 50e9, 100e9 / 3]) for _ in range(60)]
    wants = [(tuple((link, 1.0) for link in sorted(draw.sample(range(60), hops))), math.inf) for _ in range(flows)]
    with beginning(many=10**9, patience=math.inf):
        searched = rates_of(wants, capacity)
    with beginning(many=-1):
        assert rates_of(wants, capacity) == searched


def test_a_share_does_not_fall_because_somebody_wants_less() -> None:
    """Here a fifth, and a third of what two leave who want one bit less, round to different sides."""
    capacity = 0.9715146326883947
    wanted = math.nextafter(capacity / 5, 0)
    assert (capacity - 2 * wanted) / 3 < capacity / 5
    rates = [wanted, wanted, capacity / 5, capacity / 5, capacity / 5]
    for flows in (1.0, 0.5):
        usages = dict.fromkeys(range(5), ((0, flows),))
        assert list(fair_rates(usages, [flows * capacity], {0: wanted, 1: wanted}).values()) == rates


def test_what_filling_finds_is_nearly_always_the_solution() -> None:
    """Otherwise the guess were no use: of 2,000 flows over 500 links all rates are right but for last bits."""
    draw = Random(1)
    shares: Shares[Sharer] = Shares([50e9 * draw.choice([0.5, 1.0, 2.0]) for _ in range(500)])
    sharers = [Sharer(tuple((link, 1.0) for link in sorted(draw.sample(range(500), 4)))) for _ in range(2000)]
    for sharer in sharers:
        shares.join(sharer)
    shares._filled()
    found = [sharer.rate for sharer in sharers]
    shares.solve()
    exact = [sharer.rate for sharer in sharers]
    assert found == pytest.approx(exact, rel=1e-12)
    assert exact == rates_of([(sharer.usage, sharer.bound) for sharer in sharers], shares.capacity)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_uneven_flows_too_may_come_in_any_order_and_be_split(seed: int, count: int) -> None:
    """Weights that do not add up exactly, as in an all-to-all of uneven sizes."""
    draw = Random(seed)
    capacity = [draw.uniform(0.25, 0.3) * count for _ in range(4)]
    wants = [
        (tuple((link, draw.random()) for link in sorted(draw.sample(range(4), 2))), draw.choice([math.inf, 1.0]))
        for _ in range(count)
    ]
    rates = rates_of(wants, capacity)
    order = draw.sample(range(count), count)
    assert rates_of([wants[number] for number in order], capacity) == [rates[number] for number in order]
    usage, bound = wants[0]
    half = (tuple((link, flows / 2) for link, flows in usage), bound)
    assert rates_of([half, half, *wants[1:]], capacity) == [rates[0], *rates]


changes = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["join", "join free"]), any_usage, any_bound),
        st.tuples(st.just("leave"), st.integers(0, 100), st.none()),
        st.tuples(st.just("capacity"), st.integers(0, NUM_MORE - 1), any_capacity),
        st.tuples(st.just("sole users"), any_usage, st.none()),
        st.tuples(st.just("solve"), st.none(), st.none()),
    ),
    max_size=60,
)


def users_of(usage: Usage, present: Iterable[Sharer]) -> list[Sharer]:
    """Those on any of the links of a usage, in the order in which they came."""
    return [each for each in present if {link for link, _ in each.usage} & {link for link, _ in usage}]


def test_who_joins_free_holds_every_link_of_its_own() -> None:
    """Two free ones on two links each: a third that shares one of theirs is refused until it is alone."""
    shares: Shares[Sharer] = Shares([6.0, 4.0, 9.0])
    first, second, third = Sharer(((0, 2.0), (1, 1.0))), Sharer(((2, 3.0),), 1.0), Sharer(((1, 1.0), (2, 1.0)))
    assert shares.join_free(first)
    assert shares.join_free(second)
    assert (first.rate, second.rate) == (3.0, 1.0)
    assert not shares.join_free(third)
    assert shares.solves == 0
    assert not shares.join(third)
    assert set(shares.solve()) == {first, third}
    assert (first.rate, second.rate, third.rate, shares.solves) == (2.0, 1.0, 2.0, 1)
    assert shares.leave(third)
    assert shares.solve() == [first]
    assert (first.rate, shares.solves) == (3.0, 2)
    assert not shares.leave(first)
    assert shares.join_free(third) is False  # link 2 has a user still
    assert not shares.leave(second)
    assert shares.join_free(third)
    assert third.rate == 4.0


def test_a_free_one_is_told_as_the_sole_user_of_its_links_and_is_one_from_then_on() -> None:
    """Who asks for sole users of one link makes the free one a user of all of its links, with their levels."""
    shares: Shares[Sharer] = Shares([6.0, 4.0, 9.0])
    free = Sharer(((0, 2.0), (1, 1.0)), 2.5)
    assert shares.join_free(free)
    assert shares.sole_users(((2, 1.0),)) == []
    assert free.free
    assert shares.sole_users(((1, 1.0), (2, 1.0))) == [free]
    assert not free.free
    assert shares.sole_users(((0, 1.0), (1, 1.0))) == [free]  # once, though alone on both
    assert (shares._level[0], shares._level[1]) == (3.0, 4.0)
    other = Sharer(((1, 1.0),))
    assert not shares.join(other)
    assert set(shares.solve()) == {free, other}
    assert (free.rate, other.rate) == (2.0, 2.0)
    assert shares.sole_users(((0, 1.0), (1, 1.0))) == [free]
    assert not shares.join_free(Sharer(((0, 1.0),)))


def test_a_link_with_one_user_stands_at_what_it_would_give_it() -> None:
    """Also where its user is held back elsewhere: who comes later takes its first rate from that level."""
    shares: Shares[Sharer] = Shares([8.0, 1.0])
    held, leaving = Sharer(((0, 2.0), (1, 1.0))), Sharer(((0, 2.0),))
    assert shares.join(held)
    assert not shares.join(leaving)
    shares.solve()
    assert (held.rate, leaving.rate) == (1.0, 3.0)
    assert shares.leave(leaving)
    assert shares.solve() == []
    assert shares._level == [4.0, 1.0]
    assert shares.set_capacity(1, 16.0)
    assert shares.solve() == [held]
    assert (held.rate, shares._level) == (4.0, [4.0, 16.0])


@given(capacity=any_capacities, story=changes)
def test_what_came_before_changes_no_bit(capacity: list[float], story: list[tuple[str, Any, Any]]) -> None:
    """After any story the rates are those of the present activities on the present links, solved from scratch.

    And a solution tells exactly whose rate is another than before.
    """
    shares: Shares[Sharer] = Shares(capacity)
    present: dict[Sharer, None] = {}
    known: dict[Sharer, float] = {}
    for what, first, second in [*story, ("solve", None, None)]:
        if what.startswith("join"):
            sharer = Sharer(first, second)
            alone = not users_of(first, present)
            if what == "join free" and shares.join_free(sharer):
                assert alone
            else:
                assert shares.join(sharer) == alone
            present[sharer] = None
            if alone:
                known[sharer] = sharer.rate
                assert sharer.rate == min(solo_rate(first, shares.capacity), second)
        elif what == "leave" and known:
            leaver = list(known)[first % len(known)]
            del present[leaver], known[leaver]
            assert shares.leave(leaver) == bool(users_of(leaver.usage, present))
        elif what == "capacity":
            assert shares.set_capacity(first, second) == bool(users_of(((first, 1.0),), present))
        elif what == "sole users":
            on = [users_of((hop,), present) for hop in first]
            assert shares.sole_users(first) == list(dict.fromkeys(users[0] for users in on if len(users) == 1))
        elif what == "solve":
            changed = shares.solve()
            assert len(changed) == len(dict.fromkeys(changed))
            assert {each: each.rate for each in present if known.get(each) != each.rate} == {
                each: each.rate for each in changed
            }
            known = {each: each.rate for each in present}
            fresh = rates_of([(each.usage, each.bound) for each in present], shares.capacity)
            assert list(known.values()) == fresh


@pytest.mark.parametrize(
    ("many", "patience", "filled"), [(2, 100, 1), (3, 100, 0), (4, 100, 0), (9, 2, 1), (9, 3, 0), (9, 0, 1)]
)
def test_filling_is_begun_where_many_links_change_or_the_search_is_long(
    monkeypatch: pytest.MonkeyPatch, many: int, patience: int, filled: int
) -> None:
    """Three links with two users each, which one search of three visits puts in line."""
    shares: Shares[Sharer] = Shares([1.0, 2.0, 3.0])
    for link in (0, 1, 2, 0, 1, 2):
        shares.join(Sharer(((link, 1.0),)))
    begun: list[int] = []
    whole = Shares._filled
    monkeypatch.setattr(Shares, "_filled", lambda self: begun.append(1) or whole(self))
    with beginning(many=many, patience=patience):
        assert sorted(each.rate for each in shares.solve()) == [0.5, 0.5, 1.0, 1.0, 1.5, 1.5]
    assert len(begun) == filled


def test_a_change_is_followed_only_as_far_as_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 1,000 links with a flow over each two neighbours and one on each; a flow on the last one ends."""
    shares: Shares[Sharer] = Shares([1.0] * 1000)
    sharers = [Sharer(((link, 1.0), (link + 1, 1.0))) for link in range(999)]
    own = [Sharer(((link, 1.0),)) for link in range(1000)]
    for sharer in (*sharers, *own):
        shares.join(sharer)
    shares.solve()
    visited: list[int] = []
    level_of = Shares._level_of
    monkeypatch.setattr(Shares, "_level_of", lambda self, link: visited.append(link) or level_of(self, link))
    shares.leave(own[-1])
    shares.solve()
    assert 0 < len(visited) < 50
