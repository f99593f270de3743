"""Sections of the HTML report about one run: memory, links, stragglers, schedule, scenario, accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.scenario.likely import StudyErrors, similar_studies
from simcluster.schedules.text import order_lines
from simcluster.show.report.colours import HEAT_LEVELS, MOST_ACTIONS
from simcluster.show.report.entry import MEMORY, ReportEntry
from simcluster.show.report.html import Markup, block_html, concatenate, element, fill_asset, html_table
from simcluster.show.step_answer import describe_likely_interval
from simcluster.show.study_answers import straggler_causes_table
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.whatif.straggling import Stragglers

_MOST_COLUMNS = 32
_SEEN = 5e-4  # an excess that is written as more than 0.0 %
_LEAST_EXCESS = 0.05  # the scale of slowdowns reaches at least so far, so that noise stays pale
_NEAREST = 6


def remark(*content: str) -> Markup:
    """Return a paragraph in small print."""
    return element("p", *content, class_="quiet")


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_section(entry: ReportEntry, number: int) -> Markup:
    """Return the report section about the fullest GPU's memory, with its curve over time if it was simulated."""
    parts = entry.numbers["memory_bytes"]
    total = sum(parts.values())
    rows = [[label, f"{parts[name] / 1e9:,.1f} GB", f"{parts[name] / total if total else 0.0:.1%}"]
            for name, label in MEMORY.items()]  # fmt: skip
    rows.append(["all of it", f"{entry.numbers['peak_memory_bytes'] / 1e9:,.1f} GB", "100.0%"])
    figures = html_table(
        ["at the peak of the fullest GPU", "", "share"], rows, caption="Memory at its peak", class_="total"
    )
    if not entry.memory:
        why = (
            "Nothing is allocated or freed in this run." if entry.result else "A saved result has no memory over time."
        )
        return concatenate(figures, remark(why))
    fullest = entry.result.memory_peak.rank if entry.result else -1
    options = [
        element("option", f"rank {curve.rank}, stage {curve.peak.stage}", value=str(place),
                selected="" if curve.rank == fullest else None)
        for place, curve in enumerate(entry.memory)
    ]  # fmt: skip
    swatches = [
        element("li", element("span", class_=f"swatch m-{name}", aria_hidden="true"), text)
        for name, text in (
            ("parameters", "parameters"), ("gradients", "gradients"), ("optimizer", "optimizer state"),
            ("buffers", "buffers"), ("activations", "activations"), ("gathered", "gathered parameters"),
            ("unsharded", "unsharded gradients"), ("other", "recomputed, logits, received"), ("lost", "fragmentation"),
        )
        if _uses_memory_part(entry, name)
    ]  # fmt: skip
    chart = fill_asset("memory.html", number=str(number), options=options, swatches=swatches)
    return concatenate(chart, figures)


def _uses_memory_part(entry: ReportEntry, part: str) -> bool:
    pool = {"gathered": "parameters", "unsharded": "gradients", "activations": "activations", "other": "other"}
    if part == "lost":
        return any(curve.state.fragmentation > 1 for curve in entry.memory)
    return any(
        curve.pools[pool[part]].any() if part in pool else getattr(curve.state, part) > 0 for curve in entry.memory
    )


# --- links ------------------------------------------------------------------------------------------------------------


def links_section(entry: ReportEntry, number: int) -> Markup:
    """Return the report section about the busiest links: load over the run, mean and peak of each."""
    if entry.links is None:
        return remark(
            "No link carries anything in this run." if entry.result else "A saved result has no loads of links."
        )
    names = ("link_from", "link_to", "links", "capacity", "bytes", "utilisation", "peak_utilisation")
    columns = (entry.links[0][name].tolist() for name in names)
    rows = [
        [f"{a} → {b}", f"×{alike:,}", format_bytes_per_second(capacity),
         element("canvas", data_strip=str(place), class_="strip", aria_hidden="true"), f"{mean:.1%}", f"{peak:.1%}",
         format_bytes(size)]
        for place, (a, b, alike, capacity, size, mean, peak) in enumerate(zip(*columns, strict=True))
    ]  # fmt: skip
    header = ["link", "links", "capacity", "over the run", "mean", "peak", "bytes per step"]
    return concatenate(
        element("div", html_table(header, rows, caption="The hottest links", class_="links"), id=f"links-{number}"),
        remark("A row represents all links with equal traffic, and is named by the first. Colour: rate over "
              "capacity, pale idle to full; rates are means over a span."),
    )  # fmt: skip


# --- stragglers -------------------------------------------------------------------------------------------------------


def stragglers_section(entry: ReportEntry) -> Markup:
    """Return the report section about stragglers: the cost of each cause, and the slowdown per (dp rank, stage)."""
    found = entry.stragglers
    if isinstance(found, str):
        return remark(found)
    assert entry.result is not None
    text = (
        f"The step takes {found.slowdown:.3f} × what it takes without the faults of the scenario "
        f"({format_seconds(found.clean)})."
        if entry.result.scenario.faults
        else "The scenario has no faults. What is left are stages that are longer than others."
    )
    return concatenate(element("p", text), block_html(straggler_causes_table(found)), _worker_heatmap(found))


def _worker_heatmap(found: Stragglers) -> Markup:
    slowdown = found.estimated.by_worker
    shown = min(slowdown.shape[0], _MOST_COLUMNS)
    most = max(_LEAST_EXCESS, float(slowdown.max()) - 1)
    rows = []
    for stage in range(slowdown.shape[1]):
        cells = []
        for dp in range(shown):
            excess = float(slowdown[dp, stage]) - 1
            level = round(min(max(excess, 0.0) / most, 1.0) * (HEAT_LEVELS - 1))
            worst = " worst" if excess > _SEEN and (dp, stage) in found.estimated.worst else ""
            cells.append(element("td", f"{100 * excess:+.1f}".replace("-", "−"), class_=f"heat-{level}{worst}"))
        rows.append(element("tr", element("th", f"stage {stage}", scope="row"), cells))
    head = element("tr", element("th", "% longer", scope="col"),
                   [element("th", f"dp {dp}", scope="col") for dp in range(shown)])  # fmt: skip
    caption = "Slowdown by worker: stages downwards, dp ranks to the right"
    more = f" The first {shown} of {slowdown.shape[0]} dp ranks." if shown < slowdown.shape[0] else ""
    return concatenate(
        element("div", element("table", element("caption", caption), element("thead", head), element("tbody", rows)),
                class_="scroll-x heat", tabindex=0, role="region", aria_label=caption),
        remark("By how much a step is longer than one in which all workers take what is typical of their ops, by that "
              "worker alone: the estimator of recorded jobs, from this run's trace. Framed: the worst workers.", more),
    )  # fmt: skip


# --- the schedule -----------------------------------------------------------------------------------------------------


def schedule_section(entry: ReportEntry, number: int, gantt: Markup) -> Markup:
    """Return the report section about the pipeline schedule; ``gantt`` is the frame in which the script draws it."""
    found = entry.schedule
    if found is None:
        return remark("No pipeline: one stage." if entry.result else "A saved result does not hold its schedule.")
    order = element("details", element("summary", "The order as text"),
                    element("pre", "\n".join(order_lines(found)), tabindex=0))  # fmt: skip
    facts = remark(
        f"{found.name}: {found.num_stages} stages, {found.num_microbatches} microbatches, {found.num_chunks} "
        f"{'chunks' if found.num_chunks > 1 else 'chunk'} a stage. Ideal times: F, I and W take one unit, B two, sends "
        "nothing; the timeline above has the real ones."
    )
    if sum(map(len, found.rows)) > MOST_ACTIONS:
        return concatenate(facts, remark("Too many actions to draw."), order)
    return concatenate(facts, element("div", gantt, id=f"grid-{number}", class_="gantt"), order)


# --- the scenario -----------------------------------------------------------------------------------------------------


def scenario_section(entry: ReportEntry, number: int) -> Markup:
    """Return the report section with the complete scenario, to copy into a file and run."""
    return fill_asset(
        "scenario.html", named=f"Named: {entry.origin}. " if entry.origin else "", place=f"scenario-{number}",
        name=entry.name, text=yaml_text(entry.document),
    )  # fmt: skip


# --- how far to trust the numbers -------------------------------------------------------------------------------------


def accuracy_section(entries: Sequence[ReportEntry]) -> Markup:
    """Return the report section about accuracy: errors against measurements, and the sources of constants."""
    rows = []
    for entry in entries:
        measured = entry.scenario.measured if entry.scenario else None
        seconds = entry.scenario.measured_step_time if entry.scenario else None
        if measured is not None and seconds is not None:
            off = entry.numbers["step_time_s"] / seconds - 1
            rows.append([entry.name, measured.source or "not named", format_seconds(seconds),
                         format_seconds(entry.numbers["step_time_s"]), f"{off:+.1%}"])  # fmt: skip
    parts: list[Markup] = []
    if rows:
        header = ["run", "source", "measured", "simulated", "error"]
        parts.append(html_table(header, rows, caption="Against measurements", left=2))
    else:
        parts.append(element("p", "Simulated; no measurement of this run is named in its scenario (measured)."))
    found = [entry.scenario.measured for entry in entries if entry.scenario and entry.scenario.measured]
    others = [measured.why_not_compared() for measured in found]
    parts += [element("p", f"The measured {text}.") for text in dict.fromkeys(others) if text]
    parts += _validated_studies(entries)
    parts.append(element("ul", [element("li", text) for text in _constant_sources(entries)], class_="notes"))
    return concatenate(parts)


def _validated_studies(entries: Sequence[ReportEntry]) -> list[Markup]:
    content: list[Markup] = []
    tables: dict[tuple[StudyErrors, ...], list[str]] = {}
    for entry in entries:
        if entry.scenario is None:
            continue
        assert entry.likely is not None
        fact = describe_likely_interval(entry.likely)
        aside = f" ({fact.aside})" if fact.aside else ""
        text = f"{fact.name.capitalize()}: {fact.value}{fact.tail}{aside}."
        content.append(element("p", f"{entry.name}: {text}" if len(entries) > 1 else text))
        tables.setdefault(similar_studies(entry.scenario, entry.model_flops), []).append(entry.name)
    return content + [_studies_table(rows, names if len(tables) > 1 else []) for rows, names in tables.items()]


def _studies_table(rows: Sequence[StudyErrors], names: Sequence[str]) -> Markup:
    shown = rows[:_NEAREST]
    studies = len({row.study for row in rows})
    caption = f"Validated runs nearest to {', '.join(names)}" if names else "The nearest validated runs"
    text = f"{caption}, out of {studies} studies. Error: simulated over measured, minus 1; the largest either way."
    cells = [
        [row.study, row.like, *(f"{low:,}{f' to {high:,}' * (low != high)}" for low, high in row.spans[:2]),
         f"{row.rows:,}", f"{row.mean:.1%}", f"{row.bias:+.1%}", f"{row.worst:.1%}"]
        for row in shown
    ]  # fmt: skip
    header = ["study", "runs of", "GPUs", "hidden size", "rows", "mean error", "bias", "largest"]
    return concatenate(element("p", text), html_table(header, cells, caption=caption, left=2))


def _constant_sources(entries: Sequence[ReportEntry]) -> list[str]:
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
                found.append(f"{name}: {total} ranks, of which {simulated} were simulated; the others are identical.")
    return found
