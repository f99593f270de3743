"""Printed output of a layout search: a table of the best layouts, the reasons, and the rank of your own layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simcluster.base.units import format_seconds, format_seconds_round
from simcluster.results.account import Account
from simcluster.scenario.memory_plan import fit_mark
from simcluster.show.blocks import Answer, Lines, TableBar, TableBlock
from simcluster.show.cells import UNKNOWN, column_headings, describe_layout, format_row
from simcluster.studies.search.layout import Layout, layout_changes, layout_of_scenario, same_program, value_text
from simcluster.studies.search.own import OwnLayout
from simcluster.studies.search.plan import MAX_LISTED, Found, Ranked
from simcluster.studies.search.tally import PRUNED
from simcluster.studies.whatif.difference import Difference

Cell = Callable[[Ranked], str]
NONE = "-"
_SIZES: dict[str, Cell] = {
    "tp": lambda each: str(each.layout.tp),
    "pp": lambda each: str(each.layout.pp),
    "dp": lambda each: str(each.layout.dp),
}
_MORE: dict[str, Cell] = {
    "GPUs": lambda each: f"{each.layout.gpus:,}",
    "cp": lambda each: str(each.layout.cp),
    "cp by": lambda each: each.layout.cp_comm.replace("_", " ") if each.layout.cp > 1 else NONE,
    "ep": lambda each: str(each.layout.ep),
    "etp": lambda each: str(each.layout.etp or NONE),
    "micro": lambda each: str(each.layout.micro_batch),
    "schedule": lambda each: _schedule_name(each.layout) if each.layout.pp > 1 else NONE,
    "recompute": lambda each: each.layout.recompute,
    "sp": lambda each: "yes" if each.layout.sequence_parallel else "no",
    "ZeRO": lambda each: str(each.layout.zero),
    "order": lambda each: _order_cell(each),
}
_SPARED = ("tokens/s/GPU", "bubble", "exposed")
"""Columns that a narrow terminal goes without, in this order: the step and MFU say as much as the first."""
_KEY = {
    "micro": "micro: sequences in a microbatch",
    "sp": "sp: sequence parallelism",
    "order": "order: of dp and pp first the one whose ranks are nearest",
    "bubble": "bubble: the pipeline's, of the step",
    "exposed": "exposed: communication that no computation hides",
}
_STOPPED_BY = {"time limit": "by the time limit", "interrupt": "by an interrupt"}


def describe_plan(found: Found, width: int | None = None) -> Answer:
    """Return the printed blocks about a layout search, for a terminal of ``width`` columns (None: any width)."""
    which = "the best" if found.gap == 0 else "the best so far"
    options = layout_changes(found.base, found.best[0].layout).items()
    table = layout_table(found, width)
    key = [words for name, words in _KEY.items() if name in table.header]
    notes = [*([table.share] if table.share else []), *_join_in_lines(key), *_table_notes(found)]
    bars = [TableBar(0.0, seconds) for seconds in table.seconds]
    counts = [*sorted(found.counts.items(), key=lambda item: -item[1]), ("simulated", found.played)]
    return [
        Lines([f"{found.base.name}: {which} of {found.total:,} combinations"]),
        TableBlock(table.header, table.rows, notes=notes, bars=bars),
        *(
            Lines([paragraph])
            for paragraph in (*describe_proof(found), *describe_own_layout(found), *winner_reasons(found))
        ),
        Lines(memory_by_layout(found), "layout"),
        Lines(["combinations  reason, or simulated", *(f"{number:>12,}  {why}" for why, number in counts)], "layout"),
        Lines([f"{best_layout_label(found)}: {' '.join(f'--{path} {value_text(value)}' for path, value in options)}"]),
        Lines(found.left_out.in_words()),
    ]


# --- the table --------------------------------------------------------------------------------------------------------


class LayoutTable(NamedTuple):
    """A table of layouts with their step times (s), and the settings that all rows share."""

    header: list[str]
    rows: list[list[str]]
    share: str
    seconds: list[float]

    @property
    def width(self) -> int:
        """Number of characters of the longest line."""
        columns = zip(self.header, *self.rows, strict=True)
        return sum(max(map(len, column)) + 2 for column in columns) - 2

    def of(self, places: Sequence[int]) -> LayoutTable:
        """Return the table with only the columns at these indices."""
        rows = [[row[place] for place in places] for row in self.rows]
        return self._replace(header=[self.header[place] for place in places], rows=rows)


def layout_table(found: Found, width: int | None = None) -> LayoutTable:
    """Return a table of the best layouts and the next simulated ones.

    Faster layouts with too little free memory come after them. Columns that do not fit into ``width`` are omitted.
    """
    ranked = [("", each) for each in found.tight] + [(str(place), each) for place, each in enumerate(found.best, 1)]
    ranked += [(f"({place})", each) for place, each in enumerate(found.behind, len(found.best) + 1)]
    shared = {name: of(ranked[0][1]) for name, of in _MORE.items() if len({of(each) for _, each in ranked}) == 1}
    values = _SIZES | {name: of for name, of in _MORE.items() if name not in shared}
    score = {"step_time": [], "cost": ["$ a step"], "tokens_per_s_per_gpu": []}[found.objective]
    header = ["", *values, "step", *score, *column_headings("plan"), "exposed", "memory"]
    rows = [
        [
            place + ("*" if each.note(found.base) else ""),
            *(of(each) for of in values.values()),
            *_number_cells(found, each),
        ]
        for place, each in ranked
    ]
    table = LayoutTable(header, rows, _describe_shared_settings(shared), [each.step_time for _, each in ranked])
    table = table.of([place for place in range(len(header)) if any(row[place] != UNKNOWN for row in rows)])
    for spared in _SPARED:
        if width is not None and table.width > width:
            table = table.of([place for place, name in enumerate(table.header) if name != spared])
    return table


def _number_cells(found: Found, each: Ranked) -> list[str]:
    row = each.row
    score = [f"{each.score:,.4g}"] if found.objective == "cost" else []
    exposed = f"{row['exposed_communication_s'] / each.step_time:.1%}" if "exposed_communication_s" in row else UNKNOWN
    memory = f"{each.memory / 1e9:.1f} GB" + fit_mark(each.memory, found.limit.whole, found.limit.headroom)
    return [format_seconds(each.step_time), *score, *format_row("plan", row), exposed, memory]


def _order_cell(each: Ranked) -> str:
    if each.layout.pp == 1 or each.layout.dp == 1:
        return NONE
    orders = _distinct_orders((each.layout, *each.same))
    return ", ".join(orders.pop()) if len(orders) == 1 else "either"


def _describe_shared_settings(shared: dict[str, str]) -> str:
    micro = {"micro": "micro batch"}
    words = {"GPUs": f"{shared.get('GPUs')} GPUs", "sp": "sequence parallel", "order": f"order {shared.get('order')}"}
    without = {("cp", "1"), ("ep", "1"), ("sp", "no"), ("ZeRO", "0")}
    parts = [
        words.get(name) or f"{micro.get(name, name)} {value}"
        for name, value in shared.items() if value != NONE and (name, value) not in without
    ]  # fmt: skip
    return f"all: {', '.join(parts)}" if parts else ""


def _join_in_lines(parts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= 80:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return lines


def _table_notes(found: Found) -> Iterator[str]:
    part = found.limit.headroom
    of = f", {100 * part:.4g} % of {found.limit.whole / 1e9:.1f} GB left free (--headroom)" if part else ""
    yield f"memory: at most {found.capacity / 1e9:.1f} GB per GPU{of}"
    if found.gap == 0 and len(found.best) < MAX_LISTED and (found.behind or PRUNED in found.counts):
        count = len(found.best)
        which = "1 is proven to be the best" if count == 1 else f"1 to {count} are proven to be the best"
        if found.behind:
            yield f"{which}; in brackets: also simulated (?: not broken down)"
            yield f"others may lie between these: --top {MAX_LISTED} proves {MAX_LISTED}"
        else:
            yield f"{which}; --top {MAX_LISTED} proves the {MAX_LISTED} best"
    if found.tight:
        yield "~ ahead of the winner, but leaves less free: not recommended"
    notes = (each.note(found.base) for each in (*found.tight, *found.best, *found.behind))
    yield from (f"* {note}" for note in dict.fromkeys(filter(None, notes)))


# --- names ------------------------------------------------------------------------------------------------------------


def name_of(ranked: Ranked) -> str:
    """Return a short name of a simulated layout: tp 8, pp 8, dp 16, micro batch 1, interleaved x 3, ..."""
    return layout_name(ranked.layout, ranked.same)


def layout_name(place: Layout, same: Sequence[Layout] = ()) -> str:
    """Return a short name of a layout; the ``same`` layouts differ from it only in the order of ranks."""
    parts = [f"tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}"]
    parts += [f"cp {place.cp} ({place.cp_comm.replace('_', ' ')})"] if place.cp > 1 else []
    parts += [f"ep {place.ep}"] if place.ep > 1 else []
    parts += [f"etp {place.etp}"] if place.etp else []
    parts += [_schedule_name(place)] if place.pp > 1 else []
    parts.append(f"recompute {place.recompute}")
    parts += ["sp"] if place.sequence_parallel else []
    parts += [f"ZeRO {place.zero}"] if place.zero else []
    if place.pp > 1 and place.dp > 1:
        orders = _distinct_orders((place, *same))
        parts += ["dp and pp in either order"] if len(orders) > 1 else ["pp before dp"] * (orders == {("pp", "dp")})
    return ", ".join(parts)


def _schedule_name(place: Layout) -> str:
    return place.schedule + (f" x {place.chunks}" if place.chunks > 1 else "")


def _distinct_orders(layouts: Sequence[Layout]) -> set[tuple[str, ...]]:
    return {tuple(axis for axis in each.order if axis in ("dp", "pp")) for each in layouts}


def best_layout_label(found: Found) -> str:
    """Return what to call the best layout so far: "the winner" once it is proven to be the best."""
    return "the winner" if found.gap == 0 else "the best so far"


# --- why --------------------------------------------------------------------------------------------------------------


def winner_reasons(found: Found) -> list[str]:
    """Return sentences that compare the winner with other simulated layouts, and with lower bounds of all others."""
    winner, everyone = found.best[0], (*found.best[1:], *found.others)
    next_played = [each for each in found.others if each.layout not in winner.same] if len(found.best) == 1 else []
    rivals = [("the second", each) for each in found.best[1:2]]
    rivals += [("the next simulated one", each) for each in next_played[:1]]
    for axis in ("tp", "pp"):
        size = getattr(winner.layout, axis)
        others = [each for each in everyone if getattr(each.layout, axis) != size]
        rivals += [(f"the best with another {axis}", each) for each in others[:1]]
    roles: dict[int, list[str]] = {}
    for role, other in rivals:
        roles.setdefault(everyone.index(other), []).append(role)
    against = []
    for place, names in roles.items():
        other = everyone[place]
        longer = format_seconds(other.step_time - winner.step_time)
        short = f"it takes {format_seconds(other.step_time)} a step, {longer} longer."
        against.append(f"Against {' and '.join(names)} ({name_of(other)}): {_explain_gap(found, other) or short}")
    return [*against, *_list_lower_bounds(found)]


def _explain_gap(found: Found, other: Ranked | OwnLayout) -> str:
    winner = found.best[0]
    if "account" not in winner.row or "account" not in other.row:
        return ""
    first, second = Account.from_result(winner.row), Account.from_result(other.row)
    return Difference((best_layout_label(found), "it"), first, second, ()).in_words()


def _list_lower_bounds(found: Found) -> Iterator[str]:
    best = found.best[0].score
    parts = [
        f"{axis} {size} is at least {bound / best - 1:.1%} slower"
        for (axis, size), bound in sorted(found.elsewhere.items())
    ]
    if parts:
        whose = " of layouts that leave the headroom" if found.tight else ""
        yield f"Lower bounds{whose}: {', '.join(parts)}."


def describe_proof(found: Found) -> list[str]:
    """Return sentences about what an interrupted search has proven."""
    if not found.stopped:
        return []
    after = f"stopped {_STOPPED_BY[found.stopped]} after {format_seconds_round(found.seconds)}"
    if found.proven:
        return [f"Proven, but {after}: where the time of the best goes is not known of all."]
    if found.gap is None:
        return [f"Not proven ({after}): no bound is known yet for layouts that were not simulated."]
    if found.gap:
        left = f"; {found.left:,} have not had their turn" if found.left else ""
        return [f"Not proven: gap {found.gap:.1%} ({after}): none can be more than that better than the first{left}."]
    if found.left:
        return [f"Only the first is proven ({after}): {found.left:,} others may still be among the best."]
    return [
        f"The best are proven, but ({after}) those in less memory, or that leave less free, were not all looked at."
    ]


def describe_own_layout(found: Found) -> list[str]:
    """Return sentences about the rank of the scenario's own layout, and why it is not the best."""
    own, winner = found.own, found.best[0]
    if own is None and not found.proven and any(each.layout.gpus == found.base.gpus for each in found.best):
        return ["Yours was not simulated before the search was stopped."]
    if own is None:
        return [f"Yours is on {found.base.gpus:,} GPUs, which were not asked for."]
    yours, seconds = f"Yours ({describe_layout(found.base)})", format_seconds(own.step_time)
    room = "" if own.memory <= found.capacity else f", which needs {own.memory / 1e9:.1f} GB per GPU, above the limit"
    if same_program(layout_of_scenario(found.base), winner.layout):
        return [f"{yours}, {seconds} per step, is {best_layout_label(found)}."]
    if own.score > winner.score:
        longer = own.step_time - winner.step_time
        more = f"{format_seconds(longer)} ({longer / winner.step_time:.1%}) longer"
        return [f"{yours}{room}: {_explain_gap(found, own) or f'it takes {seconds} a step, {more} than the first.'}"]
    less = 1 - own.score / winner.score
    return [f"{yours} is {f'{less:.1%} less' if less > 0 else f'as fast as {best_layout_label(found)}'}{room}."]


def memory_by_layout(found: Found) -> list[str]:
    """Return lines with the memory of the fullest GPU, for layouts that split the model further and further."""
    width = max(len(rung.words) for rung in found.ladder)
    lines = ["What the fullest GPU holds, the more the job is split (micro batch 1):"]
    for rung in found.ladder:
        if rung.memory is None:
            holds = rung.why
        else:
            size = f"{rung.memory / 1e9:,.0f} GB" if rung.memory >= 1e11 else f"{rung.memory / 1e9:.1f} GB"
            holds = f"{size:>7}{'  fits' if rung.memory <= found.capacity else ''}"
        lines.append(f"  {rung.words:{width}}  {holds}")
    return lines
