"""Choice of the algorithm for each collective of a group, with the latency and bandwidth that NCCL reaches.

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
from simcluster.collectives.entry import MessageSizes
from simcluster.collectives.nvls import MULTIMEM
from simcluster.collectives.token_relay import RELAYED, ExpertRouting
from simcluster.traffic.nccl.constants import ALGORITHMS as NCCL_ALGORITHMS
from simcluster.traffic.nccl.constants import COLLECTIVES, EXCHANGES, Algorithm, Collective, Exchange
from simcluster.traffic.nccl.exchange import predict_exchange
from simcluster.traffic.nccl.platforms import AS_MEASURED, NcclTimingFactors, Platform
from simcluster.traffic.nccl.predictor import choose
from simcluster.traffic.nccl.tuner_query import Prediction
from simcluster.traffic.traffic import LinkPattern, Traffic

_DESCRIBED: Mapping[tuple[str, str], str] = {("broadcast", "ring"): "chain", ("reduce", "ring"): "chain"}
"""Name in ALGORITHMS where NCCL uses another: its ring broadcast and ring reduce are pipelined chains."""


class NcclTiming(NamedTuple):
    """Latency (s) and bandwidth (B/s, for the call's size) that NCCL's model predicts for one whole call."""

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class CollectiveMethod:
    """Method by which a group runs one collective: algorithm, NCCL protocol, predicted timing, and the reason.

    ``algorithm`` is a key of ALGORITHMS[kind]. Without a ``pace`` the links alone decide how long it takes; of these it
    reaches a part, ``reach``. With ``routes`` it is tokens that are relayed to their experts, or back
    (``collectives.token_relay``), by none of ALGORITHMS.
    """

    algorithm: str
    protocol: str = ""
    pace: NcclTiming | None = None
    why: str = ""
    routes: ExpertRouting | None = None
    reach: float = 1.0


@dataclass(frozen=True)
class MethodChooser:
    """Chooser of a method for every collective of a job, from named algorithms or NCCL's tuner.

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
    factors: NcclTimingFactors = AS_MEASURED
    routes: ExpertRouting | None = None
    reach: float = 1.0
    _known: dict[tuple[str, float, Hashable], CollectiveMethod] = field(default_factory=dict, repr=False, compare=False)
    _able: dict[tuple[str, str, Hashable], bool] = field(default_factory=dict, repr=False, compare=False)

    def choose_method(self, group: Group, kind: str, size: float) -> CollectiveMethod:
        """Return the method for a collective of this kind and size (as nccl-tests counts it) on a group.

        InputError where NCCL cannot run it: a group that does not fit the platform, an algorithm that refuses.
        """
        if kind in RELAYED:
            return CollectiveMethod("relayed", routes=self.routes, reach=self.reach)
        wanted = self.named.get(kind, "auto")
        platform = None if group.spans_sites else self.platform  # NCCL's figures are of one site's network
        if platform is not None and kind in EXCHANGES and wanted in ("auto", next(iter(ALGORITHMS[kind]))):
            return self._exchange_method(platform, group, kind, size)
        if platform is None or kind not in COLLECTIVES:
            name = next(iter(ALGORITHMS[kind])) if wanted == "auto" else wanted
            return CollectiveMethod(name, reach=MULTIMEM if name == "nvls" else 1.0)
        form = group.layout_key
        if (kind, size, form) not in self._known:
            self._known[kind, size, form] = self._choose_nccl_method(platform, group, kind, size, wanted)
        return self._known[kind, size, form]

    def _exchange_method(self, platform: Platform, group: Group, kind: Exchange, size: float) -> CollectiveMethod:
        """Return the method of an all-to-all or send, without NCCL's timing if no bytes are moved."""
        name, form = next(iter(ALGORITHMS[kind])), group.layout_key
        if (kind, size, form) not in self._known:
            nodes, each = nccl_group_shape(group)
            found = CollectiveMethod(name)
            if size > 0 and (nodes == 1 or platform.several):
                alone = predict_exchange(kind, nodes=nodes, gpus_per_node=each, size=size, platform=platform)
                found = CollectiveMethod(name, alone.protocol, self._predicted_timing(alone, nodes))
            self._known[kind, size, form] = found
        return self._known[kind, size, form]

    def _predicted_timing(self, found: Prediction, nodes: int) -> NcclTiming:
        latency = found.latency - (0.0 if self.launch else found.issue)
        rate = self.factors.between if nodes > 1 else self.factors.in_node
        return NcclTiming(latency * self.factors.latency, found.bandwidth * rate)

    def _choose_nccl_method(
        self, platform: Platform, group: Group, kind: str, size: float, wanted: str
    ) -> CollectiveMethod:
        pairs = [(name, _simulated_algorithm(kind, name)) for name in NCCL_ALGORITHMS]
        names = [name for name, own in pairs if wanted in ("auto", own) and self._can_run(group, kind, own)]
        if not names and wanted != "auto":
            return CollectiveMethod(wanted)  # nothing of NCCL's: the links alone
        if not names:
            others = [name for name in ALGORITHMS[kind] if self._can_run(group, kind, name)]
            raise InputError(
                f"NCCL runs {kind} as a pipeline, but detail: steps simulates only algorithms with rounds: use "
                f"detail: flow, or an algorithm with rounds: {', '.join(others)}"
            )
        nodes, each = nccl_group_shape(group)
        call: Collective = kind  # type: ignore[assignment]  # checked by ``choose_method``
        choice = choose(call, nodes=nodes, gpus_per_node=each, size=size, platform=platform, algorithms=names)
        found = choice.prediction
        described = _simulated_algorithm(kind, choice.algorithm)
        return CollectiveMethod(described, found.protocol, self._predicted_timing(found, nodes), choice.reason)

    def _can_run(self, group: Group, kind: str, name: str) -> bool:
        """Return whether the algorithm ``name`` exists and supports this group."""
        entry = ALGORITHMS[kind].get(name)
        if entry is None or entry.requires(group):
            return False
        if not self.in_rounds:
            return True
        asked = (kind, name, group.layout_key)
        if asked not in self._able:
            self._able[asked] = not any(phase.pipelined for phase in entry(group))
        return self._able[asked]

    @cached_property
    def cache_key(self) -> tuple[object, ...]:
        """Hashable key, equal for two choosers that always choose equal methods."""
        return (*sorted(self.named.items()), self.platform, self.launch, self.in_rounds, self.factors,
                self.routes, self.reach)  # fmt: skip


def make_traffics(parts: Sequence[LinkPattern], size: float, method: CollectiveMethod) -> tuple[Traffic, ...]:
    """Return the traffic of a collective of ``size`` bytes, from its link patterns and its method's timing.

    NCCL's latency is paid evenly over the rounds. Its bandwidth bounds every flow such that all of them, on links that
    are fast enough, take size / bandwidth.
    """
    if method.pace is None or not parts:
        return tuple(part.make_traffic(size / method.reach) for part in parts)
    each = _timing_of_one_round([(part.rounds, part.share) for part in parts], method.pace)
    return tuple(Traffic(part.usage, part.share * size, part.rounds, each.latency, each.bandwidth) for part in parts)


def hop_round_timing(phases: Sequence[Phase], pace: NcclTiming) -> NcclTiming:
    """Return the latency (s) and highest rate (B/s) of one hop in one round, for hop-by-hop simulation."""
    return _timing_of_one_round([(one.rounds, max(hop.share for hop in one.hops)) for one in phases if one.hops], pace)


def _timing_of_one_round(rounds: Sequence[tuple[int, float]], pace: NcclTiming) -> NcclTiming:
    """Return the timing of one round; ``rounds`` lists (number of rounds, fraction of the size per flow and round)."""
    return NcclTiming(
        pace.latency / sum(count for count, _ in rounds), pace.bandwidth * sum(count * share for count, share in rounds)
    )


def phases_of_method(
    method: CollectiveMethod, group: Group, kind: str, parts: MessageSizes | None = None
) -> Sequence[Phase]:
    """Return the phases of a collective that uses this method; ``parts`` are uneven all-to-all message sizes."""
    if method.routes:
        return RELAYED[kind](group, method.routes)
    return ALGORITHMS[kind][method.algorithm](group, parts)


def nccl_group_shape(group: Group) -> tuple[int, int]:
    """Return a group's number of nodes and GPUs per node as NCCL counts them (each NVSwitch is a node).

    Of unequal nodes the mean, rounded up.
    """
    lost, switches = group.ranks_per_nvswitch
    nodes = len(group.ranks_per_node) if lost else len(switches)
    return nodes, -(-group.num_ranks // nodes)


def _simulated_algorithm(kind: str, name: Algorithm) -> str:
    return _DESCRIBED.get((kind, name), name)
