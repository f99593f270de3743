"""Bytes at a stage's peak: microbatches in flight (MODELLING.md B.3) times what each leaves behind, and model state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from activation_bytes import activation_bytes_per_layer, head_activation_bytes
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.model.layers import RankShape, parameters
from simcluster.model.recipes import recipe_named
from simcluster.model.transformer import Model
from simcluster.planning.footprint import Footprint, stage_footprint
from simcluster.planning.job import ModelSlices
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.schedules import schedule_entry
from simcluster.step.simulate import simulate

SCENARIOS = Path(__file__).parent.parent / "scenarios"
MODEL = Model(
    layers=48, hidden_size=256, heads=8, kv_heads=8, ffn_hidden_size=1024, vocab_size=1024, sequence_length=64,
    gated_mlp=False, tied_embeddings=False,
)  # fmt: skip
SHAPE = RankShape(1)
LAYER = activation_bytes_per_layer(MODEL, SHAPE)
HEAD = head_activation_bytes(MODEL, SHAPE)


def footprints(schedule: str, P: int, M: int, v: int = 1, **other: Any) -> list[Footprint]:
    made = schedule_entry(schedule)(P, M, v)
    settings = {"recipe": recipe_named("mixed-16"), "zero": 0, **other}
    slices = ModelSlices.split_evenly(MODEL.layers, len(made.routes[0]))
    return [
        stage_footprint(MODEL, SHAPE, ParallelPlan(pp=P), made, slices, stage=stage, **settings) for stage in range(P)
    ]


def in_flight(schedule: str, P: int, M: int, v: int = 1) -> list[float]:
    """Layers' activations over those of one microbatch in one chunk, stage by stage; the head's taken off."""
    found = [each.activations for each in footprints(schedule, P, M, v)]
    heads = M if schedule == "gpipe" else 1
    found[-1] -= heads * HEAD
    return [size / (48 // (P * v) * LAYER) for size in found]


@given(P=st.sampled_from([1, 2, 3, 4, 6, 8]), M=st.integers(1, 12))
def test_peaks_of_gpipe_and_1f1b(P: int, M: int) -> None:
    assert in_flight("gpipe", P, M) == pytest.approx([M] * P, rel=1e-12)
    assert in_flight("1f1b", P, M) == pytest.approx([min(P - stage, M) for stage in range(P)], rel=1e-12)


@given(P=st.sampled_from([2, 3, 4]), groups=st.integers(1, 4), v=st.sampled_from([2, 4]))
def test_peaks_of_interleaved(P: int, groups: int, v: int) -> None:
    M = groups * P
    expected = [min(2 * (P - 1 - stage) + (v - 1) * P + 1, M * v) for stage in range(P)]
    found = in_flight("interleaved", P, M, v)
    assert found[:-1] == pytest.approx(expected[:-1], rel=1e-12)
    # on the last stage the head is kept once: its chunk's backward follows its forward at once
    assert found[-1] == pytest.approx(expected[-1], rel=1e-12)


def test_state_is_every_parameter_times_its_bytes() -> None:
    total = footprints("1f1b", 4, 8)
    count = parameters(MODEL).total
    assert sum(each.parameters for each in total) == 2 * count
    assert sum(each.gradients for each in total) == 2 * count
    assert sum(each.optimizer for each in total) == 12 * count
    assert all(
        each.total == each.parameters + each.gradients + each.optimizer + each.activations + each.other
        for each in total
    )


def test_zero_one_shards_the_optimizer_alone(tiny: Tiny) -> None:
    sizes: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 4}, "training": {"global_batch": 4}}
    whole, sharded = (simulate(tiny(parallel={"zero": zero}, **sizes)).memory for zero in (0, 1))
    assert sharded.optimizer == whole.optimizer / 4
    assert (sharded.parameters, sharded.gradients, sharded.activations) == (
        whole.parameters, whole.gradients, whole.activations,
    )  # fmt: skip


def test_gpt3_175b_is_the_papers_formula() -> None:
    """arXiv:2205.05198: 34 s b h / t a layer under sequence parallelism and selective recompute (table 2).

    Times L / P layers and P (1 + (P - 1) / (P v)) microbatches in flight on the first stage, which keeps the dropout
    mask of the embedding, s b h / t each, as well (section 4.3).  At the peak of all memory the core of the last layer
    is back (5 a s / h of it) and its MLP, 21 of the 34, gone.
    """
    result = simcluster.simulate(simcluster.scenario(SCENARIOS / "gpt3_175b_64xa100.yaml"))
    s, b, h, t, P, v, L = 2048, 1, 12288, 8, 8, 3, 96
    per_layer = 34 * s * b * h / t
    assert per_layer == pytest.approx(0.1070e9, rel=1e-3)
    flight = P * (1 + (P - 1) / (P * v))
    masks = s * b * h / t * 2 * P  # of the microbatches whose first chunk is in flight: 2 (P - 1) + 1 + ... = 2 P
    first = result.facts.footprints[0]
    kept = L / P * flight * per_layer + masks
    assert result.memory_timeline.curve(0)[1]["activations"].max() == pytest.approx(kept, rel=1e-12)
    assert first.activations == pytest.approx(kept - 21 / 34 * per_layer, rel=1e-12)
    assert first.other == 5 * 96 * s**2 * b / t
    assert result.to_dict()["memory_bytes"]["activations"] == first.activations
    between_stages = result.to_dict()["peak_memory_bytes"] - first.total
    assert between_stages in [count * 2 * s * b * h / t for count in range(4)]
    assert result.to_dict()["fits"] is True
