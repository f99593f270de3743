"""The groups and sender-receiver pairs that a job uses, bound to the cluster's links.  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Bools, Ints
from simcluster.base.multiset_hash import firsts, mixed, numbered, rows_alike
from simcluster.collectives import Phase
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout, Ranks
from simcluster.symmetry.barriers import lone_axes
from simcluster.symmetry.call_patterns import CallPattern, CallPatterns, Rows, rows_of
from simcluster.symmetry.communicator_table import CommunicatorTable, in_rows, pairs_of, tables_of
from simcluster.symmetry.demand import Call, CommunicationDemand
from simcluster.symmetry.quotient import NotAlikeError, Quotient
from simcluster.symmetry.usage_patterns import Counterparts, Draw, Pictures
from simcluster.traffic.fairness import Usage
from simcluster.traffic.incidence import Bindings, joined
from simcluster.traffic.link_usage import PatternTable, single
from simcluster.traffic.methods import Method, Methods, activities, phases_of
from simcluster.traffic.traffic import Fabric, Traffic, copy_pattern, group_of, hosts_of


class Communicators:
    """Numbered: every group of every axis that the programs name, every pair that sends, every rank's way to its host.

    ``methods`` says how each collective is done.  With a ``window`` only what lies in it is drawn: ``like`` is for
    everyone who is in the window for it, and only those have rows of usage, on links of the window; but a group beside
    which nothing else is under way is drawn whole, and kept apart.  NotAlikeError where the window does not tell all.
    """

    def __init__(
        self,
        programs: Sequence[StageProgram],
        plan: RankLayout,
        fabric: Fabric,
        methods: Methods,
        window: Quotient | None = None,
    ) -> None:
        self._fabric = fabric
        self._hosts = hosts_of(fabric)
        self._methods = methods
        self._window = window
        self._pictures = Pictures(fabric, plan.num_ranks, window)
        self.kinds: list[CommunicatorTable] = []
        self._named: dict[Hashable, list[CommunicatorTable]] = {}
        self._of_stage: dict[tuple[Hashable, int], int] = {}  # by kind and stage the first number
        self._known: dict[Hashable, npt.NDArray[np.int32]] = {}  # by kind the number of every rank's
        self._ranks: dict[int, tuple[int, ...]] = {}
        self._forms = CallPatterns()
        self.apart: dict[int, Sequence[PatternTable]] = {}
        self._whole: dict[str, bool] = {}  # axes with one group of all ranks; do they hold up main lanes?
        used = CommunicationDemand(programs)
        stage_ranks = plan.stage_ranks()
        self.stage_of, self.place_of = np.zeros((2, plan.num_ranks), dtype=np.int32)
        for stage, ranks in enumerate(stage_ranks):
            self.stage_of[ranks] = stage
            self.place_of[ranks] = np.arange(len(ranks))
        for axis in used.axes:
            self._add_axis(axis, plan.groups(axis), used, programs)
        self._add_sends(used, stage_ranks)
        for (stage, direction), sizes in used.copies.items():
            self._add_copies(direction, stage_ranks[stage], sizes)
        self._first = [kind.first for kind in self.kinds]
        del self._pictures  # the groups that it knows are large
        if window and not window.links.settled:
            raise NotAlikeError

    @cached_property
    def bindings(self) -> Bindings:
        """All of them in columns."""
        return replace(joined([kind.whole for kind in self.kinds]), apart=self.apart)

    @cached_property
    def shown(self) -> Bindings:
        """Those that are drawn in columns, with the ranks in the window, numbered from 0."""
        if self._window is None:
            return self.bindings
        found = joined([kind.shown(self._window.place) for kind in self.kinds])
        drawn = np.concatenate([kind.first + kind.drawn for kind in self.kinds] or [np.zeros(0, dtype=np.int64)])
        return replace(found, apart={int(np.searchsorted(drawn, number)): uses for number, uses in self.apart.items()})

    @property
    def like(self) -> Ints:
        """The one that tells of each: those drawn do of themselves."""
        return np.concatenate([kind.first + kind.like for kind in self.kinds] or [np.zeros(0, dtype=np.int64)])

    def of_all(self, values: Ints) -> npt.NDArray[np.signedinteger[Any]]:
        """For all of them what those have that are ``shown``."""
        values = values.astype(np.int32)  # there are hundreds of thousands
        ends = np.cumsum([len(kind.drawn) for kind in self.kinds])[:-1]
        parts = zip(self.kinds, np.split(values, ends), strict=True) if self.kinds else ()
        return np.concatenate([values[:0], *[own[kind.told] for kind, own in parts]])

    def heeded(self, programs: Sequence[StageProgram]) -> Bools:
        """Return which rows of usage may make ranks differ: not those of collectives that never share links."""
        alone = np.zeros(len(self.bindings), dtype=bool)
        for axis in lone_axes(programs, [axis for axis, blocking in self._whole.items() if blocking]):
            alone[self._named[axis][0].first] = True
        return ~alone[self.bindings.user]

    def kind(self, number: int) -> Hashable:
        """What its ops call a communicator."""
        return self._kind(number).name

    def ranks(self, number: int) -> tuple[int, ...]:
        """The members of a communicator."""
        if number not in self._ranks:
            kind = self._kind(number)
            self._ranks[number] = tuple(kind.table[number - kind.first].tolist())
        return self._ranks[number]

    def hosts(self, number: int) -> Ints:
        """The machine of every member of a communicator."""
        return self._hosts[np.array(self.ranks(number), dtype=np.int64)]

    def met(self, number: int) -> Sequence[int]:
        """The members of a communicator of which others are but images: those in the window, if there is one."""
        kind = self._kind(number)
        if self._window is None:
            return self.ranks(number)
        ranks = kind.table[kind.like[number - kind.first]]
        found: list[int] = ranks[self._window.rank[ranks] == ranks].tolist()
        return found

    def number(self, kind: Hashable, rank: int) -> int:
        """The communicator of this kind that the rank belongs to (of a pair: that it sends on)."""
        if isinstance(kind, tuple):  # numbered as the ranks of their stage
            return self._of_stage[kind, int(self.stage_of[rank])] + int(self.place_of[rank])
        return int(self._of_ranks(kind)[rank])

    def numbers(self, kind: Hashable, stage: int, ranks: Ints) -> Ints:
        """Return the communicators of this kind that ranks of a stage belong to (of a pair: that they send on)."""
        places = self.place_of if isinstance(kind, tuple) else self._of_ranks(kind)
        first = self._of_stage[kind, stage] if isinstance(kind, tuple) else 0
        return places[ranks].astype(np.int64) + first

    def group_name(self, axis: str, rank: int) -> str:
        """What the timeline calls the rank's group: tp0, dp3, ...; "" for a pair."""
        number = int(self._of_ranks(axis)[rank])
        return "" if number < 0 else f"{axis}{number - self._named[axis][0].first}"

    def span(self, axis: str, hosts: Ints) -> bool:
        """Is a group of this axis on several machines?  ``hosts`` has that of every rank."""
        tables = [kind.table[kind.drawn] for kind in self._named.get(axis, ())]
        return any(bool((hosts[table] != hosts[table[:, :1]]).any()) for table in tables)

    def position(self, number: int, rank: int) -> int:
        """The rank's place in its group."""
        return self.ranks(number).index(rank)

    def method(self, number: int, kind: str, size: float) -> Method:
        """How this group does a collective of this kind and size."""
        return self._form(number).methods[kind, size]

    def nearest_method(self, number: int, kind: str, size: float) -> Method:
        """How it does the planned call of this kind that is nearest in size: uneven experts' are none of them."""
        planned = {each: method for (name, each), method in self._form(number).methods.items() if name == kind}
        return planned[min(planned, key=lambda each: abs(each - size))]

    def calls(self, ranks: Container[int]) -> dict[tuple[str, Call], Method]:
        """How the groups of these ranks do their collectives, by axis and call; sends are not among them."""
        found: dict[tuple[str, int], None] = {}
        for kind in self.kinds:
            if not kind.directed:
                pairs = zip(kind.table[:, 0].tolist(), kind.form[kind.told].tolist(), strict=True)
                found.update({(str(kind.name), form): None for first, form in pairs if first in ranks})
        return {(axis, call): method for axis, form in found for call, method in self._forms[form].methods.items()}

    def usages(self, number: int) -> tuple[Usage, ...]:
        """How traffic of a communicator, or of the one that tells of it, uses links: pattern by pattern."""
        return self.bindings.usages(self._like(number))

    def phases(self, number: int, kind: str, size: float) -> Sequence[Phase]:
        """The description of a collective of this group, for playing it in steps."""
        return phases_of(self.method(number, kind, size), group_of(self._fabric, self.ranks(number)), kind)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """A collective's activities; ``usages`` are the communicator's own or, folded, those of its class."""
        form = self._form(number)
        return activities(form.patterns(self._like(number), (kind, size), usages), size, form.methods[kind, size])

    def _kind(self, number: int) -> CommunicatorTable:
        return self.kinds[bisect_right(self._first, number) - 1]

    def _like(self, number: int) -> int:
        """Return the communicator that is drawn for another."""
        kind = self._kind(number)
        return kind.first + int(kind.like[number - kind.first])

    def _form(self, number: int) -> CallPattern:
        kind = self._kind(number)
        return self._forms[int(kind.form[kind.told[number - kind.first]])]

    def _of_ranks(self, kind: Hashable) -> npt.NDArray[np.int32]:
        """Return the number of every rank's, -1 for none."""
        if kind not in self._known:
            of = self._known[kind] = np.full(len(self.stage_of), -1, dtype=np.int32)
            for each in self._named.get(kind, ()):
                of[each.table] = np.arange(each.first, each.first + len(each.table), dtype=np.int32)[:, None]
        return self._known[kind]

    @property
    def _count(self) -> int:
        return self.kinds[-1].first + len(self.kinds[-1].table) if self.kinds else 0

    def _add_axis(
        self, axis: str, groups: Iterable[Ranks], used: CommunicationDemand, programs: Sequence[StageProgram]
    ) -> None:  # fmt: skip
        """All groups of an axis, in order."""
        tables = tables_of(groups)
        blocking = axis not in used.overlapped
        if self._window and len(tables) > 1:  # all of a kind lie in the window, or all cut it by one factor
            raise NotAlikeError
        if len(tables) == 1 and tables[0].shape == (1, len(self.stage_of)):
            self._whole[axis] = blocking
            if self._window and blocking and lone_axes(programs, [axis]):
                self.apart[self._count] = []
        for table in tables:
            self._add_group(axis, table, used, blocking)

    def _add_group(self, kind: str, table: Ranks, used: CommunicationDemand, blocking: bool) -> None:
        """The next numbers, for groups of one size (rows), which run what their stages do."""
        pictures, rows = self._pictures, np.arange(len(table))
        apart = self._count in self.apart
        those = Counterparts(rows) if apart else pictures.counterparts(table)
        drawn = np.flatnonzero(those.like == rows)
        shown = table[drawn][:, : those.cut or None]
        if self._window and apart:  # what stages it has
            those, shown = Counterparts(rows, 0, (*range(len(self._window.shifts)),)), shown[:, self._window.ranks]
        layout = np.full(len(table), -1, dtype=np.int64)
        layout[drawn] = pictures.layouts(shown)
        own, first = numbered(mixed(layout[drawn], 3) ^ mixed(rows_alike(self.stage_of[shown]), 5))
        stages = self.stage_of[shown[first]].tolist()
        calls_of = [tuple(used.calls(kind, each)) for each in stages]
        alike = table[drawn[firsts(layout[drawn], len(drawn))[layout[drawn[first]]]]]
        draw = pictures.of_groups(table, layout, those.cut)
        self._add(kind, table, those, own, alike, calls_of, draw, blocking)

    def _add_sends(self, used: CommunicationDemand, stage_ranks: Sequence[Ranks]) -> None:
        """Pairs of ranks of two stages that send."""
        if not used.sends:
            return
        tables = pairs_of(used.sends, stage_ranks)
        pairs = self._pictures.counterparts_of_pairs(used.sends, stage_ranks, tables)
        whole = np.concatenate(
            [table[those.like == np.arange(len(table))] for table, those in zip(tables, pairs, strict=True)]
        )
        layout, _ = numbered(self._pictures.layouts(whole))
        draw, told = self._pictures.of_sends(whole, layout), firsts(layout, len(layout))
        first = 0
        for ((source, target), sizes), table, those in zip(used.sends.items(), tables, pairs, strict=True):
            place = np.cumsum(those.like == np.arange(len(table))) - 1 + first  # of those that are drawn

            def of_these(those: Ints, call: str, method: Method, place: Ints = place) -> tuple[PatternTable, ...]:
                return draw(place[those], call, method)

            end = int(place[-1]) + 1
            own, one = numbered(layout[first:end])
            alike = whole[told[layout[first:end][one]]]
            blocking = "pp" not in used.overlapped
            calls_of = [tuple(sizes)] * len(one)
            self._add(("send", source, target), table, those, own, alike, calls_of, of_these, blocking)
            first = end

    def _add(
        self,
        kind: Hashable,
        table: Ranks,
        those: Counterparts,
        own: Ints,
        alike: Ranks,
        calls_of: Sequence[tuple[Call, ...]],
        draw: Draw,
        blocking: bool,
    ) -> None:
        """The next numbers, for groups of one size (rows), of which those like themselves are drawn.

        ``own`` numbers those that are laid out alike and run the same: as the group of these ranks is (``alike``), and
        what ``calls_of`` says; ``draw`` gives the picture of some by their places in the table.
        """
        like, _, turned = those
        drawn = np.flatnonzero(like == np.arange(len(table)))
        form, colour, places = np.full((3, len(drawn)), -1, dtype=np.int64)
        rows: list[Rows] = []
        for number, calls in enumerate(calls_of):
            some = own == number
            form[some] = len(self._forms)
            colour[some], uses = self._make(kind, alike[number], drawn[some], calls, draw)
            places[some] = len(uses)
            if self._count in self.apart:
                self.apart[self._count] = uses
            else:
                rows += rows_of(drawn[some], uses)
        where = self._hosts[table[drawn]]  # what a group does to computation may depend on whether it spans hosts
        colour = 2 * colour + (where != where[:, :1]).any(axis=1)
        first = self._count
        self.kinds.append(
            CommunicatorTable(kind, first, table, like, drawn, form, colour, places, in_rows(rows), blocking, turned)
        )
        self._named.setdefault(kind, []).append(self.kinds[-1])
        for stage in self.stage_of[table[0, [0, -1]]].tolist():  # of a pair that of both
            self._of_stage[kind, stage] = first

    def _make(
        self,
        kind: Hashable,
        alike: Ranks,
        those: Ints,
        calls: Iterable[Call],
        draw: Draw,
    ) -> tuple[Ints, list[PatternTable]]:
        """A form; the colours of its groups, and their usages."""
        group = self._pictures.group(alike)
        methods = {
            (name, size): Method("") if name == "copy" else self._methods.of(group, name, size) for name, size in calls
        }
        known: dict[tuple[str, str], tuple[PatternTable, ...]] = {}
        for call, method in methods.items():
            if (call[0], method.algorithm) not in known:
                known[call[0], method.algorithm] = draw(those, call[0], method)
        pictures = {call: known[call[0], methods[call].algorithm] for call in methods}
        return self._forms.add(kind, those + self._count, methods, pictures)

    def _add_copies(self, direction: str, ranks: Ranks, sizes: Iterable[Call]) -> None:
        """Ways between the ranks of a stage and their hosts' memory."""
        calls, table = tuple(sizes), ranks[:, None]
        those = self._pictures.counterparts(table)
        drawn = np.flatnonzero(those.like == np.arange(len(table)))
        ways = [copy_pattern(self._fabric, rank, direction) for rank in ranks[drawn].tolist()] if calls else []
        picture = single((way,) for way in ways)
        own = np.zeros(len(drawn), dtype=np.int64)
        self._add(("copy", direction), table, those, own, table[:1], [calls], lambda *_: picture, blocking=False)
