"""Layers of multi-token prediction: what they have, compute and hold, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from simcluster import InputError, simulate
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import layer_flops, lm_head_flops, model_flops_per_sequence
from simcluster.model.kernel_choices import RECOMPUTE_MODULES
from simcluster.model.kernels import Kernel
from simcluster.model.layers import LAYER_KINDS, RankShape, parameters
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import load

MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_experts": 1, "first_dense_layers": 1}
MLA = {"q_lora_rank": 192, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
FIELDS: dict[str, Any] = {
    "layers": 4, "hidden_size": 512, "heads": 8, "vocab_size": 1024, "sequence_length": 128, "gated_mlp": True,
    "ffn_hidden_size": 1024, "moe": MOE, "mla": MLA, "mtp_layers": 2,
}  # fmt: skip
AHEAD = Model.model_validate(FIELDS)
PLAIN = Model.model_validate({**FIELDS, "mtp_layers": None})


def scenario(**changes: Any) -> Any:
    fields = {f"model.{name}": value for name, value in FIELDS.items()}
    return load("tiny_3d", {**fields, "parallel.ep": 2, **changes})


def test_deepseek_v3_has_14_billion_parameters_more() -> None:
    """Its README: 671B of the main model, and 14B of the module, 11.5B of them without embedding and head."""
    document = load_model_entry("deepseek-v3")
    with_it, without = (parameters(Model(**{**document, **more})) for more in ({"mtp_layers": 1}, {}))
    assert (with_it.total - without.total) / 1e9 == pytest.approx(11.6, abs=0.1)
    own = with_it.total - without.total + 2 * 129280 * 7168
    assert own / 1e9 == pytest.approx(13.5, abs=0.5)


def test_parameters_by_hand() -> None:
    h = 512
    layer = LAYER_KINDS["latent_attention"].count_parameters(AHEAD) + 2 * h + 9 * 3 * h * 256 + h * 8
    assert parameters(AHEAD).total - parameters(PLAIN).total == 2 * (layer + 2 * h * h + 3 * h)


def test_flops_are_a_layer_a_projection_and_a_head_for_each() -> None:
    more = model_flops_per_sequence(AHEAD) - model_flops_per_sequence(PLAIN)
    each = layer_flops(AHEAD, 1, layer=3).total.total + lm_head_flops(AHEAD, 1).total + 3 * 2 * 128 * 2 * 512 * 512
    assert more == pytest.approx(2 * each, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_do_the_flops(tp: int) -> None:
    def flops(kernels: Sequence[Kernel]) -> float:
        return sum(kernel.flops for kernel in kernels)

    def done(model: Model) -> float:
        shape = RankShape(1, tp=tp, ep=2, sequence_parallel=tp > 1)
        passes = CachedPassSegmentMaker(model, shape, flops, overlap_tensor=False)
        whole = PassLayers((), lm_head=True)
        ops = (*passes.segment("F", whole).ops, *passes.segment("B", whole).ops)
        return tp * sum(getattr(op.work, "seconds", 0.0) for op in ops)

    router, flash = 3 * 2 * 128 * 512 * 8, 0.5 * layer_flops(AHEAD, 1).core.forward
    wanted = model_flops_per_sequence(AHEAD) - model_flops_per_sequence(PLAIN) + 2 * (router + flash)
    assert done(AHEAD) - done(PLAIN) == pytest.approx(wanted, rel=1e-6)  # times lie on a grid


def test_they_are_on_the_last_stage_with_a_copy_of_the_embedding() -> None:
    plain, ahead = (scenario(**{"model.mtp_layers": number}) for number in (None, 2))
    first, last = (
        after.parameters - before.parameters
        for before, after in zip(plan_footprints(plain), plan_footprints(ahead), strict=True)
    )
    h, tp = 512, 2
    attention, norms = LAYER_KINDS["latent_attention"].count_parameters(AHEAD, tp), 2 * h
    mixture = h * 8 + 3 * h * 256 / tp + 8 / 2 * 3 * h * 256 / tp
    assert first == 0
    assert last == 2 * (2 * (attention + norms + mixture + 2 * h * h / tp + 3 * h) + 1024 / tp * h)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "dualpipe"])
def test_a_run_holds_what_was_counted(schedule: str) -> None:
    found = simulate(scenario(**{"pipeline.schedule": schedule, "training.global_batch": 16}))
    counted = max(each.total for each in plan_footprints(found.scenario))
    assert found.memory.total == pytest.approx(counted, rel=0.02)  # a boundary may wait between stages


def test_every_way_to_play_is_the_same() -> None:
    made = scenario(**{"training.recompute": list(RECOMPUTE_MODULES)})
    folded = simulate(made)
    assert folded.step_time == simulate(made, folded=False).step_time
    assert folded.step_time == simulate(made.with_({"engine": "reference"})).step_time
    assert folded.step_time > simulate(made.with_({"model.mtp_layers": None})).step_time


def test_sharded_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="multi-token prediction are not modelled with parameters sharded"):
        scenario(**{"parallel.zero": 3, "parallel.pp": 1})
