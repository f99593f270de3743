"""How long a segment takes at the least beside its own communication, stretch by stretch.

A stretch ends where whatever goes on in it is joined, so a segment takes the sum of its stretches.  One takes at least

* its longest path, with computation undisturbed;
* its computation, and what communication beside it adds to that.  While communication of pressure p is under way a rank
  either computes at the rate 1 / (1 + sensitivity x p) or does not compute.  What is hidden best is hidden where it
  costs least: in time in which nothing is computed anyway, then beside computation that feels least of it.

Neither asks when things happen, so both hold however ranks wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from simcluster.base.errors import InputError
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.works import Collective, Compute, Host

HOST = "host"


def least_segment_seconds(
    segment: Segment, least: Mapping[Collective, float], attention: float, pressure: Mapping[str, float]
) -> float:
    """Return the seconds that a segment takes at least.

    Its collectives take at ``least`` so long, and press at least so much, by their lanes.  ``attention``: the part of
    whole sequences' that packed documents leave, the mean of all microbatches, which a search plays
    (``SequenceLengths.without``).  What the host needs to issue kernels is left out.  InputError for kinds of ops that
    the search does not know.
    """
    seconds = 0.0
    for stretch in stretches(segment.ops):
        ends: dict[int, float] = {}
        lanes: dict[str, float] = {}
        beside: dict[str, float] = defaultdict(float)
        waits, own = 0.0, dict[float, float]()
        for number in stretch:
            op = segment.ops[number]
            took = seconds_of(op, least, attention)
            begin = max([lanes.get(op.lane, 0.0), *(ends.get(other, 0.0) for other in op.after)])
            ends[number] = lanes[op.lane] = begin + took
            if isinstance(op.work, Compute) and op.lane == MAIN:
                own[op.work.sensitivity] = own.get(op.work.sensitivity, 0.0) + took
            elif op.lane == MAIN:
                waits += took
            elif isinstance(op.work, Collective):
                beside[op.lane] += took
        added = max((hidden(own, time - waits, pressure[lane]) for lane, time in beside.items()), default=0.0)
        seconds += max(max(lanes.values()), waits + sum(own.values()) + added)
    return seconds


def hidden(computed: Mapping[float, float], seconds: float, pressure: float) -> float:
    """Seconds that communication of so many seconds and this pressure adds at the least to computation beside it, by
    how much that feels of it."""
    added = 0.0
    for sensitivity in sorted(computed):
        if seconds <= 0.0:
            break
        slower = 1.0 + max(0.0, sensitivity) * pressure
        together = min(seconds, computed[sensitivity] * slower)
        added += together * (1.0 - 1.0 / slower)
        seconds -= together
    return added + max(0.0, seconds)


def stretches(ops: Sequence[Op]) -> list[list[int]]:
    """The numbers of a segment's ops, cut wherever all ops from there on wait for all before; without the host's."""
    numbers = [number for number, op in enumerate(ops) if op.lane != HOST]
    before: list[int] = []  # of every op those that it waits for, as bits
    last: dict[str, int] = {}
    place = {number: index for index, number in enumerate(numbers)}
    for index, number in enumerate(numbers):
        waits = [place[other] for other in ops[number].after if other in place]
        if ops[number].lane in last:
            waits.append(last[ops[number].lane])
        known = 0
        for other in waits:
            known |= before[other] | 1 << other
        before.append(known)
        last[ops[number].lane] = index
    found: list[list[int]] = [[]]
    for index in range(len(numbers) - 1, -1, -1):
        found[-1].append(numbers[index])
        ahead = (1 << index) - 1
        if index and all(known & ahead == ahead for known in before[index:]):
            found.append([])
    return [stretch[::-1] for stretch in reversed(found)]


def seconds_of(op: Op, least: Mapping[Collective, float], attention: float) -> float:
    """Of one op by itself."""
    work = op.work
    if isinstance(work, Collective):
        return least[work]
    if type(work) not in (Compute, Host):
        what = f"{type(work).__name__} ({op.name}); compare some, as in simcluster compare SCENARIO --vary tp=1,2"
        raise InputError(f"plan: layouts are searched without {what}")
    if op.lane == HOST:
        return 0.0
    return work.seconds - (1.0 - attention) * work.attention if isinstance(work, Compute) else work.seconds
