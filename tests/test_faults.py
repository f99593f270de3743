"""Faults in a step: where they act, what they cost, that chance is what the laws say and nobody else's business."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from conftest import Table, Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import CABLES, documents

from simcluster.base.clock import TICK
from simcluster.base.errors import DeadlockError, InputError
from simcluster.base.progress import set_estimate_limit
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.sections import Engine
from simcluster.step.simulate import simulate, simulate_scenario

DGX = {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}
PLAIN: dict[str, Any] = {"cluster": DGX, "parallel": {"tp": 2, "pp": 2}, "training": {"global_batch": 8}}
Document = dict[str, Any]

JITTER: Document = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
STALL: Document = {"kind": "host_stall", "cause": "data_loading", "seconds": "100 us"}
LENGTHS: Document = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}}


def computing(result: Result, rank: int) -> list[float]:
    """Seconds of a rank's kernels, in order."""
    table = result.timeline_of(rank)
    table = table[table["stream"] == "compute"].sort_values("start")
    return [float(seconds) for seconds in table["end"] - table["start"]]


def stalls(result: Result, rank: int) -> list[tuple[int, str, float, float]]:
    """(step, cause, start, end) of what stopped a rank."""
    table = result.timeline_of(rank)
    table = table[(table["stream"] == "host") & table["kind"].isin(["other", "checkpoint", "data"])].sort_values(
        "start"
    )
    return list(zip(table["step"], table["name"], table["start"], table["end"], strict=True))


# --- what must not change the result ----------------------------------------------------------------------------------

NEUTRAL: list[Document] = [
    {"kind": "slow_gpu", "rank": 1, "factor": 1.0, "start": "10 us", "period": "50 us", "duty": 0.5},
    {"kind": "slow_gpu", "node": 1, "factor": 1.0},
    {"kind": "slow_gpu", "rank": 0, "factor": 9.0, "start": "1 h"},
    {"kind": "jitter", "factor": {"kind": "normal", "sigma": 0}},
    {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0}, "per": "pass"},
    {"kind": "jitter", "factor": {"kind": "gumbel", "scale": 0}, "per": "step"},
    {"kind": "jitter", "factor": {"kind": "exponential", "scale": 0}},
    {"kind": "jitter", "factor": {"kind": "histogram", "values": [250, 250], "typical": 250}},
    {"kind": "jitter", "factor": {"kind": "gumbel", "scale": 1}, "adds": "0 s"},
    {**STALL, "seconds": "0 s"},
    {"kind": "slow_link", "nic_of": 0, "factor": 1.0, "start": "10 us"},
    {"kind": "slow_link", "uplinks_of": 0, "factor": 0.5, "start": "1 h"},
    {"kind": "link_flap", "nic_of": 0, "down": "0 s", "start": "10 us"},
    {"kind": "background_load", "uplinks_of": 1, "share": 0.0, "on": "10 us", "off": "10 us"},
    {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [128]}},
    {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [9999]}},
]


@pytest.mark.parametrize("fault", NEUTRAL, ids=lambda fault: str(fault["kind"]))
def test_neutral_parameters_change_nothing(tiny: Tiny, table: Table, fault: Document) -> None:
    clean, faulty = simulate(tiny(**PLAIN)), simulate(tiny(**PLAIN, faults=[fault]))
    assert faulty.step_time == clean.step_time
    assert faulty.without_faults in (None, clean.step_time)  # None: what all ranks share makes no straggler
    assert all(table(clean, rank).equals(table(faulty, rank)) for rank in range(8))
    assert faulty.to_dict()["straggler_slowdown"] == 1.0


@st.composite
def faults(draw: st.DrawFn, document: Document) -> list[Document]:
    """Up to three faults of any kind on a scenario's ranks and links, most of them within its first step."""
    gpus = document["gpus"]
    place: Document = draw(st.sampled_from([{"rank": gpus - 1}, {"ranks": [0, gpus - 1]}, {"node": 0}, {}]))
    somewhere = place or {"rank": 0}
    cluster = document["cluster"]["topology"]
    links: Document = {"between": CABLES[cluster]}
    if document["cluster"] != {"topology": "pcie_ethernet", "nodes": 1, "gpus_per_pcie_switch": 2}:
        links = draw(st.sampled_from([links, {"nic_of": 0}, {"uplinks_of": 0}]))
    when: Document = draw(
        st.sampled_from([{}, {"start": "300 us"}, {"start": "100 us", "end": "1 ms"}, {"period": "77 us", "duty": 0.3}])
    )
    law = draw(
        st.sampled_from([
            {"kind": "normal", "sigma": 0.1}, {"kind": "lognormal", "sigma": 0.1}, {"kind": "gumbel", "scale": 0.05},
            {"kind": "exponential", "scale": 0.2}, {"kind": "histogram", "values": [1, 1.5], "weights": [9, 1]},
        ])
    )  # fmt: skip
    shared, per = draw(st.sampled_from(["rank", "worker"])), draw(st.sampled_from(["kernel", "pass", "step"]))
    cause = draw(st.sampled_from(["data_loading", "garbage_collection", "checkpoint"]))
    every = draw(st.sampled_from([{}, {"every": 2, "first": "random"}]))
    kinds: list[Document] = [
        {"kind": "slow_gpu", "factor": draw(st.sampled_from([1.5, 3.0])), **somewhere, **when},
        {"kind": "jitter", "factor": law, "per": per, "shared_by": shared, **place},
        {"kind": "jitter", "factor": law, "per": per, "shared_by": shared, "adds": "1 us", **place},
        {"kind": "host_stall", "cause": cause, "seconds": "50 us", "factor": law, **every, **place},
        {"kind": "slow_link", "factor": 0.3, **links, **when},
        {"kind": "link_flap", "down": "40 us", "start": "60 us", "period": "210 us", **links},
        {"kind": "background_load", "rate": "3 GB/s", "on": "40 us", "off": "90 us", **links},
        {"kind": "background_load", "share": 0.4, **links, **when},
    ]
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))


@settings(max_examples=6)
@given(document=documents(), data=st.data())
def test_folded_is_unfolded_with_faults(tiny: Tiny, table: Table, document: Document, data: st.DataObject) -> None:
    found = data.draw(faults(document))
    if document["training"]["attention"] == "fused" and data.draw(st.booleans()):
        found.append(LENGTHS)
    scenario = tiny(**{**document, "faults": found}, seed=data.draw(st.integers(0, 3)))
    folded, plain = simulate(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    assert folded.without_faults == plain.without_faults
    for rank in range(scenario.gpus):
        assert table(folded, rank).equals(table(plain, rank)), rank
    values = folded.to_dict()
    assert sum(values["breakdown_s"].values()) == pytest.approx(folded.step_time, rel=1e-9)
    assert json.dumps(simulate(scenario).to_dict()) == json.dumps(values)
    assert from_document(scenario.document()) == scenario


ONE_OF_EACH: list[Document] = [
    {"kind": "slow_gpu", "rank": 3, "factor": 1.5, "start": "300 us", "end": "900 us"},
    {"kind": "slow_gpu", "ranks": [1, 6], "factor": 1.5, "period": "70 us", "duty": 0.5},
    JITTER,
    {**STALL, "rank": 1},
    {**STALL, "rank": 6, "cause": "checkpoint"},
    {**STALL, "cause": "garbage_collection"},
    {"kind": "slow_link", "nic_of": 0, "factor": 0.3, "start": "300 us"},
    {"kind": "link_flap", "nic_of": 5, "down": "30 us", "period": "100 us"},
    {"kind": "background_load", "uplinks_of": 1, "rate": "20 GB/s", "on": "50 us", "off": "90 us"},
    LENGTHS,
]


@pytest.mark.parametrize("fault", ONE_OF_EACH, ids=lambda fault: str(fault["kind"]))
def test_folded_is_unfolded_for_each(tiny: Tiny, table: Table, fault: Document) -> None:
    """One by one and without a search: which one is broken is seen at once."""
    scenario = tiny(**PLAIN, faults=[fault])
    folded, plain = simulate_scenario(scenario), simulate_scenario(scenario, folded=False)
    assert folded.step_time == plain.step_time
    assert folded.step_time != simulate(scenario.without_faults()).step_time
    assert all(table(folded, rank).equals(table(plain, rank)) for rank in range(8))


def test_ranks_that_nothing_distinguishes_stay_folded(tiny: Tiny) -> None:
    """Four workers with draws of their own are four classes; one stalled host splits what waits for it."""

    def classes(*found: Document) -> int:
        return len(simulate(tiny(**PLAIN, faults=list(found))).weights)

    assert classes() == 2
    assert classes({**JITTER, "shared_by": "worker"}) == 4
    assert classes(JITTER) == 8
    assert classes({**STALL}) == classes({**STALL, "cause": "checkpoint"}) == 2
    assert classes(LENGTHS) == 4
    assert classes({"kind": "slow_gpu", "node": 1, "factor": 2.0, "start": "10 us"}) == 2


# --- slow at times ----------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_slow_in_the_middle(tiny: Tiny) -> None:
    """On one GPU nothing waits: half speed for a quarter of the step costs an eighth of it."""
    clean = simulate(tiny()).step_time
    window = {"start": f"{clean / 4!r} s", "end": f"{clean / 2!r} s"}
    slow = simulate(tiny(faults=[{"kind": "slow_gpu", "rank": 0, "factor": 2.0, **window}]))
    assert slow.step_time == pytest.approx(clean * 1.125, rel=1e-9)
    assert slow.times.breakdown["bubble"] == 0.0
    always = simulate(tiny(faults=[{"kind": "slow_gpu", "rank": 0, "factor": 2.0}]))
    late = simulate(tiny(faults=[{"kind": "slow_gpu", "rank": 0, "factor": 2.0, "end": "1 h"}]))
    assert late.step_time == pytest.approx(always.step_time, abs=TICK * len(computing(late, 0)))


def test_throttling_costs_its_share_of_the_time(tiny: Tiny) -> None:
    """Twice as slow in 30 % of the time: 0.7 + 0.3 / 2 of the work gets done in each period."""
    clean = simulate(tiny()).step_time
    throttled = {"kind": "slow_gpu", "rank": 0, "factor": 2.0, "period": f"{clean / 200!r} s", "duty": 0.3}
    assert simulate(tiny(faults=[throttled])).step_time == pytest.approx(clean / 0.85, rel=0.01)


def test_slowness_by_a_fault_is_no_interference(tiny: Tiny) -> None:
    """What a GPU that is slow at times loses is computation, not contention with communication."""
    from simcluster.results.step_account import attribute_difference

    overlap = {"grad_reduce": True, "interference": {"kind": "factor", "compute": 0.5}}
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 4}, "overlap": overlap}
    fault = {"kind": "slow_gpu", "ranks": [0, 1, 2, 3], "factor": 2.0, "end": "1 h"}
    clean, slow = simulate(tiny(**job)), simulate(tiny(**job, faults=[fault]))
    found = attribute_difference(clean.account, slow.account)
    longer = slow.step_time - clean.step_time
    assert found["forward"] + found["backward"] + found["optimizer"] > 0.9 * longer
    assert abs(found["interference"]) < 0.1 * longer


chain: dict[str, Any] = {
    "parallel": {"pp": 4},
    "training": {"global_batch": 6},
    "cluster": {"topology": "flat", "gpus": 4},
}


@settings(max_examples=8)
@given(rank=st.integers(0, 3), start=st.integers(0, 500), length=st.integers(1, 500),
       factors=st.lists(st.floats(1, 10), min_size=2, max_size=3))  # fmt: skip
def test_slower_never_makes_a_pipeline_faster(
    tiny: Tiny, rank: int, start: int, length: int, factors: list[float]
) -> None:
    """With the order of ops fixed and no link shared everything is sums and maxima (MODELLING.md H.31)."""
    window = {"start": f"{start} us", "end": f"{start + length} us"}
    found = [
        simulate(tiny(**chain, faults=[{"kind": "slow_gpu", "rank": rank, "factor": factor, **window}]))
        for factor in sorted(factors)
    ]
    steps = [result.step_time for result in found]
    assert all(result.step_time >= (result.without_faults or 0) for result in found)
    assert all(later >= earlier - 100 * TICK for earlier, later in pairwise(steps))


# --- links ------------------------------------------------------------------------------------------------------------


def reduction(tiny: Tiny, *found: Document, rate: str = "10 GB/s") -> tuple[float, float]:
    """Start and end of the one all-reduce of two GPUs with links of that rate and no latency."""
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 2, "link": {"line_rate": rate, "source": ""}, "path_latency": "0 s"},
        overlap={"bucket_size": "1 GB"},
        faults=list(found),
    )
    table = simulate(scenario).timeline_of(0)
    table = table[(table["stream"] == "dp") & (table["name"] == "gradients")]
    assert len(table) == 1
    return float(table["start"].iloc[0]), float(table["end"].iloc[0])


@pytest.mark.parametrize("where", [{"nic_of": 0}, {"uplinks_of": 1}, {"between": ["gpu0", "switch"]}])
def test_links_over_time(tiny: Tiny, where: Document) -> None:
    """A ring is as slow as its slowest link, at every instant (MODELLING.md H.12)."""
    start, end = reduction(tiny)
    seconds = end - start
    middle = {"start": f"{start + seconds / 4!r} s", "end": f"{start + 3 * seconds / 4!r} s"}

    def longer(fault: Document) -> float:
        begin, over = reduction(tiny, {**fault, **where})
        assert begin == start
        return (over - begin) / seconds

    assert longer({"kind": "slow_link", "factor": 0.25}) == pytest.approx(4.0, rel=1e-9)
    assert longer({"kind": "slow_link", "factor": 0.5, **middle}) == pytest.approx(1.25, rel=1e-9)
    assert longer({"kind": "slow_link", "factor": 0.25, **middle}) == pytest.approx(1.375, rel=1e-9)
    flap = {"kind": "link_flap", "down": f"{seconds!r} s", "start": middle["start"]}
    assert longer(flap) == pytest.approx(2.0, rel=1e-9)
    assert longer({"kind": "background_load", "share": 0.2}) == pytest.approx(1.25, rel=1e-9)
    assert longer({"kind": "background_load", "rate": "6 GB/s"}) == pytest.approx(2.5, rel=1e-9)
    assert longer({"kind": "background_load", "rate": "5 GB/s", **middle}) == pytest.approx(1.25, rel=1e-9)


def test_a_load_by_chance_costs_what_it_takes_in_the_mean(tiny: Tiny) -> None:
    """There for a third of the time, half of the link: 1 / (1 - 1/6) in the mean over many spells."""
    start, end = reduction(tiny, rate="0.1 GB/s")
    spell = (end - start) / 3000
    load = {"kind": "background_load", "share": 0.5, "on": f"{spell!r} s", "off": f"{2 * spell!r} s", "nic_of": 0}
    begin, over = reduction(tiny, load, rate="0.1 GB/s")
    on, off, total = 1.0, 2.0, 1.2 * 3000
    deviation = math.sqrt(2 * on**2 * off**2 / ((on + off) ** 3 * total))  # of the part of the time with load
    assert (over - begin) / (end - start) == pytest.approx(1.2, abs=3 * deviation * 0.5 * 1.2**2)


# --- jitter -----------------------------------------------------------------------------------------------------------


def test_what_a_rank_draws_is_its_own(tiny: Tiny) -> None:
    """Another fault, another rank or another schedule leaves its draws alone; another seed does not."""
    first, second = {**JITTER, "rank": 0}, {**JITTER, "rank": 3}
    both = tiny(**PLAIN, faults=[first, {"kind": "slow_gpu", "rank": 1, "factor": 2.0}, second])
    together = simulate(both)
    assert computing(simulate(both.without(0)), 3) == computing(together, 3)
    assert computing(simulate(both.without(0, 1)), 3) == computing(together, 3)
    assert computing(simulate(both.without(2)), 0) == computing(together, 0)
    assert computing(simulate(both.model_copy(update={"seed": 1})), 3) != computing(together, 3)
    assert [fault.kind for fault in both.without(1).faults] == ["jitter", "jitter"]

    wider = tiny(**{**PLAIN, "parallel": {"tp": 2, "pp": 2, "dp": 1}, "gpus": 4, "training": {"global_batch": 4}})
    four = wider.model_copy(update={"faults": both.faults})
    assert sorted(computing(simulate(four), 3)) != sorted(computing(simulate(wider), 3))
    gpipe = both.model_copy(update={"pipeline": both.pipeline.model_copy(update={"schedule": "gpipe"})})
    assert sorted(computing(simulate(gpipe), 3)) == sorted(computing(together, 3))


def factors(tiny: Tiny, fault: Document, rank: int = 0, steps: int = 2) -> list[float]:
    """What a fault multiplies each kernel's seconds by on one of two GPUs that do the same."""
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 2}, "steps": steps}
    clean, jittered = simulate(tiny(**job)), simulate(tiny(**job, faults=[fault]))
    pairs = zip(computing(clean, rank), computing(jittered, rank), strict=True)
    return [after / before for before, after in pairs]


def test_a_draw_for_each_kernel_pass_or_step(tiny: Tiny) -> None:
    def different(per: str) -> int:
        return len({round(factor, 6) for factor in factors(tiny, {**JITTER, "per": per})})

    kernels = len(factors(tiny, JITTER))
    passes = 2 * 2 * 2  # steps, microbatches, F and B
    assert different("kernel") == kernels
    assert passes < different("pass") < passes + 2 * 4  # and what is behind the passes: norm, optimizer
    assert different("step") == 2
    one, other = ({**JITTER, "per": "step", "shared_by": by} for by in ("rank", "worker"))
    assert factors(tiny, one) != factors(tiny, one, rank=1)
    assert factors(tiny, other) != factors(tiny, other, rank=1)  # another replica, another worker


def test_workers_draw_together(tiny: Tiny) -> None:
    result = simulate(tiny(**PLAIN, faults=[{**JITTER, "shared_by": "worker"}]))
    by_rank = [computing(result, rank) for rank in range(8)]
    assert [by_rank[0], by_rank[2]] == [by_rank[1], by_rank[3]]  # tp
    assert by_rank[0] not in (by_rank[2], by_rank[4])  # dp, pp


def test_added_seconds(tiny: Tiny) -> None:
    fault = {"kind": "jitter", "factor": {"kind": "histogram", "values": [3]}, "adds": "2 us"}
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 2}}
    clean, jittered = simulate(tiny(**job)), simulate(tiny(**job, faults=[fault]))
    for before, after in zip(computing(clean, 0), computing(jittered, 0), strict=True):
        assert after - before == pytest.approx(6e-6, abs=TICK)


# --- stalls -----------------------------------------------------------------------------------------------------------


def test_a_step_is_over_before_the_host_is_held_up_in_the_next(tiny: Tiny) -> None:
    """Whichever fault is named first: a checkpoint belongs to the step before."""
    faults = [STALL, {**STALL, "cause": "checkpoint"}]
    for order in (faults, faults[::-1]):
        found = [(step, cause) for step, cause, *_ in stalls(simulate(tiny(faults=order, steps=2)), 0)]
        assert found == [(step, cause) for step in (0, 1) for cause in ("data_loading", "checkpoint")]


@pytest.mark.parametrize("cause", ["data_loading", "garbage_collection", "checkpoint"])
def test_a_stall_stops_a_gpu_for_its_time(tiny: Tiny, cause: str) -> None:
    fault = {**STALL, "cause": cause}
    clean, stalled = simulate(tiny(steps=3)), simulate(tiny(steps=3, faults=[fault]))
    assert stalled.step_time - clean.step_time == pytest.approx(100e-6, abs=4 * TICK)
    entry = {"checkpoint": "checkpoint", "data_loading": "data"}.get(cause, "other")
    assert stalled.times.breakdown[entry] - clean.times.breakdown[entry] == pytest.approx(100e-6, abs=4 * TICK)
    found = stalls(stalled, 0)
    assert [(step, name) for step, name, _, _ in found] == [(step, cause) for step in range(3)]
    assert all(end - start == pytest.approx(100e-6, abs=TICK) for _, _, start, end in found)
    table = stalled.timeline_of(0)
    compute = table[(table["stream"] == "compute") & (table["step"] == 1)]
    start, end = found[1][2:]
    if cause == "data_loading":
        assert end == compute["start"].min()
    elif cause == "checkpoint":
        assert start == compute["end"].max()
    else:
        assert compute["start"].min() <= end <= compute[compute["microbatch"] >= 0]["end"].max()


def test_collecting_garbage_every_few_steps(tiny: Tiny) -> None:
    """Each rank in its own step of every four; or all at once, which costs the job less."""
    job: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "steps": 8, "training": {"global_batch": 8}}
    fault = {**STALL, "cause": "garbage_collection", "every": 4}
    alone = simulate(tiny(**job, faults=[{**fault, "first": "random"}]))
    found = [[step for step, *_ in stalls(alone, rank)] for rank in range(8)]
    assert all(len(steps) == 2 and steps[1] - steps[0] == 4 for steps in found)
    assert len({steps[0] for steps in found}) > 1
    planned = simulate(tiny(**job, faults=[{**fault, "first": 0}]))
    assert [step for step, *_ in stalls(planned, 5)] == [0, 4]
    clean = simulate(tiny(**job)).step_time
    assert (planned.step_time - clean) * 8 == pytest.approx(2 * 100e-6, rel=0.01)
    different = len({steps[0] for steps in found})
    assert (alone.step_time - clean) * 8 == pytest.approx(different * 2 * 100e-6, rel=0.01)


# --- packed documents -------------------------------------------------------------------------------------------------


def attention(scenario: Scenario) -> float:
    """Seconds of core attention in a step of one GPU, by the programs."""
    from simcluster.devices.device import load_device
    from simcluster.planning.stage_programs import build_stage_programs
    from simcluster.planning.work_kinds import Compute
    from simcluster.step.step_plan import plan_job

    job, _ = plan_job(scenario, load_device(scenario.cluster.built.device))
    (program,) = build_stage_programs(job)
    items = [item for lane in program.lanes.values() for item in lane]
    return sum(op.work.attention for item in items for op in item.segment.ops if isinstance(op.work, Compute))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_short_documents_cost_their_squares(tiny: Tiny, recompute: str) -> None:
    """Eight documents in a sequence: an eighth of the core attention, all else as it was (MODELLING.md G.3)."""
    job: dict[str, Any] = {"training": {"recompute": recompute}}
    eighth = {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [16]}}
    clean, packed = simulate(tiny(**job)), simulate(tiny(**job, faults=[eighth]))
    core = attention(tiny(**job))
    assert 0 < core < clean.step_time
    assert clean.step_time - packed.step_time == pytest.approx(core * 7 / 8, rel=1e-6)
    assert packed.without_faults == packed.step_time  # nothing uneven about it


def test_documents_of_a_known_ratio(tiny: Tiny) -> None:
    """G.3: with core attention c and all else 1, one document of s against 8 of s / 8 is (1 + c) / (1 + c / 8)."""
    found = []
    for length in (128, 16):
        fault = {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [length]}}
        found.append(simulate(tiny(faults=[fault])).times.breakdown["forward"])
    table = simulate(tiny()).timeline_of(0)
    forward = table[(table["kind"] == "forward") & (table["stream"] == "compute")]
    whole = float((forward["end"] - forward["start"]).sum())
    share = (found[0] - found[1]) / whole * 8 / 7  # core attention's part of forward
    assert found[0] / found[1] == pytest.approx(1 / (1 - share * 7 / 8), rel=1e-9)


def test_uneven_data_cost_more_than_even_ones(tiny: Tiny) -> None:
    job: dict[str, Any] = {
        "cluster": {"topology": "flat", "gpus": 4},
        "training": {"global_batch": 32},
        "model": {"sequence_length": 4096},
    }
    data = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 500, "sigma": 1.5}}
    result = {
        packing: simulate(tiny(**job, faults=[{**data, "packing": packing}]))
        for packing in ("in_order", "balanced", "even")
    }
    uneven, balanced, even = (result[packing].step_time for packing in ("in_order", "balanced", "even"))
    assert uneven > 1.005 * even
    assert balanced < uneven
    assert result["in_order"].without_faults == even
    assert result["even"].to_dict()["straggler_slowdown"] == 1.0


# --- bad input --------------------------------------------------------------------------------------------------------

BAD: list[tuple[Document, list[str]]] = [
    ({"kind": "slow_gpu", "factor": 2.0}, ["'rank' is missing"]),
    ({"kind": "slow_gpu", "rank": 0, "node": 0, "factor": 2.0}, ["rank and node both", "keep one"]),
    ({"kind": "slow_gpu", "ranks": [1, 8], "factor": 2.0}, ["faults.0.ranks", "no rank 8", "ranks 0 to 7"]),
    ({"kind": "slow_gpu", "node": 2, "factor": 2.0}, ["faults.0.node", "no node 2"]),
    ({"kind": "slow_gpu", "rank": 0, "factor": 2.0, "start": "2 s", "end": "1 s"}, ["later than 'start' (2 s)"]),
    ({"kind": "slow_gpu", "rank": 0, "factor": 2.0, "start": 2}, ["has no unit", "2 us"]),
    ({"kind": "slow_gpu", "rank": 0, "factor": 2.0, "period": "1 s"}, ["'period' requires 'duty'"]),
    ({"kind": "slow_gpu", "rank": 0, "factor": 2.0, "duty": 0.5}, ["'duty' requires 'period'"]),
    ({"kind": "slow_gpu", "rank": 0, "factor": 2.0, "duty": 0.5, "period": "1 ns"}, ["at least 1 us"]),
    ({**JITTER, "factor": {"kind": "cauchy", "sigma": 1}}, ["faults.0.factor", "normal", "gumbel"]),
    ({**JITTER, "factor": {"kind": "normal", "sigma": -1}}, ["sigma", "greater than or equal to 0"]),
    ({**JITTER, "factor": {"kind": "histogram", "values": [1, 2], "weights": [1]}}, ["2 values but 1 weights"]),
    ({**JITTER, "factor": {"kind": "histogram", "values": [1], "weights": [0]}}, ["weights are all 0"]),
    ({**JITTER, "factor": {"kind": "histogram", "file": 3}}, ["faults.0.factor.file", "path of a CSV file"]),
    ({**JITTER, "factor": {"kind": "histogram", "file": "nowhere.csv"}}, ["nowhere.csv", "no such file"]),
    ({**JITTER, "per": "day"}, ["kernel", "pass", "step"]),
    ({**STALL, "first": 1}, ["step 1 is not simulated", "steps to 2"]),
    ({**STALL, "cause": "lunch"}, ["garbage_collection", "checkpoint"]),
    ({"kind": "slow_link", "factor": 0.5}, ["no links are named", "nic_of: a rank"]),
    ({"kind": "slow_link", "factor": 0.5, "nic_of": 1, "uplinks_of": 0}, ["nic_of and uplinks_of are both"]),
    ({"kind": "slow_link", "factor": 0.5, "nic_of": 9}, ["faults.0.nic_of", "no rank 9"]),
    ({"kind": "slow_link", "factor": 0.5, "uplinks_of": 9}, ["faults.0.uplinks_of", "no node 9"]),
    ({"kind": "link_flap", "down": "1 s", "between": ["node0.gpu0", "nonsense"]}, ["faults.0", "no node 'nonsense'"]),
    ({"kind": "link_flap", "down": "1 s", "period": "1 s", "nic_of": 0}, ["must exceed 'down' = 1 s"]),
    ({"kind": "background_load", "nic_of": 0}, ["either 'share'", "'rate'"]),
    ({"kind": "background_load", "nic_of": 0, "rate": "1 TB/s"}, ["takes all of a link", "lower rate"]),
    ({"kind": "background_load", "nic_of": 0, "share": 0.5, "on": "1 s"}, ["'on' and 'off' must both be set"]),
    ({"kind": "background_load", "nic_of": 0, "share": 0.5, "on": "1 s", "off": "1 s", "end": "1 s"}, ["keep one"]),
    ({**LENGTHS, "documents": {"kind": "histogram", "values": [0.5]}}, ["0.5 tokens", "whole numbers from 1"]),
    ({**LENGTHS, "packing": "tight"}, ["in_order", "balanced"]),
]


@pytest.mark.parametrize(("fault", "words"), BAD, ids=lambda value: str(value)[:60])
def test_bad_faults_say_what_would_work(tiny: Tiny, fault: Document, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        tiny(**PLAIN, faults=[fault])
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_link_that_stays_down_is_named(tiny: Tiny, engine: Engine) -> None:
    load: Document = {"kind": "background_load", "nic_of": 0, "rate": "1 TB/s", "start": "100 us"}
    faults = [{"kind": "slow_gpu", "rank": 0, "factor": 1.5}, load]
    with pytest.raises(DeadlockError) as caught:
        simulate(tiny(**PLAIN, faults=faults), engine=engine)
    assert str(caught.value).startswith(
        "the link from node0.nic0 to unit0.leaf0 stays down from 100.0 us on: faults.1 (background_load) leaves "
        "it no capacity, and transfers that cross it never end; give the fault an end, or let it leave some capacity\n"
        "deadlock: "
    )
    assert simulate(tiny(**PLAIN, faults=[{**load, "end": "200 us"}]), engine=engine).step_time > 200e-6


@pytest.mark.parametrize("engine", ["simpy", "reference", "compiled"])
@pytest.mark.parametrize("rank", [0, 4])
def test_links_that_are_down_alternately_are_named(tiny: Tiny, engine: Engine, rank: int) -> None:
    flap: Document = {"kind": "link_flap", "nic_of": 0, "down": "60 us", "period": "100 us"}
    turns = [flap, {**flap, "nic_of": rank, "start": "50 us"}]
    rings: dict[str, Any] = {**PLAIN, "parallel": {"tp": 2, "dp": 4}}
    with pytest.raises(DeadlockError) as caught:
        simulate(tiny(**rings, faults=turns), engine=engine)
    down = "the link from node0.nic0 to unit0.leaf0 stays down"
    if rank:
        down = "one of the links from node0.nic0 to unit0.leaf0 and from node1.nic0 to unit0.leaf0 is always down"
    assert str(caught.value).startswith(
        f"{down} from 0 s on: faults.0 (link_flap) and faults.1 (link_flap) take turns, and transfers that cross "
    )


def test_links_that_are_rarely_up_together_carry_all_transfers(tiny: Tiny) -> None:
    flap: Document = {"kind": "link_flap", "nic_of": 0, "down": "5 ms", "period": "5.2 ms"}
    often: Document = {"kind": "link_flap", "nic_of": 0, "down": "200 ns", "period": "1.1 us"}
    rings: dict[str, Any] = {**PLAIN, "parallel": {"tp": 2, "dp": 4}}
    seldom = tiny(**rings, faults=[flap, often])
    slow = simulate(seldom, engine="compiled").step_time
    assert slow > 5e-3
    assert slow == simulate(seldom, engine="simpy").step_time


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize(
    "faults",
    [
        [{"kind": "slow_gpu", "rank": 0, "slowdown": 1e6, "period": "1 us", "duty": 0.9999}],
        [
            {"kind": "link_flap", "nic_of": 0, "down": "99.9 s", "period": "100 s"},
            {"kind": "link_flap", "nic_of": 4, "down": "600 ns", "period": "1.1 us"},
        ],
        [
            {**STALL, "seconds": "10000 s"},
            {"kind": "background_load", "nic_of": 0, "share": 0.5, "on": "1 us", "off": "1 us"},
        ],
    ],
    ids=["speed", "links", "periods"],
)
def test_faults_that_change_too_often_are_rejected(tiny: Tiny, engine: Engine, faults: list[Document]) -> None:
    scenario = tiny(**{**PLAIN, "parallel": {"tp": 2, "dp": 4}}, faults=faults)
    with (
        set_estimate_limit(0.5),
        pytest.raises(InputError, match="and the steps are not finished; scenarios estimated to take over"),
    ):
        simulate(scenario, engine=engine)


def test_changes_in_a_long_stall_are_skipped(tiny: Tiny) -> None:
    flap: Document = {"kind": "link_flap", "nic_of": 0, "down": "600 ns", "period": "1.1 us"}
    rings: dict[str, Any] = {**PLAIN, "parallel": {"tp": 2, "dp": 4}}
    scenario = tiny(**rings, faults=[{**STALL, "seconds": "1000 s"}, flap])
    with set_estimate_limit(2.0):
        times = [simulate(scenario, engine=engine).step_time for engine in ("compiled", "simpy", "reference")]
    assert times[0] > 1000
    assert times == [times[0]] * 3
    with pytest.raises(InputError, match=r"a period of 1.1e-06 s is too short: times in"):
        simulate(tiny(**rings, faults=[{**STALL, "seconds": 1e14}, flap]))


def test_lengths_need_a_kernel_that_skips(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="whole square"):
        tiny(training={"attention": "unfused"}, faults=[LENGTHS])
    with pytest.raises(InputError, match=r"faults.0 sets that, too"):
        tiny(faults=[LENGTHS, LENGTHS])


def test_what_a_fault_draws_stays_its_own_if_another_kind_goes(tiny: Tiny) -> None:
    """The other fault comes first in the list, and acts on nothing that the step takes."""
    collect = {**STALL, "cause": "garbage_collection", "rank": 1}
    idle = {"kind": "slow_gpu", "rank": 1, "factor": 1.0}
    one, two = (simulate(tiny(**PLAIN, faults=[*before, JITTER, collect])) for before in ([idle], []))
    assert one.step_time == two.step_time


def test_numbers_of_streams_are_in_the_document(tiny: Tiny) -> None:
    scenario = tiny(**PLAIN, faults=[{"kind": "slow_gpu", "rank": 1, "factor": 2.0}, JITTER, JITTER])
    assert [fault.get("seed") for fault in scenario.document()["faults"]] == [None, 0, 1]
    assert math.isclose(simulate(scenario).without_faults or 0.0, simulate(tiny(**PLAIN)).step_time)
