"""What every kind of fault promises: it acts, neutral it changes nothing, it folds, and it says what is not there.

The kinds are those of the union: who adds one to it has these tests.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest
from conftest import Table, Tiny, tiny_scenario

from simcluster.documents.spec import Spec
from simcluster.errors import InputError
from simcluster.faults import Fault, placed
from simcluster.faults.by_effect import by_effect
from simcluster.faults.where import OnLinks, OnRanks
from simcluster.planning.disturbed_jobs import link_faults
from simcluster.planning.disturbed_links import capacity_profiles, permanently
from simcluster.planning.disturbed_ranks import slowness, speed_profiles
from simcluster.result import Result
from simcluster.scenario.scenario import from_document
from simcluster.simulate import prepare, simulate
from simcluster.whatif.montecarlo import by_chance, monte_carlo

KINDS: tuple[Any, ...] = get_args(get_args(Fault)[0])
WORDS = {kind.model_fields["kind"].annotation.__args__[0]: kind for kind in KINDS}
MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}
JOB: dict[str, Any] = {
    "cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    "model": {"moe": MOE},
    "parallel": {"pp": 2, "ep": 2},
    "training": {"global_batch": 8, "attention": "fused"},
}


class Unplayed(Spec):
    """A fault that somebody has begun to write: nothing plays it yet.  It draws nothing, so it has no seed."""

    kind: Literal["packet_loss"] = "packet_loss"
    nic_of: int = 9999
    neutral: bool = False


@pytest.fixture(scope="module")
def clean() -> Result:
    return simulate(tiny_scenario(**JOB))


def timelines(table: Table, result: Result) -> list[list[Any]]:
    return [table(result, rank).to_numpy().tolist() for rank in range(8)]


@pytest.mark.parametrize("kind", WORDS)
def test_a_fault_acts(tiny: Tiny, clean: Result, kind: str) -> None:
    """A kind in the union that nothing plays is seen here (and refused when it is loaded)."""
    faulty = simulate(tiny(**JOB, faults=[WORDS[kind].EXAMPLE]))
    assert WORDS[kind].EXAMPLE["kind"] == kind
    assert faulty.step_time != clean.step_time


@pytest.mark.parametrize("kind", WORDS)
def test_neutral_parameters_change_nothing(tiny: Tiny, table: Table, clean: Result, kind: str) -> None:
    neutral = simulate(tiny(**JOB, faults=[WORDS[kind].NEUTRAL]))
    assert WORDS[kind].NEUTRAL["kind"] == kind
    assert neutral.step_time == clean.step_time == neutral.without_faults
    assert timelines(table, neutral) == timelines(table, clean)


@pytest.mark.parametrize("kind", WORDS)
def test_folded_is_unfolded_and_the_document_says_it(tiny: Tiny, table: Table, kind: str) -> None:
    scenario = tiny(**JOB, faults=[WORDS[kind].EXAMPLE])
    folded, plain = simulate(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    assert timelines(table, folded) == timelines(table, plain)
    assert from_document(scenario.document()) == scenario


@pytest.mark.parametrize("kind", WORDS)
def test_same_seed_same_step_and_another_one_only_by_chance(tiny: Tiny, kind: str) -> None:
    scenario = tiny(**JOB, faults=[WORDS[kind].EXAMPLE])
    step = simulate(scenario).step_time
    assert simulate(scenario).step_time == step
    other = simulate(scenario.model_copy(update={"seed": 1})).step_time
    (fault,) = scenario.faults
    assert (other != step) == by_chance(fault)


@pytest.mark.parametrize("kind", WORDS)
def test_a_rank_or_machine_that_is_not_there_is_refused(tiny: Tiny, kind: str) -> None:
    """By whatever field of ``OnRanks`` and ``OnLinks`` the kind has; no kind has such a field of its own."""
    spec = WORDS[kind]
    places = {"rank": 8, "ranks": [1, 8], "node": 2, "between": ["node0.gpu0", "nobody"], "nic_of": 8, "uplinks_of": 2}
    own = [name for name in places if name in spec.model_fields]
    assert own == [name for base in (OnRanks, OnLinks) if issubclass(spec, base) for name in base.model_fields]
    rest = {name: value for name, value in spec.EXAMPLE.items() if name not in places}
    for name in own:
        with pytest.raises(InputError, match=r"faults\.0.*(there is )?no (rank 8|machine 2|node 'nobody')"):
            tiny(**JOB, faults=[{**rest, name: places[name]}])


def test_a_kind_that_nothing_plays_is_refused_by_name(tiny: Tiny) -> None:
    """When it is checked, and by every part that plays faults: never passed over."""
    fault: Any = Unplayed()
    scenario = tiny(**JOB).model_copy(update={"faults": (fault,)})
    cluster = scenario.cluster.built
    hosts = cluster.host_of
    for play in (
        lambda: type(scenario).model_validate(scenario),
        lambda: by_effect([fault]),
        lambda: by_chance(fault),
        lambda: prepare(scenario),
        lambda: simulate(scenario),
        lambda: monte_carlo(scenario.model_copy(update={"replicas": 2})),
        lambda: slowness([fault], hosts),
        lambda: speed_profiles([fault], hosts),
        lambda: permanently([fault], cluster),
        lambda: capacity_profiles([fault], cluster, 0),
        lambda: link_faults([fault], range(8), cluster),
    ):
        with pytest.raises(ValueError, match=r"packet_loss.: nothing plays"):
            play()


def test_a_kind_that_draws_nothing_needs_no_seed() -> None:
    fault: Any = Unplayed()
    assert placed([fault]) == (fault,)


def test_popular_experts_are_drawn_anew_for_every_replica(tiny: Tiny) -> None:
    """In each replica others are popular, whichever way replicas are played; counted shares are the same in all."""
    zipf = WORDS["expert_imbalance"].EXAMPLE
    scenario = tiny(**JOB, faults=[zipf]).model_copy(update={"replicas": 4})
    found = monte_carlo(scenario)
    assert found.step_times.tolist() == monte_carlo(scenario, method="events").step_times.tolist()
    assert len(set(found.step_times.tolist())) > 1
    with pytest.raises(InputError, match="replicas of one sweep all have the same tokens"):
        monte_carlo(scenario, method="sweep")
    counted = {**zipf, "tokens": {"kind": "fractions", "values": [4, 2, 1, 1]}}
    same = tiny(**JOB, faults=[counted]).model_copy(update={"replicas": 4})
    assert set(monte_carlo(same).step_times.tolist()) == {simulate(same).step_time}
