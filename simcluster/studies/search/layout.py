"""Layout of a job: the values that a plan decides, as changes of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from simcluster.planning.parallel import Plan
from simcluster.scenario.scenario import Scenario

_PATHS: Mapping[str, str] = {
    "gpus": "gpus",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "dp": "parallel.dp",
    "cp": "parallel.cp",
    "cp_comm": "parallel.cp_comm",
    "ep": "parallel.ep",
    "etp": "parallel.etp",
    "sequence_parallel": "parallel.sequence_parallel",
    "zero": "parallel.zero",
    "order": "parallel.order",
    "schedule": "pipeline.schedule",
    "chunks": "pipeline.chunks",
    "micro_batch": "training.micro_batch",
    "recompute": "training.recompute",
}
"""Where a scenario has the values of a layout."""


class Layout(NamedTuple):
    """A layout of a job: the values that a plan decides."""

    gpus: int
    tp: int
    pp: int
    dp: int
    sequence_parallel: bool
    micro_batch: int
    recompute: str
    schedule: str
    chunks: int
    zero: int
    order: tuple[str, ...]
    cp: int = 1
    cp_comm: str = "ring"
    ep: int = 1
    etp: int | None = None

    def values(self) -> dict[str, Any]:
        """Return the layout's values as changes of a scenario, by dotted path."""
        return {path: list(self.order) if name == "order" else getattr(self, name) for name, path in _PATHS.items()}

    def on(self, base: Scenario) -> Scenario:
        """Return the scenario with this layout, without checking its rules."""
        changes: dict[str, dict[str, Any]] = {"parallel": {}, "pipeline": {}, "training": {}}
        for name, path in _PATHS.items():
            section, _, key = path.partition(".")
            if key:
                changes[section][key] = getattr(self, name)
        sections = {name: getattr(base, name).model_copy(update=own) for name, own in changes.items()}
        return base.model_copy(update={"gpus": self.gpus, **sections})

    @property
    def plan(self) -> Plan:
        """Rank grid of the layout."""
        return Plan(tp=self.tp, pp=self.pp, dp=self.dp, cp=self.cp, ep=self.ep, etp=self.etp or 0, order=self.order)

    @property
    def grid(self) -> tuple[object, ...]:
        """Values of the layout that decide which ranks communicate."""
        return self.gpus, self.tp, self.pp, self.order, self.cp, self.ep, self.etp

    @property
    def unordered(self) -> Layout:
        """The layout without its order of ranks: two orders can be one program on other nodes."""
        return self._replace(order=())


def layout_of_scenario(base: Scenario) -> Layout | None:
    """Return the layout of a scenario; None if its schedule has parameters."""
    if not isinstance(base.pipeline.schedule, str):
        return None
    return Layout(**{name: attrgetter(path)(base) for name, path in _PATHS.items()})._replace(dp=base.dp)


def same_program(one: Layout | None, other: Layout) -> bool:
    """Return whether two layouts differ at most in the order of axes that have one rank."""
    if one is None or one.unordered != other.unordered:
        return False
    first, second = ([axis for axis in each.order if getattr(each, axis) > 1] for each in (one, other))
    return first == second


def layout_changes(base: Scenario, layout: Layout) -> dict[str, Any]:
    """Return the changes that give a scenario this layout: values that differ, and always tp, pp and dp."""
    document = base.document()
    found = {}
    for path, value in layout.values().items():
        section, _, key = path.partition(".")
        now = document.get(section, {}).get(key) if key else document.get(section)
        if value != now or key in ("tp", "pp", "dp"):
            found[path] = value
    return found


def value_text(value: object) -> str:
    """Return a layout's value as text for the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
