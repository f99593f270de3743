"""Explanation of a run that became slower although a change (fewer faults, faster links) should shorten the step.

Ops keep their order on every lane and what they wait for, so where a step is longer, some op of its longest path takes
longer: by interactions of ops (shared links, overlap with other communication) or by random draws.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simcluster.base.units import format_seconds
from simcluster.results.critical_path import op_kind_name
from simcluster.results.simulated_run import Run
from simcluster.scenario.scenario import Scenario

_LESS_IS_FASTER = ("launch", "latency")
_MAX_LISTED = 2
_SAME = 1e-9
"""Relative difference of step times below which they are equal, since times are rounded to the clock's grid."""
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


def find_unexpected_slowdown(before: Run, after: Run, one: Scenario, other: Scenario) -> list[SlowerOps]:
    """Return the ops that make a run slower after a change to faster parts or fewer faults.

    Returns the ops that take longer on its longest path; none if the scenario differs otherwise or is not slower.
    """
    if after.step_time <= before.step_time or not has_only_faster_parts(one, other):
        return []
    drawing = [Counter(repr(fault) for fault in each.faults if fault.is_random) for each in (one, other)]
    return find_slower_ops(before, after, random_times=drawing[0] != drawing[1])


def describe_unexpected_slowdown(longer: Sequence[SlowerOps]) -> str:
    """Return a sentence that names the ops that take longer; "" if no op does."""
    words = "; ".join(each.describe() for each in longer[:_MAX_LISTED])
    return f"None of the changes slows anything down in isolation: {words}." if words else ""


def has_only_faster_parts(one: Scenario, other: Scenario) -> bool:
    """Return whether scenario ``other`` differs from ``one`` only in faster GPUs or links, or in fewer faults."""
    apart = ("name", "measured", "faults", "cluster", "run", "prices")
    mine, theirs = ({k: v for k, v in each.document().items() if k not in apart} for each in (one, other))
    new_faults = Counter(map(_fault_key, other.faults)) - Counter(map(_fault_key, one.faults))
    return mine == theirs and not new_faults and _has_no_slower_parts(one, other)


def _fault_key(fault: Any) -> str:
    return repr(fault.model_copy(update={"seed": 0}) if "seed" in type(fault).model_fields else fault)


def _has_no_slower_parts(one: Scenario, other: Scenario) -> bool:
    mine, theirs = one.cluster, other.cluster
    if mine.topology == theirs.topology:
        scales = mine.scale.model_dump(), theirs.scale.model_dump()
        pairs = {name: (value, scales[1][name]) for name, value in scales[0].items()}
        return all(b <= a if name in _LESS_IS_FASTER else b >= a for name, (a, b) in pairs.items())
    before, after = mine.built, theirs.built
    same = mine.scale == theirs.scale and mine.device == theirs.device and before.links == after.links
    return same and bool(np.all(after.capacity >= before.capacity) and np.all(after.latency <= before.latency))
