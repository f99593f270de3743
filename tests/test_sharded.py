"""ZeRO 2 and 3 (FSDP): closed forms of MODELLING.md F on given times, bytes and memory, what never makes it slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Table, Tiny, run_programs, tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.model.transformer import Model
from simcluster.planning.fsdp_units import find_fsdp_units
from simcluster.planning.job import DataParallelOptions, FsdpOptions, Job, ModelSlices
from simcluster.planning.ops import Op, Segment, StageProgram, WorkItem
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Collective, Compute, FixedCollective
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import schedule_entry
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.step.step_plan import plan_job

TICK = 2.0**-20  # of given times: on the clock's grid, so that sums are exact
TICKS = st.integers(0, 40)
FABRIC = tiny_scenario(cluster={"topology": "flat", "gpus": 2}).cluster.built


class Given:
    """Passes of given times per layer, nothing for the ends of the model."""

    def __init__(self, forward: int, backward: int) -> None:
        self._seconds = {"F": ("forward", forward * TICK), "B": ("backward", backward * TICK)}

    def segment(self, letter: str, part: PassLayers) -> Segment:
        kind, each = self._seconds[letter]
        seconds = each * len(part.layers)
        return Segment((Op(Compute(seconds), "compute", kind, "layers", min(part.layers, default=-1)),))


def given_run(
    layers: int, f: int, b: int, times: dict[str, int], *, microbatches: int = 1, zero: int = 3,
    gather: bool = True, reduce: bool = True, bucket: float = 1.0, **sharding: Any,
) -> Run:  # fmt: skip
    """Two replicas; collectives of parameters and gradients of layers take given ticks, all others no time."""
    model = Model(
        layers=layers, hidden_size=8, heads=1, kv_heads=1, ffn_hidden_size=8, vocab_size=8, sequence_length=8,
        gated_mlp=False, tied_embeddings=False,
    )  # fmt: skip
    data = DataParallelOptions(
        zero=zero, overlap_reduce=reduce, overlap_gather=gather, gradient_bytes=4.0, parameter_bytes=2.0,
        bucket_bytes=bucket, optimizer_seconds=lambda _: 0.0, norm_seconds=lambda _: 0.0,
        fsdp=FsdpOptions(**sharding),
    )  # fmt: skip
    job = Job(
        model=model, plan=ParallelPlan(dp=2), schedule=schedule_entry("1f1b")(1, microbatches, 1),
        slices=ModelSlices.split_evenly(layers, 1), pass_maker=Given(f, b), data_parallel=data, send_bytes=0.0,
        gather_boundary=False, overlap_sends=True, steps=1,
    )  # fmt: skip

    def timed(op: Op) -> Op:
        if not isinstance(op.work, Collective):
            return op
        ours = op.layer >= 0 or (zero < 3 and op.name == "gradients")
        return replace(op, work=FixedCollective(op.work.axis, (times.get(op.kind, 0) if ours else 0) * TICK))

    def timed_item(item: WorkItem) -> WorkItem:
        return item._replace(segment=Segment(tuple(timed(op) for op in item.segment.ops)))

    programs = [
        StageProgram(program.stage, {lane: [timed_item(item) for item in row] for lane, row in program.lanes.items()})
        for program in build_stage_programs(job)
    ]
    return run_programs(programs, job.plan, FABRIC, folded=False)  # finding that two ranks are equal takes longer


def ticks(run: Run) -> tuple[float, float]:
    """How long forward takes, and from there to the end, in ticks."""
    spans = run.spans
    forward = float(spans.end[spans.kind == spans.word_code("forward")].max())
    return forward / TICK, (run.step_time - forward) / TICK


# --- closed forms of F.2 ---------------------------------------------------------------------------------------------


@given(L=st.integers(1, 9), ag=TICKS, f=TICKS, prefetch=st.integers(1, 4), lanes=st.booleans())
def test_forward(L: int, ag: int, f: int, prefetch: int, lanes: bool) -> None:
    run = given_run(L, f, 0, {"all_gather": ag}, prefetch=prefetch, uses_two_lanes=lanes)
    assert ticks(run)[0] == ag + (L - 1) * max(ag, f) + f


@given(L=st.integers(1, 9), ag=TICKS, f=TICKS, switched_off=st.booleans())
def test_blocking_forward(L: int, ag: int, f: int, switched_off: bool) -> None:
    """No prefetch, or overlap.param_gather off."""
    run = given_run(L, f, 0, {"all_gather": ag}, prefetch=int(switched_off), gather=not switched_off)
    assert ticks(run)[0] == L * (ag + f)


@settings(max_examples=120)
@given(L=st.integers(3, 9), ag=TICKS, rs=TICKS, b=TICKS, f=TICKS)
def test_backward(L: int, ag: int, rs: int, b: int, f: int) -> None:
    """The last layer is still there; AG_{i+1} is issued before RS_i on one lane (BACKWARD_PRE)."""
    run = given_run(L, f, b, {"all_gather": ag, "reduce_scatter": rs})
    assert ticks(run)[1] == max(L * b + rs, max(ag, b) + (L - 2) * (ag + rs) + max(b, rs) + rs)


@given(L=st.integers(1, 9), ag=TICKS, rs=TICKS, b=TICKS)
def test_blocking_backward(L: int, ag: int, rs: int, b: int) -> None:
    """Every layer is gathered, computed and reduced, one after the other."""
    run = given_run(L, 0, b, {"all_gather": ag, "reduce_scatter": rs}, gather=False, reduce=False)
    assert ticks(run)[1] == L * (ag + b + rs)


@given(L=st.integers(1, 4), ag=TICKS, rs=TICKS, f=TICKS, b=TICKS, piece=TICKS, again=st.booleans())
def test_matrix_by_matrix(L: int, ag: int, rs: int, f: int, b: int, piece: int, again: bool) -> None:
    """Four matrices a layer; for each a list of two pieces ahead of its collective, where embedding and LM head have
    one; three of them gathered twice for a backward."""
    times = {"all_gather": ag, "reduce_scatter": rs}
    run = given_run(
        L, f, b, times, gather=False, reduce=False, gather_by_matrix=True, piece_seconds=piece * TICK,
        gathers_twice=again,
    )  # fmt: skip
    forward, backward = ticks(run)
    assert forward == L * (4 * (2 * piece + ag) + f) + 2 * 2 * piece  # the lists of the ends
    gathered = 7 if again else 4
    assert backward == L * (gathered * (2 * piece + ag) + b + 4 * (2 * piece + rs)) + 3 * 2 * piece


@given(L=st.integers(1, 9), rs=TICKS, b=TICKS, lanes=st.booleans())
def test_backward_of_units_that_are_still_there(L: int, rs: int, b: int, lanes: bool) -> None:
    """Not resharded after forward, only reductions are left: uniform buckets of F.1."""
    run = given_run(L, 1, b, {"all_gather": 7, "reduce_scatter": rs}, reshard_after_forward=False, uses_two_lanes=lanes)
    assert ticks(run)[1] == L * b + rs + max(0, (L - 1) * (rs - b))


@given(n=st.integers(1, 9), t=TICKS, b=TICKS, zero=st.sampled_from([0, 1, 2]))
def test_buckets(n: int, t: int, b: int, zero: int) -> None:
    """MODELLING.md F.1: exposed are t + max(0, (n - 1)(t - b)); with n = 24, b = 10: 7 of 7, 58 of 12."""
    run = given_run(n, 0, b, {"all_reduce": t, "reduce_scatter": t}, zero=zero, gather=False)
    assert ticks(run)[1] == n * b + t + max(0, (n - 1) * (t - b))


@given(M=st.integers(1, 4), L=st.integers(1, 5), t=TICKS, b=TICKS, each=st.booleans())
def test_blocking_reduction_of_zero_2(M: int, L: int, t: int, b: int, each: bool) -> None:
    """All gradients of a microbatch at once, in each or in the last."""
    run = given_run(L, 0, b, {"reduce_scatter": t}, zero=2, reduce=False, microbatches=M, reduce_every_microbatch=each)
    assert run.step_time == TICK * (M * L * b + (M if each else 1) * t)


# --- what never makes it slower --------------------------------------------------------------------------------------

TIMES = st.fixed_dictionaries({"all_gather": TICKS, "reduce_scatter": TICKS})


@settings(max_examples=60)
@given(
    L=st.integers(1, 8), f=TICKS, b=TICKS, times=TIMES, M=st.integers(1, 3), n=st.integers(0, 3),
    how=st.sampled_from([(False, True), (True, True), (True, False)]),
)  # fmt: skip
def test_more_prefetch_is_never_slower(
    L: int, f: int, b: int, times: dict[str, int], M: int, n: int, how: tuple[bool, bool]
) -> None:
    """On one lane with reductions that wait for themselves alone; with blocking ones on a lane of their own, since a
    gather that was put ahead of a reduction is what that then waits for."""
    lanes, reduce = how
    less, more = (
        given_run(L, f, b, times, microbatches=M, prefetch=depth, uses_two_lanes=lanes, reduce=reduce).step_time
        for depth in (n, n + 1)
    )
    assert more <= less


@settings(max_examples=30)
@given(L=st.integers(1, 8), f=TICKS, b=TICKS, times=TIMES, M=st.integers(1, 3), lanes=st.booleans())
def test_blocking_is_never_faster(L: int, f: int, b: int, times: dict[str, int], M: int, lanes: bool) -> None:
    def seconds(gather: bool, reduce: bool, two: bool = lanes) -> float:
        run = given_run(L, f, b, times, microbatches=M, gather=gather, reduce=reduce, uses_two_lanes=two)
        return run.step_time

    assert seconds(True, True) <= min(seconds(False, True), seconds(True, False))
    assert max(seconds(False, True), seconds(True, False)) <= seconds(False, False)
    assert seconds(True, True, two=True) <= seconds(True, True)


# --- bytes -----------------------------------------------------------------------------------------------------------

OVERLAP = {"grad_reduce": True, "param_gather": True}
MIXED = {"global_batch": 16, "memory_recipe": "mixed-16"}  # parameters and gradients of 2 bytes each


def fsdp(dp: int = 8, *, zero: int = 3, steps: int = 1, **sections: Any) -> Scenario:
    defaults: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "training": MIXED, "overlap": OVERLAP}
    parallel = {"zero": zero, **sections.pop("parallel", {})}
    return tiny_scenario(**{**defaults, **sections}, parallel=parallel, steps=steps)


def bytes_of(result: Result, kind: str, rank: int = 0) -> float:
    """Full buffers of all collectives of a kind over dp on a rank, but for the norm's 4 bytes."""
    table = result.timeline_of(rank)
    return float(table[(table["stream"] == "dp") & (table["kind"] == kind) & (table["bytes"] > 4)]["bytes"].sum())


def sizes_of(scenario: Scenario, stage: int = 0) -> tuple[float, ...]:
    return find_fsdp_units(plan_job(scenario, scenario.cluster.device)[0], stage).sizes


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_before_and_after_anything_is_timed_is_the_same(zero: int) -> None:
    """Also where buckets of gradients on their way are whole beside the backward (ZeRO 2)."""
    scenario = fsdp(zero=zero, overlap={"grad_reduce": True})
    assert plan_footprints(scenario) == plan_job(scenario, scenario.cluster.device)[1].footprints
    assert (plan_footprints(scenario)[0].unsharded > 0) == (zero > 1)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_bytes_of_every_zero_stage(microbatches: int) -> None:
    """All-gather and reduce-scatter of S cost N - 1 of N parts each, all-reduce twice that: 2, 2 and 3 over plain 2.

    ZeRO 2 and 3 move gradients in every microbatch; what stays unsharded at the turn is not gathered twice.
    """
    training = {**MIXED, "global_batch": 8 * microbatches}
    sizes = sizes_of(fsdp())
    whole = 2 * sum(sizes)
    stays = 2 * sum(sizes[-2:])  # prefetch 1: two units
    moved = {}
    for zero in range(4):
        result = simulate(fsdp(zero=zero, training=training, overlap={**OVERLAP, "param_gather": zero > 0}))
        moved[zero] = {kind: bytes_of(result, kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")}
    assert moved[0] == {"all_reduce": whole, "reduce_scatter": 0.0, "all_gather": 0.0}
    assert moved[1] == {"all_reduce": 0.0, "reduce_scatter": whole, "all_gather": whole}
    assert moved[2] == {"all_reduce": 0.0, "reduce_scatter": microbatches * whole, "all_gather": whole}
    assert moved[3]["reduce_scatter"] == microbatches * whole
    assert moved[3]["all_gather"] == microbatches * (2 * whole - stays)


def test_bytes_without_reduction_in_every_microbatch() -> None:
    for zero in (2, 3):
        scenario = fsdp(zero=zero, fsdp={"sync_every_microbatch": False}, training={**MIXED, "global_batch": 24})
        assert bytes_of(simulate(scenario), "reduce_scatter") == 2 * sum(sizes_of(fsdp()))


def test_not_resharding_gathers_once_a_microbatch() -> None:
    result = simulate(fsdp(fsdp={"reshard_after_forward": False}))
    assert bytes_of(result, "all_gather") == 2 * 2 * sum(sizes_of(fsdp()))


@pytest.mark.parametrize("group", [2, 4])
def test_parameters_kept_in_smaller_groups(group: int) -> None:
    """hpZ: the forward gathers over all ranks, the backward over the group; 1/group of each unit stays in between."""
    one = {"training": {**MIXED, "global_batch": 8}, "overlap": {}}
    result = simulate(fsdp(fsdp={"reshard_after_forward": group}, **one))
    gathers = result.timeline_of(0).query("kind == 'all_gather'")
    sizes = sizes_of(fsdp())
    forward, backward = [2 * size for size in sizes], [2 * size for size in reversed(sizes[:-1])]  # the head's stays
    assert gathers["bytes"].tolist() == forward + backward
    assert gathers["group"].str.startswith("regather").tolist() == [False] * len(forward) + [True] * len(backward)
    there = [size + sum(sizes[:number]) / group for number, size in enumerate(sizes)]
    assert held(result, "parameters") == (pytest.approx(2 * max(there)), 0.0)
    assert result.facts.footprints[0].unsharded == pytest.approx(2 * max(there) + 2 * max(sizes))
    assert ParallelPlan(tp=2, dp=8, shard=8, regather=4).groups("regather").tolist()[0] == [0, 2, 4, 6]


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_bytes_of_hybrid_sharding(group: int) -> None:
    """Shards of the gradients are summed over the groups: all of them with groups of one, as plain data parallelism."""
    result = simulate(fsdp(fsdp={"shard_group": group}))
    whole = 2 * 2 * sum(sizes_of(fsdp()))
    assert bytes_of(result, "all_reduce") == (whole / group if group < 8 else 0.0)
    assert bytes_of(result, "reduce_scatter") == (whole if group > 1 else 0.0)


def test_a_shard_group_of_all_ranks_is_no_hybrid(table: Table) -> None:
    plain, hybrid = simulate(fsdp()), simulate(fsdp(fsdp={"shard_group": 8}))
    assert table(plain, 0).equals(table(hybrid, 0))


def test_tied_embeddings_are_one_unit() -> None:
    """On one stage gathered and reduced once; on two, summed between them as shards."""
    one = simulate(fsdp(model={"tied_embeddings": True}, training={**MIXED, "global_batch": 8}))
    sizes = sizes_of(fsdp(model={"tied_embeddings": True}))
    assert len(sizes) == 1 + 4
    assert bytes_of(one, "reduce_scatter") == 2 * sum(sizes)
    assert bytes_of(one, "all_gather") == 2 * (2 * sum(sizes) - sizes[0] - sizes[-1])  # head's place in the window
    two = simulate(fsdp(model={"tied_embeddings": True}, parallel={"pp": 2}))
    table = two.timeline_of(0)
    summed = table[table["name"] == "embedding_gradients"]
    assert summed["bytes"].tolist() == [2 * 1024 * 256 / 4]  # the vocabulary, padded; not the positions


# --- memory ----------------------------------------------------------------------------------------------------------


def held(result: Result, pool: str) -> tuple[float, float]:
    """Most and last of a pool on rank 0."""
    _, pools = result.memory_timeline.curve(0)
    return float(pools[pool].max()), float(pools[pool][-1])


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("unit_layers", [1, 2])
def test_memory_of_unsharded_units(prefetch: int, unit_layers: int) -> None:
    """With a fast network: prefetch + 1 units of parameters; of gradients one in its backward and one on its way."""
    cluster = {"topology": "flat", "gpus": 8, "link": {"line_rate": "1e6 GB/s"}, "path_latency": "0 s"}
    model = {"layers": 8, "hidden_size": 512, "vocab_size": 128}
    scenario = fsdp(cluster=cluster, model=model, fsdp={"prefetch": prefetch, "unit_layers": unit_layers})
    result = simulate(scenario)
    layer = 2 * max(sizes_of(scenario))
    assert held(result, "parameters") == ((prefetch + 1) * layer, 0.0)
    most, left = held(result, "gradients")
    assert layer <= most <= 2 * layer
    assert left == 0.0
    assert result.facts.footprints[0].unsharded == (prefetch + 3) * layer


OPTIONS = st.fixed_dictionaries(
    {
        "unit_layers": st.integers(1, 3),
        "prefetch": st.integers(0, 1),
        "lanes": st.sampled_from(["one", "two"]),
        "sync_every_microbatch": st.booleans(),
    }
)
PLANS = st.sampled_from(
    [
        (1, 1, 8, "1f1b", 1), (1, 1, 8, "gpipe", 1), (2, 1, 4, "1f1b", 1), (1, 2, 4, "1f1b", 1), (2, 2, 2, "1f1b", 1),
        (1, 2, 4, "interleaved", 2), (1, 2, 4, "zb-h1", 1), (1, 2, 4, "zb-v", 1), (1, 4, 2, "dualpipe-v", 1),
        (2, 2, 2, "zb-v", 1), (2, 4, 1, "1f1b", 1),
    ]
)  # fmt: skip
TOPOLOGIES = [
    {"topology": "flat", "gpus": 8},
    {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    {"topology": "pcie_ethernet", "nodes": 4, "gpus_per_node": 2, "nics_per_node": 1},
]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    tp, pp, dp, schedule, chunks = draw(PLANS)
    zero = draw(st.sampled_from([2, 3, 3, 3]))
    options: dict[str, Any] = draw(OPTIONS)
    if zero == 2:
        options = {"sync_every_microbatch": options["sync_every_microbatch"]}
    else:
        options["shard_group"] = draw(st.sampled_from([size for size in (1, 2, 4, 8) if dp % size == 0]))
        smaller = [size for size in (2, 4) if size < options["shard_group"]]
        options["reshard_after_forward"] = draw(st.sampled_from([True, False, *smaller]))
    faults: list[dict[str, Any]] = [{"kind": "slow_gpu", "rank": draw(st.integers(0, 7)), "factor": 1.5}]
    whole: dict[str, Any] = {"gpus": 8}
    return tiny_scenario(
        **whole,
        cluster=draw(st.sampled_from(TOPOLOGIES)),
        model={"layers": 8, "tied_embeddings": draw(st.booleans())},
        parallel={"tp": tp, "pp": pp, "dp": dp, "zero": zero, "sequence_parallel": tp > 1 and draw(st.booleans())},
        pipeline={"schedule": schedule, "chunks": chunks},
        training={"global_batch": dp * 2 * pp, "recompute": draw(st.sampled_from(["none", "full"]))},
        overlap={"grad_reduce": draw(st.booleans()), "param_gather": draw(st.booleans())},
        fsdp=options,
        software=draw(st.sampled_from(["ideal", "deepspeed-zero-3"])),
        faults=draw(st.sampled_from([[], faults])),
        steps=draw(st.sampled_from([1, 2])),
    )


@settings(max_examples=12)
@given(scenario=scenarios())
def test_folded_is_unfolded_and_memory_comes_and_goes(table: Table, scenario: Scenario) -> None:
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    for rank in range(scenario.gpus):
        assert table(folded, rank).equals(table(plain, rank))
    for stage, rank in enumerate(range(0, 8, 8 // scenario.parallel.pp)):
        _, pools = plain.memory_timeline.curve(rank)
        most = 0.0
        for pool in ("parameters", "gradients"):
            assert np.min(pools[pool], initial=0.0) > -1.0
            assert pools[pool][-1] == pytest.approx(0.0, abs=1.0)
            most += np.max(pools[pool], initial=0.0)
        assert most <= plain.facts.footprints[stage].unsharded + 1.0


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "options", "words"),
    [
        (3, {"shard_group": 3}, ["fsdp.shard_group", "3 does not divide dp x cp = 8", "2 or 4"]),
        (1, {"prefetch": 2}, ["fsdp.prefetch", "zero is 1", "zero to 3"]),
        (0, {"sync_every_microbatch": False}, ["fsdp.sync_every_microbatch", "zero is 0"]),
        (3, {"prefetch": -1}, ["fsdp.prefetch"]),
        (3, {"reshard_after_forward": 8}, ["fsdp.reshard_after_forward", "not a divisor between 1 and 8", "use 4"]),
        (3, {"reshard_after_forward": 3, "shard_group": 4}, ["not a divisor between 1 and 4", "use 2"]),
        (3, {"prefetsch": 1}, ["prefetch"]),
    ],
)
def test_bad_options(zero: int, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        fsdp(zero=zero, overlap={}, fsdp=options)
    assert [word for word in words if word not in str(caught.value)] == []


def test_prefetch_that_overlap_switches_off() -> None:
    with pytest.raises(InputError, match="param_gather to true"):
        fsdp(overlap={}, fsdp={"prefetch": 2})


def test_shard_groups_are_machines(tiny: Tiny) -> None:
    plan = ParallelPlan(tp=2, dp=8, shard=4)
    assert plan.groups("shard").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert plan.groups("replica").tolist()[:3] == [[0, 8], [1, 9], [2, 10]]
    with pytest.raises(InputError, match="shard group size 3"):
        ParallelPlan(dp=8, shard=3)
