"""One scenario, one answer: folded = unfolded, compiled = SimPy, every span of every rank, to the bit.

Folding and the engine change what is computed, never what comes out (MODELLING.md I.1 to I.5).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from conftest import Tiny, counts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.results.simulated_run import Run
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

ECMP = {"kind": "ecmp", "seed": 3, "queue_pairs": 2}
CLUSTERS: list[tuple[dict[str, Any], list[str]]] = [  # with one cable of each, near the first GPUs
    ({"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}, ["node0.gpu1", "node0.nic1"]),
    ({"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4, "routing": ECMP}, ["node0.gpu1", "node0.nic1"]),
    (
        {
            "topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2,
            "fabric": {"nodes_per_unit": 2, "oversubscription": 2.0}, "routing": ECMP,
        },
        ["node0.gpu1", "node0.nic1"],
    ),
    ({"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
     ["node0.gpu1", "node0.pcie0"]),
    ({"topology": "flat", "gpus": 8}, ["gpu1", "switch"]),
]  # fmt: skip
SHAPES = [(1, 1, 4), (2, 2, 2), (2, 1, 4), (1, 4, 2), (4, 2, 1), (1, 2, 3), (2, 2, 1), (1, 2, 4)]  # tp, pp, dp
INTERFERENCE: list[Any] = ["none", "none", "auto", {"kind": "factor", "compute": 0.3, "communication": 0.2}]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny``: any cluster, routes, layout, schedule, overlap and fault."""
    cluster, cable = draw(st.sampled_from(CLUSTERS))
    tp, pp, dp = draw(st.sampled_from(SHAPES))
    schedule = draw(st.sampled_from(list(SCHEDULES) if pp > 1 else ["gpipe", "1f1b"]))
    chunks, microbatches = counts_of(schedule, pp, draw(st.integers(1, 4)))
    zero = draw(st.sampled_from([0, 0, 1, 2, 3] if pp == 1 else [0, 0, 1])) if dp > 1 else 0
    rank = draw(st.integers(0, tp * pp * dp - 1))
    faults = draw(st.lists(st.sampled_from(_faults(rank, cable)), max_size=2, unique_by=lambda fault: fault["kind"]))
    return {
        "cluster": cluster,
        "gpus": tp * pp * dp,
        "model": {"layers": 8, "tied_embeddings": draw(st.booleans())},
        "parallel": {
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "zero": zero,
            "sequence_parallel": tp > 1 and draw(st.booleans()),
            "order": draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("pp", "dp", "cp", "tp")])),
        },
        "pipeline": {
            "schedule": schedule,
            "chunks": chunks,
            "p2p": draw(st.sampled_from(["async", "async", "rendezvous"])) if schedule == "1f1b" else "async",
        },
        "training": {"global_batch": microbatches * dp, "recompute": draw(st.sampled_from(["none", "full"]))},
        "overlap": {
            "grad_reduce": draw(st.booleans()),
            "param_gather": zero > 0 and draw(st.booleans()),
            "tensor": draw(st.booleans()),
            "pipeline": draw(st.booleans()),
            "bucket_size": draw(st.sampled_from(["1 MB", "8 MB"])),
            "interference": draw(st.sampled_from(INTERFERENCE)),
        },
        "faults": faults,
        "steps": draw(st.sampled_from([1, 1, 2])),
    }


def _faults(rank: int, cable: list[str]) -> list[dict[str, Any]]:
    """Slow for ever; slow or gone for a while, in the middle of a step of some milliseconds; and by chance."""
    return [
        {"kind": "slow_gpu", "factor": 1.5, "rank": rank},
        {"kind": "slow_gpu", "factor": 3.0, "rank": rank, "start": "1 ms", "end": "2 ms"},
        {"kind": "slow_link", "between": cable, "factor": 0.5},
        {"kind": "slow_link", "between": cable, "factor": 0.1, "start": "1 ms"},
        {"kind": "link_flap", "between": cable, "start": "1 ms", "down": "1 ms"},
        {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}, "shared_by": "worker"},
        {"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms", "rank": rank},
    ]


def every_way(scenario: Scenario) -> None:
    """Simulate the scenario in every way, and compare all of them with the compiled engine's run of all ranks."""
    plain = simulate_scenario(scenario, folded=False)
    assert len(plain.weights) == scenario.gpus
    spans = {rank: spans_of(plain, rank) for rank in plain.weights}
    for found in (simulate_scenario(scenario), simulate_scenario(scenario.model_copy(update={"engine": "simpy"}))):
        assert found.step_time == plain.step_time
        simulated = {first: spans_of(found, first) for first in map(found.representative_of, spans)}
        for rank in spans:
            assert simulated[found.representative_of(rank)] == spans[rank], f"rank {rank}"


def spans_of(run: Run, rank: int) -> list[tuple[Any, ...]]:
    """All that the timeline says of a rank, in an order that does not depend on how it was played."""
    spans = run.spans.of_rank(run.representative_of(rank))
    words = np.array(spans.words, dtype=object)
    columns = []
    for name in COLUMNS:
        values = getattr(spans, name)
        if name in ("stream", "kind", "name"):
            values = words[values]
        elif name == "group":  # of the rank that was played: test_fold has the names of the others' groups
            values = np.array([word.rstrip("0123456789") for word in words[values].tolist()], dtype=object)
        elif name == "rank":
            continue
        columns.append(values.tolist())
    return sorted(zip(*columns, strict=True), key=repr)


# --- the scenario's key -----------------------------------------------------------------------------------------------


def test_the_result_says_which(tiny: Tiny, usual_engines: None) -> None:
    sections = {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"tp": 2, "dp": 2}}

    def engine_of(**more: Any) -> dict[str, Any]:
        return dict(simulate(tiny(**sections, **more)).to_dict()["engine"])

    ours = engine_of()
    assert ours.pop("events") > 0
    assert ours == {
        "kind": "simpy",
        "why": "SimPy takes less than 0.5 s for 194 ops",
        "ranks_simulated": 1,
        "ranks_total": 4,
    }
    asked = engine_of(engine="reference")
    assert (asked["kind"], asked["why"], asked["ranks_simulated"]) == ("reference", "engine: reference", 4)


# --- given times --------------------------------------------------------------------------------------------------


@st.composite
def given_costs(draw: st.DrawFn) -> Costs:
    seconds = st.floats(0.0, 2.0)
    backward = draw(seconds)
    return Costs(
        forward=draw(seconds),
        backward=backward,
        weight_grad=draw(st.sampled_from([None, 0.3 * backward])),
        tensor_parallel=draw(st.sampled_from([0.0, 0.01])),
        collectives=draw(st.sampled_from([0, 2, 3])),
        send=draw(st.sampled_from([0.0, 0.013])),
        grad_reduce=draw(st.sampled_from([0.0, 0.5])),
        optimizer=draw(st.sampled_from([0.0, 0.1])),
        launch=draw(st.sampled_from([0.0, 0.001])),
        send_launch=draw(st.sampled_from([0.0, 0.002])),
    )


_STUCK = ("breadth-first", "zb-h2", "zb-v", "v-half", "dualpipe-v")
"""At a rendezvous after every pass their stages wait for each other for ever."""


@settings(max_examples=30)
@given(
    schedule=st.sampled_from([name for name, entry in SCHEDULES.items() if not entry.depends_on_times]),
    costs=given_costs(),
    tp=st.sampled_from([1, 2]),
    steps=st.sampled_from([1, 2]),
    way=st.sampled_from([{}, {"blocking_sends": True}, {"rendezvous": True}]),
    together=st.booleans(),
)
def test_given_times_fold(
    schedule: str, costs: Costs, tp: int, steps: int, way: dict[str, bool], together: bool
) -> None:
    """One rank of each stage has the times of all, to the bit."""
    chunks, microbatches = counts_of(schedule, 4, 8)
    shape: dict[str, Any] = {
        "stages": 4, "microbatches": microbatches, "schedule": schedule, "chunks": chunks, "tp": tp, "dp": 2,
        "steps": steps, **({} if schedule in _STUCK else way),
    }  # fmt: skip
    if together:
        shape |= {"optimizer_sync": "all_reduce", "sync": 0.003}
    one, every = simulate_costs(costs, **shape), simulate_costs(costs, **shape, folded=False)
    for rank in every.weights:
        assert spans_of(one, rank) == spans_of(every, rank)


def test_slices_that_differ() -> None:
    slices = [Costs(forward=1.0 + number, backward=2.0, send=0.125 * number) for number in range(8)]
    shape: dict[str, Any] = {"stages": 4, "microbatches": 8, "schedule": "interleaved", "chunks": 2}
    one, other = (simulate_costs(each, **shape).step_time for each in (slices, slices[::-1]))
    assert one != other
