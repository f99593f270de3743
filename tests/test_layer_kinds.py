"""What every layer kind promises, whoever adds it: its answers agree with each other, and what it does not know it
refuses by name.

The kinds are those of ``LAYER_KINDS``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from conftest import tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.model.flops import layer_flops
from simcluster.model.layer_kind import LayerKind
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_kinds, parameters
from simcluster.model.mixture import Mla, Moe
from simcluster.model.saved_tensors import is_saved
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate
from simcluster.step.step_plan import fold_step, plan_step
from simcluster.studies.fast_path_scopes import PLAN, QUICK

LATENT_EXPERTS = "mixture of latent experts"
KINDS: dict[str, LayerKind] = {**LAYER_KINDS, LATENT_EXPERTS: LAYER_KINDS["mixture"]}
for name in ("diffusion_conditioning", "vision_patches", "vision_layer", "vision_merger"):
    del KINDS[name]  # in front of the others, with widths of their own
every_kind = pytest.mark.parametrize("word", KINDS)
SIZES: dict[str, Any] = {
    "layers": 2, "hidden_size": 256, "heads": 8, "kv_heads": 4, "ffn_hidden_size": 1024, "vocab_size": 1024,
    "sequence_length": 512, "norm": "rmsnorm", "position": "none", "gated_mlp": True, "bias": False,
}  # fmt: skip
MOE = Moe(experts=8, top_k=2, expert_ffn_hidden_size=128, shared_experts=1)
INDEXER = {"heads": 4, "head_dim": 32, "top_k": 128}
MLA = Mla(kv_lora_rank=64, q_lora_rank=96, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
LATENT = {"latent_attention": None, "sparse_attention": INDEXER}
V4 = {"heads": 8, "head_dim": 32, "rotated": 16, "query_rank": 96, "groups": 4, "group_rank": 64, "window": 64}
DOCUMENTED: dict[str, dict[str, int]] = {
    "diffusion_attention": {"heads": 8, "head_dim": 32}, "diffusion_cross_attention": {"heads": 8, "context": 64},
    "diffusion_mlp": {"ffn": 512},
    "mamba2": {"heads": 16, "groups": 4}, "kda": {"heads": 8, "head_dim": 32},
    "lightning": {"heads": 8, "head_dim": 64},
    "gated_delta_net": {"value_heads": 8, "key_heads": 4, "key_head_dim": 32, "value_head_dim": 64},
    "shared_window_attention": {**V4}, "heavily_compressed_attention": {**V4, "ratio": 32},
    "compressed_sparse_attention": {**V4, "index_heads": 4, "index_head_dim": 32, "top_k": 64},
}  # fmt: skip
"""Sizes of the kinds that are built in as documents."""
COMMON = {
    "name", "layers", "hidden_size", "heads", "vocab_size", "sequence_length", "gated_mlp", "kv_heads", "head_dim",
    "ffn_hidden_size", "tied_embeddings", "norm", "vocab_multiple", "position_rows", "embedding_norm", "moe",
    "clamped_activation", "logit_softcap", "residual_streams", "hash_routing", "mtp_layers", "mtp_pattern", "mixer",
    "blocks", "pattern", "layer_types", "layer_kinds", "encoder",
}  # fmt: skip
"""Fields of a model that are for layers of any kind, or for its ends."""


def kind_named(word: str) -> LayerKind:
    """The kind of a name; extensions add to the registry while tests run."""
    return KINDS[word] if word in KINDS else LAYER_KINDS[word]


def model_with(word: str, **more: Any) -> Model:
    """A model that has the kind in all layers."""
    kind = kind_named(word)
    own: dict[str, Any] = {"moe": MOE} if kind.ROUTED else {}
    if word == LATENT_EXPERTS:
        own = {"moe": {**MOE.model_dump(), "latent_size": 96}}
    if word in LATENT:
        own = {"mla": {**MLA.model_dump(), "indexer": LATENT[word]}, "kv_heads": 8}
    elif kind.mixes:
        own["mixer"] = word
    if word in DOCUMENTED:
        own |= {"position": "none", "layer_kinds": {word: DOCUMENTED[word]}}
        own |= {"causal": False} if word.startswith("diffusion") else {}
        own |= {} if kind.mixes else {"blocks": ["attention", word]}
    return Model(**{**SIZES, **own, **more})


def job(word: str, model_length: int = 512, **sections: Any) -> Scenario:
    model = model_with(word, sequence_length=model_length).model_dump(exclude_none=True)
    whole = "parallel.tp" in kind_named(word).modelled_with  # no tp
    parallel = {"tp": 1 if whole else 2, "sequence_parallel": not whole, **sections.pop("parallel", {})}
    cluster = {"topology": "flat", "gpus": 8}
    training = {"global_batch": 8, "dropout": False, "attention": "fused", **sections.pop("training", {})}
    return tiny_scenario(cluster=cluster, gpus=8, model=model, parallel=parallel, training=training, **sections)


def usable(word: str, shape: RankShape) -> RankShape:
    """The shape, without tp for a kind that has none."""
    whole = "parallel.tp" in kind_named(word).modelled_with
    return replace(shape, tp=1, sequence_parallel=False) if whole else shape


def of(word: str, model: Model) -> LayerKind:
    (found,) = [kind for kind in layer_kinds(model, 0) if kind is kind_named(word)]
    return found


shapes = st.builds(
    RankShape,
    micro_batch=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    dropout=st.booleans(),
)


@every_kind
def test_the_model_has_it(word: str) -> None:
    assert of(word, model_with(word)).name


@every_kind
@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_ranks_split_matrices_as_they_say(word: str, tp: int) -> None:
    model = model_with(word)
    kind = of(word, model)
    whole, parts = (list(kind.matrices(model, ranks)) for ranks in (1, tp))
    assert [part if part.experts else part.gather_whole(tp) for part in parts] == whole
    assert all(matrix.columns == model.hidden_size for matrix in whole[:1])
    assert whole[-1].rows == model.hidden_size
    assert sum(each.elements * each.count for each in kind.matmul_matrices(model, tp)) <= sum(
        each.elements * each.count for each in parts
    )


@every_kind
def test_parameters_are_those_of_matrices_and_vectors(word: str) -> None:
    model = model_with(word)
    kind = of(word, model)
    matrices = sum(each.elements * each.count for each in kind.matrices(model))
    assert kind.count_parameters(model) + kind.count_expert_parameters(
        model
    ) == matrices + kind.count_vector_parameters(model)
    assert (
        kind.count_parameters(model)
        <= kind.count_parameters_per_token(model)
        <= matrices + kind.count_vector_parameters(model)
    )
    plain = model_with("attention") if word == "attention" else model
    one = parameters(plain.model_copy(update={"layers": 1})).total
    kinds = sum(each.count_parameters(plain) + each.count_expert_parameters(plain) for each in layer_kinds(plain, 0))
    assert parameters(plain).total - one == kinds + plain.layer_norm_parameters


@every_kind
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_kernels_of_all_ranks_do_its_flops(word: str, shape: RankShape) -> None:
    """Matmuls of F, I and W; the router's product is not counted, as in Megatron-LM.

    All tp ranks have the whole indexer, with all tokens, and it gives its inputs no gradient.
    """
    model, shape = model_with(word), usable(word, shape)
    kind, counted = of(word, model), layer_flops(model, shape.micro_batch, attention_backward="flash")
    mixes = kind.mixes or word in LATENT
    expected = counted.qkv + counted.core + counted.projection if mixes else counted.mlp
    narrow = sum(each.elements for each in kind.matrices(model) if each.split == "none" and not kind.ROUTED)
    keys = {"sparse_attention": 32, "compressed_sparse_attention": 4 * 32}.get(word)
    index = 96 * 4 * 32 + 256 * (keys + 4) if keys else 0
    unread = 2.0 * shape.micro_batch * model.sequence_length * index
    again = 1 if shape.sequence_parallel else shape.tp  # what every rank does without sequence parallelism
    more = 2.0 * shape.micro_batch * model.sequence_length * (narrow - index) * (again - 1)
    for phase, flops in (("forward", expected.forward), ("input_grad", expected.input_grad - unread),
                         ("weight_grad", expected.weight_grad)):  # fmt: skip
        kernels = [kernel for section in kind.sections(model, shape) for kernel in getattr(section, phase)]
        done = sum(
            kernel.flops * (1 if kernel.name.startswith("index_") and kernel.name != "index_target" else shape.tp)
            for kernel in kernels
            if not kernel.name.startswith("router")
        )
        if kind.ROUTED and not shape.sequence_parallel and shape.tp > 1:
            continue  # tp ranks would send the same tokens: a scenario is refused
        assert done == pytest.approx(flops + more, rel=1e-9), phase


@every_kind
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_kernels_have_names_of_their_own_and_recompute_is_a_forward(word: str, shape: RankShape) -> None:
    model, shape = model_with(word), usable(word, shape)
    kind = of(word, model)
    for phase in ("forward", "input_grad", "weight_grad"):
        found = Counter(kernel.name for section in kind.sections(model, shape) for kernel in getattr(section, phase))
        assert max(found.values(), default=1) == 1, phase
    full = replace(shape, recompute="full")
    for section in kind.sections(model, full):
        assert section.recompute == section.forward
    assert not any(section.recompute for section in kind.sections(model, shape))


@every_kind
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_it_keeps_what_backward_reads(word: str, shape: RankShape) -> None:
    """Of every matmul by weights its input until W and, where the backward is split, the gradient of its output."""
    model, shape = model_with(word), usable(word, shape)
    kind = of(word, model)
    kept = kind.saved_tensors(model, shape)
    assert len({each.name for each in kept}) == len(kept)
    assert all(each.block == kind.name and each.bytes > 0 for each in kept)
    assert all(each.read == "W" for each in kept if each.made == "I")
    assert any(each.read == "W" and each.made == "F" for each in kept)
    assert any(each.made == "I" for each in kept)
    full = replace(shape, recompute="full")
    some = sum(each.bytes for each in kind.saved_tensors(model, full) if is_saved(each, full))
    assert some <= sum(each.bytes for each in kept if is_saved(each, shape))
    for own, routed in (kind.forward_working_bytes(model, shape), kind.backward_working_bytes(model, shape)):
        assert 0 <= routed <= own


@every_kind
@pytest.mark.parametrize(
    "sections",
    [{}, {"training": {"recompute": "full"}}, {"parallel": {"pp": 2}, "pipeline": {"schedule": "zb-h1"}}],
    ids=["plain", "full", "split"],
)
def test_all_engines_simulate_it_alike(word: str, sections: dict[str, Any]) -> None:
    recomputes = kind_named(word).modelled_with.get("training.recompute")
    if "training" in sections and recomputes and "full" not in recomputes.values:
        with pytest.raises(InputError, match=r"training\.recompute: "):
            job(word, **sections)
        return
    scenario = job(word, **sections)
    plain = simulate(scenario)
    assert plain.step_time == simulate(scenario, engine="reference").step_time
    assert plain.step_time == simulate(scenario, folded=False).step_time


@every_kind
def test_a_scenario_has_the_values_that_it_is_modelled_with(word: str) -> None:
    for path, allowed in kind_named(word).modelled_with.items():
        assert attrgetter(path)(job(word)) in allowed.values, path


@every_kind
def test_a_fast_path_knows_it_or_refuses_it_by_name(word: str) -> None:
    scenario = job(word)
    for scope in (QUICK, PLAN):
        known = scope.field_limits["model.mixer"].also_supported(scenario)
        assert scope.find_obstacle(scenario).endswith(f"model.mixer {scenario.model.mixer}") != known
    assert fold_step(scenario, plan_step(scenario)) is not None


# --- what a kind says nothing of --------------------------------------------------------------------------------------


class Copies(LayerKind):
    """A kind that says nothing more than its name."""

    name = "copies"
    MIXES = True


REFUSED: list[tuple[str, Any]] = [
    ("parallel.cp", 2), ("training.attention", "unfused"), ("training.recompute", "selective"),
    ("training.recompute", "operators"), ("model.qk_norm", "head"), ("model.attention_window", 128),
    ("model.attention_sinks", True), ("model.causal", False), ("model.position", "rope"), ("model.bias", True),
    ("model.layer_norms", 4), ("model.parallel_residual", True),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), REFUSED)
def test_a_kind_that_says_nothing_refuses_by_name(path: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYER_KINDS, "copies", Copies())
    section, _, name = path.partition(".")
    document = {section: {name: value}}
    model = {**model_with("attention").model_dump(exclude_none=True), "mixer": "copies", **document.pop("model", {})}
    with pytest.raises(InputError, match=rf"{path}: .*layers of kind copies"):
        tiny_scenario(
            cluster={"topology": "flat", "gpus": 8}, gpus=8, model=model,
            training={"global_batch": 8, "dropout": False, **document.pop("training", {})}, **document,
        )  # fmt: skip


def test_the_neutral_answers_name_every_field_of_a_model() -> None:
    """A new field is for layers of any kind (COMMON), or a kind that does not know it refuses it."""
    named = {path.removeprefix("model.") for path in LayerKind.MODELLED_WITH if path.startswith("model.")}
    assert named | COMMON == {*Model.model_fields}
    assert not named & COMMON


def test_a_word_that_names_no_kind_is_refused() -> None:
    with pytest.raises(InputError, match="'atention' is not a layer kind that mixes tokens; did you mean 'attention'"):
        tiny_scenario(model={"mixer": "atention"})
    with pytest.raises(InputError, match="'mixture' is not a layer kind that mixes tokens"):
        tiny_scenario(model={"mixer": "mixture"})
    with pytest.raises(InputError, match="there is no layer kind 'atention'; did you mean 'attention'"):
        layer_kinds(Model(**{**SIZES, "mixer": "atention"}), 0)
