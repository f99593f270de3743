"""Every rank different, at the price of one: a step op by op, each for all ranks of its stage.  An accelerator.

All ranks of a stage run the same list of ops; only their times differ.  So an op is an array over its stage's ranks, a
collective a maximum over an axis of them, a send the same places of another stage: ``StageSweep``, which plays replicas
(``studies.whatif.montecarlo``) too.  Here durations are the step's own: every group's transfers with their links to
themselves, every rank's computation at its speed and beside what its communication presses.

A collective may come past computation that stands before it in the sweep.  So the step is swept again, in the order of
the times found before, with all flights that are known, until none of them changes (twice is usual): what happens at an
instant depends on earlier ones alone, so times that fit together are the only ones.  Sends that press on another
stage's computation would fit together as well, after 34 sweeps of a job of 1,024 GPUs, for which events take a quarter
of the time: they are left to events.  Then it is looked whether transfers held each other back on a link;
``NeedsEventsError`` where they did, or where the allow-list (``step.proved_for.ARRAYS``, and what is refused by name
here) ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.clock import all_on_grid, require_exact
from simcluster.devices.interference import Interference
from simcluster.engine.communication import CommunicationLowering, Ranks
from simcluster.engine.flights_beside import Track, when_over
from simcluster.engine.links_alone import LinksAlone
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.moved import MovedBySort, Sort
from simcluster.engine.overlaps import ROOM, first_held_back
from simcluster.engine.own_works import OwnWorks
from simcluster.engine.rank_times import RankTimes
from simcluster.engine.stage_sweep import StageSweep, Times
from simcluster.planning.ops import MAIN, StageProgram, Work
from simcluster.planning.parallel import RankLayout
from simcluster.programs.program import Program
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import each_apart
from simcluster.traffic.traffic import Fabric

_MOST_SWEEPS = 12
_LOOKED_AT_FIRST = 300_000
"""Uses of links, the earliest, that are looked at before all: where transfers meet they do so from the begin."""
_SOON = 2
"""Sweeps after which times are near enough to say that transfers will hold each other back."""


Rows = tuple[Ints, Ints, Floats, Floats, Floats]
"""What transfers do on links: the place in the stage that tells when, the link, begin and end from there on, and the
part of the link."""


class RankArrays:
    """A job whose ranks are played as arrays.

    ``own(stage)`` gives the works of its ops on each of its ranks, what computes at full speed; ``slowness[rank]``
    multiplies its seconds.  Of the programs ``some`` may be played alone (``beginnings``).  Raises
    NeedsEventsError, with the reason, for what this cannot say.
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
    ) -> None:
        if interference and interference.drag:
            raise NeedsEventsError("computation slows down communication beside it (overlap.interference)")
        if interference and any(item.segment.ops[0].work.kind == "send" for program in programs
                                for items in program.lanes.values() for item in items):  # fmt: skip
            raise NeedsEventsError("sends slow down computation of another stage (overlap.interference)")
        self.sweep = StageSweep(some or programs, plan)
        self._capacity, self._communicators = capacity.tolist(), communicators
        self._programs, self._interference = programs, interference
        stages, places = communicators.stage_of.data, communicators.place_of.data
        self._ranks = [ranks.tolist() for ranks in self.sweep.stage_ranks]
        where = Ranks(self._ranks, stages, places, fabric.host_of, slowness)
        apart = each_apart(len(slowness), communicators.bindings, len(capacity))
        lowering = CommunicationLowering(
            where, communicators, apart, self._capacity, capacity, Program(), interference, in_steps=False
        )
        slow = np.array(slowness)
        self._alone = LinksAlone(np.asarray(capacity, dtype=float))
        self._slowness = [slow[ranks] for ranks in self.sweep.stage_ranks]
        self._own = [own(stage) if own else None for stage in range(len(programs))]
        self._moved = MovedBySort(self.sweep, lowering, self._alone, self._own)
        self._computed: dict[tuple[int, float], Floats] = {}
        self._sender = self._senders()
        self._rows: dict[tuple[int, int], Rows] | None = None
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
            if not self._changed or not self._pressing:
                break
            if sweeps == _SOON:
                self._require_free(times)
            if sweeps == _MOST_SWEEPS:
                raise NeedsEventsError(f"after {sweeps} sweeps flights still change each other")
            order = self.sweep.order_of(self._keys(times))
        self._require_free(times)
        return found

    # --- durations --------------------------------------------------------------------------------------------------

    def _seconds(self, stage: int, number: int, start: Floats) -> Floats:
        stage, number = self._sender.get((stage, number), (stage, number))
        op = self.sweep.ops[stage][number][1]
        if op.work.group(stage) is not None:
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
                past.setdefault((stage, op.lane), []).append(((stage, number), pressure))
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

    # --- links ------------------------------------------------------------------------------------------------------

    def _require_free(self, times: Sequence[Times]) -> None:
        """NeedsEventsError if a transfer was held back by others on a link."""
        tables = self._tables()
        if not tables:
            return
        nodes = [node for node in range(len(times)) if self.sweep.name_of(node) in tables]
        nodes.sort(key=lambda node: float(times[node][1][0].min()))
        rows = np.cumsum([len(tables[self.sweep.name_of(node)][0]) for node in nodes])
        soon = int(np.searchsorted(rows, _LOOKED_AT_FIRST)) + 1
        for some in (nodes[:soon], nodes) if soon < len(nodes) else (nodes,):
            first = self._first_held_back(some, tables, times)
            if first < math.inf:
                raise NeedsEventsError(f"transfers hold each other back on a link, the first at {first:.6g} s")

    def _first_held_back(
        self, nodes: Sequence[int], tables: dict[tuple[int, int], Rows], times: Sequence[Times]
    ) -> float:  # fmt: skip
        """Seconds at which one of the transfers of these nodes is first held back by others of them."""
        links, begins, ends, parts = [], [], [], []
        for node in nodes:
            place, link, begin, end, part = tables[self.sweep.name_of(node)]
            start = times[node][1][0, place]
            links.append(link)
            begins.append(start + begin)
            ends.append(start + end)
            parts.append(part)
        return first_held_back(*map(np.concatenate, (links, begins, ends, parts)))

    def _tables(self) -> dict[tuple[int, int], Rows]:
        """By stage and op, what its transfers do on links that more than they may load beyond what they carry."""
        if self._rows is not None:
            return self._rows
        communicators = self._communicators
        heeded = communicators.heeded(self._programs, np.asarray(self._capacity), ())
        tight = np.zeros(len(self._capacity), dtype=bool)
        tight[communicators.bindings.link[heeded]] = True
        of_work: dict[Sort, tuple[Floats, Ints]] = {}
        for name, moved in self._moved.known.items():
            first = np.unique(moved.of, return_index=True)[1]
            rows = [np.zeros((0, 5))]
            for own, (number, meeting) in enumerate(zip(moved.numbers.tolist(), moved.meetings, strict=True)):
                if number not in communicators.lone:
                    uses = self._alone.uses(meeting.traffics, tight)
                    rows.append(np.column_stack([np.full(len(uses), float(first[own])), uses]))
            of_work[name] = np.concatenate(rows), moved.numbers[moved.of]
        crowded = self._crowded(of_work)
        found = {}
        for stage, ops in enumerate(self.sweep.ops):
            for number, (_, op) in enumerate(ops):
                rows_of = of_work.get(self._moved.sort(stage, number))
                if rows_of is None or op.work.joins:
                    continue
                kept = rows_of[0][crowded[rows_of[0][:, 1].astype(np.int64)]]
                if len(kept):
                    place, link = kept[:, :2].astype(np.int64).T
                    found[stage, number] = place, link, kept[:, 2], kept[:, 3], kept[:, 4]
        self._rows = found
        return found

    def _crowded(self, of_work: dict[Sort, tuple[Floats, Ints]]) -> Ints:
        """Which links the users of different lanes may load beyond what they carry, if all are there at once."""
        most: dict[tuple[int, int, int, str], float] = {}
        for (stage, _, lane, _), (rows, numbers) in of_work.items():
            for place, link, begin, end, part in rows.tolist():
                name = int(link), int(numbers[int(place)]), stage, lane
                most[name] = max(most.get(name, 0.0), part if end > begin else 2.0)
        load = np.zeros(len(self._capacity))
        for (link, *_), part in most.items():
            load[link] += part
        return np.asarray(load > 1.0 - ROOM)
