"""Checked and classified settings of a torchtitan job config, and the number formats that they select."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or, quote_value
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.flat_settings import flatten_settings
from simcluster.importers.import_result import SettingClassifier, TrackedSettings

TABLES = read_document(Path(__file__).with_name("torchtitan.yaml")).data
_NO_EFFECT_SECTIONS, _NO_EFFECT, _REFUSED_IF_SET, _FLOAT8, _MXFP8, _KERNELS, _KEYS_OF_2024 = (
    frozenset(TABLES[name].split())
    for name in ("no_effect_sections", "no_effect", "may_matter", "float8", "mxfp8", "kernels", "of_2024")
)
_DEFAULTS = flatten_settings(TABLES["defaults"], "torchtitan.yaml")
_RENAMED: dict[str, str] = TABLES["renamed"]
_OTHERWISE: dict[str, tuple[bool | str, str]] = TABLES["otherwise"]
_ALLOWED: dict[str, tuple[list[Any], str]] = TABLES["allowed"]
_CONVERTER_PREFIXES = ("float8.", "quantize.", "mx.")
_HEAD_LAYERS = {"output", "lm_head"}
_UNCONVERTED_LAYERS = {*_HEAD_LAYERS, "router.gate", "gate"}
"""Layers whose matmuls are always in 16 bits."""
_DEFAULTS_OF_2025 = (
    "unset values are torchtitan's defaults of 2025, although the keys are of 2024 (check recompute first: --set "
    "training.recompute=full)"
)


def is_mapped_setting(name: str) -> bool:
    """Return whether a torchtitan setting maps to a field of the scenario."""
    return _RENAMED.get(name, name) in _DEFAULTS


def is_known_setting(name: str) -> bool:
    """Return whether ``torchtitan.yaml`` lists a setting."""
    key = _RENAMED.get(name, name)
    return is_mapped_setting(name) or key in _OTHERWISE or key in _REFUSED_IF_SET or _setting_has_no_effect(key)


def _setting_has_no_effect(key: str) -> bool:
    return bool({key, key.rpartition(".")[0]} & _NO_EFFECT) or key.partition(".")[0] in _NO_EFFECT_SECTIONS


class TorchtitanSettings(SettingClassifier):
    """Checked and classified settings of a torchtitan job, with torchtitan's defaults for missing settings."""

    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        super().__init__(source)
        self.written_names = tuple(settings)
        self.values = TrackedSettings(_DEFAULTS)
        self.given: dict[str, str] = {}
        self.assumed += [] if _KEYS_OF_2024.isdisjoint(settings) else [_DEFAULTS_OF_2025]
        settings = {name: _split_list_setting(name, value) for name, value in settings.items()}
        asked, converters = settings.get("float8.enable_float8_linear") is True, settings.get("model.converters")
        self._float8 = asked or (isinstance(converters, list) and any(str(name) in _FLOAT8 for name in converters))
        for name, value in settings.items():
            self.problems.attempt(self._classify, name, value)

    def error(self, name: str, message: str) -> InputError:
        return super().error(self.given.get(name, name), message)

    def is_on(self, key: str) -> bool:
        """Return whether a boolean setting is true."""
        return self.values[key] is True

    def _classify(self, name: str, value: Any) -> None:
        key = _RENAMED.get(name, name)
        if key.startswith(_CONVERTER_PREFIXES) and (not self._float8 or ".mx." in f".{key}"):
            self.no_effect.append(name)  # settings of an inactive converter, or a choice of MXFP8 kernel
        elif key in _DEFAULTS:
            if key in self.given:
                raise self.error(name, f"is another name of {self.given[key]}, which is also given; keep one")
            self.given[key] = name
            self.values[key] = self._check_value(key, value)
        else:
            on = key in _REFUSED_IF_SET and value not in (None, "", [], False, TABLES["usual"].get(key))
            usual, said = _OTHERWISE.get(key, (None, ""))
            said = said if (value, type(value)) == (usual, type(usual)) else ""
            refused = f"{quote_value(value)} is not modelled" if on else ""
            self.classify(name, refused=refused, modelled=said, idle=_setting_has_no_effect(key), known=_DEFAULTS)

    def _check_value(self, key: str, value: Any) -> Any:
        default = _DEFAULTS[key]
        if key.endswith(("selective_ac_option", "split_points")) and not isinstance(value, bool):
            value = str(value or "")
        if isinstance(default, bool) != isinstance(value, bool) or not isinstance(value, type(default)):
            kinds = {bool: "true or false", int: "a whole number", str: "a text", list: "a list of texts"}
            raise self.error(key, f"is {quote_value(value)}; {kinds[type(default)]} is expected")
        if isinstance(default, int) and not isinstance(default, bool):
            least = default if default < 1 else 0 if "less_layers" in key else 1
            if not least <= value <= 10**9 or value == 0 > least:
                raise self.error(key, f"is {quote_value(value)}; a whole number{' from 1' * (least != 0)} is expected")
        known, said = _ALLOWED.get(key, ([value], ""))
        if value not in known:
            raise self.error(key, f"{quote_value(value)} {said}")
        return value

    def precision_fields(self, parallel: Mapping[str, Any]) -> dict[str, Any]:
        """Return the job's number formats as fields of ``Training``, given its ``parallel`` section.

        Raises InputError for converters that are not modelled, and for fp8 converters of fp32 matmuls.
        """
        values = self.values
        converters = [name for name in values["model.converters"] if name not in _KERNELS]
        converters = converters or ["float8"] * self.is_on("float8.enable_float8_linear")
        if strange := [name for name in converters if name not in _FLOAT8 | _MXFP8]:
            raise self.error("model.converters", f"{quote_value(strange[0])} is not modelled; use float8 or mx")
        if values["training.mixed_precision_param"] == "float32":
            if converters:
                raise self.error("model.converters", "float8 needs mixed_precision_param bfloat16")
            return {"precision": "fp32"}
        if converters:
            self.assumed += self._fp8_assumptions(converters)
        narrow = "mxfp8-mixed" if _MXFP8 & set(converters) else "fp8-mixed"
        precision = narrow if converters else "bf16-mixed"
        if values["training.dtype"] == "bfloat16":
            return {"precision": precision, "memory_recipe": "bf16-8"}
        # FSDP casts parameters, even on a single rank if experts are split, and always since April 2026
        # (_mesh_exist of torchtitan/distributed/parallel_dims.py), when configurations were registries
        axes = [axis.upper() for axis in ("tp", "pp") if parallel[axis] > 1]
        registry, tokens = self.source.endswith(".py"), values["training.num_tokens_per_microbatch_per_dp_rank"]
        sharded = parallel["zero"] == 3 or parallel.get("ep", 1) > 1
        wide = values["training.mixed_precision_reduce"] == "float32"
        if sharded or registry or tokens:
            if registry and axes and not sharded and not tokens:
                what = "mixed precision is on without FSDP, as since April 2026; earlier registries computed in fp32"
                self.assumed.append(what)
            return {"precision": precision, "memory_recipe": "fp32-16" if wide else "mixed-16"}
        # maybe_enable_amp (torchtitan/distributed/utils.py, 2025): autocast for DDP and single devices only
        if not axes:
            self.assumed.append("mixed precision uses autocast (no FSDP); its casts take no time in the simulation")
            if not wide:
                what = "gradients are reduced in fp32, as autocast does, whatever mixed_precision_reduce is"
                self.assumed.append(what)
            return {"precision": precision, "memory_recipe": "fp32-16"}
        why = f"without FSDP but with {' and '.join(axes)} (mixed_precision_param)"
        why = f"torchtitan switches mixed precision off {why}"
        if precision == "bf16-mixed":
            self.assumed.append(f"everything is computed in fp32: {why}")
            return {"precision": "fp32"}
        self.assumed.append(f"operations other than fp8 matmuls are simulated in 16 bits instead of fp32: {why}")
        return {"precision": precision, "memory_recipe": "fp32-16"}

    def _fp8_assumptions(self, converters: list[str]) -> list[str]:
        """Return assumptions about fp8 settings that the simulator models in another way.

        Recipes and filters are those of torchao's ``Float8LinearConfig.from_recipe_name`` and torchtitan's
        ``Float8LinearConverter``: without a filter the head is converted with the layers.
        """
        recipe, kept = self.values["float8.recipe_name"], self.values["float8.filter_fqns"]
        float8, others = (
            bool(_FLOAT8 & set(converters)),
            [str(name) for name in kept if name not in _UNCONVERTED_LAYERS],
        )
        headless = "float8.filter_fqns" in self.given and not _HEAD_LAYERS & set(kept)
        said = {
            "parameters are gathered in 16 bits, although enable_fsdp_float8_all_gather is set": self.is_on(
                "float8.enable_fsdp_float8_all_gather"
            ),
            f"fp8 matmuls take as long with rowwise scales ({recipe}) as with one scale per tensor": float8
            and recipe.startswith("rowwise"),
            f"weight gradient matmuls are in fp8, too, although {recipe} has them in 16 bits": float8
            and recipe.endswith("gw_hp"),
            f"matmuls of layers that filter_fqns leaves in 16 bits are in fp8, too: {join_or(others)}": float8
            and bool(others),
            "the head's matmul is in 16 bits, although filter_fqns does not exclude it": float8 and headless,
        }
        return [sentence for sentence, holds in said.items() if holds]


def _split_list_setting(name: str, value: Any) -> Any:
    """Split the value of a list setting, such as "float8,mx", at the commas; keep other values."""
    words = isinstance(value, str) and isinstance(_DEFAULTS.get(_RENAMED.get(name, name)), list)
    return [word.strip() for word in value.split(",") if word.strip()] if words else value
