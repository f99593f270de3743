"""The studies that ship: every one can be read, and what this simulator answers for those of Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import scores
from layer_blocks import attention_block, mlp_block

from simcluster.devices.device import kernel_seconds, load_device, memory_kernel_seconds
from simcluster.devices.step_end_passes import parameter_pass_seconds
from simcluster.evidence.validation import load_study, validate_studies
from simcluster.evidence.validation.measured_columns import InlineTable
from simcluster.evidence.validation.reports import Report
from simcluster.evidence.validation.study import StepStudy, StudyFile
from simcluster.model.kernels import Kernel
from simcluster.model.layer_block import lm_head_block
from simcluster.model.layers import RankShape
from simcluster.model.recipes import RECIPES
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import PassLayers
from simcluster.scenario.scenario import from_document, load
from simcluster.step.simulate import simulate
from simcluster.step.step_plan import SimulatedJobTimes, collective_options, plan_job

STUDIES = Path(__file__).parents[1] / "scenarios" / "validation"


def rows_of(name: str, *keep: tuple[object, ...]) -> StudyFile:
    """A study with those of its rows that begin so."""
    file = load_study(STUDIES / f"{name}.yaml")
    study = file.study
    assert isinstance(study, StepStudy)
    assert isinstance(study.table, InlineTable)
    rows = tuple(row for row in study.table.rows if any(row[: len(begin)] == begin for begin in keep))
    assert len(rows) >= len(keep)
    table = InlineTable(header=study.table.header, rows=rows)
    return StudyFile(study.model_copy(update={"table": table}), file.document)


def answers(file: StudyFile) -> list[tuple[float, float]]:
    """(predicted, measured) seconds of each row."""
    (report,) = validate_studies([file])
    assert isinstance(report, Report)
    assert not report.refused
    return [(point.predicted, point.measured) for point in report.points]


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_can_be_read_and_says_where_it_comes_from(path: Path) -> None:
    study = load_study(path).study
    assert study == load_study(path.stem).study  # by its name, too
    assert study.source
    assert study.original


def test_korthikanti_s_layers_meet_their_aim() -> None:
    (report,) = validate_studies([load_study(STUDIES / "korthikanti_table4.yaml")])
    assert report.parts[0].meets_aim


def test_korthikanti_s_steps_meet_their_aim() -> None:
    """22B on 8 GPUs and 175B on 64, played; 530B on 280, which takes six seconds, as README's table last scored it."""
    file = rows_of("korthikanti_table5", ("22B",), ("175B",))
    assert file.study.aim == 0.03
    errors = [abs(predicted / measured - 1) for predicted, measured in answers(file)]
    assert len(errors) == 4
    assert sum(errors) / 4 < file.study.aim
    assert max(errors) < 0.04
    (whole,) = scores.read()["studies"]["Korthikanti table 5"].values()
    assert whole["rows"] == 6
    assert whole["mean_error"] < file.study.aim
    assert whole["worst_error"] < 0.04


def test_a_layer_is_what_one_more_takes() -> None:
    """Table 4 measured a layer: a step of three less one of two, without the optimizer."""
    (report,) = validate_studies([rows_of("korthikanti_table4", ("Baseline with recompute",))])
    (point,) = report.points
    base = {"gpus": 8, "cluster.nodes": 1, "parallel.pp": 1, "pipeline.schedule": "1f1b", "pipeline.chunks": 1,
            "training.micro_batch": 4, "training.global_batch": 4, "model.heads": 64, "model.kv_heads": 64,
            "model.hidden_size": 6144, "model.ffn_hidden_size": 24576, "software": "megatron-lm-2022",
            "training.recompute": "full", "parallel.sequence_parallel": False}  # fmt: skip
    three, two = (simulate(load("gpt3_175b_64xa100", {**base, "model.layers": layers})) for layers in (3, 2))
    optimizer = three.times.breakdown["optimizer"] - two.times.breakdown["optimizer"]
    assert optimizer > 0
    assert point.predicted == pytest.approx(three.step_time - two.step_time - optimizer, rel=1e-9)
    assert point.breakdown["optimizer"] == 0
    assert point.measured == pytest.approx(27.2e-3)


LAYER_22B = [  # arXiv:2205.05198, table 4: forward and backward of one layer, ms
    (False, "none", 7.7, 11.9),
    (True, "none", 7.2, 11.8),
    (False, "full", 7.7, 19.5),
    (False, "selective", 7.7, 13.2),
    (True, "selective", 7.2, 13.1),
]


def layer_seconds(sequence_parallel: bool, recompute: str) -> tuple[float, float]:
    """Forward and backward of one layer of 22B on its own."""
    changes = {
        "gpus": 8, "cluster.nodes": 1, "model": {"layers": 1, "hidden_size": 6144, "heads": 64, "vocab_size": 51200,
        "sequence_length": 2048}, "parallel.pp": 1, "parallel.sequence_parallel": sequence_parallel,
        "pipeline": {"schedule": "1f1b"}, "training.global_batch": 4, "training.micro_batch": 4,
        "training.recompute": recompute, "overlap.interference": "none",
    }  # fmt: skip
    scenario = load("gpt3_175b_64xa100", changes)
    job, _ = plan_job(scenario, load_device("a100-80gb"))
    own = SimulatedJobTimes(job, scenario.cluster.built, collective_options(scenario).methods)
    part = PassLayers((0,))
    ((forward, backward),) = own._simulate_segments(
        [[job.pass_maker.segment("F", part), job.pass_maker.segment("B", part)]]
    )
    return forward, backward


@pytest.mark.parametrize(("sequence_parallel", "recompute", "forward", "backward"), LAYER_22B)
def test_one_layer_of_22b(sequence_parallel: bool, recompute: str, forward: float, backward: float) -> None:
    found = [seconds * 1e3 for seconds in layer_seconds(sequence_parallel, recompute)]
    assert found == pytest.approx([forward, backward], rel=0.08)
    assert sum(found) == pytest.approx(forward + backward, rel=0.06)


def test_crossovers_of_sc21() -> None:
    """Which of two layouts wins: interleaving at both batches, the scatter-gather, and micro batches of two."""
    twelve = [predicted for predicted, _ in answers(rows_of("megatron_sc21_figures", (12,)))]
    assert twelve[2] < twelve[0]
    assert twelve[3] < twelve[1]
    eighteen = [predicted for predicted, _ in answers(rows_of("megatron_sc21_figures", (18,)))]
    assert eighteen[2] < eighteen[0]
    assert eighteen[3] < eighteen[1]
    points = answers(rows_of("megatron_sc21_figures", (16, "B=128")))
    best, measured_best = (min(range(3), key=lambda place: points[place][which]) for which in (0, 1))
    assert best == measured_best == 1


def product(n: int) -> Kernel:
    return Kernel("p", "matmul", 2.0 * 4096 * n * 4096, 2.0 * (4096 * 4096 + 2 * 4096 * n), 4096, n, 4096)


def test_a_vocabulary_that_nothing_pads_slows_its_products() -> None:
    device = load_device("a100-80gb")
    odd, even = (kernel_seconds(device, product(n), precision="fp16") for n in (50257, 50304))
    assert odd == pytest.approx(even / 0.40, rel=0.02)
    assert kernel_seconds(device, product(50260), precision="tf32") == pytest.approx(
        kernel_seconds(device, product(50304), precision="tf32"), rel=0.02
    )
    model = Model(layers=1, hidden_size=1024, heads=16, vocab_size=50257, sequence_length=1024)
    whole = model.model_copy(update={"vocab_multiple": 1})
    assert [padded_vocab_size(model, 1), padded_vocab_size(whole, 1), padded_vocab_size(whole, 4)] == [
        50304,
        50257,
        50260,
    ]
    assert lm_head_block(whole, RankShape(micro_batch=1)).body.forward[0].n == 50257


def test_softmax_and_dropout_of_an_unfused_core_are_slower_than_memory() -> None:
    device = load_device("a100-80gb")
    model = Model(layers=1, hidden_size=1024, heads=16, vocab_size=512, sequence_length=1024)
    block = attention_block(model, RankShape(micro_batch=1, attention="unfused", dropout=True))
    slow = [kernel for kernel in (*block.body.forward, *block.body.input_grad) if kernel.by_row]
    assert [kernel.name for kernel in slow] == [
        "softmax", "probabilities_dropout", "probabilities_dropout_input_grad", "softmax_input_grad"
    ]  # fmt: skip
    for kernel in slow:
        expected = memory_kernel_seconds(device, kernel.bytes / device.by_row)
        assert (
            kernel_seconds(device, kernel, precision="fp16") == expected > memory_kernel_seconds(device, kernel.bytes)
        )


def test_gradients_added_by_a_kernel_of_their_own_move_the_product_s_output_twice_more() -> None:
    model = Model(layers=1, hidden_size=1024, heads=16, vocab_size=512, sequence_length=1024)
    fused, apart = (
        mlp_block(model, RankShape(micro_batch=1, accumulate=how)).body.weight_grad for how in ("fused", "separate")
    )
    weights = 2 * 4 * 1024 * 1024
    assert len(apart) == len(fused) + 2
    assert sum(k.bytes for k in apart) - sum(k.bytes for k in fused) == 2 * 2 * weights
    assert sum(k.flops for k in apart) == sum(k.flops for k in fused)


def test_the_passes_behind_a_step() -> None:
    """fp16 divides gradients by the loss scale; software that copies and divides in passes of its own pays for each."""
    device, recipe = load_device("a100-80gb"), RECIPES["mixed-18"]
    slow = 1 / (device.memory_bandwidth * device.memory_efficiency)
    for kind, size in (("unscale", 8), ("clip", 8), ("copy", 4)):
        longer, shorter = (parameter_pass_seconds(device, many, kind, recipe=recipe) for many in (2e9, 1e9))
        assert longer - shorter == pytest.approx(1e9 * size * slow)
    base = load("tiny_dp").document()
    base["training"]["memory_recipe"] = "mixed-18"

    def optimizer(precision: str, software: str) -> float:
        training = {**base["training"], "precision": precision}
        result = simulate(from_document({**base, "training": training, "software": software}))
        return result.times.breakdown["optimizer"]

    assert (
        optimizer("bf16-mixed", "ideal")
        < optimizer("fp16-mixed", "ideal")
        < optimizer("fp16-mixed", "megatron-lm-2022")
    )
