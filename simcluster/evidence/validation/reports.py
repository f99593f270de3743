"""Reports of validated studies: predicted and measured points, scores, and rows that were not predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.documents.csv_numbers import Row
from simcluster.evidence.validation.study import (
    AnyStudy,
    CollectiveStudy,
    MemoryStudy,
    ScheduleStudy,
    StepStudy,
    StudyFile,
)
from simcluster.scenario.likely import RunKind

Role = Literal["fitted", "held out", "degraded"]


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """Measured run and its prediction, in seconds (memory studies: bytes).

    ``group`` is a set of runs within the study; ``breakdown`` is where the predicted step time goes (s); ``note`` is a
    remark; ``size`` is the bytes of a collective, 0 for a step; ``kind`` the kind of a simulated step's run.
    """

    label: str
    group: str
    predicted: float
    measured: float
    size: float = 0.0
    note: str = ""
    breakdown: Mapping[str, float] = field(default_factory=dict)
    kind: RunKind | None = None

    @property
    def error(self) -> float:
        """Predicted over measured value, minus 1: positive if the prediction is too large."""
        return self.predicted / self.measured - 1.0

    @property
    def log_error(self) -> float:
        """|ln(predicted / measured)|: equal for half and for twice the measured value."""
        return abs(math.log(self.predicted / self.measured))


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of ``rows`` predictions as fractions: mean and worst absolute error, and bias.

    ``bias`` is the signed mean: positive if predictions are too long.
    """

    rows: int
    mean: float
    worst: float
    bias: float

    def to_dict(self) -> dict[str, float]:
        """Return the score as a JSON document."""
        return {"rows": self.rows, "mean_error": self.mean, "worst_error": self.worst, "bias": self.bias}


def relative_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return the score of points by arithmetic means of predicted / measured - 1; None without points."""
    return mean_score([point.error for point in points]) if points else None


def mean_score(errors: Sequence[float]) -> Score:
    """Return the score of one or more errors by arithmetic means."""
    sizes = [abs(error) for error in errors]
    return Score(len(errors), math.fsum(sizes) / len(sizes), max(sizes), math.fsum(errors) / len(errors))


def geometric_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return the score of points by geometric means (times over many magnitudes); None without points."""
    if not points:
        return None
    of_logs = mean_score([math.log(point.predicted / point.measured) for point in points])
    return Score(of_logs.rows, *map(math.expm1, (of_logs.mean, of_logs.worst, of_logs.bias)))


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Row of a study that could not be predicted or compared, with the reason."""

    label: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Points of a study that are scored together: all steps, or one collective of a set.

    ``fitted``: constants were fitted on these rows; ``degraded``: the study states that they are too slow, and ``why``.
    ``score`` covers the points that count, ``small`` the small sizes, ``by`` the points with one value of a column:
    (column, value, score).
    """

    name: str
    role: Role
    points: tuple[ScoredPoint, ...]
    score: Score | None
    small: Score | None = None
    aim: float | None = None
    why: str = ""
    collective: str = ""
    by: tuple[tuple[str, str, Score], ...] = ()

    @property
    def meets_aim(self) -> bool | None:
        """Whether the mean error is below the study's aim; None if there is no aim or no score."""
        return None if self.aim is None or self.score is None else self.score.mean < self.aim

    def to_dict(self, unit: str) -> dict[str, Any]:
        """Return the scored points as a JSON document, with measured values in ``unit``."""
        rows = [
            _without_empty(
                {
                    "label": point.label, "size_bytes": point.size, f"measured_{unit}": point.measured,
                    f"predicted_{unit}": point.predicted, "error": point.error, "note": point.note,
                    "breakdown_s": dict(point.breakdown),
                },
                "size_bytes", "note", "breakdown_s",
            )
            for point in self.points
        ]  # fmt: skip
        found = {
            "name": self.name, "collective": self.collective, "role": self.role, "why": self.why,
            "score": self.score and self.score.to_dict(),
            "by": [{"column": column, "value": value, **score.to_dict()} for column, value, score in self.by],
            "small_sizes": self.small and self.small.to_dict(), "aim": self.aim, "met": self.meets_aim, "rows": rows,
        }  # fmt: skip
        return _without_empty(found, "collective", "why", "by", "small_sizes")


def _without_empty(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value or name not in names}


@dataclass(frozen=True, slots=True)
class Report(Displayable):
    """Validation report of one study: its scored parts in order of display, and rows not predicted.

    ``skipped`` is the reason if there are none. ``left_out`` counts the rows that the study itself excludes, by reason.
    """

    file: StudyFile
    parts: tuple[ScoredPart, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    skipped: str = ""

    @property
    def study(self) -> AnyStudy:
        """Study that the report is about."""
        return self.file.study

    @property
    def points(self) -> list[ScoredPoint]:
        """All measured and predicted points of the report."""
        return [point for part in self.parts for point in part.points]

    def worst_points(self, count: int) -> list[ScoredPoint]:
        """Return the ``count`` points of largest error, without degraded measurements and small messages."""
        small = self.study.small if isinstance(self.study, CollectiveStudy) else 0.0
        counted = (point for part in self.parts if part.role != "degraded" for point in part.points)
        return sorted((each for each in counted if each.size >= small), key=lambda point: -point.log_error)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON document: seconds, bytes, and errors as fractions."""
        study = self.study
        head = {"study": study.name, "kind": study.kind, "file": self.file.document.source, "source": study.source}
        if self.skipped:
            return {**head, "skipped": self.skipped}
        return {
            **head, "original": study.original, "assumed": list(study.assumed),
            "parts": [part.to_dict("bytes" if study.kind == "memory" else "s") for part in self.parts],
            "refused": [asdict(each) for each in self.refused],
            "left_out": [{"reason": reason, "rows": rows} for reason, rows in self.left_out],
        }  # fmt: skip


def _report_line(report: Report) -> str:
    errors = [abs(point.error) for point in report.points]
    mean = f", mean error {sum(errors) / len(errors):.1%}" if errors else ""
    return f"Report({report.study.name}: {len(errors)} points{mean})"


LINES: Mapping[str, Callable[[Any], str]] = {"Report": _report_line}
"""The line of an object at a prompt, by the name of its class."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Study checked against its table: a simulation task per row, or the reason why the row has none.

    ``simulate`` of a task, perhaps in a worker process, returns the row's result or raises InputError. ``report`` makes
    the report from the results or reasons.
    """

    name: str
    tasks: tuple[Any, ...]
    report: Callable[[Sequence[Any]], Report]


def make_report(
    file: StudyFile, study: StepStudy | MemoryStudy | ScheduleStudy, rows: Sequence[Row], left_out: int,
    points_of: Callable[[Row, str, Any], Iterable[ScoredPoint]], answers: Sequence[Any],
) -> Report:  # fmt: skip
    """Return the validation report of a study with one score; ``left_out`` counts the rows it excludes.

    ``points_of`` returns the points of a row, its label and its result; it raises InputError if nothing can be
    compared.
    """
    points: list[tuple[Row, ScoredPoint]] = []
    refused: list[RefusedRow] = []
    for row, answer in zip(rows, answers, strict=True):
        label = row.label(study.label)
        try:
            if isinstance(answer, str):
                raise InputError(answer)
            points += ((row, point) for point in points_of(row, label, answer))
        except InputError as problem:
            refused.append(RefusedRow(label, study.name, str(problem)))
    by: dict[tuple[str, str], list[float]] = {}
    for column in study.by if isinstance(study, ScheduleStudy) else ():
        for row, point in points:
            by.setdefault((column, row.texts[column]), []).append(point.error)
    scored = tuple(point for _, point in points)
    part = ScoredPart(
        name=study.name, role="fitted" if study.fitted else "held out", points=scored, score=relative_score(scored),
        aim=study.aim, why=study.fitted, by=tuple((*key, mean_score(errors)) for key, errors in by.items()),
    )  # fmt: skip
    return Report(file, (part,), tuple(refused), ((f"where {study.where}", left_out),) if left_out else ())


@dataclass(frozen=True, slots=True)
class OverallScores:
    """Scores over all validated studies: steps by arithmetic means, collectives by geometric means.

    Only large collectives count. ``schedules`` are steps with given pass times; times that a source calculated do not
    count.
    """

    steps: Score | None
    memory: Score | None
    schedules: Score | None
    collectives_fitted: Score | None
    collectives_held_out: Score | None
    refused_rows: int
    skipped_studies: int

    def to_dict(self) -> dict[str, Any]:
        """Return the scores over all studies as a JSON document."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.to_dict() if isinstance(value, Score) else value for name, value in found.items()}


def score_overall(reports: Sequence[Report]) -> OverallScores:
    """Return the scores over all rows of all studies, without degraded measurements and small messages."""

    def points_of_kind(kind: type[AnyStudy], *roles: Role) -> list[ScoredPoint]:
        found = []
        for report in reports:
            study = report.study
            if isinstance(study, kind) and not (isinstance(study, ScheduleStudy) and study.against == "calculated"):
                small = study.small if isinstance(study, CollectiveStudy) else 0.0
                parts = (part for part in report.parts if part.role in (roles or ("fitted", "held out")))
                found += [point for part in parts for point in part.points if point.size >= small]
        return found

    return OverallScores(
        steps=relative_score(points_of_kind(StepStudy)),
        memory=relative_score(points_of_kind(MemoryStudy)),
        schedules=relative_score(points_of_kind(ScheduleStudy)),
        collectives_fitted=geometric_score(points_of_kind(CollectiveStudy, "fitted")),
        collectives_held_out=geometric_score(points_of_kind(CollectiveStudy, "held out")),
        refused_rows=sum(len(report.refused) for report in reports),
        skipped_studies=sum(bool(report.skipped) for report in reports),
    )
