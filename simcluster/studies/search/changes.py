"""Layouts as changes of a scenario, as the command line takes them."""

from __future__ import annotations

from typing import Any

from simcluster.scenario.scenario import Scenario
from simcluster.studies.search.space import Layout


def overrides(base: Scenario, layout: Layout) -> dict[str, Any]:
    """The changes that make the scenario this layout: those that differ, and always the sizes."""
    document = base.document()
    found = {}
    for path, value in layout.values().items():
        section, _, key = path.partition(".")
        now = document.get(section, {}).get(key) if key else document.get(section)
        if value != now or key in ("tp", "pp", "dp"):
            found[path] = value
    return found


def written(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
