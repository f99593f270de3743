"""Rules about the model on the grid of ranks: what tensor, sequence and context parallelism split must divide.

Pure functions of a scenario, called by ``rules``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.documents.diagnostics import Complaint, listed
from simcluster.documents.suggestions import near_divisors
from simcluster.model.recomputed import absent_modules
from simcluster.model.shards import split_widths

if TYPE_CHECKING:
    from simcluster.model.mixture import Moe
    from simcluster.scenario.fields import ScenarioFields
    from simcluster.scenario.sections import Parallel


def model_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Every broken rule."""
    yield from _tensor(scenario)
    yield from _context(scenario)
    yield from _experts(scenario)
    yield from _recomputed(scenario)
    yield from _predicting(scenario)
    for name in ("moe", "mla"):
        if scenario.training.recompute == "operators" and getattr(scenario.model, name):
            what = f"operators keeps every second product of a plain layer, and the model has {name}"
            yield ("training", "recompute"), f"{what}; use none, selective or full"


def _predicting(scenario: ScenarioFields) -> Iterator[Complaint]:
    """What shards parameters knows the layers of multi-token prediction."""
    if scenario.model.predicting and scenario.parallel.zero == 3:
        what = "layers of multi-token prediction are not modelled with parameters sharded by ZeRO 3"
        yield ("model", "mtp_layers"), f"{what}; use zero 1 or 2, or leave mtp_layers out"


def _recomputed(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Modules that run again are in the model."""
    training, model, where = scenario.training, scenario.model, ("training", "recompute_modules")
    if training.recompute != "selective":
        return
    moe = model.moe
    absent = absent_modules(
        experts=moe is not None,
        shared=moe is not None and moe.shared_width > 0,
        dense=moe is None or not all(moe.is_in(layer) for layer in range(model.layers)),
        latent=model.mla is not None,
    )
    for name in training.recompute_modules:
        if name in absent:
            yield where, f"{name} is a part of {absent[name]}, which the model has not; leave it out"


def _tensor(scenario: ScenarioFields) -> Iterator[Complaint]:
    """What tensor and sequence parallelism split must divide."""
    model, parallel = scenario.model, scenario.parallel
    tp = parallel.tp
    split = {"heads": model.heads} | split_widths(model)
    if model.kv_heads % tp and tp % model.kv_heads:  # more ranks than key-value heads: each keeps a copy of one
        split["kv_heads"] = model.kv_heads
    if parallel.sequence_parallel:
        split |= {"hidden_size": model.hidden_size, "sequence_length": model.sequence_length}
        if tp == 1:
            what = "sequence parallelism splits over tp ranks and needs two or more, and tp is 1"
            yield ("parallel", "sequence_parallel"), f"{what}; set tp to 2 or more, or sequence_parallel to false"
    undivided = [f"model.{name} {size}" for name, size in split.items() if size % tp]
    if undivided:
        fix = listed(near_divisors(math.gcd(*split.values()), tp))
        yield ("parallel", "tp"), f"tp {tp} does not divide {', '.join(undivided)}; use tp {fix}"


def _context(scenario: ScenarioFields) -> Iterator[Complaint]:
    """What context parallelism splits must divide, and the attention must come in pieces."""
    model, parallel, where = scenario.model, scenario.parallel, ("parallel", "cp")
    cp, tp, length = parallel.cp, parallel.tp, scenario.model.sequence_length
    if cp == 1:
        return
    if scenario.training.attention == "unfused":
        what = f"cp {cp} works on attention in pieces, which only a fused kernel gives; training.attention is unfused"
        yield ("training", "attention"), f"{what}; set it to fused, or cp to 1"
    zigzag = model.causal and parallel.cp_shares == "zigzag"
    shares = 2 * cp if zigzag else cp  # zig-zag: a rank has one of the first and one of the last
    if length % shares:
        fix = listed(near_divisors(length // 2 if zigzag else length, cp))
        what = f"cp {cp} cuts model.sequence_length {length} in {shares} equal pieces, and that does not go"
        yield where, f"{what}; use cp {fix}"
    elif parallel.sequence_parallel and length // cp % tp:
        what = f"sequence parallelism splits the {length // cp} tokens of a sequence on a rank over tp {tp}"
        yield where, f"{what}, which does not go; use cp {listed(near_divisors(length // math.gcd(length, tp), cp))}"
    if parallel.cp_comm == "all_to_all" and model.heads // tp % cp:
        fix = listed(near_divisors(max(model.heads // tp, 1), cp))
        what = f"all_to_all gives each of cp {cp} ranks as many of the {model.heads // tp} heads of a tp rank"
        yield where, f"{what}, and that does not go; use cp {fix}, or cp_comm: ring"


def _experts(scenario: ScenarioFields) -> Iterator[Complaint]:
    """There are experts to share, on ranks that there are, by mechanisms that know of them."""
    moe, parallel = scenario.model.moe, scenario.parallel
    if moe is None:
        return
    yield from _dispatch(scenario)
    tp, etp = parallel.tp, parallel.etp or parallel.tp
    if tp > 1 and not parallel.sequence_parallel:
        what = f"tp {tp} ranks would each send the same tokens to the experts"
        yield ("parallel", "sequence_parallel"), f"{what}; set sequence_parallel to true, as Megatron-LM demands"
    yield from _split_experts(moe, parallel.ep, etp)
    yield from _expert_groups(parallel, etp)
    yield from _experts_apart(scenario, parallel.ep * etp, apart=parallel.ep > 1 or etp != tp)


def _dispatch(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Keys of the dispatcher that say something, and collectives that can be played as it makes them."""
    how, where = scenario.parallel.expert_dispatch, ("parallel", "expert_dispatch")
    relayed = [name for name in ("sms", "reach") if getattr(how, name) != type(how).model_fields[name].default]
    if relayed and not how.relays:
        what = f"{relayed[0]} is of tokens that are relayed, and expert_dispatch.kind is {how.kind}"
        yield (*where, relayed[0]), f"{what}; use deepep or hybridep, or leave it out"
    if how.relays and scenario.collectives.detail == "steps":
        yield (*where, "kind"), f"{how.kind} is under way on all links at once, and has no rounds; use detail: flow"


def _split_experts(moe: Moe, ep: int, etp: int) -> Iterator[Complaint]:
    """Every rank of ep has as many experts, every rank of etp as much of each."""
    if moe.experts % ep:
        fix = listed(near_divisors(moe.experts, ep))
        yield ("parallel", "ep"), f"ep {ep} does not divide model.moe.experts {moe.experts}; use ep {fix}"
    if moe.expert_ffn_hidden_size % etp:
        what = f"etp {etp} (left out: as tp) does not divide model.moe.expert_ffn_hidden_size"
        fix = listed(near_divisors(moe.expert_ffn_hidden_size, etp))
        yield ("parallel", "etp"), f"{what} {moe.expert_ffn_hidden_size}; use etp {fix}"


def _expert_groups(parallel: Parallel, etp: int) -> Iterator[Complaint]:
    """The ranks of a stage, tp x cp x dp for all else, are etp x ep x (those that hold the same) for experts."""
    tp, ep, cp, dp = parallel.tp, parallel.ep, parallel.cp, parallel.dp
    ranks = tp * cp * dp
    if ranks % (ep * etp):
        split = f" x etp {etp}" if etp > 1 else ""
        what = f"groups of ep {ep}{split} do not go into the {ranks} ranks of a stage (tp {tp} x cp {cp} x dp {dp})"
        fixes = [f"ep {listed(near_divisors(ranks // etp, ep))}"] if ranks % etp == 0 else []
        fixes += [f"etp {listed(near_divisors(ranks // ep, etp))}"] if ranks % ep == 0 else []
        yield ("parallel", "ep"), f"{what}; use {' or '.join(fixes) or 'divisors of it'}"


def _experts_apart(scenario: ScenarioFields, together: int, *, apart: bool) -> Iterator[Complaint]:
    """What is not for experts that are shared out otherwise than all else: each group of ep x etp ``together``."""
    group, tp = scenario.fsdp.shard_group, scenario.parallel.tp
    if apart and group and group * tp % together:
        what = f"shard groups of {group} x tp {tp} ranks do not hold whole groups of ep x etp = {together}"
        fix = together // math.gcd(together, tp)
        yield ("fsdp", "shard_group"), f"{what}; use a multiple of {fix}, or leave it out"
    if apart and scenario.memory.offload.optimizer != "none":
        yield ("memory", "offload", "optimizer"), "is not modelled for experts on ep ranks; use none, or ep 1"
