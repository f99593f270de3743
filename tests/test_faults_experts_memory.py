"""Memory of ranks whose experts get unequally many tokens: rows by hand, rank by rank, planned and played alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import InputError, Scenario, simulate
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.faults import assign_random_streams
from simcluster.faults.expert_imbalance import ExpertImbalance
from simcluster.faults.expert_loads import scale_memory
from simcluster.faults.fault_spec import RoutedTokens
from simcluster.interop.export.trace_export import memory_counter_events
from simcluster.planning.ops import MemoryChange
from simcluster.results.result import Result
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_remedies import find_memory_remedies, peak_memory_bytes, try_changes
from simcluster.scenario.scenario import from_document, load
from simcluster.studies.multi_job import PlacedJob, simulate_jobs
from simcluster.studies.sweep.quick_steps import quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError
from simcluster.studies.whatif.monte_carlo_study import monte_carlo, remove_randomness
from simcluster.studies.whatif.replica_sweep import derive_replica_seed

HOT: dict[str, Any] = {"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": [0.3, *[0.1] * 7]}}
ZIPF: dict[str, Any] = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1.0}}
ANEW: dict[str, Any] = {**ZIPF, "per": "pass", "tokens": {"kind": "dirichlet", "concentration": 0.5}}
LAYERS, H, F, S, TOP = 4, 64, 96, 128, 2
MOE = {"experts": 8, "top_k": TOP, "expert_ffn_hidden_size": F}
MODEL = {
    "layers": LAYERS, "hidden_size": H, "heads": 4, "kv_heads": 4, "vocab_size": 512, "sequence_length": S,
    "gated_mlp": True, "ffn_hidden_size": 128, "moe": MOE,
}  # fmt: skip


def scenario(*faults: dict[str, Any], gpus: int = 8, **sections: dict[str, Any]) -> Scenario:
    document: dict[str, Any] = {
        "cluster": {"topology": "flat", "gpus": gpus}, "model": MODEL, "parallel": {"ep": 8},
        "training": {"global_batch": 8}, "faults": list(faults),
    }  # fmt: skip
    for name, fields in sections.items():
        document[name] = {**document.get(name, {}), **fields}
    return from_document(document)


def row_bytes(h: int, f: int) -> float:
    """Kept of a row that visits an expert: its input, gate, up and their product, 2 bytes each."""
    return 2.0 * (h + 3 * f)


def test_mixtral_by_hand() -> None:
    """The hot rank has 2.4 x 16,384 rows of 94,208 B in each of 12 layers: 25.9 GB more, and does not fit in 80."""
    changes = {
        "model.layers": 12, "gpus": 8, "cluster.nodes": 1, "parallel.pp": 1, "pipeline.schedule": "1f1b",
        "pipeline.chunks": 1, "training.global_batch": 16, "training.micro_batch": 2,
    }  # fmt: skip
    even, hot = (load("mixtral_8x7b_128xh100", {**changes, "faults": faults}) for faults in ([], [HOT]))
    (least,), (most,) = plan_footprints(even), plan_footprints(hot)
    assert row_bytes(4096, 14336) == 94_208
    assert most.total - least.total == pytest.approx(1.4 * 2 * 4096 * 2 * 94_208 * 12, rel=1e-12)
    assert least.total == pytest.approx(70.887e9, rel=1e-5)
    assert most.total == pytest.approx(96.818e9, rel=1e-5)
    found = find_memory_remedies(hot)
    assert found.found
    for remedy in found.found:
        changed = try_changes(hot, remedy.values)
        assert changed is not None
        assert remedy.memory == peak_memory_bytes(changed) <= 80e9


@pytest.mark.parametrize("place", [0, 3, 7])
def test_the_hot_rank_holds_its_rows_and_is_named(place: int) -> None:
    values = [0.1] * 8
    values[place] = 0.3
    fault = {**HOT, "tokens": {"kind": "fractions", "values": values}}
    even, uneven = simulate(scenario()), simulate(scenario(fault))
    rows = S * TOP
    assert uneven.memory_peak.rank == place
    for rank in range(8):
        load = 2.4 if rank == place else 0.8
        more = uneven.memory_of(rank).activations - even.memory_of(rank).activations
        assert more == pytest.approx((load - 1) * rows * row_bytes(H, F) * LAYERS, rel=1e-9)
    assert uneven.to_dict()["peak_memory_bytes"] == uneven.memory.total == uneven.memory_of(place).total
    assert uneven.memory_of(place) == uneven.facts.footprints[0]


@settings(max_examples=6)
@given(
    fault=st.sampled_from([HOT, ZIPF, ANEW]), schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    recompute=st.sampled_from(["none", "selective", "full"]), shape=st.sampled_from([(1, 8, 1), (2, 4, 1), (2, 4, 2)]),
    temporaries=st.booleans(), steps=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_every_rank_is_played_as_planned(
    fault: dict[str, Any], schedule: str, recompute: str, shape: tuple[int, int, int], temporaries: bool, steps: int,
    seed: int,
) -> None:  # fmt: skip
    """Folded as unfolded; no rank holds more than the fullest of its stage is planned to; all is freed in the end."""
    pp, ep, tp = shape
    job = scenario(
        fault, gpus=8 * tp, parallel={"pp": pp, "ep": ep, "tp": tp, "sequence_parallel": tp > 1},
        pipeline={"schedule": schedule},
        training={"global_batch": 16, "recompute": recompute}, memory={"backward_temporaries": temporaries},
    ).model_copy(update={"steps": steps, "seed": seed})  # fmt: skip
    folded, unfolded = simulate(job), simulate(job, folded=False)
    planned = plan_footprints(job)
    assert planned == folded.facts.footprints
    for rank in range(job.gpus):
        peak = folded.memory_peak_of(folded.representative_of(rank))
        assert folded.memory_of(rank).total == unfolded.memory_of(rank).total
        waiting = 2 * 2.0 * S * H * 8 if pp > 1 else 0.0  # tensors that came before they were needed
        assert folded.memory_of(rank).total <= planned[peak.stage].total * (1 + 1e-12) + waiting
        _, pools = folded.memory_timeline.curve(folded.representative_of(rank))
        assert sum(float(levels[-1]) for levels in pools.values()) == pytest.approx(0, abs=1e-3)
        assert min(float(levels.min()) for levels in pools.values()) >= -1e-3
    if pp == 1:
        assert folded.memory.total == pytest.approx(planned[0].total, rel=1e-12)


@pytest.mark.parametrize("per", ["layer", "pass"])
def test_rows_are_only_somewhere_else(per: str) -> None:
    """The mean of a group's ranks keeps what each does where all experts get as much."""
    even, uneven = simulate(scenario()), simulate(scenario({**ZIPF, "per": per}))
    kept = [uneven.memory_of(rank).activations for rank in range(8)]
    assert sum(kept) / 8 == pytest.approx(even.memory_of(0).activations, rel=1e-9)
    assert max(kept) > 1.1 * min(kept)


def test_under_full_recompute_the_rows_are_there_for_one_layer() -> None:
    sections = {"training": {"recompute": "full"}, "model": {"vocab_size": 64}}  # so that the loss holds less
    even, hot = (simulate(scenario(*faults, **sections)) for faults in ([], [HOT]))
    assert hot.memory_peak.rank == 0
    more = hot.memory_of(0).total - even.memory_of(0).total
    assert more == pytest.approx(1.4 * S * TOP * row_bytes(H, F), rel=1e-9)


def test_an_even_share_changes_nothing() -> None:
    same = {**HOT, "tokens": {"kind": "fractions", "values": [5] * 8}}
    assert simulate(scenario(same)).memory == simulate(scenario()).memory
    assert plan_footprints(scenario(same)) == plan_footprints(scenario())


def test_every_view_has_the_hot_ranks_bytes() -> None:
    result = simulate(scenario(HOT))
    base: Result = simulate(remove_randomness(scenario(HOT).model_copy(update={"replicas": 4})))
    assert base.memory == result.memory
    for rank in (0, 5):
        text = "[" + ",".join(line.rstrip(",\n") for line in memory_counter_events(result, rank)) + "]"
        most = max(event["args"]["total"] for event in json.loads(text))
        assert most == pytest.approx(result.memory_of(rank).total, abs=5)
        table = result.memory_table([rank])
        assert set(table["rank"]) == {rank}
        assert table.groupby("time")["bytes"].sum().cumsum().max() == pytest.approx(
            result.memory_peak_of(rank).total, abs=5
        )
    with pytest.raises(NeedsFullRunError, match="experts"):
        quick_step_time(scenario(HOT))


def test_what_goes_to_the_host_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"memory\.offload\.activations to 0"):
        scenario(HOT, memory={"offload": {"activations": 0.5}})


@settings(max_examples=20)
@given(load=st.floats(0, 8), routed=st.integers(0, 10**9), rest=st.integers(0, 10**9))
def test_only_the_routed_part_grows(load: float, routed: int, rest: int) -> None:
    memory = (MemoryChange("other", 7.0, 0.0), MemoryChange("activations", float(rest + routed), 0.0))
    other, kept = scale_memory(memory, (MemoryChange("activations", float(routed), 0.0),), load)
    assert other == memory[0]
    assert kept.start == pytest.approx(rest + load * routed, abs=1e-3)
    assert kept.end == 0


def test_loads_are_kept_and_not_to_be_written_to() -> None:
    fault = ExpertImbalance.model_validate({**ZIPF, "seed": 1})
    tokens = RoutedTokens(ExpertRouting(8, 1), seed=1, layer=0)
    first = fault.expert_loads(tokens, 4)
    assert first is fault.expert_loads(tokens, 4)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 2.0


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_experts_take_their_load_in_every_half_of_the_backward(schedule: str) -> None:
    """Products of experts take 2.4 times as long on the hot rank: forward, backward, and both halves of a split one."""
    even, hot = (
        simulate(scenario(*faults, parallel={"pp": 2, "ep": 4}, pipeline={"schedule": schedule}))
        for faults in ([], [{**HOT, "tokens": {"kind": "fractions", "values": [0.3, 0.3, *[0.4 / 6] * 6]}}])
    )

    def seconds(result: Result) -> dict[str, float]:
        table = result.timeline_of(0)
        table = table[table["name"] == "experts"]
        spent = (table["end"] - table["start"]).groupby(table["kind"]).sum()
        return {str(kind): float(total) for kind, total in spent.items()}

    before, after = seconds(even), seconds(hot)
    halves = {"backward"} if schedule == "1f1b" else {"input_grad", "weight_grad"}
    assert set(after) == {"forward", *halves}
    for kind, whole in after.items():
        assert whole == pytest.approx(2.4 * before[kind], rel=1e-6)


def test_jobs_that_share_a_cluster_hold_what_they_hold_alone() -> None:
    hot, even = scenario(HOT), scenario()
    cluster = scenario(cluster={"gpus": 16}, parallel={"ep": 8, "dp": 16}, training={"global_batch": 16}, gpus=16)
    jobs = [PlacedJob(even, tuple(range(8))), PlacedJob(hot, tuple(range(8, 16)))]
    found = [each.result.memory for each in simulate_jobs(jobs, cluster.cluster.built)]
    assert found == [simulate(even).memory, simulate(hot).memory]
    assert found[0].total < found[1].total


def test_replicas_draw_the_tokens_of_every_pass_anew() -> None:
    """Longest paths would keep those of the first: the engine plays each replica with its own."""
    drawn = scenario(ANEW).model_copy(update={"replicas": 3})
    found = monte_carlo(drawn)
    assert found.method == "events"
    assert len({*found.step_times.tolist()}) == 3
    for number, seconds in enumerate(found.step_times.tolist()):
        own = drawn.model_copy(update={"seed": derive_replica_seed(drawn.seed, number), "replicas": 1})
        assert simulate(own.model_copy(update={"faults": assign_random_streams(own.faults)})).step_time == seconds
    with pytest.raises(InputError, match="method 'sweep' draws no tokens per replica; use method 'auto'"):
        monte_carlo(drawn, method="sweep")
