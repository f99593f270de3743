"""Conditions on scenarios that decide whether a field has an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.model.context_parallel import count_head_trading_ranks
from simcluster.model.kernel_choices import CONTEXT_METHODS
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.scenario.sections import HostOffload

if TYPE_CHECKING:
    from simcluster.scenario.scenario_fields import ScenarioFields


def has_replicas(scenario: ScenarioFields) -> bool:
    """Return whether several ranks hold the same parameters."""
    plan = plan_of(scenario, schedule_of(scenario))
    return plan.replicas > 1 or plan.expert_replicas > 1 or bool(plan.copies)


def has_several_slices(scenario: ScenarioFields) -> bool:
    """Return whether the model is cut into several slices."""
    return len(schedule_of(scenario).routes[0]) > 1


def schedule_has_effect(scenario: ScenarioFields) -> bool:
    """Return whether the schedule orders microbatches in another way than 1F1B would."""
    if scenario.parallel.pp > 1:
        return True
    plain = scenario.pipeline.model_copy(update={"schedule": "1f1b"})
    return schedule_of(scenario).rows != schedule_of(scenario.model_copy(update={"pipeline": plain})).rows


def has_custom_axis_order(scenario: ScenarioFields) -> bool:
    """Return whether the axes with several ranks are in another order than by default."""
    parallel = scenario.parallel
    given, usual = (
        [axis for axis in order if getattr(parallel, axis) > 1]
        for order in (parallel.order, type(parallel).model_fields["order"].default)
    )
    return given != usual


def has_random_draws(scenario: ScenarioFields) -> bool:
    """Return whether anything in the scenario is drawn at random."""
    data = scenario.data
    drawn = data is not None and (data.documents is not None or (data.loader is not None and data.loader.is_random))
    return drawn or scenario.run is not None or any(fault.is_random for fault in scenario.faults)


def has_traffic(scenario: ScenarioFields) -> bool:
    """Return whether any bytes travel over links."""
    return scenario.gpus > 1 or scenario.memory.offload != HostOffload() or scenario.checkpoint is not None


def recomputes_attention_core(scenario: ScenarioFields) -> bool:
    """Return whether recomputation repeats more than an attention core that the software spares."""
    training, software = scenario.training, scenario.software
    only_core = training.recompute == "selective" and training.recompute_modules == ("core_attn",)
    spared = software is not None and software.selective == "unfused-core" and training.attention == "fused"
    kinds = {kind for _, *kinds in scenario.model.count_layer_types() for kind in kinds}
    return not (only_core and (spared or not kinds & {"attention", "latent_attention", "sparse_attention"}))


def has_overlap(scenario: ScenarioFields) -> bool:
    """Return whether any communication overlaps with compute."""
    parallel, overlap, outer = scenario.parallel, scenario.overlap, scenario.training.outer
    in_layers = (
        (parallel.tp > 1 and (parallel.sequence_parallel or overlap.tensor or overlap.tensor_pieces > 1))
        or (parallel.cp > 1 and overlaps_cp_traffic(scenario))
        or (parallel.ep > 1 and overlap.experts)
        or (overlap.pairs and max(parallel.tp, parallel.cp, parallel.ep) > 1)
    )
    of_parameters = overlap.grad_reduce or overlap.param_gather or parallel.zero == 3
    return in_layers or parallel.pp > 1 or bool(outer and outer.beside) or (of_parameters and has_replicas(scenario))


def overlaps_cp_traffic(scenario: ScenarioFields) -> bool:
    """Return whether traffic of context parallelism overlaps with attention."""
    parallel, software = scenario.parallel, scenario.software
    tp, chosen = parallel.tp, (parallel.cp_comm, parallel.cp, parallel.cp_inner)
    models = [scenario.model.layer_model(layer) for layer, _ in scenario.model.count_layer_types().values()]
    traders = [count_head_trading_ranks(*chosen, own.heads // tp, max(own.kv_heads // tp, 1)) for own in models]
    if all(ranks == parallel.cp for ranks in traders):
        return False  # whole sequences of fewer heads
    if software is not None and software.ring == "torch":
        return software.kernels != "compiled"
    return CONTEXT_METHODS[parallel.cp_comm].keys == "ring"
