"""Sweeps: many variants of a scenario, simulated on any executor; every finished row is stored at once.

A sweep varies a grid of values, or the rows of a table, over a base scenario. The rows are the same to the bit wherever
they are simulated: each is a simulation with the seed of its scenario.

A study file for a sweep:

    scenario: gpt3_175b_64xa100            # a built-in name, a path relative to this file, or the document itself
    set: {training.recompute: full}        # for all variants
    vary: {parallel.tp: [1, 2, 4, 8], pipeline.schedule: [1f1b, gpipe]}
    table: rows.csv                        # instead of vary: a variant for each row
    columns: {TP: parallel.tp, PP: parallel.pp}
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.store import Store
from simcluster.documents.argument_types import checked
from simcluster.documents.csv_numbers import read_csv
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.documents.own_words import trust_text
from simcluster.documents.reading import Document, read_document, validate
from simcluster.documents.spec import Spec
from simcluster.results.file import result_table
from simcluster.results.result import VERSION
from simcluster.scenario.contents import Contents, VariantKeys
from simcluster.scenario.given import ScenarioLike, base_of
from simcluster.scenario.paths import ScenarioPath, check_path
from simcluster.scenario.scenario import Base, Variant, scenario_path
from simcluster.studies.sweep.players import Key, open_executor
from simcluster.studies.sweep.playing import Measure, Numbered, Row, measure_variant
from simcluster.studies.variations import label_value

if TYPE_CHECKING:
    import pandas as pd

MAX_VARIANTS = 200_000
"""A sweep of more is refused: at a hundred a second it would take over half an hour on every core."""

_SHARED_PREFIXES = ("parallel.pp", "parallel.tp", "parallel.", "pipeline.", "training.", "parallel.zero")
"""Prefixes of paths, in order of how much a change costs variants that share work; all other paths, which change the
cluster or the model, come before them."""
Values = Annotated[tuple[Any, ...], Field(min_length=1)]


def _flatten_paths(varied: Any) -> Any:
    """Return nested mappings as dotted paths: ``{parallel: {tp: [1, 2]}}`` becomes ``{parallel.tp: [1, 2]}``."""
    if not isinstance(varied, Mapping):
        return varied
    found: dict[Any, Any] = {}
    for path, values in varied.items():
        if isinstance(values, Mapping):
            found |= {f"{path}.{key}": each for key, each in _flatten_paths(values).items()}
        else:
            found[path] = values
    return found


class SweepSpec(Spec):
    """Specification of a sweep: the document of a study file."""

    kind: Literal["sweep"] = "sweep"
    name: str = ""
    scenario: dict[str, Any] | str
    set: dict[ScenarioPath, Any] = Field(default_factory=dict)
    vary: Annotated[dict[ScenarioPath, Values], BeforeValidator(_flatten_paths)] = Field(default_factory=dict)
    table: str | None = None
    columns: dict[str, ScenarioPath] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _table_with_columns(self) -> Self:
        if self.table and not self.columns:
            raise InputError("a table needs columns, which map its headers to scenario paths")
        if self.columns and not self.table:
            raise InputError("columns need a table to map; give table, a CSV file, or leave columns out")
        return self


@dataclass(frozen=True)
class Sweep:
    """All variants of a sweep, made one by one: ``rows`` (of a table) times the grid of ``vary``.

    ``numbers`` are the variants to simulate, in ascending order; ``paths`` are the varied paths, in the order of
    columns.
    """

    base: Base
    fixed: tuple[tuple[str, Any], ...]
    rows: tuple[tuple[tuple[str, Any], ...], ...]
    vary: Mapping[str, Sequence[Any]]
    numbers: Sequence[int]

    @property
    def paths(self) -> list[str]:
        """Varied paths of the scenario, in the order of columns."""
        of_rows = dict.fromkeys(path for row in self.rows for path, _ in row)
        return list(dict.fromkeys((*of_rows, *self.vary)))

    def values(self, number: int) -> dict[str, Any]:
        """Return the varied values of variant ``number`` of the whole grid, by path; the last path varies fastest."""
        found: dict[str, Any] = {}
        rest = number
        for path, values in reversed(list(self.vary.items())):
            rest, place = divmod(rest, len(values))
            found[path] = values[place]
        return {**dict(self.rows[rest]), **dict(reversed(found.items()))}

    def variant(self, number: int) -> Variant:
        """Return the variant with this number in the grid."""
        return Variant(self.base, (*self.fixed, *self.values(number).items()))

    def variants(self) -> Iterator[tuple[int, Variant]]:
        """Return the numbers and variants to be simulated, in order."""
        return ((number, self.variant(number)) for number in self.numbers)


def make_sweep(
    base: Base,
    vary: Mapping[str, Sequence[Any]],
    *,
    fixed: Sequence[tuple[str, Any]] = (),
    rows: Sequence[Mapping[str, Any]] = ({},),
    sample: int | None = None,
    seed: int = 0,
) -> Sweep:
    """Make a sweep over every combination, or over ``sample`` of them, drawn without repetition by ``seed``.

    Raises InputError for a path without values, nothing to vary, and more than ``MAX_VARIANTS`` combinations.
    """
    for path, values in vary.items():
        if not len(values):
            raise InputError(f"vary.{path}: has no values; give at least one")
    if not vary and not any(rows):
        raise InputError(
            "a sweep needs a varied key, and there is none; name one, as in --vary parallel.tp=1,2,4,8, "
            "or in Python vary={'parallel.tp': [1, 2, 4, 8]}"
        )
    total = len(rows) * math.prod(len(values) for values in vary.values())
    if sample is not None and sample < 1:
        raise InputError(f"--sample {sample} must be at least 1")
    if sample is None and total > MAX_VARIANTS:
        counts = " x ".join(f"{len(values):,} ({path})" for path, values in vary.items())
        raise InputError(
            f"{total:,} variants are more than {MAX_VARIANTS:,}: {counts}; vary less, or simulate some: --sample 1000"
        )
    numbers: Sequence[int] = range(total)
    if sample is not None and sample < total:
        numbers = sorted(random.Random(seed).sample(range(total), min(sample, MAX_VARIANTS)))
    made = tuple(tuple(row.items()) for row in rows)
    return Sweep(base, tuple(fixed), made, {path: tuple(values) for path, values in vary.items()}, numbers)


def order_variants(made: Sweep, numbers: Iterable[int]) -> dict[int, Key]:
    """Order variants so that neighbours share most work; return their sort keys by number."""
    changes = {number: dict(made.variant(number).changes) for number in numbers}

    def rank(path: str) -> int:
        return max((place for place, start in enumerate(_SHARED_PREFIXES, 1) if path.startswith(start)), default=0)

    paths = sorted({path for own in changes.values() for path in own}, key=lambda path: (rank(path), path))
    keys = {number: tuple([repr(own.get(path)) for path in paths]) for number, own in changes.items()}
    return dict(sorted(keys.items(), key=lambda each: (each[1], each[0])))


def load_sweep(
    path: str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
    overrides: Sequence[tuple[str, Any]] = (),
    sample: int | None = None,
    seed: int = 0,
) -> Sweep:
    """Load the sweep of a study file, or make one over a scenario file by ``vary``.

    ``overrides`` change all variants. InputError that names file, line, key and a fix; also for a path that does not
    exist in the scenario.
    """
    document = read_document(scenario_path(path))
    rows: Sequence[Mapping[str, Any]] = ({},)
    data = document.data
    if isinstance(data, Mapping) and ("scenario" in data or data.get("kind") == "sweep"):
        spec = validate(SweepSpec, document)
        base, fixed = Base(_study_base(spec.scenario, document), str(document.folder)), [*spec.set.items(), *overrides]
        vary = {**spec.vary, **vary}
        if spec.table:
            with document.errors_at(("table",)):
                rows = _read_rows(document.folder / spec.table, spec.columns)
    else:
        base, fixed = Base(str(path)), list(overrides)
    for where in (*vary, *(where for where, _ in overrides)):
        check_path(where)
    return make_sweep(base, vary, fixed=fixed, rows=rows, sample=sample, seed=seed)


def _study_base(what: Mapping[str, Any] | str, document: Document) -> Mapping[str, Any] | str:
    """Return the base scenario of a study as a document or a path; InputError for a missing file."""
    if not isinstance(what, str):
        return what
    is_path = "/" in what or what.endswith((".yaml", ".yml"))
    found = str(document.folder / what) if is_path else what
    with document.errors_at(("scenario",)):
        read_document(scenario_path(found))
    return found


def _read_rows(path: Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the changes in each row of a CSV file; an empty cell means no change."""
    if not path.is_file():
        raise InputError(f"file {path} does not exist; write its path relative to the study")
    found = read_csv(path)
    for column in columns:
        if column not in found[0].cells:
            near = did_you_mean(column, found[0].cells)
            raise InputError(f"{path}: has no column {column!r}{near}; map one that it has: {listed(found[0].cells)}")
    return [
        {where: row.cells[column] for column, where in columns.items() if row.cells[column] is not None}
        for row in found
    ]


Progress = Callable[[int, int, int], object]
"""Called with the number of rows that are there, that there will be, and that are not results."""


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep: ``rows`` in the order of its variants, of which this call simulated ``played``."""

    sweep: Sweep
    rows: list[Row]
    played: int

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per variant: number, varied values, status, error, and the result's numbers."""

        def plain(path: str, value: Any) -> Any:
            return value if isinstance(value, str | int | float | bool | None) else label_value(path, value)

        paths = self.sweep.paths
        records = []
        for number, row in zip(self.sweep.numbers, self.rows, strict=True):
            values = self.sweep.values(number)
            records.append({"variant": number, **{path: plain(path, values.get(path)) for path in paths}, **row})
        table = result_table(records)
        for path in paths:  # a column of a file has one type
            if len({type(value) for value in table[path]}) > 1:
                table[path] = [None if value is None else str(value) for value in table[path]]
        return table


@checked
def sweep(
    base: ScenarioLike,
    vary: Mapping[str, Sequence[Any]],
    *,
    executor: Executor | int | str | None = None,
    store: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
    measure: Measure = measure_variant,
) -> pd.DataFrame:
    """Simulate every combination of values at dotted paths, or a ``sample`` of them: a row each (see ``Swept.frame``).

    ``executor`` is a number of processes, any concurrent.futures.Executor, or "dask://HOST:PORT"; by default everything
    is simulated in this process. With a ``store`` (a file) rows that are there are not simulated again. Raises
    InputError for a bad grid; an invalid variant is a row with its reason.
    """
    for path in vary:
        check_path(path)
    made = make_sweep(base_of(base, "sweep"), trust_text(vary), sample=sample, seed=seed)
    return run_sweep(made, executor=executor, store=Path(store) if store else None, measure=measure).frame()


def run_sweep(
    made: Sweep,
    *,
    executor: Executor | int | str | None = None,
    store: Path | None = None,
    retry: bool = False,
    measure: Measure = measure_variant,
    progress: Progress = lambda done, total, wrong: None,
) -> SweepResult:
    """Simulate the variants that are not stored yet, and store each row as soon as it is finished.

    With ``retry``, failed rows are simulated again.
    """
    keys = VariantKeys(made.base, *_measure_key(measure))
    key_of = {number: keys.key(variant) for number, variant in made.variants()}
    with Store(store if store else Path(":memory:"), VERSION) as kept:
        done = kept.find_stored(key_of.values())
        if retry:
            again = {key for key in sorted(done) for row in kept.rows([key]) if row["status"] == "failed"}
            kept.forget(sorted(again))
            done -= again
        todo = {key: number for number, key in reversed(key_of.items()) if key not in done}  # equal variants once
        wrong = sum(row["status"] != "ok" for row in kept.rows(done))
        there = sum(key not in todo for key in key_of.values())
        progress(there, len(key_of), wrong)
        dealt = order_variants(made, sorted(todo.values()))
        variants: Iterator[Numbered] = ((number, made.variant(number)) for number in dealt)
        with open_executor(executor if todo else None) as players:
            for rows in players.play(variants, list(dealt.values()), measure):
                keys.contents.require_unchanged()
                kept.add((key_of[number], row) for number, row in rows)
                there += len(rows)
                wrong += sum(row["status"] != "ok" for _, row in rows)
                progress(there, len(key_of), wrong)
        return SweepResult(made, list(kept.rows(key_of.values())), len(todo))


def _measure_key(measure: Measure) -> list[str]:
    """Return a key of a measuring function that changes if its source file is edited."""
    home = measure.__module__
    name = f"{home}.{getattr(measure, '__qualname__', measure)}"
    if home.partition(".")[0] == "simcluster":
        return [name]
    path = getattr(sys.modules.get(home), "__file__", None)
    return [name, Contents().digest(path) if path else ""]
