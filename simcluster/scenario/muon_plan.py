"""What a scenario's optimizer makes of whole matrices, as planning knows it.  Pure functions of a scenario."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, assert_never

from simcluster.devices.device import Device
from simcluster.devices.muon import matrix_passes_seconds, orthogonalized_seconds
from simcluster.devices.updates import pass_seconds
from simcluster.model.matrices import matrices_of
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model, parameters
from simcluster.planning.matrix_update import MatrixOptimizer
from simcluster.planning.parallel import Plan

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


def matrix_optimizer_of(
    scenario: Scenario, device: Device, plan: Plan, recipe: Recipe, bucket: float
) -> MatrixOptimizer | None:  # fmt: skip
    """What updates whole matrices; None under Adam, which knows of none.  ``bucket``: elements of one of gradients."""
    match scenario.training.optimizer:
        case "adam":
            return None
        case "muon":
            pass
        case _:
            assert_never(scenario.training.optimizer)
    muon = scenario.training.muon

    def adam(elements: float) -> float:
        """Of elements among others: without a launch."""
        once, twice = (pass_seconds(device, each * elements, "optimizer", recipe=recipe) for each in (1, 2))
        return twice - once

    return MatrixOptimizer(
        model=scenario.model,
        plan=plan,
        distribute=muon.distribute if scenario.parallel.zero else "none",
        gathered_tp={"blockwise": False, "duplicated": True}[muon.tp_mode],
        bucket=bucket if scenario.overlap.grad_reduce else math.inf,  # Megatron-LM: else there is one
        moment=recipe.moment,
        orthogonalized=lru_cache(partial(orthogonalized_seconds, device, iterations=muon.iterations)),
        passes=partial(matrix_passes_seconds, device, recipe=recipe),
        adam=adam,
    )


def matrix_share(model: Model) -> float:
    """The part of a model's parameters that is in its layers' matrices."""
    each = [matrices_of(model, layer, tp=1, ep=1, etp=1) for layer in range(model.layers)]
    return sum(matrix.elements * matrix.count for layer in each for matrix in layer) / parameters(model).total
