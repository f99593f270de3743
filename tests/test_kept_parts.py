"""The tensors that a stage's activations are: they add up to what is planned, whatever runs again, and in halves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_multi_token_prediction import scenario

from simcluster import simulate
from simcluster.model.kernel_choices import RECOMPUTE_MODULES
from simcluster.planning.block_memory import block_memory_table
from simcluster.planning.peak_tensors import list_peak_tensors
from simcluster.scenario.job_conversion import job_of, plan_footprints
from simcluster.scenario.memory_plan import shape_of

MODULES = st.lists(st.sampled_from(RECOMPUTE_MODULES), min_size=1, unique=True)


@settings(max_examples=6)
@given(
    schedule=st.sampled_from(["1f1b", "zb-h1", "dualpipe"]),
    recompute=st.one_of(st.sampled_from(["none", "full"]), MODULES),
    every=st.integers(1, 2),
)
def test_parts_add_up_to_the_plan(schedule: str, recompute: Any, every: int) -> None:
    made = scenario(
        **{"pipeline.schedule": schedule, "training.global_batch": 16, "training.recompute": recompute,
           "training.recompute_every": None if recompute == "none" else every, "memory.backward_temporaries": True}
    )  # fmt: skip
    job = job_of(made, made.cluster.device)
    blocks = block_memory_table(made.model, shape_of(made))
    for stage, counted in enumerate(plan_footprints(made)):
        parts = list_peak_tensors(blocks, job.schedule, job.slices, stage)
        assert sum(part.total_bytes for part in parts) == pytest.approx(counted.activations, rel=1e-9)
        assert all(part.alive > 0 for part in parts)


@pytest.mark.parametrize("recompute", ["operators", "modules"])
def test_what_runs_again_for_weight_gradients_comes_before_it_goes(recompute: str) -> None:
    """Under a split backward every byte that W frees was there."""
    plain = {"model.moe": None, "model.mla": None, "model.mtp_layers": None, "parallel.ep": 1}
    changes = {"training.recompute": recompute, **plain} if recompute == "operators" else {
        "training.recompute": list(RECOMPUTE_MODULES)
    }  # fmt: skip
    table = simulate(scenario(**{"pipeline.schedule": "zb-h1", **changes})).memory_timeline.frame()
    own = table[(table["rank"] == 0) & (table["pool"] == "activations")]["bytes"]
    assert own.sum() == pytest.approx(0.0, abs=1.0)
    assert own.cumsum().min() >= -1.0
