"""The estimator for recorded jobs, applied to a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simcluster.interop.recorded import Straggling, measure, recorded
from simcluster.interop.recorded.written import trace_of_result
from simcluster.results.result import Result


class Estimator:
    """Stragglers of a simulated run as the estimator finds them in its trace alone, as in that of a real job."""

    def __init__(self, result: Result, name: str) -> None:
        self._recorded = recorded(trace_of_result(result, name))

    @cached_property
    def straggling(self) -> Straggling:
        """Its slowdown and the parts of it."""
        return measure(self._recorded)

    def share_without(self, workers: Sequence[int]) -> float:
        """Return the part of the run's time that remains if the ops of these workers took what is typical."""
        (without,) = self._recorded.keeping(lambda graph: ~np.isin(graph.worker, workers))
        return float(without.sum() / self.straggling.replayed.sum())
