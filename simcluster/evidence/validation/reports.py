"""What validating a study found: its points, their scores, and every row that gave none, with the reason.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from simcluster.base.errors import InputError
from simcluster.documents.csv_numbers import Row
from simcluster.evidence.validation.study import AnyStudy, CollectiveStudy, MemoryStudy, ScheduleStudy, StepStudy, StudyFile
from simcluster.scenario.likely import RunKind

Role = Literal["fitted", "held out", "degraded"]


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """One measured run beside its prediction, in seconds, or in bytes where memory is studied.

    ``group`` is what it belongs to inside its study (a set of runs); ``breakdown`` is where the predicted step went, in
    seconds; ``note`` what else a person should know; ``size`` the bytes of a collective, 0 for a step; ``kind`` what
    kind of run a simulated step is.
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
        """Predicted over measured, minus 1: positive where the simulator is too slow."""
        return self.predicted / self.measured - 1.0

    @property
    def log_error(self) -> float:
        """|ln(predicted / measured)|: as large for half as for twice."""
        return abs(math.log(self.predicted / self.measured))


@dataclass(frozen=True, slots=True)
class Score:
    """How far ``rows`` predictions are from what was measured, as fractions.

    ``mean`` and ``worst`` are sizes of errors, ``bias`` their signed mean: positive where predictions are too long.
    """

    rows: int
    mean: float
    worst: float
    bias: float

    def to_dict(self) -> dict[str, float]:
        """Return the score for JSON."""
        return {"rows": self.rows, "mean_error": self.mean, "worst_error": self.worst, "bias": self.bias}


def relative_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return arithmetic means of |predicted / measured - 1|; None without points."""
    return mean_score([point.error for point in points]) if points else None


def mean_score(errors: Sequence[float]) -> Score:
    """Return arithmetic means of errors and their sizes; of one error at least."""
    sizes = [abs(error) for error in errors]
    return Score(len(errors), math.fsum(sizes) / len(sizes), max(sizes), math.fsum(errors) / len(errors))


def geometric_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Return exp(mean |ln(predicted / measured)|) - 1, for times over many orders of magnitude; None without points."""
    if not points:
        return None
    of_logs = mean_score([math.log(point.predicted / point.measured) for point in points])
    return Score(of_logs.rows, *map(math.expm1, (of_logs.mean, of_logs.worst, of_logs.bias)))


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that could not be predicted or has nothing to compare with: why."""

    label: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """What is scored together: a study of steps, or a set of collectives of one kind.

    ``fitted``: constants were fitted on these rows; ``degraded``: the study says that they are slower than they should
    be, and ``why``.  ``score`` is of the points that count, ``small`` of the small sizes, ``by`` of the points with one
    value of a column: (column, value, score).
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
        """Is the error below the aim?  None where there is no aim or no score."""
        return None if self.aim is None or self.score is None else self.score.mean < self.aim

    def to_dict(self, unit: str) -> dict[str, Any]:
        """Return the part for JSON, measured in this unit."""
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
class Report:
    """One study: its parts in the order in which they are told; ``skipped`` is the reason why there are none.

    ``left_out`` counts the rows that the study itself leaves out, by reason.
    """

    file: StudyFile
    parts: tuple[ScoredPart, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()
    skipped: str = ""

    @property
    def study(self) -> AnyStudy:
        """The study itself."""
        return self.file.study

    @property
    def points(self) -> list[ScoredPoint]:
        """Every point."""
        return [point for part in self.parts for point in part.points]

    def worst_points(self, count: int) -> list[ScoredPoint]:
        """Return the most wrong of the points that count."""
        small = self.study.small if isinstance(self.study, CollectiveStudy) else 0.0
        counted = (point for part in self.parts if part.role != "degraded" for point in part.points)
        return sorted((each for each in counted if each.size >= small), key=lambda point: -point.log_error)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON: seconds, bytes, and errors as fractions."""
        study = self.study
        head = {"study": study.name, "kind": study.kind, "file": self.file.document.source, "source": study.source}
        if self.skipped:
            return {**head, "skipped": self.skipped}
        return {
            **head,
            "original": study.original,
            "assumed": list(study.assumed),
            "parts": [part.to_dict("bytes" if study.kind == "memory" else "s") for part in self.parts],
            "refused": [asdict(each) for each in self.refused],
            "left_out": [{"reason": reason, "rows": rows} for reason, rows in self.left_out],
        }


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study that has been checked against its table: a task a row, or why the row has none.

    What a task has ``played``, perhaps in a worker process, is its answer; InputError says why there is none.
    ``report`` makes the report of the rows' answers, each an answer or why there is none.
    """

    name: str
    tasks: tuple[Any, ...]
    report: Callable[[Sequence[Any]], Report]


def make_report(
    file: StudyFile,
    study: StepStudy | MemoryStudy | ScheduleStudy,
    rows: Sequence[Row],
    left_out: int,
    points_of: Callable[[Row, str, Any], Iterable[ScoredPoint]],
    answers: Sequence[Any],
) -> Report:
    """Return the report of a study that is scored as one; ``left_out`` counts the rows that its ``where`` leaves out.

    ``points_of`` is asked with each row, its label and its answer; InputError where there is nothing to compare.
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
        name=study.name,
        role="fitted" if study.fitted else "held out",
        points=scored,
        score=relative_score(scored),
        aim=study.aim,
        why=study.fitted,
        by=tuple((*key, mean_score(errors)) for key, errors in by.items()),
    )
    return Report(file, (part,), tuple(refused), ((f"where {study.where}", left_out),) if left_out else ())


@dataclass(frozen=True, slots=True)
class OverallScores:
    """All studies together: steps in arithmetic means; all-reduces from the small size up in geometric ones.

    ``schedules`` are steps whose passes were given; what a source has calculated itself is not among them.
    """

    steps: Score | None
    memory: Score | None
    schedules: Score | None
    collectives_fitted: Score | None
    collectives_held_out: Score | None
    refused_rows: int
    skipped_studies: int

    def to_dict(self) -> dict[str, Any]:
        """Return the scores for JSON."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.to_dict() if isinstance(value, Score) else value for name, value in found.items()}


def overall(reports: Sequence[Report]) -> OverallScores:
    """Return the scores over all rows of all studies; degraded sets and small sizes do not count."""

    def counted(kind: type[AnyStudy], *roles: Role) -> list[ScoredPoint]:
        found = []
        for report in reports:
            study = report.study
            if isinstance(study, kind) and not (isinstance(study, ScheduleStudy) and study.against == "calculated"):
                small = study.small if isinstance(study, CollectiveStudy) else 0.0
                parts = (part for part in report.parts if part.role in (roles or ("fitted", "held out")))
                found += [point for part in parts for point in part.points if point.size >= small]
        return found

    return OverallScores(
        steps=relative_score(counted(StepStudy)),
        memory=relative_score(counted(MemoryStudy)),
        schedules=relative_score(counted(ScheduleStudy)),
        collectives_fitted=geometric_score(counted(CollectiveStudy, "fitted")),
        collectives_held_out=geometric_score(counted(CollectiveStudy, "held out")),
        refused_rows=sum(len(report.refused) for report in reports),
        skipped_studies=sum(bool(report.skipped) for report in reports),
    )
