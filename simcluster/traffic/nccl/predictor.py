"""Predictor of NCCL's algorithm, protocol and time: its tuner's estimate with fitted corrections.

Two models. ``"tuner"`` is NCCL's own optimistic estimate; NCCL chooses by it, so ``choose`` always does.
``"effective"`` is what a stopwatch shows, at most four fitted numbers a platform (``Platform.effective``) on top:

    seconds = launch + start x channels + latency + size / (achieved x bandwidth) + filling + loop x loops

``launch``: the host issues the call; ``start``: a channel starts, in one node. Latency and bandwidth are those of the
newest tables, whichever version chose: they are NVIDIA's newest measurements. ``filling`` is what the pipeline of
chunks takes to fill, fitted for rings and derived for trees and NVLink SHARP; ``loops`` are those that NVLink SHARP
makes beyond those of its largest chunk (``traffic.nccl.tuner``). NVLink SHARP on few GPUs keeps the wire rate of eight,
S (1 + 1/n) bytes a port (NVIDIA/nccl issue 1455: 370, 420, 440, 460, 480 GB/s busbw on 4 .. 8 H100 are one wire rate,
309 GB/s). A ring between nodes runs at the rate of its wires, which the tuner rounds down to its list of speeds
(``ChannelGraph.wire``).

Both split into a latency that nothing else on the links changes and the rate of the transfer at that size, so the flow
network can take the first as a delay, the second as a bound on every flow, and add contention and slow links. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

from simcluster.base.errors import InputError
from simcluster.traffic.nccl.constants import ALGORITHMS, COLLECTIVES, PROTOCOLS, Algorithm, Collective, Protocol
from simcluster.traffic.nccl.platforms import Platform
from simcluster.traffic.nccl.tuner import (
    count_engaged_channels,
    count_extra_loops,
    pipeline_fill_seconds,
    tuner_bandwidth,
    tuner_prediction,
)
from simcluster.traffic.nccl.tuner_query import (
    Prediction,
    TunerQuery,
    check_group,
    check_known_word,
    check_size,
    explain_ll128_unavailable,
    explain_unavailable,
)

Model = Literal["tuner", "effective"]
MODELS: tuple[Model, ...] = ("tuner", "effective")

_NVLS_MEASURED = 8
"""Number of GPUs on the NVSwitch whose NVLink SHARP rate was measured (also with fewer GPUs)."""

Word = TypeVar("Word", bound=str)


def predict(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    *,
    nodes: int,
    gpus_per_node: int,
    size: float,
    platform: Platform,
    model: Model = "tuner",
) -> Prediction:
    """Predict the time of one collective of ``size`` bytes (as nccl-tests counts) for this algorithm and protocol.

    Raises InputError for an unknown word, a size or group that cannot be, and for an algorithm that NCCL does not run
    there (NVLS without such switches, a tree that should broadcast).
    """
    check_known_word("model", model, MODELS)
    case = TunerQuery(collective, algorithm, protocol, nodes, gpus_per_node, platform)
    estimate = tuner_prediction(case, size)
    return estimate if model == "tuner" else _predict_effective(case, size)


def _predict_effective(asked: TunerQuery, size: float) -> Prediction:
    """Predict the measurable time: the tuner's estimate with the platform's fitted corrections."""
    case = replace(asked, platform=asked.platform.with_newest_tables)
    estimate = tuner_prediction(case, size)
    fitted, graph = case.platform.effective, case.channel_graph
    rate = fitted.achieved * (_nvls_bandwidth(case) if case.algorithm == "nvls" else estimate.bandwidth)
    if graph.wire and case.nodes > 1 and case.algorithm == "ring" and case.protocol == "Simple":
        rate *= graph.wire / graph.inter
    if case.algorithm == "nvls_tree":  # sum and copies cross the NICs, all but the node's own part: 2 (m - 1) / m S
        rate = min(rate, graph.channels * graph.inter * case.nodes / (2 * (case.nodes - 1)))
    fill = pipeline_fill_seconds(case, size, rate) + fitted.loop * count_extra_loops(case, size)
    issue, start = fitted.launch, fitted.start * count_engaged_channels(case, size) if case.nodes == 1 else 0.0
    return replace(
        estimate, latency=issue + start + estimate.latency, bandwidth=1.0 / (1.0 / rate + fill / size), issue=issue
    )


def _nvls_bandwidth(case: TunerQuery) -> float:
    """Return the NVLS bandwidth (B/s), derived for few GPUs from the measured wire rate of eight GPUs."""
    if case.nodes > 1 or case.collective != "all_reduce":
        return tuner_bandwidth(case)
    eight = replace(case, gpus_per_node=min(_NVLS_MEASURED, case.platform.gpus_per_node))
    return min(tuner_bandwidth(case), tuner_bandwidth(eight) * (1 + 1 / eight.ranks) / (1 + 1 / case.ranks))


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and protocol that NCCL would pick for one call, with the other candidates and their times.

    ``prediction`` is in the requested model; ``candidates`` are the tuner's estimates, fastest first; ``excluded``
    states why the others do not run: algorithm, protocol, reason.
    """

    prediction: Prediction
    candidates: tuple[Prediction, ...]
    excluded: tuple[tuple[Algorithm, Protocol, str], ...]

    @property
    def algorithm(self) -> Algorithm:
        """Chosen algorithm: ring, tree, nvls, ..."""
        return cast(Algorithm, self.prediction.algorithm)  # "direct" is no choice of the tuner

    @property
    def protocol(self) -> Protocol:
        """Chosen protocol: LL, LL128 or Simple."""
        return self.prediction.protocol

    @property
    def reason(self) -> str:
        """Reason for the choice, as one sentence."""
        best, *others = self.candidates
        text = f"{best.algorithm} {best.protocol}: the shortest by NCCL's tuner, {best.seconds * 1e6:.1f} us"
        if not others:
            return f"{text}, and the only one enabled"
        next_best = others[0]
        return f"{text}; next {next_best.algorithm} {next_best.protocol}, {next_best.seconds * 1e6:.1f} us"


def choose(
    collective: Collective,
    *,
    nodes: int,
    gpus_per_node: int,
    size: float,
    platform: Platform,
    algorithms: Collection[Algorithm] | None = None,
    protocols: Collection[Protocol] | None = None,
    model: Model = "effective",
) -> Choice:
    """Return NCCL's algorithm and protocol for a call of ``size`` bytes: those with the lowest time by its tuner.

    ``algorithms`` and ``protocols`` narrow the choice as NCCL_ALGO and NCCL_PROTO do; naming LL128 enables it also
    where NCCL would not use it otherwise. Equal times go to the first in the order of ``ALGORITHMS``, ``PROTOCOLS``.

    Raises InputError for an unknown word, a size or group that cannot be, and if nothing is left to choose from.
    """
    check_known_word("model", model, MODELS)
    check_known_word("collective", collective, COLLECTIVES)
    check_group(nodes, gpus_per_node, platform)
    check_size(size)
    cases: list[tuple[Prediction, TunerQuery]] = []
    excluded: list[tuple[Algorithm, Protocol, str]] = []
    for algorithm in _narrow_choices("algorithm", algorithms, ALGORITHMS):
        for protocol in _narrow_choices("protocol", protocols, PROTOCOLS):
            case = TunerQuery(collective, algorithm, protocol, nodes, gpus_per_node, platform)
            why = explain_unavailable(case) or (explain_ll128_unavailable(case) if protocols is None else "")
            if why:
                excluded.append((algorithm, protocol, why))
            else:
                cases.append((tuner_prediction(case, size), case))
    if not cases:
        reasons = "; ".join(dict.fromkeys(f"{algorithm}: {why}" for algorithm, _, why in excluded))
        raise InputError(f"NCCL has no enabled algorithm for {collective} on {platform.name}; enable one: {reasons}")
    cases.sort(key=lambda pair: pair[0].seconds)
    best, case = cases[0]
    return Choice(
        prediction=best if model == "tuner" else _predict_effective(case, size),
        candidates=tuple(estimate for estimate, _ in cases),
        excluded=tuple(excluded),
    )


def _narrow_choices(what: str, wanted: Collection[Word] | None, known: tuple[Word, ...]) -> tuple[Word, ...]:
    if wanted is None:
        return known
    for word in wanted:
        check_known_word(what, word, known)
    if not wanted:
        raise InputError(f"the list of {what}s is empty; name at least one, or omit the list: {', '.join(known)}")
    return tuple(word for word in known if word in wanted)
