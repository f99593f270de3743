"""Steps of a run of several, one by one: when each ends, and how long they take once the run is in its stride."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.results.timeline import Spans


def step_ends(spans: Spans, steps: int) -> Floats:
    """When the last op of every step ends on any rank, in seconds, [step]."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step(ends: Floats, count: int) -> float:
    """Mean seconds of ``count`` steps behind the first, from end to end; ``ends`` as ``step_ends``."""
    return float(ends[count] - ends[0]) / count
