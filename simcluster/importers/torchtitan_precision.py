"""The precision of a torchtitan job: mixed by FSDP, by autocast, or switched off where neither is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcluster.documents.diagnostics import listed, shown
from simcluster.importers.torchtitan_settings import FLOAT8, MXFP8, TABLES, JobSettings

_KERNELS = frozenset(TABLES["kernels"].split())
_SWITCHED_OFF = "torchtitan switches mixed precision off without FSDP{} (mixed_precision_param)"
_BY_AUTOCAST = "mixed precision is by autocast, as without FSDP, whose casts take no time of their own here"
_OF_REGISTRIES = "mixed precision is on without FSDP, as from April 2026 on; registries before that computed in fp32"
_REDUCED = "gradients are reduced in fp32, as autocast leaves them, whatever mixed_precision_reduce says"
_HEAD = {"output", "lm_head"}
_NEVER = {*_HEAD, "router.gate", "gate"}
"""Layers whose products are in 16 bits in any case."""


def precision_of(job: JobSettings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``Training`` that say the precision of a job which is split as ``parallel`` says.

    Raises InputError for converters that are not modelled, and for those to fp8 of products in fp32.
    """
    values, converters = job.values, _converters(job)
    if values["training.mixed_precision_param"] == "float32":
        if converters:
            raise job.error("model.converters", "float8 needs mixed_precision_param bfloat16")
        return {"precision": "fp32"}
    if job.on("float8.enable_fsdp_float8_all_gather") and converters:
        job.assumed.append("parameters are gathered in 16 bits, though enable_fsdp_float8_all_gather is set")
    if FLOAT8 & set(converters):
        job.assumed += _not_as_asked(values, job.given)
    narrow = "mxfp8-mixed" if MXFP8 & set(converters) else "fp8-mixed"
    precision = narrow if converters else "bf16-mixed"
    if values["training.dtype"] == "bfloat16":
        return {"precision": precision, "memory_recipe": "bf16-8"}
    if not _by_fsdp(job, parallel):
        return _without_fsdp(job, parallel, precision)
    recipe = "fp32-16" if values["training.mixed_precision_reduce"] == "float32" else "mixed-16"
    return {"precision": precision, "memory_recipe": recipe}


def _converters(job: JobSettings) -> list[str]:
    """Names of the converters to products in fp8."""
    found = [name for name in job.values["model.converters"] if name not in _KERNELS]
    found = found or ["float8"] * job.on("float8.enable_float8_linear")
    if strange := [name for name in found if name not in FLOAT8 | MXFP8]:
        raise job.error("model.converters", f"{shown(strange[0])} is not modelled; float8 and mx are")
    return found


def _by_fsdp(job: JobSettings, parallel: Mapping[str, Any]) -> bool:
    """Whether FSDP casts parameters, which it does over a single rank, too, where experts are split, and everywhere
    from April 2026 on (``_mesh_exist`` of torchtitan/distributed/parallel_dims.py), when files were registries."""
    if parallel.get("zero") == 3 or parallel.get("ep", 1) > 1:
        return True
    tokens = job.values["training.num_tokens_per_microbatch_per_dp_rank"]
    if job.source.endswith(".py") and not tokens and max(parallel["tp"], parallel["pp"]) > 1:
        job.assumed.append(_OF_REGISTRIES)
    return job.source.endswith(".py") or bool(tokens)


def _without_fsdp(job: JobSettings, parallel: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """As ``maybe_enable_amp`` has it (torchtitan/distributed/utils.py, 2025): autocast for DDP and a single device
    alone.  The versions of 2024 have no autocast."""
    if parallel["tp"] == parallel["pp"] == 1 and not job.early:
        job.assumed.append(_BY_AUTOCAST)
        if job.values["training.mixed_precision_reduce"] != "float32":
            job.assumed.append(_REDUCED)
        return {"precision": precision, "memory_recipe": "fp32-16"}
    axes = [axis.upper() for axis in ("tp", "pp") if parallel[axis] > 1]
    why = _SWITCHED_OFF.format(f" where there is {' and '.join(axes)}" if axes else "")
    if precision == "bf16-mixed":
        job.assumed.append(f"all is computed in fp32: {why}")
        return {"precision": "fp32"}
    job.assumed.append(f"what is no product in fp8 is taken in 16 bits, which is in fp32: {why}")
    return {"precision": precision, "memory_recipe": "fp32-16"}


def _not_as_asked(values: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """Return sentences about row-wise scales and about layers that are not converted.

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
