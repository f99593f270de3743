"""Parsers of TOML, JSON and YAML settings to dicts with dotted names, and rules for environment variables.

Megatron-LM's functional tests keep options in a mapping under ``MODEL_ARGS``, or on their own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import parse_document, parse_json, read_document, require_unique_keys
from simcluster.documents.yaml_syntax import explain_toml_error
from simcluster.importers.launch_arguments import LaunchArguments

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


def flatten_settings(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Flatten ``{"model": {"seq_length": 1}}`` to ``{"model.seq_length": 1}``; lists stay as they are."""
    found: dict[str, Any] = {}

    def add_section(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        if len(path) >= _MAX_DEPTH:
            raise InputError(f"{source}: {'.'.join(path)[:60]}: is nested more than {_MAX_DEPTH} sections deep")
        for key, value in part.items():
            if isinstance(value, Mapping):
                add_section(value, (*path, str(key)))
            else:
                found[".".join((*path, str(key)))] = value

    add_section(data, ())
    return found


def parse_toml_or_json(text: str, source: str, expected: str = "TOML or JSON") -> dict[str, Any]:
    """Parse the sections of a job file in TOML, or in JSON if it begins with a brace."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {_MAX_CHARACTERS:,} characters, the limit; check the path")
    try:
        if text.lstrip().startswith("{"):
            hooks = {"object_pairs_hook": require_unique_keys, "parse_constant": _refuse_non_finite_number}
            data: Any = parse_json(text, source, **hooks)
        else:
            data = tomllib.loads(text)
    except InputError:
        raise
    except (RecursionError, ValueError) as problem:  # also an integer of thousands of digits
        if _YAML.search(text) and not _TOML.search(text):
            raise InputError(f"{source}: is YAML; give the configuration as {expected}") from None
        line = re.search(r"line (\d+)", str(problem))
        deep = isinstance(problem, RecursionError)
        meaning = "it is nested too deeply" if deep else explain_toml_error(str(problem))
        raise InputError(f"{source}{f':{line[1]}' if line else ''}: is not TOML: {meaning}") from None
    if not isinstance(data, dict) or not data:
        raise InputError(f"{source}: has no settings, such as [training] with seq_len = 8192")
    return data


def _refuse_non_finite_number(text: str) -> Any:
    raise InputError(f"{text} is not a JSON number; write a finite number")


def is_option_file(text: str) -> bool:
    """Return whether a text is a YAML file of Megatron-LM options, rather than a command or a script."""
    return _OPTION_LINE.search(text) is not None


def parse_option_file(text: str, source: str) -> LaunchArguments:
    """Return the options of a YAML file that maps ``--name`` to its value (true for a bare flag).

    If a file has several mappings, for consecutive runs, the first one counts; of a repeated option the last value
    counts, as in Megatron-LM's tests. Raises InputError for text that is not YAML or has no options.
    """
    once, repeated = drop_repeated_options(_expand_yaml_merges(text if text.endswith("\n") else text + "\n"))
    data = parse_document(once, source=source).data
    runs = [key for key in data if re.fullmatch(r"MODEL_ARGS(_\d+)?", key) and isinstance(data[key], Mapping)]
    found = data.get("MODEL_ARGS") if "MODEL_ARGS" in runs else data[runs[0]] if runs else data
    if not isinstance(found, Mapping) or not found or "MODEL_ARGS" in found:
        raise InputError(f"{source}: MODEL_ARGS has no options; write them as in --num-layers: 32")
    environment: Any = data.get("ENV_VARS") if isinstance(data.get("ENV_VARS"), Mapping) else {}
    assumed = ["of several runs in the file, only the first (MODEL_ARGS) is imported"] if len(runs) > 1 else []
    assumed += [f"{name} is given more than once; the last value is used" for name in repeated]
    given = {str(name): value for name, value in found.items() if value is not None and value is not False}
    options = {name.lstrip("-").replace("_", "-"): yaml_value_to_words(value) for name, value in given.items()}
    mode = str(data.get("MODE", "pretraining"))
    options |= {} if mode in ("pretraining", "pretrain") else {"mode": (mode,)}
    options |= attention_backend_option(environment, options)
    return LaunchArguments(options, assumed=(*assumed, *environment_assumptions(environment)))


def yaml_value_to_words(value: Any) -> tuple[str, ...]:
    """Convert an option's YAML value to the words that follow the option on a command line; true gives no words."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def drop_repeated_options(text: str, form: re.Pattern[str] = _OPTION) -> tuple[str, tuple[str, ...]]:
    """Remove each option that the same YAML mapping sets again later; return the text and these options' names."""
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


def _expand_yaml_merges(text: str) -> str:
    """Expand YAML merge keys (``<<: *NAME``) in a text, since the document reader rejects anchors."""
    anchored = {name: body for _, name, body in _ANCHOR.findall(text)}

    def expand_merge(found: re.Match[str]) -> str:
        own = {match[1] for line in found[3].splitlines() if (match := _KEY.match(line))}
        lines = anchored.get(found[2], "").splitlines(keepends=True)
        return "".join(line for line in lines if not ((key := _KEY.match(line)) and key[1] in own)) + found[3]

    plain = _MERGE.sub(expand_merge, text) if anchored else text
    return _ANCHOR.sub(lambda found: f"{found[1]}:\n{found[3]}", plain)


def environment_assumptions(environment: Mapping[str, object]) -> tuple[str, ...]:
    """Return assumptions on environment variables that can change the step time, one for each kind of variable."""
    said = {
        "nccl": "NCCL is assumed to use the cluster's defaults; {} is ignored",
        "kernels": "kernels are assumed to run with default settings; {} is ignored",
        "domains": "NVLink domains are those of the cluster; {} is ignored",
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


def environment_in_section(settings: Mapping[str, object], section: str) -> dict[str, object]:
    """Return a section's environment variables, which may be written as a mapping or as dotted names."""
    whole = settings.get(section)
    dotted = {name.removeprefix(f"{section}."): settings[name] for name in settings if name.startswith(f"{section}.")}
    return ({str(name): value for name, value in whole.items()} if isinstance(whole, Mapping) else {}) | dotted


def attention_backend_option(environment: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the attention backend option that Transformer Engine's environment variables amount to.

    With both kernels off, attention runs in separate kernels (``get_attention_backend``,
    dot_product_attention/utils.py).
    """
    both = all(str(environment.get(name)) == "0" for name in _BACKENDS)
    given = {"attention-backend", "use-flash-attn"} & options.keys()
    return {"attention-backend": ("unfused",)} if both and not given else {}
