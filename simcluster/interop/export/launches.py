"""The kernels behind a span of computation: a span is all that a rank launches between two waits.

A profiler records kernels, a simulated timeline stretches of them (``attention``: the products around it, too).  A
span's time is shared out over its kernels as the device's model has them; slow GPUs and interference lengthen all
alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from simcluster.devices.device import kernel_seconds
from simcluster.model.kernels import Kernel, KernelKind
from simcluster.results.result import Result
from simcluster.scenario.job import issue_of, passes_of
from simcluster.scenario.scenario import Scenario

SpanKey = tuple[str, str, int]
"""Kind, name and layer of a span."""
PREFIX = "simcluster::"
"""What the names of simulated kernels begin with in traces."""


class KernelShare(NamedTuple):
    """A kernel of a span: its name, kind, and the part of the span's time that it takes."""

    name: str
    kind: KernelKind
    share: float


def kernel_shares(result: Result) -> Mapping[SpanKey, list[tuple[KernelShare, ...]]]:
    """The kernels of every span of a pass; of one that it has several times (products in pieces), of each of them."""
    scenario, job = result.scenario, result.job
    passes = passes_of(scenario, scenario.cluster.device)
    found: dict[SpanKey, list[tuple[KernelShare, ...]]] = {}
    known: dict[tuple[Kernel, ...], tuple[KernelShare, ...]] = {}
    for stage, row in enumerate(job.schedule.rows):
        for chunk, kind in sorted({(action.chunk, action.kind) for action in row}):
            seen: Counter[SpanKey] = Counter()
            for each in passes.launched(kind, replace(job.whole(stage, chunk), casts=True)):
                key = each.kind, each.name, each.layer
                seen[key] += 1
                if each.kernels not in known:
                    known[each.kernels] = _shares(scenario, each.kernels, result.facts.attention)
                if len(found.setdefault(key, [])) < seen[key]:
                    found[key].append(known[each.kernels])
    return found


def _shares(scenario: Scenario, kernels: Sequence[Kernel], attention: float) -> tuple[KernelShare, ...]:
    """``attention`` is what packed documents leave of an attention kernel."""
    device, gap = scenario.cluster.device, issue_of(scenario).gap
    precision = scenario.training.precision.removesuffix("-mixed")
    times = [
        gap + kernel_seconds(device, one, precision=precision) * (attention if one.kind == "attention" else 1.0)
        for one in kernels
    ]
    whole = sum(times) or 1.0
    return tuple(KernelShare(one.name, one.kind, each / whole) for one, each in zip(kernels, times, strict=True))
