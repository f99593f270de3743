"""Groups and sender-receiver pairs of a job, with their traffic on the cluster's links. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints, float_bits, hash64, hash_rows, renumber, sort_order
from simcluster.collectives import Group, Phase
from simcluster.planning.ops import Group as Name
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout, Ranks
from simcluster.symmetry.demand import Call, CommunicationDemand, has_links_alone
from simcluster.symmetry.quotient import Counterparts, NotAlikeError, Quotient, number_layouts
from simcluster.traffic.fairness import Usage
from simcluster.traffic.incidence import Bindings, join_bindings
from simcluster.traffic.link_usage import PatternTable, WindowCut, tabulate_patterns, usage_at_once, usage_one_by_one
from simcluster.traffic.methods import Method, Methods, make_activities, phases_of
from simcluster.traffic.traffic import Fabric, Pattern, Traffic, copy_pattern, group_of

Part = tuple[int, float, int, float]
"""A part of a call's pattern: which usage of links, share, rounds, latency (s; 0 where NCCL's pace has its own)."""
Draw = Callable[[str, Method], tuple[PatternTable, ...]]
"""The picture of some groups for a kind of call and a method."""
Form = dict[Call, tuple[Method, tuple[Part, ...]]]
"""What equal groups do: the method and pattern of every call."""
_TOGETHER = 1 << 17
"""Ranks in groups that are drawn at once, with all their hops: some hundred MB."""


@dataclass(frozen=True, eq=False)
class CommunicatorTable:
    """Communicators of one kind and size: rows of ranks in ``table``, numbered from ``first`` on.

    Link usage is computed for ``those`` that represent others; they are seen from number ``seen`` on.
    """

    name: Name
    first: int
    seen: int
    table: Ranks
    those: Counterparts


class Communicators:
    """Numbered communicators of a job: groups of every axis, sender-receiver pairs, and copies to and from the host.

    ``methods`` states how each collective is done. Only groups in the ``window`` get link usage, each for those that
    the shifts bring onto it, and only these are ``seen``, with their ranks by place in the window and rows of usage on
    links of the window (default: all are). But a group that never shares links is routed whole, and kept ``apart``.
    NotAlikeError where the window does not represent all groups.
    """

    def __init__(
        self, programs: Sequence[StageProgram], plan: RankLayout, fabric: Fabric, methods: Methods,
        window: Quotient | None = None,
    ) -> None:  # fmt: skip
        self._fabric, self._methods, self._demand = fabric, methods, CommunicationDemand(programs)
        self._window = window or Quotient.whole(plan.num_ranks)
        self.kinds: list[CommunicatorTable] = []
        self._parts: list[Bindings] = []
        self._form_of: list[int] = []  # of those seen
        self._of_rank: dict[Hashable, Int32s] = {}  # by axis the number of every rank's group
        self._forms: list[Form] = []
        self._natures: list[Hashable] = []  # of each form what tells its groups apart from others
        self._colours: dict[Hashable, int] = {}
        self._apart: dict[int, Sequence[PatternTable]] = {}
        stages = plan.stage_ranks()
        self.stage_of, self.place_of = np.zeros((2, plan.num_ranks), dtype=np.int32)
        for stage, ranks in enumerate(stages):
            self.stage_of[ranks] = stage
            self.place_of[ranks] = np.arange(len(ranks))
        names = [name for name, _ in self._demand.calls]
        for axis in dict.fromkeys(name for name in names if isinstance(name, str)):
            self._add_axis(axis, plan.groups(axis), programs)
        sends = [name for name in names if isinstance(name, tuple) and name[0] == "send"]
        if sends and len({*map(len, stages)}) == 1:  # pairs are columns of one table, and have equal counterparts
            table = np.stack(stages, axis=1)
            pairs = [table[:, name[1] :: name[2] - name[1]][:, :2] for name in sends]
            self._add_groups(sends, pairs, self._window.counterparts(table))
        elif sends:
            self._add_groups(sends, [np.stack([stages[end] for end in name[1:]], axis=1) for name in sends])
        for name, stage in self._demand.calls:
            if name[0] == "copy":
                self._add_groups([name], [stages[stage][:, None]])
        if self._window.links and not self._window.links.settled:
            raise NotAlikeError
        told = [np.zeros(0, dtype=np.int64), *(kind.seen + kind.those.told for kind in self.kinds)]
        of_group = np.concatenate(told).astype(np.int32)  # there are hundreds of thousands
        self.seen = replace(join_bindings(self._parts), apart=self._apart, of_group=of_group)

    def kind(self, number: int) -> CommunicatorTable:
        """Return the table that holds the communicator of this number."""
        return self.kinds[bisect_right(self.kinds, number, key=lambda kind: kind.first) - 1]

    def members(self, number: int) -> Ranks:
        """Return the members of a communicator, as an array."""
        kind = self.kind(number)
        return np.asarray(kind.table[number - kind.first])

    def ranks(self, number: int) -> tuple[int, ...]:
        """Return the members of a communicator."""
        return tuple(self.members(number).tolist())

    def hosts(self, number: int) -> Ints:
        """Return the node of every member of a communicator."""
        return self._fabric.hosts[self.members(number)]

    def number(self, kind: Hashable, rank: int) -> int:
        """Return the number of a rank's communicator of this kind; for pairs, the one on which the rank sends."""
        return int(self.numbers(kind, np.array([rank]))[0])

    def numbers(self, kind: Hashable, ranks: Ints) -> Ints:
        """Return the numbers of ranks' communicators of this kind; for pairs, those on which they send."""
        if isinstance(kind, tuple):  # numbered as the ranks of their stage
            first = {stage: each.first for each in self.named(kind) for stage in self.stage_of[each.table[0]].tolist()}
            of_stage = np.array([first[stage] for stage in self.stage_of[ranks].tolist()], dtype=np.int64)
            return of_stage + self.place_of[ranks].astype(np.int64)
        return self._communicator_of_ranks(kind)[ranks].astype(np.int64)

    def named(self, name: Hashable) -> list[CommunicatorTable]:
        """Return the communicator tables of this axis, pair of stages or copy direction."""
        return [kind for kind in self.kinds if kind.name == name]

    def group_name(self, axis: str, rank: int) -> str:
        """Return the timeline's name of the rank's group: tp0, dp3, ...; "" for a pair."""
        number = int(self._communicator_of_ranks(axis)[rank])
        return "" if number < 0 else f"{axis}{number - self.named(axis)[0].first}"

    def span(self, axis: str, hosts: Ints) -> bool:
        """Return whether a group of this axis spans several nodes; ``hosts`` has the node of every rank."""
        tables = [kind.table[kind.those.drawn] for kind in self.named(axis)]
        return any(bool((hosts[table] != hosts[table[:, :1]]).any()) for table in tables)

    def method(self, number: int, kind: str, size: float) -> Method:
        """Return how this group runs a collective of this kind and size."""
        return self._form_of_group(number)[kind, size][0]

    def planned_size(self, number: int, kind: str, size: float) -> float | None:
        """Return the size of the group's planned call of this kind nearest to ``size``; None without any.

        Calls of uneven experts have other sizes than the call that was planned for even ones.
        """
        planned = [each for name, each in self._form_of_group(number) if name == kind]
        return min(planned, key=lambda each: abs(each - size), default=None)

    def calls(self, ranks: range) -> dict[tuple[str, Call], Method]:
        """Return the methods of all collectives of groups that begin with these ranks, by axis and call."""
        found: dict[tuple[str, int], None] = {}
        for kind in self.kinds:
            if isinstance(kind.name, str):
                first = kind.table[:, 0]
                told = kind.those.told[(first >= ranks.start) & (first < ranks.stop)]
                found |= {(kind.name, self._form_of[seen]): None for seen in (kind.seen + told).tolist()}
        return {(axis, call): method for axis, form in found for call, (method, _) in self._forms[form].items()}

    def usages(self, number: int) -> tuple[Usage, ...]:
        """Return a communicator's link usage per pattern, or that of its representative."""
        return self.seen.usages(int(self.seen.of_group[number]))

    def phases(self, number: int, kind: str, size: float) -> Sequence[Phase]:
        """Return the phases of a collective of this group, for simulating it round by round."""
        return phases_of(self.method(number, kind, size), group_of(self._fabric, self.members(number)), kind)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """Return a collective's activities on links, given the usage of the communicator or of its class."""
        method, parts = self._form_of_group(number)[kind, size]
        return make_activities(group_patterns(parts, usages), size, method)

    def _form_of_group(self, number: int) -> Form:
        kind = self.kind(number)
        return self._forms[self._form_of[kind.seen + int(kind.those.told[number - kind.first])]]

    def _communicator_of_ranks(self, axis: Hashable) -> Int32s:
        if axis not in self._of_rank:
            of = self._of_rank[axis] = np.full(len(self.stage_of), -1, dtype=np.int32)
            for each in self.named(axis):
                of[each.table] = np.arange(each.first, each.first + len(each.table), dtype=np.int32)[:, None]
        return self._of_rank[axis]

    def _add_axis(self, axis: str, groups: Iterable[Ranks], programs: Sequence[StageProgram]) -> None:
        """Add all groups of an axis; groups of one size run the calls of their stages."""
        by_size = [groups] if isinstance(groups, np.ndarray) else [list(some) for _, some in groupby(groups, key=len)]
        if self._window.shifts and len(by_size) > 1:  # all of a kind lie in the window, or all cut it by one factor
            raise NotAlikeError
        for table in map(np.asarray, by_size):
            blocking, every = axis not in self._demand.overlapped, table.shape == (1, len(self.stage_of))
            self._add_groups([axis], [table], apart=every and blocking and has_links_alone(programs, axis))

    def _add_groups(
        self, names: Sequence[Name], tables: Sequence[Ranks], like: Counterparts | None = None, *, apart: bool = False
    ) -> None:
        """Add groups of one size (rows of ranks in ``tables``) under these names; some may represent others."""
        window, seen, drawn = self._window, len(self._form_of), list[Ranks]()
        for name, table in zip(names, tables, strict=True):
            whole = Counterparts(np.zeros(1, dtype=np.int64), turned=(*range(len(window.shifts)),))
            those = like or (whole if apart else window.counterparts(table))
            first = self.kinds[-1].first + len(self.kinds[-1].table) if self.kinds else 0
            self.kinds.append(CommunicatorTable(name, first, seen + sum(len(each) for each in drawn), table, those))
            drawn.append(table[those.drawn])
        members = np.concatenate(drawn)
        shown = window.ranks[None] if apart else members[:, : those.cut or None]
        stages, layout = self.stage_of[shown], number_layouts(self._fabric, shown)
        table_of = np.repeat(np.arange(len(names)), list(map(len, drawn)))
        row, first_of = renumber(hash_rows(stages) ^ hash64(table_of, 5))
        asked = [self._demand.of(names[table_of[place]], stages[place].tolist()) for place in first_of.tolist()]
        number_of = dict(zip(asked, range(len(asked)), strict=True))  # of each tuple of calls
        own, _ = renumber(hash64(layout, 3) ^ hash64(np.array([number_of[calls] for calls in asked])[row], 5))
        layout = layout if shown.size <= _TOGETHER else own
        form, places = np.full((2, len(members)), -1, dtype=np.int64)
        rows = [(np.zeros(0, dtype=np.int64),) * 3 + (np.zeros(0),)]
        for number in range(int(layout.max(initial=-1)) + 1):
            alike = np.flatnonzero(layout == number)
            group = group_of(self._fabric, members[alike[0]])
            draw = partial(self._draw_patterns, ({}, {}), group, members, alike, those.cut)
            for calls in np.flatnonzero(np.bincount(own[alike])).tolist():
                some = np.flatnonzero(own == calls)
                form[some], uses = self._make_forms(
                    name, members[some], group, asked[row[some[0]]], partial(draw, some)
                )
                places[some] = len(uses)
                if apart:
                    self._apart[seen] = uses
                else:
                    rows += [
                        (some[use.group], np.full_like(use.group, k), use.link, use.flows) for k, use in enumerate(uses)
                    ]
        of_row, use, link, flows = map(np.concatenate, zip(*rows, strict=True))
        which, colour = np.unique(table_of * len(self._forms) + form, return_inverse=True)
        natures = [
            (names[place], self._natures[own]) for place, own in zip(*divmod(which, len(self._forms)), strict=True)
        ]
        colour = np.array([self._colours.setdefault(each, len(self._colours)) for each in natures])[colour]
        order = sort_order(of_row * (int(use.max(initial=0)) + 1) + use)  # links of a usage ascend already
        where = self._fabric.hosts[members]  # what a group does to computation may depend on whether it spans hosts
        axis, directed = "pp" if name[0] == "send" else name, isinstance(name, tuple)
        blocking = isinstance(axis, str) and axis not in self._demand.overlapped
        self._form_of += form.tolist()
        self._parts.append(Bindings(
            colour=2 * colour + (where != where[:, :1]).any(axis=1),
            ordered=np.full(len(members), directed), blocking=np.full(len(members), blocking),
            member=np.arange(len(members) + 1) * shown.shape[1], rank=window.place[shown].ravel(),
            use=np.searchsorted(of_row[order], np.arange(len(members) + 1)), place=use[order], link=link[order],
            flows=flows[order], places=places,
        ))  # fmt: skip

    def _draw_patterns(
        self, known: tuple[dict[tuple[str, str], tuple[PatternTable, ...] | None], dict[bytes, PatternTable]],
        group: Group, members: Ranks, alike: Ints, cut: int, some: Ints, call: str, method: Method,
    ) -> tuple[PatternTable, ...]:  # fmt: skip
        """Return the link usage of groups with equal layout for a kind of call, reusing ``known`` patterns."""
        key, (pictures, rounds) = (call, method.algorithm), known
        if key not in pictures:
            window = WindowCut(cut, self._window.become) if cut and self._window.become else None
            phases = phases_of(method, group, call)
            pictures[key] = usage_at_once(
                self._fabric, members[alike], phases, timed=method.pace is None, cut=window, known=rounds
            )
        parts = pictures[key]
        if parts is not None:
            return tuple(part.of_groups(np.searchsorted(alike, some)) for part in parts)
        if cut:
            raise NotAlikeError
        return usage_one_by_one(self._fabric, members[some], phases_of(method, group, call))

    def _make_forms(
        self, name: Name, members: Ranks, group: Group, calls: tuple[Call, ...], draw: Draw
    ) -> tuple[Ints, list[PatternTable]]:
        """Return form numbers and link usages of groups that make these calls and have the layout of ``group``."""
        methods: dict[Call, Method] = {}
        pictures: dict[tuple[str, str], tuple[PatternTable, ...]] = {}
        for call in calls:
            if isinstance(name, tuple) and name[0] == "copy":
                methods[call] = Method("")
                ways = [copy_pattern(self._fabric, rank, name[1]) for rank in members[:, 0].tolist()]
                pictures[call[0], ""] = tabulate_patterns((way,) for way in ways)
                continue
            method = methods[call] = self._methods.of(group, *call)
            if (call[0], method.algorithm) not in pictures:
                pictures[call[0], method.algorithm] = draw(call[0], method)
        several, uses = sum(map(len, pictures.values())) > 1, dict[bytes, PatternTable]()
        parts: dict[Call, list[Part]] = {call: [] for call in calls}
        latency: list[Floats] = []
        for call, method in methods.items():
            for part in pictures[call[0], method.algorithm]:
                like = part.name if several else b""
                uses.setdefault(like, part)
                parts[call].append((list(uses).index(like), part.share, part.rounds, len(latency)))
                latency.append(part.latency if method.pace is None else np.zeros_like(part.latency))
        table = np.stack(latency, axis=1) if latency else np.zeros((len(members), 0))
        which, first = renumber(hash_rows(float_bits(table)))
        for row in table[first].tolist():
            form: Form = {}
            for call, method in methods.items():
                form[call] = method, tuple([(*part, row[column]) for *part, column in parts[call]])
            self._forms.append(form)
            self._natures.append(tuple([(call, method.pace, own) for call, (method, own) in form.items()]))
        return which + len(self._forms) - len(first), list(uses.values())


def group_patterns(parts: Iterable[Part], usages: Sequence[Usage]) -> list[Pattern]:
    """Return the link patterns of a group's call, given the group's usages of links."""
    return [Pattern(usages[use], share, rounds, latency) for use, share, rounds, latency in parts]
