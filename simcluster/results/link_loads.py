"""Traffic on the links of a run: bytes, busy time and utilisation over time.

A collective or transfer moves its bytes over the links of its paths from its start to its end at a constant rate. So
bytes are exact, and rates are means over a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import TICK
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.topology.wiring import LinkKind
from simcluster.traffic.traffic import Traffic

if TYPE_CHECKING:
    import pandas as pd

LinkLoadRow = tuple[float, float, float, float, float]
"""Measurements of a link: capacity, bytes, busy_s, utilisation, peak_utilisation."""

LINK_COLUMNS = (
    "link_from", "link_to", "medium", "capacity", "bytes", "busy_s", "utilisation", "peak_utilisation",
)  # fmt: skip


def link_table(result: Result) -> pd.DataFrame:
    """Return a DataFrame of all links that carried traffic: bytes, busy seconds and utilisation per step.

    ``busy_s`` is the time with a span under way that uses the link; ``utilisation`` bytes / (capacity x step time);
    ``peak_utilisation`` the highest rate / capacity of any instant. Rates are spans' means: where concurrent traffic
    would add up to more than the capacity, the link was full, and the peak is 1.
    """
    return _link_loads(result).table.copy()


def hottest_links(result: Result, n: int = 10) -> pd.DataFrame:
    """Return a DataFrame of the ``n`` busiest links; equal links share a row, and the column ``links`` counts them.

    Links between equal kinds of node with equal numbers are one row, named by the first of them.
    """
    return _link_loads(result).hottest_links(n)[0]


def hottest_links_over_time(result: Result, n: int, bins: int) -> tuple[pd.DataFrame, Floats, Floats]:
    """Return the busiest links, the edges (s) of time bins, and each link's mean utilisation in each bin.

    Bytes are conserved, so a bin is above 1 where mean rates of concurrent spans add up to more than the capacity.
    """
    loads = _link_loads(result)
    table, numbers = loads.hottest_links(n)
    return table, *loads.utilisation_over_time(numbers, bins)


def _link_loads(result: Result) -> LinkLoads:
    loads: LinkLoads | None = vars(result).get("_link_loads")
    if loads is None:
        loads = vars(result)["_link_loads"] = LinkLoads(result)
    return loads


class LinkLoads:
    """Traffic of a run on its links; links with equal loads form a class, which is stored once.

    ``result`` may be one of several jobs that were simulated together: then only its ranks' traffic counts.
    """

    def __init__(self, result: Result) -> None:
        self.capacity = result.capacity  # B/s of every link of a class
        self._steps = result.steps
        self.duration = result.step_time * result.steps
        self._cluster = result.scenario.cluster.built
        classes = result.folding.classes
        traffics, self._spans = _collect_transfers(result)
        self._bytes: dict[int, dict[int, float]] = {}  # link class -> traffic -> bytes of one span
        for traffic, own in enumerate(traffics):
            used = len(self._spans[traffic][0]) > 0  # else of another job
            for number, moved in _bytes_on_links(own).items() if used else ():
                self._bytes.setdefault(number, {})[traffic] = moved
        carries = np.zeros(len(self.capacity), dtype=bool)
        carries[list(self._bytes)] = True
        there = carries[classes.used_link_classes]
        self._links, self._classes = classes.used_links[there], classes.used_link_classes[there]  # carrying, ascending
        self._measured: dict[tuple[float, tuple[tuple[int, float], ...]], tuple[float, float, float]] = {}

    @cached_property
    def table(self) -> pd.DataFrame:
        """DataFrame of all links that carried traffic, with the columns of the function ``link_table``."""
        number, kinds = self._cluster.link_kinds(self._links)
        rows = [
            (a, b, kinds[kind].medium, *self._load_row(own))
            for (a, b), kind, own in zip(
                self._cluster.link_names(self._links), number.tolist(), self._classes.tolist(), strict=True
            )
        ]
        return _make_table(rows, LINK_COLUMNS)

    def hottest_links(self, n: int) -> tuple[pd.DataFrame, list[int]]:
        """Return a DataFrame of the busiest links, and for each row the class of equally loaded links."""
        number, kinds = self._cluster.link_kinds(self._links)
        codes, first, counts = np.unique(
            self._classes * max(1, len(kinds)) + number, return_index=True, return_counts=True
        )
        found: dict[tuple[LinkKind, tuple[str, ...]], tuple[int, int, LinkLoadRow]] = {}
        for place in np.argsort(first).tolist():
            own, kind = divmod(int(codes[place]), len(kinds))
            row = self._load_row(own)
            alike = kinds[kind], tuple(map("{:.9g}".format, row))  # 9 digits: sums in another order are still alike
            one, many, row = found.get(alike, (int(first[place]), 0, row))
            found[alike] = one, many + int(counts[place]), row
        top = sorted(found.items(), key=lambda item: (-item[1][2][3], -item[1][2][1]))[:n]
        places = np.array([one for _, (one, _, _) in top], dtype=np.int64)
        ends = self._cluster.link_names(self._links[places])
        rows = [(a, b, alike[0].medium, *row, many)
                for (a, b), (alike, (_, many, row)) in zip(ends, top, strict=True)]  # fmt: skip
        return _make_table(rows, (*LINK_COLUMNS, "links")), self._classes[places].tolist()

    def utilisation_over_time(self, link_classes: Sequence[int], bins: int) -> tuple[Floats, Floats]:
        """Return the edges (s) of time bins, and the utilisation in each bin of links given by their class."""
        edges = np.linspace(0.0, self.duration, bins + 1)
        matrix = np.zeros((len(link_classes), bins))
        for place, number in enumerate(link_classes):
            times, rate = self._rate_over_time(number)
            crossed = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])  # bytes by each of the times
            matrix[place] = np.diff(np.interp(edges, times, crossed)) / (np.diff(edges) * self.capacity[number])
        return edges, matrix

    def _load_row(self, link_class: int) -> LinkLoadRow:
        capacity = self.capacity[link_class]
        key = capacity, tuple(self._bytes[link_class].items())
        if key not in self._measured:
            moved = sum(size * len(self._spans[traffic][0]) for traffic, size in key[1])
            times, rate = self._rate_over_time(link_class)
            busy = float(np.diff(times)[rate[:-1] > 0].sum()) if len(times) else 0.0
            self._measured[key] = moved, busy, min(1.0, float(rate.max(initial=0.0)) / capacity)
        moved, busy, peak = self._measured[key]
        return capacity, moved / self._steps, busy / self._steps, moved / (capacity * self.duration), peak

    def _rate_over_time(self, link_class: int) -> tuple[Floats, Floats]:
        times, changes, under_way = [], [], []
        for traffic, size in self._bytes[link_class].items():
            start, end = self._spans[traffic]
            rate = size / (end - start)
            times += [start, end]
            changes += [rate, -rate]
            under_way += [np.ones(len(start)), -np.ones(len(end))]
        instants, place = np.unique(np.concatenate(times), return_inverse=True)
        rate = np.cumsum(np.bincount(place, np.concatenate(changes)))
        spans = np.cumsum(np.bincount(place, np.concatenate(under_way)))
        return instants, np.where(spans > 0, np.maximum(rate, 0.0), 0.0)  # else rounding would leave a rate behind


def _make_table(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


def _collect_transfers(result: Run) -> tuple[list[tuple[Traffic, ...]], list[tuple[Floats, Floats]]]:
    ops, times = result.record.ops, result.record.times
    numbers: dict[int, int] = {}  # by identity: equal traffics are one object
    of_label = [numbers.setdefault(id(label.traffics), len(numbers)) if label.traffics else -1 for label in ops.labels]
    traffics = list({id(label.traffics): label.traffics for label in ops.labels if label.traffics}.values())
    traffic, rank = np.array([*of_label, -1])[ops.label], ops.lane_rank[ops.lane]
    moves = (rank >= result.ranks.start) & (rank < result.ranks.stop) & (traffic >= 0)
    alone, met = np.flatnonzero(moves & (ops.meeting < 0)), np.flatnonzero(moves & (ops.meeting >= 0))
    _, one, which = np.unique(ops.meeting[met], return_index=True, return_inverse=True)
    begun, over = np.full(len(one), np.inf), np.zeros(len(one))  # it moves its bytes once, however many take part
    np.minimum.at(begun, which, times.start[met])
    np.maximum.at(over, which, times.end[met])
    start, end = np.concatenate([times.start[alone], begun]), np.concatenate([times.end[alone], over])
    end = np.maximum(end, start + np.maximum(TICK, np.spacing(start)))  # on whichever grid
    traffic = traffic[np.concatenate([alone, met[one]])]
    order = np.argsort(traffic, kind="stable")
    parts = np.split(order, np.searchsorted(traffic[order], np.arange(1, len(traffics))))
    return traffics, [(start[part], end[part]) for part in parts]


def _bytes_on_links(traffics: Sequence[Traffic]) -> dict[int, float]:
    moved: dict[int, float] = {}
    for traffic in traffics:
        for link, flows in traffic.usage:
            if flows * traffic.round_bytes > 0:
                moved[link] = moved.get(link, 0.0) + flows * traffic.round_bytes * traffic.rounds
    return moved
