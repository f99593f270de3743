"""A variant: a base scenario with some of its values changed.  What sweeps play, each by its own; small to send."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document
from simcluster.scenario.scenario import Scenario, from_document, load, scenario_path


@dataclass(frozen=True, slots=True)
class Base:
    """What variants are variants of: the name or path of a scenario file, or a document with its folder."""

    what: Mapping[str, Any] | str
    folder: str = "."

    def scenario(self, changes: tuple[tuple[str, Any], ...]) -> Scenario:
        """The base with values at dotted paths changed; InputError if that cannot be."""
        if isinstance(self.what, str):
            return load(self.what, changes)
        return from_document(self.what, changes, folder=self.folder)

    def fingerprint(self) -> str:
        """Equal for bases that give the same variants: of what they say, as resolved where that can be done without
        a change."""
        try:
            document: Any = self.scenario(()).document()
        except InputError:
            document = read_document(scenario_path(self.what)).data if isinstance(self.what, str) else self.what
        text = json.dumps(document, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed scenario: ``changes`` are (dotted path, value), later ones win."""

    base: Base
    changes: tuple[tuple[str, Any], ...]

    def scenario(self) -> Scenario:
        """The scenario; InputError if it cannot be."""
        return self.base.scenario(self.changes)

    def key(self, fingerprint: str) -> str:
        """Equal for equal changes of bases of that fingerprint."""
        text = json.dumps([fingerprint, self.changes], default=str)
        return hashlib.sha256(text.encode()).hexdigest()
