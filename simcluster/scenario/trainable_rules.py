"""Rules of ``training.trainable``: adapters and frozen parts that exist, and what they are modelled with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.documents.diagnostics import KeyProblem, did_you_mean
from simcluster.model.adapters import list_adapters
from simcluster.model.layers import layer_kinds
from simcluster.planning.owned_parameters import parameters_of_layers
from simcluster.planning.rank_grid import ParallelPlan

if TYPE_CHECKING:
    from simcluster.model.trainable import Trainable
    from simcluster.scenario.scenario_fields import ScenarioFields


def check_trained_parts(scenario: ScenarioFields, trainable: Trainable) -> Iterator[KeyProblem]:
    """Yield an error for frozen parts that do not exist, and for what is not modelled with frozen weights."""
    model, parallel, where = scenario.model, scenario.parallel, ("training", "trainable")
    kinds = {kind.name for layer, _ in model.count_layer_types().values() for kind in layer_kinds(model, layer)}
    known = {"embedding", "lm_head", *kinds}
    if absent := next((part for part in trainable.frozen or () if part not in known), None):
        what = f"the model has no part {absent!r}{did_you_mean(absent, known)}"
        yield (*where, "frozen"), f"{what}; use some of {', '.join(sorted(known))}"
    if model.encoder:
        yield where, "frozen weights are not modelled with a vision encoder; remove model.encoder, or trainable"
    if model.mtp_layers:
        yield where, "frozen weights are not modelled with multi-token prediction; remove model.mtp_layers"
    if model.tied_embeddings and model.freezes("embedding") != model.freezes("lm_head"):
        yield where, "embedding and lm_head are one matrix (model.tied_embeddings); freeze both, or neither"
    first, last = trainable.frozen_layers or (0, -1)
    if last >= model.layers:
        yield (*where, "frozen_layers"), f"layer {last} is not one of 0 to {model.layers - 1}; use those"
        return
    passed = last + 1 if model.freezes("embedding") and first == 0 else 0  # layers that no gradients reach
    if passed and parallel.pp > 1:
        what = "layers before the first trained weight have no backward, which is modelled only without a pipeline"
        yield (*where, "frozen_layers"), f"{what}; set pp to 1, or train the embedding"
    trained = passed < model.layers and parameters_of_layers(model, ParallelPlan(), [passed]).total
    if model.freezes("embedding") and not trained:
        what = f"layer {min(passed, model.layers - 1)} has nothing to train, so its backward would stop"
        yield where, f"{what}, which is modelled for frozen_layers from 0 on; train a part of it, or the embedding"
    if trainable.rank is not None:
        yield from _check_adapters(scenario, trainable, trainable.rank)


def _check_adapters(scenario: ScenarioFields, lora: Trainable, rank: int) -> Iterator[KeyProblem]:
    model, parallel, where = scenario.model, scenario.parallel, ("training", "trainable")
    adapters = (each for layer, _ in model.count_layer_types().values() for kind in layer_kinds(model, layer)
                for each in list_adapters(model.layer_model(layer), kind.name))  # fmt: skip
    adapted = {each.name.removeprefix(f"{each.base}_") for each in adapters}
    if absent := next((each for each in lora.modules if each not in adapted), None):
        what = f"no layer has a matmul {absent} that can have an adapter (those of attention and dense MLPs can)"
        yield (*where, "modules"), f"{what}; remove {absent}"
    for name, size in (("rank", rank), ("model.hidden_size", model.hidden_size)):
        if size % parallel.tp:
            what = f"tp {parallel.tp}, over which Megatron splits adapters, does not divide {name} {size}"
            yield (*where, "rank"), f"{what}; use a multiple of {parallel.tp}"
    if lora.kernels != "separate" and parallel.tp > 1:
        yield (*where, "kernels"), f"{lora.kernels} is modelled only with tp 1; use separate"
    if lora.exchange == "all_to_all" and not parallel.sequence_parallel:
        yield (*where, "exchange"), "all_to_all is for sequence parallelism; set parallel.sequence_parallel, or gather"
    if scenario.training.recompute == "operators":
        yield ("training", "recompute"), "operators is not modelled with adapters; use none, selective or full"
    if lora.base_weights and (parallel.zero == 3 or not scenario.training.precision.endswith("16-mixed")):
        what = f"{lora.base_weights} is modelled with matmuls in 16 bits and zero 0 to 2"
        yield (*where, "base_weights"), f"{what}; change precision and zero, or remove base_weights"
