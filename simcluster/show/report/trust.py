"""How far to trust the numbers of the page: against a measurement, by validated runs alike, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.units import format_seconds
from simcluster.scenario.likely import ANY, Validated, nearest
from simcluster.show.report import words
from simcluster.show.report.entry import Entry
from simcluster.show.report.html import Markup, element, joined, table

_NEAREST = 6


def accuracy(entries: Sequence[Entry]) -> Markup:
    """How far to trust the numbers: against a measurement where there is one, and what they rest on."""
    rows = []
    for entry in entries:
        measured = entry.scenario.measured if entry.scenario else None
        seconds = entry.scenario.measured_step_time if entry.scenario else None
        if measured is not None and seconds is not None:
            off = entry.numbers["step_time_s"] / seconds - 1
            rows.append([entry.name, measured.source or "not named", format_seconds(seconds),
                         format_seconds(entry.numbers["step_time_s"]), words.signed_percent(off)])  # fmt: skip
    parts: list[Markup] = []
    if rows:
        header = ["run", "source", "measured", "simulated", "error"]
        parts.append(table(header, rows, caption="Against measurements", left=2))
    else:
        parts.append(element("p", "Simulated; no measurement of this run is named in its scenario (measured)."))
    told = [entry.scenario.measured for entry in entries if entry.scenario and entry.scenario.measured]
    others = [measured.of_another_run() for measured in told]
    parts += [element("p", f"The measured {text}.") for text in dict.fromkeys(others) if text]
    parts += _validated(entries)
    parts.append(element("ul", [element("li", text) for text in _basis(entries)], class_="notes"))
    return joined(parts)


def _validated(entries: Sequence[Entry]) -> list[Markup]:
    """Where measured times should be, and the validated studies that this is learned from, nearest first."""
    told: list[Markup] = []
    tables: dict[tuple[Validated, ...], list[str]] = {}
    for entry in entries:
        if entry.scenario is None:
            continue
        found = entry.likely
        assert found is not None
        span = f"{format_seconds(found.low)} to {format_seconds(found.high)}"
        if found.far:
            text = f"No promise: far from all that was validated ({', '.join(found.far)}). All runs: {span}."
        else:
            like = "all validated runs" if found.like == ANY else f"{found.rows:,} validated runs ({found.like})"
            text = f"Likely {span}: where {100 * found.level:.0f} % of the measured times are, by {like}."
        told.append(element("p", f"{entry.name}: {text}" if len(entries) > 1 else text))
        tables.setdefault(nearest(entry.scenario, entry.model_flops), []).append(entry.name)
    return told + [_studies(rows, names if len(tables) > 1 else []) for rows, names in tables.items()]


def _studies(rows: Sequence[Validated], names: Sequence[str]) -> Markup:
    shown = rows[:_NEAREST]
    studies = len({row.study for row in rows})
    caption = f"Validated runs nearest to {', '.join(names)}" if names else "The nearest validated runs"
    told = f"{caption}, out of {studies} studies. Error: simulated over measured, minus 1; the largest either way."
    cells = [
        [row.study, row.like, *map(_span, row.spans[:2]), f"{row.rows:,}",
         words.percent(row.mean), words.signed_percent(row.bias), words.percent(row.worst)]
        for row in shown
    ]  # fmt: skip
    header = ["study", "runs of", "GPUs", "hidden size", "rows", "mean error", "bias", "largest"]
    return joined(element("p", told), table(header, cells, caption=caption, left=2))


def _span(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _basis(entries: Sequence[Entry]) -> list[str]:
    """What every number here rests on."""
    found = [
        "Times of kernels come from the device's roofline, those of communication from link rates and, where the "
        "platform is known, from NCCL's own choices. The command simcluster validate scores published runs with the "
        "same constants.",
        "Differences between runs are more reliable than the runs: most errors are common to both.",
    ]
    if any(entry.scenario is not None and entry.scenario.software is None for entry in entries):
        found.append(
            "Software is ideal here: the host issues work in no time. Real steps of small kernels are longer; "
            "software: in the scenario names a library's costs."
        )
    counted = [(entry.name, entry.numbers.get("mfu_convention")) for entry in entries]
    if len({convention for _, convention in counted}) == 1:
        counted = [("MFU", counted[0][1])]
    for name, convention in counted:
        if isinstance(convention, str):
            found.append(f"{name if name == 'MFU' else f'{name}: MFU'} counts {convention}.")
    engines = [(entry.name, entry.numbers.get("engine")) for entry in entries]
    for name, engine in engines:
        if isinstance(engine, dict) and {"ranks_total", "ranks_simulated"} <= set(engine):
            total, simulated = engine["ranks_total"], engine["ranks_simulated"]
            if total != simulated:
                found.append(
                    f"{name}: {total} ranks, of which {simulated} were played; the others do exactly the same."
                )
    return found
