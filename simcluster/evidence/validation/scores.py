"""How far predictions are from measurements, as single numbers.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcluster.scenario.likely import RunKind


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
    def distance(self) -> float:
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


def relative_score(points: Sequence[ScoredPoint]) -> Score | None:
    """Arithmetic means of |predicted / measured - 1|; None without points."""
    return score_of([point.error for point in points]) if points else None


def score_of(errors: Sequence[float]) -> Score:
    """Arithmetic means of errors and their sizes; of one error at least."""
    sizes = [abs(error) for error in errors]
    return Score(len(errors), math.fsum(sizes) / len(sizes), max(sizes), math.fsum(errors) / len(errors))


def geometric_score(points: Sequence[ScoredPoint]) -> Score | None:
    """exp(mean |ln(predicted / measured)|) - 1, for times over many orders of magnitude; None without points."""
    if not points:
        return None
    of_logs = score_of([math.log(point.predicted / point.measured) for point in points])
    return Score(of_logs.rows, *map(math.expm1, (of_logs.mean, of_logs.worst, of_logs.bias)))


def worst_first(points: Sequence[ScoredPoint]) -> list[ScoredPoint]:
    """The points, the most wrong first; equals stay in their order."""
    return sorted(points, key=lambda point: -point.distance)
