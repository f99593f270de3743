"""The groups and sender-receiver pairs that a job uses, bound to the cluster's links.  Pure."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from simcluster.collectives import Phase
from simcluster.fairness import Usage
from simcluster.fold import Communicator
from simcluster.methods import Method, Methods, activities, phases_of
from simcluster.ops import MAIN, Collective, Compute, Copy, Host, Receive, StageProgram, Transfer, Work
from simcluster.parallel import Layout
from simcluster.traffic import Fabric, Pattern, Traffic, copy_pattern, group_of, patterns

Call = tuple[str, float]
"""What the network is asked for: a kind of collective (or "send") and its size in bytes."""


class Communicators:
    """Numbered: every group of every axis that the programs name, every pair that sends, every rank's way to its host.

    ``methods`` says how each collective is done.
    """

    def __init__(self, programs: Sequence[StageProgram], plan: Layout, fabric: Fabric, methods: Methods) -> None:
        self.all: list[Communicator] = []
        self._fabric = fabric
        self._methods = methods
        self._of: dict[tuple[Hashable, int], int] = {}
        self._group_index: dict[tuple[str, int], int] = {}
        self._calls: list[dict[Call, Method]] = []
        self._patterns: list[dict[Call, tuple[Pattern, ...]]] = []
        self._place: list[dict[Usage, int]] = []
        used = _Used(programs)
        stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
        stage_of = {rank: stage for stage, ranks in enumerate(stage_ranks) for rank in ranks}
        for axis in used.axes:
            for index, group in enumerate(ranks.tolist() for ranks in plan.groups(axis)):
                self._add(axis, group, used.calls(axis, (stage_of[rank] for rank in group)), axis not in used.beside)
                for rank in group:
                    self._group_index[axis, rank] = index
        for (source, target), sizes in used.sends.items():
            for pair in zip(stage_ranks[source], stage_ranks[target], strict=True):
                self._add(("send", source, target), pair, sizes, "pp" not in used.beside)
        for (stage, direction), sizes in used.copies.items():
            for rank in stage_ranks[stage]:
                way = (copy_pattern(fabric, rank, direction),) if sizes else ()
                self._enter(("copy", direction), [rank], dict.fromkeys(sizes, Method("")), {("copy", ""): way}, False)

    def number(self, kind: Hashable, rank: int) -> int:
        """The communicator of this kind that the rank belongs to (of a pair: that it sends on)."""
        return self._of[kind, rank]

    def group_name(self, axis: str, rank: int) -> str:
        """What the timeline calls the rank's group: tp0, dp3, ...; "" for a pair."""
        index = self._group_index.get((axis, rank))
        return "" if index is None else f"{axis}{index}"

    def position(self, number: int, rank: int) -> int:
        """The rank's place in its group."""
        return self.all[number].ranks.index(rank)

    def method(self, number: int, kind: str, size: float) -> Method:
        """How this group does a collective of this kind and size."""
        return self._calls[number][kind, size]

    def calls(self, ranks: Container[int]) -> dict[tuple[str, Call], Method]:
        """How the groups of these ranks do their collectives, by axis and call; sends are not among them."""
        return {
            (str(each.kind), call): method
            for each, calls in zip(self.all, self._calls, strict=True)
            if not isinstance(each.kind, tuple) and each.ranks[0] in ranks
            for call, method in calls.items()
        }

    def phases(self, number: int, kind: str, size: float) -> Sequence[Phase]:
        """The description of a collective of this group, for playing it in steps."""
        return phases_of(self.method(number, kind, size), group_of(self._fabric, self.all[number].ranks), kind)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """A collective's activities; ``usages`` are the communicator's own or, folded, those of its class."""
        place, parts = self._place[number], self._patterns[number][kind, size]
        seen = [replace(part, usage=usages[place[part.usage]]) for part in parts]
        return activities(seen, size, self.method(number, kind, size))

    def _add(self, axis: Hashable, ranks: Sequence[int], calls: Iterable[Call], blocking: bool) -> None:
        group = group_of(self._fabric, ranks)
        methods = {(kind, size): self._methods.of(group, kind, size) for kind, size in calls}
        drawn: dict[tuple[str, str], tuple[Pattern, ...]] = {}
        for call, method in methods.items():
            described = call[0], method.algorithm
            if described not in drawn:
                drawn[described] = patterns(self._fabric, ranks, phases_of(method, group, call[0]))
        self._enter(axis, ranks, methods, drawn, blocking)

    def _enter(
        self,
        axis: Hashable,
        ranks: Sequence[int],
        methods: dict[Call, Method],
        drawn: Mapping[tuple[str, str], tuple[Pattern, ...]],
        blocking: bool,
    ) -> None:
        """The next number, for these ranks; ``drawn`` are the patterns of each kind and algorithm."""
        place: dict[Usage, int] = {}
        nature = []
        for call, method in methods.items():
            for part in drawn[call[0], method.algorithm]:
                index = place.setdefault(part.usage, len(place))
                nature.append((call, method.pace, index, part.share, part.rounds, part.latency))
        number = len(self.all)
        self.all.append(Communicator(axis, tuple(ranks), tuple(place), tuple(nature), blocking))
        self._calls.append(methods)
        self._patterns.append({call: drawn[call[0], method.algorithm] for call, method in methods.items()})
        self._place.append(place)
        for rank in ranks[:1] if isinstance(axis, tuple) else ranks:
            self._of[axis, rank] = number


class _Used:
    """What the programs ask of the network, in order of first use.

    ``axes`` names those with collectives, given times included; ``sends[source, target]`` lists the calls of sending
    stages, ``copies[stage, direction]`` those with their host's memory; ``beside`` has the axes with items beside the
    main lane, "pp" for all sends.
    """

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self.axes: dict[str, None] = {}
        self.sends: dict[tuple[int, int], dict[Call, None]] = {}
        self.copies: dict[tuple[int, str], dict[Call, None]] = {}
        self.beside: dict[str, None] = {}
        self._calls: dict[tuple[str, int], dict[Call, None]] = {}
        for program in programs:
            segments = {id(item.segment): (name, item.segment) for name, lane in program.lanes.items() for item in lane}
            for lane, segment in segments.values():
                for op in segment.ops:
                    axis = self._op(program.stage, op.work)
                    if axis and lane != MAIN:
                        self.beside[axis] = None

    def calls(self, axis: str, stages: Iterable[int]) -> dict[Call, None]:
        """What a group of this axis with ranks on these stages runs."""
        return {call: None for stage in dict.fromkeys(stages) for call in self._calls.get((axis, stage), ())}

    def _op(self, stage: int, work: Work) -> str:
        """Note one op; its axis, "" for compute."""
        if isinstance(work, Transfer):
            calls = self.sends.setdefault((stage, work.to_stage), {})
            if work.seconds < 0:
                calls["send", work.size] = None
            return "pp"
        if isinstance(work, Copy):
            calls = self.copies.setdefault((stage, work.direction), {})
            if work.seconds < 0:
                calls["copy", work.size] = None
            return ""
        if isinstance(work, Compute | Receive | Host):
            return ""
        self.axes[work.axis] = None
        if isinstance(work, Collective):
            self._calls.setdefault((work.axis, stage), {})[work.kind, work.size] = None
        return work.axis
