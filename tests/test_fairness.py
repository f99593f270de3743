"""Max-min fair rates: the textbook case, the certificate of optimality, and that order and grouping change no bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random

from fair_rates import fair_rates
from hypothesis import given
from hypothesis import strategies as st

from simcluster.traffic.fairness import Usage, solo_rate

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


def rates_of(wants: Sequence[tuple[Usage, float]], capacity: Sequence[float]) -> list[float]:
    bounds = {key: bound for key, (_, bound) in enumerate(wants)}
    return list(fair_rates({key: usage for key, (usage, _) in enumerate(wants)}, capacity, bounds).values())


def test_a_share_does_not_fall_because_somebody_wants_less() -> None:
    """Here a fifth, and a third of what two leave who want one bit less, round to different sides."""
    capacity = 0.9715146326883947
    wanted = math.nextafter(capacity / 5, 0)
    assert (capacity - 2 * wanted) / 3 < capacity / 5
    rates = [wanted, wanted, capacity / 5, capacity / 5, capacity / 5]
    for flows in (1.0, 0.5):
        usages = dict.fromkeys(range(5), ((0, flows),))
        assert list(fair_rates(usages, [flows * capacity], {0: wanted, 1: wanted}).values()) == rates


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
