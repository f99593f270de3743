"""Tokens that choose unequal experts: how many different tokens visit a rank or a node, by counting every choice.

And what follows for dispatchers that send one copy of a token, in links and in steps.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import InputError, Scenario, simulate
from simcluster.base.arrays import Floats
from simcluster.collectives.routing_distribution import RoutingDistribution, mean_groups_needed
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.faults.expert_imbalance import ExpertImbalance
from simcluster.faults.fault_spec import RoutedTokens
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import from_document
from simcluster.traffic.traffic import relay_link_times

ROUTES = [
    ExpertRouting(8, 3),
    ExpertRouting(12, 4),
    ExpertRouting(12, 3, 4, 2),
    ExpertRouting(12, 3, 3, 2),
    ExpertRouting(8, 2, 4, 3),
]


def of_weights(routes: ExpertRouting, groups: Floats, experts: Floats) -> tuple[list[tuple[int, ...]], Floats]:
    """Every choice of groups and of experts in them, and its chance: in proportion to the product of all weights."""
    own = routes.experts // routes.groups
    choices, weights = [], []
    for chosen in itertools.combinations(range(routes.groups), routes.top_groups):
        there = [expert for expert in range(routes.experts) if expert // own in chosen]
        for choice in itertools.combinations(there, routes.top_k):
            choices.append(choice)
            weights.append(groups[list(chosen)].prod() * experts[list(choice)].prod())
    return choices, np.array(weights) / sum(weights)


@settings(max_examples=25)
@given(
    routes=st.sampled_from(ROUTES), spread=st.floats(0, 1.2), seed=st.integers(0, 99), size=st.sampled_from([1, 2, 4])
)
def test_blocks_are_visited_as_by_counting_every_choice(
    routes: ExpertRouting, spread: float, seed: int, size: int
) -> None:  # fmt: skip
    """Experts of any weights, without a limit on groups: the law is found again from how often each is visited."""
    free = ExpertRouting(routes.experts, routes.top_k)
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal(routes.experts))
    choices, chances = of_weights(free, np.ones(1), weights)
    visits = np.zeros(routes.experts)
    for choice, chance in zip(choices, chances, strict=True):
        visits[list(choice)] += chance
    blocks = [range(first, first + size) for first in range(0, routes.experts, size)]
    counted = [sum(chances[at] for at, choice in enumerate(choices) if {*choice} & {*block}) for block in blocks]
    assert RoutingDistribution(free, visits).block_visit_probabilities(blocks) == pytest.approx(counted, abs=1e-5)


@settings(max_examples=25)
@given(
    routes=st.sampled_from(ROUTES), spread=st.floats(0, 0.8), seed=st.integers(0, 99), size=st.sampled_from([1, 2, 4]),
    lost=st.sampled_from([0, 0.3]),
)  # fmt: skip
def test_a_law_has_the_visits_that_it_is_given(
    routes: ExpertRouting, spread: float, seed: int, size: int, lost: float
) -> None:
    """With a limit on groups as well: counted over every choice, by the weights that the law has found."""
    visits = np.exp(spread * np.random.default_rng(seed).standard_normal(routes.experts))
    visits *= routes.top_k / visits.sum()
    if visits.max() > 1 or mean_groups_needed(visits, routes) > routes.top_groups:
        return
    law = RoutingDistribution(routes, visits)
    odds, experts = (each / (1 - np.minimum(each, 1 - 1e-12)) for each in (law._groups, law._experts))
    groups = odds * (1 - law._experts).prod(axis=1) if routes.groups > 1 else np.ones(1)
    choices, chances = of_weights(routes, groups, experts.ravel())
    counted = np.zeros(routes.experts)
    blocks = [range(first, first + size) for first in range(0, routes.experts, size)]
    seen = np.zeros(len(blocks))
    for choice, chance in zip(choices, chances, strict=True):
        counted[list(choice)] += chance
        seen += [chance * (1 - lost ** len({*choice} & {*block})) for block in blocks]
    assert counted == pytest.approx(visits, abs=2e-5)
    assert law.block_visit_probabilities(blocks, lost) == pytest.approx(seen, abs=2e-5)


@given(
    routes=st.sampled_from([*ROUTES, ExpertRouting(256, 8), ExpertRouting(256, 8, 8, 4), ExpertRouting(144, 6, 8, 3)])
)
def test_equal_shares_are_balanced_routing(routes: ExpertRouting) -> None:
    """Nodes that are no whole number of groups included."""
    blocks = [range(first, first + 4) for first in range(0, routes.experts, 4)]
    even = RoutingDistribution(
        routes, np.full(routes.experts, routes.top_k / routes.experts)
    ).block_visit_probabilities(blocks)
    assert even == pytest.approx([routes.visit_fraction(block) for block in blocks], rel=1e-9)


# --- shares that a router can give ------------------------------------------------------------------------------------


def imbalance(**tokens: Any) -> ExpertImbalance:
    return ExpertImbalance.model_validate({"kind": "expert_imbalance", "tokens": tokens, "seed": 1})


@settings(max_examples=40)
@given(
    routes=st.sampled_from([ExpertRouting(8, 2), ExpertRouting(256, 8), *ROUTES, ExpertRouting(16, 4, 8, 2)]),
    exponent=st.floats(0, 10), concentration=st.floats(1e-3, 10), layer=st.integers(0, 9),
)  # fmt: skip
def test_no_law_gives_an_expert_more_than_one_row_of_a_token(
    routes: ExpertRouting, exponent: float, concentration: float, layer: int
) -> None:
    """Nor needs more groups than a token may visit; shares that were possible stay as the law has them.

    However steep the law, a pair of experts gets the tokens of its fullest at least, and one copy of a token at most.
    """
    for fault in (imbalance(kind="zipf", exponent=exponent), imbalance(kind="dirichlet", concentration=concentration)):
        tokens = RoutedTokens(routes, seed=0, layer=layer)
        one_choice = tokens._replace(routes=ExpertRouting(routes.experts, 1))
        asked, shares = (fault.expert_loads(each, routes.experts) / routes.experts for each in (one_choice, tokens))
        assert shares.sum() == pytest.approx(1)
        assert shares.max() * routes.top_k <= 1 + 1e-9
        assert mean_groups_needed(shares * routes.top_k, routes) <= routes.top_groups * (1 + 1e-6)
        if asked.max() * routes.top_k <= 1 and mean_groups_needed(asked * routes.top_k, routes) <= routes.top_groups:
            assert shares.tolist() == asked.tolist()
        pairs = tuple((first, first + 1) for first in range(0, routes.experts, 2))
        copies = fault.token_copy_factors(tokens, pairs)
        visited = copies * [routes.visit_fraction(pair) for pair in pairs]
        rows = shares.reshape(-1, 2) * routes.top_k
        assert (visited >= rows.max(axis=1) * (1 - 1e-9)).all()
        assert (visited <= np.minimum(rows.sum(axis=1), 1) * (1 + 1e-9)).all()
        free = shares < shares.max() * (1 - 1e-9)
        if asked[free].sum() > 0 and shares[free].sum() > 1e-9:  # others share what is left in their proportions
            assert shares[free] / shares[free].sum() == pytest.approx(asked[free] / asked[free].sum(), abs=1e-12)


def test_the_first_of_deepseek_v3_is_visited_by_every_token() -> None:
    """Zipf's law with exponent 1 would give it 1.31 rows of each."""
    fault = imbalance(kind="zipf", exponent=1)
    laws = (RoutedTokens(ExpertRouting(256, top_k), seed=0, layer=0) for top_k in (1, 8))
    asked, given = (np.sort(fault.expert_loads(each, 256))[::-1] / 32 for each in laws)
    assert asked[:3] == pytest.approx([1.306, 0.653, 0.435], abs=1e-3)
    assert given[:3] == pytest.approx([1.0, 0.683, 0.456], abs=1e-3)


def test_a_run_says_where_a_law_is_filled_up(tiny: Tiny) -> None:
    mixture = {"gated_mlp": True, "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}}
    faults = [{"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": each}} for each in (1, 2)]
    few, many = (simulate(tiny(model=mixture, faults=[fault])).to_dict()["warnings"] for fault in faults)
    assert not [text for text in few if "expert_imbalance" in text]
    assert any("sends 1.31 copies of each token to the most popular expert of layer 0" in text for text in many)


@pytest.mark.parametrize(
    ("moe", "values", "words"),
    [
        ({}, [9, *[1 / 7] * 7], r"expert 0 gets 0\.9 of the rows, more than 1 / top_k = 0\.5; .* more than one row"),
        ({"groups": 4, "top_groups": 1}, [4, 1, 1, 4, 1, 1, 1, 1], r"need 1\.43 groups .* more than top_groups 1"),
    ],
)
def test_fractions_that_no_router_gives_are_rejected(
    tiny: Tiny, moe: dict[str, Any], values: list[float], words: str
) -> None:
    mixture = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, **moe}
    fault = {"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": values}}
    with pytest.raises(InputError, match=rf"faults\.0\.tokens: expert_imbalance: .*{words}"):
        tiny(model={"gated_mlp": True, "moe": mixture}, faults=[fault])
    tiny(
        model={"gated_mlp": True, "moe": mixture},
        faults=[{**fault, "tokens": {"kind": "fractions", "values": [1] * 8}}],
    )


# --- one copy of a token ----------------------------------------------------------------------------------------------

HOT = [0.5 / 8] * 8 + [0.5 / 56] * 56


@cache
def step(dispatch: str, values: tuple[float, ...] | None, nodes: int = 1, **more: Any) -> Any:
    return simulate(job(dispatch, values, nodes, **more))


def job(dispatch: str, values: tuple[float, ...] | None, nodes: int = 1, **moe: Any) -> Scenario:
    """64 experts of which a token visits 8, spread over all GPUs."""
    tokens = {"kind": "fractions", "values": list(values or [])}
    return from_document({
        "cluster": {"topology": "dgx_h100", "nodes": nodes}, "gpus": 8 * nodes,
        "model": {
            "layers": 1, "hidden_size": 8192, "heads": 64, "kv_heads": 4, "vocab_size": 512, "sequence_length": 4096,
            "gated_mlp": True, "ffn_hidden_size": 512,
            "moe": {"experts": 64, "top_k": 8, "expert_ffn_hidden_size": 256, **moe},
        },
        "parallel": {"ep": 8 * nodes, "expert_dispatch": {"kind": dispatch}}, "training": {"global_batch": 8 * nodes},
        "faults": [{"kind": "expert_imbalance", "tokens": tokens}] if values else [],
    })  # fmt: skip


def seconds(result: Any, name: str) -> float:
    table = result.timeline_of(0)
    table = table[(table["name"] == name) & (table["kind"].str.startswith(("expert_", "all_")))]
    return float((table["end"] - table["start"]).sum())


@pytest.mark.parametrize("dispatch", ["deepep", "hybridep"])
def test_a_rank_gets_one_copy_of_a_token_however_many_of_its_experts_it_visits(dispatch: str) -> None:
    """Half of all rows go to the eight experts of one rank: it gets 0.997 of the tokens, not 0.679, so 1.47 times."""
    for name in ("dispatch", "combine"):
        longer = seconds(step(dispatch, tuple(HOT)), name) / seconds(step(dispatch, None), name)
        assert 1.4 < longer < 1 / ExpertRouting(64, 8).block_visit_fraction(8)
    copies = seconds(step("alltoall", tuple(HOT)), "dispatch") / seconds(step("alltoall", None), "dispatch")
    assert copies == pytest.approx(4, rel=0.02)
    for kind in (dispatch, "alltoall"):  # the rows that its experts keep are as many however they came
        more = step(kind, tuple(HOT)).memory_of(0).activations - step(kind, None).memory_of(0).activations
        assert more == pytest.approx(3 * 4096 * 8 * 2 * (8192 + 3 * 256), rel=1e-9)


@pytest.mark.parametrize("limits", [{}, {"groups": 8, "top_groups": 3}])
def test_every_engine_sends_as_many_copies(limits: dict[str, Any]) -> None:
    fault = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0.8}, "per": "pass"}
    scenario = job("deepep", None, 2, **limits).with_({"faults": [fault], "parallel.ep": 8})
    expected = simulate(scenario, engine="reference").step_time
    assert simulate(scenario).step_time == simulate(scenario, folded=False).step_time == expected


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_relaying_takes_as_long_as_the_fullest_links_by_drawn_tokens(nodes: int) -> None:
    """What drawn tokens put on links, counted copy by copy: NVLink holds them up on one node, NICs on four."""
    ranks, routes = 8 * nodes, ExpertRouting(64, 8)
    generator = np.random.default_rng(3)
    popular = np.where(np.arange(64) < 8, 0.45, 0.08)  # of the experts that are chosen independently, eight each time
    drawn = generator.random((400_000, 64)) < popular
    drawn = drawn[drawn.sum(axis=1) == 8]
    values = drawn.mean(axis=0) / 8
    of_rank = drawn.reshape(len(drawn), ranks, -1).any(axis=2)
    of_node = of_rank.reshape(len(drawn), nodes, 8).any(axis=2)
    cluster = load_cluster("dgx_h100", {"nodes": nodes}.items())
    links = relay_link_times(cluster, cluster.wiring.link_capacity, routes, range(ranks))
    even = routes.block_visit_fraction(64 / nodes), routes.block_visit_fraction(64 / ranks)
    expected = links.slowdown_factor(of_node.mean(axis=0).max() / even[0], of_rank.mean(axis=0).max() / even[1])
    slow, plain = (step("deepep", each, nodes) for each in (tuple(values.tolist()), None))
    assert seconds(slow, "dispatch") / seconds(plain, "dispatch") == pytest.approx(expected, rel=0.01)
    assert (links.between.max() > links.inside.max()) == (nodes > 1)
