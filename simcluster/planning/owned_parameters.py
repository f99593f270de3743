"""Parameters that a rank holds, by who else holds them: they decide what is reduced and gathered over which ranks.

What all ranks of dp x cp have alike is summed over the axis "dp".  An expert of a mixture is only on one rank of each
ep group, and its gradients are summed over "edp", the ranks that hold the same experts (MODELLING.md B.1; Megatron-LM
``expert_data_parallel``); where those are the same ranks, experts count as common.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simcluster.model.parameters import (
    expert_parameters_per_rank,
    layer_parameters_per_tp_rank,
    lm_head_parameters_per_tp_rank,
    prediction_parameters,
    stage_parameters_per_tp_rank,
)
from simcluster.model.transformer import Model
from simcluster.planning.parallel import Plan


@dataclass(frozen=True, slots=True)
class OwnedParameters:
    """Parameters on one rank: the ``common`` ones that all of dp x cp have, and those of its ``experts``."""

    common: float = 0.0
    experts: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.common + self.experts

    def __add__(self, other: OwnedParameters) -> OwnedParameters:
        return OwnedParameters(self.common + other.common, self.experts + other.experts)

    def per_replica(self, plan: Plan) -> float:
        """The rank's part, where each kind is shared by all ranks that hold it."""
        return self.common / plan.replicas + self.experts / plan.expert_replicas

    def calls(self, plan: Plan, element_bytes: float) -> list[tuple[str, float]]:
        """(axis, bytes) of what is summed over, or gathered from, all ranks that hold it."""
        found = [("dp", self.common)] if plan.replicas > 1 and self.common else []
        found += [("edp", self.experts)] if plan.expert_replicas > 1 and self.experts else []
        return [(axis, element_bytes * parameters) for axis, parameters in found]


def of_layers(model: Model, plan: Plan, layers: Iterable[int]) -> OwnedParameters:
    """What a rank holds of these layers."""
    found = OwnedParameters()
    known: dict[tuple[str, ...], OwnedParameters] = {}
    for layer in layers:
        kind = model.kinds(layer)
        if kind not in known:
            known[kind] = OwnedParameters(layer_parameters_per_tp_rank(model, plan.tp, layer))
            if model.has_experts(layer):
                experts = expert_parameters_per_rank(model, layer, ep=plan.ep, etp=plan.expert_tp)
                known[kind] += OwnedParameters(0.0, experts) if plan.experts_apart else OwnedParameters(experts)
        found += known[kind]
    return found


def of_stage(model: Model, plan: Plan, layers: Iterable[int], *, first: bool, last: bool) -> OwnedParameters:
    """What a rank holds of these layers, of the embedding (``first``) and of the LM head (``last``)."""
    ends = OwnedParameters(stage_parameters_per_tp_rank(model, plan.tp, layers=0, first=first, last=last))
    held = of_layers(model, plan, layers) + ends
    return held + of_predicting(model, plan, first=first) if last and model.mtp_layers else held


def of_predicting(model: Model, plan: Plan, *, first: bool) -> OwnedParameters:
    """What a rank with the LM head holds of multi-token prediction: its layers, their projections and norms, and a copy
    of the embedding unless it is there already, as the ``first`` stage's or as a tied LM head."""
    table = 0 if first or model.tied_embeddings else lm_head_parameters_per_tp_rank(model, plan.tp)
    own = table + len(model.predicting) * prediction_parameters(model, plan.tp)
    return of_layers(model, plan, model.predicting) + OwnedParameters(own)
