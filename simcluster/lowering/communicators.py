"""The groups and sender-receiver pairs that a job uses, bound to the cluster's links.  Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from simcluster.collectives import Phase
from simcluster.colours import mixed, numbered, ordered
from simcluster.lowering.asked import Asked, Call
from simcluster.lowering.barriers import lone_axes
from simcluster.lowering.tight import tight_rows
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import Layout, Ranks
from simcluster.traffic.bindings import Bindings, Bools, Communicator, Floats, Ints, joined
from simcluster.traffic.drawing import Drawn, drawn, single
from simcluster.traffic.fairness import Usage
from simcluster.traffic.group_layouts import Places, rows_alike
from simcluster.traffic.methods import Method, Methods, activities, phases_of
from simcluster.traffic.traffic import Fabric, Pattern, Traffic, copy_pattern, group_of


@dataclass(frozen=True)
class _Form:
    """What groups that are laid out alike, and run the same, have in common.

    ``methods`` by call; of each call the ``parts`` of its pattern: (which usage, share, rounds, which column of
    ``latency``), where a row of ``latency`` is one group.
    """

    methods: dict[Call, Method]
    parts: dict[Call, tuple[tuple[int, float, int, int], ...]]
    latency: Floats
    row: Mapping[int, int]  # of a communicator's number

    def patterns(self, number: int, call: Call, usages: Sequence[Usage]) -> list[Pattern]:
        """The pattern of a call of one group, with these usages."""
        latency = self.latency[self.row[number]].tolist()
        return [Pattern(usages[use], share, rounds, latency[column]) for use, share, rounds, column in self.parts[call]]


class Communicators:
    """Numbered: every group of every axis that the programs name, every pair that sends, every rank's way to its host.

    ``methods`` says how each collective is done.  ``bindings`` are they in columns.
    """

    def __init__(self, programs: Sequence[StageProgram], plan: Layout, fabric: Fabric, methods: Methods) -> None:
        self._fabric = fabric
        self._methods = methods
        self._places = Places(fabric, plan.num_ranks)
        self._of: dict[Hashable, Ints] = {}  # by kind: the number of every rank's, -1 for none
        self._group_index: dict[str, Ints] = {}
        self._kinds: list[Hashable] = []
        self._first: list[int] = []  # the first number of each kind
        self._forms: list[_Form] = []
        self._form_of: list[Ints] = []
        self._count = 0
        self._whole: dict[str, bool] = {}  # axes with one group of all ranks; do they hold up main lanes?
        self._colours: dict[Hashable, int] = {}
        parts: list[Bindings] = []
        used = Asked(programs)
        stage_ranks = plan.stage_ranks()
        self._stage_of = np.zeros(plan.num_ranks, dtype=np.int64)
        for stage, ranks in enumerate(stage_ranks):
            self._stage_of[ranks] = stage
        for axis in used.axes:
            parts += self._add_axis(axis, plan.groups(axis), used)
        parts += self._add_sends(used, stage_ranks)
        for (stage, direction), sizes in used.copies.items():
            parts.append(self._add_copies(direction, stage_ranks[stage], sizes))
        self.bindings = joined(parts)
        self._form_by_number = np.concatenate(self._form_of) if self._form_of else np.zeros(0, dtype=np.int64)

    @cached_property
    def all(self) -> list[Communicator]:
        """One by one."""
        return [
            Communicator(
                self.kind(number), self.ranks(number), self.bindings.usages(number), int(colour), bool(blocking)
            )
            for number, (colour, blocking) in enumerate(zip(self.bindings.colour, self.bindings.blocking, strict=True))
        ]

    def heeded(self, programs: Sequence[StageProgram], capacity: Floats, varying: Collection[int]) -> Bools:
        """Which rows of usage may make ranks differ; ``capacity`` is B/s per link, ``varying`` links change."""
        lone = lone_axes(programs, [axis for axis, blocking in self._whole.items() if blocking])
        alone = np.zeros(self._count, dtype=bool)
        for axis in lone:
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
        return activities(form.patterns(number, (kind, size), usages), size, form.methods[kind, size])

    def _form(self, number: int) -> _Form:
        return self._forms[int(self._form_by_number[number])]

    def _add_axis(self, axis: str, groups: Iterable[Ranks], used: Asked) -> list[Bindings]:
        """All groups of an axis, in order."""
        index = self._group_index[axis] = np.full(len(self._stage_of), -1, dtype=np.int64)
        found = []
        number = 0
        for table in _tables(groups):
            index[table] = np.arange(number, number + len(table))[:, None]
            number += len(table)
            found.append(self._add_group(axis, table, used, axis not in used.beside))
        if number == 1 and found[0].member[-1] == len(index):
            self._whole[axis] = axis not in used.beside
        return found

    def _add_group(self, kind: str, table: Ranks, used: Asked, blocking: bool) -> Bindings:
        """The next numbers, for groups of one size (rows), which run what their stages do."""
        stages = self._stage_of[table]
        layout = self._places.layouts(table)
        own, first = numbered(mixed(layout, 3) ^ mixed(rows_alike(stages), 5))
        calls_of = [tuple(used.calls(kind, stages[place].tolist())) for place in first.tolist()]

        described: dict[tuple[int, str, str], Sequence[Phase]] = {}  # stages that are laid out alike have it in common

        def draw(those: Ints, call: str, method: Method) -> tuple[Drawn, ...]:
            name = int(layout[those[0]]), call, method.algorithm
            if name not in described:
                described[name] = self._described(table[those[0]], call, method)
            return drawn(self._fabric, table[those], described[name])

        return self._add(kind, table, own, calls_of, draw, blocking)

    def _add_sends(self, used: Asked, stage_ranks: Sequence[Ranks]) -> list[Bindings]:
        """Pairs of ranks of two stages that send; all that are laid out alike are drawn together."""
        if not used.sends:
            return []
        tables = [np.stack([stage_ranks[source], stage_ranks[target]], axis=1) for source, target in used.sends]
        whole = np.concatenate(tables)
        layout, _ = numbered(self._places.layouts(whole))
        pictures: dict[tuple[int, str], tuple[Ints, tuple[Drawn, ...]]] = {}
        first, found = 0, []
        for ((source, target), sizes), table in zip(used.sends.items(), tables, strict=True):

            def draw(those: Ints, call: str, method: Method, first: int = first) -> tuple[Drawn, ...]:
                name = int(layout[first + those[0]]), method.algorithm
                if name not in pictures:
                    alike = np.flatnonzero(layout == name[0])
                    phases = self._described(whole[alike[0]], call, method)
                    pictures[name] = alike, drawn(self._fabric, whole[alike], phases)
                alike, parts = pictures[name]
                begin = int(np.searchsorted(alike, first + those[0]))
                return tuple(part.of_groups(begin, begin + len(those)) for part in parts)

            own, _ = numbered(layout[first : first + len(table)])
            calls_of = [tuple(sizes)] * (int(own.max(initial=-1)) + 1)
            blocking = "pp" not in used.beside
            found.append(self._add(("send", source, target), table, own, calls_of, draw, blocking))
            first += len(table)
        return found

    def _add(
        self,
        kind: Hashable,
        table: Ranks,
        own: Ints,
        calls_of: Sequence[tuple[Call, ...]],
        draw: Callable[[Ints, str, Method], tuple[Drawn, ...]],
        blocking: bool,
    ) -> Bindings:
        """The next numbers, for groups of one size (rows).

        ``own`` numbers those that are laid out alike, ``calls_of`` says what they run; ``draw`` gives the picture of
        some by their places in the table.
        """
        form = np.empty(len(table), dtype=np.int64)
        colour = np.empty(len(table), dtype=np.int64)
        places = np.empty(len(table), dtype=np.int64)
        rows: list[tuple[Ints, Ints, Ints, Floats]] = []
        for number, calls in enumerate(calls_of):
            those = np.flatnonzero(own == number)
            form[those] = len(self._forms)
            colour[those], places[those], usage = self._make(kind, table, those, calls, draw)
            rows += [(those[group], place, link, flows) for group, place, link, flows in usage]
        return self._enter(kind, table, form, colour, places, rows, blocking)

    def _make(
        self,
        kind: Hashable,
        table: Ranks,
        those: Ints,
        calls: Iterable[Call],
        draw: Callable[[Ints, str, Method], tuple[Drawn, ...]],
    ) -> tuple[Ints, int, list[tuple[Ints, Ints, Ints, Floats]]]:
        """A form; the colours of its groups, how many usages they have, and rows of usage."""
        group = group_of(self._fabric, table[those[0]].tolist())
        methods = {(name, size): self._methods.of(group, name, size) for name, size in calls}
        known: dict[tuple[str, str], tuple[Drawn, ...]] = {}
        for call, method in methods.items():
            if (call[0], method.algorithm) not in known:
                known[call[0], method.algorithm] = draw(those, call[0], method)
        return self._formed(
            kind, those + self._count, methods, {call: known[call[0], methods[call].algorithm] for call in methods}
        )

    def _formed(
        self, kind: Hashable, numbers: Ints, methods: dict[Call, Method], pictures: dict[Call, tuple[Drawn, ...]]
    ) -> tuple[Ints, int, list[tuple[Ints, Ints, Ints, Floats]]]:
        uses: list[Drawn] = []
        latency: list[Floats] = []
        parts: dict[Call, tuple[tuple[int, float, int, int], ...]] = {}
        nature: list[Hashable] = [kind]
        for call, picture in pictures.items():
            found = []
            for part in picture:
                use = next((place for place, each in enumerate(uses) if each is part or each.loads_as(part)), len(uses))
                if use == len(uses):
                    uses.append(part)
                found.append((use, part.share, part.rounds, len(latency)))
                latency.append(part.latency)
                nature.append((call, methods[call].pace, use, part.share, part.rounds))
            parts[call] = tuple(found)
            nature.append((call, methods[call].pace))
        table = np.stack(latency, axis=1) if latency else np.zeros((len(numbers), 0))
        row = dict(zip(numbers.tolist(), range(len(numbers)), strict=True))
        self._forms.append(_Form(methods, parts, table, row))
        _, kinds, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        own = [
            self._colours.setdefault((*nature, *table[place].tolist()), len(self._colours)) for place in kinds.tolist()
        ]
        colour = np.array(own, dtype=np.int64)[which.ravel()]
        rows = [(use.group, np.full(len(use.group), place), use.link, use.flows) for place, use in enumerate(uses)]
        return colour, len(uses), rows

    def _described(self, ranks: Ranks, call: str, method: Method) -> Sequence[Phase]:
        """What the group of these ranks does in a call."""
        return phases_of(method, group_of(self._fabric, ranks.tolist()), call)

    def _add_copies(self, direction: str, ranks: Ranks, sizes: Iterable[Call]) -> Bindings:
        """Ways between the ranks of a stage and their hosts' memory."""
        calls = tuple(sizes)
        kind = ("copy", direction)
        picture = single((copy_pattern(self._fabric, rank, direction),) for rank in ranks.tolist()) if calls else ()
        numbers = np.arange(len(ranks)) + self._count
        form = np.full(len(ranks), len(self._forms))
        colour, places, usage = self._formed(
            kind, numbers, dict.fromkeys(calls, Method("")), dict.fromkeys(calls, picture)
        )
        return self._enter(kind, ranks[:, None], form, colour, np.full(len(ranks), places), usage, blocking=False)

    def _enter(
        self,
        kind: Hashable,
        table: Ranks,
        form: Ints,
        colour: Ints,
        places: Ints,
        rows: Sequence[tuple[Ints, Ints, Ints, Floats]],
        blocking: bool,
    ) -> Bindings:
        number = np.arange(self._count, self._count + len(table))
        self._first.append(self._count)
        self._kinds.append(kind)
        self._form_of.append(form)
        self._count += len(table)
        of = self._of.setdefault(kind, np.full(len(self._stage_of), -1, dtype=np.int64))
        directed = isinstance(kind, tuple)
        if directed:
            of[table[:, 0]] = number
        else:
            of[table] = number[:, None]
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0)] * 4
        group, place, link = (column.astype(np.int64) for column in columns[:3])
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
            flows=columns[3][order],
            places=places,
        )


def _tables(groups: Iterable[Ranks]) -> Iterable[Ranks]:
    """Groups of one size, as rows, as long as the size stays."""
    if isinstance(groups, np.ndarray):
        return [groups]
    return [np.stack(list(some)) for _, some in groupby(groups, key=len)]
