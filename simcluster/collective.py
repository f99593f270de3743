"""One collective by itself: how long it takes on a cluster where nothing else runs.

The numbers that nccl-tests print, played on the same network and from the same descriptions as a whole training step:
as a *flow* (one activity that starts when the last rank has arrived) or in *steps* (every hop of every round is a
transfer).  Imports collectives, methods, traffic, network, stepwise and
the cluster's report; knows no model and no scenario.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import simpy

from simcluster.clock import on_grid
from simcluster.collectives import ALGORITHMS
from simcluster.complaints import did_you_mean
from simcluster.errors import InputError
from simcluster.methods import Method, Methods, activities, phases_of, round_of
from simcluster.nccl import load_platform
from simcluster.network import Network
from simcluster.stepwise import Stepwise
from simcluster.topology import Cluster
from simcluster.topology.describe import label
from simcluster.traffic import Traffic, group_of, patterns

Detail = Literal["flow", "steps"]

BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "send": lambda ranks: 1.0,
}
"""busbw / algbw by collective and number of ranks (nccl-tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """When each rank of one collective arrived and finished, in seconds, position by position in ``gpus``.

    ``method`` is how it was done: algorithm and, where NCCL's model took part, protocol, pace and why.
    ``size`` is in bytes by nccl-tests' convention: the full buffer (of an all-gather the gathered one, of a
    reduce-scatter a rank's input).
    """

    kind: str
    detail: Detail
    gpus: tuple[int, ...]
    size: float
    arrivals: tuple[float, ...]
    finishes: tuple[float, ...]
    method: Method

    @property
    def algorithm(self) -> str:
        """A key of ALGORITHMS[kind]."""
        return self.method.algorithm

    @property
    def duration(self) -> float:
        """Seconds from the last arrival to the last finish."""
        return max(self.finishes) - max(self.arrivals)

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in B/s: size over duration (infinite for a collective that takes no time)."""
        return self.size / self.duration if self.duration > 0 else math.inf

    @property
    def busbw(self) -> float:
        """Bus bandwidth in B/s: what every rank's port carries if the algorithm is optimal (nccl-tests)."""
        return self.algbw * BUS_FACTOR[self.kind](len(self.gpus))


@dataclass(frozen=True, slots=True)
class Limit:
    """The links that a collective keeps busy longest.

    ``ends`` says what they join ("nic -> leaf"); ``links`` of them carry ``load`` bytes each at ``bandwidth`` B/s,
    which takes ``busy`` seconds.  ``latency`` is what the rounds' latencies add up to, in seconds, mean over the hops.
    """

    ends: str
    medium: str
    bandwidth: float
    links: int
    load: float
    busy: float
    latency: float


def collective_times(
    cluster: Cluster,
    gpus: Sequence[int],
    kind: str,
    size: float,
    *,
    algorithm: str = "auto",
    detail: Detail = "flow",
    arrivals: Sequence[float] | None = None,
    nccl: str = "auto",
) -> CollectiveTime:
    """Play one collective of ``size`` bytes over the GPUs (indices in ``cluster.gpus``) of a group.

    ``kind`` is a key of ALGORITHMS.  ``nccl`` names the platform whose latencies, rates and choices NCCL would have
    there (see ``methods``): "auto" is what the cluster says, "none" leaves all to the links.  ``algorithm`` is one of
    the kind's; "auto" takes what NCCL would pick, without a platform the first.  A ``send`` goes from the first of two
    GPUs to the second.  ``arrivals`` are seconds at which the ranks reach it (default: all at 0), taken to the clock's
    grid.  InputError for an unknown collective, algorithm, detail or platform, a size that is not positive, fewer than
    two ranks, a rank twice, a GPU that the cluster does not have, and arrivals that are not a time from 0 on per rank.
    """
    given = None if arrivals is None else [arrivals]
    return concurrent_times(cluster, [gpus], kind, size, algorithm=algorithm, detail=detail, arrivals=given, nccl=nccl)[
        0
    ]


def concurrent_times(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float,
    *,
    algorithm: str = "auto",
    detail: Detail = "flow",
    arrivals: Sequence[Sequence[float]] | None = None,
    nccl: str = "auto",
) -> tuple[CollectiveTime, ...]:
    """Play the same collective in several groups at once, on one network; otherwise as ``collective_times``."""
    methods = methods_for(cluster, kind, algorithm, nccl=nccl, in_rounds=detail == "steps")
    _check(cluster, groups, kind, size, detail)
    starts = _arrivals(groups, arrivals)
    env = simpy.Environment(0.0)
    network = Network(env, cluster.capacity.tolist())
    finishes = [[math.nan] * len(group) for group in groups]
    done = []
    for gpus, arrived, finished in zip(groups, starts, finishes, strict=True):
        group = group_of(cluster, gpus)
        method = methods.of(group, kind, size)
        phases = phases_of(method, group, kind)
        done.append(method)
        if detail == "steps":
            pace = method.pace and round_of(phases, method.pace)
            play = partial(Stepwise, network, cluster, gpus, phases, size, pace=pace)
            _start_steps(env, play, arrived, finished)
        else:
            _start_flow(env, network, activities(patterns(cluster, gpus, phases), size, method), arrived, finished)
    env.run()
    return tuple(
        CollectiveTime(kind, detail, tuple(gpus), size, arrived, tuple(finished), method)
        for gpus, arrived, finished, method in zip(groups, starts, finishes, done, strict=True)
    )


def limit_of(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float,
    *,
    algorithm: str = "auto",
    nccl: str = "auto",
) -> Limit:
    """The links that the collective keeps busy longest when all groups run it at once; errors as above."""
    load: dict[int, float] = {}
    latency = 0.0
    for traffics in collective_traffics(cluster, groups, kind, size, algorithm=algorithm, nccl=nccl):
        latency = max(latency, sum(traffic.latency_seconds for traffic in traffics))
        for traffic in traffics:
            for link, flows in traffic.usage:
                load[link] = load.get(link, 0.0) + flows * traffic.round_bytes * traffic.rounds
    capacity = cluster.capacity
    worst = max(load, key=lambda link: (load[link] / capacity[link], -link))
    nature = _link_class(cluster, worst)
    equal = [link for link in load if math.isclose(load[link], load[worst], rel_tol=1e-9)]
    alike = sum(1 for link in equal if _link_class(cluster, link) == nature)
    ends, medium, bandwidth = nature
    return Limit(ends, medium, bandwidth, alike, load[worst], load[worst] / bandwidth, latency)


def collective_traffics(
    cluster: Cluster,
    groups: Sequence[Sequence[int]],
    kind: str,
    size: float,
    *,
    algorithm: str = "auto",
    nccl: str = "auto",
) -> list[tuple[Traffic, ...]]:
    """What every group's collective moves, one activity after the other; errors as above."""
    methods = methods_for(cluster, kind, algorithm, nccl=nccl)
    _check(cluster, groups, kind, size, "flow")
    found = []
    for gpus in groups:
        group = group_of(cluster, gpus)
        method = methods.of(group, kind, size)
        found.append(activities(patterns(cluster, gpus, phases_of(method, group, kind)), size, method))
    return found


def num_transfers(
    cluster: Cluster, gpus: Sequence[int], kind: str, size: float, *, algorithm: str = "auto", nccl: str = "auto"
) -> int:
    """How many transfers ``detail="steps"`` would play for one group: what its running time grows with."""
    group = group_of(cluster, gpus)
    method = methods_for(cluster, kind, algorithm, nccl=nccl, in_rounds=True).of(group, kind, size)
    return sum(phase.rounds * len(phase.hops) for phase in phases_of(method, group, kind))


def methods_for(
    cluster: Cluster, kind: str, algorithm: str = "auto", *, nccl: str = "auto", in_rounds: bool = False
) -> Methods:
    """How collectives of this kind are done on the cluster; InputError for unknown words.

    The time of a single call, as nccl-tests measures it: with what of its launch a stopwatch sees.
    """
    if kind not in ALGORITHMS:
        raise InputError(f"unknown collective {kind!r}{did_you_mean(kind, ALGORITHMS)}; known: {', '.join(ALGORITHMS)}")
    known = ("auto", *ALGORITHMS[kind])
    if algorithm not in known:
        hint = did_you_mean(algorithm, known)
        raise InputError(f"unknown algorithm {algorithm!r} for {kind}{hint}; known: {', '.join(known)}")
    name = cluster.nccl if nccl == "auto" else nccl
    platform = None if name in (None, "none") else load_platform(name)
    return Methods({kind: algorithm}, platform=platform, launch=True, in_rounds=in_rounds)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(cluster: Cluster, groups: Sequence[Sequence[int]], kind: str, size: float, detail: str) -> None:
    if detail not in ("flow", "steps"):
        raise InputError(f"unknown detail {detail!r}{did_you_mean(detail, ('flow', 'steps'))}; known: flow, steps")
    if not (size > 0 and math.isfinite(size)):
        raise InputError(f"size is {size!r}; it must be a positive number of bytes")
    if not groups:
        raise InputError("groups: there is none; give at least one group of two or more GPUs")
    have = len(cluster.gpus)
    for group in groups:
        if len(group) < 2:
            raise InputError(f"{kind} over {len(group)} GPU{'s' * (len(group) != 1)}: a group has at least 2")
        if kind == "send" and len(group) != 2:
            raise InputError(f"send over {len(group)} GPUs: a send goes from one GPU to another, so give 2")
        twice = [gpu for place, gpu in enumerate(group) if gpu in group[:place]] if len(set(group)) < len(group) else []
        if twice:
            raise InputError(f"GPU {twice[0]} is twice in a group; a GPU is one rank of a group")
        outside = [gpu for gpu in group if not 0 <= gpu < have]
        if outside:
            raise InputError(
                f"there is no GPU {outside[0]} in cluster {cluster.name!r}: it has {have}, numbered 0 to {have - 1}; "
                "use fewer GPUs or a larger cluster"
            )


def _arrivals(
    groups: Sequence[Sequence[int]], arrivals: Sequence[Sequence[float]] | None
) -> tuple[tuple[float, ...], ...]:
    if arrivals is None:
        return tuple((0.0,) * len(group) for group in groups)
    if [len(times) for times in arrivals] != [len(group) for group in groups]:
        raise InputError("arrivals: give one time in seconds for each rank of each group")
    wrong = [time for times in arrivals for time in times if not (time >= 0 and math.isfinite(time))]
    if wrong:
        raise InputError(f"arrivals: {wrong[0]!r} is not a time; seconds from 0 on are")
    return tuple(tuple(on_grid(time) for time in times) for times in arrivals)


# --- playing ----------------------------------------------------------------------------------------------------------


def _at(env: simpy.Environment, seconds: float, action: Callable[[], object]) -> None:
    def wake(_: simpy.Event) -> None:
        action()

    timer = env.timeout(seconds)
    assert timer.callbacks is not None
    timer.callbacks.append(wake)


def _start_flow(
    env: simpy.Environment,
    network: Network,
    traffics: Sequence[Traffic],
    arrived: Sequence[float],
    finished: list[float],
) -> None:
    """One activity per phase, one after the other, from the last arrival on; all ranks finish together."""

    def play(index: int) -> None:
        if index == len(traffics):
            finished[:] = [env.now] * len(finished)
        else:
            network.start(traffics[index], partial(play, index + 1))

    _at(env, max(arrived), partial(play, 0))


def _start_steps(
    env: simpy.Environment,
    play: Callable[[Callable[[int], object]], Stepwise],
    arrived: Sequence[float],
    finished: list[float],
) -> None:
    """Every hop of every round, each rank from its own arrival on."""

    def done(position: int) -> None:
        finished[position] = env.now

    player = play(done)
    for position, time in enumerate(arrived):
        _at(env, time, partial(player.arrive, position))


def _link_class(cluster: Cluster, link: int) -> tuple[str, str, float]:
    source, target = cluster.links[link]
    edge = cluster.graph[source][target]
    ends = f"{label(cluster.graph, source)} -> {label(cluster.graph, target)}"
    return ends, str(edge["medium"]), float(cluster.capacity[link])
