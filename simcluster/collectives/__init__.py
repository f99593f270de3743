"""Collective algorithms as data.  To add one: a function ``(rings) -> tuple[Phase, ...]`` and a line in ALGORITHMS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simcluster.collectives import ring
from simcluster.collectives.description import Hop, Phase, Ring

Algorithm = Callable[[Sequence[Ring]], tuple[Phase, ...]]

# ALGORITHMS[collective][algorithm]
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {"ring": ring.all_reduce},
    "reduce_scatter": {"ring": ring.reduce_scatter},
    "all_gather": {"ring": ring.all_gather},
    "send": {"direct": ring.send},
}

__all__ = ["ALGORITHMS", "Algorithm", "Hop", "Phase", "Ring"]
