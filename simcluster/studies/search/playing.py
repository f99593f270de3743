"""Evaluation of a layout: its step played, its numbers, and the store of those that are finished."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.store import Store
from simcluster.results.numbers import columns_of, exposed_communication, timed_numbers
from simcluster.results.result import Result
from simcluster.scenario.contents import VariantKeys
from simcluster.scenario.scenario import Base, Scenario, from_document
from simcluster.step.simulate import replay
from simcluster.studies.search.space import Layout
from simcluster.studies.sweep.quick import quick_numbers, quick_step
from simcluster.studies.sweep.stage_network import NotQuickError

Row = dict[str, Any]


def measured(text: str, layout: Layout | None, account_within: float = 0.0) -> Row:
    """Return the numbers of a layout's step, by the quick step (``sweep.quick``) where that is exact.

    A step that is simulated in full and takes at most ``account_within`` seconds has its account as well, so that it is
    not simulated again.  ``text`` is the base scenario's document as JSON, which a process reads once.  A layout of
    None is the scenario's.
    """
    try:
        scenario = _laid_out(text, layout)
        try:
            return {"status": "ok", "error": "", **quick_numbers(scenario, quick_step(scenario))}
        except NotQuickError:
            pass
        result = replay(scenario)
        account = details(result) if result.step_time <= account_within else {}
        return {"status": "ok", "error": "", **timed_numbers(result), **account}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}


def accounted(text: str, layout: Layout | None) -> Row:
    """The same of one that can be played, with the account of where its time went: of 1,024 ranks that takes ten times
    as long."""
    result = replay(_laid_out(text, layout))
    return {"status": "ok", "error": "", **timed_numbers(result), **details(result)}


def details(result: Result) -> Row:
    """What a row has beside the numbers of a timed step: columns of a plan's table, and where the step went."""
    return {
        **{name: metric.of(result) for name, metric in columns_of("plan").items()},
        "exposed_communication_s": exposed_communication(result),
        "breakdown_s": dict(result.times.breakdown),
        "account": result.account.to_dict(),
    }


def _laid_out(text: str, layout: Layout | None) -> Scenario:
    base = _base(text)
    return layout.on(base) if layout else base


@lru_cache(maxsize=1)
def _base(text: str) -> Scenario:
    """Read a base scenario once in a process, so that the clusters of all its layouts are one object."""
    return from_document(json.loads(text))


@dataclass
class LayoutPlayer:
    """The layouts of one base scenario that were played, by number (``rows``); what the store has is not played again.

    ``text`` is the scenario's document as JSON, as ``measured`` takes it.
    """

    base: Scenario
    store: Store
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._document = self.base.document()
        self.text = json.dumps(self._document)
        self._keys = VariantKeys(Base(self._document))

    def stored(self, layout: Layout | None) -> Row | None:
        """What the store has of a layout; of the scenario's own for None."""
        return self.store.row(self._key(layout))

    def keep(self, layout: Layout | None, row: Row) -> None:
        """A row that is finished; it takes the place of one that was there."""
        key = self._key(layout)
        self.store.forget([key])
        self.store.add([(key, row)])

    def _key(self, layout: Layout | None) -> str:
        return self._keys.of(*(layout.values().items() if layout else ()))


__all__ = ["LayoutPlayer", "Row", "accounted", "measured"]
