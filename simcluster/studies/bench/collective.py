"""Simulated time of one collective on an otherwise idle cluster, with the numbers that nccl-tests prints.

A collective is simulated on the same network and from the same descriptions as in a training step: as a *flow* (one
activity that starts when the last rank has arrived) or in *steps* (every hop of every round is a transfer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from numbers import Real
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import numpy as np

from simcluster.base.clock import TICK, round_to_tick
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS
from simcluster.collectives.entry import MessageSizes
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.diagnostics import did_you_mean, quote_value
from simcluster.engine.communication_kinds import hops_with_traffic
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.scenario.scenario_arguments import ClusterLike, to_cluster
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import CollectiveMethod, MethodChooser, make_traffics, phases_of_method
from simcluster.traffic.link_usage import batch_link_usage, patterns_from_tables
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.nccl.tuner_query import bus_factor
from simcluster.traffic.traffic import LinkPattern, Traffic, link_patterns, make_group

Detail = Literal["flow", "steps"]
_MAX_ROUTED_SINGLY = 64  # ranks of a group whose hops are routed one by one
_MAX_CACHED = 1024  # groups whose patterns are kept
_PATTERN_CACHE: WeakKeyDictionary[Cluster, dict[Hashable, tuple[LinkPattern, ...]]] = WeakKeyDictionary()

BUS_FACTOR: Mapping[str, Callable[[int], float]] = {kind: partial(bus_factor, cast(Any, kind)) for kind in ALGORITHMS}
"""busbw / algbw by collective and number of ranks (nccl-tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True)
class CollectiveTime(Displayable):
    """Result of one simulated collective: arrival and finish time (s) of each rank, in the order of ``gpus``.

    ``method`` is how it was done: algorithm and, where NCCL's model took part, protocol, pace and why. ``size`` is in
    bytes by nccl-tests' convention: the full buffer (of an all-gather the gathered one, of a reduce-scatter a rank's
    input).
    """

    kind: str
    detail: Detail
    gpus: tuple[int, ...]
    size: float
    arrivals: tuple[float, ...]
    finishes: tuple[float, ...]
    method: CollectiveMethod

    @property
    def algorithm(self) -> str:
        """Name of the collective's algorithm, a key of ``ALGORITHMS[kind]``."""
        return self.method.algorithm

    @property
    def duration(self) -> float:
        """Seconds from the last rank's arrival to the last rank's finish."""
        return max(self.finishes) - max(self.arrivals)

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in B/s: size / duration, infinite for a duration of 0."""
        return self.size / self.duration if self.duration > 0 else math.inf

    @property
    def busbw(self) -> float:
        """Bus bandwidth in B/s as nccl-tests defines it: algbw times a factor for the kind and number of ranks."""
        return self.algbw * BUS_FACTOR[self.kind](len(self.gpus))


@check_arguments
def collective_times(
    cluster: ClusterLike,
    gpus: Sequence[int],
    kind: str,
    size: float | MessageSizes,
    *,
    algorithm: str = "auto",
    detail: Detail = "flow",
    arrivals: Sequence[float] | None = None,
    nccl: str = "auto",
    root: int = 0,
) -> CollectiveTime:
    """Simulate one collective of ``size`` bytes over some GPUs of a cluster, given as indices in ``cluster.gpus``.

    ``cluster`` is a built cluster, a built-in topology's name, path or document, or a scenario. ``kind`` is a key of
    ALGORITHMS. ``nccl`` names the platform whose latencies, rates and choices of NCCL are modelled:
    "auto" is the cluster's platform, "none" uses the links alone. ``algorithm`` is one of the kind's algorithms; "auto"
    is NCCL's choice or, without a platform, the first one. A ``send`` goes from the first of two GPUs to the second; a
    broadcast comes from position ``root`` of the group, and a reduce goes to it. ``size`` may be a matrix for an
    ``all_to_all``: ``size[i][j]`` bytes from position i to position j. ``arrivals`` are the seconds at which the ranks
    reach it (default: all at 0), rounded to the clock's grid.

    Raises InputError for an unknown collective, algorithm, detail or platform; a size that is not positive, or not a
    matrix for this group; fewer than two ranks, a duplicate rank, a GPU outside the cluster; a root outside the group;
    or negative arrivals.
    """
    return concurrent_collective_times(
        to_cluster(cluster, "collective_times"), [gpus], kind, size, algorithm=algorithm, detail=detail,
        arrivals=None if arrivals is None else [arrivals], nccl=nccl, root=root,
    )[0]  # fmt: skip


def concurrent_collective_times(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float | MessageSizes,
    *,
    algorithm: str = "auto",
    detail: Detail = "flow",
    arrivals: Sequence[Sequence[float]] | None = None,
    nccl: str = "auto",
    root: int = 0,
) -> tuple[CollectiveTime, ...]:
    """Simulate the same collective in several groups of GPUs at the same time, on one network.

    Arguments and errors are those of ``collective_times``.
    """
    methods = make_collective_methods(cluster, kind, algorithm, nccl=nccl, in_rounds=detail == "steps")
    total, parts = _parse_collective_size(kind, size)
    _check_collective_request(cluster, groups, kind, total, detail, root)
    starts = _parse_arrivals(groups, arrivals)
    program = ExplicitProgram()
    done = []
    for given, arrived in zip(groups, starts, strict=True):
        turn = _rotate_to_root(range(len(given)), root)
        gpus = [given[position] for position in turn]
        group = make_group(cluster, gpus)
        method = methods.choose_method(group, kind, total)
        done.append(method)
        if detail == "steps":
            phases = phases_of_method(method, group, kind, parts)
            hops, moved = hops_with_traffic(cluster, gpus, phases, total, method.pace)
            _add_communication(
                program, [arrived[place] for place in turn], CommunicationKind(len(gpus), moved, hops=hops)
            )
        else:
            traffics = make_traffics(_fetch_link_patterns(cluster, gpus, kind, method, parts), total, method)
            _add_communication(program, [max(arrived)], CommunicationKind(1, traffics))
    ends = iter(simulate_tables(program.make_tables(cluster.capacity), str, keeps_times=False).lane_end.tolist())

    def finish_times(ranks: int) -> tuple[float, ...]:
        own = _rotate_to_root([*islice(ends, ranks)], -root % ranks) if detail == "steps" else [next(ends)] * ranks
        return tuple(own)

    return tuple(
        CollectiveTime(kind, detail, tuple(gpus), total, arrived, finish_times(len(gpus)), method)
        for gpus, arrived, method in zip(groups, starts, done, strict=True)
    )


def collective_transfers(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float | MessageSizes,
    *,
    algorithm: str = "auto",
    nccl: str = "auto",
    root: int = 0,
) -> list[tuple[Traffic, ...]]:
    """Return the transfers of each group's collective, in the order in which the group runs them.

    Arguments and errors are those of ``collective_times``.
    """
    methods = make_collective_methods(cluster, kind, algorithm, nccl=nccl)
    total, parts = _parse_collective_size(kind, size)
    _check_collective_request(cluster, groups, kind, total, "flow", root)
    found = []
    for given in groups:
        gpus = _rotate_to_root(given, root)
        method = methods.choose_method(make_group(cluster, gpus), kind, total)
        found.append(make_traffics(_fetch_link_patterns(cluster, gpus, kind, method, parts), total, method))
    return found


def simulate_transfers(cluster: Cluster, groups: Sequence[Sequence[Traffic]]) -> list[tuple[Traffic, float, float]]:
    """Simulate groups of transfers, each group in series from time 0; return the start and end (s) of each transfer."""
    program = ExplicitProgram()
    for traffics in groups:
        lane = program.add_lane(len(program.lane_rank))
        for traffic in traffics:
            program.meetings.append(CommunicationKind(1, [traffic]))
            program.add_op(lane, rendezvous=len(program.meetings) - 1)
    times = simulate_tables(program.make_tables(cluster.capacity), str, keeps_times=True).times
    assert times is not None
    each = zip(chain.from_iterable(groups), times.start.tolist(), times.end.tolist(), strict=True)
    return [(traffic, start, max(end, start + TICK)) for traffic, start, end in each]


def count_transfers(
    cluster: Cluster,
    gpus: Sequence[int],
    kind: str,
    size: float | MessageSizes,
    *,
    algorithm: str = "auto",
    nccl: str = "auto",
) -> int:
    """Return the number of transfers in one group's collective when it is simulated with ``detail="steps"``."""
    group, (total, parts) = make_group(cluster, gpus), _parse_collective_size(kind, size)
    way = make_collective_methods(cluster, kind, algorithm, nccl=nccl, in_rounds=True).choose_method(group, kind, total)
    return sum(phase.rounds * len(phase.hops) for phase in phases_of_method(way, group, kind, parts))


def make_collective_methods(
    cluster: Cluster, kind: str, algorithm: str = "auto", *, nccl: str = "auto", in_rounds: bool = False
) -> MethodChooser:
    """Return the chooser of algorithm and protocol for each size of a kind of collective on a cluster.

    The time of a single call includes the part of its launch that nccl-tests measures. InputError for unknown names.
    """
    if kind not in ALGORITHMS:
        raise InputError(f"unknown collective {kind!r}{did_you_mean(kind, ALGORITHMS)}; known: {', '.join(ALGORITHMS)}")
    known = ("auto", *ALGORITHMS[kind])
    if algorithm not in known:
        hint = did_you_mean(algorithm, known)
        raise InputError(f"unknown algorithm {algorithm!r} for {kind}{hint}; known: {', '.join(known)}")
    name = cluster.nccl if nccl == "auto" else nccl
    platform = None if name in (None, "none") else load_platform(name)
    return MethodChooser({kind: algorithm}, platform=platform, launch=True, in_rounds=in_rounds)


def _fetch_link_patterns(
    cluster: Cluster, gpus: Sequence[int], kind: str, method: CollectiveMethod, parts: MessageSizes | None
) -> tuple[LinkPattern, ...]:
    known = _PATTERN_CACHE.setdefault(cluster, {})
    key = (tuple(gpus), kind, method.algorithm, None if parts is None else tuple(map(tuple, parts)))
    if key not in known:
        if len(known) >= _MAX_CACHED:
            known.clear()
        phases = phases_of_method(method, make_group(cluster, gpus), kind, parts)
        at_once = batch_link_usage(cluster, np.array([gpus]), phases) if len(gpus) > _MAX_ROUTED_SINGLY else None
        known[key] = link_patterns(cluster, gpus, phases) if at_once is None else patterns_from_tables(at_once)
    return known[key]


def _add_communication(program: ExplicitProgram, arrivals: Sequence[float], communication: CommunicationKind) -> None:
    program.meetings.append(communication)
    for position, arrival in enumerate(arrivals):
        lane = program.add_lane(len(program.lane_rank))
        program.add_op(lane, arrival)
        program.add_op(lane, rendezvous=len(program.meetings) - 1, position=position)


# --- checks of a request ----------------------------------------------------------------------------------------------


def _parse_collective_size(kind: str, size: float | MessageSizes) -> tuple[float, MessageSizes | None]:
    if isinstance(size, str | bool) or not isinstance(size, Real | Sequence | np.ndarray):
        raise InputError(f"size is {size!r}; it must be a number of bytes, as in 1e6 (or a matrix for all_to_all)")
    if not isinstance(size, Real) and kind != "all_to_all":
        raise InputError(f"only all_to_all takes a matrix of sizes; give {kind} a number of bytes")
    try:
        if isinstance(size, Real):
            return float(size), None
        parts = [[float(each) for each in row] for row in size]
    except (TypeError, ValueError, OverflowError):  # no matrix, no number, an integer of hundreds of digits
        raise InputError(
            f"size is {quote_value(size)}; it must be a number of bytes, as in 1e6, or for all_to_all a matrix, "
            "as in [[0, 1e6], [1e6, 0]]"
        ) from None
    return max((math.fsum(row) for row in parts), default=0.0) or 1.0, parts  # 1: the description refuses empty ones


def _check_collective_request(
    cluster: Cluster, groups: Sequence[Sequence[int]], kind: str, size: float, detail: str, root: int
) -> None:
    if detail not in ("flow", "steps"):
        raise InputError(f"unknown detail {detail!r}{did_you_mean(detail, ('flow', 'steps'))}; known: flow, steps")
    if not (size > 0 and math.isfinite(size)):
        raise InputError(f"size is {size!r}; it must be a positive number of bytes")
    if not groups:
        raise InputError("groups: the list is empty; give at least one group of two or more GPUs")
    have = cluster.num_gpus
    for group in groups:
        if len(group) < 2:
            raise InputError(f"{kind} over {len(group)} GPU{'s' * (len(group) != 1)}: a group needs at least 2 GPUs")
        if kind == "send" and len(group) != 2:
            raise InputError(f"send over {len(group)} GPUs: a send goes from one GPU to another; give 2 GPUs")
        if not 0 <= root < len(group):
            raise InputError(
                f"root is {root}; a group of {len(group)} GPUs has positions 0 to {len(group) - 1}; use one of these"
            )
        twice = [gpu for place, gpu in enumerate(group) if gpu in group[:place]] if len(set(group)) < len(group) else []
        if twice:
            raise InputError(f"GPU {twice[0]} appears twice in a group; each GPU is one rank: list it once")
        outside = [gpu for gpu in group if not 0 <= gpu < have]
        if outside:
            raise InputError(
                f"there is no GPU {outside[0]} in cluster {cluster.name!r}: it has GPUs 0 to {have - 1}; "
                "use fewer GPUs or a larger cluster"
            )


def _parse_arrivals(
    groups: Sequence[Sequence[int]], arrivals: Sequence[Sequence[float]] | None
) -> tuple[tuple[float, ...], ...]:
    if arrivals is None:
        return tuple((0.0,) * len(group) for group in groups)
    if [len(times) for times in arrivals] != [len(group) for group in groups]:
        raise InputError("arrivals: wrong number of times; give the arrival time (s) of each rank of each group")
    wrong = [time for times in arrivals for time in times if not (time >= 0 and math.isfinite(time))]
    if wrong:
        raise InputError(f"arrivals: {wrong[0]!r} is not a valid time; give seconds, at least 0")
    return tuple(tuple(round_to_tick(time) for time in times) for times in arrivals)


def _rotate_to_root(positions: Sequence[Any], root: int) -> list[Any]:
    return [*positions[root:], *positions[:root]]
