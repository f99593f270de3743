"""Quick choice of a first parallel layout for a new job: the fastest of a few layouts that fit in memory.

A rough cost orders the layouts; the memory of the best is counted as a run counts it, and the first few that fit are
simulated. ``studies/search`` finds the best of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import divisors
from simcluster.model.layers import parameters
from simcluster.scenario.memory_plan import HEADROOM, usable_bytes
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario

_WIDEST = 16  # tensor parallelism to try, inside a node
_MOST_TRIALS = 400
_SIMULATED = 5  # layouts that fit to simulate; the fastest is taken
_ROUNDS = 4
_TOKENS = 4 * 2**20  # per step, as in Llama 2 (arXiv:2307.09288 section 2.2: 4M)
_TOKENS_OF_MIXTURE = 15_360 * 4_096 // 2_048  # per GPU: DeepSeek-V3's step (arXiv:2412.19437 section 4.2)
_RECOMPUTE = {"none": 0.0, "full": 0.33}
_HIDDEN, _EXPOSED = 0.05, 0.5  # cost of ZeRO 3 where its gathers overlap with computation, and where not
_BYTES_PER_SECOND = 48e9  # of a GPU on a 400 Gbit/s port, to decide that
_REACHED = 0.45  # of peak FLOP/s
_BY_TP, _APART = 0.03, 0.1  # for each doubling: of tp in a node, and of experts over several
_BY_TP_OF_EXPERTS = 0.06  # for each expert of a token, whose copies tp ranks gather; and tp cuts narrow matmuls
_BY_EP = -0.05  # ep gives an expert more tokens


class FirstLayout(NamedTuple):
    """Parallel layout and batch of a new job, as scenario ``values`` by key path, and the fullest GPU's peak bytes."""

    values: Mapping[str, Any]
    peak_bytes: float


class _LayoutCandidate(NamedTuple):
    cost: float
    tp: int
    pp: int
    ep: int
    zero: int
    recompute: str
    batch: int


def default_global_batch(base: Scenario) -> int:
    """Return the default global batch (sequences) for a model on all GPUs of a scenario."""
    tokens = max(_TOKENS, _TOKENS_OF_MIXTURE * base.gpus) if base.model.moe else _TOKENS
    return max(1, tokens // base.model.sequence_length)


def first_layout(base: Scenario, batch: int | None = None, *, headroom: float = HEADROOM) -> FirstLayout:
    """Return a layout that fits in memory for a scenario without one; ``batch`` is the global batch in sequences.

    Without a batch it is the ``default_global_batch``, rounded up to what the layout needs. InputError, with the
    closest layout, where none fits.
    """
    fitting, closest = _layouts_that_fit(base, batch, headroom)
    if fitting:
        best = min(fitting, key=_seconds_per_sequence)
        return FirstLayout(_layout_values(best), peak_memory_bytes(best))
    what = f"{base.model.name or 'the model'} on {base.gpus} GPUs"
    if closest == math.inf:
        raise InputError(
            f"{what}: no layout is compatible with a batch of {batch or default_global_batch(base)} sequences; give "
            f"another batch, as in --batch {base.gpus}"
        )
    raise InputError(
        f"{what}: no layout fits with {headroom:.0%} of memory left free; the closest uses {closest / 1e9:.1f} GB of "
        f"{base.cluster.device.memory / 1e9:.1f} GB: use more GPUs, larger ones, or a smaller model"
    )


def _layouts_that_fit(base: Scenario, batch: int | None, headroom: float) -> tuple[list[Scenario], float]:
    room = usable_bytes(base.cluster.device.memory, headroom)
    closest = math.inf
    found: dict[tuple[int, ...], Scenario] = {}
    for each in sorted(_list_candidates(base, batch))[:_MOST_TRIALS]:
        sizes = each.tp, each.pp, each.ep, each.zero
        changed = None if sizes in found else _apply_layout(base, each)
        if changed is None:
            continue
        size = peak_memory_bytes(_limit_microbatches(changed))
        if size > room:
            closest = min(closest, size)
            continue
        found[sizes] = changed
        if len(found) == _SIMULATED:
            break
    return list(found.values()), closest


def _seconds_per_sequence(scenario: Scenario) -> float:
    few, more = (_limit_microbatches(scenario, rounds) for rounds in (1, 2))
    try:
        step = simulate_scenario(more).step_time
        each, rest = (
            one.training.global_batch - two.training.global_batch for one, two in ((more, few), (scenario, more))
        )
        if rest:
            step += (step - simulate_scenario(few).step_time) / each * rest
    except InputError:
        return math.inf
    return step / scenario.training.global_batch


def _list_candidates(base: Scenario, asked: int | None) -> Iterator[_LayoutCandidate]:
    model, gpus, batch = base.model, base.gpus, asked or default_global_batch(base)
    hosts = base.cluster.built.host_of[:gpus]
    machine = hosts.count(hosts[0])
    experts = divisors(model.moe.experts) if model.moe else [1]
    by_tp = _BY_TP_OF_EXPERTS * model.moe.top_k if model.moe else _BY_TP
    costs = {1: 0.0, 3: _HIDDEN if _can_hide_gathers(base) else _EXPOSED}
    for tp in (each for each in divisors(machine) if each <= _WIDEST and gpus % each == 0):
        for pp in (each for each in divisors(gpus // tp) if each <= model.layers):
            dp = gpus // tp // pp
            sequences = asked or -(-batch // dp) * dp
            if sequences % dp:
                continue
            bubble = (pp - 1) / (sequences // dp)
            for ep in (each for each in experts if dp % each == 0):
                apart = max(0.0, math.log2(ep * tp / machine)) if ep > 1 else 0.0
                inside = math.log2(ep) - apart
                spread = by_tp * math.log2(tp) + _BY_EP * inside + _APART * apart + bubble
                spread += sequences / batch - 1  # a batch larger than requested trains less per token
                for zero, of_zero in costs.items():
                    for recompute, again in _RECOMPUTE.items():
                        if zero == 1 or (pp == 1 and dp > 1):
                            yield _LayoutCandidate(spread + of_zero + again, tp, pp, ep, zero, recompute, sequences)


def _can_hide_gathers(base: Scenario) -> bool:
    model, peak = base.model, base.cluster.device.peak
    count = parameters(model)
    visited = 3 * count.active * model.sequence_length / (_REACHED * (peak.bf16 or peak.fp16 or 1e14))
    return visited >= 2 * count.total / _BYTES_PER_SECOND


def _apply_layout(base: Scenario, tried: _LayoutCandidate) -> Scenario | None:
    dp = base.gpus // tried.tp // tried.pp
    parallel = base.parallel.model_copy(
        update={"tp": tried.tp, "pp": tried.pp, "dp": dp, "ep": tried.ep, "sequence_parallel": tried.tp > 1,
                "zero": tried.zero if dp > 1 else 0}
    )  # fmt: skip
    even = base.model.layers % tried.pp == 0
    pipeline = base.pipeline.model_copy(update={"layers_per_stage": "even" if even else "auto"})
    training = base.training.model_copy(update={"global_batch": tried.batch, "recompute": tried.recompute})
    overlaps = {"grad_reduce": dp > 1, "param_gather": dp > 1, "tensor": tried.tp > 1, "experts": tried.ep > 1}
    overlap = base.overlap.model_copy(update=overlaps)
    sections = {"parallel": parallel, "pipeline": pipeline, "training": training, "overlap": overlap}
    changed = base.model_copy(update=sections)
    try:
        return None if find_broken_rules(changed) else changed
    except InputError:
        return None


def _limit_microbatches(scenario: Scenario, rounds: int = _ROUNDS) -> Scenario:
    enough = rounds * scenario.parallel.pp * scenario.dp * scenario.training.micro_batch
    batch = min(scenario.training.global_batch, enough)
    return scenario.model_copy(update={"training": scenario.training.model_copy(update={"global_batch": batch})})


def _layout_values(scenario: Scenario) -> dict[str, Any]:
    paths = (
        "parallel.tp", "parallel.pp", "parallel.dp", "parallel.ep", "parallel.sequence_parallel", "parallel.zero",
        "pipeline.schedule", "pipeline.layers_per_stage", "training.global_batch", "training.micro_batch",
        "training.precision", "training.recompute", "overlap.grad_reduce", "overlap.param_gather", "overlap.tensor",
        "overlap.experts",
    )  # fmt: skip
    found = {path: getattr(getattr(scenario, path.partition(".")[0]), path.partition(".")[2]) for path in paths}
    alone = ("parallel.ep", 1), ("pipeline.layers_per_stage", "even"), ("overlap.experts", False)
    return {path: value for path, value in found.items() if (path, value) not in alone}
