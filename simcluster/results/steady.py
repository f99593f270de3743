"""Steps of a run of several, one by one: when each ends, and how long they take once the run is in its stride.

Imports numpy and the columns of a timeline.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcluster.results.timeline import Spans

Floats: TypeAlias = npt.NDArray[np.float64]


def step_ends(spans: Spans, steps: int) -> Floats:
    """When the last op of every step ends on any rank, in seconds, [step]."""
    found = np.full(steps, -np.inf)
    np.maximum.at(found, spans.step, spans.end)
    return found


def mean_step(ends: Floats, count: int) -> float:
    """Mean seconds of ``count`` steps behind the first, from end to end; ``ends`` as ``step_ends``."""
    return float(ends[count] - ends[0]) / count
