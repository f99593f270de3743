"""A scenario from Megatron-Bridge's names: overrides (``model.num_layers=32``), a YAML of them, a recipe.

A recipe's name gives the model alone; how it is split and its batch have to be said, since recipes change.  Fields are
those of ConfigContainer (NVIDIA-NeMo/Megatron-Bridge), from knowledge of it; what Megatron-LM calls otherwise is in
``megatron_bridge.yaml`` beside this file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed, shown
from simcluster.documents.reading import parse_document, read_document
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.bridge_recipes import RESOLVED, ReadRecipe, settings_of_recipe, settings_of_written
from simcluster.importers.flat_settings import assumed_of_environment, flattened, variables_in
from simcluster.importers.imported import Imported, Problems, guess
from simcluster.importers.megatron import ALL_GPUS, scenario_from_options
from simcluster.importers.megatron_models import Words, model_options, whole_model
from simcluster.importers.named_models import model_named, said_of_model
from simcluster.importers.option_values import (
    MAPPED,
    NO_EFFECT,
    NO_EFFECT_PREFIXES,
    NOT_MODELLED,
    REFUSED,
    REFUSED_PREFIXES,
    option_called,
)
from simcluster.importers.python_recipes import NONE_GIVEN
from simcluster.importers.python_values import Unread
from simcluster.importers.training_logs import yaml_printed

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_SECTIONS = _TABLES["sections"].split()
_NO_EFFECT_SECTIONS = _TABLES["no_effect_sections"].split()
_NO_EFFECT_FIELDS = frozenset(_TABLES["no_effect"].split())
_RENAMED: dict[str, str] = _TABLES["renamed"]
_INVERTED: dict[str, str] = _TABLES["inverted"]
_MIXTURES: dict[str, str] = _TABLES["mixtures"]
_RECIPE = re.compile(r"(llama3|llama31|llama3_1)_(8b|70b|405b)(_\w+)?")
_HYBRIDS = ("nemotronh", "nemotron_h", "nemotron_3", "nemotron_nano", "mamba")
_OF_LAYERS = ("moe_layer_freq", "window_attn_skip_freq")
_OF_DATA = ("dataset", "tokenizer")
_MODEL_OF_DATA = ("sequence_length", "seq_length", "vocab_size")
_MAX_CHARACTERS = 100_000
_FORMATS = {"torch.float32": "fp32", "torch.float64": "fp64", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_KNOWN = frozenset((*MAPPED, *NO_EFFECT, *NOT_MODELLED, *REFUSED))
_FAMILIES = (*REFUSED_PREFIXES, *NO_EFFECT_PREFIXES)
_PRECISIONS_NAMED: dict[str, dict[str, Any]] = _TABLES["precisions"]
_PRECISIONS = ("bf16_mixed", "fp16_mixed")
_ENVIRONMENT = "env_vars"


def scenario_from_bridge(
    text: str,
    *,
    cluster: Mapping[str, Any],
    gpus: int | None = None,
    available: int | None = None,
    function: str = "",
    beside: Beside = nothing_beside,
    given: Mapping[str, str] = NONE_GIVEN,
    source: str = "<overrides>",
) -> Imported:
    """Return the scenario of Megatron-Bridge's overrides or YAML, with or without a recipe's name, or of a recipe.

    ``beside`` is the text of a config.json that lies with the file, and ``given`` are arguments of a recipe's function
    by name.  Raises InputError with the names of all fields that are not modelled or have no value that can be.  A
    field that is not known is in ``unknown``.
    """
    python = source.endswith(".py") or bool(function)
    text = text if python else yaml_printed(text)
    read = settings_of_recipe(text, source, function, beside, given) if python else settings_of_written(text, source)
    recipe, said = ("", read) if read else _overrides(text, source, beside)
    fields = BridgeFields(source, said)
    fields.options |= _recipe_options(recipe) if recipe else {}
    own = fields.add(said.settings)
    if read and not python:  # it has all fields; of those that are not known here the ones that are on count
        fields.no_effect += [name for name in said.settings if not said.settings[name]]
        fields.unknown = [name for name in fields.unknown if said.settings.get(name.partition(" ")[0])]
    environment = assumed_of_environment(variables_in(said.settings, _ENVIRONMENT))
    if environment:
        fields.no_effect = [name for name in fields.no_effect if name.partition(".")[0] != _ENVIRONMENT]
    length = (said.model.length,) if said.model.length and "seq-length" not in own else ()
    found = fields.scenario(cluster, gpus, said.gpus, available, (*said.assumed, *environment, *length))
    if recipe.startswith("deepseek_v3") and "mtp_layers" not in found.document["model"]:
        what = f"{recipe}: without its layer of multi-token prediction (model.mtp_num_layers=1 adds it)"
        found = replace(found, assumed=(*found.assumed, what))
    return found.accounted(said.settings, fields.became)


class BridgeFields:
    """Fields by Megatron-Bridge's dotted names as Megatron-LM's ``options``, with what has no effect or is not known.

    ``became`` has the option of each field, empty for a field that is off.
    """

    def __init__(self, source: str, read: ReadRecipe) -> None:
        self.source, self.problems, self._model = source, Problems(source), read.model
        self._settings: Mapping[str, Any] = {}
        self.options: Words = model_options(self._model.section) if self._model.name else {}
        self.no_effect: list[str] = []
        self.unknown = [f"what the recipe does {place}" for place in read.undecided]
        self.became: dict[str, str] = {}

    def add(self, settings: Mapping[str, Any]) -> Words:
        """Add fields, and return the options that they give."""
        self._settings = settings
        options: Words = {}
        names: dict[str, str] = {}
        if precision := _PRECISIONS_NAMED.get(str(settings.get("mixed_precision")), {}):
            written = {f"mixed_precision.{field}": value for field, value in precision.items()}
            settings = {**written, **{name: value for name, value in settings.items() if name != "mixed_precision"}}
        for name, value in settings.items():
            translated = self.problems.of(self._translated, name, value)
            if isinstance(translated, list):
                continue
            self.became[name] = option_called(next(iter(translated or {}), ""))
            for option, words in (translated or {}).items():
                if option in names and option != "seq-length" and options[option] != words:
                    self.problems.add(InputError(f"{name} says otherwise than {names[option]}; keep one"))
                options[option], names[option] = words, name
        self.options |= options
        self.options |= {"group-query-attention": ()} if "num-query-groups" in self.options else {}
        return options

    def scenario(
        self,
        cluster: Mapping[str, Any],
        gpus: int | None,
        launched: int | None,
        available: int | None,
        assumed: tuple[str, ...],
        mapped: Iterable[str] = (),
    ) -> Imported:
        """Return the scenario of the options; InputError with all problems."""
        found = scenario_from_options(
            self.options, cluster=cluster, gpus=gpus, launched=launched, available=available, source=self.source,
            problems=self.problems.found,
        )  # fmt: skip
        if self._model.name:
            found.document["model"] = whole_model(self._model.section, found.document["model"], self._settings)
        assumed += () if "gpus" in found.document else (ALL_GPUS,)
        off = [name for name, option in self.became.items() if not option]
        return Imported(
            found.document, (*found.mapped, *mapped, *off), (*self.no_effect, *found.no_effect),
            (*assumed, *found.assumed), unknown=(*self.unknown, *self._model.unknown, *found.unknown),
        )  # fmt: skip

    def _translated(self, name: str, value: Any) -> Words | list[str]:
        """Return one field as options, or the list that it is put on: without effect, or not known.

        Raises InputError for a field of the step whose value is worked out where the program runs.
        """
        section, _, field = name.partition(".")
        option = _RENAMED.get(field, _INVERTED.get(field, field.replace("_", "-")))
        idle = section in _NO_EFFECT_SECTIONS or (section in _OF_DATA and field not in _MODEL_OF_DATA)
        nothing = field in _NO_EFFECT_FIELDS or field.startswith("_")
        if isinstance(value, Unread):
            return self._unread(name, value, option)
        word = (" ".join(map(str, value)) if isinstance(value, list) else str(value)).strip("[]'\" ").replace(",", " ")
        empty = word.lower() in ("none", "null", "")
        if field in _OF_LAYERS and section == "model" and not empty:
            return {option: (str(value).strip("'\" "),)}
        if not idle and section == "mixed_precision" and not field:
            return {} if empty else _precision(word, self.source)
        if not idle and (section not in _SECTIONS or not field or "." in field):
            return self._put(self.unknown, name + guess(section, [*_SECTIONS, *_NO_EFFECT_SECTIONS]))
        if idle or nothing:
            return self._put(self.no_effect, name)
        if empty or (field, word) in (("mtp_num_layers", "0"), ("moe_router_dtype", "bf16")):  # as the activations
            return {}
        if field in _INVERTED:
            inverse = {"true": "false", "false": "true"}.get(word.lower())
            if inverse is None:
                raise InputError(f"{self.source}: {name}: {word[:40]!r} is neither true nor false; write one of them")
            return {option: (inverse,)} if option in MAPPED or inverse == "true" else {}
        if option not in _KNOWN and not option.startswith(_FAMILIES):
            known = [*(each.replace("-", "_") for each in MAPPED), *_RENAMED, *_INVERTED]
            return self._put(self.unknown, name + guess(field, known))
        if option not in MAPPED and word.lower() == "false":
            return self._put(self.no_effect, name)  # something not modelled is switched off
        return {option: tuple(_FORMATS.get(word, word).split())}

    def _unread(self, name: str, value: Unread, option: str) -> list[str]:
        """Put a field whose value is not read on its list; InputError where a scenario has a place for it."""
        section, _, field = name.partition(".")
        if section in _SECTIONS and field not in _NO_EFFECT_FIELDS and (option in MAPPED or name == "mixed_precision"):
            raise InputError(
                f"{self.source}: {name}: {value.text[:60]} is worked out where the program runs, and nothing is run "
                "here; write its value, or run it once and give the configuration that it writes or logs"
            )
        idle = section in (*_NO_EFFECT_SECTIONS, *_OF_DATA) or field in _NO_EFFECT_FIELDS or option in NO_EFFECT
        return self._put(self.no_effect if idle else self.unknown, name)

    @staticmethod
    def _put(held: list[str], name: str) -> list[str]:
        held.append(name)
        return held


def _overrides(text: str, source: str, beside: Beside) -> tuple[str, ReadRecipe]:
    """Return the recipe, if one is named, and the overrides with the model that they name."""
    if re.search(r"\b(run_script|setup_experiment)\.py\b", text):
        raise InputError(f"{source}: starts Megatron-Bridge's performance launcher, whose recipes are code: {RESOLVED}")
    recipe, settings = _settings(text, source)
    named = model_named(str(settings.pop("model.hf_model_id", None) or ""), source, beside)
    if not recipe and not named.name and "model.num_layers" not in settings:
        raise InputError(
            f"{source}: says of no model how many layers it has; name the recipe that is changed, as in recipe: "
            "llama3_8b_pretrain_config, or give the model's fields, as in model.num_layers=32"
        )
    if recipe:
        said = (f"{recipe}: the model of it; parallelism and batch are what is written here",)
        return recipe, ReadRecipe(named, settings, said)
    if not named.name:
        return "", ReadRecipe(named, settings)
    settings = {f"model.{field}": value for field, value in said_of_model(named.name).items()} | settings
    what = "what the file does not say is as Megatron-Core has it, since no recipe is named"
    return "", ReadRecipe(named, settings, (what, *named.assumed))


def _settings(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """Return the recipe, if one is named, and the overrides by dotted name."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: has more than {_MAX_CHARACTERS:,} characters, which no overrides have")
    if re.search(r"^\s*\w+:(\s|$)", text, re.MULTILINE):
        data = parse_document(text, source=source).data
        recipe = data.pop("recipe", "")
        return _known_recipe(recipe, source) if recipe else "", flattened(data, source)
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\r?\n", " ", text), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a list of overrides: {problem}") from None
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    recipe, found = "", dict[str, Any]()
    for word in words[programs[0] + 1 :] if programs else words:
        name, equals, value = word.partition("=")
        if name == "--recipe" or (not equals and not recipe and not name.startswith("-")):
            recipe = _known_recipe(value, source) if equals else _known_recipe(name, source) if name[:1] != "-" else ""
            continue
        if not equals:
            raise InputError(f"{source}: {word[:60]!r} is no override; write it as model.tensor_model_parallel_size=8")
        name = name.lstrip("+-~")
        if name in found:
            raise InputError(f"{source}: {name[:60]} is given twice; keep one")
        found[name] = value
    return recipe, found


def _precision(word: str, source: str) -> Words:
    if word.startswith("bf16_with_mxfp8"):
        return {"bf16": (), "fp8-format": ("hybrid",), "fp8-recipe": ("mxfp8",)}
    if word.startswith("bf16_with_nvfp4"):
        return {"bf16": (), "fp4-format": ("e2m1",)}
    if word.startswith("bf16_with_fp8"):
        return {"bf16": (), "fp8-format": ("hybrid",)}
    if word not in _PRECISIONS:
        raise InputError(
            f"{source}: mixed_precision {word[:40]!r} is not modelled{did_you_mean(word, _PRECISIONS)}; known: "
            f"{', '.join(_PRECISIONS)}, bf16_with_fp8_..., bf16_with_mxfp8_..., bf16_with_nvfp4_..."
        )
    return {"bf16": ("true" if word == "bf16_mixed" else "false",), "fp16": ("true" if word[0] == "f" else "false",)}


def _known_recipe(name: object, source: str) -> str:
    """Return the name of a recipe; InputError for one whose model is not known here."""
    if isinstance(name, str) and (_RECIPE.fullmatch(name) or _mixture(name)):
        return name
    if str(name).startswith(_HYBRIDS):
        what = "some of its layers are Mamba-2, and layers that are not all attention and MLP are not modelled"
        raise InputError(f"{source}: recipe {shown(name)}: {what}")
    raise InputError(
        f"{source}: recipe {shown(name)} is not known here; known are llama3_8b, llama3_70b, llama31_405b, "
        f"{listed(_MIXTURES)} with what follows (llama3_8b_pretrain_config); or give the model's fields, as in "
        "model.num_layers=32"
    )


def _mixture(name: str) -> str | None:
    return next((preset for known, preset in _MIXTURES.items() if name == known or name.startswith(f"{known}_")), None)


def _recipe_options(recipe: str) -> Words:
    """Return the model of a recipe that is known, as Megatron-LM's options."""
    match = _RECIPE.fullmatch(recipe)
    return model_options({"preset": _mixture(recipe) or f"llama3-{match[2] if match else ''}"})
