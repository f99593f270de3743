"""Sweeps: many variants of a scenario, simulated on any executor; each finished row is stored at once.

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
from simcluster.base.store import RowStore
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.base_spec import Spec
from simcluster.documents.csv_tables import read_csv
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.documents.trusted_text import mark_trusted_text
from simcluster.documents.yaml_documents import Document, read_document, validate_document
from simcluster.results.result import VERSION
from simcluster.results.result_file import result_table
from simcluster.scenario.file_digests import FileDigests, VariantCacheKeys
from simcluster.scenario.key_paths import ScenarioPath, check_key_path
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant, find_scenario_file
from simcluster.scenario.scenario_arguments import ScenarioLike, to_base_scenario
from simcluster.studies.sweep.sweep_executor import Key, open_executor
from simcluster.studies.sweep.variant_simulation import Measure, Numbered, Row, simulate_variant
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
    """Specification of a sweep, as written in a study file."""

    kind: Literal["sweep"] = "sweep"
    name: str = ""
    scenario: dict[str, Any] | str
    set: dict[ScenarioPath, Any] = Field(default_factory=dict)
    vary: Annotated[dict[ScenarioPath, Values], BeforeValidator(_flatten_paths)] = Field(default_factory=dict)
    table: str | None = None
    columns: dict[str, ScenarioPath] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_table_and_columns(self) -> Self:
        if self.table and not self.columns:
            raise InputError("'table' needs 'columns', which map the table's headers to scenario paths; add 'columns'")
        if self.columns and not self.table:
            raise InputError("'columns' needs 'table', a CSV file; add 'table', or remove 'columns'")
        return self


@dataclass(frozen=True)
class Sweep:
    """All variants of a sweep: each row of a CSV table (``rows``), with each combination of values in ``vary``.

    ``numbers`` are the variants to simulate, in ascending order; ``paths`` are the varied paths, in the order of
    columns.
    """

    base: BaseScenario
    fixed: tuple[tuple[str, Any], ...]
    rows: tuple[tuple[tuple[str, Any], ...], ...]
    vary: Mapping[str, Sequence[Any]]
    numbers: Sequence[int]

    @property
    def paths(self) -> list[str]:
        """Varied scenario paths, in the order of the result table's columns."""
        of_rows = dict.fromkeys(path for row in self.rows for path, _ in row)
        return list(dict.fromkeys((*of_rows, *self.vary)))

    def variant_values(self, number: int) -> dict[str, Any]:
        """Return the varied values of a variant by path; from variant to variant, the last path changes fastest."""
        found: dict[str, Any] = {}
        rest = number
        for path, values in reversed(list(self.vary.items())):
            rest, place = divmod(rest, len(values))
            found[path] = values[place]
        return {**dict(self.rows[rest]), **dict(reversed(found.items()))}

    def make_variant(self, number: int) -> ScenarioVariant:
        """Return the variant with this number."""
        return ScenarioVariant(self.base, (*self.fixed, *self.variant_values(number).items()))


def make_sweep(
    base: BaseScenario,
    vary: Mapping[str, Sequence[Any]],
    *,
    fixed: Sequence[tuple[str, Any]] = (),
    rows: Sequence[Mapping[str, Any]] = ({},),
    sample: int | None = None,
    seed: int = 0,
) -> Sweep:
    """Make a sweep over all combinations of the values, or over ``sample`` randomly drawn combinations.

    Raises InputError for a path without values, nothing to vary, and more than ``MAX_VARIANTS`` combinations.
    """
    for path, values in vary.items():
        if not len(values):
            raise InputError(f"vary.{path}: the list of values is empty; give at least one value")
    if not vary and not any(rows):
        raise InputError(
            "a sweep needs at least one varied key; name a key and its values, as in --vary parallel.tp=1,2,4,8, "
            "or in Python vary={'parallel.tp': [1, 2, 4, 8]}"
        )
    total = len(rows) * math.prod(len(values) for values in vary.values())
    if sample is not None and sample < 1:
        raise InputError(f"--sample {sample}: the sample must have at least 1 variant")
    if sample is None and total > MAX_VARIANTS:
        counts = " x ".join(f"{len(values):,} ({path})" for path, values in vary.items())
        raise InputError(
            f"{total:,} variants are more than {MAX_VARIANTS:,}: {counts}; vary less, or draw a sample: --sample 1000"
        )
    numbers: Sequence[int] = range(total)
    if sample is not None and sample < total:
        numbers = sorted(random.Random(seed).sample(range(total), min(sample, MAX_VARIANTS)))
    made = tuple(tuple(row.items()) for row in rows)
    return Sweep(base, tuple(fixed), made, {path: tuple(values) for path, values in vary.items()}, numbers)


def order_variants(made: Sweep, numbers: Iterable[int]) -> dict[int, Key]:
    """Return a sort key for each variant number; in sorted order, neighbours share the most work."""
    changes = {number: dict(made.make_variant(number).changes) for number in numbers}

    def sharing_rank(path: str) -> int:
        return max((place for place, start in enumerate(_SHARED_PREFIXES, 1) if path.startswith(start)), default=0)

    paths = sorted({path for own in changes.values() for path in own}, key=lambda path: (sharing_rank(path), path))
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
    """Load the sweep in a study file, or make a sweep over a scenario file from ``vary``.

    ``overrides`` change all variants. InputError that names file, line, key and a fix; also for a path that does not
    exist in the scenario.
    """
    document = read_document(find_scenario_file(path))
    rows: Sequence[Mapping[str, Any]] = ({},)
    data = document.data
    if isinstance(data, Mapping) and ("scenario" in data or data.get("kind") == "sweep"):
        spec = validate_document(SweepSpec, document)
        base = BaseScenario(_find_study_base(spec.scenario, document), str(document.folder))
        fixed, vary = [*spec.set.items(), *overrides], {**spec.vary, **vary}
        if spec.table:
            with document.locate_errors_at(("table",)):
                rows = _read_rows(document.folder / spec.table, spec.columns)
    else:
        base, fixed = BaseScenario(str(path)), list(overrides)
    for where in (*vary, *(where for where, _ in overrides)):
        check_key_path(where)
    return make_sweep(base, vary, fixed=fixed, rows=rows, sample=sample, seed=seed)


def _find_study_base(what: Mapping[str, Any] | str, document: Document) -> Mapping[str, Any] | str:
    """Return a study's base scenario as a document or a path; raise InputError for a missing file."""
    if not isinstance(what, str):
        return what
    is_path = "/" in what or what.endswith((".yaml", ".yml"))
    found = str(document.folder / what) if is_path else what
    with document.locate_errors_at(("scenario",)):
        read_document(find_scenario_file(found))
    return found


def _read_rows(path: Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the scenario changes in each row of a CSV file; an empty cell changes nothing."""
    if not path.is_file():
        raise InputError(f"file {path} does not exist; write its path relative to the study")
    found = read_csv(path)
    for column in columns:
        if column not in found[0].cells:
            near = did_you_mean(column, found[0].cells)
            raise InputError(f"{path}: has no column {column!r}{near}; map one that it has: {join_or(found[0].cells)}")
    return [
        {where: row.cells[column] for column, where in columns.items() if row.cells[column] is not None}
        for row in found
    ]


Progress = Callable[[int, int, int], object]
"""Function that is called with three numbers of rows: finished, total, and invalid or failed."""


@dataclass(frozen=True)
class SweepResult:
    """Table rows of a finished sweep, one per variant, and the number of variants that this call simulated."""

    sweep: Sweep
    rows: list[Row]
    num_simulated: int

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per variant: number, varied values, status, error, numbers of the result."""

        def plain_value(path: str, value: Any) -> Any:
            return value if isinstance(value, str | int | float | bool | None) else label_value(path, value)

        paths = self.sweep.paths
        records = []
        for number, row in zip(self.sweep.numbers, self.rows, strict=True):
            values = self.sweep.variant_values(number)
            records.append({"variant": number, **{path: plain_value(path, values.get(path)) for path in paths}, **row})
        table = result_table(records)
        for path in paths:  # a column of a file has one type
            if len({type(value) for value in table[path]}) > 1:
                table[path] = [None if value is None else str(value) for value in table[path]]
        return table


@check_arguments
def sweep(
    base: ScenarioLike,
    vary: Mapping[str, Sequence[Any]],
    *,
    executor: Executor | int | str | None = None,
    store: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
    measure: Measure = simulate_variant,
) -> pd.DataFrame:
    """Simulate all combinations of values at dotted scenario paths, or a random ``sample``; return a table.

    ``executor`` is a number of processes, any concurrent.futures.Executor, or "dask://HOST:PORT"; by default everything
    is simulated in this process. With a ``store`` (a file) rows that are there are not simulated again. Raises
    InputError for a bad grid; an invalid variant is a row with its reason.
    """
    for path in vary:
        check_key_path(path)
    made = make_sweep(to_base_scenario(base, "sweep"), mark_trusted_text(vary), sample=sample, seed=seed)
    return run_sweep(made, executor=executor, store=Path(store) if store else None, measure=measure).to_frame()


def run_sweep(
    made: Sweep,
    *,
    executor: Executor | int | str | None = None,
    store: Path | None = None,
    retry: bool = False,
    measure: Measure = simulate_variant,
    progress: Progress = lambda done, total, wrong: None,
) -> SweepResult:
    """Simulate the variants without a stored row; store each row as soon as it is finished.

    With ``retry``, failed rows are simulated again.
    """
    keys = VariantCacheKeys(made.base, *_measure_key(measure))
    key_of = {number: keys.cache_key(made.make_variant(number)) for number in made.numbers}
    with RowStore(store if store else Path(":memory:"), VERSION) as kept:
        done = kept.find_stored_keys(key_of.values())
        if retry:
            again = {key for key in sorted(done) for row in kept.read_rows([key]) if row["status"] == "failed"}
            kept.delete_rows(sorted(again))
            done -= again
        todo = {key: number for number, key in reversed(key_of.items()) if key not in done}  # equal variants once
        wrong = sum(row["status"] != "ok" for row in kept.read_rows(done))
        there = sum(key not in todo for key in key_of.values())
        progress(there, len(key_of), wrong)
        dealt = order_variants(made, sorted(todo.values()))
        variants: Iterator[Numbered] = ((number, made.make_variant(number)) for number in dealt)
        with open_executor(executor if todo else None) as sweep_executor:
            for rows in sweep_executor.simulate(variants, list(dealt.values()), measure):
                keys.contents.require_unchanged()
                kept.add_rows((key_of[number], row) for number, row in rows)
                there += len(rows)
                wrong += sum(row["status"] != "ok" for _, row in rows)
                progress(there, len(key_of), wrong)
        return SweepResult(made, list(kept.read_rows(key_of.values())), len(todo))


def _measure_key(measure: Measure) -> list[str]:
    """Return a key of the function that simulates variants; the key changes if the function's file is edited."""
    home = measure.__module__
    name = f"{home}.{getattr(measure, '__qualname__', measure)}"
    if home.partition(".")[0] == "simcluster":
        return [name]
    path = getattr(sys.modules.get(home), "__file__", None)
    return [name, FileDigests().digest(path) if path else ""]
