"""A training run in words, for people, and as JSON, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcluster.studies.long_run.train import Training


def summary(training: Training) -> str:
    """A run in half a minute of reading."""
    return training.scenario.name


def document(training: Training) -> dict[str, Any]:
    """For JSON."""
    return {"name": training.scenario.name}
