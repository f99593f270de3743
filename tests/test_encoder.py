"""Vision encoders in front of the first stage: parameters and FLOP by hand, drawn images, memory, engines, messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import table_of

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.faults.fault_spec import BatchSizes
from simcluster.faults.image_tokens import ImageTokens
from simcluster.model.encoder import ENCODER, Encoder
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.layers import RankShape, layer_parameters_per_tp_rank, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model, Recompute
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.step.step_plan import plan_step

QWEN = Model.model_validate(load_model_entry("qwen2.5-vl-7b"))
SMALL: dict[str, Any] = {
    "layers": 5, "hidden_size": 512, "heads": 8, "ffn_hidden_size": 1536, "patch_values": 588, "image_tokens": 512,
    "tokens_per_image": 256, "attention_window": 64, "full_attention_every": 2, "position_rows": 100,
    "patch_bias": True, "deepstack": 1,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "layers": 8, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "ffn_hidden_size": 2816, "vocab_size": 32000,
    "sequence_length": 2048, "gated_mlp": True,
}  # fmt: skip
LOGNORMAL = {"kind": "image_tokens", "tokens": {"kind": "lognormal", "sigma": 1.0}}


def scenario(**changes: Any) -> simcluster.Scenario:
    """Return a small job with an encoder; ``changes`` are paths with two underscores for a dot."""
    document: dict[str, Any] = {
        "model": {**LLAMA, "encoder": SMALL},
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"tp": 2, "pp": 2, "dp": 2},
        "training": {"global_batch": 8, "micro_batch": 1},
        "seed": 5,
    }
    return simcluster.scenario(document, **changes)


def constant(factor: float) -> list[dict[str, Any]]:
    """Return a fault with which all sequences have this multiple of ``image_tokens``."""
    return [{"kind": "image_tokens", "tokens": {"kind": "histogram", "values": [factor]}}]


def loads_of(job: simcluster.Scenario) -> Any:
    """Return the factor of each microbatch of a job's first step: [replica, microbatch]."""
    training, (fault,) = job.training, job.faults
    assert isinstance(fault, ImageTokens)
    sizes = BatchSizes(1, job.microbatches, training.micro_batch, job.model.sequence_length, image_tokens=512)
    return fault.image_factors(job.seed, sizes, job.dp)[0]


# --- parameters and FLOP --------------------------------------------------------------------------------------------


def test_qwen_has_its_parameters() -> None:
    """Qwen2.5-VL 7B: what transformers 5.24 counts in Qwen2_5_VLForConditionalGeneration, and its encoder by hand."""
    w, f, out = 1280, 3420, 3584
    layer = 3 * w * w + 3 * w + w * w + w + 3 * w * f + 2 * f + w + 2 * w
    merger = w + (4 * w) ** 2 + 4 * w + 4 * w * out + out
    tower = 1176 * w + 32 * layer + merger
    assert tower == 676_550_144
    assert parameters(QWEN).total == 7_615_616_512 + tower == 8_292_166_656
    assert parameters(QWEN.model_copy(update={"encoder": None})).total == 7_615_616_512


def test_tower_of_qwen3_vl_has_its_parameters() -> None:
    """Three further mergers (deepstack), positions and biases: the same count of Qwen3VLForConditionalGeneration."""
    tower = Encoder(
        layers=27, hidden_size=1152, heads=16, ffn_hidden_size=4304, patch_values=1536, patch_bias=True,
        position_rows=2304, deepstack=3, image_tokens=1024,
    )  # fmt: skip
    without = QWEN.model_copy(update={"encoder": None})
    both = without.model_copy(update={"encoder": tower})
    assert parameters(both).total - parameters(without).total == 566_949_104


def forward_flops(model: Model) -> float:
    """Return the forward FLOP of a sequence's images by hand."""
    tower = model.encoder
    assert tower
    w, n, merge = tower.hidden_size, tower.image_tokens * tower.patches_per_token, tower.patches_per_token
    image = (tower.tokens_per_image or tower.image_tokens) * merge
    every = tower.full_attention_every or 1
    spans = [image if layer % every == 0 else tower.attention_window or image for layer in range(1, tower.layers + 1)]
    matmuls = 2 * n * (4 * w * w + (3 if tower.gated_mlp else 2) * w * tower.ffn_hidden_size)
    merger = 2 * n // merge * ((merge * w) ** 2 + merge * w * model.hidden_size)
    patches = 2 * n * tower.patch_values * w
    return patches + sum(matmuls + 4 * n * span * w for span in spans) + (1 + tower.deepstack) * merger


@pytest.mark.parametrize("model", [QWEN, Model(**LLAMA, encoder=SMALL)])
def test_flop_of_images(model: Model) -> None:
    """Backward is twice forward; recomputation repeats the forward; MFU counts the tokens that are drawn."""
    without = model.model_copy(update={"encoder": None})
    flop = model_flops_per_sequence(model) - model_flops_per_sequence(without)
    assert flop == pytest.approx(3 * forward_flops(model), rel=1e-9)
    more = model_flops_per_sequence(model, images=1.5) - model_flops_per_sequence(without)
    assert more == pytest.approx(1.5 * flop, rel=1e-9)
    again = hardware_flops_per_sequence(model, "full") - hardware_flops_per_sequence(without, "full")
    assert again == pytest.approx(4 * forward_flops(model), rel=1e-9)


def test_mfu_counts_the_drawn_images() -> None:
    drawn, even = scenario(faults=[LOGNORMAL]), scenario()
    share = float(loads_of(drawn).mean())
    assert share != 1
    mean, real = (simcluster.simulate(each).facts.model_flops / 8 for each in (even, drawn))
    assert real - mean == pytest.approx((share - 1) * 3 * forward_flops(even.model), rel=1e-9)


def test_a_preset_takes_other_numbers_of_images() -> None:
    """Fields of the encoder that a scenario sets replace those of the preset; the others stay."""
    job = {"cluster": {"topology": "dgx_h100", "nodes": 1}, "training": {"global_batch": 8}}
    model = {"preset": "qwen2.5-vl-7b", "encoder": {"image_tokens": 2000, "split_by_tp": True}}
    made, tower = simcluster.scenario({**job, "model": model}).model.encoder, QWEN.encoder
    assert tower
    assert made == tower.model_copy(update={"image_tokens": 2000, "split_by_tp": True})
    assert simcluster.scenario({**job, "model": {**model, "encoder": None}}).model.encoder is None


# --- time -----------------------------------------------------------------------------------------------------------


def encoder_seconds(found: simcluster.Result) -> float:
    """Return the seconds of the encoder's kernels on the first rank."""
    rows = found.timeline
    own = rows[(rows["rank"] == 0) & (rows["stream"] == "compute") & rows["name"].str.startswith(ENCODER)]
    return float((own["end"] - own["start"]).sum())


def test_images_cost_what_their_kernels_take() -> None:
    """On one GPU the step is that without images and the time of the encoder's ops, for any number of tokens."""
    one = {"gpus": 1, "parallel": {}, "training__global_batch": 3}
    plain, none, twice = (simcluster.simulate(scenario(**one, faults=each)) for each in ([], constant(0), constant(2)))
    seconds = encoder_seconds(plain)
    assert encoder_seconds(none) == 0
    assert 0 < seconds < plain.step_time
    assert plain.step_time - none.step_time == pytest.approx(seconds, rel=1e-9)
    assert twice.step_time - plain.step_time == pytest.approx(seconds, rel=1e-9)


def test_replicas_wait_for_the_one_with_most_images() -> None:
    """Without a pipeline, the step is longer by the images of the fullest replica beyond the mean."""
    job = {"gpus": 4, "parallel": {"dp": 4}, "training__global_batch": 12}
    drawn = scenario(**job, faults=[LOGNORMAL])
    even, uneven = simcluster.simulate(scenario(**job)), simcluster.simulate(drawn)
    fullest = float(loads_of(drawn).sum(axis=1).max()) - 3
    assert uneven.step_time - even.step_time == pytest.approx(fullest * encoder_seconds(even) / 3, rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"])
def test_more_images_never_make_a_step_shorter(schedule: str) -> None:
    pipeline = {"schedule": schedule, **({"chunks": 2} if schedule == "interleaved" else {})}
    least = [{"kind": "image_tokens", "tokens": {"kind": "histogram", "values": [1, 1.5, 4]}}]
    even, uneven = (simcluster.simulate(scenario(pipeline=pipeline, faults=each)) for each in ([], least))
    assert uneven.step_time > even.step_time
    rows = even.timeline
    where = {*rows[rows["name"].str.startswith(ENCODER)]["stage"]}
    assert where == {0}


def test_all_tp_ranks_run_the_whole_encoder() -> None:
    """Its kernels are those of one rank, and no collective over tp is added."""
    split, whole = (
        simcluster.simulate(
            scenario(gpus=tp, parallel={"tp": tp, "sequence_parallel": tp > 1}, training__global_batch=2)
        )
        for tp in (4, 1)
    )
    assert encoder_seconds(split) == encoder_seconds(whole) > 0
    rows = split.timeline
    assert not [name for name in rows[rows["stream"] == "tp"]["name"] if name.startswith(ENCODER)]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_tp_splits_the_encoder(recompute: Recompute) -> None:
    """Of a layer, 1/4 of the matrices and core; outputs of two matmuls and gradients of two inputs are summed."""
    job = {"gpus": 4, "parallel": {"tp": 4}, "training__global_batch": 1, "training__recompute": recompute}
    own_fields = {**SMALL, "deepstack": 0}
    whole, parts = (scenario(**job, model__encoder={**own_fields, "split_by_tp": each}) for each in (False, True))
    n, w, f, heads = 2048, 512, 1536, 8
    model, layer = parts.model, parts.model.encoder_layers[1]
    row = 2 * n * w
    kept = row if recompute == "full" else 5 * row + 3 * row // 4 + row // 4 - row + 2 * 2 * n * f // 4 + n * heads
    shape = RankShape(1, tp=4, recompute=recompute)
    assert sum(activation_bytes(model, shape, layer).values()) == kept
    own = layer_parameters_per_tp_rank(model, 4, layer)
    assert own == 4 * w * w // 4 + 3 * w // 4 + w + 2 * w * f // 4 + f // 4 + w + 4 * w
    assert parameters(model).total == parameters(whole.model).total
    assert model_flops_per_sequence(model) == model_flops_per_sequence(whole.model)
    items = plan_step(parts).programs[0].lanes["main"]
    ops = [op for item in items for op in item.segment.ops if op.name.startswith(ENCODER)]
    sums = [op.work.size for op in ops if op.kind == "all_reduce"]
    again = 2 if recompute == "full" else 1  # forwards
    assert sorted(sums) == sorted([row] * 5 * (2 * again + 2) + [2 * 512 * 1024] * again + [row])
    assert encoder_seconds(simcluster.simulate(parts)) < encoder_seconds(simcluster.simulate(whole))


def test_balanced_stages_count_the_encoder() -> None:
    """The first stage has fewer layers, and the step is shorter than with even ones."""
    job: dict[str, Any] = {"gpus": 4, "parallel": {"pp": 4}, "pipeline__layers_per_stage": "auto"}
    counts = plan_step(scenario(**job)).job.slices.counts
    without = plan_step(scenario(**job, model__encoder=None)).job.slices.counts
    assert counts[0] < without[0]
    even = simcluster.simulate(scenario(**{**job, "pipeline__layers_per_stage": "even"}))
    assert simcluster.simulate(scenario(**job)).step_time < even.step_time


# --- draws ----------------------------------------------------------------------------------------------------------


def test_draws_follow_the_seed() -> None:
    one, again, other = (simcluster.simulate(scenario(faults=[LOGNORMAL], seed=seed)).to_dict() for seed in (1, 1, 2))
    assert one == again
    assert one["step_time_s"] != other["step_time_s"]


def test_drawn_numbers_of_tokens() -> None:
    """Whole, at most the sequence, with the mean of the law, and the same however the batch is split."""
    fault = ImageTokens.model_validate({"kind": "image_tokens", "tokens": {"kind": "lognormal", "sigma": 0.5}})
    batch = BatchSizes(1, 500, 2, 100_000, image_tokens=1000)
    counts = fault.count_tokens(7, 0, batch, dp=4)
    assert counts.shape == (4, 500, 2)
    assert np.array_equal(counts, np.rint(counts))
    error = 1000 * np.sqrt(np.expm1(0.25) / counts.size)
    assert abs(counts.mean() - 1000) < 4 * error
    other = fault.count_tokens(7, 0, BatchSizes(1, 250, 2, 100_000, image_tokens=1000), dp=8)
    assert np.array_equal(np.sort(counts.ravel()), np.sort(other.ravel()))
    short = fault.count_tokens(7, 0, BatchSizes(1, 500, 2, 1200, image_tokens=1000), dp=4)
    assert np.array_equal(short, np.minimum(counts, 1200))
    assert np.array_equal(fault.image_factors(7, batch, 4)[0], counts.mean(axis=2) / 1000)


def test_counted_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "tokens.csv").write_text("0,2\n512,1\n1024,1\n")
    law = {"kind": "histogram", "typical": 512}
    read, given = (
        scenario(faults=[{"kind": "image_tokens", "tokens": {**law, **each}}]).faults
        for each in ({"file": str(tmp_path / "tokens.csv")}, {"values": [0, 512, 1024], "weights": [2, 1, 1]})
    )
    assert read == given


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_a_layer_of_the_encoder_keeps() -> None:
    """GELU with biases: inputs of both norms and of four matmuls, queries, keys and values, the MLP's input."""
    model, n, w, f, heads = Model(**LLAMA, encoder=SMALL), 3 * 2048, 512, 1536, 8
    row, layer = 2 * n * w, model.encoder_layers[1]
    kept = 2 * row + 2 * row + row + 3 * row + 2 * 2 * n * f + 4 * n * heads
    assert sum(activation_bytes(model, RankShape(3, tp=4), layer).values()) == kept
    full = RankShape(3, recompute="full")
    assert sum(activation_bytes(model, full, layer).values()) == row


def test_memory_is_that_of_the_fullest_replica() -> None:
    """GPipe holds the activations of all microbatches: the drawn tokens times what the encoder keeps for the mean."""
    job = {"pipeline__schedule": "gpipe", "memory__logits": "in-place"}
    drawn = scenario(**job, faults=[LOGNORMAL])
    model, shape = drawn.model, RankShape(1, tp=2)
    kept = sum(sum(activation_bytes(model, shape, layer).values()) for layer in model.encoder_layers)
    even, uneven = plan_footprints(scenario(**job)), plan_footprints(drawn)
    more = float(loads_of(drawn).sum(axis=1).max()) - 4
    assert uneven[0].activations - even[0].activations == pytest.approx(more * kept, rel=1e-9)
    assert uneven[1] == even[1]


# --- engines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel__sequence_parallel": True, "training__micro_batch": 2},
        {"pipeline__schedule": "zb-h1"},
        {"pipeline__schedule": "dualpipe-v"},
        {"pipeline__schedule": "interleaved", "pipeline__chunks": 2, "overlap__grad_reduce": True},
        {"training__recompute": "full", "pipeline__layers_per_stage": "auto"},
        {"training__recompute": "selective", "software__base": "megatron-core"},
        {"parallel": {"dp": 8}, "parallel__zero": 3, "overlap__param_gather": True},
        {"training__optimizer": "muon", "parallel__zero": 1},
        {"training__optimizer": "muon", "parallel__zero": 1, "model__encoder__split_by_tp": True},
        {"pipeline__schedule": "zb-h1", "model__encoder__split_by_tp": True, "parallel__sequence_parallel": True},
        {"training__recompute": "full", "model__encoder__split_by_tp": True, "overlap__tensor_pieces": 2},
        {"training__precision": "fp8-mixed"},
        {"model__moe": {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}, "parallel": {"pp": 2, "ep": 2}},
    ],
)
def test_every_engine_simulates_drawn_images(changes: dict[str, Any]) -> None:
    base = scenario(**changes, faults=[LOGNORMAL])
    compiled, reference = (simcluster.simulate(base, engine=engine) for engine in ("compiled", "reference"))
    assert compiled.step_time == reference.step_time
    assert compiled.memory.total == reference.memory.total
    for rank in range(8):
        assert table_of(compiled, rank).equals(table_of(reference, rank))


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"cp": 2}}, "parallel.cp: an encoder is not modelled with context parallelism"),
        ({"training__recompute": "operators"}, "training.recompute: the encoder has no such recomputation"),
        ({"training__dropout": True}, "training.dropout: encoders have no dropout"),
        ({"memory__backward_temporaries": True}, "memory.backward_temporaries: is not modelled with an encoder"),
        ({"memory__offload__activations": 0.5}, "memory.offload.activations: is not modelled with an encoder"),
        ({"model__encoder__image_tokens": 2049}, "image_tokens 2049 is more than sequence_length 2048"),
        ({"model__encoder__tokens_per_image": 600}, "tokens_per_image 600 is more than image_tokens 512"),
        ({"model__encoder__attention_window": None}, "full_attention_every selects layers without a window"),
        ({"model__encoder__heads": 7}, "hidden_size 512 is not divisible by heads 7"),
        (
            {"parallel": {"tp": 8}, "model__encoder__split_by_tp": True, "model__encoder__ffn_hidden_size": 1540},
            "tp 8 does not divide model.encoder.ffn_hidden_size 1540; use tp 4",
        ),
        ({"model__encoder__deepstack": 6}, "deepstack 6 is more than the 5 layers"),
        ({"model__encoder": None, "faults": [LOGNORMAL]}, "faults.0: the model has no encoder"),
        ({"faults": [LOGNORMAL, LOGNORMAL]}, "a sequence has one number of image tokens"),
    ],
)
def test_what_is_not_modelled(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(**changes)


def test_uneven_experts_and_images_are_rejected_together() -> None:
    uneven = [{"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1}}, LOGNORMAL]
    moe = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}
    job = {"model__moe": moe, "parallel": {"pp": 2, "ep": 2}}
    assert simcluster.simulate(scenario(**job, faults=uneven[:1])).slowdown > 1
    with pytest.raises(InputError, match=r"faults.1: is not modelled with expert_imbalance"):
        scenario(**job, faults=uneven)
