"""What runs of weeks add to the lists of built-in things: name, description and source of each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from simcluster.documents.catalogue import presets
from simcluster.longrun.catalogue import watched_failures
from simcluster.longrun.studies.advice import ADVICE
from simcluster.show.registry.kinds import first_sentence

Facts = tuple[str, str, str]


def failures() -> Iterator[Facts]:
    """Yield the observed failures of clusters."""
    for each in watched_failures():
        yield each.name, f"{len(each.causes)} cause{'s' * (len(each.causes) != 1)}: {each.holds}", each.source


def laws() -> Iterator[Facts]:
    """Yield the laws of loss."""
    for name, entry in presets("loss_laws.yaml").items():
        numbers = ", ".join(f"{key} {value:g}" for key, value in entry.items() if isinstance(value, int | float))
        yield name, f"form {entry['form']}: {numbers}", str(entry.get("source", ""))


def questions() -> Iterator[Facts]:
    """Yield the questions of ``simcluster advise``."""
    for name, each in ADVICE.items():
        yield name, first_sentence(inspect.getdoc(each) or ""), ""
