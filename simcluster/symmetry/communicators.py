"""Communicators of a job (groups, sender-receiver pairs, host copies), and their traffic on the links."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints, float_bits, hash64, hash_rows, number_by_first_use, sort_order
from simcluster.base.lru_cache import LruCache
from simcluster.collectives import Group, Phase
from simcluster.planning.ops import Group as Name
from simcluster.planning.ops import StageProgram
from simcluster.planning.rank_grid import RankLayout, Ranks
from simcluster.symmetry.demand import Call, CommunicationDemand, never_shares_links
from simcluster.symmetry.quotient import GroupRepresentatives, JobQuotient, NotSymmetricError, group_layout_numbers
from simcluster.traffic.collective_methods import CollectiveMethod, MethodChooser, make_traffics, phases_of_method
from simcluster.traffic.communicator_usage import CommunicatorLinkUsage, concatenate_link_usage
from simcluster.traffic.fairness import Usage
from simcluster.traffic.link_usage import (
    GroupWindow,
    PatternTable,
    batch_link_usage,
    link_usage_one_by_one,
    tabulate_patterns,
)
from simcluster.traffic.traffic import Fabric, LinkPattern, Traffic, host_copy_pattern, make_group

Part = tuple[int, float, int, float]
"""Traffic pattern of a call: index of its link usage, share, rounds, latency (s; 0 if NCCL's pace includes it)."""
Draw = Callable[[str, CollectiveMethod], tuple[PatternTable, ...]]
"""Function (kind of call, method) -> traffic patterns of some groups."""
CallPatterns = dict[Call, tuple[CollectiveMethod, tuple[Part, ...]]]
"""Method and traffic patterns of every call of equal groups."""
Result = TypeVar("Result")
_TOGETHER = 1 << 17
"""Maximum number of ranks in groups whose patterns are computed at once (some hundred MB with their hops)."""
_CACHED_RANKS = 1 << 10
"""Maximum number of ranks in groups whose layouts and patterns are cached (some 100 KB each)."""
_CACHES: WeakKeyDictionary[Fabric, LruCache] = WeakKeyDictionary()
"""Layouts and patterns of groups on each cluster: layouts in a search, and variants of a job, have many in common."""


@dataclass(frozen=True, eq=False)
class CommunicatorTable:
    """Communicators of equal kind and size: one row of ranks per communicator, numbered from ``first``.

    Link usage is computed for ``window_groups`` that represent others; they are seen from number ``seen`` on.
    """

    name: Name
    first: int
    seen: int
    table: Ranks
    window_groups: GroupRepresentatives


class Communicators:
    """All communicators of a job: groups of every axis, sender-receiver pairs, and copies to and from hosts.

    ``methods`` states how each collective is done. Only groups in the ``window`` get link usage, each for those that
    the shifts bring onto it, and only these are ``seen``, with their ranks by place in the window and rows of usage on
    links of the window (default: all are). But a group that never shares links is routed whole, and kept ``apart``.
    NotSymmetricError where the window does not represent all groups.
    """

    def __init__(
        self, programs: Sequence[StageProgram], plan: RankLayout, fabric: Fabric, methods: MethodChooser,
        window: JobQuotient | None = None,
    ) -> None:  # fmt: skip
        self._fabric, self._methods, self._demand = fabric, methods, CommunicationDemand(programs)
        self._cache = _CACHES.setdefault(fabric, LruCache(256))
        self._window = window or JobQuotient.trivial_quotient(plan.num_ranks)
        self.kinds: list[CommunicatorTable] = []
        self._parts: list[CommunicatorLinkUsage] = []
        self._form_of: list[int] = []  # of those seen
        self._of_rank: dict[Hashable, Int32s] = {}  # by axis the number of every rank's group
        self._forms: list[CallPatterns] = []
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
            self._add_groups_of_axis(axis, plan.groups(axis), programs)
        sends = [name for name in names if isinstance(name, tuple) and name[0] == "send"]
        if sends and len({*map(len, stages)}) == 1:  # pairs are columns of one table, and have equal counterparts
            table = np.stack(stages, axis=1)
            pairs = [table[:, name[1] :: name[2] - name[1]][:, :2] for name in sends]
            self._add_groups(sends, pairs, self._window.find_representatives(table))
        elif sends:
            self._add_groups(sends, [np.stack([stages[end] for end in name[1:]], axis=1) for name in sends])
        for name, stage in self._demand.calls:
            if name[0] == "copy":
                self._add_groups([name], [stages[stage][:, None]])
        if self._window.links and not self._window.links.routes_agree_across_nodes:
            raise NotSymmetricError
        told = [np.zeros(0, np.int64), *(kind.seen + kind.window_groups.representative_indices for kind in self.kinds)]
        of_group = np.concatenate(told).astype(np.int32)  # there are hundreds of thousands
        self.seen = replace(concatenate_link_usage(self._parts), apart=self._apart, of_group=of_group)

    def table_of_communicator(self, number: int) -> CommunicatorTable:
        """Return the table that contains the communicator of this number."""
        return self.kinds[bisect_right(self.kinds, number, key=lambda kind: kind.first) - 1]

    def member_array(self, number: int) -> Ranks:
        """Return the ranks of a communicator as an array."""
        kind = self.table_of_communicator(number)
        return np.asarray(kind.table[number - kind.first])

    def member_ranks(self, number: int) -> tuple[int, ...]:
        """Return the ranks of a communicator as a tuple."""
        return tuple(self.member_array(number).tolist())

    def member_nodes(self, number: int) -> Ints:
        """Return the node of each rank of a communicator."""
        return self._fabric.node_of_gpu[self.member_array(number)]

    def find_communicator(self, kind: Hashable, rank: int) -> int:
        """Return the number of a rank's communicator of this kind; of send pairs, the pair in which the rank sends."""
        return int(self.find_communicators(kind, np.array([rank]))[0])

    def find_communicators(self, kind: Hashable, ranks: Ints) -> Ints:
        """Return the number of each rank's communicator of this kind; of send pairs, the pair in which it sends."""
        if isinstance(kind, tuple):  # numbered as the ranks of their stage
            low = {key: each.first for each in self.tables_named(kind) for key in self.stage_of[each.table[0]].tolist()}
            of_stage = np.array([low[stage] for stage in self.stage_of[ranks].tolist()], dtype=np.int64)
            return of_stage + self.place_of[ranks].astype(np.int64)
        return self._communicator_of_ranks(kind)[ranks].astype(np.int64)

    def tables_named(self, name: Hashable) -> list[CommunicatorTable]:
        """Return the tables of communicators of this axis, pair of stages or host copy direction."""
        return [kind for kind in self.kinds if kind.name == name]

    def group_name(self, axis: str, rank: int) -> str:
        """Return a rank's group name in the timeline, such as tp0 or dp3; "" for sender-receiver pairs."""
        number = int(self._communicator_of_ranks(axis)[rank])
        return "" if number < 0 else f"{axis}{number - self.tables_named(axis)[0].first}"

    def spans_nodes(self, axis: str, hosts: Ints) -> bool:
        """Return whether any group of this axis spans several nodes; ``hosts`` is the node of every rank."""
        tables = [kind.table[kind.window_groups.representatives] for kind in self.tables_named(axis)]
        return any(bool((hosts[table] != hosts[table[:, :1]]).any()) for table in tables)

    def method_of_call(self, number: int, kind: str, size: float) -> CollectiveMethod:
        """Return how this communicator runs a collective of this kind and size (algorithm, protocol, pace)."""
        return self._call_patterns_of_group(number)[kind, size][0]

    def planned_size(self, number: int, kind: str, size: float) -> float | None:
        """Return the planned size closest to ``size`` among this group's calls of this kind; None without calls.

        Calls of uneven experts have other sizes than the call that was planned for even ones.
        """
        planned = [each for name, each in self._call_patterns_of_group(number) if name == kind]
        return min(planned, key=lambda each: abs(each - size), default=None)

    def methods_by_call(self, ranks: range) -> dict[tuple[str, Call], CollectiveMethod]:
        """Return the methods, by axis and call, of all groups whose first rank is in ``ranks``."""
        found: dict[tuple[str, int], None] = {}
        for kind in self.kinds:
            if isinstance(kind.name, str):
                first = kind.table[:, 0]
                told = kind.window_groups.representative_indices[(first >= ranks.start) & (first < ranks.stop)]
                found |= {(kind.name, self._form_of[seen]): None for seen in (kind.seen + told).tolist()}
        return {(axis, call): method for axis, form in found for call, (method, _) in self._forms[form].items()}

    def link_usages(self, number: int) -> tuple[Usage, ...]:
        """Return the links that a communicator (if folded, its representative) uses, one tuple per traffic pattern."""
        return self.seen.link_usages(int(self.seen.of_group[number]))

    def phases_of_call(self, number: int, kind: str, size: float) -> Sequence[Phase]:
        """Return the phases of a communicator's collective, for its hop-by-hop simulation."""
        group = make_group(self._fabric, self.member_array(number))
        return phases_of_method(self.method_of_call(number, kind, size), group, kind)

    def traffic_of_call(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """Return the traffic of a collective, given its communicator's (or its class's) link usages."""
        method, parts = self._call_patterns_of_group(number)[kind, size]
        return make_traffics(group_patterns(parts, usages), size, method)

    def _call_patterns_of_group(self, number: int) -> CallPatterns:
        own = self.table_of_communicator(number)
        return self._forms[self._form_of[own.seen + int(own.window_groups.representative_indices[number - own.first])]]

    def _communicator_of_ranks(self, axis: Hashable) -> Int32s:
        if axis not in self._of_rank:
            of = self._of_rank[axis] = np.full(len(self.stage_of), -1, dtype=np.int32)
            for each in self.tables_named(axis):
                of[each.table] = np.arange(each.first, each.first + len(each.table), dtype=np.int32)[:, None]
        return self._of_rank[axis]

    def _add_groups_of_axis(self, axis: str, groups: Iterable[Ranks], programs: Sequence[StageProgram]) -> None:
        """Add all groups of an axis, one table per group size."""
        by_size = [groups] if isinstance(groups, np.ndarray) else [list(some) for _, some in groupby(groups, key=len)]
        if self._window.shifts and len(by_size) > 1:  # all of a kind lie in the window, or all cut it by one factor
            raise NotSymmetricError
        for table in map(np.asarray, by_size):
            blocking, every = axis not in self._demand.overlapped, table.shape == (1, len(self.stage_of))
            self._add_groups([axis], [table], apart=every and blocking and never_shares_links(programs, axis))

    def _add_groups(
        self, names: Sequence[Name], ranks: Sequence[Ranks], by: GroupRepresentatives | None = None, apart: bool = False
    ) -> None:
        """Add tables of groups of one size under these names, and the link usage of their representatives."""
        window, seen, drawn = self._window, len(self._form_of), list[Ranks]()
        for name, table in zip(names, ranks, strict=True):
            whole = GroupRepresentatives(np.zeros(1, dtype=np.int64), turned=(*range(len(window.shifts)),))
            those = by or (whole if apart else window.find_representatives(table))
            first = self.kinds[-1].first + len(self.kinds[-1].table) if self.kinds else 0
            self.kinds.append(CommunicatorTable(name, first, seen + sum(len(each) for each in drawn), table, those))
            drawn.append(table[those.representatives])
        members = np.concatenate(drawn)
        shown = window.ranks[None] if apart else members[:, : those.cut or None]
        stages = self.stage_of[shown]
        layout = self._get_or_compute(("layout",), shown, partial(group_layout_numbers, self._fabric, shown))
        table_of = np.repeat(np.arange(len(names)), list(map(len, drawn)))
        row, first_of = number_by_first_use(hash_rows(stages) ^ hash64(table_of, 5))
        sets = [self._demand.calls_of_group(names[table_of[one]], stages[one].tolist()) for one in first_of.tolist()]
        number_of = dict(zip(sets, range(len(sets)), strict=True))  # of each tuple of calls
        own, _ = number_by_first_use(hash64(layout, 3) ^ hash64(np.array([number_of[each] for each in sets])[row], 5))
        layout = layout if shown.size <= _TOGETHER else own
        form, places = np.full((2, len(members)), -1, dtype=np.int64)
        rows = [(np.zeros(0, dtype=np.int64),) * 3 + (np.zeros(0),)]
        for number in range(int(layout.max(initial=-1)) + 1):
            alike = np.flatnonzero(layout == number)
            group = make_group(self._fabric, members[alike[0]])
            draw = partial(self._compute_patterns, ({}, {}), group, members, alike, those.cut)
            for calls in np.flatnonzero(np.bincount(own[alike])).tolist():
                at = np.flatnonzero(own == calls)
                form[at], uses = self._make_call_patterns(name, members[at], group, sets[row[at[0]]], partial(draw, at))
                places[at] = len(uses)
                if apart:
                    self._apart[seen] = uses
                else:
                    rows += [
                        (at[use.groups], np.full_like(use.groups, k), use.links, use.flows)
                        for k, use in enumerate(uses)
                    ]
        of_row, use, link, flows = map(np.concatenate, zip(*rows, strict=True))
        which, colour = np.unique(table_of * len(self._forms) + form, return_inverse=True)
        kinds = [(names[at], self._natures[own]) for at, own in zip(*divmod(which, len(self._forms)), strict=True)]
        colour = np.array([self._colours.setdefault(each, len(self._colours)) for each in kinds])[colour]
        order = sort_order(of_row * (int(use.max(initial=0)) + 1) + use)  # links of a usage ascend already
        where = self._fabric.node_of_gpu[members]  # what a group does to computation may depend on its spanning hosts
        axis, directed = "pp" if name[0] == "send" else name, isinstance(name, tuple)
        blocking = isinstance(axis, str) and axis not in self._demand.overlapped
        self._form_of += form.tolist()
        self._parts.append(CommunicatorLinkUsage(
            colour=2 * colour + (where != where[:, :1]).any(axis=1),
            ordered=np.full(len(members), directed), blocking=np.full(len(members), blocking),
            member=np.arange(len(members) + 1) * shown.shape[1], rank=window.window_positions[shown].ravel(),
            use=np.searchsorted(of_row[order], np.arange(len(members) + 1)), place=use[order], link=link[order],
            flows=flows[order], places=places,
        ))  # fmt: skip

    def _compute_patterns(
        self, known: tuple[dict[tuple[str, str], tuple[PatternTable, ...] | None], dict[bytes, PatternTable]],
        group: Group, members: Ranks, alike: Ints, cut: int, some: Ints, call: str, method: CollectiveMethod,
    ) -> tuple[PatternTable, ...]:  # fmt: skip
        """Return the traffic patterns of equally laid out groups for a call, reusing ``known`` patterns."""
        key, (pictures, rounds) = (call, method.algorithm), known
        if key not in pictures:
            window = GroupWindow(cut, self._window.link_image) if cut and self._window.link_image else None
            ranks, timed = members[alike], method.pace is None

            def compute() -> tuple[PatternTable, ...] | None:
                phases = phases_of_method(method, group, call)
                return batch_link_usage(self._fabric, ranks, phases, timed=timed, cut=window, known=rounds)

            name = *key, method.routes, timed
            pictures[key] = compute() if window else self._get_or_compute(name, ranks, compute)
        parts = pictures[key]
        if parts is not None:
            return tuple(part.select_groups(np.searchsorted(alike, some)) for part in parts)
        if cut:
            raise NotSymmetricError
        return link_usage_one_by_one(self._fabric, members[some], phases_of_method(method, group, call))

    def _get_or_compute(self, name: tuple[Hashable, ...], ranks: Ints, compute: Callable[[], Result]) -> Result:
        """Return what is computed under this name for groups (rows of ranks), from the cluster's cache if it has it."""
        key = *name, ranks.shape, ranks.tobytes()
        return self._cache.get_or_make(key, compute) if ranks.size <= _CACHED_RANKS else compute()

    def _make_call_patterns(
        self, name: Name, members: Ranks, group: Group, calls: tuple[Call, ...], draw: Draw
    ) -> tuple[Ints, list[PatternTable]]:
        """Compute traffic patterns of groups with equal calls and layout; return each group's number, and tables."""
        methods: dict[Call, CollectiveMethod] = {}
        pictures: dict[tuple[str, str], tuple[PatternTable, ...]] = {}
        for call in calls:
            if isinstance(name, tuple) and name[0] == "copy":
                methods[call] = CollectiveMethod("")
                ways = [host_copy_pattern(self._fabric, rank, name[1]) for rank in members[:, 0].tolist()]
                pictures[call[0], ""] = tabulate_patterns((way,) for way in ways)
                continue
            method = methods[call] = self._methods.choose_method(group, *call)
            if (call[0], method.algorithm) not in pictures:
                pictures[call[0], method.algorithm] = draw(call[0], method)
        several, uses = sum(map(len, pictures.values())) > 1, dict[bytes, PatternTable]()
        parts: dict[Call, list[Part]] = {call: [] for call in calls}
        latency: list[Floats] = []
        for call, method in methods.items():
            for part in pictures[call[0], method.algorithm]:
                like = part.usage_key if several else b""
                uses.setdefault(like, part)
                parts[call].append((list(uses).index(like), part.share, part.rounds, len(latency)))
                latency.append(part.latency if method.pace is None else np.zeros_like(part.latency))
        table = np.stack(latency, axis=1) if latency else np.zeros((len(members), 0))
        which, first = number_by_first_use(hash_rows(float_bits(table)))
        for row in table[first].tolist():
            form: CallPatterns = {}
            for call, method in methods.items():
                form[call] = method, tuple([(*part, row[column]) for *part, column in parts[call]])
            self._forms.append(form)
            self._natures.append(tuple([(call, method.pace, own) for call, (method, own) in form.items()]))
        return which + len(self._forms) - len(first), list(uses.values())


def group_patterns(parts: Iterable[Part], usages: Sequence[Usage]) -> list[LinkPattern]:
    """Combine the pattern entries (``parts``) of a call with a group's link usages into traffic patterns."""
    return [LinkPattern(usages[use], share, rounds, latency) for use, share, rounds, latency in parts]
