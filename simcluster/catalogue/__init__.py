"""Data that ships with simcluster: presets with their sources.  ``catalogue_path`` finds a file of it."""

from __future__ import annotations

from pathlib import Path


def catalogue_path(name: str) -> Path:
    """Where a catalogue file lies, e.g. ``catalogue_path("models.yaml")``."""
    return Path(__file__).parent / name
