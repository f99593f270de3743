"""Printed output of a layout search: the best layouts, why the winner wins, and where your own layout ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simcluster.base.units import format_seconds, format_seconds_short
from simcluster.results.step_account import StepAccount
from simcluster.scenario.memory_plan import fit_mark
from simcluster.show.output_blocks import OutputBlocks, TableBar, TableBlock, TextLines
from simcluster.show.table_cells import UNKNOWN_CELL, column_headings, describe_layout, format_row, join_parts
from simcluster.studies.search.layout import Layout, format_value, is_same_program, layout_changes, layout_of_scenario
from simcluster.studies.search.own_layout import OwnLayout
from simcluster.studies.search.plan import MAX_LISTED, PlanResult, RankedLayout
from simcluster.studies.search.search_tally import PRUNED
from simcluster.studies.whatif.difference import RunDifference

CellFormatter = Callable[[RankedLayout], str]
NONE = "-"
_SIZES: dict[str, CellFormatter] = {
    "tp": lambda each: str(each.layout.tp),
    "pp": lambda each: str(each.layout.pp),
    "dp": lambda each: str(each.layout.dp),
}
_MORE: dict[str, CellFormatter] = {
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
    "order": lambda each: _rank_order_cell(each),
}
_SPARED = ("tokens/s/GPU", "bubble", "exposed")
"""Columns omitted on a narrow terminal, in this order; step time and MFU say as much as the first."""
_KEY = {
    "micro": "micro: sequences in a microbatch",
    "sp": "sp: sequence parallelism",
    "order": "order: of dp and pp, first the one whose ranks are closest in the network",
    "bubble": "bubble: pipeline bubble, share of the step",
    "exposed": "exposed: communication that does not overlap with compute, share of the step",
}
_STOPPED_BY = {"time limit": "by the time limit", "interrupt": "by an interrupt"}


def describe_plan(plan: PlanResult, width: int | None = None) -> OutputBlocks:
    """Return printed output about a layout search, fitted to a terminal width in characters (None: unlimited)."""
    which = "the best" if plan.gap == 0 else "the best so far"
    options = layout_changes(plan.base, plan.best[0].layout).items()
    table = layout_table(plan, width)
    key = [words for name, words in _KEY.items() if name in table.header]
    notes = [*([table.shared_settings] if table.shared_settings else []), *join_parts(key, 80), *_table_notes(plan)]
    bars = [TableBar(0.0, seconds) for seconds in table.seconds]
    paragraphs = [*describe_proof(plan), *describe_own_layout(plan), *explain_winner(plan)]
    counts = [*sorted(plan.counts.items(), key=lambda item: -item[1]), ("simulated", plan.num_simulated)]
    return [
        TextLines([f"{plan.base.name}: {which} of {plan.num_combinations:,} combinations"]),
        TableBlock(table.header, table.rows, notes=notes, bars=bars),
        *(TextLines([paragraph]) for paragraph in paragraphs),
        TextLines(describe_memory_by_layout(plan), "layout"),
        TextLines(["combinations  outcome", *(f"{number:>12,}  {why}" for why, number in counts)], "layout"),
        TextLines([f"{best_layout_label(plan)}: {' '.join(f'--{key} {format_value(new)}' for key, new in options)}"]),
        TextLines(plan.ignored_parts.describe()),
    ]


# --- the table --------------------------------------------------------------------------------------------------------


class LayoutTable(NamedTuple):
    """A table of parallel layouts: text cells, step times (s), and the settings that are equal in all rows."""

    header: list[str]
    rows: list[list[str]]
    shared_settings: str
    seconds: list[float]

    @property
    def width(self) -> int:
        """Number of characters of the longest line."""
        columns = zip(self.header, *self.rows, strict=True)
        return sum(max(map(len, column)) + 2 for column in columns) - 2

    def select_columns(self, columns: Sequence[int]) -> LayoutTable:
        """Return the table with only the columns at the indices ``columns``."""
        rows = [[row[place] for place in columns] for row in self.rows]
        return self._replace(header=[self.header[place] for place in columns], rows=rows)


def layout_table(plan: PlanResult, width: int | None = None) -> LayoutTable:
    """Return a table of the best layouts and of other simulated layouts, fitted to a terminal width in characters.

    Faster layouts that leave too little memory free come first, without a number. Columns that do not fit are omitted.
    """
    ranked = [("", each) for each in plan.tight] + [(str(place), each) for place, each in enumerate(plan.best, 1)]
    ranked += [(f"({place})", each) for place, each in enumerate(plan.runners_up, len(plan.best) + 1)]
    shared = {name: of(ranked[0][1]) for name, of in _MORE.items() if len({of(each) for _, each in ranked}) == 1}
    values = _SIZES | {name: of for name, of in _MORE.items() if name not in shared}
    score = {"step_time": [], "cost": ["$ per step"], "tokens_per_s_per_gpu": []}[plan.objective]
    header = ["", *values, "step", *score, *column_headings("plan"), "exposed", "memory"]
    rows = []
    for place, each in ranked:
        mark = "*" if each.note(plan.base) else ""
        rows.append([place + mark, *(of(each) for of in values.values()), *_number_cells(plan, each)])
    table = LayoutTable(header, rows, _describe_shared_settings(shared), [each.step_time for _, each in ranked])
    table = table.select_columns([at for at in range(len(header)) if any(row[at] != UNKNOWN_CELL for row in rows)])
    for spared in _SPARED:
        if width is not None and table.width > width:
            table = table.select_columns([place for place, name in enumerate(table.header) if name != spared])
    return table


def _number_cells(plan: PlanResult, each: RankedLayout) -> list[str]:
    row, limit, name = each.row, plan.memory_limit, "exposed_communication_s"
    score = [f"{each.score:,.4g}"] if plan.objective == "cost" else []
    exposed = f"{row[name] / each.step_time:.1%}" if name in row else UNKNOWN_CELL
    memory = f"{each.memory / 1e9:.1f} GB" + fit_mark(each.memory, limit.limit_bytes, limit.headroom)
    return [format_seconds(each.step_time), *score, *format_row("plan", row), exposed, memory]


def _rank_order_cell(each: RankedLayout) -> str:
    if each.layout.pp == 1 or each.layout.dp == 1:
        return NONE
    orders = _distinct_rank_orders((each.layout, *each.same_program_layouts))
    return ", ".join(orders.pop()) if len(orders) == 1 else "either"


def _describe_shared_settings(shared: dict[str, str]) -> str:
    micro = {"micro": "micro batch"}
    words = {"GPUs": f"{shared.get('GPUs')} GPUs", "sp": "sequence parallel", "order": f"order {shared.get('order')}"}
    without = {("cp", "1"), ("ep", "1"), ("sp", "no"), ("ZeRO", "0")}
    parts = [
        words.get(name) or f"{micro.get(name, name)} {value}"
        for name, value in shared.items() if value != NONE and (name, value) not in without
    ]  # fmt: skip
    return f"all layouts: {', '.join(parts)}" if parts else ""


def _table_notes(plan: PlanResult) -> Iterator[str]:
    part = plan.memory_limit.headroom
    of = f", {100 * part:.4g} % of {plan.memory_limit.limit_bytes / 1e9:.1f} GB left free (--headroom)" if part else ""
    yield f"memory: at most {plan.capacity / 1e9:.1f} GB per GPU{of}"
    if plan.gap == 0 and len(plan.best) < MAX_LISTED and (plan.runners_up or PRUNED in plan.counts):
        count = len(plan.best)
        which = "1 is proven to be the best" if count == 1 else f"1 to {count} are proven to be the best"
        if plan.runners_up:
            yield f"{which}; in brackets: also simulated (?: no time breakdown)"
            yield f"layouts not simulated may rank between these: --top {MAX_LISTED} proves the {MAX_LISTED} best"
        else:
            yield f"{which}; --top {MAX_LISTED} proves the {MAX_LISTED} best"
    if plan.tight:
        yield "~ faster than the winner, but leaves too little memory free: not recommended"
    notes = (each.note(plan.base) for each in (*plan.tight, *plan.best, *plan.runners_up))
    yield from (f"* {note}" for note in dict.fromkeys(filter(None, notes)))


# --- names ------------------------------------------------------------------------------------------------------------


def ranked_layout_name(ranked: RankedLayout) -> str:
    """Return the name of a simulated layout: "tp 8, pp 8, dp 16, micro batch 1, interleaved x 3, ..."."""
    return layout_name(ranked.layout, ranked.same_program_layouts)


def layout_name(layout: Layout, reordered: Sequence[Layout] = ()) -> str:
    """Return the name of a layout, including the rank order if it is needed to distinguish layouts."""
    parts = [f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}, micro batch {layout.micro_batch}"]
    parts += [f"cp {layout.cp} ({layout.cp_comm.replace('_', ' ')})"] if layout.cp > 1 else []
    parts += [f"ep {layout.ep}"] if layout.ep > 1 else []
    parts += [f"etp {layout.etp}"] if layout.etp else []
    parts += [_schedule_name(layout)] if layout.pp > 1 else []
    parts.append(f"recompute {layout.recompute}")
    parts += ["sp"] if layout.sequence_parallel else []
    parts += [f"ZeRO {layout.zero}"] if layout.zero else []
    if layout.pp > 1 and layout.dp > 1:
        orders = _distinct_rank_orders((layout, *reordered))
        parts += ["dp and pp in either order"] if len(orders) > 1 else ["pp before dp"] * (orders == {("pp", "dp")})
    return ", ".join(parts)


def _schedule_name(layout: Layout) -> str:
    return layout.schedule + (f" x {layout.chunks}" if layout.chunks > 1 else "")


def _distinct_rank_orders(layouts: Sequence[Layout]) -> set[tuple[str, ...]]:
    return {tuple(axis for axis in each.order if axis in ("dp", "pp")) for each in layouts}


def best_layout_label(plan: PlanResult) -> str:
    """Return how to call the best layout found: "the winner" if proven the best, else "the best so far"."""
    return "the winner" if plan.gap == 0 else "the best so far"


# --- why --------------------------------------------------------------------------------------------------------------


def explain_winner(plan: PlanResult) -> list[str]:
    """Return sentences that compare the winner with other simulated layouts, and with bounds on unsimulated ones."""
    winner, everyone = plan.best[0], (*plan.best[1:], *plan.other_layouts)
    rest = plan.other_layouts if len(plan.best) == 1 else ()
    rivals = [("the second", each) for each in plan.best[1:2]]
    rivals += [("the next simulated one", each) for each in rest if each.layout not in winner.same_program_layouts][:1]
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
        gap = _explain_gap(plan, other) or f"it takes {format_seconds(other.step_time)} per step, {longer} longer."
        against.append(f"Against {' and '.join(names)} ({ranked_layout_name(other)}): {gap}")
    return [*against, *_list_lower_bounds(plan)]


def _explain_gap(plan: PlanResult, other: RankedLayout | OwnLayout) -> str:
    winner = plan.best[0]
    if "account" not in winner.row or "account" not in other.row:
        return ""
    first, second = StepAccount.from_result(winner.row), StepAccount.from_result(other.row)
    return RunDifference((best_layout_label(plan), "it"), first, second, ()).describe()


def _list_lower_bounds(plan: PlanResult) -> Iterator[str]:
    best = plan.best[0].score
    parts = [
        f"{axis} {size} is at least {bound / best - 1:.1%} slower"
        for (axis, size), bound in sorted(plan.bounds_elsewhere.items())
    ]
    if parts:
        whose = " of layouts that leave enough memory free" if plan.tight else ""
        yield f"Lower bounds{whose}: {', '.join(parts)}."


def describe_proof(plan: PlanResult) -> list[str]:
    """Return sentences that say what a search proved before it was stopped; none for a complete search."""
    if not plan.stopped:
        return []
    after = f"stopped {_STOPPED_BY[plan.stopped]} after {format_seconds_short(plan.seconds)}"
    if plan.proven:
        return [f"Proven, but {after}: some of the best layouts have no time breakdown."]
    if plan.gap is None:
        return [f"Not proven ({after}): no bound is known yet for layouts that were not simulated."]
    if plan.gap:
        left = f"; {plan.left:,} layouts may still be among the best" if plan.left else ""
        return [f"Not proven ({after}): other layouts can be at most {plan.gap:.1%} better than the first{left}."]
    if plan.left:
        return [f"Only the first is proven ({after}): {plan.left:,} layouts not simulated may beat the others."]
    return [
        f"The best are proven ({after}), but not all layouts with less memory, or less of it left free, were tried."
    ]


def describe_own_layout(plan: PlanResult) -> list[str]:
    """Return sentences about the rank of the scenario's own layout and its gap to the best."""
    own, winner = plan.own_layout, plan.best[0]
    if own is None and not plan.proven and any(each.layout.gpus == plan.base.gpus for each in plan.best):
        return ["Your layout was not simulated before the search was stopped."]
    if own is None:
        return [f"Your layout uses {plan.base.gpus:,} GPUs; the search is over other numbers of GPUs."]
    yours, seconds = f"Your layout ({describe_layout(plan.base)})", format_seconds(own.step_time)
    room = "" if own.memory <= plan.capacity else f", which needs {own.memory / 1e9:.1f} GB per GPU, above the limit"
    if is_same_program(layout_of_scenario(plan.base), winner.layout):
        return [f"{yours}, {seconds} per step, is {best_layout_label(plan)}."]
    if own.score > winner.score:
        longer = own.step_time - winner.step_time
        more = f"{format_seconds(longer)} ({longer / winner.step_time:.1%}) longer"
        return [f"{yours}{room}: {_explain_gap(plan, own) or f'it takes {seconds} per step, {more} than the first.'}"]
    less = 1 - own.score / winner.score
    return [f"{yours} is {f'{less:.1%} less' if less > 0 else f'as fast as {best_layout_label(plan)}'}{room}."]


def describe_memory_by_layout(plan: PlanResult) -> list[str]:
    """Return output lines with the memory of the fullest GPU for increasingly sharded layouts."""
    width = max(len(rung.words) for rung in plan.memory_ladder)
    lines = ["Memory of the fullest GPU, for more and more sharding (micro batch 1):"]
    for rung in plan.memory_ladder:
        if rung.memory is None:
            holds = rung.invalid_reason
        else:
            size = f"{rung.memory / 1e9:,.0f} GB" if rung.memory >= 1e11 else f"{rung.memory / 1e9:.1f} GB"
            holds = f"{size:>7}{'  fits' if rung.memory <= plan.capacity else ''}"
        lines.append(f"  {rung.words:{width}}  {holds}")
    return lines
