"""The settings of a torchtitan job config, each in its place, and the precision that they come to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import read_document
from simcluster.importers.flat_settings import flattened
from simcluster.importers.imported import Problems, Settings, guess

TABLES = read_document(Path(__file__).with_name("torchtitan.yaml")).data
_NO_EFFECT_SECTIONS, _NO_EFFECT, _MAY_MATTER, FLOAT8, MXFP8 = (
    frozenset(TABLES[name].split()) for name in ("no_effect_sections", "no_effect", "may_matter", "float8", "mxfp8")
)
_DEFAULTS = flattened(TABLES["defaults"], "torchtitan.yaml")
_RENAMED: dict[str, str] = TABLES["renamed"]
_USUAL: dict[str, Any] = TABLES["usual"]
_OTHERWISE: dict[str, tuple[bool | str, str]] = TABLES["otherwise"]
_OF_PRODUCTS = "training.enable_selective_ac"
_FIRST_VERSIONS = ("training.warmup_pct", _OF_PRODUCTS, "model.model_conf")
_OF_CONVERTERS = ("float8.", "quantize.", "mx.")
_ALLOWED: dict[str, tuple[list[Any], str]] = TABLES["allowed"]
_KERNELS = frozenset(TABLES["kernels"].split())
_SWITCHED_OFF = "torchtitan switches mixed precision off without FSDP{} (mixed_precision_param)"
_BY_AUTOCAST = "mixed precision is by autocast, as without FSDP, whose casts take no time of their own here"
_OF_REGISTRIES = "mixed precision is on without FSDP, as from April 2026 on; registries before that computed in fp32"
_REDUCED = "gradients are reduced in fp32, as autocast leaves them, whatever mixed_precision_reduce says"
_HEAD = {"output", "lm_head"}
_NEVER = {*_HEAD, "router.gate", "gate"}
"""Layers whose products are in 16 bits in any case."""


def is_mapped(name: str) -> bool:
    """Return whether a scenario has a place for a setting."""
    return _RENAMED.get(name, name) in _DEFAULTS


def is_known(name: str) -> bool:
    """Return whether a setting is one of torchtitan's that a table lists."""
    key = _RENAMED.get(name, name)
    return is_mapped(name) or key in _OTHERWISE or key in _MAY_MATTER or _is_idle(key)


def _is_idle(key: str) -> bool:
    return bool({key, key.rpartition(".")[0]} & _NO_EFFECT) or key.partition(".")[0] in _NO_EFFECT_SECTIONS


class JobSettings:
    """Settings by dotted name: ``values`` of what is mapped, with torchtitan's defaults, and ``given`` as written."""

    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        self.source, self.written = source, tuple(settings)
        self.values = Settings(_DEFAULTS)
        self.given: dict[str, str] = {}
        self.no_effect: list[str] = []
        self.assumed: list[str] = []
        self.unknown: list[str] = []
        self.problems = Problems(source)
        settings = {name: _listed(name, value) for name, value in settings.items()}
        asked, converters = settings.get("float8.enable_float8_linear") is True, settings.get("model.converters")
        self._float8 = asked or (isinstance(converters, list) and any(str(name) in FLOAT8 for name in converters))
        for name, value in settings.items():
            self.problems.of(self._sort, name, value)
        self._checkpoint_as_then(settings)

    def error(self, name: str, message: str) -> InputError:
        return InputError(f"{self.source}: {self.given.get(name, name)}: {message}")

    def _sort(self, name: str, value: Any) -> None:
        key = _RENAMED.get(name, name)
        if key.startswith(_OF_CONVERTERS) and (not self._float8 or ".mx." in f".{key}"):
            self.no_effect.append(name)  # of a converter that is not on, or which of MXFP8's kernels it takes
        elif key in _DEFAULTS:
            if key in self.given:
                raise self.error(name, f"is another name of {self.given[key]}, which is also given; keep one")
            self.given[key] = name
            self.values[key] = self._checked(key, value)
        elif key in _MAY_MATTER and value not in (None, "", [], False, _USUAL.get(key)):
            raise self.error(name, f"{shown(value)} is not modelled; take it out to import the rest")
        elif key in _OTHERWISE and (value, type(value)) == (_OTHERWISE[key][0], type(_OTHERWISE[key][0])):
            self.assumed.append(f"{name}: {_OTHERWISE[key][1]}")
        elif _is_idle(key):
            self.no_effect.append(name)
        else:
            self.unknown.append(name + guess(name, _DEFAULTS))

    def _checkpoint_as_then(self, settings: Mapping[str, Any]) -> None:
        """Layers run again where no mode is given: all in torchtitan's first versions, later the default.

        enable_selective_ac ran every second product again instead (torchtrain/parallelisms/parallelize_llama.py, March
        of 2024); a warm-up in percent is older than that.
        """
        if "activation_checkpoint.mode" in self.given:
            return
        if any(name in settings for name in _FIRST_VERSIONS):
            products = settings.get(_OF_PRODUCTS) is True
            if _OF_PRODUCTS in settings:
                self.no_effect.remove(_OF_PRODUCTS)
                self.given[_OF_PRODUCTS] = _OF_PRODUCTS
            self.values["activation_checkpoint.mode"] = "selective" if products else "full"
            self.values["activation_checkpoint.selective_ac_option"] = "op"
            what = "every second product of a layer is" if products else "all layers are"
            self.assumed.append(f"{what} run again, as in torchtitan's first versions, which this file is of")
        elif self.early:
            every = self.values["activation_checkpoint.selective_ac_option"]
            again = f"every layer of {every} is" if every.isdecimal() else "every second product of a layer is"
            self.assumed.append(f"{again} run again, which is the default where activation_checkpoint.mode is not said")

    def _checked(self, key: str, value: Any) -> Any:
        """Return the value, of the kind of its default."""
        default = _DEFAULTS[key]
        if key.endswith("selective_ac_option") and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if key.endswith("split_points") and isinstance(value, list):
            value = ",".join(map(str, value))
        if isinstance(default, bool) != isinstance(value, bool) or not isinstance(value, type(default)):
            raise self.error(key, f"is {shown(value)}; {_kind(default)} is expected")
        if isinstance(default, int) and not isinstance(default, bool):
            least = default if default < 1 else 0 if "less_layers" in key else 1
            if not least <= value <= 10**9 or value == 0 > least:
                raise self.error(key, f"is {shown(value)}; a whole number{' from 1' * (least != 0)} is expected")
        known, said = _ALLOWED.get(key, ([value], ""))
        if value not in known:
            raise self.error(key, f"{shown(value)} {said}")
        return value

    @property
    def early(self) -> bool:
        """Return whether the file is of the versions of 2024, which had pipelines among what is experimental."""
        return self.given.get("parallelism.pipeline_parallel_degree", "").startswith(("experimental.", "training."))

    def on(self, key: str) -> bool:
        return self.values[key] is True


def _listed(name: str, value: Any) -> Any:
    """Return the value; of a text where a list is expected its words (``"float8,mx"``, as in 2024 and 2025)."""
    key = _RENAMED.get(name, name)
    words = isinstance(value, str) and isinstance(_DEFAULTS.get(key), list)
    return [word.strip() for word in value.split(",") if word.strip()] if words else value


def _kind(default: object) -> str:
    if isinstance(default, bool):
        return "true or false"
    return {int: "a whole number", str: "a text", list: "a list of texts"}[type(default)]


def precision_of(job: JobSettings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Training`` that say the precision of a job which is split as ``parallel`` says.

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
    """Return names of the converters to products in fp8."""
    found = [name for name in job.values["model.converters"] if name not in _KERNELS]
    found = found or ["float8"] * job.on("float8.enable_float8_linear")
    if strange := [name for name in found if name not in FLOAT8 | MXFP8]:
        raise job.error("model.converters", f"{shown(strange[0])} is not modelled; float8 and mx are")
    return found


def _by_fsdp(job: JobSettings, parallel: Mapping[str, Any]) -> bool:
    """Return whether FSDP casts parameters, which it does over a single rank, too, where experts are split, and
    everywhere from April 2026 on (``_mesh_exist`` of torchtitan/distributed/parallel_dims.py), when files were
    registries."""
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
