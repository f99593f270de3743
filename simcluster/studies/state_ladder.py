"""Model state per GPU (bytes) for each ZeRO stage, with the fewest GPUs and the largest model that fit.

Model state is weights, gradients and optimizer, counted by a recipe, without activations.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import parse_count, parse_whole_number
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import check_arguments
from simcluster.model.recipes import Recipe, recipe_named, state_bytes

if TYPE_CHECKING:
    from simcluster.base.tables import DataFrame

DEFAULT_RECIPE = "mixed-18"
"""The recipe of a scenario that names none and trains in bf16."""


@dataclass(frozen=True, slots=True)
class ZeroStage:
    """Bytes of model state per GPU for one ZeRO stage, and whether these bytes fit.

    ``bytes_per_parameter`` and ``bytes`` are per GPU; ``reduction`` is the ratio to the bytes without ZeRO. ``total``
    is the sum over all GPUs, ``redundant`` the part of it that is stored more than once. ``smallest_dp`` is the fewest
    replicas whose shards fit on the GPU (None: no number does), ``largest`` the most parameters that fit.
    """

    zero: int
    bytes_per_parameter: float
    bytes: float
    reduction: float
    total: float
    redundant: float
    fits: bool
    smallest_dp: int | None
    largest: float


@dataclass(frozen=True, slots=True)
class ModelStateLadder(Displayable):
    """Model state per GPU for each ZeRO stage, given the number of model parameters and of GPUs (``dp``)."""

    parameters: float
    recipe: Recipe
    dp: int
    device: str
    capacity: float
    stages: tuple[ZeroStage, ...]

    @property
    def table(self) -> DataFrame:
        """Table with one row per ZeRO stage."""
        return Records(self.stages).table.set_index("zero")

    def to_dict(self) -> dict[str, Any]:
        """Return the ladder as JSON-ready values, documented in CONTRACT.md under "Walls and states"."""
        recipe = self.recipe
        names = {"total": "total_bytes", "redundant": "redundant_bytes", "largest": "largest_parameters"}
        stages = [{names.get(each, each): value for each, value in asdict(stage).items()} for stage in self.stages]
        return {
            "parameters": self.parameters,
            "bytes_per_parameter": {
                "weight": recipe.weight, "gradient": recipe.gradient, "optimizer": recipe.optimizer,
                "recipe": recipe.name,
            },
            "dp": self.dp,
            "device": self.device,
            "capacity_bytes": self.capacity,
            "zero": stages,
        }  # fmt: skip


@check_arguments
def zero_stages(
    parameters: float | str, *, recipe: str = DEFAULT_RECIPE, dp: int | str = 8, device: str = "h100"
) -> ModelStateLadder:
    """Return the model state per GPU for each ZeRO stage, given a number of parameters ("13B") and of GPUs (``dp``).

    ``recipe`` names the bytes per parameter of each part (``model.recipes``). InputError for an unknown recipe or
    device, and for invalid numbers. Source: arXiv:1910.02054 section 5.
    """
    count, replicas = parse_count(parameters, "parameters"), parse_whole_number(dp, "dp")
    chosen, capacity = recipe_named(recipe), load_device(device).memory
    stages = tuple(_make_zero_stage(count, chosen, zero, replicas, capacity) for zero in range(4))
    return ModelStateLadder(count, chosen, replicas, device, capacity, stages)


def _make_zero_stage(parameters: float, recipe: Recipe, zero: int, dp: int, capacity: float) -> ZeroStage:
    held = state_bytes(parameters, recipe, zero=zero, dp=dp).total
    each = state_bytes(1.0, recipe, zero=zero, dp=dp).total
    return ZeroStage(
        zero=zero,
        bytes_per_parameter=each,
        bytes=held,
        reduction=recipe.total / each,
        total=dp * held,
        redundant=dp * held - recipe.total * parameters,
        fits=held <= capacity,
        smallest_dp=find_smallest_dp(parameters, recipe, zero, capacity),
        largest=capacity / each,
    )


def find_smallest_dp(parameters: float, recipe: Recipe, zero: int, capacity: float) -> int | None:
    """Return the smallest dp for which the model state fits in ``capacity`` bytes per GPU; None if no dp does.

    With r bytes per parameter on every GPU and s that are sharded: the least n with (r + s / n) parameters <= capacity.
    """
    if capacity <= 0:
        raise InputError(f"GPU memory of {capacity:g} bytes must be positive; give a larger capacity")
    whole = state_bytes(parameters, recipe, zero=zero, dp=1).total
    if whole <= capacity:
        return 1
    replicated = 2 * state_bytes(parameters, recipe, zero=zero, dp=2).total - whole  # r = 2 (r + s / 2) - (r + s)
    room = capacity - replicated
    return math.ceil((whole - replicated) / room) if room > 0 else None
