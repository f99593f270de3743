"""Options of Megatron-LM in YAML, as its functional tests keep them: a mapping under ``MODEL_ARGS``, or alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import parse_document
from simcluster.importers.arguments import Arguments

_FILE = re.compile(r"^(MODEL_ARGS(_\d+)?\s*:|['\"]?--[A-Za-z][\w-]*['\"]?:(\s|$))", re.MULTILINE)
_ANCHORED = re.compile(r"^(\w+):[ \t]*&(\w+)[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|[ \t]*#.*\n|\n)*)", re.MULTILINE)
_MERGED = re.compile(r"^([ \t]+)<<:[ \t]*\*(\w+)[ \t]*\n((?:\1[^ \t\n].*\n|\1[ \t]+.*\n|[ \t]*#.*\n)*)", re.MULTILINE)
_KEY = re.compile(r"^\s+(['\"]?[\w.-]+['\"]?)\s*:")


def is_option_file(text: str) -> bool:
    """Whether the text is a YAML file of options, and not a command or a script."""
    return _FILE.search(text) is not None


def arguments_of_yaml(text: str, source: str) -> Arguments:
    """The options in a file of one mapping from ``--name`` to value; true is an option alone, and false none.

    Where a file has several, for runs that follow each other, the first counts.  Raises InputError for what is no YAML
    or has no options.
    """
    data = parse_document(_merged(text if text.endswith("\n") else text + "\n"), source=source).data
    names = [name for name, value in data.items() if _of_options(name, value)]
    found = data.get("MODEL_ARGS") if "MODEL_ARGS" in names else data[names[0]] if names else data
    if not isinstance(found, Mapping) or not found or "MODEL_ARGS" in found:
        raise InputError(f"{source}: MODEL_ARGS holds no options; write them as in --num-layers: 32")
    assumed = ("the first of the runs in the file, MODEL_ARGS",) if len(names) > 1 else ()
    options = {str(name).lstrip("-").replace("_", "-"): _words(value) for name, value in found.items() if _given(value)}
    mode = str(data.get("MODE", "pretraining"))
    if mode not in ("pretraining", "pretrain"):
        options["mode"] = (mode,)
    return Arguments(options, assumed=assumed)


def _of_options(name: str, value: Any) -> bool:
    return re.fullmatch(r"MODEL_ARGS(_\d+)?", name) is not None and isinstance(value, Mapping)


def _given(value: Any) -> bool:
    return value is not None and value is not False


def _words(value: Any) -> tuple[str, ...]:
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def _merged(text: str) -> str:
    """The text with ``<<: *NAME`` written out, which the reader of documents refuses: it has no anchors."""
    anchored = {name: body for _, name, body in _ANCHORED.findall(text)}

    def written(found: re.Match[str]) -> str:
        own = {match[1] for line in found[3].splitlines() if (match := _KEY.match(line))}
        lines = anchored.get(found[2], "").splitlines(keepends=True)
        return "".join(line for line in lines if not ((key := _KEY.match(line)) and key[1] in own)) + found[3]

    plain = _MERGED.sub(written, text) if anchored else text
    return _ANCHORED.sub(lambda found: f"{found[1]}:\n{found[3]}", plain)
