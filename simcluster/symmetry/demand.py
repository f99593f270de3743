"""Communication demand: group calls, sends and copies that a job's programs ask of the network.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from simcluster.base.errors import InputError
from simcluster.planning.ops import MAIN, StageProgram, Work
from simcluster.planning.works import WORKS

Call = tuple[str, float]
"""What the network is asked for: a kind of collective (or "send") and its size in bytes."""


class CommunicationDemand:
    """What the programs ask of the network, in order of first use.

    ``axes`` names those with collectives, given times included; ``sends[source, target]`` lists the calls of sending
    stages, ``copies[stage, direction]`` those with their host's memory; ``overlapped`` has the axes whose communication
    may run at the same time as other communication of its rank, "pp" for all sends.
    """

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self.axes: dict[str, None] = {}
        self.sends: dict[tuple[int, int], dict[Call, None]] = {}
        self.copies: dict[tuple[int, str], dict[Call, None]] = {}
        self.overlapped: dict[str, None] = {}
        self._calls: dict[tuple[str, int], dict[Call, None]] = {}
        for program in programs:
            segments = {
                segment: name
                for name, lane in program.lanes.items()
                for segment in dict.fromkeys(map(itemgetter(0), lane))  # the first of an item is its segment
            }
            works = {id(op.work): op.work for segment in segments for op in segment.ops}
            axes = {number: self._op(program.stage, work) for number, work in works.items()}
            for segment, lane in segments.items():
                if lane != MAIN or len({op.lane for op in segment.ops}) > 1:
                    self.overlapped |= dict.fromkeys([axis for op in segment.ops if (axis := axes[id(op.work)])])

    def calls(self, axis: str, stages: Iterable[int]) -> dict[Call, None]:
        """What a group of this axis with ranks on these stages runs."""
        return {call: None for stage in dict.fromkeys(stages) for call in self._calls.get((axis, stage), ())}

    def _op(self, stage: int, work: Work) -> str:
        """Note one op; its axis, "" for compute."""
        if type(work) not in WORKS:
            raise InputError(f"{type(work).__name__} is no kind of work that planning/works.WORKS names: {work}")
        group = work.group(stage)
        if group is None or work.joins:
            return ""
        if isinstance(group, str):
            self.axes[group] = None
            calls = self._calls.setdefault((group, stage), {})
        elif group[0] == "send":
            calls = self.sends.setdefault((group[1], group[2]), {})
        elif group[0] == "copy":
            calls = self.copies.setdefault((stage, group[1]), {})
        else:
            raise InputError(f"no player knows the group {group} of {work}")
        if work.moves:
            calls[work.moves, work.size] = None
        return group if isinstance(group, str) else "pp" if group[0] == "send" else ""
