"""A log that was played again, in words, for people, and as JSON, for programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simcluster.base.units import DAY
from simcluster.longrun.replayed import struck_in
from simcluster.longrun.studies.policies import records
from simcluster.longrun.studies.words import fate_words, in_columns
from simcluster.results.assumptions import assumed_lines

if TYPE_CHECKING:
    from simcluster.longrun.studies.replayed_runs import ReplayedRuns

_MOST = 5  # causes that are named
_DIGITS = {"days": 2, "steps": 0, "strikes": 1, "outages": 1}


def summary(replay: ReplayedRuns) -> str:
    """What struck, what came of it by the log, as it was and in the what-if, and what that is worth."""
    blocks = [
        list(_head(replay)),
        _table(replay),
        [*assumed_lines(replay.assumed), *_notes(replay)],
        list(_answer(replay)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _head(replay: ReplayedRuns) -> Iterator[str]:
    played = replay.as_it_was
    struck = Counter(each.cause for each in struck_in(played.run, replay.log))
    named = ", ".join(f"{cause} {count}" for cause, count in struck.most_common(_MOST))
    rest = len(struck) - _MOST
    yield played.scenario.name
    runs = f"{played.played:,} run{'s' * (played.played > 1)}"
    yield f"{replay.name} played again: {struck.total():,} strikes in {replay.log.end / DAY:.4g} days; {runs}"
    yield f"  strikes      {named}{f', {rest} others' if rest > 0 else ''}"
    if replay.changed:
        said = (
            f"{path} = {value if isinstance(value, str) else json.dumps(value)}"
            for path, value in replay.changed.items()
        )
        yield f"  what if      {', '.join(said)}"


def _table(replay: ReplayedRuns) -> list[str]:
    then = replay.what_if is not None
    header = ["", "logged", "as it was", *(["what if", "difference", ""] if then else [])]
    rows = []
    for measure in replay.table.index:
        name = str(measure)
        values = list(_row(replay, name).values())
        if name.endswith("_h") and not any(abs(value) > 1e-6 for value in values[:3] if not math.isnan(value)):
            continue
        cells = [_cell(name, value) for value in values[: 3 if then else 2]]
        rows.append([_called(name), *cells, *(_gap(name, *values[3:]) if then else [])])
    return in_columns(header, rows)


def _called(measure: str) -> str:
    if measure == "stood_h":
        return "the job stood, h"
    return f"{fate_words(measure.removesuffix('_h'))}, h" if measure.endswith("_h") else measure


def _cell(measure: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.2%}" if measure == "goodput" else f"{value:,.{_DIGITS.get(measure, 2)}f}"


def _gap(measure: str, gap: float, half: float) -> list[str]:
    """Difference and half of its interval, in the digits of the numbers."""
    scale, digits = (100.0, 3) if measure == "goodput" else (1.0, _DIGITS.get(measure, 2))
    noise = "" if math.isnan(half) or scale * half < 0.5 * 10**-digits else f"+- {scale * half:,.{digits}f}"
    return [f"{scale * gap:+,.{digits}f}", noise]


def _row(replay: ReplayedRuns, measure: str) -> dict[str, float]:
    """A row of the table."""
    values = replay.table.loc[measure].to_numpy(dtype=float).tolist()
    return dict(zip(replay.table.columns, values, strict=True))


def _notes(replay: ReplayedRuns) -> Iterator[str]:
    run, log = replay.as_it_was.run, replay.log
    struck = struck_in(run, log)
    missed = len(struck) - _row(replay, "strikes")["as_it_was"]
    stops = {cause.name for cause in run.causes if cause.stops}
    unknown = sum(each.cause in stops and math.isnan(each.lasts) for each in struck) if log.stands is None else 0
    if missed > 0.5:
        yield f"note: {missed:,.1f} of the strikes come after the run has ended"
    if unknown:
        yield f"note: for {unknown:,} strikes the log does not say for how long the job stood: a restart's mean"
    if log.stands is not None and "goodput" not in replay.logged:
        yield "note: the log is of another step time or other checkpoints: of its steps nothing is known"
    if math.isfinite(run.until) and run.until > 1.01 * log.end:
        days, until = log.end / DAY, run.until / DAY
        yield f"note: the log ends after {days:.4g} days, the run after {until:.4g}: then nothing strikes"


def _answer(replay: ReplayedRuns) -> Iterator[str]:
    """What the change is worth, in one sentence."""
    if replay.what_if is None:
        return
    ends = math.isfinite(replay.what_if.run.until)
    row, steps = (_row(replay, name) for name in ("goodput" if ends else "days", "steps"))
    gap, half = row["difference"], row["half_width"]
    scale, unit = (100, "points of goodput") if ends else (1, "days")
    noise = "" if math.isnan(half) else f" +- {scale * half:.3f}"
    known = "" if math.isnan(half) or abs(gap) > half else ": too close to say"
    more = f", {steps['difference']:+,.0f} steps" if ends else ""
    yield f"With the same strikes the change is worth {scale * gap:+.3f}{noise} {unit}{more}{known}."


def document(replay: ReplayedRuns) -> dict[str, Any]:
    """For JSON: CONTRACT.md, "Logs of a long run"."""
    return {
        "name": replay.as_it_was.scenario.name,
        "log": replay.name,
        "strikes": len(struck_in(replay.as_it_was.run, replay.log)),
        "log_days": replay.log.end / DAY,
        "played": replay.as_it_was.played,
        "what_if": dict(replay.changed),
        "measures": records(replay.table.reset_index()),
        "assumed": list(replay.assumed),
        "notes": [note.removeprefix("note: ") for note in _notes(replay)],
    }
