"""Blocking pairs: sender and receiver wait for each other, as Megatron-LM without overlapped point-to-point does."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Table, Tiny, run_programs
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import DeadlockError
from simcluster.model.transformer import Model
from simcluster.planning.job import DataParallelOptions, Job, ModelSlices
from simcluster.planning.ops import Op, Segment
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Compute
from simcluster.results.simulated_run import Run
from simcluster.schedules import SCHEDULES, Schedule, make_schedule, schedule_entry
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.topology.textbook_networks import FlatSpec

MODEL = Model(
    layers=48,
    hidden_size=64,
    heads=8,
    kv_heads=8,
    ffn_hidden_size=64,
    vocab_size=64,
    sequence_length=64,
    gated_mlp=False,
    tied_embeddings=False,
)
DGX = {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}
BLOCKING = ("gpipe", "1f1b", "interleaved", "zb-h1", "v-min", "hanayo")
"""Schedules whose order works in blocking pairs; the others have sends for which nobody is ready in time."""


class Given:
    """Passes of given times."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds

    def segment(self, kind: str, part: PassLayers) -> Segment:
        name = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}[kind]
        return Segment((Op(Compute(self._seconds[kind]), "compute", name, name),))


def played(schedule: Schedule, *, latency: float, rendezvous: bool = True, **seconds: float) -> tuple[Run, float]:
    """The run, and when the pipeline's last pass ends; a message takes the latency and nothing else."""
    plan = ParallelPlan(pp=schedule.num_stages)
    free = DataParallelOptions(
        zero=0,
        overlap_reduce=False,
        overlap_gather=False,
        gradient_bytes=4.0,
        parameter_bytes=2.0,
        bucket_bytes=1e18,
        optimizer_seconds=lambda parameters: 0.0,
        norm_seconds=lambda parameters: 0.0,
    )
    job = Job(
        model=MODEL,
        plan=plan,
        schedule=schedule,
        slices=ModelSlices.split_evenly(MODEL.layers, len(schedule.routes[0])),
        pass_maker=Given(**seconds),
        data_parallel=free,
        send_bytes=0.0,
        gather_boundary=False,
        overlap_sends=True,
        steps=1,
        rendezvous=rendezvous,
    )
    fabric = FlatSpec.model_validate(
        {
            "kind": "flat",
            "device": "a100-80gb",
            "gpus": schedule.num_stages,
            "link": {"line_rate": "1 GB/s"},
            "path_latency": f"{latency} s",
        }
    ).build()
    run = run_programs(build_stage_programs(job), plan, fabric)
    spans = run.spans
    return run, float(spans.end[(spans.stream == spans.word_code("compute")) & (spans.microbatch >= 0)].max())


def lines(run: Run, rank: int) -> list[str]:
    """What a rank does, and from when to when."""
    table = run.timeline_of(rank)
    table = table[(table["end"] > table["start"]) & (table["microbatch"] >= 0)]
    return [f"{row.kind} {row.microbatch} {row.start:g}-{row.end:g}" for row in table.itertuples()]


# --- by hand --------------------------------------------------------------------------------------------------------


@given(
    microbatches=st.integers(1, 9),
    forward=st.integers(1, 20),
    backward=st.integers(1, 20),
    latency=st.integers(1, 20),
)
@settings(max_examples=25)
def test_two_stages_of_1f1b(microbatches: int, forward: int, backward: int, latency: int) -> None:
    """Every message is met by both stages at once: (M + 1)(F + B + c), worked out by hand."""
    schedule = schedule_entry("1f1b")(2, microbatches)
    _, end = played(schedule, latency=latency, F=forward, B=backward)
    assert end == (microbatches + 1) * (forward + backward + latency)
    _, free = played(schedule, latency=latency, rendezvous=False, F=forward, B=backward)
    extra = 1 + (microbatches - 1) - (microbatches // 2)  # modelling: 2c[(P-1) + (M-1) - ceil((M-1)/P)]
    least = (microbatches + 1) * (forward + backward) + 2 * latency * extra
    assert free == least if latency <= forward else free >= least  # one message after the other, on either side
    assert end >= free


def test_the_head_of_the_line_blocks() -> None:
    """Stage 1 hands on microbatch 0 before it takes microbatch 1, which has been ready all the while."""
    schedule = schedule_entry("gpipe")(3, 2)
    run, _ = played(schedule, latency=2.0, F=1.0, B=1.0)
    free, _ = played(schedule, latency=2.0, rendezvous=False, F=1.0, B=1.0)
    assert lines(free, 1)[:6] == [
        "recv 0 1-3", "forward 0 3-4", "recv 1 3-5", "send 0 4-6", "forward 1 5-6", "send 1 6-8",
    ]  # fmt: skip
    assert lines(run, 0)[:4] == ["forward 0 0-1", "send 0 1-3", "forward 1 3-4", "send 1 6-8"]
    assert lines(run, 1)[:6] == [
        "recv 0 1-3", "forward 0 3-4", "send 0 4-6", "recv 1 6-8", "forward 1 8-9", "send 1 9-11",
    ]  # fmt: skip
    table = run.timeline_of(0)
    waited = table[(table["kind"] == "send") & (table["microbatch"] == 1)].iloc[0]
    assert (waited["ready"], waited["start"], waited["end"]) == (4.0, 6.0, 8.0)


def test_who_waits_is_named_and_it_is_no_communication() -> None:
    schedule = schedule_entry("gpipe")(3, 2)
    run, _ = played(schedule, latency=2.0, F=1.0, B=1.0)
    states = run.times.breakdown
    table = run.timeline
    sent = table[table["kind"].isin(["send", "recv"])]
    for rank, own in sent.groupby("rank"):
        busy = sum(row.end - row.start for row in own.itertuples())
        assert busy >= 2.0 * len(own), rank
    # rank 0: F0, 2 s of send, F1, waits from 4 to 6 for rank 1, which sends first
    first = [wait for wait in run.waits if (wait.rank, wait.culprit, wait.where) == (0, 1, "pipeline")]
    assert first
    assert first[0].seconds >= 2.0
    assert states["straggler_wait"] == 0.0
    assert sum(states.values()) == pytest.approx(run.step_time, rel=1e-12)


# --- all schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKING)
@given(
    seconds=st.tuples(*[st.integers(1, 30)] * 3),
    latency=st.integers(0, 20),
    stages=st.sampled_from([2, 3, 4]),
    groups=st.integers(1, 3),
)
@settings(max_examples=12)
def test_blocking_is_never_faster(
    name: str, seconds: tuple[int, int, int], latency: int, stages: int, groups: int
) -> None:
    schedule = schedule_entry(name)(stages, stages * groups, 2 if SCHEDULES[name].takes_chunks else 1)
    forward, input_, weight = seconds
    times = {"F": forward, "B": input_ + weight, "I": input_, "W": weight}
    _, blocking = played(schedule, latency=latency, **times)
    _, free = played(schedule, latency=latency, rendezvous=False, **times)
    assert blocking >= free


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in BLOCKING])
def test_all_others_are_slower_or_stuck(name: str) -> None:
    """No third outcome, and none is stuck with asynchronous sends."""
    schedule = make_schedule(name, 4, 8, 2 if SCHEDULES[name].takes_chunks else 1)
    times = {"F": 4, "B": 8, "I": 4, "W": 4}
    _, free = played(schedule, latency=1, rendezvous=False, **times)
    try:
        _, blocking = played(schedule, latency=1, **times)
    except DeadlockError as error:
        assert "wait for each other" in str(error)  # noqa: PT017
    else:
        assert blocking >= free


def test_a_blocking_order_that_cannot_work() -> None:
    """The last stage sends chunk 0 of microbatch 0 to the first, which is not done with chunk 0 of the others."""
    with pytest.raises(DeadlockError) as caught:
        played(schedule_entry("breadth-first")(2, 4, 2), latency=1.0, F=1.0, B=1.0)
    message = str(caught.value)
    assert "rank 1 send F: send activation, microbatch 0 waits for the other members of its group (1 of 2" in message
    assert "rank 0 send F: send activation, microbatch 2 waits for the other members of its group (1 of 2" in message


# --- whole steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", BLOCKING)
def test_folding_is_exact(schedule: str, tiny: Tiny, table: Table) -> None:
    chunks = 2 if SCHEDULES[schedule].takes_chunks else 1
    scenario = tiny(
        cluster=DGX,
        model={"layers": 8},
        parallel={"tp": 2, "pp": 2},
        training={"global_batch": 8},
        pipeline={"schedule": schedule, "chunks": chunks, "p2p": "rendezvous"},
        overlap={"grad_reduce": True},
    )
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(plain.weights)
    for rank in range(8):
        assert table(folded, rank).equals(table(plain, rank))


def test_a_scenario_that_is_stuck_says_what_helps(tiny: Tiny) -> None:
    stuck: dict[str, Any] = {"schedule": "breadth-first", "chunks": 2, "p2p": "rendezvous"}
    scenario = tiny(cluster=DGX, gpus=2, parallel={"pp": 2}, training={"global_batch": 4}, pipeline=stuck)
    with pytest.raises(DeadlockError, match=r"pipeline\.p2p: async"):
        simulate(scenario)
