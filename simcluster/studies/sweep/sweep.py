"""Many variants of a scenario, played on any executor; every finished row is on disk at once.

The rows are the same to the bit whatever plays them: each is a simulation of its own, with the seed of its scenario.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.store import Store
from simcluster.documents.argument_types import checked
from simcluster.documents.own_words import own_words
from simcluster.results.result import VERSION
from simcluster.results.result_table import result_table
from simcluster.scenario.contents import Contents, VariantKeys
from simcluster.scenario.given import ScenarioLike, base_of
from simcluster.scenario.paths import check_path
from simcluster.studies.sweep.dealing import in_order
from simcluster.studies.sweep.players import players_of
from simcluster.studies.sweep.playing import Finished, Measure, Numbered, Row, measured
from simcluster.studies.sweep.study import Sweep, make_sweep
from simcluster.studies.variations import in_label

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int, int], object]
"""Called with how many rows are there, how many there will be, and how many of them are no results."""


@dataclass(frozen=True)
class Swept:
    """A finished sweep: ``rows`` in the order of its variants; ``played`` of them now, the others before."""

    sweep: Sweep
    rows: list[Row]
    played: int

    def frame(self) -> pd.DataFrame:
        """A row a variant: its number, what varies, status and error, and the numbers of the result JSON."""
        paths = self.sweep.paths
        records = [
            {"variant": number, **{path: _plain(path, self.sweep.values(number).get(path)) for path in paths}, **row}
            for number, row in zip(self.sweep.numbers, self.rows, strict=True)
        ]
        table = result_table(records)
        for path in paths:  # a column of a file has one type
            if len({type(value) for value in table[path]}) > 1:
                table[path] = [None if value is None else str(value) for value in table[path]]
        return table


def _plain(path: str, value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else in_label(path, value)


@checked
def sweep(
    base: ScenarioLike,
    vary: Mapping[str, Sequence[Any]],
    *,
    executor: Executor | int | str | None = None,
    store: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
    measure: Measure = measured,
) -> pd.DataFrame:
    """Every combination of values at dotted paths, or a ``sample`` of them: a row each (see ``Swept.frame``).

    ``executor`` is a number of processes, any concurrent.futures.Executor, or "dask://HOST:PORT"; left out, everything
    is played here.  With a ``store`` (a file) rows that are there are not played again.  Raises InputError for a bad
    grid; a variant that cannot be is a row with its reason.
    """
    for path in vary:
        check_path(path)
    made = make_sweep(base_of(base, "sweep"), own_words(vary), sample=sample, seed=seed)
    return run_sweep(made, executor=executor, store=Path(store) if store else None, measure=measure).frame()


def run_sweep(
    made: Sweep,
    *,
    executor: Executor | int | str | None = None,
    store: Path | None = None,
    retry: bool = False,
    measure: Measure = measured,
    progress: Progress = lambda done, total, wrong: None,
) -> Swept:
    """Play what is not there yet, each row stored as soon as it is finished; with ``retry`` what failed, too."""
    keys = VariantKeys(made.base, *_identity(measure))
    key_of = {number: keys.key(variant) for number, variant in made.variants()}
    with Store(store if store else Path(":memory:"), VERSION) as kept:
        done = kept.done(key_of.values())
        if retry:
            again = {key for key in sorted(done) for row in kept.rows([key]) if row["status"] == "failed"}
            kept.forget(sorted(again))
            done -= again
        todo = {key: number for number, key in reversed(key_of.items()) if key not in done}  # equal variants once
        wanted = sorted(todo.values())
        wrong = sum(row["status"] != "ok" for row in kept.rows(done))
        there = len(key_of) - sum(key in todo for key in key_of.values())
        progress(there, len(key_of), wrong)
        for rows in _played(made, wanted, executor, measure):
            keys.contents.require_unchanged()
            kept.add((key_of[number], row) for number, row in rows)
            there += len(rows)
            wrong += sum(row["status"] != "ok" for _, row in rows)
            progress(there, len(key_of), wrong)
        return Swept(made, list(kept.rows(key_of.values())), len(wanted))


def _identity(measure: Measure) -> list[str]:
    """What tells a function that makes rows from others, and from what it was before somebody edited it."""
    home = measure.__module__
    name = f"{home}.{getattr(measure, '__qualname__', measure)}"
    if home.partition(".")[0] == "simcluster":
        return [name]
    path = getattr(sys.modules.get(home), "__file__", None)
    return [name, Contents().digest(path) if path else ""]


def _played(
    made: Sweep, numbers: Sequence[int], executor: Executor | int | str | None, measure: Measure
) -> Iterator[list[Finished]]:
    """What is finished, as it is finished, wherever it is played."""
    if not numbers:
        return
    keys = in_order(made, numbers)
    variants: Iterator[Numbered] = ((number, made.variant(number)) for number in keys)
    with players_of(executor) as players:
        yield from players.play(variants, list(keys.values()), measure)


__all__ = ["Progress", "Swept", "run_sweep", "sweep"]
