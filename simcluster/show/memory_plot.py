"""Plot of memory over time: model state, activations, buffers, the GPU's capacity, and the peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.results.memory_timeline import POOLS, MemoryPeak
from simcluster.results.result import Result
from simcluster.show.bars import choose_time_unit, label_axes
from simcluster.show.gantt_rows import pick_evenly_spaced
from simcluster.show.palette import LANE_SURROUND, MEMORY, QUIET_TEXT, TEXT

_GB = 1e9
_MOST_RANKS = 12
_DRAWN = 4  # ranks, where none are named
_VECTOR_UP_TO = 20_000  # steps of a curve: above, an SVG or PDF holds a picture of them


@check_arguments
def memory(result: Result, *, ranks: Sequence[int] | None = None, window: tuple[float, float] | None = None) -> Figure:
    """Draw the memory use of ranks over a run, one panel per rank on a common scale; at most 12 ranks.

    Default ``ranks``: the one that holds most and three others, evenly over the pipeline. ``window`` is in seconds.
    InputError for too many ranks, and for a run that allocates nothing.
    """
    if not len(result.memory_timeline):
        raise InputError("nothing to draw: this run allocates no memory; simulate a scenario with a model")
    fullest = result.memory_peak.rank
    chosen = list(ranks) if ranks is not None else pick_evenly_spaced(sorted(result.weights), _DRAWN)
    if ranks is None and fullest not in chosen:
        chosen = sorted([fullest, *chosen[1:]])
    if len(chosen) > _MOST_RANKS:
        raise InputError(f"{len(chosen)} ranks are too many to draw; name at most {_MOST_RANKS}")
    figure = Figure(figsize=(13.0, 1.5 + 2.1 * len(chosen)), layout="constrained")
    panels = figure.subplots(len(chosen), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    begin, end = window or (0.0, result.step_time * result.steps)
    unit, second = choose_time_unit(end)
    scale = 1 / second
    for rank, axes in zip(chosen, panels, strict=True):
        _draw_memory(axes, result, rank, scale)
    panels[-1].set_xlim(begin * scale, end * scale)
    panels[-1].set_ylim(0, 1.08 * max(result.facts.memory, result.memory.total) / _GB)
    panels[-1].set_xlabel(f"time ({unit})", fontsize=9, color=TEXT)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", fontsize=8, frameon=False)
    most = f"{result.memory.total / _GB:.1f} of {result.facts.memory / _GB:.1f} GB on rank {result.memory_peak.rank}"
    part = f" · from {format_seconds(begin)} to {format_seconds(end)}" if window else ""
    heading = f"{result.scenario.title}: memory over a step, at most {most}{part}"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, color=TEXT)
    return figure


def _draw_memory(axes: Axes, result: Result, rank: int, scale: float) -> None:
    simulated = result.representative_of(rank)
    time, pools = result.memory_timeline.curve(simulated)
    peak = result.memory_peak_of(simulated)
    state = result.facts.footprints[peak.stage].with_pool_bytes(dict.fromkeys(POOLS, 0.0))
    edges = np.concatenate([[0.0], time, [max(result.step_time * result.steps, *time[-1:])]])
    level = np.zeros(len(edges))
    layers: list[tuple[str, str, Floats | float]] = [
        ("parameters", "parameters", state.parameters),
        ("gradients", "gradients", state.gradients),
        ("optimizer", "optimizer", state.optimizer),
        ("buffers", "buffers of libraries", state.buffers),
        ("activations", "activations", pools["activations"]),
        ("gathered", "gathered parameters", pools["parameters"]),
        ("unsharded", "unsharded gradients", pools["gradients"]),
        ("other", "recomputed, logits, received", pools["other"]),
        ("lost", "lost to fragmentation", (state.fragmentation - 1.0) * sum(pools.values())),
    ]
    for name, label, size in layers:
        if not np.any(size):
            continue
        top = level + (size if isinstance(size, float) else np.concatenate([[0.0], size, [0.0]]))
        filled = axes.fill_between(
            edges * scale, level / _GB, top / _GB, step="post", color=MEMORY[name], linewidth=0, label=label
        )
        filled.set_rasterized(len(edges) > _VECTOR_UP_TO)
        level = top
    axes.axhline(result.facts.memory / _GB, color=TEXT, linestyle="--", linewidth=1.0, label="capacity")
    _mark_peak(axes, peak, float(level.max()), scale)
    label_axes(axes, y=f"rank {rank}, stage {peak.stage}\n(GB)")
    axes.grid(axis="y", color=LANE_SURROUND, linewidth=0.6)
    axes.set_axisbelow(True)


def _mark_peak(axes: Axes, peak: MemoryPeak, size: float, scale: float) -> None:
    if not peak.kind:
        return
    axes.plot([peak.time * scale], [size / _GB], "v", color=TEXT, markersize=6)
    text = f"{size / _GB:.1f} GB at {format_seconds(peak.time)}: {peak.describe()}"
    axes.set_title(f"▼ {text}", fontsize=8, color=QUIET_TEXT, loc="left", pad=3)
