"""Matmuls of layers in fp8, MXFP8 and NVFP4: their peaks, operands, casts and scales."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from conftest import Tiny
from test_same_answer import every_way

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.devices.device import kernel_seconds, load_device
from simcluster.importers.megatron_bridge import mixed_precision_settings
from simcluster.interactive.report import make_entry, report_page
from simcluster.model.kernels import split_matmul
from simcluster.model.layer_block import cast_matmul_pair
from simcluster.model.layer_sections import linear_section
from simcluster.model.recipes import RECIPES
from simcluster.scenario.memory_plan import _RECIPE, recipe_of, shape_of
from simcluster.scenario.scenario import Scenario, load
from simcluster.scenario.training_section import MemoryRecipe, Precision
from simcluster.step.simulate import simulate
from simcluster.studies.kernels import kernels
from simcluster.studies.sweep.quick_steps import quick_step_time

FORMATS = {"fp8-mixed": 1.0, "mxfp8-mixed": 33 / 32, "nvfp4-mixed": 9 / 16}
B200 = {"topology": "dgx_b200", "nodes": 1}


@pytest.mark.parametrize(("precision", "each"), FORMATS.items())
def test_a_cast_reads_16_bits_and_writes_two_orders_with_their_scales(tiny: Any, precision: str, each: float) -> None:
    scenario = tiny(cluster=B200, training={"precision": precision, "global_batch": 8})
    shape = shape_of(scenario)
    body = [linear_section(name, shape, 1, 1, 1, bias=False) for name in ("up", "down")]
    outside, _ = cast_matmul_pair("mlp", shape, body, rows=1, outer_size=10**6)
    (kernel,) = outside.forward
    assert kernel.bytes == pytest.approx((2 + 2 * each) * 1e6)
    assert recipe_of(scenario).copies == pytest.approx(2 * each if precision == "nvfp4-mixed" else 2)


def test_only_blackwell_scales_blocks() -> None:
    assert load_device("b200").peak_flops("nvfp4") == 2 * load_device("b200").peak_flops("mxfp8") == 9e15
    with pytest.raises(InputError, match="h100 has no peak for precision 'mxfp8'"):
        load_device("h100").peak_flops("mxfp8")


def test_megatron_bridges_words_for_them() -> None:
    assert mixed_precision_settings("bf16_with_mxfp8_mixed", "x")["mixed_precision.fp8_recipe"] == "mxfp8"
    assert mixed_precision_settings("bf16_with_nvfp4_mixed", "x")["mixed_precision.fp4"] == "e2m1"


@pytest.mark.parametrize(
    ("precision", "each"), [*FORMATS.items(), ("bf16-mixed", 2.0), ("fp16-mixed", 2.0), ("fp32", 4.0)]
)
@pytest.mark.parametrize("gradient", [2.0, 4.0])
def test_operands_have_the_bytes_of_the_precision_and_results_those_of_activations_and_gradients(
    tiny: Tiny, precision: str, each: float, gradient: float
) -> None:
    """By hand, of a narrowing matmul: 128 x 1,024 with 1,024 x 256."""
    recipe = "fp32-16" if precision == "fp32" else "mixed-18" if gradient == 4.0 else "mixed-16"
    training = {"precision": precision, "global_batch": 8, "memory_recipe": recipe}
    shape = shape_of(tiny(cluster=B200, training=training))
    wide, gradient = (4.0, 4.0) if precision == "fp32" else (2.0, gradient)
    made = linear_section("mlp_down", shape, 128, 1024, 256, bias=False)
    (forward,), (input_grad,), (weight_grad,) = made.forward, made.input_grad, made.weight_grad
    x, w, y = 128 * 1024, 1024 * 256, 128 * 256
    assert forward.bytes == each * (x + w) + wide * y
    assert input_grad.bytes == each * (y + w) + wide * x
    assert weight_grad.bytes == each * (x + y) + 2 * gradient * w  # added to the main gradient: read and written
    whole = linear_section("logits", shape, 128, 1024, 256, bias=False, wide=True).forward[0]
    assert whole.bytes == wide * (x + w + y)  # the LM head and the router stay in 16 bits
    for piece in split_matmul(forward, 4):
        assert piece.bytes == pytest.approx(each * (x / 4 + w) + wide * y / 4, rel=1e-12)


def test_a_scale_of_an_operand_is_no_part_of_the_result(tiny: Tiny) -> None:
    """Only a result's bytes are not hidden behind a matmul: 2 an element forward, 8 in a main gradient."""
    device = load_device("b200")
    shapes = [shape_of(tiny(cluster=B200, training={"precision": name, "global_batch": 8})) for name in FORMATS]
    made = [linear_section("up", shape, 8192, 8192, 8192, bias=False) for shape in shapes[:2]]
    for phase in ("forward", "input_grad", "weight_grad"):
        fp8, mxfp8 = (kernel_seconds(device, getattr(each, phase)[0], precision="fp8") for each in made)
        assert fp8 == pytest.approx(mxfp8, rel=1e-12)


def _casting(tiny: Tiny, precision: str, recipe: str | None = None, **parallel: Any) -> Scenario:
    layout = {"tp": 1, "pp": 1, "dp": 8, **parallel}
    training = {"precision": precision, "global_batch": 4 * layout["dp"], "memory_recipe": recipe}
    return tiny(cluster=B200, parallel=layout, training=training, gpus=layout["tp"] * layout["pp"] * layout["dp"])


@pytest.mark.parametrize(("precision", "each"), FORMATS.items())
def test_weights_are_cast_once_a_step_in_the_first_microbatch(tiny: Tiny, precision: str, each: float) -> None:
    """12 h^2 weights a layer: read in 16 bits, written in both orders; 4 kernels in each of 4 layers."""
    scenario = _casting(tiny, precision)
    rows = [row for row in kernels(scenario) if row.name.endswith("_weight_cast")]
    assert sum(row.launches for row in rows) == 4 * 4
    assert sum(row.bytes * row.launches for row in rows) == pytest.approx(4 * 12 * 256**2 * (2 + 2 * each))
    spans = simulate(scenario).timeline
    casts = spans[spans["name"].str.endswith("_weight_cast")]
    assert set(casts["microbatch"]) == {0}
    of_a_rank = casts[casts["rank"] == casts["rank"].min()]
    took = float((of_a_rank["end"] - of_a_rank["start"]).sum())
    assert took == pytest.approx(sum(row.step_seconds for row in rows), rel=1e-6)
    twice = simulate(scenario.model_copy(update={"steps": 2})).timeline
    assert len(twice[twice["name"].str.endswith("_weight_cast")]) == 2 * len(casts)


@pytest.mark.parametrize(
    ("recipe", "moved"),
    [("fp8-20", 4.0), ("fp8-18", 4.0), ("fp8-aware-14", 4.0), ("fp8-19", 3.0), ("mixed-18", 4.0),
     ("fp8-params-18", 0.0), ("fp8-params-17", 0.0), ("fp8-13", 0.0)],
)  # fmt: skip
def test_a_recipe_says_what_is_cast(tiny: Tiny, recipe: str, moved: float) -> None:
    """A weight in 16 bits is read and as many copies written as the recipe keeps; one in fp8 is gathered as it is."""
    assert shape_of(_casting(tiny, "fp8-mixed", recipe)).weight_cast_bytes == moved


def test_16_bits_cast_nothing(tiny: Tiny) -> None:
    assert not any(row.name.endswith("_weight_cast") for row in kernels(_casting(tiny, "bf16-mixed")))


def test_casts_are_the_whole_difference_between_recipes_that_keep_16_bits_and_fp8(tiny: Tiny) -> None:
    """fp8-params-17 has the gradients and the optimizer of fp8-20, so one GPU's steps differ by casts and the update
    of a weight of another width alone."""
    kept, cast = (_casting(tiny, "fp8-mixed", recipe, dp=1) for recipe in ("fp8-params-17", "fp8-20"))
    rows = [row for row in kernels(cast) if row.name.endswith("_weight_cast")]
    update = recipe_of(cast).update_traffic - recipe_of(kept).update_traffic
    assert update == recipe_of(cast).weight - recipe_of(kept).weight
    steps = {name: simulate(each) for name, each in (("kept", kept), ("cast", cast))}
    forward = {
        name: float(of.timeline.query("kind == 'forward'").eval("end - start").sum()) for name, of in steps.items()
    }
    assert forward["cast"] - forward["kept"] == pytest.approx(sum(row.step_seconds for row in rows), rel=1e-6)


LAYOUTS = [
    {"pp": 2, "dp": 2, "tp": 2, "sequence_parallel": True}, {"pp": 4, "dp": 2}, {"dp": 8, "zero": 3},
    {"tp": 4, "dp": 2},
]  # fmt: skip


@pytest.mark.parametrize(("precision", "layout"), list(product(["fp8-mixed", "nvfp4-mixed"], LAYOUTS)))
def test_every_way_to_simulate_casts_gives_the_same_spans(tiny: Tiny, precision: str, layout: dict[str, Any]) -> None:
    scenario = _casting(tiny, precision, **layout)
    every_way(scenario)
    found = simulate(scenario).step_time
    assert simulate(scenario, engine="reference").step_time == found
    if ("tp" in layout) != ("pp" in layout):  # else links are shared, or ZeRO 3 is used
        assert quick_step_time(scenario) == found


@pytest.mark.parametrize(("schedule", "chunks"), [("interleaved", 2), ("zb-h1", 1), ("gpipe", 1), ("zb-v", 2)])
def test_quick_rows_cast_in_the_first_microbatch_of_every_chunk(tiny: Tiny, schedule: str, chunks: int) -> None:
    base = _casting(tiny, "mxfp8-mixed", pp=4, dp=2)
    pipeline = base.pipeline.model_copy(update={"schedule": schedule, "chunks": chunks})
    model = base.model.model_copy(update={"layers": 8})
    scenario = base.model_copy(update={"pipeline": pipeline, "model": model})
    assert quick_step_time(scenario) == simulate(scenario).step_time


def test_experts_are_cast_one_by_one(tiny: Tiny) -> None:
    moe = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}
    scenario = tiny(
        cluster=B200, gpus=8, model={"moe": moe}, parallel={"dp": 8, "ep": 4},
        training={"precision": "fp8-mixed", "global_batch": 8},
    )  # fmt: skip
    rows = {row.name: row for row in kernels(scenario) if row.name.endswith("_weight_cast")}
    assert rows["experts_up_weight_cast"].bytes == 4 * 2 * 256 * 256  # both experts of the rank
    assert "router_weight_cast" not in rows
    every_way(scenario)


def test_every_recipe_has_the_precisions_that_its_own_bytes_allow() -> None:
    """A weight of less than 16 bits, or a copy beside it, is what matmuls of that format read, and no others."""
    for recipe in RECIPES.values():
        quantized = recipe.copies > 0 or recipe.weight < 2
        assert (recipe.weights in ("fp8", "nvfp4")) == quantized, recipe
        assert quantized != ("fp32" in recipe.precisions), recipe
        assert recipe.name.startswith(recipe.weights) or recipe.weights == "16 bits", recipe
    assert not set(get_args(MemoryRecipe)) ^ set(RECIPES)
    assert all(default in RECIPES[name].precisions for default, name in _RECIPE.items())


@pytest.mark.parametrize("device", ["a100-80gb", "h100", "b200", "mi300x"])
@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_recipe_of_another_format_is_rejected_by_name(tiny: Tiny, precision: str, device: str) -> None:
    """Every memory recipe x precision x device: either both suit, or the message names what does not."""
    for name, recipe in RECIPES.items():
        there = precision.removesuffix("-mixed") in load_device(device).peak.known_rates()
        training = {"precision": precision, "memory_recipe": name, "global_batch": 4}
        cluster = {"topology": "flat", "gpus": 1, "device": device}
        if there and precision in recipe.precisions:
            assert tiny(cluster=cluster, training=training).training.memory_recipe == name
            continue
        with pytest.raises(InputError) as refused:
            tiny(cluster=cluster, training=training)
        text = str(refused.value)
        assert there or f"device {device} has no peak for precision" in text
        assert precision in recipe.precisions or f"{name} keeps weights in {recipe.weights}" in text


# --- MFU: over which peak ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "times"), [("fp8-mixed", 2), ("mxfp8-mixed", 2), ("nvfp4-mixed", 4), ("bf16-mixed", 1)]
)
def test_mfu_states_its_peak_and_the_equivalent_in_bf16(tiny: Tiny, precision: str, times: int) -> None:
    result = simulate(_casting(tiny, precision, dp=1))
    document, name = result.to_dict(), precision.removesuffix("-mixed")
    over = result.facts.model_flops / result.step_time
    assert document["mfu"] == pytest.approx(over / (times * 2250e12), rel=1e-12)
    assert document["mfu_bf16"] == pytest.approx(over / 2250e12, rel=1e-12)
    assert f"; over the peak in {name}, {times * 2250:,} TFLOP/s per GPU" in document["mfu_convention"]
    text = str(result)
    assert f"MFU          {result.mfu:.1%} of the peak in {name} " in text
    assert (f"{result.mfu_bf16:.1%} of the peak in bf16, 2,250 TFLOP/s" in text) == (times > 1)
    assert ("as papers quote" in report_page([make_entry(result)])) == (times > 1)


def test_compare_gives_mfu_over_the_peak_in_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "tiny_3d", "--vary", "training.precision=bf16-mixed,fp8-mixed"]) == 0
    assert "MFU: of the peak in each variant's precision; of the peak in bf16: " in capsys.readouterr().out
    assert main(["compare", "tiny_3d", "--vary", "training.precision=bf16-mixed,fp16-mixed"]) == 0
    assert "of the peak in bf16" not in capsys.readouterr().out


def test_the_report_says_whether_compute_includes_recompute(tiny: Tiny) -> None:
    for recompute in ("none", "full"):
        training = {"global_batch": 4, "recompute": recompute}
        found = report_page([make_entry(simulate(tiny(cluster=B200, gpus=1, training=training)))])
        assert ("% of it compute, recompute included" in found) == (recompute == "full")
        assert "own compute" not in found


def test_weights_in_16_bits_under_fp32_are_warned_of() -> None:
    found = {}
    for recipe in ("mixed-18", "bf16-12", "fp32-16"):
        changes = {"training.precision": "fp32", "training.memory_recipe": recipe}
        found[recipe] = any("matmuls in fp32 read 4" in each for each in simulate(load("tiny_dp", changes)).warnings())
    assert found == {"mixed-18": True, "bf16-12": True, "fp32-16": False}
