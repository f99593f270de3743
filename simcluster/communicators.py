"""The groups and sender-receiver pairs that a job uses, bound to the cluster's links.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from simcluster.collectives import ALGORITHMS, Phase
from simcluster.fairness import Usage
from simcluster.fold import Communicator
from simcluster.ops import MAIN, Collective, StageProgram, Timed, Transfer
from simcluster.parallel import Layout
from simcluster.traffic import Fabric, Pattern, Traffic, group_of, patterns


class Communicators:
    """Numbered: every group of every axis that the programs name, then every pair that sends.

    ``algorithm[kind]`` names how each kind of collective is done.
    """

    def __init__(
        self, programs: Sequence[StageProgram], plan: Layout, fabric: Fabric, algorithm: Mapping[str, str]
    ) -> None:
        self.all: list[Communicator] = []
        self._fabric = fabric
        self._algorithm = algorithm
        self._of: dict[tuple[Hashable, int], int] = {}
        self._group_index: dict[tuple[str, int], int] = {}
        self._patterns: list[dict[str, tuple[Pattern, ...]]] = []
        self._place: list[dict[Usage, int]] = []
        kinds, sends, beside = _used(programs)
        for axis, wanted in kinds.items():
            for index, group in enumerate(ranks.tolist() for ranks in plan.groups(axis)):
                self._add(axis, group, {kind: self._on_cluster(group, kind) for kind in wanted}, axis not in beside)
                for rank in group:
                    self._group_index[axis, rank] = index
        stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
        for source, target in sends:
            for pair in zip(stage_ranks[source], stage_ranks[target], strict=True):
                self._add(("send", source, target), pair, {"send": self._on_cluster(pair, "send")}, "pp" not in beside)

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

    def phases(self, number: int, kind: str) -> Sequence[Phase]:
        """The description of a collective of this group, for playing it in steps."""
        return self._phases(self.all[number].ranks, kind)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """A collective's activities; ``usages`` are the communicator's own or, folded, those of its class."""
        place = self._place[number]
        return tuple(
            Traffic(usages[place[part.usage]], part.share * size, part.rounds, part.latency)
            for part in self._patterns[number][kind]
        )

    def _phases(self, ranks: Sequence[int], kind: str) -> Sequence[Phase]:
        return ALGORITHMS[kind][self._algorithm[kind]](group_of(self._fabric, ranks))

    def _on_cluster(self, ranks: Sequence[int], kind: str) -> tuple[Pattern, ...]:
        return patterns(self._fabric, ranks, self._phases(ranks, kind))

    def _add(self, kind: Hashable, ranks: Sequence[int], found: dict[str, tuple[Pattern, ...]], blocking: bool) -> None:
        place: dict[Usage, int] = {}
        nature = []
        for name, parts in found.items():
            for part in parts:
                index = place.setdefault(part.usage, len(place))
                nature.append((name, index, part.share, part.rounds, part.latency))
        number = len(self.all)
        self.all.append(Communicator(kind, tuple(ranks), tuple(place), tuple(nature), blocking))
        self._patterns.append(found)
        self._place.append(place)
        for rank in ranks[:1] if isinstance(kind, tuple) else ranks:
            self._of[kind, rank] = number


def _used(
    programs: Sequence[StageProgram],
) -> tuple[dict[str, dict[str, None]], dict[tuple[int, int], None], dict[str, None]]:
    """Collective kinds by axis, (stage, stage) pairs that send, and axes with items beside the main lane.

    In order of first use; "pp" stands for all sends.
    """
    kinds: dict[str, dict[str, None]] = {}
    sends: dict[tuple[int, int], None] = {}
    beside: dict[str, None] = {}
    for program in programs:
        segments = {id(item.segment): (name, item.segment) for name, lane in program.lanes.items() for item in lane}
        for lane_name, segment in segments.values():
            for op in segment.ops:
                if isinstance(op.work, Collective | Timed):
                    axis = op.work.axis
                    wanted = kinds.setdefault(axis, {})
                    if isinstance(op.work, Collective):
                        wanted[op.work.kind] = None
                elif isinstance(op.work, Transfer):
                    sends[program.stage, op.work.to_stage] = None
                    axis = "pp"
                else:
                    continue
                if lane_name != MAIN:
                    beside[axis] = None
    return kinds, sends, beside
