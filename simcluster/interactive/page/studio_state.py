"""States of the studio: a base scenario and control settings, converted to and from links and files.

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
from simcluster.documents.builtin_documents import builtin_names, builtin_path
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.input_files import folder_files_hint
from simcluster.documents.trusted_text import is_function_reference
from simcluster.documents.yaml_documents import read_document
from simcluster.interactive.controls.settings import ControlSettings, check_setting, settings_overrides, sort_settings
from simcluster.scenario.scenario import Scenario, ScenarioOrigin

MOST_LINK = 4096
"""Maximum number of characters in a link."""

_FILE = re.compile(r"[\w][\w .()+-]{0,120}\.ya?ml")
_BASE = "scenario"


@dataclass(frozen=True, slots=True)
class StudioState:
    """State of the studio: the name of a base scenario (built-in or a file), and settings of its controls."""

    base: str
    settings: ControlSettings = ()

    def to_link(self) -> str:
        """Return the state as the part of a link after "#", with values as JSON."""
        pairs = [(_BASE, self.base), *((key, json.dumps(value)) for key, value in self.settings)]
        return "&".join(f"{key}={quote(value, safe='[],.')}" for key, value in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON, in the format of the page's messages."""
        return {"base": self.base, "settings": dict(self.settings)}


def parse_link(text: str) -> StudioState:
    """Parse the part of a studio link after "#"; raise InputError if it is invalid."""
    if len(text) > MOST_LINK:
        raise InputError(f"a link of the studio has at most {MOST_LINK:,} characters, got {len(text):,}")
    try:
        pairs = dict(parse_qsl(text.removeprefix("#"), keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise InputError("not a link of the studio; write scenario=NAME&parallel.tp=4") from None
    base = pairs.pop(_BASE, "")
    return parse_state({"base": base, "settings": {key: parse_value(value) for key, value in pairs.items()}})


def parse_value(text: str) -> object:
    """Parse a JSON value; return the text unchanged if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_state(value: object) -> StudioState:
    """Parse a studio state that the page sent; raise InputError if it is invalid."""
    if not isinstance(value, Mapping) or not value.keys() <= {"base", "settings"}:
        raise InputError(
            f"a studio state must have only the keys 'base' and 'settings', got {quote_value(value)}; write "
            '{"base": "tiny_3d", "settings": {"parallel.tp": 2}}'
        )
    base, settings = value.get("base"), value.get("settings", {})
    if not isinstance(base, str) or not base or len(base) > 200:
        raise InputError(f"'base' of a studio state must name a scenario, as in tiny_3d; got {quote_value(base)}")
    if not isinstance(settings, Mapping):
        raise InputError(
            f"'settings' of a studio state must be a mapping of controls to values, as in "
            f"{{'parallel.tp': 2}}; got {quote_value(settings)}"
        )
    found = {str(key): check_setting(str(key), each) for key, each in settings.items()}
    return StudioState(base, sort_settings(found))


# --- scenarios --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StudioFolder:
    """The folder of the studio's scenario files; the studio reads and writes no files elsewhere."""

    path: Path

    def scenario_names(self) -> list[str]:
        """Return the sorted names of the scenario files in the folder, without subfolders."""
        found = (each.name for each in self.path.iterdir() if each.suffix in (".yaml", ".yml"))
        return sorted(name for name in found if self.find_file(name) is not None)

    def find_file(self, name: str) -> Path | None:
        """Return the path of a scenario file in the folder; None for other names and for symlinks to other folders."""
        path = self.path / name
        if not _FILE.fullmatch(name) or not path.is_file() or path.resolve().parent != self.path.resolve():
            return None
        return path

    def path_to_write(self, name: str) -> Path:
        """Return the path at which to save a scenario file; raise InputError for an invalid or existing name."""
        if not name.endswith((".yaml", ".yml")):
            name += ".yaml"
        if not _FILE.fullmatch(name):
            raise InputError(f"{quote_value(name)} is not a valid scenario name; use letters, digits, - and _")
        path = self.path / name
        if path.exists() or path.is_symlink():
            raise InputError(f"{name} already exists; choose another name")
        return path

    def scenario_path(self, base: str) -> Path:
        """Return the file of a base scenario; raise InputError if it is neither built-in nor in the folder."""
        path = self.find_file(base)
        if path is not None:
            return path
        if base in builtin_names("scenarios"):
            return builtin_path("scenarios", base)
        if base.endswith((".yaml", ".yml")):
            tip = folder_files_hint(self.path) or "; give another folder with --folder"
            raise InputError(f"{quote_value(base)}: there is no such file in the studio's folder {self.path.name}{tip}")
        return builtin_path("scenarios", base)


def load_state_scenario(state: StudioState, folder: StudioFolder) -> Scenario:
    """Load the scenario that a studio state describes; raise InputError with all problems if it is invalid.

    No Python code is run: a file whose schedule is a Python function is rejected.
    """
    path = folder.scenario_path(state.base)
    return _load_changed_scenario(path, path.stat().st_mtime_ns, state)


@lru_cache(maxsize=16)
def _load_changed_scenario(path: Path, mtime_ns: int, state: StudioState) -> Scenario:
    document = _read_document(path, mtime_ns)
    pipeline = document.data.get("pipeline")
    schedule = pipeline.get("schedule") if isinstance(pipeline, Mapping) else None
    replaced = any(key == "pipeline.schedule" for key, _ in state.settings)
    if isinstance(schedule, str) and is_function_reference(schedule) and not replaced:
        raise InputError(
            f"{state.base}: pipeline.schedule names a Python function ({quote_value(schedule)}), which the studio "
            "does not run; write the schedule as rows (simcluster schedule --csv) and name that file"
        )
    return ScenarioOrigin(document).with_changes(settings_overrides(state.settings, document.data))


@lru_cache(maxsize=32)
def _read_document(path: Path, mtime_ns: int) -> Any:
    return read_document(path)
