"""What every kind of fault promises: it acts, neutral it changes nothing, it folds, and it says what is not there.

The kinds are those of the union: who adds one to it has these tests.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
from conftest import Table, Tiny, tiny_scenario

from simcluster.base.errors import InputError
from simcluster.faults import FAULTS, FaultSpec, assign_random_streams
from simcluster.faults.fault_spec import EFFECTS
from simcluster.faults.targets import LinkFault, RankFault
from simcluster.results.result import Result
from simcluster.scenario.scenario import from_document
from simcluster.step.simulate import simulate
from simcluster.studies.fast_path_scopes import PLAN, QUICK, REPLICAS
from simcluster.studies.whatif.monte_carlo_study import monte_carlo

MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}
ENCODER = {"layers": 2, "hidden_size": 256, "heads": 4, "ffn_hidden_size": 512, "patch_values": 588, "image_tokens": 64}
JOB: dict[str, Any] = {
    "cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    "model": {"moe": MOE, "encoder": ENCODER},
    "parallel": {"pp": 2, "ep": 2},
    "training": {"global_batch": 16, "attention": "fused"},
}
every_kind = pytest.mark.parametrize("kind", FAULTS)


@pytest.fixture(scope="module")
def clean() -> Result:
    return simulate(tiny_scenario(**JOB))


@cache
def example(kind: str) -> Result:
    """The job with the example of a kind."""
    return simulate(tiny_scenario(**JOB, faults=[dict(FAULTS[kind].EXAMPLE)]))


def timelines(table: Table, result: Result) -> list[list[Any]]:
    return [table(result, rank).to_numpy().tolist() for rank in range(8)]


@every_kind
def test_a_fault_acts_and_is_no_help(clean: Result, kind: str) -> None:
    """It makes the step longer, but for documents that leave less attention to do: those change it."""
    spec = FAULTS[kind]
    faulty = example(kind).step_time
    assert spec.EXAMPLE["kind"] == kind == spec.kind_name()
    assert faulty > clean.step_time or ("attention_factors" in spec.effects() and faulty != clean.step_time)


@every_kind
def test_neutral_parameters_change_nothing(tiny: Tiny, table: Table, clean: Result, kind: str) -> None:
    neutral = simulate(tiny(**JOB, faults=[FAULTS[kind].NEUTRAL]))
    assert FAULTS[kind].NEUTRAL["kind"] == kind
    assert neutral.step_time == clean.step_time
    assert neutral.slowdown == 1
    assert timelines(table, neutral) == timelines(table, clean)


@every_kind
def test_folded_is_unfolded_is_the_reference_and_the_document_says_it(table: Table, kind: str) -> None:
    folded, scenario = example(kind), example(kind).scenario
    plain, meant = simulate(scenario, folded=False), simulate(scenario, engine="reference")
    assert folded.step_time == plain.step_time == meant.step_time
    assert timelines(table, folded) == timelines(table, plain) == timelines(table, meant)
    assert from_document(scenario.document()) == scenario


@every_kind
def test_same_seed_same_step_and_another_one_only_by_chance(kind: str) -> None:
    scenario, step = example(kind).scenario, example(kind).step_time
    assert simulate(scenario).step_time == step
    other = simulate(scenario.model_copy(update={"seed": 1})).step_time
    (fault,) = scenario.faults
    assert (other != step) == fault.is_random


@every_kind
def test_a_rank_or_machine_that_is_not_there_is_refused(tiny: Tiny, kind: str) -> None:
    """By whatever field of ``OnRanks`` and ``OnLinks`` the kind has; no kind has such a field of its own."""
    spec = FAULTS[kind]
    places = {"rank": 8, "ranks": [1, 8], "node": 2, "between": ["node0.gpu0", "nobody"], "nic_of": 8, "uplinks_of": 2}
    own = [name for name in places if name in spec.model_fields]
    assert own == [name for base in (RankFault, LinkFault) if issubclass(spec, base) for name in base.model_fields]
    rest = {name: value for name, value in spec.EXAMPLE.items() if name not in places}
    for name in own:
        with pytest.raises(InputError, match=r"faults\.0.*(there is )?no (rank 8|node 2|node 'nobody')"):
            tiny(**JOB, faults=[{**rest, name: places[name]}])


@every_kind
def test_a_short_way_plays_it_or_refuses_it_by_its_name(kind: str) -> None:
    """What a scope does not list, it does not know: nobody who adds a kind has to tell the short ways."""
    scenario = example(kind).scenario
    (fault,) = scenario.faults
    for scope in (QUICK, PLAN):
        assert replace(scope, field_limits={}).find_obstacle(scenario)
    many, obstacle = scenario.model_copy(update={"replicas": 2}), REPLICAS.find_obstacle(scenario)
    if obstacle:
        with pytest.raises(InputError, match=rf"replicas: .*{kind}"):
            monte_carlo(many, method="sweep")
    if not fault.is_random:
        assert monte_carlo(many).step_times.tolist() == pytest.approx([example(kind).step_time] * 2, rel=1e-9)


def test_a_kind_that_does_nothing_is_refused_by_name() -> None:
    """As soon as there is its class: it cannot be in a scenario, and so not be passed over."""
    with pytest.raises(InputError, match=r"fault 'packet_loss': this kind has no effect.*slowdown_factor, "):

        class PacketLoss(LinkFault):
            """Begun, and not written yet."""

            kind: Literal["packet_loss"]


def test_a_kind_that_draws_nothing_needs_no_seed() -> None:
    slow = FAULTS["slow_gpu"].model_validate(FAULTS["slow_gpu"].EXAMPLE)
    assert assign_random_streams([slow]) == (slow,)


class Idle(FaultSpec):
    """It says that it has every effect, and each is what it is by default."""

    kind: Literal["idle"] = "idle"

    def slowdown_factor(self) -> float:
        return super().slowdown_factor()

    def slowdown_per_rank(self, *args: Any) -> Any:
        return super().slowdown_per_rank(*args)

    def remaining_share(self, capacity: float) -> float:
        return super().remaining_share(capacity)

    def remaining_shares(self, *args: Any) -> Any:
        return super().remaining_shares(*args)

    def attention_factors(self, *args: Any) -> Any:
        return super().attention_factors(*args)

    def image_factors(self, *args: Any) -> Any:
        return super().image_factors(*args)

    def expert_loads(self, *args: Any) -> Any:
        return super().expert_loads(*args)

    def change_program(self, *args: Any) -> Any:
        return super().change_program(*args)

    def retime(self, *args: Any) -> Any:
        return super().retime(*args)


def test_defaults_are_neutral(table: Table, clean: Result) -> None:
    """Whether it lasts or not, and wherever ranks and links are looked for."""
    fault = Idle()
    assert fault.effects() == EFFECTS
    idle = simulate(clean.scenario.model_copy(update={"faults": (fault,)}))
    assert idle.step_time == clean.step_time
    assert timelines(table, idle) == timelines(table, clean)
    assert (
        fault.affects_all_ranks,
        fault.replacement_if_removed(),
        fault.remedy(),
        fault.for_remaining_ranks([0], {0: 0}),
    ) == (True, None, None, fault)


def test_popular_experts_are_drawn_anew_for_every_replica(tiny: Tiny) -> None:
    """In each replica others are popular, whichever way replicas are played; counted shares are the same in all."""
    zipf = FAULTS["expert_imbalance"].EXAMPLE
    scenario = tiny(**JOB, faults=[zipf]).model_copy(update={"replicas": 4})
    found = monte_carlo(scenario)
    assert found.step_times.tolist() == monte_carlo(scenario, method="events").step_times.tolist()
    assert len(set(found.step_times.tolist())) > 1
    with pytest.raises(InputError, match="method 'sweep' draws no tokens per replica"):
        monte_carlo(scenario, method="sweep")
    counted = {**zipf, "tokens": {"kind": "fractions", "values": [4, 2, 1, 1]}}
    same = tiny(**JOB, faults=[counted]).model_copy(update={"replicas": 4})
    assert set(monte_carlo(same).step_times.tolist()) == {simulate(same).step_time}
