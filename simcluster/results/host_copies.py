"""What a run's copies to and from host memory came to: bytes, time hidden and exposed, and what hosts hold.

B of a microbatch is held up for max(0, end of its copy - its other inputs are there) (modelling of activation offload;
exactly what the program waited for, which the breakdown of the step tells from the timeline alone).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simcluster.results.overlap import Pieces
from simcluster.results.timeline import Spans


def copies_of(spans: Spans, weights: Mapping[int, int], direction: str, *, steps: int) -> dict[str, float]:
    """What is offloaded in one direction ("d2h", "h2d"), per step, mean over ranks: bytes, seconds on the wire, and of
    those beside the rank's computation; ``weights[rank]`` is how many ranks a simulated one stands for."""
    found = np.zeros(3)
    for rank, weight in weights.items():
        own = spans.of_rank(rank)
        offloaded = (own.stream == own.code(direction)) & (own.kind == own.code("copy"))  # no checkpoint
        measured = Pieces(own, own.end - own.start).measure(offloaded)
        found += weight * measured[1:4]
    return dict(zip(("bytes", "wire_s", "hidden_s"), (found / (sum(weights.values()) * steps)).tolist(), strict=True))


def activations_in_host(spans: Spans, rank: int) -> float:
    """The most bytes of a simulated rank's activations that its host holds at once: from a copy's begin to the end of
    the copy back."""
    own = spans.of_rank(rank)
    of_microbatch = own.microbatch >= 0
    out = of_microbatch & (own.stream == own.code("d2h"))
    back = of_microbatch & (own.stream == own.code("h2d"))
    time = np.concatenate([own.start[out], own.end[back]])
    change = np.concatenate([own.bytes[out], -own.bytes[back]])
    order = np.lexsort((change, time))
    return float(np.cumsum(change[order]).max(initial=0.0))
