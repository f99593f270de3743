"""Rules on the model and the rank grid: layer kinds, and divisibility by tp, cp and ep.

Pure functions of a scenario, called by ``rules``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyProblem, did_you_mean, join_or
from simcluster.documents.field_annotations import find_unsupported_values
from simcluster.documents.suggestions import nearest_divisors
from simcluster.model.context_parallel import count_head_trading_ranks
from simcluster.model.defaults import TYPE_FIELDS, type_fields
from simcluster.model.documented_kind import DocumentedKind
from simcluster.model.encoder import ENCODER
from simcluster.model.hyper_connections import STREAMS_MODELLED_WITH
from simcluster.model.kernel_choices import unusable_recompute_modules
from simcluster.model.kind_documents import BUILTIN_DOCUMENTS, find_kind_document, find_kind_sizes
from simcluster.model.layers import LAYER_KINDS, RankShape, find_layer_kind, layer_kinds
from simcluster.model.mixture import Moe
from simcluster.model.shard_widths import mlp_widths_split_by_tp
from simcluster.scenario.trainable_rules import check_trained_parts

if TYPE_CHECKING:
    from simcluster.model.transformer import Model
    from simcluster.scenario.scenario_fields import ScenarioFields
    from simcluster.scenario.sections import Parallel


_ATTENTION_FIELDS = (
    "model.position", "model.qk_norm", "model.attention_window", "model.attention_chunk", "model.attention_gate",
    "model.attention_sinks", "model.mla", "model.values_from_keys", "training.attention",
)  # fmt: skip
"""Fields of attention alone, which layers of other kinds leave to the attention layers of the same model."""


def check_model_rules(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield every violated rule on the model's dimensions, layers and experts."""
    if problem := _find_unknown_kind(scenario):
        yield problem
        return
    model = scenario.model
    differ = model.pattern or model.encoder
    types = [
        (scenario.model_copy(update={"model": model.layer_model(layer)}) if differ else scenario, kinds)
        for (_, *kinds), (layer, _) in model.count_layer_types().items()
    ]
    yield from dict.fromkeys(
        problem for each, _ in types for check in (_check_tp, _check_cp) for problem in check(each)
    )
    if model.moe:
        yield from _check_experts(scenario, model.moe)
    if scenario.training.recompute == "selective":
        yield from _check_recompute(scenario)
    if model.mtp_layers and scenario.parallel.zero == 3:
        what = "layers of multi-token prediction are not modelled with parameters sharded by ZeRO 3"
        yield ("model", "mtp_layers"), f"{what}; use zero 1 or 2, or remove mtp_layers"
    if scenario.training.recompute == "operators" and any(each.model.values_from_keys for each, _ in types):
        what = "operators counts a matmul for values, which model.values_from_keys removes"
        yield ("training", "recompute"), f"{what}; use none, selective or full"
    attends = any(find_layer_kind(model, kind).SQUARE for _, kinds in types for kind in kinds)
    yield from dict.fromkeys(
        (path, problem)
        for each, kinds in types
        for kind in kinds
        for path, problem in find_unsupported_values(
            f"layers of kind {kind}", find_layer_kind(model, kind).modelled_with, each
        )
        if find_layer_kind(model, kind).SQUARE or not (attends and ".".join(path) in _ATTENTION_FIELDS)
    )
    if model.num_streams > 1:
        yield from find_unsupported_values("model.residual_streams", STREAMS_MODELLED_WITH, scenario)
    if any("sparse_attention" in kinds for _, kinds in types):
        yield from _check_documents(scenario, "model.mla.indexer")
    if any((each.model.attention_chunk or model.sequence_length) < model.sequence_length for each, _ in types):
        yield from _check_documents(scenario, "model.attention_chunk")
    if any(len(kinds) == 1 and not kinds[0].startswith(ENCODER) for _, kinds in types):
        yield from _check_single_kind_layers(scenario)
    yield from _check_idle_layer_fields(model)
    if scenario.training.trainable:
        yield from check_trained_parts(scenario, scenario.training.trainable)
    yield from dict.fromkeys(problem for each, kinds in types for problem in _check_documented_kinds(each, kinds))


def _find_unknown_kind(scenario: ScenarioFields) -> KeyProblem | None:
    """Return the problem of a layer kind that does not exist or does not mix tokens; None if there is none."""
    model = scenario.model
    for word in model.layer_kinds or {}:
        taken = word in (*LAYER_KINDS, "embedding", "mtp", "lm_head") and word not in BUILTIN_DOCUMENTS
        if taken or not word.isidentifier():
            return ("model", "layer_kinds", word), "is the name of a built-in block, or not a word; use another name"
    known = {**LAYER_KINDS, **{word: find_layer_kind(model, word) for word in model.layer_kinds or {}}}
    for mixer in (model.mixer, *(fields.get("mixer") for fields in (model.layer_types or {}).values())):
        found = known.get(mixer or "")
        if mixer is not None and not (found and found.mixes and mixer == found.name):
            mixers = [word for word, kind in known.items() if kind.mixes and word == kind.name]  # reads all documents
            what = f"{mixer!r} is not a layer kind that mixes tokens{did_you_mean(mixer, mixers)}"
            return ("model", "mixer"), f"{what}; known: {', '.join(mixers)}"
    try:
        for layer, _ in model.count_layer_types().values():
            layer_kinds(model, layer)
    except InputError as problem:
        return ("model", "blocks"), str(problem)
    for _, *names in model.count_layer_types():
        for name, needs in (("latent_attention", "mla"), ("sparse_attention", "mla.indexer")):
            if name in names and not (model.mla and bool(model.mla.indexer) == (needs != "mla")):
                return ("model", "blocks"), f"{name} is what attention is with model.{needs}; write attention"
    return None


def _check_idle_layer_fields(model: Model) -> Iterator[KeyProblem]:
    """Yield an error for each field without effect, since every layer's kinds are named by other fields."""
    by_pattern = model.pattern and all("blocks" in type_fields(word, model.layer_types) for word in model.pattern)
    for name in ("mixer", "blocks") if by_pattern else ():
        if getattr(model, name) is not None:
            yield ("model", name), "has no effect, since the pattern names the kinds of every layer; remove it"
    unless_set = {"ffn_hidden_size": 4 * model.hidden_size, "kv_heads": model.heads}
    for name in (each for each in TYPE_FIELDS if each not in ("mixer", "blocks", "heads", "head_dim", "position")):
        own_values = all(name in type_fields(word, model.layer_types) for word in model.pattern or ())
        if model.pattern and own_values and getattr(model, name) not in (None, unless_set.get(name)):
            yield ("model", name), "has no effect, since every type of layer_types sets it; remove it"
    if {kind for _, *kinds in model.count_layer_types() for kind in kinds} <= {"mlp", "mixture"}:
        for name in (each.removeprefix("model.") for each in _ATTENTION_FIELDS[1:-1]):
            if getattr(model, name) is not None:
                yield ("model", name), "has no effect, since no layer has attention; remove it"
    for word, own in (model.layer_types or {}).items():
        kinds = {kind for each, *kinds in model.count_layer_types() if each == word for kind in kinds}
        attends = any(find_layer_kind(model, kind).SQUARE for kind in kinds)
        needs = {"ffn_hidden_size": "mlp" in kinds, "hash_routing": "mixture" in kinds}
        for name in own if kinds else ():
            if name not in ("mixer", "blocks") and not needs.get(name, attends):
                what = f"has no effect, since layers of type {word} have {' and '.join(sorted(kinds))}; remove it"
                yield ("model", "layer_types", word, name), what
    for name in ("first_dense_layers", "every", "offset") if model.moe and (by_pattern or model.blocks) else ():
        if getattr(model.moe, name) != Moe.model_fields[name].default:
            where = "pattern" if by_pattern else "blocks"
            yield ("model", "moe", name), f"has no effect, since {where} says which layers have experts; remove it"


def _check_documented_kinds(scenario: ScenarioFields, names: Iterable[str]) -> Iterator[KeyProblem]:
    """Yield an error for each of a layer's documented kinds whose formulas have no value on the scenario's ranks."""
    parallel = scenario.parallel
    rank = RankShape(
        scenario.training.micro_batch, tp=parallel.tp, cp=parallel.cp, sequence_parallel=parallel.sequence_parallel,
        cp_states=parallel.cp_states, cp_shares=parallel.cp_shares,
    )  # fmt: skip
    for name in names if not any(_check_tp(scenario)) else ():
        if isinstance(kind := find_layer_kind(scenario.model, name), DocumentedKind):
            try:
                for shape in (rank, RankShape(1)):
                    kind.check(scenario.model, shape)
            except InputError as problem:
                yield ("model", "layer_kinds", name), str(problem)


def _check_single_kind_layers(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield an error for each option that is not modelled with layers that have a single kind."""
    model, what = scenario.model, "is not modelled with layers that have a single kind, such as * or - of a pattern"
    if model.layer_norms == 1 or model.parallel_residual:
        yield ("model", "parallel_residual" if model.parallel_residual else "layer_norms"), f"{what}; remove it"
    if scenario.training.recompute == "operators":
        yield ("training", "recompute"), f"{what}; use none, selective or full"
    if scenario.training.recompute == "full" and scenario.software and scenario.software.checkpoint == "early-stop":
        yield ("software", "checkpoint"), f"{what}; use whole"


def _check_recompute(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    training, model, where = scenario.training, scenario.model, ("training", "recompute_modules")
    moe = model.moe
    absent = unusable_recompute_modules(
        experts=moe is not None,
        shared=moe is not None and moe.shared_width > 0,
        dense=any("mlp" in kinds for kinds in model.count_layer_types()),
        latent=any("latent_attention" in kinds for kinds in model.count_layer_types()),
    )
    for name in training.recompute_modules:
        if name in absent:
            yield where, f"{name} is a part of {absent[name]}, which the model does not have; remove {name}"


def _check_documents(scenario: ScenarioFields, feature: str) -> Iterator[KeyProblem]:
    """Yield an error for masks within documents, with which a feature's attention shrinks unlike causal attention."""
    if scenario.data and scenario.data.attention_lengths:
        yield ("data", "mask"), f"document is not modelled with {feature}; set mask to none"
    elif any(fault.kind == "sequence_lengths" for fault in scenario.faults):
        yield ("faults",), f"sequence_lengths is not modelled with {feature}; remove it"


def _check_tp(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    model, parallel = scenario.model, scenario.parallel
    tp = parallel.tp
    split = {"heads": model.heads} | mlp_widths_split_by_tp(model)
    if model.kv_heads % tp and tp % model.kv_heads:  # more ranks than key-value heads: each keeps a copy of one
        split["kv_heads"] = model.kv_heads
    for kind in dict.fromkeys(kind for _, *kinds in model.count_layer_types() for kind in kinds):
        if (document := find_kind_document(kind, model.layer_kinds)) and document.split:
            sizes = find_kind_sizes(kind, model.layer_kinds)
            split |= {f"layer_kinds.{kind}.{name}": sizes[name] for name in document.split}
    if (encoder := model.encoder) and encoder.split_by_tp:
        split |= {"encoder.heads": encoder.heads, "encoder.ffn_hidden_size": encoder.ffn_hidden_size}
    if parallel.sequence_parallel:
        split |= {"hidden_size": model.hidden_size, "sequence_length": model.sequence_length}
        if tp == 1:
            what = "sequence parallelism needs tp 2 or more, but tp is 1"
            yield ("parallel", "sequence_parallel"), f"{what}; set tp to 2 or more, or sequence_parallel to false"
    undivided = [f"model.{name} {size}" for name, size in split.items() if size % tp]
    if undivided:
        fix = join_or(nearest_divisors(math.gcd(*split.values()), tp))
        yield ("parallel", "tp"), f"tp {tp} does not divide {', '.join(undivided)}; use tp {fix}"


def _check_cp(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    model, parallel, where = scenario.model, scenario.parallel, ("parallel", "cp")
    cp, tp, length = parallel.cp, parallel.tp, scenario.model.sequence_length
    if cp == 1:
        return
    for kind in sorted({kind for _, *kinds in model.count_layer_types() for kind in kinds}):
        document = find_kind_document(kind, model.layer_kinds)
        rule = document.cp if document else None
        if rule and not (rule.states if parallel.cp_states else rule.before):
            lacks = "pass no states" if parallel.cp_states else "do not exchange tokens for heads"
            fix = f"set parallel.cp_states to {str(not parallel.cp_states).lower()}, or cp to 1"
            yield where, f"layers of kind {kind} {lacks}; {fix}"
        for name in rule.split if rule and not parallel.cp_states else ():
            heads = find_kind_sizes(kind, model.layer_kinds)[name] // tp
            if heads % cp:
                what = f"the {heads} {name} of layers of kind {kind} on a tp rank are not divisible by cp {cp}"
                yield where, f"{what}; use cp {join_or(nearest_divisors(max(heads, 1), cp))}"
    if scenario.training.attention == "unfused":
        what = f"cp {cp} computes attention in pieces, which needs a fused kernel, but attention is unfused"
        yield ("training", "attention"), f"{what}; set attention to fused, or cp to 1"
    chunks, sparse = (model.attention_chunk or length) < length, model.mla is not None and model.mla.indexer
    needed = "all_to_all" if chunks else "all_gather" if sparse else parallel.cp_comm
    if parallel.cp_comm != needed:
        what = f"{parallel.cp_comm} is not modelled with model.{'attention_chunk' if chunks else 'mla.indexer'}"
        yield ("parallel", "cp_comm"), f"{what}; use {needed}, or cp 1"
    zigzag = model.causal and parallel.cp_shares == "zigzag"
    shares = 2 * cp if zigzag else cp  # zig-zag: a rank has one of the first and one of the last
    if length % shares:
        fix = join_or(nearest_divisors(length // 2 if zigzag else length, cp))
        what = f"model.sequence_length {length} is not divisible by {'2 x ' if zigzag else ''}cp = {shares}"
        yield where, f"{what}; use cp {fix}"
    elif parallel.sequence_parallel and length // cp % tp:
        what = f"model.sequence_length / cp = {length // cp} is not divisible by tp {tp} (sequence parallelism)"
        yield where, f"{what}; use cp {join_or(nearest_divisors(length // math.gcd(length, tp), cp))}"
    kv_heads, inner = max(model.kv_heads // tp, 1), parallel.cp_inner
    if parallel.cp_comm == "hybrid" and (inner is None or math.gcd(cp, kv_heads) % inner):
        what = f"must divide cp {cp} and the {kv_heads} key-value heads of a tp rank (cp_comm: hybrid)"
        most = math.gcd(cp, kv_heads)
        fix = join_or(nearest_divisors(most, inner)) if inner else f"{most}"
        yield ("parallel", "cp_inner"), f"{inner or 'is not set, and'} {what}; use {fix}"
    traders = count_head_trading_ranks(parallel.cp_comm, cp, inner, model.heads // tp, kv_heads)
    if model.heads // tp % traders:
        fix = join_or(nearest_divisors(max(model.heads // tp, 1), cp))
        each = f"cp {cp}" if traders == cp else f"{traders} ranks of cp {cp}"
        what = f"the {model.heads // tp} heads of a tp rank are not divisible by {each} (cp_comm: {parallel.cp_comm})"
        yield where, f"{what}; use cp {fix}, or cp_comm: ring"


def _check_experts(scenario: ScenarioFields, moe: Moe) -> Iterator[KeyProblem]:
    parallel = scenario.parallel
    yield from _check_expert_dispatch(scenario)
    tp, etp = parallel.tp, parallel.etp or parallel.tp
    if tp > 1 and not parallel.sequence_parallel:
        what = f"without sequence parallelism, all {tp} tp ranks would send the same tokens to the experts"
        yield ("parallel", "sequence_parallel"), f"{what}; set sequence_parallel to true, as Megatron-LM requires"
    if moe.latent_size and moe.shared_width and scenario.overlap.experts:
        what = "is not supported with model.moe.latent_size and shared experts (Megatron-LM rejects both together)"
        yield ("overlap", "experts"), f"{what}; set it to false"
    yield from _check_expert_split(moe, parallel.ep, etp)
    yield from _check_expert_groups(parallel, etp)
    yield from _check_sharded_experts(scenario, parallel.ep * etp, apart=parallel.ep > 1 or etp != tp)


def _check_expert_dispatch(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    how, where = scenario.parallel.expert_dispatch, ("parallel", "expert_dispatch")
    relayed = [name for name in ("sms", "reach") if getattr(how, name) != type(how).model_fields[name].default]
    if relayed and not how.relays_tokens:
        what = f"applies only to dispatchers that relay tokens, but expert_dispatch.kind is {how.kind}"
        yield (*where, relayed[0]), f"{what}; use kind deepep or hybridep, or remove {relayed[0]}"
    if how.relays_tokens and scenario.collectives.detail == "steps":
        yield (*where, "kind"), f"collectives.detail: steps does not support dispatcher {how.kind}; use detail: flow"


def _check_expert_split(moe: Moe, ep: int, etp: int) -> Iterator[KeyProblem]:
    if moe.experts % ep:
        fix = join_or(nearest_divisors(moe.experts, ep))
        yield ("parallel", "ep"), f"ep {ep} does not divide model.moe.experts {moe.experts}; use ep {fix}"
    if moe.expert_ffn_hidden_size % etp:
        what = f"etp {etp} (default: tp) does not divide model.moe.expert_ffn_hidden_size"
        fix = join_or(nearest_divisors(moe.expert_ffn_hidden_size, etp))
        yield ("parallel", "etp"), f"{what} {moe.expert_ffn_hidden_size}; use etp {fix}"


def _check_expert_groups(parallel: Parallel, etp: int) -> Iterator[KeyProblem]:
    tp, ep, cp, dp = parallel.tp, parallel.ep, parallel.cp, parallel.dp
    ranks = tp * cp * dp
    if ranks % (ep * etp):
        split = f" x etp {etp}" if etp > 1 else ""
        what = f"ep {ep}{split} does not divide the {ranks} ranks of a stage (tp {tp} x cp {cp} x dp {dp})"
        fixes = [f"ep {join_or(nearest_divisors(ranks // etp, ep))}"] if ranks % etp == 0 else []
        fixes += [f"etp {join_or(nearest_divisors(ranks // ep, etp))}"] if ranks % ep == 0 else []
        yield ("parallel", "ep"), f"{what}; use {' or '.join(fixes) or f'divisors of {ranks}'}"


def _check_sharded_experts(scenario: ScenarioFields, together: int, *, apart: bool) -> Iterator[KeyProblem]:
    group, tp = scenario.fsdp.shard_group, scenario.parallel.tp
    if apart and group and group * tp % together:
        what = f"shard_group {group} x tp {tp} = {group * tp} is not a multiple of ep x etp = {together}"
        fix = together // math.gcd(together, tp)
        yield ("fsdp", "shard_group"), f"{what}; use a multiple of {fix}, or remove shard_group"
    if apart and scenario.memory.offload.optimizer != "none":
        yield ("memory", "offload", "optimizer"), "is not modelled with experts on ep ranks; set it to none, or ep to 1"
