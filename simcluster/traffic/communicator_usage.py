"""Communicators (groups and sender-receiver pairs) and their link usage, as arrays. No side effects.

A job on 16,384 GPUs has 35,000 of them, so objects are created on demand only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Floats, Int32s, Ints, sort_order, unique_inverse
from simcluster.traffic.fairness import Usage


class CommunicationLoad(Protocol):
    """Interface of one communication's load on links: ``flows[i]`` flows cross ``link[i]``, sorted by link."""

    @property
    def links(self) -> Ints: ...
    @property
    def flows(self) -> Floats: ...
    def flows_on_links(self, links: Ints) -> Floats: ...


@dataclass(frozen=True)
class CommunicatorLinkUsage:
    """Communicators as arrays, numbered from 0: their ranks, and the links that carry their flows.

    ``colour`` is equal for those of equal kind and nature; ``ordered`` states whether it matters which member is which
    (sender and receiver), ``blocking`` whether no other communication of a member runs during its ops. Members of
    communicator i are ``rank[member[i] : member[i + 1]]``. Its usages are rows ``use[i] : use[i + 1]`` of ``place``
    (which usage), ``link`` and ``flows``, ascending; but of those ``apart`` they are only there, link and flows of each
    usage.

    Where some represent others, ``many`` is how many a member represents, and ``times`` how many a row of usage;
    ``equal`` are links of rows and, of each, a link with the same load, the link itself included. ``of_group`` has for
    every communicator of the job its representative here.
    """

    colour: Ints
    ordered: Bools
    blocking: Bools
    member: Ints
    rank: Ints
    use: Ints
    place: Ints
    link: Ints
    flows: Floats
    places: Ints
    apart: Mapping[int, Sequence[CommunicationLoad]] = field(default_factory=dict)
    many: Ints | None = None
    times: Ints | None = None
    equal: tuple[Ints, Ints] | None = None
    of_group: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.colour)

    def member_ranks(self, number: int) -> Ints:
        """Return the ranks of a communicator, in group order."""
        return self.rank[self.member[number] : self.member[number + 1]]

    @cached_property
    def row_communicators(self) -> Ints:
        """Communicator number of each row of link usage."""
        return np.repeat(np.arange(len(self)), np.diff(self.use))

    @cached_property
    def rows_by_link(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Rows of link usage by link: used links, each row's link index, rows in link order, first row per link."""
        used, link_of = unique_inverse(self.link)
        starts = np.concatenate([[0], np.cumsum(np.bincount(link_of, minlength=len(used)))])
        return used, link_of, sort_order(link_of), starts

    @cached_property
    def _equal_links_sorted(self) -> tuple[Ints, Ints] | None:
        """Pairs of links with the same load, sorted by the pair's first link; None if there are no such pairs."""
        if self.equal is None:
            return None
        order = np.argsort(self.equal[0], kind="stable")
        return self.equal[0][order], self.equal[1][order]

    def link_usages(self, number: int) -> tuple[Usage, ...]:
        """Return a communicator's link usage, one tuple per traffic pattern."""
        if number in self.apart:
            return tuple(tuple(zip(use.links.tolist(), use.flows.tolist(), strict=True)) for use in self.apart[number])
        rows = slice(self.use[number], self.use[number + 1])
        columns = self.place[rows], self.link[rows], self.flows[rows]
        if self._equal_links_sorted is not None:
            one, other = self._equal_links_sorted
            begin, end = (np.searchsorted(one, columns[1], side=side) for side in ("left", "right"))
            row = np.repeat(np.arange(len(begin)), end - begin)
            link = other[np.arange(len(row)) + np.repeat(end - np.cumsum(end - begin), end - begin)]
            order = np.lexsort((link, columns[0][row]))
            columns = columns[0][row][order], link[order], columns[2][row][order]
        found: list[list[tuple[int, float]]] = [[] for _ in range(self.places[number])]
        for place, link, flows in zip(*(column.tolist() for column in columns), strict=True):
            found[place].append((link, flows))
        return tuple(map(tuple, found))


_NO, _START = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
_NOTHING = CommunicatorLinkUsage(_NO, _NO > 0, _NO > 0, _START, _NO, _START, _NO, _NO, np.zeros(0), _NO)


def concatenate_link_usage(parts: Sequence[CommunicatorLinkUsage]) -> CommunicatorLinkUsage:
    """Concatenate tables of communicators into one table; no colour (class number) may occur in two of the tables."""
    parts = parts or [_NOTHING]

    def column(name: str) -> npt.NDArray[np.generic]:
        return np.concatenate([getattr(part, name) for part in parts])

    def offsets(name: str) -> Ints:
        counts = np.concatenate([[0], *(np.diff(getattr(part, name)) for part in parts)])
        return np.cumsum(counts, dtype=np.int64)

    names = ["colour", "ordered", "blocking", "rank", "place", "link", "flows", "places"]
    return CommunicatorLinkUsage(member=offsets("member"), use=offsets("use"), **{name: column(name) for name in names})  # type: ignore[arg-type]
