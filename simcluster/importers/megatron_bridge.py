"""Import of Megatron-Bridge overrides (``model.num_layers=32``), YAML files and recipes as scenarios.

A recipe's name gives the model only; its parallelism and batch must be given, since recipes change. Fields are those of
ConfigContainer (NVIDIA-NeMo/Megatron-Bridge), from knowledge of it; ``megatron_bridge.yaml`` in this folder has the
fields that Megatron-LM names differently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, join_or, quote_value
from simcluster.documents.yaml_documents import parse_document, read_document
from simcluster.importers import import_result, named_models
from simcluster.importers.bridge_recipes import CONFIG_ADVICE, RecipeSettings, read_bridge_config, read_bridge_recipe
from simcluster.importers.flat_settings import environment_assumptions, environment_in_section, flatten_settings
from simcluster.importers.import_result import FileReader, ImportResult, read_no_file, similar_name_hint
from simcluster.importers.megatron import ALL_GPUS_ASSUMPTION, scenario_from_options
from simcluster.importers.megatron_named_models import OptionWords, adapt_published_model, model_to_options
from simcluster.importers.megatron_options import (
    MAPPED,
    NO_EFFECT,
    NO_EFFECT_PREFIXES,
    NOT_MODELLED,
    REFUSED,
    REFUSED_PREFIXES,
    current_option_name,
)
from simcluster.importers.python_recipes import NO_ARGUMENTS
from simcluster.importers.python_values import UnreadExpression
from simcluster.importers.training_logs import extract_printed_yaml

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_SECTIONS, _IDLE_SECTIONS = _TABLES["sections"].split(), _TABLES["no_effect_sections"].split()
_IDLE_FIELDS = frozenset(_TABLES["no_effect"].split())
_RENAMED: dict[str, str] = _TABLES["renamed"]
_INVERTED: dict[str, str] = _TABLES["inverted"]
_RECIPES: dict[str, str] = _TABLES["recipes"]
_LAYER_FIELDS = ("model.moe_layer_freq", "model.window_attn_skip_freq")
_MODEL_FIELDS_OF_DATA = ("sequence_length", "seq_length", "vocab_size")
_MAX_CHARACTERS = 100_000
_FORMATS = {"torch.float32": "fp32", "torch.float64": "fp64", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_KNOWN = frozenset((*MAPPED, *NO_EFFECT, *NOT_MODELLED, *REFUSED))
_FAMILIES = (*REFUSED_PREFIXES, *NO_EFFECT_PREFIXES)
_ENVIRONMENT = "env_vars"


def scenario_from_bridge(
    text: str, *, cluster: Mapping[str, Any], gpus: int | None = None, available: int | None = None, function: str = "",
    read_file: FileReader = read_no_file, given: Mapping[str, str] = NO_ARGUMENTS, source: str = "<overrides>",
) -> ImportResult:  # fmt: skip
    """Return the scenario for Megatron-Bridge overrides, a YAML file or a Python recipe.

    ``read_file`` gives the text of a config.json next to the file, ``given`` are arguments of a recipe's function by
    name. Raises InputError with the names of all fields that are not modelled or have unusable values. A field that is
    not known is in ``unknown``.
    """
    python = source.endswith(".py") or bool(function)
    text = text if python else extract_printed_yaml(text)
    read = read_bridge_recipe(text, source, function, read_file, given) if python else read_bridge_config(text, source)
    recipe, said = ("", read) if read else _read_overrides(text, source, read_file)
    fields = BridgeTranslator(source, said)
    if recipe:
        fields.options |= model_to_options(named_models.published_model_section(_known_recipe_model(recipe)))
    own = fields.translate(said.settings)
    if read and not python:  # it has all fields; unknown ones only count if on
        fields.no_effect += [name for name in said.settings if not said.settings[name]]
        fields.unknown = [name for name in fields.unknown if said.settings.get(name.partition(" ")[0])]
    environment = environment_assumptions(environment_in_section(said.settings, _ENVIRONMENT))
    if environment:
        fields.no_effect = [name for name in fields.no_effect if name.partition(".")[0] != _ENVIRONMENT]
    length = (said.model.length,) if said.model.length and "seq-length" not in own else ()
    found = fields.build_scenario(cluster, gpus, said.gpus, available, (*said.assumed, *environment, *length))
    if recipe.startswith("deepseek_v3") and "mtp_layers" not in found.document["model"]:
        what = f"{recipe}: without its multi-token prediction layer (model.mtp_num_layers=1 adds it)"
        found = replace(found, assumed=(*found.assumed, what))
    return found.classify_all_settings(said.settings, fields.option_by_field)


class BridgeTranslator(import_result.SettingClassifier):
    """Translator of Megatron-Bridge's fields, such as model.num_layers, to Megatron-LM options.

    ``option_by_field`` has the option of each field, empty for a field that is off.
    """

    def __init__(self, source: str, recipe: RecipeSettings) -> None:
        super().__init__(source)
        self._model, self._trainable = recipe.model, dict(recipe.trainable)
        self._settings: Mapping[str, Any] = {}
        self.options: OptionWords = model_to_options(self._model.section) if self._model.name else {}
        self.unknown += [f"effect of the recipe {place}" for place in recipe.undecided]
        self.option_by_field: dict[str, str] = {}

    def translate(self, settings: Mapping[str, Any]) -> OptionWords:
        """Translate Megatron-Bridge fields to Megatron-LM options."""
        self._settings = settings
        options: OptionWords = {}
        names: dict[str, str] = {}
        word = settings.get("mixed_precision")
        if isinstance(word, str) and word.strip("'\" ").lower() not in ("none", "null", ""):
            written = self.problems.attempt(mixed_precision_settings, word.strip("'\" "), self.source) or {}
            settings = {**written, **{name: value for name, value in settings.items() if name != "mixed_precision"}}
            self.option_by_field["mixed_precision"] = "bf16"
        for name, value in settings.items():
            translated = self.problems.attempt(self._translate_field, name, value)
            if isinstance(translated, list):
                translated.append(name if translated is self.no_effect else f"{name}{self._suggest_field(name)}")
                continue
            self.option_by_field[name] = current_option_name(next(iter(translated or {}), ""))
            for option, words in (translated or {}).items():
                if option in names and option != "seq-length" and options[option] != words:
                    self.problems.record(InputError(f"{name} contradicts {names[option]}; keep one"))
                options[option], names[option] = words, name
        self.options |= options
        self.options |= {"group-query-attention": ()} if "num-query-groups" in self.options else {}
        return options

    def build_scenario(
        self, cluster: Mapping[str, Any], gpus: int | None, launched: int | None, available: int | None,
        assumed: tuple[str, ...], mapped: Iterable[str] = (),
    ) -> ImportResult:  # fmt: skip
        """Build the scenario from the translated options; raise one InputError that lists all problems."""
        found = scenario_from_options(
            self.options, cluster=cluster, gpus=gpus, launched=launched, available=available, source=self.source,
            problems=self.problems.messages,
        )  # fmt: skip
        if self._trainable:
            sharded = found.document["parallel"].get("sequence_parallel")
            own = {key: each for key, each in self._trainable.items() if sharded or key != "exchange"}
            found.document["training"]["trainable"] = own
        if self._model.name:
            model = adapt_published_model(self._model.section, found.document["model"], self._settings)
            found.document["model"] = model
        assumed += () if "gpus" in found.document else (ALL_GPUS_ASSUMPTION,)
        off = [name for name, option in self.option_by_field.items() if not option]
        return ImportResult(
            found.document, (*found.mapped, *mapped, *off), (*self.no_effect, *found.no_effect),
            (*assumed, *found.assumed), unknown=(*self.unknown, *self._model.unknown, *found.unknown),
        )  # fmt: skip

    def _suggest_field(self, name: str) -> str:
        section, _, field = name.partition(".")
        if isinstance(self._settings.get(name), UnreadExpression):
            return ""
        if section not in _SECTIONS or not field or "." in field:
            return similar_name_hint(section, [*_SECTIONS, *_IDLE_SECTIONS])
        return similar_name_hint(field, [*(each.replace("-", "_") for each in MAPPED), *_RENAMED, *_INVERTED])

    def _translate_field(self, name: str, value: Any) -> OptionWords | list[str]:
        """Translate a field to Megatron-LM options; for a field without any, return the list to record its name in.

        Raises InputError for a field of the step whose value is computed where the program runs.
        """
        section, _, field = name.partition(".")
        option = _RENAMED.get(field, _INVERTED.get(field, field.replace("_", "-")))
        of_data = section in ("dataset", "tokenizer")
        if isinstance(value, UnreadExpression):
            step = section in _SECTIONS and field not in _IDLE_FIELDS
            if step and (option in MAPPED or name == "mixed_precision"):
                raise InputError(
                    f"{self.source}: {name}: {value.text[:60]} is computed when the program runs; write its value, "
                    "or run it once and give the configuration that it writes or logs"
                )
            idle = section in _IDLE_SECTIONS or of_data or field in _IDLE_FIELDS or option in NO_EFFECT
            return self.no_effect if idle else self.unknown
        word = (" ".join(map(str, value)) if isinstance(value, list) else str(value)).strip("[]'\" ").replace(",", " ")
        off = word.lower() in ("none", "null", "") and field != "position_embedding_type"
        if name in _LAYER_FIELDS and not off:
            return {option: (str(value).strip("'\" "),)}
        if name == "mixed_precision":
            return {}  # off
        if section in _IDLE_SECTIONS or (of_data and field not in _MODEL_FIELDS_OF_DATA):
            return self.no_effect
        if section not in _SECTIONS or not field or "." in field:
            return self.unknown
        if field in _IDLE_FIELDS or field.startswith("_"):
            return self.no_effect
        if off or (field, word) in (("mtp_num_layers", "0"), ("moe_router_dtype", "bf16")):  # the activations' format
            return {}
        if field in _INVERTED:
            inverse = {"true": "false", "false": "true"}.get(word.lower())
            if inverse is None:
                raise InputError(f"{self.source}: {name}: {word[:40]!r} is neither true nor false; write one of them")
            return {option: (inverse,)} if option in MAPPED or inverse == "true" else {}
        if option not in _KNOWN and not option.startswith(_FAMILIES):
            return self.unknown
        if option not in MAPPED and word.lower() == "false":
            return self.no_effect  # a feature that is not modelled is off
        return {option: tuple(_FORMATS.get(word, word).split())}


def _read_overrides(text: str, source: str, read_file: FileReader) -> tuple[str, RecipeSettings]:
    if re.search(r"\b(run_script|setup_experiment)\.py\b", text):
        raise InputError(
            f"{source}: starts Megatron-Bridge's performance launcher, whose recipes are code: {CONFIG_ADVICE}"
        )
    recipe, settings = _parse_overrides(text, source)
    if recipe and not (isinstance(recipe, str) and _known_recipe_model(recipe)):
        prefixes = join_or([name for name, model in _RECIPES.items() if model])
        known = f"known prefixes: {prefixes} (as in llama3_8b_pretrain_config)"
        against = named_models.explain_not_decoder(str(recipe))
        raise InputError(
            f"{source}: recipe {quote_value(recipe)} is unknown; {f'the model {against}' if against else known}; or "
            "give the model's fields, as in model.num_layers=32"
        )
    named = named_models.find_named_model(str(settings.pop("model.hf_model_id", None) or ""), source, read_file)
    if recipe:
        said = (f"only the model of recipe {recipe} is used; parallelism and batch are those of this file",)
        own = _known_recipe_model(recipe)
        named = named_models.load_published_model(own) if own in _TABLES["beyond_options"].split() else named
        return recipe, RecipeSettings(named, settings, said)
    if named.name:
        router = named_models.published_router_settings(named.name)
        settings = {f"model.{key}": value for key, value in router.items()} | settings
        what = "unset values are Megatron-Core's defaults, since no recipe is named"
        return "", RecipeSettings(named, settings, (what, *named.assumed))
    if "model.num_layers" not in settings:
        raise InputError(
            f"{source}: does not give the model's number of layers; name the recipe that they change, as in recipe: "
            "llama3_8b_pretrain_config, or give the model's fields, as in model.num_layers=32"
        )
    return "", RecipeSettings(named, settings)


def _parse_overrides(text: str, source: str) -> tuple[Any, dict[str, Any]]:
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, the limit; check the path")
    if re.search(r"^\s*\w+:(\s|$)", text, re.MULTILINE):
        data = parse_document(text, source=source).data
        return data.pop("recipe", "") or "", flatten_settings(data, source)
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\r?\n", " ", text), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a list of overrides such as model.num_layers=32: {problem}") from None
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    recipe, found = "", dict[str, Any]()
    for word in words[programs[0] + 1 :] if programs else words:
        name, equals, value = word.partition("=")
        if name == "--recipe" or (not equals and not recipe and not name.startswith("-")):
            recipe = value if equals else "" if name[:1] == "-" else name
        elif not equals:
            raise InputError(f"{source}: {word[:60]!r} is not an override; write model.tensor_model_parallel_size=8")
        elif (name := name.lstrip("+-~")) in found:
            raise InputError(f"{source}: {name[:60]} is given twice; keep one")
        else:
            found[name] = value
    return recipe, found


def _known_recipe_model(recipe: str) -> str:
    fitting = [known for known in _RECIPES if f"{recipe}_".startswith(f"{known}_")]
    return _RECIPES[max(fitting, key=len)] if fitting else ""


def mixed_precision_settings(recipe: str, source: str) -> dict[str, Any]:
    """Return the settings of a mixed-precision recipe, recognised by the first part of its name."""
    known: dict[str, dict[str, Any]] = _TABLES["precisions"]
    name = max((name for name in known if recipe.startswith(name)), key=len, default="")
    if not name:
        raise InputError(
            f"{source}: mixed_precision {recipe[:40]!r} is not modelled{did_you_mean(recipe, list(known))}; known "
            f"prefixes: {', '.join(known)}"
        )
    return {f"mixed_precision.{field}": value for field, value in known[name].items()}
