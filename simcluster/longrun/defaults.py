"""Detection, restart and spares of a run whose document does not state them, each with its source."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcluster.longrun.run import FailureMode, Spares
from simcluster.scenario.run_section import RestartPart, RunSpec, SparesSpec
from simcluster.scenario.run_times import FixedTime, TimeSpec

DETECTION = FixedTime(seconds="2 min")
DETECTION_SOURCE = "half of the 5 min between health checks, arXiv:2410.21680"

RESTART = (
    RestartPart(part="stop and reschedule", takes="2 min", exposed=False),
    RestartPart(part="communicators", takes="17 s"),
    RestartPart(part="load"),
    RestartPart(part="warm up", takes="3 min"),
)
RESTART_SOURCE = "as in llama3_405b_54_days, communicators of arXiv:2602.00277, the rest not published"

NODES_PER_SPARE = 12
"""Nodes of a job per spare node."""
SPARES_SOURCE = "BLOOM kept 4 for 48, arXiv:2211.05100"

READY = (0.0, 120.0, 1200.0)
"""Seconds until a hot, a warm and a cold spare is ready; not published."""


def detection_of(section: RunSpec) -> TimeSpec:
    """Return how long until a failure is noticed, as stated or by default."""
    found: TimeSpec = DETECTION if section.detection is None else section.detection
    return found


def restart_of(section: RunSpec) -> tuple[RestartPart, ...]:
    """Return the phases of a restart, as stated or by default."""
    return RESTART if section.restart is None else section.restart


def spares_of(spec: SparesSpec, nodes: int, causes: Sequence[FailureMode]) -> Spares:
    """Return the spares of a job on that many nodes; by default warm ones, where a failure takes a node away."""
    known = spec.hot_ready, spec.warm_ready, spec.cold_ready
    ready = [default if stated is None else stated for stated, default in zip(known, READY, strict=True)]
    hot, warm, cold = spec.hot or 0, spec.warm or 0, spec.cold or 0
    if not spec.stated and any(cause.repair is not None for cause in causes):
        warm = math.ceil(nodes / NODES_PER_SPARE)
    return Spares(hot, warm, cold, (ready[0], ready[1], ready[2]), spec.crews, spec.unlimited)
