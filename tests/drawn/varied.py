"""Documents of drawn scenarios in which every field that a scope vouches for has a value that is not its default.

``varied.json`` has them, few for all scopes together, drawn or written by hand.  ``python tests/drawn --vary`` draws
those that a new field of a scope needs; tests/test_scopes.py compares every fast path with the reference on each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conftest import PLANNED, tiny_scenario

from drawn.comparison import compared
from drawn.scenarios import ASIDE, sections
from drawn.scopes import SCOPES
from simcluster.base.errors import InputError
from simcluster.scenario.fast_path import STEP_FIELDS, FastPath, _field_value
from simcluster.scenario.scenario import Scenario

FILE = Path(__file__).parent / "varied.json"
TRIES, FEW = 60, 25
"""Seeds for each section of which fields are missing, and before that for all."""
BY_WAY = {
    "plan": "bound", "quick": "quick row", "replicas": "replica", "folding": "simpy",
}  # fmt: skip
"""The way of ``comparison.WAYS`` that a scope is for."""
ONLY_TEXT = ("model.name", "software.name", "software.source", "memory.offload.source")
"""Names and sources, which nothing of a step reads."""


DOCUMENTS = {"documents": {"kind": "lognormal", "median": 64, "sigma": 1.0}, "packing": "pad", "mask": "none"}
"""What only goes together where a fast path wants replicas that are equal."""


def varied(scenario: Scenario) -> set[str]:
    """Return the fields that are not at their defaults."""
    return {
        path
        for path in STEP_FIELDS
        if _field_value(scenario, path) != STEP_FIELDS[path].get_default(call_default_factory=True)
    }


def to_vary(scope: FastPath) -> set[str]:
    """Return the fields for which a scope vouches, but those of ``ASIDE`` and texts."""
    aside = (*ASIDE, *ONLY_TEXT)
    return {
        path for path in scope.unrestricted if not any(path == each or path.startswith(f"{each}.") for each in aside)
    }


class Record(NamedTuple):
    """A document, and the scopes that vouch for it and whose ways gave what the reference gives."""

    scopes: list[str]
    sections: dict[str, Any]

    def varied(self) -> dict[str, set[str]]:
        """Return the fields that it varies, by its scopes, which vouch for it still."""
        scenario = tiny_scenario(**self.sections)
        assert not [name for name in self.scopes if SCOPES[name].find_obstacle(scenario)], self.sections
        return dict.fromkeys(self.scopes, varied(scenario))


def proved(document: dict[str, Any]) -> Record:
    """Compare every way with the reference; a document for which one differs has no scopes."""
    scenario = tiny_scenario(**document)
    PLANNED.clear()
    answers = {each.way: each.verdict for each in compared(scenario)}
    equal = [name for name, way in BY_WAY.items() if answers.get(way) == "equal" and "differs" not in answers.values()]
    return Record([name for name in equal if not SCOPES[name].find_obstacle(scenario)], document)


def records() -> list[Record]:
    """Return the records of the file."""
    return [Record(*each) for each in json.loads(FILE.read_text())] if FILE.exists() else []


def missing(found: Iterable[dict[str, set[str]]]) -> dict[str, set[str]]:
    """Return by scope which fields are not among those that documents vary."""
    left = {name: to_vary(scope) for name, scope in SCOPES.items()}
    for by_scope in found:
        for name, own in by_scope.items():
            left[name] -= own
    return left


def vary(say: Callable[[str], None]) -> dict[str, set[str]]:
    """Compare the documents of the file anew, draw others for what they do not vary, and return what is missing."""
    kept = [each for each in (proved(each.sections) for each in records()) if each.scopes]
    found = [each.varied() for each in kept]
    left = missing(found)
    for document in drawn_for(left):
        record = proved(document)
        if not record.scopes:
            say(f"differs, or no way is proved for it: {json.dumps(document)}")
        own = record.varied()
        if any(fields & left[name] for name, fields in own.items()):
            kept.append(record)
            found.append(own)
            left |= missing(found)
            say(f"{len(kept)} documents, {sum(map(len, left.values()))} fields are missing")
    write(kept)
    return left


def write(kept: list[Record]) -> None:
    """Write the records, but those whose fields others vary as well."""
    found = [each.varied() for each in kept]
    for place in range(len(kept) - 1, -1, -1):
        if missing(found[:place] + found[place + 1 :]) == missing(found):
            del kept[place], found[place]
    lines = ",\n".join(json.dumps(each) for each in kept)
    FILE.write_text(f"[\n{lines}\n]\n")


def drawn_for(left: dict[str, set[str]]) -> Iterator[dict[str, Any]]:
    """Yield documents that vary fields of ``left``, scope by scope: of any section, then of those of the fields."""
    for name, scope in SCOPES.items():
        sought = ["", *sorted({path.rpartition(".")[0] for path in left[name]})]
        for section, seed in ((each, seed) for each in sought for seed in range(TRIES if each else FEW)):
            if any(path.rpartition(".")[0] == section or not section for path in left[name]):
                document = sections(seed, scope, section)
                if section == "data":
                    document |= {"data": {**DOCUMENTS, "seed": seed}}
                try:
                    scenario = tiny_scenario(**document)
                except InputError:
                    continue
                if not scope.find_obstacle(scenario) and varied(scenario) & left[name]:
                    yield document
