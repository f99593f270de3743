"""The table of a plan's best layouts: a column for each value in which they differ; what they share is said once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simcluster.base.units import format_seconds
from simcluster.cli.common import format_table
from simcluster.scenario.headroom import mark
from simcluster.show.cells import UNKNOWN, cells, headings
from simcluster.studies.search.plan import Found, Ranked

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
    "schedule": lambda each: _schedule(each),
    "recompute": lambda each: each.layout.recompute,
    "sp": lambda each: "yes" if each.layout.sequence_parallel else "no",
    "ZeRO": lambda each: str(each.layout.zero),
    "order": lambda each: _order(each),
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


class LayoutTable(NamedTuple):
    """A table of layouts with the values that they ``share``, and what its headings mean."""

    header: list[str]
    rows: list[list[str]]
    share: str

    def within(self, width: int | None) -> LayoutTable:
        """In so many columns of a terminal, without some of its own where they do not fit (None: there is room)."""
        table = self
        for spared in _SPARED:
            if width is None or table.width <= width:
                break
            keep = [place for place, name in enumerate(table.header) if name != spared]
            rows = [[row[place] for place in keep] for row in table.rows]
            table = LayoutTable([table.header[place] for place in keep], rows, self.share)
        return table

    @property
    def width(self) -> int:
        """Of its longest line, in characters."""
        columns = zip(self.header, *self.rows, strict=True)
        return sum(max(map(len, column)) + 2 for column in columns) - 2

    @property
    def lines(self) -> list[str]:
        """The table, what all rows share, and the key of its headings."""
        key = [words for name, words in _KEY.items() if name in self.header]
        return [format_table(self.header, self.rows), *([self.share] if self.share else []), *_in_lines(key)]


def layout_table(found: Found) -> LayoutTable:
    """Of the best and of the next that were played, behind those that are faster and leave less memory free."""
    ranked = [("", each) for each in found.tight] + [(str(place), each) for place, each in enumerate(found.best, 1)]
    ranked += [(f"({place})", each) for place, each in enumerate(found.behind, len(found.best) + 1)]
    shared = {name: of(ranked[0][1]) for name, of in _MORE.items() if len({of(each) for _, each in ranked}) == 1}
    values = _SIZES | {name: of for name, of in _MORE.items() if name not in shared}
    score = {"step_time": [], "cost": ["$ a step"], "tokens_per_s_per_gpu": []}[found.objective]
    header = ["", *values, "step", *score, *headings("plan"), "exposed", "memory"]
    rows = [
        [place + ("*" if each.note(found.base) else ""), *(of(each) for of in values.values()), *_numbers(found, each)]
        for place, each in ranked
    ]
    known = [place for place in range(len(header)) if any(row[place] != UNKNOWN for row in rows)]  # of a stopped search
    rows = [[row[place] for place in known] for row in rows]
    return LayoutTable([header[place] for place in known], rows, _in_words(shared))


def _numbers(found: Found, each: Ranked) -> list[str]:
    row = each.row
    score = [f"{each.score:,.4g}"] if found.objective == "cost" else []
    exposed = f"{row['exposed_communication_s'] / each.step_time:.1%}" if "exposed_communication_s" in row else UNKNOWN
    memory = f"{each.memory / 1e9:.1f} GB" + mark(each.memory, found.limit.whole, found.limit.headroom)
    return [format_seconds(each.step_time), *score, *cells("plan", row), exposed, memory]


def _schedule(each: Ranked) -> str:
    layout = each.layout
    return NONE if layout.pp == 1 else layout.schedule + (f" x {layout.chunks}" if layout.chunks > 1 else "")


def _order(each: Ranked) -> str:
    """Of dp and pp the one with the nearer ranks first; "either" where that makes no difference."""
    if each.layout.pp == 1 or each.layout.dp == 1:
        return NONE
    orders = {tuple(axis for axis in layout.order if axis in ("dp", "pp")) for layout in (each.layout, *each.same)}
    return ", ".join(orders.pop()) if len(orders) == 1 else "either"


def _in_words(shared: dict[str, str]) -> str:
    """What all rows have in common, but for what they do without."""
    micro = {"micro": "micro batch"}
    words = {"GPUs": f"{shared.get('GPUs')} GPUs", "sp": "sequence parallel", "order": f"order {shared.get('order')}"}
    without = {("cp", "1"), ("ep", "1"), ("sp", "no"), ("ZeRO", "0")}
    told = [
        words.get(name) or f"{micro.get(name, name)} {value}"
        for name, value in shared.items() if value != NONE and (name, value) not in without
    ]  # fmt: skip
    return f"all: {', '.join(told)}" if told else ""


def _in_lines(parts: Sequence[str]) -> list[str]:
    """Parts with semicolons between them, in lines of 80 characters at the most."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= 80:
            lines[-1] += f"; {part}"
        else:
            lines.append(part)
    return lines


__all__ = ["LayoutTable", "layout_table"]
