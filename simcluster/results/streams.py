"""Streams and kinds of spans that the breakdown of a step counts: time on any other would pass for waiting."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.results.host_waits import BESIDE
from simcluster.results.span_states import COMPUTE_KINDS, EXPOSED
from simcluster.results.timeline import Spans

STREAMS = ("compute", *EXPOSED, *BESIDE)
COMPUTATION = tuple(kind for kinds in COMPUTE_KINDS.values() for kind in kinds)


def require_known(spans: Spans) -> None:
    """Raise ValueError if no entry of the breakdown counts the time of some span."""
    _require(spans, spans.stream, STREAMS, "stream")
    _require(spans, spans.kind[spans.stream == spans.code("compute")], COMPUTATION, "computation of kind")


def _require(spans: Spans, codes: Ints, known: tuple[str, ...], what: str) -> None:
    found = np.bincount(codes, minlength=len(spans.words)).nonzero()[0].tolist()
    if unknown := [spans.words[code] for code in found if spans.words[code] not in known]:
        raise ValueError(f"no entry of the breakdown counts {what} {unknown[0]!r}; known: {', '.join(known)}")
