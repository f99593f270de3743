"""Parsers that turn TOML, JSON, YAML and environment variables into one flat mapping of settings.

Megatron-LM's functional tests keep options in a mapping under ``MODEL_ARGS``, or on their own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.composing import explain_toml
from simcluster.documents.reading import parse_document, parse_json, read_document, unique_keys
from simcluster.importers.arguments import Arguments

_MAX_CHARACTERS = 1_000_000
_YAML = re.compile(r"^[A-Za-z_][\w.-]*:([ \t]|$)", re.MULTILINE)
_TOML = re.compile(r"^\[|^[\w.-]+[ \t]*=", re.MULTILINE)
_MAX_DEPTH = 8
_OPTION_LINE = re.compile(r"^(MODEL_ARGS(_\d+)?\s*:|['\"]?--[A-Za-z][\w-]*['\"]?:(\s|$))", re.MULTILINE)
_ANCHOR = re.compile(r"^(\w+):[ \t]*&(\w+)[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|[ \t]*#.*\n|\n)*)", re.MULTILINE)
_MERGE = re.compile(r"^([ \t]+)<<:[ \t]*\*(\w+)[ \t]*\n((?:\1[^ \t\n].*\n|\1[ \t]+.*\n|[ \t]*#.*\n)*)", re.MULTILINE)
_OPTION = re.compile(r"^[ \t]+['\"]?(--[\w-]+)['\"]?[ \t]*:[ \t]+[^\s#]")
_SECTION = re.compile(r"^[ \t]*\w[\w-]*:[ \t]*(#.*)?$")
_KEY = re.compile(r"^\s+(['\"]?[\w.-]+['\"]?)\s*:")
_VARIABLES: Mapping[str, Mapping[str, str]] = read_document(Path(__file__).with_name("environment_settings.yaml")).data
_BACKENDS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")


def flatten(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Flatten ``{"model": {"seq_length": 1}}`` to ``{"model.seq_length": 1}``; lists stay as they are."""
    found: dict[str, Any] = {}

    def walk(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        if len(path) >= _MAX_DEPTH:
            raise InputError(f"{source}: {'.'.join(path)[:60]}: is nested more than {_MAX_DEPTH} sections deep")
        for key, value in part.items():
            if isinstance(value, Mapping):
                walk(value, (*path, str(key)))
            else:
                found[".".join((*path, str(key)))] = value

    walk(data, ())
    return found


def parse_toml_or_json(text: str, source: str, expected: str = "TOML or JSON") -> dict[str, Any]:
    """Parse the sections of a job file in TOML, or in JSON if it begins with a brace."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, so not a job config; check the path")
    data: Any
    try:
        if text.lstrip().startswith("{"):
            data = parse_json(text, source, object_pairs_hook=unique_keys, parse_constant=_refuse_non_finite_number)
        else:
            data = tomllib.loads(text)
    except InputError:
        raise
    except (RecursionError, ValueError) as problem:  # also an integer of thousands of digits
        if _YAML.search(text) and not _TOML.search(text):
            raise InputError(f"{source}: is YAML; give the configuration as {expected}") from None
        line = re.search(r"line (\d+)", str(problem))
        deep = isinstance(problem, RecursionError)
        meaning = "it is nested too deeply" if deep else explain_toml(str(problem))
        raise InputError(f"{source}{f':{line[1]}' if line else ''}: is not TOML: {meaning}") from None
    if not isinstance(data, dict) or not data:
        raise InputError(f"{source}: has no settings, such as [training] with seq_len = 8192")
    return data


def _refuse_non_finite_number(text: str) -> Any:
    raise InputError(f"{text} is not a JSON number; write a finite number")


def is_option_file(text: str) -> bool:
    """Return whether the text is a YAML file of Megatron-LM options, not a command or a script."""
    return _OPTION_LINE.search(text) is not None


def parse_option_file(text: str, source: str) -> Arguments:
    """Return the options of a YAML file that maps ``--name`` to its value (true for a bare flag).

    If a file has several mappings, for consecutive runs, the first one counts; of a repeated option the last value
    counts, as in Megatron-LM's tests. Raises InputError for text that is not YAML or has no options.
    """
    once, repeated = keep_last_options(_expand_merges(text if text.endswith("\n") else text + "\n"))
    data = parse_document(once, source=source).data
    runs = [key for key in data if re.fullmatch(r"MODEL_ARGS(_\d+)?", key) and isinstance(data[key], Mapping)]
    found = data.get("MODEL_ARGS") if "MODEL_ARGS" in runs else data[runs[0]] if runs else data
    if not isinstance(found, Mapping) or not found or "MODEL_ARGS" in found:
        raise InputError(f"{source}: MODEL_ARGS has no options; write them as in --num-layers: 32")
    environment: Any = data.get("ENV_VARS") if isinstance(data.get("ENV_VARS"), Mapping) else {}
    assumed = ["the first run in the file, MODEL_ARGS"] if len(runs) > 1 else []
    assumed += [f"{name} is given more than once; the last value is used" for name in repeated]
    given = {str(name): value for name, value in found.items() if value is not None and value is not False}
    options = {name.lstrip("-").replace("_", "-"): option_value_words(value) for name, value in given.items()}
    mode = str(data.get("MODE", "pretraining"))
    options |= {} if mode in ("pretraining", "pretrain") else {"mode": (mode,)}
    return Arguments(
        {**options, **attention_option(environment, options)}, assumed=(*assumed, *environment_assumptions(environment))
    )


def option_value_words(value: Any) -> tuple[str, ...]:
    """Return a YAML value as the command-line words after an option (none for a flag that is on)."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def keep_last_options(text: str, form: re.Pattern[str] = _OPTION) -> tuple[str, tuple[str, ...]]:
    """Return YAML text without options that the same mapping repeats later, and the repeated names."""
    lines = text.splitlines(keepends=True)
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for number in range(len(lines) - 1, -1, -1):
        option = form.match(lines[number])
        if option and option[1] in seen:
            repeated[option[1]], lines[number] = None, "\n"
        elif option:
            seen.add(option[1])
        elif lines[number][:1].strip(" \t\n#") or _SECTION.match(lines[number]):  # another mapping ends here
            seen.clear()
    return "".join(lines), tuple(repeated)


def _expand_merges(text: str) -> str:
    """Return YAML text with ``<<: *NAME`` expanded, since the document reader has no anchors."""
    anchored = {name: body for _, name, body in _ANCHOR.findall(text)}

    def written(found: re.Match[str]) -> str:
        own = {match[1] for line in found[3].splitlines() if (match := _KEY.match(line))}
        lines = anchored.get(found[2], "").splitlines(keepends=True)
        return "".join(line for line in lines if not ((key := _KEY.match(line)) and key[1] in own)) + found[3]

    plain = _MERGE.sub(written, text) if anchored else text
    return _ANCHOR.sub(lambda found: f"{found[1]}:\n{found[3]}", plain)


def environment_assumptions(environment: Mapping[str, object]) -> tuple[str, ...]:
    """Return one assumption per kind of environment variable that would change the step time."""
    said = {
        "nccl": "NCCL is assumed to use the cluster's defaults, without {}",
        "kernels": "kernels are assumed to run as without {}",
        "domains": "NVLink domains are those of the cluster, not of {}",
    }
    sentences = []
    for kind, sentence in said.items():
        given = {name: str(environment.get(name, "")) for name in _VARIABLES[kind]}
        set_ = [
            f"{name}={value[:20]}"
            for name, value in given.items()
            if value and value not in _VARIABLES[kind][name].split()
        ]
        sentences += [sentence.format(", ".join(set_))] if set_ else []
    return tuple(sentences)


def section_environment(settings: Mapping[str, object], section: str) -> dict[str, object]:
    """Return the environment variables that a settings section sets, as a mapping or as dotted names."""
    whole = settings.get(section)
    dotted = {name.removeprefix(f"{section}."): settings[name] for name in settings if name.startswith(f"{section}.")}
    return ({str(name): value for name, value in whole.items()} if isinstance(whole, Mapping) else {}) | dotted


def attention_option(environment: Mapping[str, object], options: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the attention backend option implied by Transformer Engine's environment variables.

    With both kernels off, attention runs in separate kernels (``get_attention_backend``,
    dot_product_attention/utils.py).
    """
    both = all(str(environment.get(name)) == "0" for name in _BACKENDS)
    given = {"attention-backend", "use-flash-attn"} & options.keys()
    return {"attention-backend": ("unfused",)} if both and not given else {}
