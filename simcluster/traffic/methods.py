"""How each group runs its collectives: the algorithm and, where NCCL's platform is known, its pace.

Two models compose here. NCCL's defines what the library itself makes of a call: its choice of algorithm and protocol by
size, its latency, and the rate at which its channels feed the links (``traffic.nccl``). The flow network defines what
the links leave of that rate: other traffic, a slow cable, several rings on one NIC. So a collective's activities pay
NCCL's latency instead of that of the links, and NCCL's rate is the most that their flows reach. With all links healthy
and free a collective takes exactly NCCL's time, unless the topology's links are slower than NCCL counts them.

Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS, Group, Phase
from simcluster.collectives.entry import Parts
from simcluster.collectives.nvls import MULTIMEM
from simcluster.collectives.relayed import RELAYED, TokenRoutes
from simcluster.traffic.nccl.case import Prediction
from simcluster.traffic.nccl.constants import ALGORITHMS as NCCL_ALGORITHMS
from simcluster.traffic.nccl.constants import COLLECTIVES, EXCHANGES, Algorithm, Collective, Exchange
from simcluster.traffic.nccl.exchange import exchange
from simcluster.traffic.nccl.platforms import AS_MEASURED, PaceFactors, Platform
from simcluster.traffic.nccl.predictor import choose
from simcluster.traffic.traffic import Pattern, Traffic

_DESCRIBED: Mapping[tuple[str, str], str] = {("broadcast", "ring"): "chain", ("reduce", "ring"): "chain"}
"""What NCCL calls otherwise than ALGORITHMS does: its ring of a broadcast passes pieces along a chain."""


class Pace(NamedTuple):
    """NCCL's pace of one call: latency (s) and bandwidth (B/s of the call's size), both over all rounds."""

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Method:
    """How one group runs one collective: algorithm, NCCL protocol, pace, and the reason for the choice.

    ``algorithm`` is a key of ALGORITHMS[kind]. Without a ``pace`` the links alone decide how long it takes; of these it
    reaches a part, ``reach``. With ``routes`` it is tokens that are relayed to their experts, or back
    (``collectives.relayed``), by none of ALGORITHMS.
    """

    algorithm: str
    protocol: str = ""
    pace: Pace | None = None
    why: str = ""
    routes: TokenRoutes | None = None
    reach: float = 1.0


@dataclass(frozen=True)
class Methods:
    """Choice of a method for every collective of a job: algorithms, NCCL platform, and modelling options.

    ``named[kind]`` is an algorithm, or "auto": what NCCL would pick on ``platform``, and without a platform the first
    in ALGORITHMS. An algorithm that NCCL has runs at NCCL's pace if there is a platform. ``launch``: count what a
    stopwatch around a single call sees of its launch; kernels of a training step are launched ahead of time.
    ``in_rounds``: exclude pipelines, which have no rounds to simulate step by step. ``factors`` are on NCCL's pace,
    after its choice. ``routes`` are what tokens that are relayed to experts take, at ``reach`` of the links' rates. A
    group on several sites has no pace of NCCL's.
    """

    named: Mapping[str, str]
    platform: Platform | None = None
    launch: bool = False
    in_rounds: bool = False
    factors: PaceFactors = AS_MEASURED
    routes: TokenRoutes | None = None
    reach: float = 1.0
    _known: dict[tuple[str, float, Hashable], Method] = field(default_factory=dict, repr=False, compare=False)
    _able: dict[tuple[str, str, Hashable], bool] = field(default_factory=dict, repr=False, compare=False)

    def of(self, group: Group, kind: str, size: float) -> Method:
        """Return the method of a group's collective of this kind and size (nccl-tests' convention).

        InputError where NCCL cannot run it: a group that does not fit the platform, an algorithm that refuses.
        """
        if kind in RELAYED:
            return Method("relayed", routes=self.routes, reach=self.reach)
        wanted = self.named.get(kind, "auto")
        platform = None if group.far else self.platform  # NCCL's figures are of one site's network
        if platform is not None and kind in EXCHANGES and wanted in ("auto", next(iter(ALGORITHMS[kind]))):
            return self._exchange_method(platform, group, kind, size)
        if platform is None or kind not in COLLECTIVES:
            name = next(iter(ALGORITHMS[kind])) if wanted == "auto" else wanted
            return Method(name, reach=MULTIMEM if name == "nvls" else 1.0)
        form = group.form
        if (kind, size, form) not in self._known:
            self._known[kind, size, form] = self._choose_method(platform, group, kind, size, wanted)
        return self._known[kind, size, form]

    def _exchange_method(self, platform: Platform, group: Group, kind: Exchange, size: float) -> Method:
        """Return the method of grouped sends and receives in one kernel; without NCCL's pace if nothing moves."""
        name, form = next(iter(ALGORITHMS[kind])), group.form
        if (kind, size, form) not in self._known:
            nodes, each = nccl_shape(group)
            found = Method(name)
            if size > 0 and (nodes == 1 or platform.several):
                alone = exchange(kind, nodes=nodes, gpus_per_node=each, size=size, platform=platform)
                found = Method(name, alone.protocol, self._pace_of_prediction(alone, nodes))
            self._known[kind, size, form] = found
        return self._known[kind, size, form]

    def _pace_of_prediction(self, found: Prediction, nodes: int) -> Pace:
        latency = found.latency - (0.0 if self.launch else found.issue)
        rate = self.factors.between if nodes > 1 else self.factors.in_node
        return Pace(latency * self.factors.latency, found.bandwidth * rate)

    def _choose_method(self, platform: Platform, group: Group, kind: str, size: float, wanted: str) -> Method:
        names = [
            name
            for name in NCCL_ALGORITHMS
            if wanted in ("auto", _algorithm_text(kind, name)) and self._can(group, kind, _algorithm_text(kind, name))
        ]
        if not names and wanted != "auto":
            return Method(wanted)  # nothing of NCCL's: the links alone
        if not names:
            others = [name for name in ALGORITHMS[kind] if self._can(group, kind, name)]
            raise InputError(
                f"NCCL runs {kind} as a pipeline, and detail: steps simulates algorithms that go round by round: use "
                f"detail: flow, or name an algorithm in rounds: {', '.join(others)}"
            )
        nodes, each = nccl_shape(group)
        call: Collective = kind  # type: ignore[assignment]  # checked by ``of``
        choice = choose(call, nodes=nodes, gpus_per_node=each, size=size, platform=platform, algorithms=names)
        found = choice.prediction
        described = _algorithm_text(kind, choice.algorithm)
        return Method(described, found.protocol, self._pace_of_prediction(found, nodes), choice.why)

    def _can(self, group: Group, kind: str, name: str) -> bool:
        """Return whether an algorithm is described, and can serve this group."""
        entry = ALGORITHMS[kind].get(name)
        if entry is None or entry.requires(group):
            return False
        if not self.in_rounds:
            return True
        asked = (kind, name, group.form)
        if asked not in self._able:
            self._able[asked] = not any(phase.pipelined for phase in entry(group))
        return self._able[asked]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for two objects that choose equal methods for all calls."""
        return (*sorted(self.named.items()), self.platform, self.launch, self.in_rounds, self.factors,
                self.routes, self.reach)  # fmt: skip


def make_activities(parts: Sequence[Pattern], size: float, method: Method) -> tuple[Traffic, ...]:
    """Return the activities of a collective of ``size`` bytes with these patterns, at the method's pace.

    NCCL's latency is paid evenly over the rounds. Its bandwidth bounds every flow such that all of them, on links that
    are fast enough, take size / bandwidth.
    """
    if method.pace is None or not parts:
        return tuple(part.traffic(size / method.reach) for part in parts)
    each = _round_pace([(part.rounds, part.share) for part in parts], method.pace)
    return tuple(Traffic(part.usage, part.share * size, part.rounds, each.latency, each.bandwidth) for part in parts)


def round_pace(phases: Sequence[Phase], pace: Pace) -> Pace:
    """Return a hop's latency (s) and highest rate (B/s) in one round at this pace, for simulation hop by hop."""
    return _round_pace([(phase.rounds, max(hop.share for hop in phase.hops)) for phase in phases if phase.hops], pace)


def _round_pace(rounds: Sequence[tuple[int, float]], pace: Pace) -> Pace:
    """Return the pace of one round; ``rounds`` lists (count, fraction of the size that a flow carries in each)."""
    return Pace(
        pace.latency / sum(count for count, _ in rounds),
        pace.bandwidth * sum(count * share for count, share in rounds),
    )


def phases_of(method: Method, group: Group, kind: str, parts: Parts | None = None) -> Sequence[Phase]:
    """Return the phases of a collective by this method; ``parts`` are the message sizes of an uneven all-to-all."""
    if method.routes:
        return RELAYED[kind](group, method.routes)
    return ALGORITHMS[kind][method.algorithm](group, parts)


def nccl_shape(group: Group) -> tuple[int, int]:
    """Return the number of nodes of a group and its GPUs on each as NCCL counts them (an NVSwitch is a node).

    Of unequal nodes the mean, rounded up.
    """
    lost, switches = group.on_switches
    nodes = len(group.sizes) if lost else len(switches)
    return nodes, -(-group.num_ranks // nodes)


def _algorithm_text(kind: str, name: Algorithm) -> str:
    return _DESCRIBED.get((kind, name), name)
