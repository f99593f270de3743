"""Closed-form expressions for parameters, memory, FLOPs, traffic, failures and loss, to check simulations against."""

from simcluster.longrun.budget.critical_batch import CriticalBatch, kaplan_critical_batch
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.closed_forms import (
    best_interval,
    daly_interval,
    first_order_efficiency,
    kept_share,
    shortage_probability,
    young_interval,
)
from simcluster.longrun.failure_catalogue import published_failures
from simcluster.model.flops import model_flops_per_sequence, torchtitan_flops_per_sequence
from simcluster.model.layers import RankShape, parameters, stage_parameters_per_tp_rank
from simcluster.model.memory import activation_bytes
from simcluster.model.packing import LognormalLengths, mean_padded_tokens
from simcluster.model.recipes import recipe_named, state_bytes
from simcluster.studies.bench.collective_loads import busiest_links_of_collective

__all__ = [
    "CriticalBatch", "LognormalLengths", "RankShape", "activation_bytes", "best_interval",
    "busiest_links_of_collective", "daly_interval", "first_order_efficiency", "kaplan_critical_batch", "kept_share",
    "loss_law", "mean_padded_tokens", "model_flops_per_sequence", "parameters", "published_failures", "recipe_named",
    "shortage_probability", "stage_parameters_per_tp_rank", "state_bytes", "torchtitan_flops_per_sequence",
    "young_interval",
]  # fmt: skip
