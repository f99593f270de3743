"""Every rank different, at the price of one: a step op by op, each for all ranks of its stage.  An accelerator.

All ranks of a stage run the same list of ops; only their times differ.  So an op is an array over its stage's ranks, a
collective a maximum over an axis of them, a send the same places of another stage: ``StageSweep``, which plays replicas
(``studies.whatif.montecarlo``) too.  Here durations are the step's own: every group's transfers with their links to
themselves, every rank's computation at its speed and beside what its communication presses.

A collective may come past computation that stands before it in the sweep, and what it takes depends on who else is on
its links.  So the step is swept again, in the order of the times found before, with all flights that are known, until
none of them changes (twice is usual; what meets on links takes a sweep for each that waits for another): what happens
at an instant depends on earlier ones alone, so times that fit together are the only ones.  Where a sweep is long (of
stages with many ops, however many ranks they have) that is left to events: sends that press on another stage's
computation took 34 sweeps of a job of 1,024 GPUs, for which events take a quarter of the time.  ``NeedsEventsError``
there, and where the allow-list (``step.proved_for.ARRAYS``, and what is refused by name here) ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import all_on_grid, require_exact
from simcluster.base.link_values import LinkValues
from simcluster.devices.interference import Interference
from simcluster.engine.communication import CommunicationLowering, Ranks
from simcluster.engine.flights_beside import Track, when_over
from simcluster.engine.links_alone import LinksAlone
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.moved import MovedBySort
from simcluster.engine.own_works import OwnWorks
from simcluster.engine.rank_links import RankLinks
from simcluster.engine.rank_times import RankTimes
from simcluster.engine.stage_sweep import StageSweep, Times
from simcluster.planning.ops import MAIN, Op, StageProgram, Work
from simcluster.planning.parallel import RankLayout
from simcluster.programs.program import Program
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import each_apart
from simcluster.traffic.traffic import Fabric

_MOST_SWEEPS = 12
_MOST_TURNS = 400_000
"""Ops of stages that are swept, of steps so small that more than ``_MOST_SWEEPS`` take few seconds."""
_SOON = 2
"""Sweeps after which times are near enough to say that transfers will hold each other back."""


class RankArrays:
    """A job whose ranks are played as arrays.

    ``own(stage)`` gives the works of its ops on each of its ranks, what computes at full speed; ``slowness[rank]``
    multiplies its seconds.  Of the programs ``some`` may be played alone (``beginnings``).  After ``most_sweeps``
    it is left to events.  Raises NeedsEventsError, with the reason, for what this cannot say.
    """

    def __init__(
        self,
        programs: Sequence[StageProgram],
        plan: RankLayout,
        fabric: Fabric,
        capacity: Floats,
        communicators: Communicators,
        slowness: Sequence[float],
        interference: Interference | None,
        own: Callable[[int], OwnWorks] | None = None,
        some: Sequence[StageProgram] | None = None,
        most_sweeps: int | None = None,
    ) -> None:
        if interference and interference.drag:
            raise NeedsEventsError("computation slows down communication beside it (overlap.interference)")
        ops = sum(len(item.segment.ops) for program in programs for items in program.lanes.values() for item in items)
        affordable = _MOST_TURNS // max(1, ops)
        self._most_sweeps = max(_MOST_SWEEPS, affordable if most_sweeps is None else min(most_sweeps, affordable))
        self._patient = self._most_sweeps > _MOST_SWEEPS
        if not self._patient and interference and any(item.segment.ops[0].work.kind == "send" for program in programs
                                for items in program.lanes.values() for item in items):  # fmt: skip
            raise NeedsEventsError("sends slow down computation of another stage (overlap.interference)")
        self.sweep = StageSweep(some or programs, plan)
        self._communicators = communicators
        stages, places = communicators.stage_of.data, communicators.place_of.data
        self._ranks = [ranks.tolist() for ranks in self.sweep.stage_ranks]
        where = Ranks(self._ranks, stages, places, fabric.host_of, slowness)
        apart = each_apart(len(slowness), communicators.bindings, len(capacity))
        lowering = CommunicationLowering(
            where,
            communicators,
            apart,
            capacity.tolist(),
            LinkValues(capacity),
            Program(),
            interference,
            in_steps=False,
        )
        slow = np.array(slowness)
        self._alone = LinksAlone(np.asarray(capacity, dtype=float))
        self._slowness = [slow[ranks] for ranks in self.sweep.stage_ranks]
        self._own = [own(stage) if own else None for stage in range(len(programs))]
        self._moved = MovedBySort(self.sweep, lowering, self._alone, self._own)
        self._computed: dict[tuple[int, float], Floats] = {}
        self._sender = self._senders()
        self._links = RankLinks(self.sweep, programs, self._moved, self._alone, communicators, capacity)
        self._held: dict[tuple[int, int], Floats] = {}
        self._pressures: dict[bytes, Floats] = {}
        self._changed = False
        self._tracks: list[list[Track]] = [[] for _ in programs]
        self._pressing: dict[tuple[int, int], list[tuple[Track, int]]] = {}
        if interference:
            self._follow()

    def play(self) -> RankTimes:
        """The step, once its flights do not change any more."""
        order, sweeps = None, 0
        while True:
            self._changed = False
            for track in (track for tracks in self._tracks for track in tracks):
                track.rewind()
            times = self.sweep.kept(self._seconds, order)
            found = RankTimes(self.sweep, times, sweeps := sweeps + 1, self._own)
            require_exact(found.over)
            pressed = self._changed and bool(self._pressing)
            if not self._patient and (sweeps == _SOON or not pressed):
                self._links.require_free(times)
            held = self._links.lasting(times) if self._patient else {}
            if not pressed and _alike(held, self._held):
                return found
            if sweeps == self._most_sweeps:
                raise NeedsEventsError(f"after {sweeps} sweeps flights still change each other")
            self._held = held
            order = self.sweep.order_of(self._keys(times))

    # --- durations --------------------------------------------------------------------------------------------------

    def _seconds(self, stage: int, number: int, start: Floats) -> Floats:
        stage, number = self._sender.get((stage, number), (stage, number))
        op = self.sweep.ops[stage][number][1]
        if op.work.group(stage) is not None:
            seconds = self._held.get((stage, number))
            if seconds is None:
                moved = self._moved.of(stage, number)
                seconds = moved.seconds[moved.of]
            for track, place in self._pressing.get((stage, number), ()):
                self._changed |= track.set(place, start[0], start[0] + seconds)
            return np.asarray(seconds)
        seconds = self._compute(stage, number, op.work)
        if op.work.sensitivity is None or not self._tracks[stage]:
            return seconds
        over = when_over(self._tracks[stage], start[0], seconds, op.work.sensitivity)
        return np.asarray(over - start[0])

    def _compute(self, stage: int, number: int, work: Work) -> Floats:
        """Seconds of what a rank does by itself [place], with nothing beside it."""
        own = self._own[stage]
        if own is None:
            name = stage, work.seconds if work.sensitivity is not None else -work.seconds
            known = self._computed.get(name)
            if known is None:
                slow = 1.0 if work.sensitivity is None else self._slowness[stage]
                known = self._computed[name] = all_on_grid(
                    np.broadcast_to(work.seconds * slow, len(self._ranks[stage]))
                )
            return known
        slow = 1.0 if work.sensitivity is None else self._slowness[stage]
        return all_on_grid(np.asarray(own.seconds[number] * slow))

    # --- flights beside computation ---------------------------------------------------------------------------------

    def _senders(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The op that sends, for every op that only takes part in a send."""
        found = {}
        for nodes in self.sweep.pairs():
            sends = next(node for node in nodes if not self.sweep.ops[node[0]][node[1]][1].work.joins)
            found.update(dict.fromkeys(nodes, sends))
        return found

    def _follow(self) -> None:
        """What passes the ranks of every stage, lane by lane."""
        past: dict[tuple[int, Hashable], list[tuple[tuple[int, int], Floats]]] = {}
        for stage, ops in enumerate(self.sweep.ops):
            for number, (_, op) in enumerate(ops):
                if op.work.sensitivity and op.lane != MAIN:
                    raise NeedsEventsError(f"{op.kind} {op.name} computes beside the main lane")
                if not op.work.presses(op.lane):
                    continue
                moved = self._moved.of(stage, number)
                if not moved.pressure.any():
                    continue
                pressure = self._one(moved.pressure[moved.of])
                for pressed in _pressed(stage, op):
                    past.setdefault((pressed, (stage, op.lane)), []).append(((stage, number), pressure))
        for (stage, _), flights in past.items():
            track = Track([pressure for _, pressure in flights])
            self._tracks[stage].append(track)
            for place, (node, _) in enumerate(flights):
                self._pressing.setdefault(node, []).append((track, place))

    def _one(self, values: Floats) -> Floats:
        """Equal pressures are one object."""
        return self._pressures.setdefault(values.tobytes(), values)

    def _keys(self, times: Sequence[Times]) -> Floats:
        """When each node has its say: what presses as it begins, computation as it ends."""
        ends = [end if self.sweep.op_of(node).work.group(0) is None else start
                for node, (_, start, end) in enumerate(times)]  # fmt: skip
        return np.array([float(each.mean()) for each in ends])


def _pressed(stage: int, op: Op) -> Sequence[int]:
    """The stages on whose ranks it presses."""
    kind = op.work.group(stage)
    return kind[1:] if isinstance(kind, tuple) and kind[0] == "send" else (stage,)


def _alike(one: dict[tuple[int, int], Floats], other: dict[tuple[int, int], Floats]) -> bool:
    """Do the same flights take the same time?"""
    return one.keys() == other.keys() and all(np.array_equal(seconds, other[name]) for name, seconds in one.items())
