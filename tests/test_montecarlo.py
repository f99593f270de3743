"""Many replicas of a step: a sweep that is the engine's run to the bit, chance as the laws say, numbers in common."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from simcluster import simulate
from simcluster.base.errors import InputError
from simcluster.results.distribution import Distribution, compare_replicas, confidence_half_width
from simcluster.scenario.scenario import load
from simcluster.studies.whatif import replica_sweep
from simcluster.studies.whatif.monte_carlo_study import make_random_replica, monte_carlo, remove_randomness

REPLICAS: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 8},
    "parallel": {"dp": 8},
    "training": {"global_batch": 8},
}


def jitter(**fields: Any) -> dict[str, Any]:
    return {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.05}, **fields}


JOBS: dict[str, dict[str, Any]] = {
    "replicas": REPLICAS,
    "pipeline": {"parallel": {"pp": 4, "dp": 2}, "training": {"global_batch": 16}},
    "all axes": {"parallel": {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True, "zero": 1}},
    "tensor overlap": {
        "parallel": {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": True},
        "overlap": {"tensor": True, "grad_reduce": True, "pipeline": True},
    },
    "chunks": {
        "parallel": {"pp": 2, "dp": 4},
        "pipeline": {"schedule": "interleaved", "chunks": 2},
        "training": {"global_batch": 16},
    },
    "zero bubble": {
        "parallel": {"pp": 4, "dp": 2},
        "pipeline": {"schedule": "zb-h1"},
        "training": {"global_batch": 16},
    },
    "rendezvous": {"parallel": {"pp": 4, "dp": 2}, "pipeline": {"p2p": "rendezvous"}, "training": {"global_batch": 16}},
    "both ways": {
        "parallel": {"pp": 4, "dp": 2},
        "pipeline": {"schedule": "dualpipe"},
        "training": {"global_batch": 32},
    },
    "fsdp": {"parallel": {"dp": 8, "zero": 3}, "overlap": {"grad_reduce": True, "param_gather": True}},
    "two steps": {"parallel": {"pp": 2, "dp": 4}, "steps": 2},
    "a slow gpu": {"parallel": {"pp": 2, "dp": 4}, "faults": [{"kind": "slow_gpu", "rank": 3, "factor": 1.5}]},
}


@pytest.mark.parametrize("job", JOBS)
def test_without_chance_the_sweep_is_the_run_to_the_bit(tiny: Any, job: str) -> None:
    sections = {"model": {"layers": 8}, "cluster": {"topology": "flat", "gpus": 8}, **JOBS[job]}
    scenario = tiny(**{"replicas": 2, "training": {"global_batch": 16}, **sections})
    found = monte_carlo(scenario, method="sweep")
    assert found.step_times.tolist() == [found.planned] * 2


@pytest.mark.parametrize(("law", "expected"), [
    ({"kind": "lognormal", "sigma": 0.05}, 1.07294),
    ({"kind": "normal", "sigma": 0.05}, 1 + 0.05 * 1.4236),
    ({"kind": "gumbel", "scale": 0.03}, 1 + 0.03 * math.log(8)),
    ({"kind": "exponential", "scale": 0.1}, 1 + 0.1 * (2.717857 - 1)),
])  # fmt: skip
def test_a_step_takes_the_slowest_of_its_ranks(tiny: Any, law: dict[str, Any], expected: float) -> None:
    """Eight ranks that draw a factor a step each and meet at its end (MODELLING.md G.2)."""
    plain = monte_carlo(tiny(**REPLICAS, replicas=1)).planned
    twice = monte_carlo(tiny(**REPLICAS, faults=[{"kind": "slow_gpu", "ranks": list(range(8)), "factor": 2.0}])).planned
    compute = twice - plain
    found = monte_carlo(tiny(**REPLICAS, replicas=2000, faults=[jitter(factor=law, per="step")]), processes=1)
    low, high = found.interval
    factor = 1 + (found.mean - plain) / compute
    assert (low - plain) / compute + 1 - 0.001 < expected < (high - plain) / compute + 1 + 0.001, factor
    assert found.planned == plain


def test_jitter_of_single_kernels_evens_out(tiny: Any) -> None:
    a_step, a_kernel = (
        monte_carlo(tiny(**REPLICAS, replicas=200, faults=[jitter(per=per)])) for per in ("step", "kernel")
    )
    assert a_kernel.planned < a_kernel.mean < a_step.mean
    assert a_kernel.to_dict()["deviation_s"] < 0.6 * a_step.to_dict()["deviation_s"]


def test_tensor_parallel_ranks_that_share_a_draw_lose_nothing_to_each_other(tiny: Any) -> None:
    sections = {"cluster": {"topology": "flat", "gpus": 8}, "parallel": {"tp": 8}, "training": {"global_batch": 8}}
    shared = monte_carlo(tiny(**sections, replicas=200, faults=[jitter(shared_by="worker")]))
    own = monte_carlo(tiny(**sections, replicas=200, faults=[jitter()]))
    assert shared.mean == pytest.approx(shared.planned, rel=0.01)
    assert own.interval[0] > shared.interval[1]


def test_jitter_stays_on_its_ranks_and_adds_seconds(tiny: Any) -> None:
    late = jitter(factor={"kind": "histogram", "values": [1.0]}, adds="1 ms", per="kernel", rank=3)
    found = monte_carlo(tiny(**REPLICAS, replicas=2, faults=[late]))
    everywhere = monte_carlo(tiny(**REPLICAS, replicas=2, faults=[{**late, "rank": None}]))
    assert found.step_times[0] > found.planned + 2e-3
    assert found.step_times.tolist() == pytest.approx(everywhere.step_times.tolist())


# --- numbers in common ------------------------------------------------------------------------------------------------


def test_more_replicas_or_processes_change_no_number(tiny: Any) -> None:
    sixty, hundred = (tiny(**REPLICAS, replicas=count, faults=[jitter()]) for count in (60, 101))
    found = monte_carlo(hundred, processes=1).step_times.tolist()
    assert monte_carlo(sixty).step_times.tolist() == found[:60]
    assert monte_carlo(hundred, processes=2).step_times.tolist() == found
    assert len(set(found)) == 101
    other = monte_carlo(tiny(**REPLICAS, replicas=60, faults=[jitter()], seed=1)).step_times.tolist()
    assert not {*other} & {*found}


def test_the_first_replicas_are_the_same_however_many_are_asked_for(tiny: Any) -> None:
    """Two of a block cost what two cost, with every law and whoever draws."""
    laws = [jitter(per="pass"), jitter(factor={"kind": "gumbel", "scale": 0.05}, shared_by="worker"),
            jitter(factor={"kind": "histogram", "values": [1, 1.5], "weights": [9, 1]}, rank=1),
            {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.05}}]  # fmt: skip
    job = {**REPLICAS, "parallel": {"pp": 2, "dp": 4}, "faults": laws}
    many = monte_carlo(tiny(**job, replicas=51), processes=1).step_times.tolist()
    for few in (1, 2, 7):
        assert monte_carlo(tiny(**job, replicas=few)).step_times.tolist() == many[:few]


def test_replicas_end_when_their_mean_is_known(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones as without a rule, as many blocks as it takes, on however many processes."""
    job = tiny(**REPLICAS, replicas=300, faults=[jitter(per="step")])
    every = monte_carlo(job, processes=1).step_times
    part = 1.5 * confidence_half_width(every) / float(every.mean())
    needed = next(
        count for count in range(50, 301, 50) if confidence_half_width(every[:count]) <= part * every[:count].mean()
    )
    assert 50 < needed < 300
    monkeypatch.setattr(replica_sweep, "map_in_processes", lambda call, numbers, processes: call(numbers))
    for processes in (1, 2, 4):
        assert monte_carlo(job, until=part, processes=processes).step_times.tolist() == every[:needed].tolist()
    assert len(monte_carlo(job, until=1e-9, processes=1)) == 300
    assert len(monte_carlo(job, until=0.5, method="events")) == 10
    with pytest.raises(InputError, match="not a fraction of the mean"):
        monte_carlo(job, until=1.0)


def test_gpus_of_other_speeds_are_the_engines_replicas(tiny: Any) -> None:
    """The same clusters are drawn either way; nothing meets on a link here."""
    job = tiny(**REPLICAS, replicas=3, faults=[{"kind": "speeds", "law": {"kind": "lognormal", "sigma": 0.05}}])
    found = monte_carlo(job, method="sweep")
    assert found.step_times.tolist() == pytest.approx(monte_carlo(job, method="events").step_times.tolist(), rel=1e-8)
    assert len(set(found.step_times.tolist())) == 3


def test_a_change_is_compared_with_the_same_numbers(tiny: Any) -> None:
    """The same job with a slow GPU, and on another schedule: most of the noise is common to both and goes."""
    job = {"cluster": {"topology": "flat", "gpus": 8}, "parallel": {"pp": 4, "dp": 2}, "replicas": 100}
    job |= {"training": {"global_batch": 32}, "model": {"layers": 8}}
    before = monte_carlo(tiny(**job, faults=[jitter(per="pass")]))
    same = compare_replicas(before, monte_carlo(tiny(**job, faults=[jitter(per="pass")])))
    assert (same.mean, same.interval) == (0.0, (0.0, 0.0))
    for change in (
        {"faults": [jitter(per="pass"), {"kind": "slow_gpu", "rank": 5, "factor": 1.1}]},
        {"faults": [jitter(per="pass")], "pipeline": {"schedule": "gpipe"}},
    ):
        found = compare_replicas(before, monte_carlo(tiny(**{**job, **change})))
        assert found.noise_saved > 1.5
        assert found.interval[0] < found.mean < found.interval[1]


# --- what is made of the replicas -------------------------------------------------------------------------------------


def test_the_interval_is_students() -> None:
    for count, quantile in ((2, 12.706), (5, 2.776), (6, 2.5706), (11, 2.2281), (31, 2.0423), (200, 1.97196)):
        values = np.linspace(-1, 1, count)
        expected = quantile * values.std(ddof=1) / math.sqrt(count)
        assert confidence_half_width(values) == pytest.approx(expected, rel=1.5e-3)
    assert confidence_half_width(np.array([1.0])) == math.inf


def test_a_distribution_says_what_people_ask(tiny: Any) -> None:
    found = Distribution(np.arange(1.0, 102.0), 0.5, "sweep").to_dict()
    assert (found["median_s"], found["p5_s"], found["p95_s"], found["mean_s"]) == (51.0, 6.0, 96.0, 51.0)
    assert (found["replicas"], found["min_s"], found["max_s"]) == (101, 1.0, 101.0)
    low, high = found["mean_95_s"]
    assert low < 51.0 < high
    json.dumps(found, allow_nan=False)


def test_what_is_left_without_chance(tiny: Any) -> None:
    slow = {"kind": "slow_gpu", "rank": 1, "factor": 1.5}
    left = remove_randomness(tiny(**REPLICAS, replicas=9, faults=[jitter(), slow]))
    assert [fault.kind for fault in left.faults] == ["slow_gpu"]
    assert left.replicas == 1


def test_steps_are_played_one_by_one(tiny: Any) -> None:
    scenario = tiny(**REPLICAS, replicas=3, faults=[jitter()], collectives={"detail": "steps"})
    with pytest.raises(
        InputError, match=r"simulates collectives as flows; use method 'auto', or collectives\.detail: flow"
    ):
        monte_carlo(scenario, method="sweep")


EXPERTS = {
    "model.layers": 2, "cluster.nodes": 1, "gpus": 8, "parallel.pp": 1, "parallel.dp": 8, "parallel.ep": 8,
    "pipeline.schedule": "1f1b", "pipeline.chunks": 1, "training.global_batch": 8, "replicas": 3,
}  # fmt: skip


def test_experts_that_tokens_choose_by_chance_are_left_to_the_engine() -> None:
    """The sweep would give every replica the tokens that the scenario's own seed draws: no spread at all."""
    drawn = [{"kind": "expert_imbalance", "tokens": {"kind": "dirichlet", "concentration": 3.0}}]
    scenario = load("mixtral_8x7b_128xh100", {**EXPERTS, "faults": drawn})
    found = monte_carlo(scenario)
    assert found.method == "events"
    assert len({*found.step_times.tolist()}) == 3
    assert found.planned < found.step_times.min()  # without chance: all experts have the same
    with pytest.raises(InputError, match="method 'sweep' draws no tokens per replica; use method 'auto'"):
        monte_carlo(scenario, method="sweep")


def test_experts_whose_tokens_were_counted_are_no_matter_of_chance() -> None:
    counted = [{"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": [0.3, *[0.1] * 7]}}]
    found = monte_carlo(load("mixtral_8x7b_128xh100", {**EXPERTS, "faults": counted}))
    assert found.method == "sweep"
    assert {*found.step_times.tolist()} == {found.planned}


# --- the engine's runs ------------------------------------------------------------------------------------------------

DOCUMENTS = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 20, "sigma": 1.5}}


def test_documents_are_those_of_the_engines_replicas(tiny: Any) -> None:
    """The same seeds, the same documents: replica by replica the engine's step time."""
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "parallel": {"pp": 2, "dp": 4}, "steps": 2}
    slow = {"kind": "slow_gpu", "rank": 5, "factor": 1.2}
    scenario = tiny(**job, training={"global_batch": 16}, replicas=4, faults=[DOCUMENTS, slow])
    swept, played = monte_carlo(scenario, method="sweep"), monte_carlo(scenario, method="events")
    assert swept.planned == played.planned
    np.testing.assert_allclose(swept.step_times, played.step_times, rtol=1e-9)
    assert len({*swept.step_times.tolist()}) == 4


LEFT_TO_EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "garbage": ({"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms"}, "draws no stalls per rank"),
    "loads": (
        {"kind": "background_load", "between": ["gpu3", "switch"], "share": 0.6, "on": "200 us", "off": "300 us"},
        "draws no link rates per replica",
    ),
}


@pytest.mark.parametrize("kind", LEFT_TO_EVENTS)
def test_random_stalls_and_loads_are_simulated_replica_by_replica(tiny: Any, kind: str) -> None:
    fault, reason = LEFT_TO_EVENTS[kind]
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "parallel": {"pp": 2, "dp": 4}}
    scenario = tiny(**job, training={"global_batch": 16}, replicas=3, faults=[fault], model={"layers": 8})
    found = monte_carlo(scenario)
    assert found.method == "events"
    assert found.step_times.tolist() == [
        simulate(make_random_replica(scenario, number)).step_time for number in range(3)
    ]
    assert len({*found.step_times.tolist()}) == 3
    assert monte_carlo(scenario, processes=2).step_times.tolist() == found.step_times.tolist()
    with pytest.raises(InputError, match=f"{reason}; use method 'auto'"):
        monte_carlo(scenario, method="sweep")


def test_planned_loads_are_in_a_sweep(tiny: Any) -> None:
    load = {"kind": "background_load", "between": ["gpu3", "switch"], "share": 0.6}
    found = monte_carlo(tiny(**REPLICAS, replicas=2, faults=[load]))
    assert found.method == "sweep"
    assert found.step_times.tolist() == [found.planned] * 2
    assert found.planned > monte_carlo(tiny(**REPLICAS, replicas=2)).planned


def test_jitter_has_the_distribution_of_the_engines_replicas(tiny: Any) -> None:
    """Other streams, the same law: means agree within their intervals, deviations within a third."""
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "parallel": {"pp": 2, "dp": 4}, "replicas": 40}
    scenario = tiny(**job, training={"global_batch": 8}, faults=[jitter(per="pass")])
    swept, played = monte_carlo(scenario), monte_carlo(scenario, method="events")
    both = math.hypot(swept.interval[1] - swept.mean, played.interval[1] - played.mean)
    assert abs(swept.mean - played.mean) < 1.3 * both
    assert swept.step_times.std() == pytest.approx(played.step_times.std(), rel=0.35)
