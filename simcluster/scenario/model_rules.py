"""Rules on the model and the grid of ranks: divisibility by tp, cp, ep and pp, and supported schedules.

Pure functions of a scenario, called by ``rules``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint, did_you_mean, listed
from simcluster.documents.kinds import find_unmodelled_values
from simcluster.documents.own_words import names_function
from simcluster.documents.suggestions import near_divisors
from simcluster.model.choices import CONTEXT_METHODS, absent_modules
from simcluster.model.layers import LAYER_KINDS
from simcluster.model.transformer import split_widths
from simcluster.scenario.schedule_files import is_csv
from simcluster.scenario.schedule_plan import AUTO, copies_of, schedule_of, slices_of
from simcluster.schedules import SCHEDULES, Schedule, schedules_with
from simcluster.schedules.specs import Rows

if TYPE_CHECKING:
    from simcluster.model.mixture import Moe
    from simcluster.scenario.fields import ScenarioFields
    from simcluster.scenario.sections import Parallel


def check_model(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Yield every violated rule on the model's dimensions and layers."""
    yield from _check_tp(scenario)
    if scenario.parallel.cp > 1:
        yield from _check_cp(scenario)
    if scenario.model.moe:
        yield from _check_experts(scenario, scenario.model.moe)
    if scenario.training.recompute == "selective":
        yield from _check_recompute(scenario)
    if scenario.model.mtp_layers and scenario.parallel.zero == 3:
        what = "layers of multi-token prediction are not modelled with parameters sharded by ZeRO 3"
        yield ("model", "mtp_layers"), f"{what}; use zero 1 or 2, or remove mtp_layers"
    mixer, known = scenario.model.mixer, [word for word, kind in LAYER_KINDS.items() if kind.MIXES]
    if mixer is not None and mixer not in known:
        near = did_you_mean(mixer, known)
        yield ("model", "mixer"), f"{mixer!r} is not a layer kind that mixes tokens{near}; known: {', '.join(known)}"
        return
    for word in dict.fromkeys(word for kinds in scenario.model.kinds_of_layers for word in kinds):
        yield from find_unmodelled_values(f"layers of kind {word}", LAYER_KINDS[word].MODELLED_WITH, scenario)


def _check_recompute(scenario: ScenarioFields) -> Iterator[Complaint]:
    training, model, where = scenario.training, scenario.model, ("training", "recompute_modules")
    moe = model.moe
    absent = absent_modules(
        experts=moe is not None,
        shared=moe is not None and moe.shared_width > 0,
        dense=moe is None or not all(moe.is_moe_layer(layer) for layer in range(model.layers)),
        latent=model.mla is not None,
    )
    for name in training.recompute_modules:
        if name in absent:
            yield where, f"{name} is a part of {absent[name]}, which the model does not have; remove it"


def _check_tp(scenario: ScenarioFields) -> Iterator[Complaint]:
    model, parallel = scenario.model, scenario.parallel
    tp = parallel.tp
    split = {"heads": model.heads} | split_widths(model)
    if model.kv_heads % tp and tp % model.kv_heads:  # more ranks than key-value heads: each keeps a copy of one
        split["kv_heads"] = model.kv_heads
    if parallel.sequence_parallel:
        split |= {"hidden_size": model.hidden_size, "sequence_length": model.sequence_length}
        if tp == 1:
            what = "sequence parallelism needs tp 2 or more, and tp is 1"
            yield ("parallel", "sequence_parallel"), f"{what}; set tp to 2 or more, or sequence_parallel to false"
    undivided = [f"model.{name} {size}" for name, size in split.items() if size % tp]
    if undivided:
        fix = listed(near_divisors(math.gcd(*split.values()), tp))
        yield ("parallel", "tp"), f"tp {tp} does not divide {', '.join(undivided)}; use tp {fix}"


def _check_cp(scenario: ScenarioFields) -> Iterator[Complaint]:
    model, parallel, where = scenario.model, scenario.parallel, ("parallel", "cp")
    cp, tp, length = parallel.cp, parallel.tp, scenario.model.sequence_length
    if scenario.training.attention == "unfused":
        what = f"cp {cp} computes attention in pieces, which needs a fused kernel; training.attention is unfused"
        yield ("training", "attention"), f"{what}; set it to fused, or cp to 1"
    zigzag = model.causal and parallel.cp_shares == "zigzag"
    shares = 2 * cp if zigzag else cp  # zig-zag: a rank has one of the first and one of the last
    if length % shares:
        fix = listed(near_divisors(length // 2 if zigzag else length, cp))
        what = f"model.sequence_length {length} is not divisible by {'2 x ' if zigzag else ''}cp = {shares}"
        yield where, f"{what}; use cp {fix}"
    elif parallel.sequence_parallel and length // cp % tp:
        what = f"model.sequence_length / cp = {length // cp} is not divisible by tp {tp} (sequence parallelism)"
        yield where, f"{what}; use cp {listed(near_divisors(length // math.gcd(length, tp), cp))}"
    traders = CONTEXT_METHODS[parallel.cp_comm].traders(model.heads // tp, max(model.kv_heads // tp, 1), cp)
    if model.heads // tp % traders:
        fix = listed(near_divisors(max(model.heads // tp, 1), cp))
        each = f"cp {cp}" if traders == cp else f"{traders} ranks of cp {cp}"
        what = f"the {model.heads // tp} heads of a tp rank are not divisible by {each} ({parallel.cp_comm})"
        yield where, f"{what}; use cp {fix}, or cp_comm: ring"


def _check_experts(scenario: ScenarioFields, moe: Moe) -> Iterator[Complaint]:
    parallel = scenario.parallel
    yield from _check_dispatch(scenario)
    tp, etp = parallel.tp, parallel.etp or parallel.tp
    if tp > 1 and not parallel.sequence_parallel:
        what = f"tp {tp} ranks would each send the same tokens to the experts"
        yield ("parallel", "sequence_parallel"), f"{what}; set sequence_parallel to true, as Megatron-LM requires"
    yield from _check_expert_split(moe, parallel.ep, etp)
    yield from _check_expert_groups(parallel, etp)
    yield from _check_separate_experts(scenario, parallel.ep * etp, apart=parallel.ep > 1 or etp != tp)


def _check_dispatch(scenario: ScenarioFields) -> Iterator[Complaint]:
    how, where = scenario.parallel.expert_dispatch, ("parallel", "expert_dispatch")
    relayed = [name for name in ("sms", "reach") if getattr(how, name) != type(how).model_fields[name].default]
    if relayed and not how.relays:
        what = f"{relayed[0]} is for relayed tokens, and expert_dispatch.kind is {how.kind}"
        yield (*where, relayed[0]), f"{what}; use deepep or hybridep, or remove it"
    if how.relays and scenario.collectives.detail == "steps":
        yield (*where, "kind"), f"{how.kind} uses all links at once and has no rounds; use detail: flow"


def _check_expert_split(moe: Moe, ep: int, etp: int) -> Iterator[Complaint]:
    if moe.experts % ep:
        fix = listed(near_divisors(moe.experts, ep))
        yield ("parallel", "ep"), f"ep {ep} does not divide model.moe.experts {moe.experts}; use ep {fix}"
    if moe.expert_ffn_hidden_size % etp:
        what = f"etp {etp} (default: tp) does not divide model.moe.expert_ffn_hidden_size"
        fix = listed(near_divisors(moe.expert_ffn_hidden_size, etp))
        yield ("parallel", "etp"), f"{what} {moe.expert_ffn_hidden_size}; use etp {fix}"


def _check_expert_groups(parallel: Parallel, etp: int) -> Iterator[Complaint]:
    tp, ep, cp, dp = parallel.tp, parallel.ep, parallel.cp, parallel.dp
    ranks = tp * cp * dp
    if ranks % (ep * etp):
        split = f" x etp {etp}" if etp > 1 else ""
        what = f"ep {ep}{split} does not divide the {ranks} ranks of a stage (tp {tp} x cp {cp} x dp {dp})"
        fixes = [f"ep {listed(near_divisors(ranks // etp, ep))}"] if ranks % etp == 0 else []
        fixes += [f"etp {listed(near_divisors(ranks // ep, etp))}"] if ranks % ep == 0 else []
        yield ("parallel", "ep"), f"{what}; use {' or '.join(fixes) or 'divisors of it'}"


def _check_separate_experts(scenario: ScenarioFields, together: int, *, apart: bool) -> Iterator[Complaint]:
    group, tp = scenario.fsdp.shard_group, scenario.parallel.tp
    if apart and group and group * tp % together:
        what = f"shard groups of {group} x tp {tp} ranks are not a multiple of ep x etp = {together}"
        fix = together // math.gcd(together, tp)
        yield ("fsdp", "shard_group"), f"{what}; use a multiple of {fix}, or remove it"
    if apart and scenario.memory.offload.optimizer != "none":
        yield ("memory", "offload", "optimizer"), "is not modelled for experts on ep ranks; use none, or ep 1"


def _ends_share_stages(schedule: Schedule, copies: tuple[tuple[int, ...], ...]) -> bool:
    first, last = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    if copies:
        return any(first in stages and last in stages for stages in copies)
    return (first, last) in ((0, schedule.num_stages - 1), (schedule.num_stages - 1, 0))


def check_schedule_name(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Yield an error unless the schedule exists and has the stages and chunks that it needs."""
    what, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    if isinstance(what, Rows):
        return
    name = what if isinstance(what, str) else what.name
    if name not in SCHEDULES:
        yield ("pipeline", "schedule"), _unknown_schedule(name)
    elif chunks > 1 and not SCHEDULES[name].takes_chunks:
        problem = f"{chunks} chunks need the schedule {listed(schedules_with('takes_chunks'))}, but it is {name}"
        yield ("pipeline", "chunks"), f"{problem}; remove chunks, or change the schedule"
    elif SCHEDULES[name].in_groups and scenario.parallel.pp == 1:
        problem = f"{name} interleaves stages and needs pp 2 or more, and parallel.pp is 1"
        yield ("pipeline", "schedule"), f"{problem}; use pp 2 or more, or the schedule 1f1b"


def _unknown_schedule(name: str) -> str:
    if is_csv(name) or names_function(name):
        return f"{name} is read from a file, which needs a scenario that was loaded (simcluster.scenario)"
    return f"unknown schedule {name!r}{did_you_mean(name, SCHEDULES)}; known: {', '.join(SCHEDULES)}"


def check_stage_layers(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Yield an error unless layers divide evenly over stages and chunks, where no other division is set."""
    layers, pp, chunks = scenario.model.layers, scenario.parallel.pp, scenario.pipeline.chunks
    if scenario.pipeline.layers_per_stage != "even" or isinstance(scenario.pipeline.schedule, Rows):
        return
    if layers % pp:
        what = f"pp {pp} does not divide model.layers {layers}; every stage must have the same number"
        yield ("parallel", "pp"), f"{what}: use pp {listed(near_divisors(layers, pp))}, {AUTO}"
    elif layers % (pp * chunks):
        what = f"pp {pp} x chunks {chunks} = {pp * chunks} does not divide model.layers {layers}"
        fix = listed(near_divisors(layers // pp, chunks))
        yield ("pipeline", "chunks"), f"{what}; every chunk must have the same number: use chunks {fix}, {AUTO}"


def check_order(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Yield violated rules of the finished schedule: microbatches, copies of the model, layers per slice."""
    try:
        schedule = schedule_of(scenario)
        copies = copies_of(schedule)
    except InputError as error:
        yield ("pipeline", "schedule"), str(error)
        return
    zero = scenario.parallel.zero
    if copies and zero > 1:
        what = f"ZeRO {zero} is not modelled with {schedule.name}, which has several copies of the model"
        yield ("parallel", "zero"), f"{what}; use 0 or 1, or a schedule with one copy, such as dualpipe-v"
    if scenario.overlap.pairs:
        yield from _check_pairs(scenario, schedule)
    ends = schedule.routes[0][0][0], schedule.routes[0][-1][0]
    shared = scenario.model.tied_embeddings or scenario.model.prediction_layers
    if shared and ends[0] != ends[1] and not _ends_share_stages(schedule, copies):
        what = f"{schedule.name} has the embedding on stage {ends[0]} and the LM head on stage {ends[1]}"
        yield (
            ("pipeline", "schedule"),
            f"{what}; tied embeddings, and any with mtp_layers, need the first and last stage, or one of both: 1f1b",
        )
    try:
        slices_of(scenario, schedule)
    except InputError as error:
        even = scenario.pipeline.layers_per_stage == "even"
        yield ("pipeline", "schedule" if even else "layers_per_stage"), str(error)


def _check_pairs(scenario: ScenarioFields, schedule: Schedule) -> Iterator[Complaint]:
    where = ("overlap", "pairs")
    if not any(schedule.fused):
        what = f"{schedule.name} on pp {scenario.parallel.pp} has no fused pairs [F|B] whose halves could overlap"
        fix = "dualpipe, dualpipe-v or {name: interleaved, pairs: true} on pp 2 or more"
        yield where, f"{what}; use {fix}, or set it to false"
    elif scenario.parallel.zero == 3:
        what = "zero 3 gathers a stage's parameters for one action at a time, not for two at once"
        yield where, f"{what}; use zero 0, 1 or 2, or set it to false"
