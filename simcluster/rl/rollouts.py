"""Rollouts: inference engines with continuous batching, simulated from event to event.

Between two events (a sequence ends, or outgrows an attention window) an engine runs the same sequences, and each
decode step reads the same weights and a cache that grows by the same number of tokens: the time of any number of steps
has a closed form. No inference engine is modelled: rates are inputs, or a roofline of decode.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from simcluster.devices.device import Device
from simcluster.model.layers import layer_kinds, parameters
from simcluster.model.transformer import Model
from simcluster.rl.spec import PARAMETER_BYTES, DecodeRates, RlSpec

_CACHE_BYTES = 2.0
"""Bytes per element of the KV cache."""


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Costs of one engine: seconds to read weights for N sequences, per sequence, per cached byte, per prompt token.

    A decode step takes ``fixed_seconds(N)`` + cached bytes x ``byte_seconds``, at least N x ``sequence_seconds``.
    ``cache_bytes`` are bytes per token on each GPU, by the number of tokens that the layers keep (infinity: all).
    ``weight_bytes`` are those on each GPU; ``source`` states where the rates come from.
    """

    fixed_seconds: Callable[[int], float]
    sequence_seconds: float
    byte_seconds: float
    prefill_seconds: float
    cache_bytes: Mapping[float, float]
    weight_bytes: float
    source: str


def engine_cost(spec: RlSpec, model: Model, device: Device) -> EngineCost:
    """Return the costs of an engine: from measured rates if the file has them, otherwise a roofline.

    Experts are read as often as N sequences with even routing visit them. A tied token table is read as LM head.
    """
    gpus, decode = spec.rollout.gpus_per_engine, spec.rollout.decode
    each, count = PARAMETER_BYTES[spec.weights.precision], parameters(model)
    cache, held = _cache_bytes(model, gpus), each * count.total / gpus
    if isinstance(decode, DecodeRates):
        running, rates = (np.array([0.0, *column]) for column in zip(*decode.tokens_per_s, strict=True))
        prefill, source = 1 / decode.prefill_tokens_per_s, "rates from the file"
        return EngineCost(lambda n: n / float(np.interp(n, running, rates)), 0.0, 0.0, prefill, cache, held, source)
    bandwidth = decode.level * device.reached_bandwidth
    tables = count.position_embedding + (0 if model.tied_embeddings else count.token_embedding)
    unvisited = 1 - model.moe.top_k / model.moe.experts if model.moe else 1.0
    routed = (count.total - count.active) / unvisited if model.moe and unvisited else 0.0

    def read_weights(n: int) -> float:
        return each * (count.total - tables - routed * unvisited**n) / gpus / bandwidth

    compute = 2.0 * (count.active - tables) / (gpus * decode.level * device.peak_flops(spec.weights.precision))
    level = f" x {decode.level:g}" if decode.level != 1 else ""
    source = f"roofline of {device.name}{level}, not measured"
    return EngineCost(read_weights, compute, 1 / bandwidth, compute, cache, held, source)


def _cache_bytes(model: Model, gpus: int) -> dict[float, float]:
    """Return the KV cache's bytes per token on each of an engine's GPUs, by the layers' attention window or chunk.

    Heads are split over the GPUs, each has one at least; a latent vector is whole on all.
    """
    found: dict[float, float] = {}
    for layer in range(model.layers):
        own = model.layer_model(layer)
        if not any(kind.SQUARE for kind in layer_kinds(model, layer)):
            continue
        full = own.full_attention_every and (layer + 1) % own.full_attention_every == 0
        window = math.inf if full else min(own.attention_window or math.inf, own.attention_chunk or math.inf)
        width = (own.mla.kv_lora_rank + own.mla.qk_rope_head_dim if own.mla
                 else 2 * own.kv_size / min(gpus, own.kv_heads))  # fmt: skip
        found[window] = found.get(window, 0.0) + _CACHE_BYTES * width
    return found


def list_uncounted_kinds(model: Model) -> list[str]:
    """Return the layer kinds whose cache or state is not counted: those without attention over all pairs of tokens."""
    kinds = (kind for layer in range(model.layers) for kind in layer_kinds(model, layer))
    return sorted({kind.name for kind in kinds if kind.mixes and not kind.SQUARE})


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to generate: its batch, its prompt's number, and tokens of the prompt and the response."""

    batch: int
    prompt: int
    prompt_tokens: int
    tokens: int


@dataclass
class RolloutEngine:
    """One engine: the samples it runs, and its next event.

    ``step`` counts decode steps. ``inbox`` are samples that start at the next step. ``history`` lists (time, running
    sequences) at each change, ``peak_bytes`` is the largest KV cache per GPU.
    """

    cost: EngineCost
    slots: int
    step: int = 0
    running: int = 0
    inbox: list[Sample] = field(default_factory=list)
    history: list[tuple[float, int]] = field(default_factory=list)
    peak_bytes: float = 0.0
    _begin: float = 0.0
    _target: int = 0
    _owed: float = 0.0  # seconds of prompts that are processed before the next step
    _known: set[int] = field(default_factory=set)  # prompts whose cache can be shared
    _events: list[tuple[int, int, float, Sample | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cached: dict[float, float] = dict.fromkeys(self.cost.cache_bytes, 0.0)  # tokens, by window
        self._growing = dict.fromkeys(self.cost.cache_bytes, 0.0)  # sequences whose cache grows
        self._number = 0

    @property
    def room(self) -> int:
        """Number of samples that the engine can still take."""
        return self.slots - self.running - len(self.inbox)

    def start_inbox(self, now: float) -> float:
        """Start the samples of the inbox at a step's boundary; return the time (s) of the next event."""
        for sample in self.inbox:
            self._start(sample)
        self.inbox.clear()
        self.history.append((now, self.running))
        self._begin, self._target = now, self._events[0][0] if self._events else self.step
        return now + self._seconds(self._target - self.step)

    def interrupt(self, now: float) -> float:
        """Move the next event to the first end of a decode step from ``now`` on; return its time (s)."""
        count = bisect_left(range(self._target - self.step), now - self._begin, key=self._seconds)
        self._target = self.step + count
        return self._begin + self._seconds(count)

    def pause(self, now: float, seconds: float) -> None:
        """Delay all that the engine does from ``now`` on by ``seconds``."""
        self.history += [(now, 0), (now + seconds, self.running)]
        self._begin += seconds

    def busy_intervals(self, end: float) -> list[tuple[float, float]]:
        """Return the times, up to ``end``, during which the engine runs sequences."""
        found: list[tuple[float, float]] = []
        times = [time for time, _ in self.history]
        for (begin, running), after in zip(self.history, [*times[1:], end], strict=True):
            until = min(after, end)
            if running and found and found[-1][1] == begin:
                found[-1] = found[-1][0], until
            elif running and begin < until:
                found.append((begin, until))
        return found

    def forget_prompts(self) -> None:
        """Drop the shared cache of prompts, as after an update of the weights."""
        self._known.clear()

    def arrive(self) -> Iterator[Sample]:
        """Advance to the next event; yield the samples that end there."""
        steps, self._owed = self._target - self.step, 0.0
        self.step = self._target
        for window, count in self._growing.items():
            self._cached[window] += steps * count
        held = sum(each * self._cached[window] for window, each in self.cost.cache_bytes.items())
        self.peak_bytes = max(self.peak_bytes, held)
        while self._events and self._events[0][0] == self.step:
            _, _, window, sample = heapq.heappop(self._events)
            if sample is None:
                self._growing[window] -= 1
            else:
                self._finish(sample)
                yield sample

    def _start(self, sample: Sample) -> None:
        if sample.prompt not in self._known:
            self._known.add(sample.prompt)
            self._owed += self.cost.prefill_seconds * sample.prompt_tokens
        self.running += 1
        for window in self._cached:
            self._cached[window] += min(window, sample.prompt_tokens)
            left = window - sample.prompt_tokens
            self._growing[window] += left > 0
            if 0 < left < sample.tokens:
                self._push(self.step + int(left), window, None)
        self._push(self.step + sample.tokens, 0.0, sample)

    def _push(self, step: int, window: float, sample: Sample | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (step, self._number, window, sample))

    def _finish(self, sample: Sample) -> None:
        self.running -= 1
        last = sample.prompt_tokens + sample.tokens
        for window in self._cached:
            self._cached[window] -= min(window, last)
            self._growing[window] -= last <= window

    def _seconds(self, steps: int) -> float:
        """Return the time (s) of the prompts owed and the next ``steps`` decode steps."""
        if not steps:
            return self._owed
        cost = self.cost
        held, growth = (
            cost.byte_seconds * sum(each * tokens[window] for window, each in cost.cache_bytes.items())
            for tokens in (self._cached, self._growing)
        )
        first = cost.fixed_seconds(self.running) + held
        return self._owed + sum_step_times(steps, first, growth, cost.sequence_seconds * self.running)


def sum_step_times(steps: int, first: float, growth: float, least: float) -> float:
    """Return the sum over i < ``steps`` of max(first + i growth, least).

    >>> sum_step_times(4, 1.0, 1.0, 2.5)  # 2.5, 2.5, 3, 4
    12.0
    """
    short = least - first
    few = 0 if short <= 0 else min(steps, math.ceil(short / growth)) if growth else steps
    return few * least + (steps - few) * first + growth * (steps - few) * (few + steps - 1) / 2
