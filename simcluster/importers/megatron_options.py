"""Classification and type checks of Megatron-LM options, by the tables in ``megatron_options.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.import_result import SettingClassifier, TrackedSettings, is_switched_off
from simcluster.importers.launch_arguments import explain_unexpanded_value
from simcluster.importers.layer_lists import NumberOrLayerList, parse_layer_list


def _invert_name_table(groups: Mapping[str, str]) -> dict[str, str]:
    """Convert a table {text: "name1 name2 ..."} to {name1: text, name2: text, ...}."""
    return {name: said for said, names in groups.items() for name in names.split()}


_TABLES = read_document(Path(__file__).with_name("megatron_options.yaml")).data
MAPPED = _invert_name_table(_TABLES["mapped"])
NO_EFFECT = frozenset(_TABLES["no_effect"].split())
NO_EFFECT_PREFIXES = tuple(_TABLES["no_effect_prefixes"].split())
NOT_MODELLED = _invert_name_table(_TABLES["not_modelled"])
REFUSED = _invert_name_table(_TABLES["refused"])
REFUSED_PREFIXES = _invert_name_table(_TABLES["refused_prefixes"])
ABSENT_AT_0: list[str] = _TABLES["absent_at_0"].split()
SWITCHED_OFF: dict[str, str] = _TABLES["switched_off"]
VOCABULARIES: dict[str, int] = _TABLES["vocabularies"]
EXPERT_OPTIONS: list[str] = _TABLES["of_experts"].split()
RENAMED: dict[str, str] = _TABLES["renamed"]
INVERTED: dict[str, str] = _TABLES["inverted"]
ON_BY_DEFAULT = frozenset(_TABLES["on_by_default"].split())
FIELD_REQUIREMENTS = {switch: tuple(names.split()) for switch, names in _TABLES["need"].items()}
OTHER_PROGRAMS: dict[str, str] = _TABLES["programs"]
OTHER_LAUNCH_OPTIONS = {what: tuple(names.split()) for what, names in _TABLES["other_launches"].items()}
COMMON_OPTIONS = frozenset(_TABLES["of_any_program"].split())
FLAG_VALUES: dict[str, tuple[str, str]] = _TABLES["values"]
WORD_ALIASES: dict[str, dict[str, str]] = {name: _invert_name_table(words) for name, words in _TABLES["words"].items()}
TOKENIZERS: dict[str, int] = _TABLES["tokenizers"]
UNREAD_TOKENIZERS: dict[str, int] = _TABLES["unread_tokenizers"]
PREFIX_REQUIREMENTS: dict[str, str] = _TABLES["only_with"]
SWIFT_DEFAULTS: dict[str, tuple[str, ...]] = {name: (str(value),) for name, value in _TABLES["swift_defaults"].items()}
LATENT_SIZES: dict[str, tuple[str, int]] = _TABLES["latent_attention"]
_HYDRA_SETTING = re.compile(r"\+{0,2}[a-z]\w*(\.\w+)*=\S*")
_DEFAULT_BOUNDS = "1", "1000000000"
_DIGITS = 20
_PER_LAYER_OPTION = "num-experts"
"""Megatron-DeepSpeed also takes one number per expert layer."""
FILE_OPTIONS = ("tokenizer-model", "vocab-file")
_OFF_WORDS = ("0", "false", "none")


def current_option_name(name: str) -> str:
    """Return a Megatron-LM option's current name, given an old name or a flag that represents one of its values."""
    return RENAMED.get(renamed := FLAG_VALUES.get(name, (name,))[0], renamed)


class MegatronOptions(SettingClassifier):
    """Megatron-LM options of one command, checked and sorted into modelled, ignored and refused ones."""

    def __init__(self, source: str, dashes: str, problems: Iterable[str] = ()) -> None:
        super().__init__(source, dashes, problems)
        self.values = TrackedSettings()
        self.given: dict[str, tuple[str, ...]] = {}
        self._invalid_options: dict[str, InputError] = {}
        self._written_names: dict[str, str] = {}

    def error(self, name: str, message: str) -> InputError:
        """Return an InputError about an option, named as the user wrote it."""
        return super().error(self._written_names.get(name, name), message)

    def classify_all(self, options: Mapping[str, tuple[str, ...]]) -> None:
        """Classify every option; record a problem for each option that changes the step time and is not modelled."""
        plain: dict[str, tuple[str, ...]] = {}
        for written, words in options.items():
            value, name = FLAG_VALUES.get(written, ("", ""))[1], current_option_name(written)
            words, least = (value,) if value else words, int(MAPPED.get(name) != "flag")
            count = len(words)
            while count > least and _HYDRA_SETTING.fullmatch(words[count - 1]):  # Hydra settings after the last option
                count -= 1
            self.unknown += words[count:]
            if plain.get(name, words[:count]) != words[:count]:
                self.problems.record(self.error(name, "is given under two names with two values; keep one"))
            plain[name] = words[:count]
        self._written_names = {RENAMED[old]: old for old in options if old in RENAMED and RENAMED[old] not in options}
        absent = [name for name in ABSENT_AT_0 if plain.get(name) == ("0",)]
        if "deepspeed" in plain and plain.get("num-experts") == ("1",):  # a plain MLP in Megatron-DeepSpeed
            absent.append("num-experts")
        self.no_effect += absent
        plain = {name: words for name, words in plain.items() if name not in absent}
        on = {name for name, words in plain.items() if " ".join(words).lower() not in _OFF_WORDS}
        for name, words in plain.items():
            self.given[name] = words
            if name in MAPPED:
                try:
                    self.values[name] = self._parse_option(name, MAPPED[name], words)
                except InputError as problem:
                    self._invalid_options[name] = problem
                    self.problems.record(problem)
                continue
            families = (why for prefix, why in REFUSED_PREFIXES.items() if name.startswith(prefix))
            refused = REFUSED.get(name) or next(families, "")
            switch = next((switch for prefix, switch in PREFIX_REQUIREMENTS.items() if name.startswith(prefix)), name)
            off = " ".join(words).lower() in (*_OFF_WORDS, SWITCHED_OFF.get(name, "0"))
            known = bool(refused) or name in NOT_MODELLED or name in NO_EFFECT
            # an unknown option that counts experts may be a fork's name of the switch
            alone = switch != name and switch not in on and (known or "num-experts" not in name)
            idle = name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES) or is_switched_off(name, " ".join(words))
            self.classify(
                name, refused=refused, modelled=NOT_MODELLED.get(name, ""), on=not (off or alone), idle=idle or alone,
                way=f" (--arg=--{self._written_names.get(name, name)}=none does)" if self._dashes else "", known=MAPPED,
            )  # fmt: skip

    def _parse_option(self, name: str, type_text: str, words: tuple[str, ...]) -> Any:
        kind, *known = type_text.split()
        shell = explain_unexpanded_value(" ".join(words))
        if shell and name not in FILE_OPTIONS:
            raise self.error(name, shell)
        if kind == "words":
            return " ".join(words)
        if kind == "flag":
            if len(words) > 1 or (words and words[0].lower() not in ("true", "false", "1", "0")):
                raise self.error(name, f"takes no value, got {' '.join(words)[:40]!r}")
            return not words or words[0].lower() in ("true", "1")
        if name == _PER_LAYER_OPTION:
            if len(set(words)) > 1:
                raise self.error(name, "different numbers per layer are not modelled; give one for all")
            words = words[:1]
        if len(words) != 1:
            raise self.error(name, f"takes one value, got {len(words)}; keep one")
        word = words[0]
        if kind == "count":
            least, most = map(int, (*known, *_DEFAULT_BOUNDS[len(known) :]))
            if not word.isascii() or not word.isdecimal() or not least <= int(word[:_DIGITS]) <= most:
                raise self.error(name, f"{word[:40]!r} is not a whole number from {least} to {most}")
            return int(word)
        if kind == "number":
            try:
                value = float(word)
            except ValueError:
                value = -1.0
            if not 0 <= value <= 1:
                raise self.error(name, f"{word[:40]!r} is not a number from 0 to 1")
            return value
        word = WORD_ALIASES.get(name, {}).get(word.lower(), word)
        if word not in known:
            near = did_you_mean(word, known, 0.65)
            raise self.error(name, f"{word[:40]!r} is not modelled{near}; known: {join_or(known)}")
        return word

    def get(self, *names: str) -> Any:
        """Return the value of the first present option in ``names``, or None; raise InputError for an invalid value."""
        bad = next((self._invalid_options[name] for name in names if name in self._invalid_options), None)
        if bad:
            raise bad
        given = [name for name in names if name in self.values]
        if len(given) > 1 and self.values[given[0]] != self.values[given[1]]:
            raise self.error(given[1], f"is another name of {given[0]}, which is also given; keep one")
        return self.values[given[0]] if given else None

    def is_on(self, *names: str) -> bool:
        """Return whether any of the switches ``names`` is on."""
        return any(self.values.get(name) is True for name in names)

    def number_or_layer_list(self, name: str, layers: int) -> NumberOrLayerList | None:
        """Return an option's whole number, or its list with one number per layer; None for an absent option."""
        text = self.get(name)
        if text is None:
            return None
        try:
            value = parse_layer_list(text)
        except InputError as problem:
            raise self.error(name, str(problem)) from None
        if isinstance(value, list) and len(value) != layers:
            raise self.error(name, f"is a list of {len(value)} layers, but num-layers is {layers}")
        if value == 0:
            raise self.error(name, "0 is neither a whole number from 1 nor a list of layers")
        return value

    def drop_options(self, needed: str, consequence: str, names: Sequence[str]) -> None:
        """Drop options that have no effect without the option ``needed`` ("": as ``consequence`` says), and note it."""
        given = [name for name in names if name in self.values]
        idle = [name for name in given if self.values[name] is not False]
        for name in given:
            del self.values[name]
        self.no_effect += given
        if idle:
            since = f", since {needed} is not given" if needed else ""
            self.assumed.append(f"{consequence}{since}; so {', '.join(idle)} has no effect")

    def require(self, *names: str) -> Any:
        """Return the value of the first present option in ``names``; raise InputError if none is present."""
        value = self.get(*names)
        if value is None:
            section = "train" if "batch" in names[0] else "model"
            written = "" if self._dashes else f", as {section}.{names[0].replace('-', '_')}"
            there = ": it is in the checkpoint (--use-checkpoint-args)" if "use-checkpoint-args" in self.given else ""
            remedy = f"give it as --arg=--{names[0]}=..." if there else f"add it{written}"
            raise InputError(f"{self.source}: {self._dashes}{names[0]} is missing{there}; {remedy}")
        return value
