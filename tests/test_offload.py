"""Offload to host memory: where copies go, when they hold the GPU up, and what they leave of its memory."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conftest import Table, Tiny, counts_of, run_programs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_fold import documents
from test_same_answer import every_way

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.planning.job import Job, OffloadOptions
from simcluster.planning.offload import plan_activation_offloads
from simcluster.planning.ops import Op, Segment
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Compute
from simcluster.reference.step_record import OpTable
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.step.step_plan import plan_job

TICK = 2.0**-10
"""Seconds: times of the closed forms are whole numbers of it, so that sums are exact."""
RATE = 2.0**30
"""B/s of the PCIe link of ``ONE_GPU``; no latency."""


def exposed_seconds(ops: OpTable, end: Floats) -> dict[int, float]:
    """Seconds that each rank's main lane waited for copies, and for nothing else, over the whole run."""
    ways = ("h2d", "d2h")
    copies = {op for op, label in enumerate(ops.label.tolist()) if label >= 0 and ops.labels[label].stream in ways}
    found: dict[int, float] = dict.fromkeys(ops.lane_rank.tolist(), 0.0)
    for lane, rank, name in zip(ops.ops_of_lanes, ops.lane_rank.tolist(), ops.lane_name, strict=True):
        if name != "main":
            continue
        for before, op in pairwise([-1, *lane.tolist()]):
            after = ops.dependencies.op[ops.dependencies.offsets[op] : ops.dependencies.offsets[op + 1]].tolist()
            waited = [other for other in after if other in copies]
            others = [other for other in (before, *after) if other >= 0 and other not in copies]
            ready = max((float(end[other]) for other in others), default=0.0)
            found[rank] += max([0.0, *(float(end[other]) - ready for other in waited)])
    return found


def one_gpu(rate: str = "1 GiB/s") -> dict[str, Any]:
    """A GPU with a host, on a link of this rate."""
    link = {"between": ["gpu", "host"], "line_rate": rate, "efficiency": 1.0, "latency": "0 s", "source": "a test"}
    nodes = [{"name": "gpu", "kind": "gpu"}, {"name": "host", "kind": "host"}]
    return {"topology": {"kind": "graph", "device": "a100-80gb", "nodes": nodes, "edges": [link]}}


class Fixed:
    """Passes of given seconds, whatever they cover; I takes half of B."""

    def __init__(self, forward: float, backward: float) -> None:
        self._forward, self._backward = forward, backward

    def segment(self, kind: str, part: PassLayers) -> Segment:
        return self._one(kind, {"F": self._forward, "B": self._backward}.get(kind, self._backward / 2))

    @staticmethod
    def _one(kind: str, seconds: float) -> Segment:
        name = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}[kind]
        return Segment((Op(Compute(seconds), "compute", name, name),))


def fixed_job(scenario: Scenario, forward: float, backward: float, offload: OffloadOptions, update: float = 0.0) -> Job:
    """The scenario's job with times in ticks; ``update`` ticks a parameter, a norm that takes none."""
    job = plan_job(scenario, scenario.cluster.device)[0]
    data = replace(
        job.data_parallel,
        norm_seconds=lambda parameters: 0.0,
        zero_seconds=lambda parameters: 0.0,
        optimizer_seconds=lambda parameters: update * TICK * parameters,
    )
    return replace(job, pass_maker=Fixed(forward * TICK, backward * TICK), data_parallel=data, offload=offload)


def run_of(job: Job, scenario: Scenario) -> Run:
    cluster = scenario.cluster.built
    return run_programs(build_stage_programs(job), job.plan, cluster, steps=job.steps)


def alone(tiny: Tiny, microbatches: int, steps: int = 1) -> Scenario:
    """One GPU, one stage, all forwards before all backwards."""
    return tiny(
        cluster=one_gpu(),
        pipeline={"schedule": "gpipe"},
        training={"global_batch": microbatches, "dropout": False},
        steps=steps,
    )


def activations(copy: float, ahead: int = 1) -> OffloadOptions:
    """All of F's bytes, which take ``copy`` ticks each way."""
    return OffloadOptions(
        activations=1.0, prefetch_actions=ahead, kept_bytes_of_layers=lambda layers: copy * TICK * RATE
    )


# --- the way to the host ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "way"),
    [
        ("dgx_h100", [("node0.gpu1", "node0.nic1")]),  # the description ends at the NIC: the GPU's own PCIe link
        ("dgx_b200", [("node0.gpu1", "node0.pcie1"), ("node0.pcie1", "node0.host0")]),
        ("pcie_ethernet", [("node0.gpu1", "node0.pcie0"), ("node0.pcie0", "node0.host")]),
        ("gb200_nvl72", [("rack0.tray0.gpu1", "rack0.tray0.host0")]),
    ],
)
def test_ways_to_the_host(tiny: Tiny, topology: str, way: list[tuple[str, str]]) -> None:
    cluster = tiny(cluster={"topology": topology}, gpus=1).cluster.built
    assert [cluster.links[link] for link, _ in cluster.host_memory_route(1, "d2h")] == way
    assert [cluster.links[link] for link, _ in cluster.host_memory_route(1, "h2d")] == [
        (b, a) for a, b in reversed(way)
    ]


def test_a_grace_shares_its_c2c_between_two_gpus(tiny: Tiny) -> None:
    """NVIDIA GB200 NVL72: 900 GB/s both ways a superchip."""
    cluster = tiny(cluster={"topology": "gb200_nvl72"}, gpus=1).cluster.built
    links = [link for gpu in (0, 1) for link, _ in cluster.host_memory_route(gpu, "d2h")]
    assert sum(cluster.graph.edges[cluster.links[link]]["line_rate"] for link in links) == 450e9
    assert [cluster.node_and_tray(gpu) for gpu in (0, 3, 4)] == [(0, 0), (0, 0), (0, 1)]


def test_bad_input(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="no link to host memory"):
        tiny(cluster={"topology": "flat", "gpus": 1}, memory={"offload": {"activations": 0.5}})
    dgx = {"topology": "dgx_a100", "nodes": 1}
    with pytest.raises(InputError, match="host_update"):
        tiny(cluster=dgx, gpus=1, memory={"offload": {"optimizer": "host"}})
    with pytest.raises(InputError, match="host_update"):
        tiny(cluster=dgx, gpus=1, memory={"offload": {"host_update": "100 GB/s"}})
    with pytest.raises(InputError, match="activations"):
        tiny(cluster=dgx, gpus=1, memory={"offload": {"activations": 1.5}})


# --- activations: closed forms ----------------------------------------------------------------------------------------


def expected_step(microbatches: int, forward: float, backward: float, copy: float, ahead: int) -> tuple[float, float]:
    """End and exposed time in ticks of GPipe on one GPU, by the definition: B waits for max(0, H2D end - B ready)."""
    ended = [(number + 1) * forward for number in range(microbatches)]
    gone, now = [], 0.0
    for number in range(microbatches):
        now = max(now, ended[number]) + copy
        gone.append(now)
    main, lane, exposed = microbatches * forward, 0.0, 0.0
    for number in range(microbatches):
        call = microbatches + number - 1 - ahead
        if call > number:
            lane = max(lane, gone[number], ended[call]) + copy
            exposed += max(0.0, lane - main)
            main = max(main, lane)
        main += backward
        ended.append(main)
    return main, exposed


@given(
    microbatches=st.integers(2, 6),
    forward=st.integers(1, 20),
    backward=st.integers(1, 20),
    copy=st.integers(1, 60),
    ahead=st.integers(0, 4),
)
@settings(max_examples=60)
def test_backward_waits_for_its_copy(
    tiny: Tiny, microbatches: int, forward: int, backward: int, copy: int, ahead: int
) -> None:
    scenario = alone(tiny, microbatches)
    run = run_of(fixed_job(scenario, forward, backward, activations(copy, ahead)), scenario)
    end, exposed = expected_step(microbatches, forward, backward, copy, ahead)
    computed = run.spans.stream == run.spans.word_code("compute")
    backward_end = run.spans.end[computed & (run.spans.kind == run.spans.word_code("backward"))].max()
    assert backward_end == end * TICK
    assert exposed_seconds(run.record.ops, run.record.times.end) == {0: exposed * TICK}
    assert run.times.breakdown["offload"] == exposed * TICK
    assert sum(run.times.breakdown.values()) == pytest.approx(run.step_time, rel=1e-12)


@pytest.mark.parametrize(("copy", "slower"), [(0, 0), (1, 0), (4, 0), (5, 0), (6, 5), (7, 10), (8, 15)])
def test_no_slowdown_if_copies_fit_beside_computation(tiny: Tiny, copy: int, slower: int) -> None:
    """M = 6, F = 8, B = 5.  Up to 5 a copy fits beside F and beside B.

    Beyond, while it fits beside F, the copies back set the pace of every B but the first.
    """
    scenario = alone(tiny, 6)
    run = run_of(fixed_job(scenario, 8, 5, activations(copy)), scenario)
    assert run.step_time == (6 * 8 + 6 * 5 + slower) * TICK
    assert slower == 5 * max(0, copy - 5)


def test_what_comes_back_at_once_stays() -> None:
    """1F1B: the last stage's backward follows its forward; nothing is gained by a copy in between."""
    schedule = make_schedule("1f1b", 4, 8)
    counts = [len(plan_activation_offloads(row, [], 1)) for row in schedule.rows]
    assert counts == [8, 8, 6, 0]  # stage 2: of the first and the last microbatch too little lies in between
    for row in schedule.rows:
        for trip in plan_activation_offloads(row, [], 1):
            assert (
                trip.producer
                == trip.copied_out_after
                < trip.copied_back_after
                < trip.consumer
                == trip.copied_back_after + 2
            )


BLOCKING = ("gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe", "chimera")
"""Those whose order works in blocking pairs."""


@pytest.mark.parametrize(
    ("schedule", "p2p"), [(name, "async") for name in SCHEDULES] + [(name, "rendezvous") for name in BLOCKING]
)
def test_every_schedule(tiny: Tiny, schedule: str, p2p: str) -> None:
    """What goes comes back before it is needed, and over a step no byte is lost."""
    scenario = tiny(
        cluster={"topology": "dgx_a100", "nodes": 1},
        gpus=4,
        model={"layers": 8},
        parallel={"pp": 4},
        pipeline={"schedule": schedule, "chunks": counts_of(schedule, 4)[0], "p2p": p2p},
        training={"global_batch": 8},
        memory={"offload": {"activations": 1.0}},
    )
    result = simulate(scenario)
    copies = result.host_copies
    assert copies["d2h"]["bytes"] == copies["h2d"]["bytes"] > 0
    changes = result.memory_table()
    assert changes.groupby(["rank", "pool"])["bytes"].sum().abs().max() == 0
    assert (changes["held"] >= -1e-6).all()
    assert sum(result.times.breakdown.values()) == pytest.approx(result.step_time, rel=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("pcie", ["0.5 GB/s", "2 GB/s", "64 GB/s"])
def test_a_bubble_hides_copies(tiny: Tiny, schedule: str, pcie: str) -> None:
    """Idle time is the copies' only where a backward has all but its copy; communication meanwhile counts as such."""
    result = simulate(dgx(tiny, {"activations": 1.0}, pcie, pipeline={"schedule": schedule}))
    exposed = exposed_seconds(result.record.ops, result.record.times.end)
    mean = sum(result.weights[rank] * seconds for rank, seconds in exposed.items()) / 4
    assert 0 <= result.times.breakdown["offload"] <= mean * (1 + 1e-9)
    assert (result.times.breakdown["offload"] > 0) == (pcie == "0.5 GB/s") or pcie == "2 GB/s"


def test_the_host_waits_for_the_norm(tiny: Tiny) -> None:
    """Gradients are clipped by it, so none is used before it is known to all."""
    offload = {"optimizer": "host", "bucket": 100_000, "host_update": "500 GB/s"}
    spans = simulate(dgx(tiny, offload, "1000 GB/s", parallel={"pp": 2, "tp": 2})).spans
    for rank in np.unique(spans.rank):
        norm = spans.end[(spans.rank == rank) & (spans.name == spans.word_code("gradient_norm"))].max()
        assert spans.start[(spans.rank == rank) & (spans.stream == spans.word_code("host"))].min() >= norm


# --- switches ---------------------------------------------------------------------------------------------------------


def dgx(tiny: Tiny, offload: dict[str, Any], pcie: str = "2 GB/s", **sections: Any) -> Scenario:
    """Four stages on a machine with slow PCIe, so that copies show."""
    link = {"line_rate": pcie, "efficiency": 1.0, "latency": "1 us", "source": "a test"}
    base: dict[str, Any] = {
        "cluster": {"topology": "dgx_a100", "nodes": 1, "pcie": link},
        "gpus": 4,
        "model": {"layers": 8, "hidden_size": 512},
        "parallel": {"pp": 4},
        "training": {"global_batch": 8},
    }
    return tiny(**{**base, **sections, "memory": {"offload": offload}})


def test_nothing_offloaded_is_off_to_the_bit(tiny: Tiny, table: Table) -> None:
    off, plain = simulate(dgx(tiny, {"activations": 0.0, "optimizer": "none"})), simulate(dgx(tiny, {}))
    assert off.step_time == plain.step_time
    assert off.memory == plain.memory
    assert off.host_copies == {}
    assert off.host_memory == 0.0
    for rank in range(4):
        assert table(off, rank).equals(table(plain, rank))


@pytest.mark.parametrize(
    "offload",
    [
        {"activations": 1.0},
        {"optimizer": "stream", "bucket": 100_000},
        {"optimizer": "host", "bucket": 100_000, "host_update": "50 GB/s"},
        {"activations": 0.5, "optimizer": "stream", "bucket": 100_000},
    ],
)
def test_more_bandwidth_is_never_slower(tiny: Tiny, offload: dict[str, Any]) -> None:
    times = [simulate(dgx(tiny, offload, f"{rate} GB/s")).step_time for rate in (0.5, 1, 2, 4, 8, 64, 1000)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    plain = simulate(dgx(tiny, {})).step_time
    assert times[-1] >= plain or offload["optimizer"] == "host"
    memory = [simulate(dgx(tiny, offload, f"{rate} GB/s")).memory.total for rate in (2, 64)]
    assert memory[1] <= memory[0]
    assert memory[1] < simulate(dgx(tiny, {})).memory.total


def test_the_plan_knows_the_memory_of_the_run(tiny: Tiny) -> None:
    """With copies that take no time worth mentioning the walk over the row peaks where the run does, or above it."""
    for fraction in (0.0, 0.25, 0.5, 1.0):
        scenario = dgx(tiny, {"activations": fraction}, "1000 GB/s")
        result = simulate(scenario)
        planned = max(part.total for part in plan_footprints(scenario))
        buffers = max(result.memory_timeline.curve(rank)[1]["other"].max() for rank in result.weights)
        assert planned - result.memory.total <= 1e-6 * planned + buffers
        assert result.memory.total - planned <= buffers


@pytest.mark.parametrize("mode", ["stream", "host"])
def test_optimizer_state_is_in_the_host(tiny: Tiny, mode: str) -> None:
    extra = {"host_update": "50 GB/s"} if mode == "host" else {}
    plain = simulate(dgx(tiny, {}))
    moved = simulate(dgx(tiny, {"optimizer": mode, "bucket": 100_000, **extra}))
    parameters = [part.optimizer / 12 for part in plain.facts.footprints]
    counts = [-(-each // 100_000) for each in parameters]
    assert all(count > 2 for count in counts)
    kept = [2 / count * each * 12 if mode == "stream" else 0 for each, count in zip(parameters, counts, strict=True)]
    assert [part.optimizer for part in moved.facts.footprints] == pytest.approx(kept)
    each_host = 12 if mode == "stream" else 16  # and the fp32 gradients that come down
    assert moved.host_memory == pytest.approx(sum(parameters) * each_host)
    travels = {"stream": (12, 12), "host": (4, 2)}[mode]
    copies = moved.host_copies
    assert (copies["d2h"]["bytes"], copies["h2d"]["bytes"]) == pytest.approx(
        tuple(size * sum(parameters) / 4 for size in travels)
    )


# --- optimizer: closed forms ------------------------------------------------------------------------------------------


@given(
    buckets=st.integers(1, 6), inside=st.integers(1, 20), update=st.integers(1, 20), buffers=st.integers(1, 4),
    steps=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=40)
def test_stream(tiny: Tiny, buckets: int, inside: int, update: int, buffers: int, steps: int) -> None:
    """A pipeline of copy in, update, copy out; with three buffers its slowest part sets the pace."""
    scenario = alone(tiny, 1, steps)
    parameters = plan_job(scenario, scenario.cluster.device)[1].footprints[0].parameters / 2
    each = parameters / buckets
    offload = OffloadOptions(
        optimizer="stream", state_bytes=inside * TICK * RATE / each, bucket=np.nextafter(each, np.inf), buffers=buffers
    )
    run = run_of(fixed_job(scenario, 3, 5, offload, update / each), scenario)
    come, done, gone = [0.0], [0.0], [0.0]  # in ticks, behind a first entry
    main = 0.0
    for _ in range(steps):
        main += 8
        begin = main
        for _ in range(buckets):
            free = gone[len(gone) - buffers] if len(gone) > buffers else 0.0
            come.append(max(come[-1], begin, free) + inside)
            main = max(main, come[-1]) + update
            done.append(main)
            gone.append(max(gone[-1], main) + inside)
    assert run.step_time * steps == pytest.approx(gone[-1] * TICK, rel=1e-9)
    if buffers >= 3 and steps == 1:
        assert gone[-1] == 8 + 2 * inside + update + (buckets - 1) * max(inside, update)


@given(
    buckets=st.integers(1, 6), down=st.integers(1, 20), host=st.integers(1, 20), up=st.integers(1, 20)
)  # fmt: skip
@settings(max_examples=30)
def test_host_update(tiny: Tiny, buckets: int, down: int, host: int, up: int) -> None:
    """Down, update and up of equal buckets overlap: the slowest sets the pace."""
    scenario = alone(tiny, 1)
    parameters = plan_job(scenario, scenario.cluster.device)[1].footprints[0].parameters / 2
    each = parameters / buckets
    offload = OffloadOptions(
        optimizer="host", bucket=np.nextafter(each, np.inf), state_bytes=12.0,
        gradient_bytes=down * TICK * RATE / each, weight_bytes=up * TICK * RATE / each,
        update_bytes=host * TICK / each, host_rate=1.0,
    )  # fmt: skip
    run = run_of(fixed_job(scenario, 3, 5, offload), scenario)
    expected = 8 + down + host + up + (buckets - 1) * max(down, host, up)
    assert run.step_time == pytest.approx(expected * TICK, rel=1e-9)
    states = run.times.breakdown
    assert states["optimizer"] + states["offload"] == pytest.approx((expected - 8) * TICK, rel=1e-9)


def test_gradients_go_down_beside_the_backward(tiny: Tiny) -> None:
    """Where their reduction runs beside it, they follow bucket by bucket, and less is left for the end."""

    def scenario(*, overlap: bool, tied: bool = False) -> Scenario:
        return dgx(
            tiny,
            {"optimizer": "host", "host_update": "500 GB/s"},
            gpus=4,
            model={"layers": 8, "hidden_size": 512, "tied_embeddings": tied},
            parallel={"pp": 2, "dp": 2, "zero": 1},
            overlap={"grad_reduce": overlap, "bucket_size": "1 MB"},
        )

    beside, behind = simulate(scenario(overlap=True)), simulate(scenario(overlap=False))
    assert beside.host_copies["d2h"]["hidden_s"] > 10 * behind.host_copies["d2h"]["hidden_s"]  # the norm hides some
    assert beside.host_copies["d2h"]["bytes"] == pytest.approx(behind.host_copies["d2h"]["bytes"])
    assert beside.step_time < behind.step_time
    tied = simulate(scenario(overlap=True, tied=True)).spans
    summed = tied.end[tied.name == tied.word_code("embedding_gradients")]
    down = (tied.name == tied.word_code("gradients")) & (tied.stream == tied.word_code("d2h"))
    for rank in (0, 2):
        late = tied.start[down & (tied.rank == rank)] >= summed.min()
        assert late.any()
        assert not late.all()


# --- other traffic ----------------------------------------------------------------------------------------------------


def took(result: Result, stream: str, name: str) -> float:
    spans = result.spans
    own = (spans.stream == spans.word_code(stream)) & (spans.name == spans.word_code(name))
    return float((spans.end[own] - spans.start[own]).sum())


@pytest.mark.parametrize(("nodes", "shared"), [(2, True), (1, False)])
def test_copies_contend_with_nics_not_with_nvlink(tiny: Tiny, nodes: int, shared: bool) -> None:
    """Gradients over the network and on their way to the host leave a GPU by the same PCIe link."""

    def scenario(*, dp: int, optimizer: str) -> Scenario:
        return tiny(
            cluster={"topology": "dgx_a100", "nodes": nodes, "gpus_per_node": 2 // nodes, "nccl": None},
            gpus=dp,
            model={"layers": 8, "hidden_size": 1024, "ffn_hidden_size": 4096},
            parallel={"dp": dp},
            training={"global_batch": dp},
            overlap={"grad_reduce": True, "bucket_size": "8 MB"},
            collectives={"nccl": "none"},
            memory={"offload": {"optimizer": optimizer, "bucket": 40_000_000}
                    | ({"host_update": "500 GB/s"} if optimizer == "host" else {})},
        )  # fmt: skip

    both = simulate(scenario(dp=2, optimizer="host"))
    reduced = simulate(scenario(dp=2, optimizer="none"))
    reduction = took(both, "dp", "gradients") / took(reduced, "dp", "gradients")
    down = (both.spans.stream == both.spans.word_code("d2h")) & (both.spans.rank == 0)
    alone_seconds = 1e-6 + both.spans.bytes[down] / (0.82 * 32e9)
    copies = (both.spans.end[down] - both.spans.start[down]).sum() / alone_seconds.sum()
    if shared:
        assert reduction > 1.1
        assert copies > 1.1
    else:
        assert reduction == 1.0
        assert copies == pytest.approx(1.0, rel=1e-9)


# --- folding ----------------------------------------------------------------------------------------------------------


@given(
    document=documents(),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    ahead=st.integers(0, 2),
    optimizer=st.sampled_from(["none", "stream", "host"]),
)
@settings(max_examples=14)
def test_folded_is_unfolded_to_the_bit(
    tiny: Tiny, table: Table, document: dict[str, Any], fraction: float, ahead: int, optimizer: str
) -> None:
    assume(document["cluster"]["topology"] != "flat")
    offload: dict[str, Any] = {"activations": fraction, "optimizer": optimizer}
    offload |= ({"ahead": ahead} if fraction else {}) | ({"bucket": 300_000} if optimizer != "none" else {})
    offload |= {"host_update": "20 GB/s"} if optimizer == "host" else {}
    scenario = tiny(**document, memory={"offload": offload})
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    for rank in range(scenario.gpus):
        assert table(folded, rank).equals(table(plain, rank))
    assert folded.host_memory == pytest.approx(plain.host_memory, rel=1e-12)
    for name, seconds in plain.times.breakdown.items():
        assert folded.times.breakdown[name] == pytest.approx(seconds, rel=1e-9, abs=1e-9 * plain.step_time)


# --- layer by layer, where B follows F at once ------------------------------------------------------------------------


class ByLayer(Fixed):
    """Passes whose seconds go with their layers; the LM head takes ``head`` each way."""

    def __init__(self, forward: float, backward: float, head: float) -> None:
        super().__init__(forward, backward)
        self._head = head

    def segment(self, kind: str, part: PassLayers) -> Segment:
        each = {"F": self._forward, "B": self._backward}[kind]
        return self._one(kind, each * len(part.layers) + self._head * part.lm_head)


def by_layer_step(layers: int, count: int, forward: float, backward: float, head: float, copy: float) -> float:
    """End of F and B in ticks, as Transformer Engine's handler synchronizes its streams (cpu_offload.py)."""
    ends, constant = [], 0
    for window in range(count):
        ends.append(layers // count * (window + 1) - 1)
        if window < layers % count:
            ends[-1] += window + 1
            constant = window + 1
        else:
            ends[-1] += constant
    now, lane, over, done = 0.0, 0.0, 0.0, 0
    for layer in range(layers):
        now += forward
        if layer == 0:
            over = now + copy
        if done < count and ends[done] == layer:
            now = max(now, over)
            done += 1
            over = now + copy if done < count else over
    now += 2 * head
    for layer in reversed(range(layers)):
        if ends[done - 1] == layer and done:
            now = max(now, lane)
            lane = now + copy
            done -= 1
        if layer == 0:
            now = max(now, lane)
        now += backward
    return now


@given(
    layers=st.integers(2, 12),
    part=st.floats(0.01, 1.0),
    times=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 30)),
    microbatches=st.integers(1, 3),
)
@settings(max_examples=40)
def test_layers_leave_and_return_one_window_after_the_other(
    tiny: Tiny, layers: int, part: float, times: tuple[int, int, int, int], microbatches: int
) -> None:
    forward, backward, head, copy = times
    scenario = tiny(
        cluster=one_gpu(), model={"layers": layers}, pipeline={"schedule": "1f1b"},
        training={"global_batch": microbatches, "dropout": False},
    )  # fmt: skip
    count = min(math.ceil(part * layers - 1e-9), layers - 1)
    each = copy * TICK * RATE / min(1.0, part * layers / count)
    offload = OffloadOptions(activations=part, kept_bytes_of_layers=lambda some: each * len(some))
    job = replace(
        fixed_job(scenario, forward, backward, offload),
        pass_maker=ByLayer(forward * TICK, backward * TICK, head * TICK),
    )
    run = run_of(job, scenario)
    computed = run.spans.stream == run.spans.word_code("compute")
    found = run.spans.end[computed & (run.spans.kind == run.spans.word_code("backward"))].max()
    assert found == pytest.approx(
        microbatches * by_layer_step(layers, count, forward, backward, head, copy) * TICK, rel=1e-9
    )


def llama(tiny: Tiny, part: float, **more: Any) -> Scenario:
    sections = {
        "cluster": {"topology": "dgx_h100", "nodes": 1}, "gpus": 8, "parallel": {"tp": 2, "dp": 4},
        "model": {"layers": 8, "hidden_size": 1024, "heads": 8, "sequence_length": 512, "vocab_size": 4096},
        "training": {"global_batch": 8}, "memory": {"offload": {"activations": part}},
    } | more  # fmt: skip
    return tiny(**sections)


def test_a_job_without_a_pipeline_offloads_what_it_is_asked_for(tiny: Tiny) -> None:
    """Activations that are there at the peak: those of all layers less what has left, but for one window in flight."""
    results = {part: simulate(llama(tiny, part)) for part in (0.0, 0.25, 0.5, 1.0)}
    held = [result.memory.activations for result in results.values()]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == 4
    kept = held[0]
    layers = moved = 0.0
    for part, result in results.items():
        (footprint,) = result.facts.footprints
        assert footprint.activations == pytest.approx(result.memory.activations, rel=1e-12)
        if part:
            copies = result.host_copies
            moved = copies["d2h"]["bytes"] / 2  # of two microbatches
            assert copies["h2d"]["bytes"] == copies["d2h"]["bytes"]
            layers = layers or moved / 2  # of two of eight layers: a quarter
            assert moved == pytest.approx(layers * min(8 * part, 7), rel=1e-9)
            assert kept - result.memory.activations <= moved
    assert results[1.0].memory.activations < 0.4 * kept
    steps = [result.step_time for result in results.values()]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parallel": {"tp": 1, "dp": 8, "zero": 3}},
        {"parallel": {"tp": 1, "dp": 8, "zero": 2}, "overlap": {"grad_reduce": True}},
        {"parallel": {"tp": 2, "dp": 4, "zero": 1}, "overlap": {"grad_reduce": True, "param_gather": True}},
        {"parallel": {"tp": 1, "pp": 4, "dp": 2}, "training": {"global_batch": 16}},
        {"parallel": {"tp": 1, "pp": 2, "dp": 4}, "pipeline": {"schedule": "zb-h1"}, "training": {"global_batch": 16}},
        {"training": {"global_batch": 8, "precision": "fp8-mixed"}},
        {"memory": {"offload": {"modules": ["core_attn", "mlp_norm"]}}},
    ],
)
def test_every_way_to_simulate_it_gives_the_same_spans(tiny: Tiny, more: dict[str, Any]) -> None:
    scenario = llama(tiny, 0.5, **more)
    every_way(scenario)
    found = simulate(scenario)
    assert simulate(scenario, engine="reference").step_time == found.step_time
    copies = found.timeline_of(found.representative_of(scenario.gpus - 1))
    assert (copies["kind"] == "copy").any(), "the last stage's B follows its F at once"


@pytest.mark.parametrize(
    ("more", "moves"),
    [
        ({"model": {"layers": 1}}, False),
        ({"model": {"layers": 2}}, True),
        ({"model": {"layers": 4}, "parallel": {"pp": 4, "dp": 2}, "training": {"global_batch": 8}}, True),
        ({"pipeline": {"schedule": "gpipe"}, "training": {"global_batch": 8}}, False),  # one forward between
        (
            {
                "training": {"global_batch": 8, "recompute": "full"},
                "memory": {"offload": {"activations": 0.5, "modules": ["core_attn"]}},
            },
            False,
        ),
    ],
)
def test_what_moves_nothing_says_so(tiny: Tiny, more: dict[str, Any], moves: bool) -> None:
    result = simulate(llama(tiny, 0.5, **more))
    assert ("d2h" in result.host_copies) == moves
    assert any("memory.offload.activations 0.5 has no effect" in each for each in result.warnings()) != moves
