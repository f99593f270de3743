"""Layers of multi-token prediction: what they have, compute and hold, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import tiny_scenario
from pydantic import ValidationError
from test_reference import compare_scenario
from test_same_answer import every_way

from simcluster import InputError, Scenario, simulate
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import layer_flops, lm_head_flops, model_flops_per_sequence
from simcluster.model.kernel_choices import RECOMPUTE_MODULES
from simcluster.model.kernels import Kernel
from simcluster.model.layers import LAYER_KINDS, RankShape, parameters
from simcluster.model.transformer import Model
from simcluster.planning.block_memory import block_memory_table
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.peak_tensors import list_peak_tensors
from simcluster.planning.work_kinds import StageSend
from simcluster.scenario.checkpoint_plan import checkpoint_bytes_by_rank
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.scenario import load
from simcluster.step.step_plan import plan_step
from simcluster.studies.fast_path_scopes import PLAN
from simcluster.studies.kernels import kernels

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


# --- layers of other kinds than the last ------------------------------------------------------------------------------

HYBRID: dict[str, Any] = {
    "hidden_size": 512, "heads": 8, "kv_heads": 2, "vocab_size": 1024, "sequence_length": 128, "ffn_hidden_size": 1024,
    "norm": "rmsnorm", "position": "none", "bias": False, "tied_embeddings": False,
    "layer_kinds": {"mamba2": {"heads": 16, "groups": 4}},
    "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256},
}  # fmt: skip


def hybrid(layers: str, **more: Any) -> Model:
    return Model.model_validate({**HYBRID, "layers": layers, **more})


def test_letters_behind_a_slash_are_layers_of_multi_token_prediction() -> None:
    """Each / begins one (Megatron-LM's --hybrid-layer-pattern): attention and experts here, as in Nemotron 3 Super."""
    model = hybrid("ME M*E/*E/*E")
    assert (model.layers, model.mtp_layers, model.mtp_pattern) == (5, 2, "*E")
    assert [model.layer_kind_names(layer) for layer in (4, 5, 6)] == [("mixture",), *[("attention", "mixture")] * 2]
    assert Model.model_validate(model.model_dump()) == model
    assert model == hybrid("MEM*E", mtp_layers=2, mtp_pattern="*E")
    assert [count for _, count in model.count_layer_types().values()] == [2, 1, 2, 2]
    assert model.layers_text == "5 (2 M, 2 E, 1 *)"


def test_what_such_layers_count() -> None:
    """A projection, three norms, the layer's parameters with its two norms; and their FLOP with a head."""
    model, plain, h = hybrid("MEM*E/*E"), hybrid("MEM*E"), 512
    attention, experts = h * (512 + 2 * 128) + 512 * h, h * 8 + 8 * 2 * h * 256
    more = parameters(model).total - parameters(plain).total
    assert more == 2 * h * h + 3 * h + attention + experts + 2 * h
    flops = model_flops_per_sequence(model) - model_flops_per_sequence(plain)
    layer = layer_flops(model, 1, layer=3).total.total + layer_flops(model, 1, layer=4).total.total
    assert layer_flops(model, 1, layer=5).total.total == layer
    assert flops == pytest.approx(layer + lm_head_flops(model, 1).total + 3 * 2 * 128 * 2 * h * h, rel=1e-12)


def test_the_last_layers_kinds_change_nothing() -> None:
    """Written out, the default is the same model."""
    base = {**FIELDS, "mla": None, "layers": 4}
    left, written = (Model.model_validate(base | more) for more in ({}, {"mtp_pattern": "*E"}))
    assert left.count_layer_types() == written.count_layer_types()
    assert parameters(left) == parameters(written)
    assert model_flops_per_sequence(left) == model_flops_per_sequence(written)


@pytest.mark.parametrize("pattern", ["*E", "*-", "M", "-"])
@pytest.mark.parametrize("layers", [[*"MEM*E"], 4], ids=["pattern", "equal"])
def test_every_way_to_play_such_layers_is_the_same(pattern: str, layers: Any) -> None:
    sections = {**HYBRID, "layers": layers, "mtp_layers": 2, "mtp_pattern": pattern}
    if isinstance(layers, int):
        sections |= {} if "M" in pattern else {"layer_kinds": None}
    made = load("tiny_3d", {f"model.{name}": value for name, value in sections.items()} | {
        "parallel.ep": 2, "model.gated_mlp": False, "training.global_batch": 16,
        "pipeline.layers_per_stage": [2, 2] if layers == 4 else [3, 2],
    })  # fmt: skip
    folded = simulate(made)
    assert folded.step_time == simulate(made, folded=False).step_time
    assert folded.step_time == simulate(made.with_({"engine": "reference"})).step_time
    counted = max(each.total for each in plan_footprints(made))
    assert folded.memory.total == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    ("layers", "more", "message"),
    [
        ("M*E/*E/*-", {}, r"must be equal, but after / layers has \*E and \*-; repeat \*E"),
        ("M*E/*E", {"mtp_layers": 1}, "has multi-token prediction after /, and mtp_layers is set, too"),
        ("M*E/", {}, "one or two different letters of .*; got ''"),
        ("M*E/MM", {}, "got 'MM'"),
        ("M*E/M*E", {}, r"got 'M\*E'"),
        ("M*E/x", {}, "got 'x'"),
        ("M*E", {"mtp_pattern": "*E"}, "mtp_pattern needs layers of multi-token prediction; also set mtp_layers"),
        ("M*-/*E", {"moe": None}, "have experts; set moe"),
        ("*-*E", {"mtp_layers": 1, "mtp_pattern": "M", "layer_kinds": None}, "layer_kinds.mamba2: heads is missing"),
        ("sM*E/s", {"layer_types": {"s": {"kv_heads": 4}}}, "got 's'"),
        ("*ME/*E", {"layer_types": {"*": {"kv_heads": 4}}}, r"do not have the fields of layer_types\.\*"),
    ],
)
def test_patterns_that_are_not_modelled(layers: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ValidationError), match=message):
        hybrid(layers, **more)


def test_a_slash_belongs_to_layers() -> None:
    with pytest.raises(ValidationError, match="'/' begins multi-token prediction, which may be written in layers"):
        Model.model_validate({**HYBRID, "layers": 3, "pattern": "M*E/*E"})


# --- in a slice of their own ------------------------------------------------------------------------------------------


LAID: dict[str, Any] = {
    "layers": 5, "hidden_size": 512, "heads": 8, "vocab_size": 1024, "sequence_length": 128, "gated_mlp": True,
    "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}, "mtp_layers": 2,
}  # fmt: skip


def laid_out(layout: str, pp: int = 4, **sections: Any) -> Scenario:
    parallel = {"pp": pp, "tp": 2, "ep": 2, "sequence_parallel": True, **sections.pop("parallel", {})}
    pipeline = {"layout": layout, **sections.pop("pipeline", {})}
    training = {"global_batch": 16, "dropout": False, "attention": "fused", **sections.pop("training", {})}
    return tiny_scenario(**{
        "cluster": {"topology": "dgx_h100", "nodes": 2}, "gpus": 16, "model": LAID | sections.pop("model", {}),
        "parallel": parallel, "pipeline": pipeline, "training": training, **sections,
    })  # fmt: skip


def sent_bytes(made: Scenario, stage: int, name: str) -> set[float]:
    """Bytes of a stage's sends of activations or gradients, one microbatch each."""
    programs = plan_step(made).programs
    items = [item for items in programs[stage].lanes.values() for item in items]
    return {
        op.work.size for item in items for op in item.segment.ops if isinstance(op.work, StageSend) and op.name == name
    }


def test_the_slice_computes_its_layers_and_the_last_one_all_heads() -> None:
    """What m in the last slice computes there is split over two stages; the whole is the same."""
    apart, together = laid_out("Ett|ttt|mm|L"), laid_out("Ett|ttt||mmL")
    rows = [kernels(made, stage) for made in (apart, together) for stage in (2, 3)]
    blocks = [Counter({row.block: row.launches for row in found}) for found in rows]
    assert blocks[0].keys() == {"mtp", "attention", "mixture"}
    assert blocks[1].keys() == {"lm_head"}
    assert not blocks[2]
    assert blocks[3].keys() == {"mtp", "attention", "mixture", "lm_head"}
    whole = [Counter[tuple[str, str, str]]() for _ in "12"]
    for number, found in enumerate(rows):
        for row in found:
            whole[number // 2][row.block, row.name, row.phase] += row.launches
    assert whole[0] == whole[1]
    heads = {row.launches for row in rows[1] if row.name == "logits"}
    assert heads == {3 * apart.microbatches}  # the model's and that of each of the two layers


def test_hidden_states_of_every_layer_travel_on() -> None:
    """Megatron-Core sends 1 + mtp_num_layers hidden states from the slice to the LM head, and their gradients back."""
    made, state = laid_out("Ett|ttt|mm|L"), 2 * 128 * 512 / 2
    assert [sent_bytes(made, stage, "activation") for stage in range(4)] == [{state}, {state}, {3 * state}, set()]
    assert [sent_bytes(made, stage, "gradient") for stage in range(4)] == [set(), {state}, {state}, {3 * state}]
    hollow = laid_out("Et|t|t|t|t|m||L", model={"mtp_layers": 1}, pipeline={"schedule": "interleaved"})
    found = [sent_bytes(hollow, stage, "activation") for stage in range(4)]
    assert found == [{state}, {state, 2 * state}, {state, 2 * state}, {state}]


@pytest.mark.parametrize("tied", [False, True])
def test_the_slice_has_a_copy_of_the_embedding(tied: bool) -> None:
    """Its gradient is summed with that of the first stage, and of the last one where the head is tied."""
    model = {"tied_embeddings": tied}
    apart, together = laid_out("Ett|ttt|mm|L", model=model), laid_out("Ett|ttt||mmL", model=model)
    held, whole = ([2 * each.parameters / 4 for each in plan_footprints(made)] for made in (apart, together))
    table, norm = 1024 * 512 / 2, 512
    assert held[:2] == whole[:2]
    assert held[3] == table + norm
    assert held[2] == whole[3] - norm - (0 if tied else table)
    plan = plan_step(apart).job.plan
    stages = (0, 2, 3) if tied else (0, 2)
    assert plan.embedding_stages == stages
    assert plan.groups("embedding").tolist() == [[4 * stage + rank for stage in stages] for rank in range(4)]
    summed = [
        {op.work.size for items in program.lanes.values() for item in items for op in item.segment.ops
         if op.name == "embedding_gradients"}
        for program in plan_step(apart).programs
    ]  # fmt: skip
    assert [bool(sizes) for sizes in summed] == [stage in stages for stage in range(4)]


def test_a_checkpoint_has_the_table_once() -> None:
    written = [checkpoint_bytes_by_rank(laid_out(layout), 1.0).sum() for layout in ("Ett|ttt|mm|L", "Ett|ttt||mmL")]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("layout", "sections"),
    [
        ("Ett|ttt|mm|L", {}),
        ("Ett|tt|tmm|L", {"model": {"tied_embeddings": True}}),
        ("Ett|ttt|mm|L", {"model": {"pattern": "*-E*E", "mtp_pattern": "*-", "ffn_hidden_size": 1024}}),
        ("Ett|ttt|mm|L", {"parallel": {"zero": 1}, "overlap": {"grad_reduce": True, "param_gather": True}}),
        ("Ett|ttt|mm|L", {"parallel": {"zero": 2}}),
        ("Ett|ttt|mm|L", {"training": {"recompute": "full", "recompute_every": 2}}),
        ("Ett|ttt|mm|L", {"pipeline": {"schedule": "zb-h1"}}),
        ("Ett|ttt|mm|L", {"pipeline": {"p2p": "rendezvous"}}),
        ("Ett|ttt|mm|L", {"memory": {"offload": {"activations": 0.5}}}),
        ("Ett|ttt|mm|L", {"memory": {"offload": {"optimizer": "stream"}}, "parallel": {"ep": 1}}),
        ("Et|t|t|t|t||mm|L", {"pipeline": {"schedule": "interleaved"}}),
        ("Et|t|t|t|t|mm||L", {"pipeline": {"schedule": "interleaved", "p2p": "rendezvous"}}),
        ("Ett|ttt|mm|L", {"faults": [{"kind": "slow_gpu", "rank": 9, "slowdown": 1.5}]}),
    ],
    ids=str,
)
def test_every_way_to_play_a_separate_slice_is_the_same(layout: str, sections: dict[str, Any]) -> None:
    training = {"global_batch": 8, **sections.get("training", {})}  # four microbatches: one of each stage's phases
    made = laid_out(layout, **{**sections, "training": training})
    every_way(made)
    compare_scenario(made)
    counted = max(each.total for each in plan_footprints(made))
    assert simulate(made).memory.total == pytest.approx(counted, rel=0.02)


def test_recompute_and_peak_tensors_know_the_slice() -> None:
    """The stage's peak holds the inputs of projections, and none of heads."""
    made = laid_out("Ett|ttt|mm|L")
    job = plan_step(made).job
    blocks = block_memory_table(made.model, shape_of(made))
    named = {part.tensor for part in list_peak_tensors(blocks, job.schedule, job.slices, 2)}
    assert {"prediction_input", "experts_input"} <= named
    assert not {"head_input", "logits"} & named


@pytest.mark.parametrize(
    ("layout", "sections", "message"),
    [
        ("Ett|ttm|m|tL", {}, "must come after all decoder layers"),
        ("Ett|ttt|m|mL", {}, r"slices 2 and 3 have 'm' \(multi-token prediction\); put all in one slice"),
        ("Ett|ttt|m|L", {}, "slice 2 has 1 x 'm' .*, but model.mtp_layers is 2"),
        ("Ett|ttt|mm|L", {"model": {"mtp_layers": None}}, "slice 2 has 2 x 'm' .*, but the model has none"),
        ("Et|tttt|mm||||L|", {}, "must end with L"),
        ("Et|tttt|mm|||||L", {"pipeline": {"schedule": "interleaved"}},
         r"slice 2 has 'm' .*, which must be in the last slice of a stage, .* stage 0: use one of slices 5 to 7"),
        ("Et|t|tt|t|mm|||L", {"pipeline": {"schedule": "interleaved"}}, "slice 4 has 'm' .*use one of slices 5 to 7"),
        ("Et|t|tt|t||mm||L", {"pipeline": {"schedule": "zb-v"}},
         r"pipeline\.layout: slice 5 has 'm' .*, which zb-v does not place on stage 1; use 1f1b or interleaved"),
        ("Ett|ttt|mm|L", {"pipeline": {"schedule": "dualpipe"}, "model": {"moe": None, "ffn_hidden_size": 512},
                          "parallel": {"ep": 1}}, "dualpipe does not place on stage 2|4 slices for pp 4, but dualpipe"),
        ("Ett|ttt|mm|L", {"parallel": {"sequence_parallel": False, "ep": 1},
                          "model": {"moe": None, "ffn_hidden_size": 512}},
         r"sends that are split over tp \(pipeline\.scatter_gather\) are not modelled: set scatter_gather to false"),
    ],
)  # fmt: skip
def test_layouts_that_are_not_modelled(layout: str, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        laid_out(layout, **sections)


def test_the_search_for_layouts_refuses_a_separate_slice() -> None:
    assert "only in the last slice; move m there" in PLAN.find_obstacle(laid_out("Ett|ttt|mm|L"))
    assert not PLAN.find_obstacle(laid_out("Ett|ttt||mmL"))


def test_fewer_stages_than_the_layout_has_are_a_broken_rule() -> None:
    """As the command check tries them: it changes a scenario without reading its layout again."""
    made = laid_out("Ett|ttt|mm|L")
    fewer = made.model_copy(update={"parallel": made.parallel.model_copy(update={"pp": 2, "dp": 4})})
    assert any("slice 2 has 'm'" in what for _, what in find_broken_rules(fewer))


def test_muon_updates_their_matrices_as_those_of_other_layers() -> None:
    """Of every matrix of a layer, multi-token prediction's included, 4 bytes of Adam's second moment are not kept."""
    model = {"layers": 2, "hidden_size": 256, "heads": 8, "ffn_hidden_size": 1024, "sequence_length": 128}
    bytes_of: dict[str, list[float]] = {}
    for optimizer in ("adam", "muon"):
        for ahead in (None, 1):
            job = tiny_scenario(
                model={**model, "mtp_layers": ahead}, training={"global_batch": 1, "optimizer": optimizer},
                parallel={"dp": 1},
            )  # fmt: skip
            bytes_of.setdefault(optimizer, []).append(simulate(job).memory.optimizer)
    saved = [adam - muon for adam, muon in zip(bytes_of["adam"], bytes_of["muon"], strict=True)]
    matrices = 4 * 256 * 256 + 2 * 256 * 1024
    assert saved == [4 * 2 * matrices, 4 * 3 * matrices]
