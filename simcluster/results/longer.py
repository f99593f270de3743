"""Ops on a step's critical path that take longer although fewer faults or faster links should shorten it.

Ops keep their order on every lane and what they wait for, so where a step is longer, some op of its longest path takes
longer: by interactions of ops (shared links, overlap with other communication) or by random draws.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.units import format_seconds
from simcluster.results.critical_path import op_kind_name

if TYPE_CHECKING:
    from simcluster.results.played import Run

_SAME = 1e-9
"""Relative difference of step times below which they are equal, since times are rounded to the clock's grid."""
_MAX_LISTED = 2
CAUSE = {
    "contention": "share links with transfers that came at another time before",
    "interference": "overlap with communication that came at another time before",
    "draws": "drew other random numbers before, some of which made them shorter",
    "traffic": "take another route or algorithm than before",
}


@dataclass(frozen=True, slots=True)
class SlowerOps:
    """Ops of equal kind ("pp send") on the critical path that take ``seconds`` per step longer, and the ``CAUSE``."""

    kind: str
    why: str
    seconds: float

    def in_words(self) -> str:
        """Return a clause that describes which ops take longer."""
        return (
            f"{self.kind} ops on its critical path take {format_seconds(self.seconds)} longer: they {CAUSE[self.why]}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def find_slower_ops(base: Run, other: Run, *, drawn: bool) -> list[SlowerOps]:
    """Return the ops that take longer on the critical path of ``other``, most first; none if its step is not longer.

    ``drawn``: compute times are random in one of them. Ranks that fold are compared by their representatives.
    """
    if other.step_time <= base.step_time * (1 + _SAME):
        return []
    before = _op_durations(base)
    path, spans = other.critical_path, other.spans
    contended = spans.end - spans.start - other.free_seconds
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for at, key in zip(path.number.tolist(), _op_keys(other, path.number), strict=True):
        took, waited = before.get((base.simulated_for(key[0]), *key[1:]), (np.inf, 0.0))
        more = float(spans.end[at] - spans.start[at]) - took
        if more <= 0:
            continue
        stream = spans.words[spans.stream[at]]
        kind = op_kind_name(stream, spans.words[spans.kind[at]])
        if stream == "compute":
            found[kind, "draws" if drawn else "interference"] += more / path.steps
        else:
            found[kind, "contention" if contended[at] > waited else "traffic"] += more / path.steps
    return [SlowerOps(kind, why, seconds) for (kind, why), seconds in sorted(found.items(), key=lambda item: -item[1])]


def describe_slower_ops(longer: list[SlowerOps]) -> str:
    """Return a sentence about the ops whose time grows most; "" for none."""
    return "; ".join(each.in_words() for each in longer[:_MAX_LISTED])


def _op_durations(run: Run) -> dict[tuple[int | str, ...], tuple[float, float]]:
    spans = run.spans
    took = spans.end - spans.start
    contended = took - run.free_seconds
    every = np.arange(len(spans))
    return dict(zip(_op_keys(run, every), zip(took.tolist(), contended.tolist(), strict=True), strict=True))


def _op_keys(run: Run, at: Any) -> list[tuple[Any, ...]]:
    spans, words = run.spans, run.spans.words
    columns = (spans.rank, spans.stream, spans.kind, spans.name, spans.microbatch, spans.chunk, spans.step, spans.layer)
    seen: Counter[tuple[int, ...]] = Counter()
    order = np.lexsort((spans.end, spans.start))
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found: list[tuple[Any, ...]] = [()] * len(rows)
    for number in order.tolist():
        row = rows[number]
        found[number] = (row[0], words[row[1]], words[row[2]], words[row[3]], *row[4:], seen[row])
        seen[row] += 1
    return [found[number] for number in at.tolist()]
