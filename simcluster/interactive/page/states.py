"""States of the studio: a base scenario with settings of controls; to and from links and scenario files.

No side effects except reading the base: a built-in scenario, or a file of the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.given_files import list_files
from simcluster.documents.own_words import names_function
from simcluster.documents.reading import read_document
from simcluster.documents.shipped import builtin_names, builtin_path
from simcluster.interactive.controls.settings import Settings, check_value, settings_overrides, sort_settings
from simcluster.scenario.scenario import Origin, Scenario

MOST_LINK = 4096
"""Characters of a link; what is longer is none."""

_FILE = re.compile(r"[\w][\w .()+-]{0,120}\.ya?ml")
_BASE = "scenario"


@dataclass(frozen=True, slots=True)
class StudioState:
    """State of the studio: a base scenario (built-in name or file name), and settings in the order of controls."""

    base: str
    settings: Settings = ()

    def link(self) -> str:
        """Return the state as a URL fragment (after #), with JSON values."""
        pairs = [(_BASE, self.base), *((key, json.dumps(value)) for key, value in self.settings)]
        return "&".join(f"{key}={quote(value, safe='[],.')}" for key, value in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON, as in messages of the page."""
        return {"base": self.base, "settings": dict(self.settings)}


def parse_link(text: str) -> StudioState:
    """Return the studio state of a URL fragment; raise InputError for an invalid one."""
    if len(text) > MOST_LINK:
        raise InputError(f"a link of the studio has at most {MOST_LINK:,} characters, got {len(text):,}")
    try:
        pairs = dict(parse_qsl(text.removeprefix("#"), keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise InputError("not a link of the studio; write scenario=NAME&parallel.tp=4") from None
    base = pairs.pop(_BASE, "")
    return parse_state({"base": base, "settings": {key: parse_value(value) for key, value in pairs.items()}})


def parse_value(text: str) -> object:
    """Parse a JSON value; text that is not JSON is returned as a string."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_state(value: object) -> StudioState:
    """Return the studio state in a message of the page; raise InputError for anything else."""
    if not isinstance(value, Mapping) or not value.keys() <= {"base", "settings"}:
        raise InputError(
            f"a state of the studio must be {{base, settings}}, got {shown(value)}; write "
            '{"base": "tiny_3d", "settings": {"parallel.tp": 2}}'
        )
    base, settings = value.get("base"), value.get("settings", {})
    if not isinstance(base, str) or not base or len(base) > 200:
        raise InputError(f"a state of the studio needs a scenario name as base, as in tiny_3d; got {shown(base)}")
    if not isinstance(settings, Mapping):
        raise InputError(
            f"settings of the studio must be a mapping of controls to values, as in "
            f"{{'parallel.tp': 2}}; got {shown(settings)}"
        )
    found = {str(key): check_value(str(key), each) for key, each in settings.items()}
    return StudioState(base, sort_settings(found))


# --- scenarios --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Folder:
    """The studio's folder, the only one that it reads and writes."""

    path: Path

    def names(self) -> list[str]:
        """Return the names of scenario files in the folder, sorted, without subfolders."""
        found = (each.name for each in self.path.iterdir() if each.suffix in (".yaml", ".yml"))
        return sorted(name for name in found if self.file(name) is not None)

    def file(self, name: str) -> Path | None:
        """Return the path of a file in the folder; None for another name, and for a symlink that leads elsewhere."""
        path = self.path / name
        if not _FILE.fullmatch(name) or not path.is_file() or path.resolve().parent != self.path.resolve():
            return None
        return path

    def to_write(self, name: str) -> Path:
        """Return the path for a new scenario file; raise InputError for an invalid or existing name."""
        if not name.endswith((".yaml", ".yml")):
            name += ".yaml"
        if not _FILE.fullmatch(name):
            raise InputError(f"{shown(name)} is not a valid scenario name; use letters, digits, - and _")
        path = self.path / name
        if path.exists() or path.is_symlink():
            raise InputError(f"{name} already exists; choose another name")
        return path

    def scenario_path(self, base: str) -> Path:
        """Return the file of a base scenario; raise InputError if it is neither built-in nor in the folder."""
        path = self.file(base)
        if path is not None:
            return path
        if base in builtin_names("scenarios"):
            return builtin_path("scenarios", base)
        if base.endswith((".yaml", ".yml")):
            there = list_files(self.path) or "; give another folder with --folder"
            raise InputError(f"{shown(base)}: there is no such file in the studio's folder {self.path.name}{there}")
        return builtin_path("scenarios", base)


def state_scenario(state: StudioState, folder: Folder) -> Scenario:
    """Return the scenario of a studio state; raise InputError with every broken rule.

    No Python code is run: a file whose schedule is a Python function is rejected.
    """
    path = folder.scenario_path(state.base)
    return _load_changed_scenario(path, path.stat().st_mtime_ns, state)


@lru_cache(maxsize=16)
def _load_changed_scenario(path: Path, changed: int, state: StudioState) -> Scenario:
    document = _read_document(path, changed)
    pipeline = document.data.get("pipeline")
    schedule = pipeline.get("schedule") if isinstance(pipeline, Mapping) else None
    replaced = any(key == "pipeline.schedule" for key, _ in state.settings)
    if isinstance(schedule, str) and names_function(schedule) and not replaced:
        raise InputError(
            f"{state.base}: pipeline.schedule is Python ({shown(schedule)}), which the studio does not run; write it "
            "as rows: simcluster schedule --csv"
        )
    return Origin(document).with_changes(settings_overrides(state.settings, document.data))


@lru_cache(maxsize=32)
def _read_document(path: Path, changed: int) -> Any:
    return read_document(path)
