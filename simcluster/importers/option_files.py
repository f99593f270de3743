"""Options of Megatron-LM in YAML, as its functional tests keep them: a mapping under ``MODEL_ARGS``, or alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import parse_document
from simcluster.importers.arguments import Arguments
from simcluster.importers.environment_settings import assumed_of_environment, attention_in

_FILE = re.compile(r"^(MODEL_ARGS(_\d+)?\s*:|['\"]?--[A-Za-z][\w-]*['\"]?:(\s|$))", re.MULTILINE)
_ANCHORED = re.compile(r"^(\w+):[ \t]*&(\w+)[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|[ \t]*#.*\n|\n)*)", re.MULTILINE)
_MERGED = re.compile(r"^([ \t]+)<<:[ \t]*\*(\w+)[ \t]*\n((?:\1[^ \t\n].*\n|\1[ \t]+.*\n|[ \t]*#.*\n)*)", re.MULTILINE)
_OPTION = re.compile(r"^[ \t]+['\"]?(--[\w-]+)['\"]?[ \t]*:[ \t]+[^\s#]")
_SECTION = re.compile(r"^[ \t]*\w[\w-]*:[ \t]*(#.*)?$")
_KEY = re.compile(r"^\s+(['\"]?[\w.-]+['\"]?)\s*:")


def is_option_file(text: str) -> bool:
    """Whether the text is a YAML file of options, and not a command or a script."""
    return _FILE.search(text) is not None


def arguments_of_yaml(text: str, source: str) -> Arguments:
    """The options in a file of one mapping from ``--name`` to value; true is an option alone, and false none.

    Where a file has several, for runs that follow each other, the first counts; of an option that is given again the
    last, as where Megatron-LM's tests read it.  Raises InputError for what is no YAML or has no options.
    """
    once, repeated = last_ones(_merged(text if text.endswith("\n") else text + "\n"))
    data = parse_document(once, source=source).data
    names = [name for name, value in data.items() if _of_options(name, value)]
    found = data.get("MODEL_ARGS") if "MODEL_ARGS" in names else data[names[0]] if names else data
    if not isinstance(found, Mapping) or not found or "MODEL_ARGS" in found:
        raise InputError(f"{source}: MODEL_ARGS holds no options; write them as in --num-layers: 32")
    first = ["the first of the runs in the file, MODEL_ARGS"] if len(names) > 1 else []
    environment: Any = data.get("ENV_VARS")
    environment = environment if isinstance(environment, Mapping) else {}
    repeats = (f"{name} is given more than once, and the last counts" for name in repeated)
    assumed = (*first, *repeats, *assumed_of_environment(environment))
    options = {
        str(name).lstrip("-").replace("_", "-"): option_words(value) for name, value in found.items() if _given(value)
    }
    mode = str(data.get("MODE", "pretraining"))
    if mode not in ("pretraining", "pretrain"):
        options["mode"] = (mode,)
    return Arguments({**options, **attention_in(environment, options)}, assumed=assumed)


def _of_options(name: str, value: Any) -> bool:
    return re.fullmatch(r"MODEL_ARGS(_\d+)?", name) is not None and isinstance(value, Mapping)


def _given(value: Any) -> bool:
    return value is not None and value is not False


def option_words(value: Any) -> tuple[str, ...]:
    """A value of YAML as the words behind an option: none of a switch that is on."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def last_ones(text: str, form: re.Pattern[str] = _OPTION) -> tuple[str, tuple[str, ...]]:
    """The text without the lines of options that the same mapping gives again further down, and which these are."""
    lines = text.splitlines(keepends=True)
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for number in range(len(lines) - 1, -1, -1):
        option = form.match(lines[number])
        if option and option[1] in seen:
            repeated[option[1]], lines[number] = None, "\n"
        elif option:
            seen.add(option[1])
        elif lines[number][:1].strip(" \t\n#") or _SECTION.match(lines[number]):  # another mapping ends above it
            seen.clear()
    return "".join(lines), tuple(repeated)


def _merged(text: str) -> str:
    """The text with ``<<: *NAME`` written out, which the reader of documents refuses: it has no anchors."""
    anchored = {name: body for _, name, body in _ANCHORED.findall(text)}

    def written(found: re.Match[str]) -> str:
        own = {match[1] for line in found[3].splitlines() if (match := _KEY.match(line))}
        lines = anchored.get(found[2], "").splitlines(keepends=True)
        return "".join(line for line in lines if not ((key := _KEY.match(line)) and key[1] in own)) + found[3]

    plain = _MERGED.sub(written, text) if anchored else text
    return _ANCHORED.sub(lambda found: f"{found[1]}:\n{found[3]}", plain)
