"""A torchtitan job as a shell script starts it: the job config that it names or writes, with what is said behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.arguments import for_a_shell
from simcluster.importers.beside import Beside
from simcluster.importers.environment_settings import assumed_of_environment
from simcluster.importers.flat_settings import flattened, parse_toml_or_json
from simcluster.importers.processes import started_by
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined
from simcluster.importers.torchtitan_settings import is_mapped

_NAMED = re.compile(r"--job\.config[_-]file")
_OVERRIDE = re.compile(r"--([a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)+)(?:=(.*))?", re.DOTALL)
_CONFIG = re.compile(r"^\[(model|training)\]", re.MULTILINE)
_VARIABLE = "CONFIG_FILE"
"""What run_train.sh, which a script may start, takes the path of the job config from."""


@dataclass(frozen=True)
class StartedJob:
    """The settings of a job by dotted name, how many GPUs its launcher starts (None: that is not said), and what of
    the script is assumed."""

    settings: dict[str, Any]
    gpus: int | None
    assumed: tuple[str, ...]


def job_of_script(
    text: str, source: str, beside: Beside, given: Mapping[str, str], machine: int | None
) -> StartedJob:  # fmt: skip
    """Return the job that the script starts; InputError where its job config is not there, or it starts none.

    ``given`` are values of its variables, and ``machine`` the GPUs of a node as the script counts them.
    """
    state = read_script(text, State(source, dict(given), beside, machine))
    unset = state.assumed_unset()
    words, around = next(
        ((words, around) for words, around in state.commands if any(_NAMED.match(word) for word in words)),
        ([], state.around),
    )
    named = _named(words) or joined(state.get(_VARIABLE) or "")
    config = state.text_named(named) if named else None
    config = config or next((file for file in state.files.values() if _CONFIG.search(file)), None)
    if config is None and named:
        raise InputError(
            f"{source}: starts torchtitan with {named}, which is not beside it; put it there, or import it"
        )
    if config is None:
        why = "; ".join((state.stopped and f" ({state.stopped})", *unset))
        raise InputError(
            f"{source}: is a script that writes no job config{why}; give the TOML that it starts torchtitan with"
        )
    settings = flattened(parse_toml_or_json(config, named or source), source)
    launched, started = started_by(words, around, machine)
    nodes, each = launched.get("nnodes", "1"), launched.get("nproc-per-node")
    assumed = (*state.assumed, *unset, *started, *assumed_of_environment(state.variables))
    return StartedJob(settings | _overrides(words, settings, source), int(nodes) * int(each) if each else None, assumed)


def _named(words: Sequence[str]) -> str:
    """The path behind --job.config_file."""
    for place, word in enumerate(words):
        if _NAMED.match(word):
            return word.partition("=")[2] or "".join(words[place + 1 : place + 2])
    return ""


def _overrides(words: Sequence[str], settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return what the command line sets over the job config, each of the kind that it has there or looks like.

    Raises InputError for a setting with a place in a scenario whose value only a shell knows.
    """
    found: dict[str, Any] = {}
    for word, after in zip(words, [*words, ""][1:], strict=False):
        match = _OVERRIDE.fullmatch(word)
        if match and not _NAMED.match(word):
            value = match[2] if match[2] is not None else after if after and not after.startswith("--") else "true"
            name = match[1].replace("-", "_")
            if is_mapped(name) and (shell := for_a_shell(value)):
                raise InputError(f"{source}: --{name}: {shell}")
            found[name] = _typed(value, settings.get(name))
    return found


def _typed(text: str, before: Any) -> Any:
    if isinstance(before, str):
        return text
    if isinstance(before, list):
        return [part for part in text.split(",") if part]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return text
