"""Power of a job: of a GPU by utilisation, of all nodes over a step, and by time category over a run.

A GPU draws idle + (full - idle) x u, where u is its utilisation relative to the load at which it draws ``full``; a node
adds ``node`` at any load; the building ``pue`` times all. Seconds, watts, joules; kWh where the name says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from simcluster.base.arrays import Floats, Ints, run_start_mask
from simcluster.base.errors import InputError
from simcluster.devices.device import TiledMatmul
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.results.result import Result
from simcluster.scenario.run_section import PowerSpec

Watts = Annotated[float, Field(strict=False, ge=0)]
Utilisation = Annotated[float, Field(strict=False, ge=0, le=1)]

KWH = 3.6e6
"""Joules per kWh."""

_TRAINS = ("productive", "write", "validation", "lost")
_WAITS = ("checkpoint", "verification", "slow", "detection", "pause")  # all or most GPUs wait in a collective


class DevicePower(Spec):
    """Power (W) of a GPU when ``idle`` and when ``full`` (at its power limit), and of the rest of a node.

    A node has ``gpus`` GPUs; its rest draws ``node`` (None: unknown, not counted). ``communication`` is the utilisation
    from idle to full while bytes move, ``waiting`` where a collective waits for its peers.
    """

    idle: Watts
    full: Watts
    node: Watts | None = None
    gpus: Count = 8
    communication: Utilisation = 0.2
    waiting: Utilisation = 0.09
    source: str = ""

    def watts(self, utilisation: float | Floats) -> Floats:
        """Return the power (W) of a GPU at a utilisation from 0 to 1."""
        return np.asarray(self.idle + (self.full - self.idle) * np.clip(utilisation, 0.0, 1.0), dtype=np.float64)

    @property
    def node_watts_per_gpu(self) -> float:
        """Power (W) of the rest of a node, divided by the node's number of GPUs."""
        return (self.node or 0.0) / self.gpus


def load_device_power(device: str) -> DevicePower:
    """Return the catalogue's power figures of a GPU model; raise InputError if the catalogue has none."""
    known = load_presets("power.yaml")
    if device not in known:
        raise InputError(
            f"run.power: the power of {device!r} is unknown{did_you_mean(device, known)}; known: "
            f"{', '.join(known)}; or set idle and full, in W"
        )
    return DevicePower.model_validate(known[device])


def resolve_power(device: str, own: PowerSpec) -> DevicePower | None:
    """Return the power figures of a run's GPUs, the scenario's before the catalogue's; None if unknown.

    None if neither has any. InputError if the run states some of them, and the catalogue does not know the rest.
    """
    names = ("idle", "full", "node", "communication", "waiting")
    known = device in load_presets("power.yaml")
    given = {name: value for name in names if (value := getattr(own, name)) is not None}
    if not known and not given.keys() & {"idle", "full"}:
        return None
    alone = not known and {"idle", "full"} <= given.keys()
    found = DevicePower.model_validate(({} if alone else dict(load_device_power(device))) | given)
    if found.full < found.idle:
        raise InputError(
            f"run.power: full ({found.full:g} W) is below idle ({found.idle:g} W); raise full, or lower idle"
        )
    return found


@dataclass(frozen=True)
class PowerCurve:
    """Power of a whole job over a step, constant between instants: ``watts[i]`` from ``instants[i]`` to the next."""

    instants: Floats
    watts: Floats

    @property
    def joules(self) -> float:
        """Energy of the step (J)."""
        return float(self.watts @ np.diff(self.instants))

    @property
    def mean(self) -> float:
        """Mean power over the step (W)."""
        return self.joules / float(self.instants[-1] - self.instants[0])

    def smoothed_watts(self, window: float) -> Floats:
        """Return the power (W) averaged over a sliding window (s), at each time where that average changes slope."""
        energy = np.concatenate([[0.0], np.cumsum(self.watts * np.diff(self.instants))])
        begin, end = float(self.instants[0]), float(self.instants[-1])
        if window >= end - begin:
            return np.array([self.mean])
        starts = np.unique(np.clip(np.concatenate([self.instants, self.instants - window]), begin, end - window))
        passed = np.interp(starts + window, self.instants, energy) - np.interp(starts, self.instants, energy)
        return np.asarray(passed / window)

    def peak_to_peak(self, window: float = 0.0) -> float:
        """Return the highest minus the lowest power (W); with a window (s), of power averaged over that window."""
        watts = self.smoothed_watts(window) if window else self.watts
        return float(watts.max() - watts.min())


def power_curve(
    draw: DevicePower,
    rank: Ints,
    start: Floats,
    end: Floats,
    utilisation: Floats,
    weights: Mapping[int, float],
    *,
    step: float | None = None,
) -> PowerCurve:
    """Compute a job's power over a step from spans: arrays of rank, start (s), end (s) and utilisation.

    Concurrent spans of a rank add up, to 1 at most. ``weights`` is the number of GPUs that each rank represents (all
    ranks there are: those without spans idle); ``step`` the seconds of the step (default: until the last span's end).
    """
    until = float(end.max()) if step is None else step
    who, at = np.concatenate([rank, rank]), np.concatenate([start, end])
    change = np.concatenate([utilisation, -utilisation])
    order = np.lexsort((at, who))
    who, at, change = who[order], at[order], change[order]
    first = run_start_mask(who)
    total = np.cumsum(change)
    before = np.where(first, total - change, 0.0)[np.maximum.accumulate(np.where(first, np.arange(len(who)), 0))]
    busy = np.clip(total - before, 0.0, 1.0)
    weight = np.array([weights[int(each)] for each in np.unique(who)])[np.cumsum(first) - 1]
    step_up = weight * np.diff(busy, prepend=0.0)
    step_up[first] = (weight * busy)[first]
    order = np.argsort(at, kind="stable")
    instants, place = np.unique(np.concatenate([[0.0, until], at[order]]), return_inverse=True)
    level = np.cumsum(np.bincount(place[2:], step_up[order], minlength=len(instants)))
    watts = sum(weights.values()) * (draw.idle + draw.node_watts_per_gpu) + (draw.full - draw.idle) * level
    inside = instants < until
    return PowerCurve(np.append(instants[inside], until), np.asarray(watts[inside], dtype=np.float64))


def category_watts(category: str, draw: DevicePower, step: float, gpus: int) -> float:
    """Return the power (W) of all nodes of a job, GPUs included, in a time category such as lost or restart.

    Where a job trains, or redoes lost work, it draws ``step`` (in total, ``PowerCurve.mean``); where all wait in a
    collective, as for a hung peer or a snapshot, ``waiting``; where it is stopped, idle.
    """
    if category in _TRAINS:
        return step
    return gpus * (float(draw.watts(draw.waiting if category in _WAITS else 0.0)) + draw.node_watts_per_gpu)


def simulated_step_power(result: Result, draw: DevicePower, *, computing: bool = False) -> PowerCurve:
    """Return the power (W) of the whole job over a simulated step.

    Computation of layers has as utilisation its FLOP/s relative to the rate at which the chip meets its power limit
    (``power`` x ``sustained`` of the device's peak: there it draws ``full``). A collective takes ``waiting`` until its
    peers are there, then ``communication``, as do memory-bound ops (the optimizer); ``computing``: both as an idle GPU.
    """
    spans, device = result.spans, result.scenario.cluster.device
    communication, waiting = (0.0, 0.0) if computing else (draw.communication, draw.waiting)
    matmul, fp8, share = device.matmul, device.peak.fp8 == result.facts.peak_flops, 1.0
    if isinstance(matmul, TiledMatmul):
        power, kept = (matmul.power_fp8, matmul.sustained_fp8) if fp8 else (matmul.power, matmul.sustained)
        share = (power or matmul.power) * (kept or matmul.sustained)
    weights = {rank: float(weight) for rank, weight in result.weights.items()}
    each = np.zeros(max(weights) + 1)
    each[list(weights)] = list(weights.values())
    on_compute = spans.stream == spans.word_code("compute")
    matmuls = on_compute & np.isin(spans.kind, [spans.word_code(kind) for kind in ("forward", "backward", "recompute")])
    flops = result.facts.hardware_flops * result.steps / (result.facts.peak_flops * share)
    busy = min(1.0, flops / float((each[spans.rank] * (spans.end - spans.start))[matmuls].sum()))
    waits = ~on_compute & (spans.start > spans.ready)
    return power_curve(
        draw,
        np.concatenate([spans.rank, spans.rank[waits]]),
        np.concatenate([spans.start, spans.ready[waits]]),
        np.concatenate([spans.end, spans.start[waits]]),
        np.concatenate([np.where(matmuls, busy, communication), np.full(np.count_nonzero(waits), waiting)]),
        weights,
        step=float(spans.end.max()),
    )
