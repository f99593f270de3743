"""What a sweep varies: a grid of values, or the rows of a table, over a base scenario.

A study file for a sweep:

    scenario: gpt3_175b_64xa100            # a name that ships, a path relative to this file, or the document itself
    set: {training.recompute: full}        # for all variants
    vary: {parallel.tp: [1, 2, 4, 8], pipeline.schedule: [1f1b, gpipe]}
    table: rows.csv                        # instead of vary: a variant for each row
    columns: {TP: parallel.tp, PP: parallel.pp}
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.documents.reading import Document, read_document, validate
from simcluster.documents.rows import read_csv
from simcluster.documents.spec import Spec
from simcluster.scenario.paths import ScenarioPath, check_path
from simcluster.scenario.scenario import Base, Variant, scenario_path

MAX_VARIANTS = 200_000
"""A sweep of more is refused: at a hundred a second it would take over half an hour on every core."""

Values = Annotated[tuple[Any, ...], Field(min_length=1)]


def _dotted(varied: Any) -> Any:
    """``{parallel: {tp: [1, 2]}}`` as ``{parallel.tp: [1, 2]}``: what is tried is a list, so a mapping is a section."""
    if not isinstance(varied, Mapping):
        return varied
    found: dict[Any, Any] = {}
    for path, values in varied.items():
        if isinstance(values, Mapping):
            found |= {f"{path}.{key}": each for key, each in _dotted(values).items()}
        else:
            found[path] = values
    return found


class SweepSpec(Spec):
    """The document of a sweep."""

    kind: Literal["sweep"] = "sweep"
    name: str = ""
    scenario: dict[str, Any] | str
    set: dict[ScenarioPath, Any] = Field(default_factory=dict)
    vary: Annotated[dict[ScenarioPath, Values], BeforeValidator(_dotted)] = Field(default_factory=dict)
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
    """All variants, made one by one when asked for: ``rows`` (of a table) times the grid of ``vary``.

    ``numbers`` are those that are played, in ascending order; ``paths`` what varies, in the order of its columns.
    """

    base: Base
    fixed: tuple[tuple[str, Any], ...]
    rows: tuple[tuple[tuple[str, Any], ...], ...]
    vary: Mapping[str, Sequence[Any]]
    numbers: Sequence[int]

    @property
    def paths(self) -> list[str]:
        """Everything that varies."""
        of_rows = dict.fromkeys(path for row in self.rows for path, _ in row)
        return list(dict.fromkeys((*of_rows, *self.vary)))

    def values(self, number: int) -> dict[str, Any]:
        """What varies, in variant ``number`` of the whole grid; the last path varies fastest."""
        found: dict[str, Any] = {}
        rest = number
        for path, values in reversed(list(self.vary.items())):
            rest, place = divmod(rest, len(values))
            found[path] = values[place]
        return {**dict(self.rows[rest]), **dict(reversed(found.items()))}

    def variant(self, number: int) -> Variant:
        """The variant of that number."""
        return Variant(self.base, (*self.fixed, *self.values(number).items()))

    def variants(self) -> Iterator[tuple[int, Variant]]:
        """All variants to be played, in order."""
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
    """A sweep over every combination, or over ``sample`` of them, drawn without repetition by ``seed``.

    Raises InputError for a path without values, nothing to vary, and more than ``MAX_VARIANTS`` combinations.
    """
    for path, values in vary.items():
        if not len(values):
            raise InputError(f"vary.{path}: has no values, so there is nothing to play; give at least one")
    if not vary and not any(rows):
        raise InputError(
            "a sweep needs something that varies, and nothing does; say what, as in --vary parallel.tp=1,2,4,8, "
            "or in Python vary={'parallel.tp': [1, 2, 4, 8]}"
        )
    total = len(rows) * math.prod(len(values) for values in vary.values())
    if sample is not None and sample < 1:
        raise InputError(f"--sample {sample} must be at least 1")
    if sample is None and total > MAX_VARIANTS:
        counts = " x ".join(f"{len(values):,} ({path})" for path, values in vary.items())
        raise InputError(
            f"{total:,} variants are more than {MAX_VARIANTS:,}: {counts}; vary less, or play some: --sample 1000"
        )
    numbers: Sequence[int] = range(total)
    if sample is not None and sample < total:
        numbers = sorted(random.Random(seed).sample(range(total), min(sample, MAX_VARIANTS)))
    made = tuple(tuple(row.items()) for row in rows)
    return Sweep(base, tuple(fixed), made, {path: tuple(values) for path, values in vary.items()}, numbers)


def load_sweep(
    path: str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
    overrides: Sequence[tuple[str, Any]] = (),
    sample: int | None = None,
    seed: int = 0,
) -> Sweep:
    """The sweep in a study file, or over a scenario file with what ``vary`` says; ``overrides`` change all variants.

    InputError that names file, line, key and a fix; also for a path that does not exist in the scenario.
    """
    document = read_document(scenario_path(path))
    rows: Sequence[Mapping[str, Any]] = ({},)
    if _is_study(document):
        spec = validate(SweepSpec, document)
        base, fixed = Base(_base(spec.scenario, document), str(document.folder)), [*spec.set.items(), *overrides]
        vary = {**spec.vary, **vary}
        if spec.table:
            with document.told_at(("table",)):
                rows = _rows_of(document.folder / spec.table, spec.columns)
    else:
        base, fixed = Base(str(path)), list(overrides)
    for where in (*vary, *(where for where, _ in overrides)):
        check_path(where)
    return make_sweep(base, vary, fixed=fixed, rows=rows, sample=sample, seed=seed)


def _is_study(document: Document) -> bool:
    return isinstance(document.data, Mapping) and ("scenario" in document.data or document.data.get("kind") == "sweep")


def _base(what: Mapping[str, Any] | str, document: Document) -> Mapping[str, Any] | str:
    """A scenario as it stands there, or its path relative to the study; InputError for a file that is not there."""
    if not isinstance(what, str):
        return what
    is_path = "/" in what or what.endswith((".yaml", ".yml"))
    found = str(document.folder / what) if is_path else what
    with document.told_at(("scenario",)):
        read_document(scenario_path(found))
    return found


def _rows_of(path: Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """A variant for each row of a CSV file; an empty cell leaves the base as it is."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; write its path relative to the study")
    found = read_csv(path)
    for column in columns:
        if column not in found[0].cells:
            near = did_you_mean(column, found[0].cells)
            raise InputError(f"{path}: has no column {column!r}{near}; map one that it has: {listed(found[0].cells)}")
    return [
        {where: row.cells[column] for column, where in columns.items() if row.cells[column] is not None}
        for row in found
    ]
