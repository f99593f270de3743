"""Accelerator: ranks whose spans are equal to the bit, one of which is measured for all.

Ranks that were simulated apart often take the same times in the end: of 512 of Llama 3 405B 16 differ.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from simcluster.results.timeline import COLUMNS, Spans

_MANY = 16
"""Ranks from which on equal ones are looked for."""
_COMPARED = [name for name in COLUMNS if name not in ("rank", "group")]


def equal_ranks(spans: Spans, ranks: Collection[int], more: Sequence[npt.NDArray[Any]] = ()) -> dict[int, int]:
    """Return for each rank the first with equal spans, but for the names of their groups, and equal ``more`` of them;
    itself where ranks are few."""
    if len(ranks) < _MANY:
        return {rank: rank for rank in ranks}
    columns = [*(getattr(spans, name) for name in _COMPARED), *more]
    found: dict[bytes, int] = {}
    first: dict[int, int] = {}
    for rank in ranks:
        low, high = np.searchsorted(spans.rank, [rank, rank + 1])
        name = blake2b()
        for column in columns:
            name.update(column[low:high])
        first[rank] = found.setdefault(name.digest(), rank)
    return first
