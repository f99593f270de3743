"""Critical-path ops that take longer although a change (fewer faults, faster links) should shorten the step.

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
    from simcluster.results.simulated_run import Run

_SAME = 1e-9
"""Relative difference of step times below which they are equal, since times are rounded to the clock's grid."""
_MAX_LISTED = 2
CAUSE_TEXTS = {
    "contention": "share links with transfers that ran at another time before",
    "interference": "overlap with communication that ran at another time before",
    "draws": "have other random durations than before, some of them longer",
    "traffic": "take another route or algorithm than before",
}


@dataclass(frozen=True, slots=True)
class SlowerOps:
    """Critical-path ops of the same kind ("pp send") that became slower: seconds per step, and the reason."""

    kind: str
    why: str
    seconds: float

    def describe(self) -> str:
        """Return a clause that states which ops became slower, by how many seconds, and why."""
        added = format_seconds(self.seconds)
        return f"{self.kind} ops on its critical path take {added} longer: they {CAUSE_TEXTS[self.why]}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def find_slower_ops(base: Run, other: Run, *, random_times: bool) -> list[SlowerOps]:
    """Return the second run's critical-path ops that are slower than in the first run; none if its step is not longer.

    ``random_times``: compute times are random in one of them. Ranks that fold are compared by their representatives.
    """
    if other.step_time <= base.step_time * (1 + _SAME):
        return []
    before = _op_durations(base)
    path, spans = other.critical_path, other.spans
    contended = spans.end - spans.start - other.uncontended_seconds
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for at, key in zip(path.number.tolist(), _op_keys(other, path.number), strict=True):
        took, waited = before.get((base.representative_of(key[0]), *key[1:]), (np.inf, 0.0))
        more = float(spans.end[at] - spans.start[at]) - took
        if more <= 0:
            continue
        stream = spans.words[spans.stream[at]]
        kind = op_kind_name(stream, spans.words[spans.kind[at]])
        if stream == "compute":
            found[kind, "draws" if random_times else "interference"] += more / path.steps
        else:
            found[kind, "contention" if contended[at] > waited else "traffic"] += more / path.steps
    return [SlowerOps(kind, why, seconds) for (kind, why), seconds in sorted(found.items(), key=lambda item: -item[1])]


def describe_slower_ops(slower: list[SlowerOps]) -> str:
    """Return a sentence about the critical-path ops that became slower; "" if no op did."""
    return "; ".join(each.describe() for each in slower[:_MAX_LISTED])


def _op_durations(run: Run) -> dict[tuple[int | str, ...], tuple[float, float]]:
    spans = run.spans
    took = spans.end - spans.start
    contended = took - run.uncontended_seconds
    every = np.arange(len(spans))
    return dict(zip(_op_keys(run, every), zip(took.tolist(), contended.tolist(), strict=True), strict=True))


def _op_keys(run: Run, indices: Any) -> list[tuple[Any, ...]]:
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
    return [found[number] for number in indices.tolist()]
