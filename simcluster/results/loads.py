"""Which links of a run carried what, and when.

Read off the spans: a collective or transfer moves its bytes over the links of its paths from its start to its end, at
an even pace.  So bytes are exact, and rates are means over a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats
from simcluster.base.clock import TICK
from simcluster.base.errors import InputError
from simcluster.results.played import Run
from simcluster.results.result import Result
from simcluster.topology import Cluster
from simcluster.topology.levels import label
from simcluster.traffic.traffic import Traffic

if TYPE_CHECKING:
    import pandas as pd

Link = tuple[str, str]

LINK_COLUMNS = (
    "link_from", "link_to", "medium", "capacity", "bytes", "busy_s", "utilisation", "peak_utilisation",
)  # fmt: skip


def link_table(result: Result) -> pd.DataFrame:
    """One row per link that carried anything, in the cluster's order of links; per step, in B/s, bytes and seconds.

    ``busy_s`` is the time with a span under way that uses the link; ``utilisation`` bytes / (capacity x step time);
    ``peak_utilisation`` the highest rate / capacity of any instant.  Rates are spans' means: where traffic that met
    would add up to more than the link can do, it was full, and the peak is 1.
    """
    return _loads_of(result).table.copy()


def hottest(result: Result, n: int = 10) -> pd.DataFrame:
    """The links with the highest utilisation, then the most bytes; ``links`` says how many are exactly alike.

    Links between equal kinds of node with equal numbers are one row, named by the first of them.
    """
    table = link_table(result)
    graph = result.scenario.cluster.built.graph
    table["ends"] = [
        (label(graph, a), label(graph, b)) for a, b in zip(table["link_from"], table["link_to"], strict=True)
    ]
    for name in LINK_COLUMNS[3:]:  # 9 digits: sums in another order are still alike
        table[f"{name} alike"] = table[name].map("{:.9g}".format)
    alike = ["ends", "medium", *(f"{name} alike" for name in LINK_COLUMNS[3:])]
    table["links"] = table.groupby(alike, sort=False)["link_from"].transform("size")
    table = table.drop_duplicates(alike).sort_values(["utilisation", "bytes"], ascending=False, kind="stable")
    return table[[*LINK_COLUMNS, "links"]].head(n).reset_index(drop=True)


def utilisation(result: Result, links: Sequence[Link], bins: int = 200) -> tuple[Floats, Floats]:
    """Edges (s) of ``bins`` equal bins over the run, and each link's mean rate / capacity in each: (links, bins).

    ``links`` are (from, to) pairs of node names.  Bytes are conserved, so a bin is above 1 where the mean rates of
    spans that met add up to more than the link can do.  InputError for a link that the cluster does not have, and
    for no bins.
    """
    if bins < 1:
        raise InputError(f"bins is {bins!r}; at least 1 is needed")
    loads = _loads_of(result)
    edges = np.linspace(0.0, loads.duration, bins + 1)
    matrix = np.zeros((len(links), bins))
    for place, link in enumerate(links):
        number = loads.class_of(link)
        if number is not None:
            moved = np.diff(loads.moved_until(number, edges))
            matrix[place] = moved / (np.diff(edges) * loads.capacity(number))
    return edges, matrix


def _loads_of(result: Result) -> LinkLoads:
    """The loads of a result; kept with it, as its cached properties are."""
    loads: LinkLoads | None = vars(result).get("_link_loads")
    if loads is None:
        loads = vars(result)["_link_loads"] = LinkLoads(result, result.scenario.cluster.built)
    return loads


class LinkLoads:
    """The spans of one run that moved bytes, by what they moved, and the link classes that this used.

    ``result`` may be one of several jobs that were played together: then its own ranks' traffic counts.
    """

    def __init__(self, result: Run, cluster: Cluster) -> None:
        self._result = result
        self._cluster = cluster
        self._spans = _spans(result)
        self._bytes: dict[int, dict[int, float]] = {}  # link class -> traffic -> bytes of one span
        for traffic in self._spans:
            for number, moved in _bytes_on_links(result.lowered.program.traffics[traffic]).items():
                self._bytes.setdefault(number, {})[traffic] = moved
        self._measured: dict[tuple[float, tuple[tuple[int, float], ...]], tuple[float, float, float]] = {}

    @cached_property
    def table(self) -> pd.DataFrame:
        """See ``link_table``."""
        import pandas as pd

        rows = [(link, row) for number in self._bytes for row in [self.row(number)] for link in self.members(number)]
        rows.sort(key=lambda pair: pair[0])
        return pd.DataFrame([(*self.ends(link), *row) for link, row in rows], columns=list(LINK_COLUMNS))

    @property
    def duration(self) -> float:
        """Seconds of all steps."""
        return self._result.step_time * self._result.steps

    def members(self, number: int) -> tuple[int, ...]:
        """The links of a class."""
        return self._result.lowered.classes.link_members[number]

    def capacity(self, number: int) -> float:
        """B/s of every link of a class."""
        return self._result.lowered.capacity[number]

    def ends(self, link: int) -> tuple[str, str, str]:
        """The nodes that a link joins, and its medium."""
        a, b = self._cluster.links[link]
        return a, b, str(self._cluster.graph[a][b]["medium"])

    def class_of(self, link: Link) -> int | None:
        """The class of a link by its nodes; None if it carried nothing."""
        number = self._cluster.link_index.get(link)
        if number is None:
            raise InputError(f"cluster {self._cluster.name!r} has no link from {link[0]!r} to {link[1]!r}")
        return self._class_of.get(number)

    @cached_property
    def _class_of(self) -> dict[int, int]:
        return {link: number for number in self._bytes for link in self.members(number)}

    def row(self, number: int) -> tuple[float, float, float, float, float]:
        """Capacity, bytes, busy seconds, utilisation and peak utilisation of every link of a class; per step."""
        capacity, steps = self.capacity(number), self._result.steps
        key = capacity, tuple(self._bytes[number].items())
        if key not in self._measured:
            moved = sum(size * len(self._spans[traffic][0]) for traffic, size in key[1])
            times, rate = self._rates(number)
            busy = float(np.diff(times)[rate[:-1] > 0].sum()) if len(times) else 0.0
            self._measured[key] = moved, busy, min(1.0, float(rate.max(initial=0.0)) / capacity)
        moved, busy, peak = self._measured[key]
        return capacity, moved / steps, busy / steps, moved / (capacity * self.duration), peak

    def moved_until(self, number: int, instants: Floats) -> Floats:
        """Bytes that had crossed each link of a class at these instants."""
        times, rate = self._rates(number)
        until = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
        crossed: Floats = np.interp(instants, times, until)
        return crossed

    def _rates(self, number: int) -> tuple[Floats, Floats]:
        """Instants at which the rate on a link of a class changes, ascending, and the rate (B/s) from each on."""
        times, changes, under_way = [], [], []
        for traffic, size in self._bytes[number].items():
            start, end = self._spans[traffic]
            rate = size / (end - start)
            times += [start, end]
            changes += [rate, -rate]
            under_way += [np.ones(len(start)), -np.ones(len(end))]
        instants, place = np.unique(np.concatenate(times), return_inverse=True)
        rate = np.cumsum(np.bincount(place, np.concatenate(changes)))
        spans = np.cumsum(np.bincount(place, np.concatenate(under_way)))
        return instants, np.where(spans > 0, np.maximum(rate, 0.0), 0.0)  # else rounding would leave a rate behind


def _spans(result: Run) -> dict[int, tuple[Floats, Floats]]:
    """Starts and ends (s) of the spans that moved something, by the number of what they moved."""
    program, record = result.lowered.program, result.record
    rank = np.array(program.lane_rank, dtype=np.int64)[np.array(program.lane, dtype=np.int64)]
    own = (rank >= result.ranks.start) & (rank < result.ranks.stop)
    meeting, rows = np.array(program.meeting, dtype=np.int64), np.array(program.rows, dtype=np.int64)
    found: dict[int, list[tuple[Floats, Floats]]] = {}
    for op, times in record.slowed.items():
        for row, (begin, end) in zip(program.row_sets[program.rows[op]], times, strict=True):
            if own[op] and row.traffic >= 0:
                spans = record.start[[op]] + begin, record.start[[op]] + end
                found.setdefault(row.traffic, []).append(spans)
    at_full_speed = np.ones(len(rows), dtype=bool)
    at_full_speed[list(record.slowed)] = False
    for numbers, ops in _by_row_set(rows, own & (meeting < 0) & at_full_speed):
        for row in program.row_sets[numbers]:
            if row.traffic >= 0:
                spans = record.start[ops] + row.start, record.start[ops] + row.end
                found.setdefault(row.traffic, []).append(spans)
    met: dict[int, list[int]] = {}
    for op in np.flatnonzero(own & (meeting >= 0)).tolist():
        if any(row.traffic >= 0 for row in program.row_sets[program.rows[op]][:1]):  # a receive has no row
            met.setdefault(program.meeting[op], []).append(op)
    for members in met.values():  # a meeting moves its bytes once, however many take part
        span = record.start[members].min(keepdims=True), record.end[members].max(keepdims=True)
        found.setdefault(program.row_sets[program.rows[members[0]]][0].traffic, []).append(span)
    joined = {number: (np.concatenate([s for s, _ in parts]), np.concatenate([e for _, e in parts]))
              for number, parts in found.items()}  # fmt: skip
    return {number: (start, np.maximum(end, start + TICK)) for number, (start, end) in joined.items()}


def _by_row_set(rows: npt.NDArray[np.int64], wanted: npt.NDArray[np.bool_]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Wanted ops by the number of the rows that they leave."""
    ops = np.flatnonzero(wanted)
    ops = ops[np.argsort(rows[ops], kind="stable")]
    parts = np.split(ops, np.flatnonzero(np.diff(rows[ops])) + 1)
    return [(int(rows[part[0]]), part) for part in parts if len(part)]


def _bytes_on_links(traffics: Sequence[Traffic]) -> dict[int, float]:
    """Bytes that activities put on each link, where they put any."""
    moved: dict[int, float] = {}
    for traffic in traffics:
        for link, flows in traffic.usage:
            if flows * traffic.round_bytes > 0:
                moved[link] = moved.get(link, 0.0) + flows * traffic.round_bytes * traffic.rounds
    return moved
