"""Report sections with the details of runs: memory, links, stragglers, schedule, scenario, accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.interactive.report.colours import HEAT_LEVELS, MOST_ACTIONS
from simcluster.interactive.report.entry import MEMORY, ReportEntry
from simcluster.interactive.report.html import Markup, block_html, element, fill_asset, html_table, join_html
from simcluster.scenario.prediction_intervals import StudyErrors, similar_studies
from simcluster.schedules.text import order_lines
from simcluster.show.step_answer import describe_likely_interval
from simcluster.show.study_answers import straggler_causes_table
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.whatif.straggling import StragglerCosts

_MOST_COLUMNS = 32
_SEEN = 5e-4  # an excess that is written as more than 0.0 %
_LEAST_EXCESS = 0.05  # the scale of slowdowns reaches at least so far, so that noise stays pale
_NEAREST = 6


def small_print(*content: str) -> Markup:
    """Return a paragraph in small print."""
    return element("p", *content, class_="quiet")


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_section(entry: ReportEntry, run_index: int) -> Markup:
    """Return the report section about memory: the fullest GPU's use and, for a simulated run, curves over time."""
    parts = entry.numbers["memory_bytes"]
    total = sum(parts.values())
    rows = [[label, f"{parts[name] / 1e9:,.1f} GB", f"{parts[name] / total if total else 0.0:.1%}"]
            for name, label in MEMORY.items()]  # fmt: skip
    rows.append(["all of it", f"{entry.numbers['peak_memory_bytes'] / 1e9:,.1f} GB", "100.0%"])
    header = ["at the peak of the fullest GPU", "", "share"]
    figures = html_table(header, rows, caption="Memory at its peak", class_="total")
    if not entry.memory:
        saved = "A saved result has no memory curve; give a scenario."
        return join_html(figures, small_print("This run allocates no memory." if entry.result else saved))
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
    chart = fill_asset("memory.html", number=str(run_index), options=options, swatches=swatches)
    return join_html(chart, figures)


def _uses_memory_part(entry: ReportEntry, part: str) -> bool:
    pool = {"gathered": "parameters", "unsharded": "gradients", "activations": "activations", "other": "other"}
    if part == "lost":
        return any(curve.model_state.fragmentation > 1 for curve in entry.memory)
    return any(
        each.pools[pool[part]].any() if part in pool else getattr(each.model_state, part) > 0 for each in entry.memory
    )


# --- links ------------------------------------------------------------------------------------------------------------


def links_section(entry: ReportEntry, run_index: int) -> Markup:
    """Return the report section about the busiest links: load over time, mean and peak of each link."""
    if entry.links is None:
        saved = "A saved result has no link loads; give a scenario."
        return small_print("No link carries traffic." if entry.result else saved)
    names = ("link_from", "link_to", "links", "capacity", "bytes", "utilisation", "peak_utilisation")
    columns = (entry.links[0][name].tolist() for name in names)
    rows = [
        [f"{a} → {b}", f"×{alike:,}", format_bytes_per_second(capacity),
         element("canvas", data_strip=str(place), class_="strip", aria_hidden="true"), f"{mean:.1%}", f"{peak:.1%}",
         format_bytes(size)]
        for place, (a, b, alike, capacity, size, mean, peak) in enumerate(zip(*columns, strict=True))
    ]  # fmt: skip
    header = ["link", "links", "capacity", "over the run", "mean", "peak", "bytes per step"]
    return join_html(
        element("div", html_table(header, rows, caption="The hottest links", class_="links"), id=f"links-{run_index}"),
        small_print("A row represents all links with equal traffic and has the name of the first. Colour: rate / "
              "capacity, from idle (pale) to full; the rate is the mean over a span."),
    )  # fmt: skip


# --- stragglers -------------------------------------------------------------------------------------------------------


def stragglers_section(entry: ReportEntry) -> Markup:
    """Return the report section about stragglers: the cost of each cause, and the slowdown by (dp rank, stage)."""
    found = entry.stragglers
    if isinstance(found, str):
        return small_print(found)
    assert entry.result is not None
    text = (
        f"The step takes {found.slowdown:.3f} × what it takes without the faults of the scenario "
        f"({format_seconds(found.clean_step_time)})."
        if entry.result.scenario.faults
        else "The scenario has no faults. The rest of the slowdown comes from stages that take longer than others."
    )
    return join_html(element("p", text), block_html(straggler_causes_table(found)), _worker_heatmap(found))


def _worker_heatmap(found: StragglerCosts) -> Markup:
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
    return join_html(
        element("div", element("table", element("caption", caption), element("thead", head), element("tbody", rows)),
                class_="scroll-x heat", tabindex=0, role="region", aria_label=caption),
        small_print("By how much each worker alone makes a step longer, compared with a step in which all workers take "
              "typical times. Estimated from this run's trace, as for recorded jobs. Framed: the worst workers.", more),
    )  # fmt: skip


# --- the schedule -----------------------------------------------------------------------------------------------------


def schedule_section(entry: ReportEntry, run_index: int, gantt: Markup) -> Markup:
    """Return the report section about the pipeline schedule, with the frame in which the page's script draws it."""
    found = entry.schedule
    if found is None:
        text = "No pipeline: one stage." if entry.result else "A saved result has no schedule; give a scenario."
        return small_print(text)
    order = element("details", element("summary", "The order as text"),
                    element("pre", "\n".join(order_lines(found)), tabindex=0))  # fmt: skip
    facts = small_print(
        f"{found.name}: {found.num_stages} stages, {found.num_microbatches} microbatches, {found.num_chunks} "
        f"{'chunks' if found.num_chunks > 1 else 'chunk'} a stage. Ideal times: F, I and W take one unit, B two, sends "
        "nothing; the timeline above has the real ones."
    )
    if sum(map(len, found.rows)) > MOST_ACTIONS:
        return join_html(facts, small_print("Too many actions to draw."), order)
    return join_html(facts, element("div", gantt, id=f"grid-{run_index}", class_="gantt"), order)


# --- the scenario -----------------------------------------------------------------------------------------------------


def scenario_section(entry: ReportEntry, run_index: int) -> Markup:
    """Return the report section that prints the complete scenario, ready to copy into a file."""
    return fill_asset(
        "scenario.html", named=f"From: {entry.origin}. " if entry.origin else "", place=f"scenario-{run_index}",
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
        parts.append(element("p", "Simulated; the scenario has no measured step time to compare with (measured)."))
    found = [entry.scenario.measured for entry in entries if entry.scenario and entry.scenario.measured]
    others = [measured.comparison_obstacle() for measured in found]
    parts += [element("p", f"The measured {text}.") for text in dict.fromkeys(others) if text]
    parts += _validated_studies(entries)
    parts.append(element("ul", [element("li", text) for text in _constant_sources(entries)], class_="notes"))
    return join_html(parts)


def _validated_studies(entries: Sequence[ReportEntry]) -> list[Markup]:
    content: list[Markup] = []
    tables: dict[tuple[StudyErrors, ...], list[str]] = {}
    for entry in entries:
        if entry.scenario is None:
            continue
        assert entry.likely_interval is not None
        fact = describe_likely_interval(entry.likely_interval)
        aside = f" ({fact.remark})" if fact.remark else ""
        text = f"{fact.name.capitalize()}: {fact.value}{fact.tail}{aside}."
        content.append(element("p", f"{entry.name}: {text}" if len(entries) > 1 else text))
        tables.setdefault(similar_studies(entry.scenario, entry.model_flops), []).append(entry.name)
    return content + [_studies_table(rows, names if len(tables) > 1 else []) for rows, names in tables.items()]


def _studies_table(rows: Sequence[StudyErrors], names: Sequence[str]) -> Markup:
    shown = rows[:_NEAREST]
    studies = len({row.study for row in rows})
    caption = f"Validated runs nearest to {', '.join(names)}" if names else "The nearest validated runs"
    text = f"{caption}, out of {studies} studies. Error: simulated / measured - 1; largest: the largest absolute error."
    cells = [
        [row.study, row.like, *(f"{low:,}{f' to {high:,}' * (low != high)}" for low, high in row.spans[:2]),
         f"{row.rows:,}", f"{row.mean:.1%}", f"{row.bias:+.1%}", f"{row.worst:.1%}"]
        for row in shown
    ]  # fmt: skip
    header = ["study", "runs of", "GPUs", "hidden size", "rows", "mean error", "bias", "largest"]
    return join_html(element("p", text), html_table(header, cells, caption=caption, left=2))


def _constant_sources(entries: Sequence[ReportEntry]) -> list[str]:
    found = [
        "Kernel times come from the device's roofline; communication times from link rates and, where the "
        "platform is known, from NCCL's own choices. The command simcluster validate scores published runs with the "
        "same constants.",
        "Differences between runs are more accurate than the runs themselves: most errors are common to both.",
    ]
    if any(entry.scenario is not None and entry.scenario.software is None for entry in entries):
        found.append(
            "Software is ideal here: the host takes no time to launch kernels. Real steps of small kernels are longer; "
            "set the scenario key software to include a framework's host overheads."
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
