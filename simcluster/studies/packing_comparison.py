"""Comparison of the rules for packing documents into training sequences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from simcluster.base.errors import InputError
from simcluster.base.progress import check_estimated_time, format_rough_duration
from simcluster.documents.argument_types import check_arguments
from simcluster.model.packing import PACKING, PackingStatistics

if TYPE_CHECKING:
    import pandas as pd

_MAX_SEQUENCES = 10_000_000
"""Sequences that are packed: a rule takes 100 bytes for each."""
_SECONDS_PER_FIT = 12e-9
"""Seconds in which the rules look whether a document goes into a sequence (an EPYC's core)."""
_SECONDS_PER_SEQUENCE = 4e-5
"""Seconds that a sequence takes in all rules: 48,828 of one document take 1.5 s."""


@check_arguments
def compare_packing(
    documents: ArrayLike,
    length: int,
    *,
    batch: int | None = None,
    tokens: float | None = None,
    unique: float | None = None,
) -> pd.DataFrame:
    """Compare all packing rules on documents of these lengths and sequences of ``length`` tokens.

    Columns: sequences, utilization (real tokens over allocated ones), attention (sum of squares over n s^2: core
    attention where it stays inside documents), dropped (tokens lost at ends of sequences); with ``tokens`` to be
    trained on and a ``batch`` of sequences, steps; with ``unique`` tokens, epochs. Raises InputError for invalid
    lengths.
    """
    import pandas as pd

    try:
        lengths = np.asarray(documents, dtype=np.float64).ravel()
    except (TypeError, ValueError):  # a text, lists of several lengths
        lengths = np.empty(0)
    if not len(lengths) or not (np.isfinite(lengths) & (lengths >= 1) & (lengths % 1 == 0)).all():
        raise InputError("documents: document lengths must be whole numbers of tokens, as in 1200,700,300")
    if length < 1:
        raise InputError(f"length is {length}; a sequence must have at least one token")
    if lengths.sum() / length > _MAX_SEQUENCES:
        raise InputError(
            f"documents: {lengths.sum():.4g} tokens need over {_MAX_SEQUENCES:,} sequences of {length}, the limit; "
            "give fewer or shorter documents, or a longer sequence"
        )
    seconds = (_SECONDS_PER_FIT * len(lengths) + _SECONDS_PER_SEQUENCE) * float(lengths.sum()) / length
    what = f"packing {len(lengths):,} documents takes about {format_rough_duration(seconds)}"
    check_estimated_time(seconds, what, "give fewer documents, such as a sample, or a longer sequence")
    rows = {}
    for rule, pack in PACKING.items():
        packed = pack(lengths, length, len(lengths) + int(lengths.sum() // length))
        found = PackingStatistics.from_sequences(packed, length)
        rows[rule] = {"sequences": found.sequences, "utilization": found.utilization, "attention": found.attention,
                      "dropped": float(lengths.sum()) - found.real}  # fmt: skip
        if tokens is not None and batch is not None:
            rows[rule]["steps"] = math.ceil(tokens / (batch * length * found.utilization))
        if tokens is not None and unique is not None:
            rows[rule]["epochs"] = tokens / (unique * found.real / float(lengths.sum()))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("packing")
