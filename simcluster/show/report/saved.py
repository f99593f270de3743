"""An entry from a saved result, with or without its timeline from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, is_number
from simcluster.results.file import Saved
from simcluster.results.numbers import METRICS
from simcluster.results.timeline import COLUMNS, Spans
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.show.report.details import MEMORY
from simcluster.show.report.entry import Entry

TEXTS = ("stream", "kind", "name", "group")
_TIMES = ("ready", "start", "end")
_SAME = 1e-6  # of the run: what the ends of a timeline and of its result may differ by, having been written as text
_NO_TIMELINE = "the timeline (add --timeline FILE with what simcluster run --timeline wrote)"
_NEVER = "memory over time, loads of links, the cost of stragglers and the schedule (give the scenario instead)"


def entry_of_saved(
    saved: Saved, *, origin: str = "", name: str = "", columns: Mapping[str, npt.NDArray[Any]] | None = None
) -> Entry:
    """What a saved result says; ``columns`` are those of its timeline, as ``simcluster run --timeline`` writes them.

    InputError for a result that lacks numbers, and for a timeline that is none or belongs to another run.
    """
    where = origin or saved.name
    names = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu")  # older results: all tokens are real, MFU is over bf16
    older = {"real_token_fraction": 1.0, "mfu_bf16": saved.values.get("mfu")}
    values = {**older, **{f"real_{each}": saved.values.get(each) for each in names}, **saved.values}
    _require_numbers(values, where)
    spans = None
    if columns is not None:
        spans = spans_of_columns(columns, where)
        _require_same_run(spans, saved, where)
    return Entry(
        name=name or saved.name,
        numbers=values,
        origin=origin,
        scenario=_scenario(saved),
        account=saved.account,
        spans=spans,
        lacks=(_NEVER,) if spans is not None else (_NO_TIMELINE, _NEVER),
    )


def spans_of_columns(columns: Mapping[str, npt.NDArray[Any]], where: str) -> Spans:
    """Return a timeline from its columns; InputError where they are not those of one."""
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"{where}: the timeline has no column {missing[0]!r}; it has to be one that simcluster run --timeline wrote"
        )
    if not len(columns["start"]):
        raise InputError(f"{where}: the timeline has no span, and needs one; write it with simcluster run --timeline")
    words: dict[str, int] = {}
    found: dict[str, npt.NDArray[Any]] = {"op": np.zeros(len(columns["start"]), dtype=np.int64)}
    for name in COLUMNS:
        if name in TEXTS:
            texts, place = np.unique(columns[name].astype(str), return_inverse=True)
            found[name] = np.array([words.setdefault(str(text), len(words)) for text in texts])[place]
        else:
            found[name] = _numbers(columns[name], name, where)
    ready, start, end = (found[name] for name in _TIMES)
    wrong = np.flatnonzero((ready > start) | (start > end) | (ready < 0))
    if len(wrong):
        at = int(wrong[0])
        times = ", ".join(f"{name} {float(found[name][at]):g}" for name in _TIMES)
        raise InputError(f"{where}: row {at} of the timeline has {times}; 0 <= ready <= start <= end is the rule")
    order = np.lexsort((found["end"], found["start"], found["rank"]))
    return Spans(tuple(words), **{name: values[order] for name, values in found.items()})


def _numbers(values: npt.NDArray[Any], name: str, where: str) -> npt.NDArray[Any]:
    whole = name not in (*_TIMES, "bytes")
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{where}: column {name!r} of the timeline does not hold numbers, and must; write it with "
            "simcluster run --timeline"
        ) from None
    if not np.isfinite(numbers).all() or (whole and (numbers != np.rint(numbers)).any()):
        what = "whole numbers" if whole else "finite numbers"
        raise InputError(
            f"{where}: column {name!r} of the timeline holds other things than {what}; write it with "
            "simcluster run --timeline"
        )
    if whole and (np.abs(numbers) > 2**31 - 1).any():
        raise InputError(
            f"{where}: column {name!r} of the timeline holds {np.abs(numbers).max():.4g}; 2^31 is "
            f"the end; write it with "
            "simcluster run --timeline"
        )
    return numbers.astype(np.int64) if whole else numbers


def _require_numbers(values: Mapping[str, Any], where: str) -> None:
    memory = values.get("memory_bytes")
    found = {name: values.get(name) for name, metric in METRICS.items() if metric.unit != "yes or no"}
    found |= {f"memory_bytes.{name}": memory.get(name) if isinstance(memory, Mapping) else None for name in MEMORY}
    for name, value in found.items():
        if not is_number(value):
            raise InputError(f"{where}: {name} is {value!r}, not a number; save the result again with run --json")
    if not values["step_time_s"] > 0:
        raise InputError(f"{where}: step_time_s is {values['step_time_s']!r}; a step takes longer than 0 s")


def _require_same_run(spans: Spans, saved: Saved, where: str) -> None:
    steps = saved.document.get("steps", 1)
    whole = saved.account.step_time * (steps if isinstance(steps, int) else 1)
    engine = saved.values.get("engine")
    played = engine.get("ranks_simulated") if isinstance(engine, Mapping) else None
    found = len(np.unique(spans.rank))
    if played is not None and played != found:
        raise InputError(
            f"{where}: the timeline has {found} ranks and the result was played by {played!r}; is the file cut?"
        )
    end = float(spans.end.max())
    if abs(end - whole) > _SAME * whole:
        raise InputError(
            f"{where}: the timeline ends at {format_seconds(end)} and the result says {format_seconds(whole)}; they "
            "are of different runs: write both in one, with simcluster run SCENARIO --json FILE --timeline FILE"
        )


def _scenario(saved: Saved) -> Scenario | None:
    """Return the scenario in the result; None where this version does not read it."""
    try:
        return from_document(saved.document)
    except InputError:
        return None
