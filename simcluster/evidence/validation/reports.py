"""Reports of validated studies: predicted and measured points, scores, and rows that could not be predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents.csv_tables import CsvRow
from simcluster.evidence.validation.study import (
    AnyStudy,
    CollectiveStudy,
    MemoryStudy,
    ScheduleStudy,
    StepStudy,
    StudyFile,
)
from simcluster.scenario.prediction_intervals import RunFeatures

Role = Literal["fitted", "held out", "degraded"]


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """Measured value of a run and its prediction, in seconds (in memory studies: bytes).

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
    kind: RunFeatures | None = None

    @property
    def error(self) -> float:
        """Relative error of the prediction (predicted / measured - 1); positive if the prediction is too large."""
        return self.predicted / self.measured - 1.0

    @property
    def log_error(self) -> float:
        """|ln(predicted / measured)|; predictions of half and of twice the measured value have equal errors."""
        return abs(math.log(self.predicted / self.measured))


@dataclass(frozen=True, slots=True)
class Score:
    """Score of predictions: number of rows; mean absolute, worst absolute and mean signed (``bias``) relative error."""

    rows: int
    mean: float
    worst: float
    bias: float

    def to_dict(self) -> dict[str, float]:
        """Return the score as a dict for JSON."""
        return {"rows": self.rows, "mean_error": self.mean, "worst_error": self.worst, "bias": self.bias}


def relative_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return the score of points from the arithmetic mean of relative errors; None without points."""
    return arithmetic_score([point.error for point in points]) if points else None


def arithmetic_score(errors: Sequence[float]) -> Score:
    """Return the score of one or more relative errors, combined by their arithmetic mean."""
    sizes = [abs(error) for error in errors]
    return Score(len(errors), math.fsum(sizes) / len(sizes), max(sizes), math.fsum(errors) / len(errors))


def geometric_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return the score of points from geometric means, for times of very different size; None without points."""
    if not points:
        return None
    of_logs = arithmetic_score([math.log(point.predicted / point.measured) for point in points])
    return Score(of_logs.rows, *map(math.expm1, (of_logs.mean, of_logs.worst, of_logs.bias)))


@dataclass(frozen=True, slots=True)
class FailedRow:
    """Row of a study that could not be predicted or compared, with the reason."""

    label: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """Points of a study that share one score: all steps, or one collective of a set.

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
        """Return the scored points as a dict for JSON, with measured and predicted values in ``unit``."""
        rows = [
            _drop_empty_values(
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
        return _drop_empty_values(found, "collective", "why", "by", "small_sizes")


def _drop_empty_values(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value or name not in names}


@dataclass(frozen=True, slots=True)
class Report(Displayable):
    """Validation report of one study: scored parts in display order, and rows that were not predicted.

    ``skipped`` is the reason if there are none. ``left_out`` counts the rows that the study itself excludes, by reason.
    """

    file: StudyFile
    parts: tuple[ScoredGroup, ...] = ()
    refused: tuple[FailedRow, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    skipped: str = ""

    @property
    def study(self) -> AnyStudy:
        """Study that was validated."""
        return self.file.study

    @property
    def points(self) -> list[ScoredPoint]:
        """All measured and predicted points of the report."""
        return [point for part in self.parts for point in part.points]

    def worst_points(self, count: int) -> list[ScoredPoint]:
        """Return the points with the largest errors; skip degraded hardware and small collectives."""
        small = self.study.small if isinstance(self.study, CollectiveStudy) else 0.0
        counted = (point for part in self.parts if part.role != "degraded" for point in part.points)
        return sorted((each for each in counted if each.size >= small), key=lambda point: -point.log_error)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON, in seconds and bytes; errors are fractions."""
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
    """Checked study, ready to run: a simulation task for each row that can be simulated.

    ``simulate`` of a task, perhaps in a worker process, returns the row's result or raises InputError. ``report`` makes
    the report from the results or reasons.
    """

    name: str
    tasks: tuple[Any, ...]
    report: Callable[[Sequence[Any]], Report]


def make_study_report(
    file: StudyFile, study: StepStudy | MemoryStudy | ScheduleStudy, rows: Sequence[CsvRow], excluded: int,
    make_points: Callable[[CsvRow, str, Any], Iterable[ScoredPoint]], results: Sequence[Any],
) -> Report:  # fmt: skip
    """Score a study's predictions and return its validation report; ``excluded`` is the number of excluded rows.

    ``make_points`` returns the points of a row, its label and its result; it raises InputError if nothing can be
    compared.
    """
    points: list[tuple[CsvRow, ScoredPoint]] = []
    refused: list[FailedRow] = []
    for row, answer in zip(rows, results, strict=True):
        label = row.label(study.label)
        try:
            if isinstance(answer, str):
                raise InputError(answer)
            points += ((row, point) for point in make_points(row, label, answer))
        except InputError as problem:
            refused.append(FailedRow(label, study.name, str(problem)))
    by: dict[tuple[str, str], list[float]] = {}
    for column in study.by if isinstance(study, ScheduleStudy) else ():
        for row, point in points:
            by.setdefault((column, row.texts[column]), []).append(point.error)
    scored = tuple(point for _, point in points)
    part = ScoredGroup(
        name=study.name, role="fitted" if study.fitted else "held out", points=scored, score=relative_score(scored),
        aim=study.aim, why=study.fitted, by=tuple((*key, arithmetic_score(errors)) for key, errors in by.items()),
    )  # fmt: skip
    return Report(file, (part,), tuple(refused), ((f"where {study.where}", excluded),) if excluded else ())


@dataclass(frozen=True, slots=True)
class OverallScores:
    """Scores over all validated studies: arithmetic means for steps, geometric means for collectives.

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
        """Return the scores over all studies as a dict for JSON."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.to_dict() if isinstance(value, Score) else value for name, value in found.items()}


def score_overall(reports: Sequence[Report]) -> OverallScores:
    """Score the rows of all studies, except measurements of degraded hardware and of small collectives."""

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
