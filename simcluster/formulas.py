"""Closed forms of parameters, memory, FLOP, traffic, failures and losses, to compare with simulated numbers."""

from simcluster.longrun.budget.critical_batch import CriticalBatch, kaplan_critical_batch
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.catalogue import watched_failures
from simcluster.longrun.closed_forms import best_interval, daly, efficiency, first_order_efficiency, none_left, young
from simcluster.model.flops import model_flops_per_sequence, torchtitan_flops_per_sequence
from simcluster.model.layers import RankShape, parameters, stage_parameters_per_tp_rank
from simcluster.model.memory import activation_parts
from simcluster.model.packing import LognormalLengths, mean_of_padded
from simcluster.model.recipes import recipe_named, state_bytes
from simcluster.studies.bench.collective_loads import busiest_links

__all__ = [
    "CriticalBatch", "LognormalLengths", "RankShape", "activation_parts", "best_interval", "busiest_links", "daly",
    "efficiency", "first_order_efficiency", "kaplan_critical_batch", "loss_law", "mean_of_padded",
    "model_flops_per_sequence", "none_left", "parameters", "recipe_named", "stage_parameters_per_tp_rank",
    "state_bytes", "torchtitan_flops_per_sequence", "watched_failures", "young",
]  # fmt: skip
