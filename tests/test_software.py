"""What the host costs: a pass takes as long as it takes to issue it, where the GPU would be faster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_times import segment_seconds

from simcluster.base.errors import InputError
from simcluster.devices.software import Software, expected_latest_delay, list_software_names, load_software
from simcluster.model.kernels import Kernel
from simcluster.planning.ops import HostWork, Op
from simcluster.planning.segment_builder import HostLaunchTimes, SegmentBuilder
from simcluster.planning.work_kinds import Collective, Compute
from simcluster.scenario.scenario import from_document, load
from simcluster.step.simulate import simulate


def kernel(seconds: float) -> Kernel:
    return Kernel("k", "memory", seconds, 1.0)


def seconds_of(op: Op) -> float:
    return op.work.size if isinstance(op.work, Collective) else op.work.seconds  # type: ignore[union-attr]


@given(
    kernels=st.lists(st.integers(1, 20), min_size=2, max_size=8),
    issue=st.integers(0, 30),
    begin=st.integers(0, 50),
)
def test_the_last_kernel_waits_until_it_is_issued(kernels: list[int], issue: int, begin: int) -> None:
    """One op a kernel: the pass takes what the GPU needs, or what the host needs and the last kernel behind it."""
    ops = SegmentBuilder(lambda some: Compute(sum(each.flops for each in some)), HostLaunchTimes(issue, 0.0, begin))
    ops.add_microbatch_start()
    for each in kernels:
        ops.add_kernels((kernel(each),), "forward", "k", 0)
    host = begin + issue * len(kernels)
    assert segment_seconds(ops.build_segment(), seconds_of) == max(
        sum(kernels), host + kernels[-1] if host > kernels[0] else 0
    )


def test_a_pass_of_one_op_takes_the_longer() -> None:
    ops = SegmentBuilder(lambda some: Compute(5.0), HostLaunchTimes(3.0, 0.0))
    ops.add_kernels((kernel(1), kernel(1)), "weight_grad", "w", 0)
    (op,) = ops.build_segment().ops
    assert op.work == Compute(6.0)


def test_collectives_are_issued_too() -> None:
    ops = SegmentBuilder(lambda some: Compute(1.0), HostLaunchTimes(0.0, 10.0))
    ops.add_kernels((kernel(1),), "forward", "k", 0)
    ops.add_collective("all_reduce", "k", 2.0)
    ops.add_collective("all_reduce", "k", 2.0)
    assert segment_seconds(ops.build_segment(), seconds_of) == 20.0 + 2.0


def test_gaps_are_the_gpus_own() -> None:
    """Each kernel takes so much longer, whatever the host has issued."""
    ops = SegmentBuilder(lambda some: Compute(sum(each.flops for each in some)), HostLaunchTimes(gap=3.0))
    ops.add_kernels((kernel(1), kernel(2)), "forward", "k", 0)
    ops.add_kernels((kernel(4),), "forward", "k", 0)
    assert [seconds_of(op) for op in ops.build_segment().ops] == [3.0 + 6.0, 4.0 + 3.0]


def test_the_last_of_a_group_delays_what_waits_for_it() -> None:
    """Before each collective that the main lane waits for, not before those beside it; behind the loss once."""
    ops = SegmentBuilder(lambda some: Compute(1.0), HostLaunchTimes(late=5.0, loss=7.0))
    ops.add_kernels((kernel(1),), "forward", "k", 0)
    ops.add_overlapped_collective("all_gather", "k", 1.0, 0)
    ops.join_collectives()
    ops.add_collective("all_reduce", "k", 2.0)
    ops.add_host_wait(7.0, "loss")
    idle = [(op.name, op.work.seconds) for op in ops.build_segment().ops if isinstance(op.work, HostWork)]
    assert idle == [("late", 5.0), ("loss", 7.0)]


def test_the_expected_last_of_a_group() -> None:
    """Exact for one and two (1 / sqrt(pi)); Harter's tables (1961) for four and eight."""
    assert expected_latest_delay(1) == 0
    for members, exact in ((2, 0.5642), (4, 1.0294), (8, 1.4236)):
        assert expected_latest_delay(members) == pytest.approx(exact, abs=0.03)


def test_members_of_a_group_of_one_are_never_late() -> None:
    late = {"overlap.interference": "none", "software": {"late": "1 ms"}}
    alone = simulate(load("tiny_dp", late))
    assert alone.scenario.parallel.tp == 1
    assert alone.step_time == simulate(load("tiny_dp", {"overlap.interference": "none"})).step_time
    assert simulate(load("tiny_3d", late)).times.breakdown["other"] > 0


SLOW = {"kernel": "100 us", "collective": "100 us", "microbatch": "1 ms"}


def test_launching_shows_as_other_and_the_breakdown_still_sums() -> None:
    base = simulate(load("tiny_3d", {"overlap.interference": "none"}))
    slow = simulate(load("tiny_3d", {"overlap.interference": "none", "software": SLOW}))
    assert slow.step_time > base.step_time
    assert base.times.breakdown["other"] == 0
    assert slow.times.breakdown["other"] > 0.3 * slow.step_time
    assert sum(slow.times.breakdown.values()) == pytest.approx(slow.step_time)
    assert slow.times.breakdown["forward"] == pytest.approx(base.times.breakdown["forward"])


def test_a_host_without_cost_is_the_ideal_one_to_the_bit() -> None:
    free = {"kernel": "0 s", "collective": "0 s"}
    assert simulate(load("tiny_3d", {"software": free})).step_time == simulate(load("tiny_3d")).step_time
    assert simulate(load("tiny_3d", {"software": "ideal"})).step_time == simulate(load("tiny_3d")).step_time


def test_folded_is_unfolded() -> None:
    scenario = load("tiny_3d", {"software": SLOW})
    folded, plain = simulate(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    assert folded.times.breakdown == pytest.approx(plain.times.breakdown)


def test_large_kernels_hide_the_host() -> None:
    """GPT-3 175B with micro batches of one: every pass of a stage takes longer than it takes to issue it."""
    changes = {"training.global_batch": 16, "overlap.interference": "none"}
    named = load("gpt3_175b_64xa100", {**changes, "software": "megatron-deepspeed"})
    hosted = simulate(named)
    assert named.software is not None
    in_no_time = named.software.model_copy(update={"kernel": 0.0, "collective": 0.0, "microbatch": 0.0})
    base = simulate(named.model_copy(update={"software": in_no_time}))
    assert hosted.step_time < 1.02 * base.step_time


def test_names() -> None:
    assert load_software("ideal") is None
    assert all(isinstance(load_software(name), Software) for name in list_software_names() if name != "ideal")
    with pytest.raises(InputError, match="megatron-deepspeed"):
        load_software("megatron-deepsped")


def test_a_document_of_its_own() -> None:
    scenario = load("tiny_dp", {"software": "megatron-deepspeed"})
    assert from_document(scenario.document()) == scenario


def test_framework_is_another_word() -> None:
    names = ("megatron-lm-2021", "megatron-lm-2022", "megatron-deepspeed", "megatron-core", "torchtitan", "llm-foundry")
    for name in names:
        assert load("tiny_3d", {"framework": name}) == load("tiny_3d", {"software": name})
    with pytest.raises(InputError, match="framework: is an alias of software"):
        load("tiny_3d", {"framework": "torchtitan", "software": "ideal"})
    with pytest.raises(InputError, match="framework: there is no software 'torchtitn'; did you mean 'torchtitan'"):
        load("tiny_3d", {"framework": "torchtitn"})


def test_one_thing_may_differ_from_a_name() -> None:
    named, own = load_software("megatron-deepspeed"), {"base": "megatron-deepspeed", "kernel": "80 us"}
    assert named is not None
    software = load("tiny_3d", {"software": own}).software
    assert software == named.model_copy(update={"name": "inline", "kernel": 80e-6, "source": ""})
    assert load("tiny_3d", {"software": {"base": "ideal"}}).software == Software()
    for base in ("megatron", 17, ["ideal"]):
        with pytest.raises(InputError, match="there is no software"):
            load("tiny_3d", {"software": {"base": base}})
