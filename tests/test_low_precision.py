"""Matmuls of layers in fp8, MXFP8 and NVFP4: their peaks, operands, casts and scales."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from conftest import Tiny
from test_same_answer import every_way

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.devices.device import kernel_seconds, load_device
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.megatron_bridge import mixed_precision_settings
from simcluster.interactive.report import make_entry, report_page
from simcluster.model.kernels import split_matmul
from simcluster.model.layer_sections import linear_section
from simcluster.model.layers import LAYER_KINDS
from simcluster.model.quantization import cast_matmul_pair, torch_quantization
from simcluster.model.rank_shape import RankShape
from simcluster.model.recipes import RECIPES
from simcluster.model.transformer import Model
from simcluster.scenario.memory_plan import _RECIPE, gathered_weight_of, recipe_of, shape_of
from simcluster.scenario.scenario import Scenario, load
from simcluster.scenario.training_section import MemoryRecipe, Precision
from simcluster.step.simulate import simulate
from simcluster.studies.kernels import kernels
from simcluster.studies.sweep.quick_steps import quick_step_time

FORMATS = {"fp8-mixed": 1.0, "mxfp8-mixed": 33 / 32, "nvfp4-mixed": 9 / 16}
B200 = {"topology": "dgx_b200", "nodes": 1}


# --- kernels that quantize operands -----------------------------------------------------------------------------------

RECIPES_BY_HAND = {
    # recipe: (precision, scaling, topology), bytes of an element and launches: after the norm, input, gradient, weight
    "delayed": (("fp8-mixed", None, "dgx_h100"), (2, 1), (2 + 2, 1), (2 + 2, 1), (2 + 2, 1)),
    "delayed on Blackwell": (("fp8-mixed", "delayed", "dgx_b200"), (0, 0), (2 + 1, 1), (2 + 1, 1), (2 + 2, 1)),
    "current": (("fp8-mixed", "current", "dgx_h100"), (2 + 2, 3), (4 + 2, 4), (4 + 2, 4), (4 + 2, 4)),
    "current on Blackwell": (("fp8-mixed", "current", "dgx_b200"), (2 + 1, 3), (4 + 1, 4), (4 + 1, 4), (4 + 2, 4)),
    "blockwise": (("fp8-mixed", "blockwise", "dgx_h100"), *[(2 + 2 * 33 / 32, 1)] * 4),
    "mxfp8": (("mxfp8-mixed", None, "dgx_b200"), (2 + 2 * 33 / 32, 1 + 2), (2 + 2 * 33 / 32, 1 + 2),
              (2 + 2 * 33 / 32, 1 + 4), (2 + 2 * 33 / 32, 1)),
    "nvfp4": (("nvfp4-mixed", None, "dgx_b200"), (6 + 2 * 9 / 16, 4 + 2), (6 + 2 * 9 / 16, 4 + 2),
              (6 + 2 * 9 / 16, 5 + 4), (4 + 2 * 9 / 16, 3)),
}  # fmt: skip
HYBRID = {"model.layers": "M" * 4, "model.bias": False, "model.layer_kinds": {"mamba2": {"heads": 8}}}
SWIZZLED = {"mxfp8": 1 / 32, "nvfp4": 1 / 16}


def _recipe(tiny: Tiny, name: str, **more: Any) -> Scenario:
    (precision, scaling, topology), *_ = RECIPES_BY_HAND[name]
    training = {"precision": precision, "fp8_scaling": scaling, "global_batch": 8} | more.pop("training", {})
    return tiny(cluster={"topology": topology, "nodes": 1}, training=training, **more)


@pytest.mark.parametrize("name", RECIPES_BY_HAND)
def test_kernels_of_a_matmul_pair_by_hand(tiny: Tiny, name: str) -> None:
    """A pair of matmuls of 1,000 rows, 8 -> 32 -> 8: casts of both inputs and both gradients, and of the weights."""
    _, *passes = RECIPES_BY_HAND[name]
    shape, scale = shape_of(_recipe(tiny, name)), SWIZZLED.get(name, 0.0)
    body = [linear_section(*each, bias=False) for each in (("up", shape, 1000, 8, 32), ("down", shape, 1000, 32, 8))]
    narrow, wide, weight = 8000, 32000, 256
    for operand, (size, launches) in (("normed", passes[0]), ("input", passes[1])):
        outside, (first, middle, last) = cast_matmul_pair(
            "mlp", shape, body, rows=1000, outer_size=narrow, operand=operand
        )
        found = [(each.bytes, each.launches) for each in outside.forward]
        moved = size * narrow + 2 * scale * (narrow + weight)
        assert found == ([(pytest.approx(moved), launches)] if launches else [])
    (gradient,), (inner,), (inner_gradient,) = outside.input_grad, middle.forward, middle.input_grad
    assert inner.bytes == pytest.approx(passes[1][0] * wide + 2 * scale * (wide + weight))
    size, launches = passes[2]
    assert gradient.bytes == pytest.approx(size * narrow + 2 * scale * (2 * narrow + weight + wide))
    assert inner_gradient.bytes == pytest.approx(size * wide + 2 * scale * (2 * wide + weight + narrow))
    assert (inner.launches, gradient.launches, inner_gradient.launches) == (passes[1][1], launches, launches)
    assert (first, last) == (body[0], body[1])
    assert (shape.weight_cast_bytes, shape.weight_cast_launches) == (pytest.approx(passes[3][0]), passes[3][1])


@pytest.mark.parametrize("name", RECIPES_BY_HAND)
def test_a_block_gathers_operands_as_they_were_quantized(tiny: Tiny, name: str) -> None:
    """With sequence parallelism a shard is quantized and gathered; recipes of one scale gather one order."""
    parallel = {"tp": 2, "sequence_parallel": True}
    shape = shape_of(_recipe(tiny, name, parallel=parallel, gpus=8))
    model = _recipe(tiny, name).model
    block = LAYER_KINDS["mlp"].block(model, shape)
    how = shape.quantization
    assert how is not None
    one_scale, each = how.name in ("delayed", "current"), how.operand_bytes
    assert (block.input_share, block.gradient_share) == (each / 2, each / 2 * (1 if one_scale else 2))
    assert block.reduces_largest == (how.name in ("current", "nvfp4"))
    turned = [kernel for kernel in block.body.weight_grad if kernel.name.endswith("_transpose")]
    expected = name in ("delayed", "current", "blockwise", "nvfp4")
    size = 2 * each * model.sequence_length * model.hidden_size
    assert [kernel.bytes for kernel in turned] == [pytest.approx(size)] * (2 * expected)
    norm, *cast = block.entry.forward
    shard, reads = size / (2 * each) / 2, {"delayed": 0, "nvfp4": 3}.get(how.name, 1)
    assert norm.bytes == (2 + (1 if how.name == "delayed" else 2)) * shard
    swizzled = 2 * SWIZZLED.get(name, 0.0) * (2 * shard + model.hidden_size * model.ffn_hidden_size / 2)
    moved = (2 * reads + each * (1 if one_scale else 2)) * shard + swizzled
    assert [kernel.bytes for kernel in cast] == ([pytest.approx(moved)] if reads else [])


def test_a_recipe_with_more_passes_is_never_faster(tiny: Tiny) -> None:
    """Current scaling does all that delayed scaling does, and finds the largest values; tp ranks agree on them."""
    for parallel in ({"tp": 1}, {"tp": 2}, {"tp": 2, "sequence_parallel": True}):
        for topology in ("dgx_h100", "dgx_b200"):
            delayed, current = (
                simulate(tiny(
                    cluster={"topology": topology, "nodes": 1}, gpus=2, parallel=parallel,
                    training={"precision": "fp8-mixed", "fp8_scaling": scaling, "global_batch": 8},
                )).step_time
                for scaling in ("delayed", "current")
            )  # fmt: skip
            assert delayed < current


@pytest.mark.parametrize("name", ["current", "nvfp4"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_layers_in_16_bits_take_the_time_of_16_bits(tiny: Tiny, name: str, recompute: str) -> None:
    """Each op of such a layer takes as long as in a job in bf16; all layers in 16 bits is that job."""
    more = {"parallel": {"tp": 2, "pp": 2, "sequence_parallel": True}, "gpus": 8}
    training = {"recompute": recompute}
    mixed, whole, plain = (
        _recipe(tiny, name, training=training | each, **more)
        for each in (
            {"layers_in_16_bits": [1, 1]}, {"layers_in_16_bits": [4, 0]},
            {"precision": "bf16-mixed", "fp8_scaling": None},
        )
    )  # fmt: skip

    def durations(scenario: Scenario, layers: set[int]) -> list[Any]:
        spans = simulate(scenario).timeline.query("stream == 'compute'")
        spans = spans[spans["layer"].isin(layers)]
        found = zip(
            spans["rank"], spans["kind"], spans["name"], spans["layer"], spans["end"] - spans["start"], strict=True
        )
        return sorted((*place, round(seconds, 12)) for *place, seconds in found)

    assert mixed.model.layers == 4
    assert durations(mixed, {0, 3}) == durations(plain, {0, 3})
    assert durations(mixed, {1, 2}) != durations(plain, {1, 2})
    assert durations(whole, {0, 1, 2, 3}) == durations(plain, {0, 1, 2, 3})


def test_kernels_of_16_bit_layers_are_those_of_bf16(tiny: Tiny) -> None:
    """Every kind of layer: equal kernels, but that their matmuls keep 16 bits."""
    for kind in ("attention", "mlp", "mamba2"):
        model = load("tiny_dp", HYBRID if kind == "mamba2" else {}).model.layer_model(0)
        shape = RankShape(micro_batch=1, quantization=torch_quantization(), wide_layers=frozenset({0}))
        wide = LAYER_KINDS[kind].block(model, shape.list_variants()[shape.layer_variant(0)])
        plain = LAYER_KINDS[kind].block(model, RankShape(micro_batch=1))
        for one, other in zip(wide.sections, plain.sections, strict=True):
            assert one == other.map_kernels(
                lambda kernel: replace(kernel, keeps_16_bits=kernel.keeps_16_bits or kernel.kind == "matmul")
            )
            matmuls = [each for each in (*one.forward, *one.input_grad, *one.weight_grad) if each.kind == "matmul"]
            assert all(each.keeps_16_bits for each in matmuls)


def test_documented_kinds_have_the_casts_of_coded_ones() -> None:
    """Two operands forward and two gradients back, with a norm of the kind (Mamba-2) or with its own (diffusion)."""
    shape = RankShape(micro_batch=1, quantization=torch_quantization())
    wan = Model.model_validate(load_model_entry("wan2.1-14b"))
    kinds = {"mamba2": load("tiny_dp", HYBRID).model.layer_model(0), "diffusion_mlp": wan.layer_model(3)}
    for name, model in kinds.items():
        block = LAYER_KINDS[name].block(model, shape)
        for phase in ("forward", "input_grad"):
            found = {each.name for section in block.sections for each in getattr(section, phase)}
            words = ("input", "middle") if phase == "forward" else ("grad", "middle_grad")
            assert {each for each in found if each.endswith("_cast")} == {f"{name}_{word}_cast" for word in words}
        plain = LAYER_KINDS[name].block(model, replace(shape, quantization=None))
        assert not any("_cast" in each.name for section in plain.sections for each in section.forward)


def test_scans_of_hybrids_and_unfused_attention_are_never_quantized() -> None:
    """Triton kernels between the projections of a Mamba-2 layer, and scores of unfused attention, keep 16 bits."""
    shape = RankShape(micro_batch=1, quantization=torch_quantization())
    mamba = LAYER_KINDS["mamba2"].block(load("tiny_dp", HYBRID).model.layer_model(0), shape)
    attention = LAYER_KINDS["attention"].block(load("tiny_dp").model, replace(shape, attention="unfused"))
    for block, quantized in ((mamba, {"mamba2_in", "mamba2_out"}), (attention, {"qkv", "projection"})):
        narrow = {each.name for each in block.body.forward if each.kind == "matmul" and not each.keeps_16_bits}
        assert narrow == quantized
        assert [each for each in block.body.forward if each.kind == "matmul" and each.keeps_16_bits]


@pytest.mark.parametrize(
    ("precision", "scaling", "topology", "recipe", "gathered", "cast"),
    [
        ("fp8-mixed", "current", "dgx_h100", "fp8-params-18", 1.0, 2.0),  # transposed once gathered
        ("fp8-mixed", "current", "dgx_b200", "fp8-params-18", 1.0, 0.0),
        ("fp8-mixed", "blockwise", "dgx_h100", "fp8-params-18", 1.0, 0.0),
        ("mxfp8-mixed", None, "dgx_b200", "fp8-params-18", 2.0, 2 + 2 * 33 / 32),  # quantized once gathered
        ("fp8-mixed", None, "dgx_h100", "fp8-20", 2.0, 4.0),
    ],
)
def test_what_is_gathered_of_a_weight_and_what_is_then_made_of_it(
    tiny: Tiny, precision: str, scaling: str | None, topology: str, recipe: str, gathered: float, cast: float
) -> None:
    scenario = tiny(
        cluster={"topology": topology, "nodes": 1}, parallel={"zero": 1, "dp": 8}, gpus=8,
        training={"precision": precision, "fp8_scaling": scaling, "memory_recipe": recipe, "global_batch": 8},
    )  # fmt: skip
    assert (gathered_weight_of(scenario), shape_of(scenario).weight_cast_bytes) == (gathered, pytest.approx(cast))


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"fp8_scaling": "current"}, "applies only to fp8-mixed"),
        ({"layers_in_16_bits": [1, 1]}, "applies only to low precision"),
        ({"precision": "fp8-mixed", "layers_in_16_bits": [3, 2]}, "3 \\+ 2 layers are more than the model's 4"),
        ({"precision": "fp8-mixed", "layers_in_16_bits": [-1, 2]}, "layers_in_16_bits"),
    ],
)
def test_what_has_no_effect_is_rejected(tiny: Tiny, training: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(cluster={"topology": "dgx_h100", "nodes": 1}, training={"global_batch": 8} | training)


def test_scaling_is_rejected_for_compiled_casts(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="applies only to fp8-mixed with software"):
        tiny(
            cluster={"topology": "dgx_h100", "nodes": 1}, software={"kernels": "compiled"},
            training={"precision": "fp8-mixed", "fp8_scaling": "current", "global_batch": 8},
        )  # fmt: skip


def test_only_blackwell_scales_blocks() -> None:
    assert load_device("b200").peak_flops("nvfp4") == 2 * load_device("b200").peak_flops("mxfp8") == 9e15
    with pytest.raises(InputError, match="h100 has no peak for precision 'mxfp8'"):
        load_device("h100").peak_flops("mxfp8")


def test_megatron_bridges_words_for_them() -> None:
    assert mixed_precision_settings("bf16_with_mxfp8_mixed", "x")["mixed_precision.fp8_recipe"] == "mxfp8"
    assert mixed_precision_settings("bf16_with_nvfp4_mixed", "x")["mixed_precision.fp4"] == "e2m1"
    hybrid = mixed_precision_settings("nemotron_h_bf16_with_fp8_current_scaling_mixed", "x")
    assert [hybrid[f"mixed_precision.num_layers_at_{end}_in_bf16"] for end in ("start", "end")] == [2, 2]


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
    """12 h^2 weights a layer: read in 16 bits, written in both orders; 4 kernels in each of 4 layers.

    In NVFP4 another reading finds their largest value.
    """
    scenario = _casting(tiny, precision)
    rows = [row for row in kernels(scenario) if row.name.endswith("_weight_cast")]
    assert sum(row.launches for row in rows) == 4 * 4
    assert sum(row.bytes * row.launches for row in rows) == pytest.approx(
        4 * 12 * 256**2 * ((4 if each < 1 else 2) + 2 * each)
    )
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


@pytest.mark.parametrize("name", ["delayed", "current", "blockwise", "mxfp8"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_every_way_to_simulate_recipes_and_16_bit_layers_gives_the_same_spans(
    tiny: Tiny, name: str, schedule: str
) -> None:
    """Gathers in low precision, largest values over tp and transposes; layers of both precisions on each stage."""
    scenario = _recipe(
        tiny, name, gpus=8, parallel={"tp": 2, "pp": 2, "sequence_parallel": True}, pipeline={"schedule": schedule},
        training={"layers_in_16_bits": [1, 1], "recompute": "full" if schedule == "1f1b" else "none"},
    )  # fmt: skip
    every_way(scenario)
    assert simulate(scenario, engine="reference").step_time == simulate(scenario).step_time == quick_step_time(scenario)


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
