"""The kernels of a mixture of experts by the framework that launches them, and what its host waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simcluster.collectives.token_relay import ExpertRouting
from simcluster.devices.device import kernel_seconds, load_device, memory_kernel_seconds
from simcluster.devices.software import Software
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.faults import ExpertImbalance
from simcluster.faults.fault_spec import RoutedTokens
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import linear_section
from simcluster.model.layers import RankShape
from simcluster.model.mixture import ExpertKernels, Moe
from simcluster.model.mixture_sections import make_mixture_sections, routed_rows
from simcluster.model.quantization import torch_quantization
from simcluster.model.transformer import Model
from simcluster.planning.ops import HostWork, Op
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.segment_builder import HostLaunchTimes, SegmentBuilder
from simcluster.planning.work_kinds import Compute
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import load

B200 = load_device("b200")
V2 = Model.model_validate(load_model_entry("deepseek-v2"))
assert V2.moe is not None
SHAPE = RankShape(micro_batch=1, ep=8)


def with_experts(**changes: Any) -> Model:
    assert V2.moe is not None
    return V2.model_copy(update={"moe": Moe.model_validate({**V2.moe.model_dump(), **changes})})


def seconds(section: Section) -> float:
    return sum(kernel_seconds(B200, kernel, precision="bf16") for kernel in section.forward)


def launches(section: Section) -> int:
    return sum(kernel.launches for kernel in section.forward)


# --- alignment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["forward", "input_grad", "weight_grad"])
def test_how_many_tokens_there_are_is_no_matter_of_alignment(phase: str) -> None:
    """1,229 tokens an expert take what 1,229 / 1,232 of 1,232 take; a width of 50,257 is read element by element."""

    def took(tokens: int, width: int, precision: str = "bf16") -> float:
        (kernel, *_) = getattr(linear_section("x", SHAPE, tokens, 5120, width, bias=False), phase)
        return kernel_seconds(B200, kernel, precision=precision)

    assert took(1229, 3072) == pytest.approx(took(1232, 3072), rel=0.01)
    assert took(1232, 50257) > 1.8 * took(1232, 50264)
    turned = phase == "weight_grad"  # in fp8 its operands are read in rows of tokens
    assert (took(1229, 3072, "fp8") > 1.5 * took(1232, 3072, "fp8")) == turned


# --- rows -------------------------------------------------------------------------------------------------------------


def test_capacity_by_hand() -> None:
    """4,096 tokens visit 6 of 160 experts, 153.6 rows each; padded to capacity, 154 from each of 8 ranks."""
    padded = routed_rows(with_experts(capacity_factor=1.0, pad_to_capacity=True), SHAPE)
    assert (padded.sent, padded.rows, padded.rows_per_expert) == (154 * 160, 154 * 160, 154 * 8)
    assert routed_rows(V2, SHAPE).sent == 4096 * 6
    assert routed_rows(with_experts(capacity_factor=1.0), SHAPE).sent == 4096 * 6  # spread evenly none is dropped
    assert routed_rows(with_experts(capacity_factor=0.5), SHAPE).sent == 77 * 160
    assert (
        routed_rows(V2, replace(SHAPE, quantization=torch_quantization())).rows_per_expert == 1232
    )  # 16 rows at a time
    with pytest.raises(ValueError, match="pad_to_capacity needs a capacity"):
        with_experts(pad_to_capacity=True)


def test_capacity_drops_what_popular_experts_cannot_take() -> None:
    fault = ExpertImbalance.model_validate(
        {"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": [5, 1, 1, 1]}}
    )
    routed = RoutedTokens(ExpertRouting(4, 1), seed=0, layer=0)
    loads = {most: fault.expert_loads(routed._replace(capacity=most), 2).tolist() for most in (9, 1.5, 1)}
    assert loads == {9: [1.5, 0.5], 1.5: [1.0, 0.5], 1: [0.75, 0.5]}


# --- kernels ----------------------------------------------------------------------------------------------------------


def by(**kernels: str) -> RankShape:
    return replace(SHAPE, experts=ExpertKernels.model_validate(kernels))


def test_products_together_one_by_one_and_one_behind_the_other() -> None:
    found = {
        name: make_mixture_sections(V2, by(products=name)).experts for name in ("grouped", "streams", "sequential")
    }
    took = {name: seconds(section) for name, section in found.items()}
    assert took["grouped"] < took["streams"] < took["sequential"]
    assert launches(found["streams"]) - launches(found["grouped"]) == 2 * 19  # 20 experts, two products
    assert len({sum(kernel.flops for kernel in section.forward) for section in found.values()}) == 1
    alone = replace(SHAPE, ep=160)
    single = {seconds(make_mixture_sections(V2, replace(by(products=name), ep=160)).experts) for name in found}
    assert single == {seconds(make_mixture_sections(V2, alone).experts)}


def test_fused_kernels_are_fewer_and_move_less() -> None:
    model = with_experts(aux_loss=True, capacity_factor=1.0)
    for part, what in (("router", "router"), ("dispatch", "permute"), ("combine", "permute")):
        fused, steps = (getattr(make_mixture_sections(model, by(**{what: how})), part) for how in ("fused", "steps"))
        for phase in ("forward", "input_grad"):
            less, more = getattr(fused, phase), getattr(steps, phase)
            assert sum(kernel.bytes for kernel in less) < sum(kernel.bytes for kernel in more)
        assert launches(fused) <= launches(steps)
        assert seconds(fused) < seconds(steps)


def test_the_router_of_megatron_is_many_small_kernels() -> None:
    """Of scores, choice and map; more with a loss and with a capacity, whose choice reads columns."""
    plain, loss, both = (
        make_mixture_sections(with_experts(**more), SHAPE).router
        for more in ({}, {"aux_loss": True}, {"aux_loss": True, "capacity_factor": 1.0})
    )
    assert launches(plain) < launches(loss) < launches(both)
    assert seconds(plain) < seconds(loss) < seconds(both)
    by_column = next(kernel for kernel in both.forward if kernel.name == "router_capacity")
    assert (by_column.rows, by_column.passes) == (160, 16)


def test_small_kernels_wait_for_memory_one_by_one() -> None:
    many = Kernel("x", "memory", 0.0, 1e6, launches=5)
    once = memory_kernel_seconds(B200, 1e6)
    waits = memory_kernel_seconds(B200, 1.0) - 1.0 / (B200.memory_bandwidth * B200.memory_efficiency)
    assert kernel_seconds(B200, many, precision="bf16") == pytest.approx(once + 4 * waits, rel=1e-9)
    read_again = replace(many, launches=1, passes=16, rows=2 * 8 * 148)  # two waves of blocks
    took = kernel_seconds(B200, read_again, precision="bf16")
    assert took == pytest.approx(once + 32 * (waits - B200.launch), rel=1e-9)


def test_padding_in_fp8_is_copied_unless_the_routing_sends_it() -> None:
    def copies(shape: RankShape) -> set[str]:
        return {kernel.name for kernel in make_mixture_sections(V2, shape).experts.forward if "pad" in kernel.name}

    assert copies(SHAPE) == copies(replace(by(padding="routing"), quantization=torch_quantization())) == set()
    assert copies(replace(SHAPE, quantization=torch_quantization())) == {"experts_pad", "experts_unpad"}


def test_biases_of_experts_are_added_one_by_one_in_fp32() -> None:
    """Product, sum, concatenation and cast of every element: 4, 10, 8 and 6 bytes (TEGroupedMLP, ``_apply_bias``)."""
    model = V2.model_copy(update={"bias": True})
    plain, fused, steps = (
        make_mixture_sections(of, by(bias=how)).experts
        for of, how in ((V2, "steps"), (model, "fused"), (model, "steps"))
    )
    added = 28 * routed_rows(model, SHAPE).rows * model.hidden_size
    assert sum(kernel.bytes for kernel in steps.forward) == sum(kernel.bytes for kernel in fused.forward) + added
    assert not any("experts_bias" in kernel.name for kernel in (*plain.forward, *fused.forward))
    assert seconds(fused) < seconds(steps)


def test_clamps_of_an_activation_are_kernels_of_their_own() -> None:
    """Each half read and written, then put together; back, two readings and a writing of each, and together again.

    Run again with the activation function, whose inputs they make.
    """
    model = V2.model_copy(update={"clamped_activation": True})
    half = 2 * routed_rows(model, SHAPE).rows * routed_rows(model, SHAPE).ffn
    plain, fused, steps = (
        make_mixture_sections(of, by(clamp=how)).experts
        for of, how in ((V2, "steps"), (model, "fused"), (model, "steps"))
    )
    assert plain == fused
    for phase, times in (("forward", 8), ("input_grad", 10)):
        more, less = (sum(kernel.bytes for kernel in getattr(found, phase)) for found in (steps, plain))
        assert more - less == times * half
    again = replace(by(clamp="steps"), recompute="selective", modules=("moe_act",))
    assert {kernel.name for kernel in make_mixture_sections(model, again).experts.recompute} == {
        "experts_clamp",
        "experts_swiglu",
    }


def test_casts_of_experts_are_a_kernel_for_each() -> None:
    """Of inputs and activations forward, of two gradients back: 4 bytes an element; none of what came cast."""
    shape = replace(SHAPE, quantization=torch_quantization())
    there = routed_rows(V2, shape)

    def cast(shape: RankShape) -> list[tuple[str, float, int]]:
        found = make_mixture_sections(V2, shape).experts
        kernels = (*found.forward, *found.input_grad)
        return [(each.name, each.bytes, each.launches) for each in kernels if each.name.endswith("_cast")]

    sizes = {"input": there.hidden, "middle": there.ffn, "grad": there.hidden, "middle_grad": 2 * there.ffn}
    wanted = [(f"experts_{name}_cast", 4 * there.rows * width, there.experts) for name, width in sizes.items()]
    assert cast(shape) == wanted
    assert cast(replace(shape, sent_cast=True)) == [wanted[1], wanted[3]]
    grouped = replace(shape, experts=ExpertKernels(products="grouped"))
    assert [launches for *_, launches in cast(grouped)] == [1] * 4
    assert cast(SHAPE) == cast(replace(shape, experts=ExpertKernels(casts="fused"))) == []


def test_a_dispatcher_that_pads_leaves_no_copies_for_it() -> None:
    changes = {"parallel.expert_dispatch": {"kind": "hybridep"}}
    plain, padded = (shape_of(load("mixtral_8x7b_128xh100", more)) for more in ({}, changes))
    assert (plain.experts.padding, padded.experts.padding) == ("rows", "routing")


def test_the_kernels_of_a_framework_are_those_of_its_base_but_for_what_is_said() -> None:
    software = Software.model_validate({"experts": {"permute": "steps"}})
    assert software.experts == ExpertKernels(permute="steps")


# --- the host ---------------------------------------------------------------------------------------------------------


def ops_of(moe: dict[str, Any], shape: RankShape, issue: HostLaunchTimes) -> tuple[Op, ...]:
    model = with_experts(**moe)
    timed = CachedPassSegmentMaker(model, shape, lambda kernels: 1e-3 * len(kernels), overlap_tensor=False, issue=issue)
    return timed.segment("F", PassLayers((1, 2))).ops


def test_the_host_waits_for_counts_once_a_mixture() -> None:
    """In the forward of each; not where rows are padded to capacity, nor on a rank with all experts."""
    issue = HostLaunchTimes(kernel=1e-5, sync=3e-5)
    waits = [op.work for op in ops_of({}, SHAPE, issue) if op.name == "counts"]
    assert waits == [HostWork(3e-5)] * 2
    padded = {"capacity_factor": 1.0, "pad_to_capacity": True}
    for ops in (
        ops_of(padded, SHAPE, issue),
        ops_of({}, RankShape(micro_batch=1), issue),
        ops_of({}, SHAPE, HostLaunchTimes()),
    ):
        assert not [op for op in ops if op.name == "counts"]


def test_what_the_host_was_ahead_is_gone_behind_its_wait() -> None:
    """10 s of GPU, of which the host has issued all; then kernels of 1 s that take it 3 s each to issue."""
    ops = SegmentBuilder(lambda some: Compute(sum(each.flops for each in some)), HostLaunchTimes(kernel=3.0, sync=5.0))
    ops.add_kernels((Kernel("a", "memory", 10.0, 0.0),), "forward", "a", 0)
    ops.add_wait_for_counts(0)
    for name in "bc":
        ops.add_kernels((Kernel(name, "memory", 1.0, 0.0),), "forward", name, 0)
    *_, launching, last = ops.build_segment().ops
    assert (launching.work, last.after) == (HostWork(6.0), (len(ops.build_segment().ops) - 2,))
    counts = next(place for place, op in enumerate(ops.build_segment().ops) if op.name == "counts")
    assert launching.after == (counts,)


# --- the router's product, and rows that quantized products take ------------------------------------------------------


def test_a_router_in_fp32_by_hand() -> None:
    """4,096 tokens of 5,120 and 160 experts: scores of 4 bytes; back, weights, inputs and their gradient are cast."""
    plain, wide = (make_mixture_sections(V2, by(router_dtype=dtype)).router for dtype in ("activations", "fp32"))
    scores, inputs, weights = 4096 * 160, 4096 * 5120, 160 * 5120

    def more(phase: str) -> float:
        return sum(kernel.bytes for kernel in getattr(wide, phase)) - sum(k.bytes for k in getattr(plain, phase))

    assert more("forward") == 2 * scores
    assert more("input_grad") == 2 * (scores + inputs + weights) + 6 * (weights + inputs)
    assert more("weight_grad") == 2 * (scores + inputs) + 6 * inputs
    assert sum(k.flops for k in wide.forward) == sum(k.flops for k in plain.forward)


def test_the_router_is_never_in_fp8() -> None:
    found = make_mixture_sections(V2, replace(SHAPE, quantization=torch_quantization())).router
    products = [kernel for phase in (found.forward, found.input_grad, found.weight_grad) for kernel in phase]
    assert {kernel.keeps_16_bits for kernel in products if kernel.kind == "matmul"} == {True}


@pytest.mark.parametrize(("precision", "rows"), [("fp8-mixed", 16), ("mxfp8-mixed", 32), ("nvfp4-mixed", 64)])
def test_rows_that_quantized_products_take(precision: str, rows: int) -> None:
    changes = {"cluster.topology": "dgx_b200", "training.precision": precision, "training.memory_recipe": None}
    how = shape_of(load("deepseek_v3_2048xh800", changes)).quantization
    assert how is not None
    assert how.rows == rows
    assert routed_rows(V2, replace(SHAPE, quantization=how)).rows_per_expert == -(-1229 // rows) * rows


# --- what the host pays -----------------------------------------------------------------------------------------------


def test_launches_of_one_call_cost_the_host_a_launch_each() -> None:
    """Of 20 experts' products one by one, a call and 19 launches; one module for each expert, 20 calls."""
    issue = HostLaunchTimes(kernel=100e-6, launch=3e-6)

    def host(products: str) -> float:
        kernels = [
            k for k in make_mixture_sections(V2, by(products=products)).experts.forward if k.name == "experts_up"
        ]
        made = SegmentBuilder(lambda kernels: Compute(0.0), issue)
        made.add_kernels(kernels, "forward", "experts", 0)
        (op,) = made.build_segment().ops
        assert isinstance(op.work, Compute)
        return op.work.seconds

    assert host("grouped") == pytest.approx(100e-6)
    assert host("streams") == pytest.approx(100e-6 + 19 * 3e-6)
    assert host("sequential") == pytest.approx(20 * 100e-6)


def test_a_rank_that_gets_all_tokens_makes_rows_of_its_own_alone() -> None:
    """One expert a rank of 8, a token visits 2: a quarter of 8 x 4,096 tokens come by; sums go to rows for all."""
    model = with_experts(experts=8, top_k=2, groups=1, top_groups=None)
    shape = replace(SHAPE, all_gathered=True)
    found, there = make_mixture_sections(model, shape), routed_rows(model, shape)
    row, visiting, every = 2 * 5120, 8 * 4096 / 4, 8 * 4096
    assert there.rows == visiting
    moved = {k.name: k.bytes for k in (*found.experts.forward, *found.experts.input_grad) if "sort" in k.name}
    assert moved["experts_sort"] == moved["experts_unsort_input_grad"] == pytest.approx(row * 2 * visiting)
    assert moved["experts_unsort"] == moved["experts_sort_input_grad"] == pytest.approx(row * (visiting + every))
    assert [kernel.name for kernel in found.dispatch.forward] == ["permute_map"]
    assert not any("permute" in kernel.name for kernel in (*found.combine.forward, *found.combine.input_grad))
