"""What a torchtitan job says of its products in fp8 that is not modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcluster.documents.diagnostics import listed

_HEAD = {"output", "lm_head"}
_NEVER = {*_HEAD, "router.gate", "gate"}
"""Layers whose products are in 16 bits in any case."""


def not_as_asked(values: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """Sentences: of scales of rows, and of layers left out.

    Recipes and filters are those of torchao's ``Float8LinearConfig.from_recipe_name`` and torchtitan's
    ``Float8LinearConverter``: without a filter the head is converted with the layers.
    """
    said = []
    recipe = values["float8.recipe_name"]
    if recipe.startswith("rowwise"):
        said.append(f"products in fp8 take as long with scales of rows ({recipe}) as with one for each tensor")
    if recipe.endswith("gw_hp"):
        said.append(f"products of weights' gradients are in fp8, too, though {recipe} has them in 16 bits")
    left_out = values["float8.filter_fqns"]
    if others := [str(name) for name in left_out if name not in _NEVER]:
        said.append(f"products of layers that filter_fqns leaves in 16 bits are in fp8, too: {listed(others)}")
    if "float8.filter_fqns" in given and not _HEAD & set(left_out):
        said.append("the product of the head is in 16 bits, though filter_fqns does not leave it out")
    return said
