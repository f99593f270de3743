"""What a step that was played draws: the utilisation of its spans, and the power of the whole job over it."""

from __future__ import annotations

import numpy as np

from simcluster.devices.device import TilesMatmul
from simcluster.longrun.power import DrawSpec, PowerCurve, draw_of, power_curve
from simcluster.results.result import Result

_PRODUCTS = ("forward", "backward", "recompute")


def drawn_by(result: Result, draw: DrawSpec | None = None) -> PowerCurve:
    """The power of a played step, W; without ``draw`` that of the scenario's device (InputError if it is not known).

    Computation of layers has the step's FLOP over their seconds as its share of the rate at which the chip meets its
    power limit (``power`` x ``sustained`` of the device's peak: there it draws ``full``).  All else (collectives,
    waiting for them, the optimizer, which waits for memory) takes ``communication``.
    """
    device, spans = result.scenario.cluster.device, result.spans
    found = draw_of(device.name) if draw is None else draw
    matmul, fp8 = device.matmul, device.peak.fp8 == result.facts.peak_flops
    share = 1.0
    if isinstance(matmul, TilesMatmul):
        power, kept = (matmul.power_fp8, matmul.sustained_fp8) if fp8 else (matmul.power, matmul.sustained)
        share = (power or matmul.power) * (kept or matmul.sustained)
    weights = {rank: float(weight) for rank, weight in result.weights.items()}
    products = np.isin(spans.kind, [spans.code(kind) for kind in _PRODUCTS]) & (spans.stream == spans.code("compute"))
    each = np.array([weights[int(rank)] for rank in spans.rank])
    seconds = float((each * (spans.end - spans.start))[products].sum())
    busy = result.facts.hardware_flops * result.steps / (seconds * result.facts.peak_flops * share)
    utilisation = np.where(products, min(1.0, busy), found.communication)
    begun = np.where(spans.stream == spans.code("compute"), spans.start, spans.ready)
    return power_curve(found, spans.rank, begun, spans.end, utilisation, weights)
