"""Layout of a job (tp, pp, dp, schedule, micro batch, ...), and its application to a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from simcluster.planning.rank_grid import ParallelPlan
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
"""Scenario path of each value of a layout."""


class Layout(NamedTuple):
    """A layout of a job: the parallel sizes, schedule, ZeRO stage and other values that a plan decides."""

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

    def scenario_changes(self) -> dict[str, Any]:
        """Return the layout's values by dotted scenario path, such as "parallel.tp"."""
        return {path: list(self.order) if name == "order" else getattr(self, name) for name, path in _PATHS.items()}

    def apply_to(self, base: Scenario) -> Scenario:
        """Return the base scenario with this layout; do not check the scenario's rules."""
        changes: dict[str, dict[str, Any]] = {"parallel": {}, "pipeline": {}, "training": {}}
        for name, path in _PATHS.items():
            section, _, key = path.partition(".")
            if key:
                changes[section][key] = getattr(self, name)
        sections = {name: getattr(base, name).model_copy(update=own) for name, own in changes.items()}
        return base.model_copy(update={"gpus": self.gpus, **sections})

    @property
    def rank_grid(self) -> ParallelPlan:
        """Rank grid of the layout: which rank has which coordinates on tp, pp, dp, cp and ep."""
        return ParallelPlan(self.tp, self.cp, self.dp, self.pp, self.order, ep=self.ep, etp=self.etp or 0)

    @property
    def communication_key(self) -> tuple[object, ...]:
        """Values of the layout that determine which ranks communicate with each other."""
        return self.gpus, self.tp, self.pp, self.order, self.cp, self.ep, self.etp

    @property
    def without_rank_order(self) -> Layout:
        """The layout without its order of ranks, so that layouts that differ only in this order are equal."""
        return self._replace(order=())


def layout_of_scenario(base: Scenario) -> Layout | None:
    """Return the layout of a scenario; None if its schedule has parameters."""
    if not isinstance(base.pipeline.schedule, str):
        return None
    return Layout(**{name: attrgetter(path)(base) for name, path in _PATHS.items()})._replace(dp=base.dp)


def is_same_program(one: Layout | None, other: Layout) -> bool:
    """Return whether two layouts are equal; the order of axes with a single rank does not matter."""
    if one is None or one.without_rank_order != other.without_rank_order:
        return False
    first, second = ([axis for axis in each.order if getattr(each, axis) > 1] for each in (one, other))
    return first == second


def layout_changes(base: Scenario, layout: Layout) -> dict[str, Any]:
    """Return the scenario values that this layout changes, by dotted path; tp, pp and dp are always included."""
    document = base.document()
    found = {}
    for path, value in layout.scenario_changes().items():
        section, _, key = path.partition(".")
        now = document.get(section, {}).get(key) if key else document.get(section)
        if value != now or key in ("tp", "pp", "dp"):
            found[path] = value
    return found


def format_value(value: object) -> str:
    """Return a layout's value as text for the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
