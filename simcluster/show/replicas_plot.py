"""Step times of many replicas as a histogram."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from simcluster.documents.argument_types import checked
from simcluster.results.distribution import Distribution
from simcluster.show.palette import QUIET_TEXT, STREAMS, TEXT, rgb


@checked
def replicas(distribution: Distribution, *, title: str = "step time") -> Figure:
    """How many replicas took how long; the mean with its 95 % interval, p5 and p95, and the step without chance."""
    times = distribution.step_times
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    bins = int(np.clip(np.sqrt(len(times)) * 1.5, 5, 60))
    axes.hist(times, bins=bins, color=rgb(STREAMS["dp"]), alpha=0.75)
    low, high = distribution.interval
    mean = distribution.mean
    axes.axvspan(low, high, color=rgb(STREAMS["tp"]), alpha=0.25, linewidth=0)
    axes.axvline(mean, color=rgb(STREAMS["tp"]), linewidth=1.8, label=f"mean {mean:.6g} s, its 95 % interval shaded")
    marks = {"p5": distribution.quantile(0.05), "p95": distribution.quantile(0.95)}
    for name, value in marks.items():
        axes.axvline(value, color=QUIET_TEXT, linewidth=1.0, linestyle=":", label=f"{name} {value:.6g} s")
    spread = float(times.max() - times.min())
    if float(times.min()) - 2 * spread <= distribution.planned <= float(times.max()) + 2 * spread:
        axes.axvline(distribution.planned, color=TEXT, linewidth=1.2, linestyle="--",
                     label=f"without chance {distribution.planned:.6g} s")  # fmt: skip
    else:
        axes.plot([], [], " ", label=f"without chance {distribution.planned:.6g} s (off the scale)")
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    axes.set_xlabel("seconds a step", fontsize=9, color=TEXT)
    axes.set_ylabel(f"replicas, of {len(times):,}", fontsize=9, color=TEXT)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure
