"""The groups and sender-receiver pairs that a job uses, bound to the cluster's links.  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from simcluster.collectives import Phase
from simcluster.colours import mixed, numbered, ordered
from simcluster.lowering.asked import Asked, Call
from simcluster.lowering.barriers import lone_axes
from simcluster.lowering.forms import Form, Forms, Rows, rows_of
from simcluster.lowering.pictures import Draw, Pictures
from simcluster.lowering.tight import tight_rows
from simcluster.lowering.window import NotAlikeError, Window
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import Layout, Ranks
from simcluster.traffic.bindings import Bindings, Bools, Communicator, Floats, Ints, joined
from simcluster.traffic.drawing import Drawn, single
from simcluster.traffic.fairness import Usage
from simcluster.traffic.group_layouts import rows_alike
from simcluster.traffic.methods import Method, Methods, activities, phases_of
from simcluster.traffic.traffic import Fabric, Traffic, copy_pattern, group_of


class Communicators:
    """Numbered: every group of every axis that the programs name, every pair that sends, every rank's way to its host.

    ``methods`` says how each collective is done.  ``bindings`` are they in columns.  With a ``window`` only what lies
    in it is drawn: ``like`` is for everyone who is in the window for it, and only those have rows of usage, on links of
    the window; but a group beside which nothing else is under way is drawn whole, and kept ``apart``.  NotAlikeError
    where the window does not tell all.
    """

    def __init__(
        self,
        programs: Sequence[StageProgram],
        plan: Layout,
        fabric: Fabric,
        methods: Methods,
        window: Window | None = None,
    ) -> None:
        self._programs = programs
        self._fabric = fabric
        self._methods = methods
        self._window = window
        self._pictures = Pictures(fabric, plan.num_ranks, window)
        self._of: dict[Hashable, npt.NDArray[np.int32]] = {}  # by kind: the number of every rank's, -1 for none
        self._group_index: dict[str, Ints] = {}
        self._kinds: list[Hashable] = []
        self._first: list[int] = []  # the first number of each kind
        self._forms = Forms()
        self._form_of: list[Ints] = []
        self._like: list[Ints] = []
        self._count = 0
        self.apart: dict[int, list[tuple[Ints, Floats]]] = {}
        self._whole: dict[str, bool] = {}  # axes with one group of all ranks; do they hold up main lanes?
        parts: list[Bindings] = []
        used = Asked(programs)
        stage_ranks = plan.stage_ranks()
        self.stage_of = np.zeros(plan.num_ranks, dtype=np.int64)
        for stage, ranks in enumerate(stage_ranks):
            self.stage_of[ranks] = stage
        for axis in used.axes:
            parts += self._add_axis(axis, plan.groups(axis), used)
        parts += self._add_sends(used, stage_ranks)
        for (stage, direction), sizes in used.copies.items():
            parts.append(self._add_copies(direction, stage_ranks[stage], sizes))
        self.bindings = replace(joined(parts), apart=self.apart)
        none = [np.zeros(0, dtype=np.int64)]
        self._form_by_number = np.concatenate(self._form_of or none)
        self.like = np.concatenate(self._like or none)
        if window and not window.links.settled:
            raise NotAlikeError

    @cached_property
    def all(self) -> list[Communicator]:
        """One by one."""
        return [
            Communicator(
                self.kind(number), self.ranks(number), self.bindings.usages(number), int(colour), bool(blocking)
            )
            for number, (colour, blocking) in enumerate(zip(self.bindings.colour, self.bindings.blocking, strict=True))
        ]

    def heeded(
        self,
        programs: Sequence[StageProgram],
        capacity: Floats,
        varying: Collection[int],
        bindings: Bindings | None = None,
    ) -> Bools:
        """Which rows of usage may make ranks differ; ``capacity`` is B/s per link, ``varying`` links change.

        ``bindings`` are they, or what a window shows of them: that has no rows of who is ``apart``.
        """
        if bindings is not None:
            return tight_rows(bindings, capacity, varying, np.zeros(len(bindings), dtype=bool))
        alone = np.zeros(self._count, dtype=bool)
        for axis in lone_axes(programs, [axis for axis, blocking in self._whole.items() if blocking]):
            alone[self._of[axis][0]] = True
        return tight_rows(self.bindings, capacity, varying, alone)

    def kind(self, number: int) -> Hashable:
        """What its ops call a communicator."""
        return self._kinds[bisect_right(self._first, number) - 1]

    def ranks(self, number: int) -> tuple[int, ...]:
        """The members of a communicator."""
        return tuple(self.bindings.ranks(number).tolist())

    def number(self, kind: Hashable, rank: int) -> int:
        """The communicator of this kind that the rank belongs to (of a pair: that it sends on)."""
        number = int(self._of[kind][rank])
        if number < 0:
            raise KeyError((kind, rank))
        return number

    def group_name(self, axis: str, rank: int) -> str:
        """What the timeline calls the rank's group: tp0, dp3, ...; "" for a pair."""
        index = int(self._group_index[axis][rank]) if axis in self._group_index else -1
        return "" if index < 0 else f"{axis}{index}"

    def span(self, axis: str, hosts: Sequence[int]) -> bool:
        """Is a group of this axis on several machines?  ``hosts`` has that of every rank."""
        if axis not in self._of:
            return False
        of, where = self._of[axis], np.asarray(hosts)
        first = self.bindings.rank[self.bindings.member[of]]
        return bool((where[: len(of)] != where[first])[of >= 0].any())

    def position(self, number: int, rank: int) -> int:
        """The rank's place in its group."""
        return self.ranks(number).index(rank)

    def method(self, number: int, kind: str, size: float) -> Method:
        """How this group does a collective of this kind and size."""
        return self._form(number).methods[kind, size]

    def calls(self, ranks: Container[int]) -> dict[tuple[str, Call], Method]:
        """How the groups of these ranks do their collectives, by axis and call; sends are not among them."""
        found = {}
        firsts = self.bindings.rank[self.bindings.member[:-1]].tolist() if self._count else []
        for number, (first, form) in enumerate(zip(firsts, self._form_by_number.tolist(), strict=True)):
            if first in ranks and not self.bindings.ordered[number]:
                found[number] = form
        kinds = {(self.kind(number), form): None for number, form in found.items()}
        return {(str(kind), call): method for kind, form in kinds for call, method in self._forms[form].methods.items()}

    def phases(self, number: int, kind: str, size: float) -> Sequence[Phase]:
        """The description of a collective of this group, for playing it in steps."""
        return phases_of(self.method(number, kind, size), group_of(self._fabric, self.ranks(number)), kind)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """A collective's activities; ``usages`` are the communicator's own or, folded, those of its class."""
        form = self._form(number)
        patterns = form.patterns(int(self.like[number]), (kind, size), usages)
        return activities(patterns, size, form.methods[kind, size])

    def _form(self, number: int) -> Form:
        return self._forms[int(self._form_by_number[number])]

    def _add_axis(self, axis: str, groups: Iterable[Ranks], used: Asked) -> list[Bindings]:
        """All groups of an axis, in order."""
        index = self._group_index[axis] = np.full(len(self.stage_of), -1, dtype=np.int64)
        found = []
        number = 0
        tables = list(_tables(groups))
        blocking = axis not in used.beside
        if self._window and len(tables) > 1:  # all of a kind lie in the window, or all cut it by one factor
            raise NotAlikeError
        if len(tables) == 1 and tables[0].shape == (1, len(index)):
            self._whole[axis] = blocking
            if self._window and blocking and lone_axes(self._programs, [axis]):
                self.apart[self._count] = []
        for table in tables:
            index[table] = np.arange(number, number + len(table))[:, None]
            number += len(table)
            found.append(self._add_group(axis, table, used, blocking))
        return found

    def _add_group(self, kind: str, table: Ranks, used: Asked, blocking: bool) -> Bindings:
        """The next numbers, for groups of one size (rows), which run what their stages do."""
        pictures, rows = self._pictures, np.arange(len(table))
        like, cut = (rows, 0) if self._count in self.apart else pictures.counterparts(table)
        shown = table[:, :cut] if cut else table[like == rows]
        stages = self.stage_of[shown]
        layout = np.full(len(table), -1, dtype=np.int64)
        layout[like == rows] = pictures.layouts(shown)
        own, first = numbered(mixed(layout[like == rows], 3) ^ mixed(rows_alike(stages), 5))
        calls_of = [tuple(used.calls(kind, stages[place].tolist())) for place in first.tolist()]
        return self._add(kind, table, like, own, calls_of, pictures.of_groups(table, layout, cut), blocking)

    def _add_sends(self, used: Asked, stage_ranks: Sequence[Ranks]) -> list[Bindings]:
        """Pairs of ranks of two stages that send."""
        if not used.sends:
            return []
        tables = [np.stack([stage_ranks[source], stage_ranks[target]], axis=1) for source, target in used.sends]
        likes = [self._pictures.counterparts(table)[0] for table in tables]
        whole = np.concatenate(
            [table[like == np.arange(len(table))] for table, like in zip(tables, likes, strict=True)]
        )
        layout, _ = numbered(self._pictures.layouts(whole))
        draw = self._pictures.of_sends(whole, layout)
        first, found = 0, []
        for ((source, target), sizes), table, like in zip(used.sends.items(), tables, likes, strict=True):
            place = np.cumsum(like == np.arange(len(table))) - 1 + first  # of those that are drawn

            def of_these(those: Ints, call: str, method: Method, place: Ints = place) -> tuple[Drawn, ...]:
                return draw(place[those], call, method)

            end = int(place[-1]) + 1
            own, _ = numbered(layout[first:end])
            calls_of = [tuple(sizes)] * (int(own.max(initial=-1)) + 1)
            blocking = "pp" not in used.beside
            found.append(self._add(("send", source, target), table, like, own, calls_of, of_these, blocking))
            first = end
        return found

    def _add(
        self,
        kind: Hashable,
        table: Ranks,
        like: Ints,
        own: Ints,
        calls_of: Sequence[tuple[Call, ...]],
        draw: Draw,
        blocking: bool,
    ) -> Bindings:
        """The next numbers, for groups of one size (rows), of which those ``like`` themselves are drawn.

        ``own`` numbers those that are laid out alike, ``calls_of`` says what they run; ``draw`` gives the picture of
        some by their places in the table.
        """
        columns = form, colour, places = np.full((3, len(table)), -1, dtype=np.int64)
        rows: list[Rows] = []
        shown = np.flatnonzero(like == np.arange(len(table)))
        for number, calls in enumerate(calls_of):
            those = shown[own == number]
            form[those] = len(self._forms)
            colour[those], uses = self._make(kind, table, those, calls, draw)
            places[those] = len(uses)
            if self._count in self.apart:
                self.apart[self._count] = [(use.link, use.flows) for use in uses]
            else:
                rows += rows_of(those, uses)
        return self._enter(kind, table, like, columns[:, like], rows, blocking)

    def _make(
        self,
        kind: Hashable,
        table: Ranks,
        those: Ints,
        calls: Iterable[Call],
        draw: Draw,
    ) -> tuple[Ints, list[Drawn]]:
        """A form; the colours of its groups, and their usages."""
        group = self._pictures.group(table[those[0]])
        methods = {(name, size): self._methods.of(group, name, size) for name, size in calls}
        known: dict[tuple[str, str], tuple[Drawn, ...]] = {}
        for call, method in methods.items():
            if (call[0], method.algorithm) not in known:
                known[call[0], method.algorithm] = draw(those, call[0], method)
        pictures = {call: known[call[0], methods[call].algorithm] for call in methods}
        return self._forms.add(kind, those + self._count, methods, pictures)

    def _add_copies(self, direction: str, ranks: Ranks, sizes: Iterable[Call]) -> Bindings:
        """Ways between the ranks of a stage and their hosts' memory."""
        calls = tuple(sizes)
        kind = ("copy", direction)
        like, _ = self._pictures.counterparts(ranks[:, None])
        shown = np.flatnonzero(like == np.arange(len(ranks)))
        ways = [copy_pattern(self._fabric, rank, direction) for rank in ranks[shown].tolist()] if calls else []
        picture = single((way,) for way in ways)
        columns = np.full((3, len(ranks)), -1, dtype=np.int64)
        columns[0, shown] = len(self._forms)
        columns[1, shown], uses = self._forms.add(
            kind, shown + self._count, dict.fromkeys(calls, Method("")), dict.fromkeys(calls, picture)
        )
        columns[2, shown] = len(uses)
        return self._enter(kind, ranks[:, None], like, columns[:, like], rows_of(shown, uses), blocking=False)

    def _enter(
        self, kind: Hashable, table: Ranks, like: Ints, columns: Ints, rows: Sequence[Rows], blocking: bool
    ) -> Bindings:
        """Give them numbers; ``columns`` are form, colour and how many usages of each."""
        number = np.arange(self._count, self._count + len(table))
        self._first.append(self._count)
        self._kinds.append(kind)
        self._like.append(like + self._count)
        form, colour, places = columns
        self._form_of.append(form)
        self._count += len(table)
        of = self._of.setdefault(kind, np.full(len(self.stage_of), -1, dtype=np.int32))
        directed = isinstance(kind, tuple)
        if directed:
            of[table[:, 0]] = number
        else:
            of[table] = number[:, None]
        whole = [np.concatenate(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0)] * 4
        group, place, link = (column.astype(np.int64, copy=False) for column in whole[:3])
        order: Ints | slice = slice(None)
        if len(rows) > 1:
            order = ordered(link)
            order = order[ordered((group * int(places.max(initial=1)) + place)[order])]
        return Bindings(
            colour=colour,
            ordered=np.full(len(table), directed),
            blocking=np.full(len(table), blocking),
            member=np.arange(len(table) + 1) * table.shape[1],
            rank=table.ravel(),
            use=np.searchsorted(group[order], np.arange(len(table) + 1)),
            place=place[order],
            link=link[order],
            flows=whole[3][order],
            places=places,
        )


def _tables(groups: Iterable[Ranks]) -> Iterable[Ranks]:
    """Groups of one size, as rows, as long as the size stays."""
    if isinstance(groups, np.ndarray):
        return [groups]
    return [np.stack(list(some)) for _, some in groupby(groups, key=len)]
