"""How much the step time depends on each resource: a bar as played, a mark by the critical path alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from simcluster.errors import InputError
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING
from simcluster.whatif.sensitivities import RESOURCES, TIMES, Sensitivity

_ROW_HEIGHT = 0.42
_LOOKS = {
    "flops": COMPUTE_KINDS["forward"],
    "memory_bandwidth": COMPUTE_KINDS["backward"],
    "nvlink": STREAMS["tp"],
    "network": STREAMS["dp"],
}


def plot_sensitivity(found: Sequence[Sensitivity], title: str = "") -> Figure:
    """Percent of the step saved for each percent of a resource, longest bar first; InputError for nothing."""
    if not found:
        raise InputError("nothing to draw: name at least one resource")
    ordered = sorted(found, key=lambda each: each.gain)
    figure = Figure(figsize=(8.5, 1.5 + _ROW_HEIGHT * len(ordered)), layout="constrained")
    axes = figure.subplots()
    widest = max(max(each.gain for each in ordered), 1e-3)
    for row, each in enumerate(ordered):
        axes.barh(row, each.gain, height=0.62, color=_LOOKS.get(each.resource, WAITING))
        axes.text(max(each.gain, 0.0) + 0.012 * widest, row, f"{each.gain:.3f} %", va="center", fontsize=9, color=TEXT)
    known = [(row, each.estimated_gain) for row, each in enumerate(ordered) if each.estimated_gain is not None]
    axes.scatter(
        [gain for _, gain in known], [row for row, _ in known], marker="d", s=26, facecolor="white", edgecolor=TEXT,
        linewidth=1.0, zorder=3, label="by the critical path alone",
    )  # fmt: skip
    names = [RESOURCES[each.resource] + (" (less)" if each.resource in TIMES else "") for each in ordered]
    axes.set_yticks(range(len(names)), names, fontsize=9.5, color=TEXT)
    axes.set_xlim(min(0.0, min(each.gain for each in ordered)), widest * 1.18)
    axes.set_xlabel("the step gets shorter by ... % for each 1 % (bars: played)", fontsize=9, color=QUIET_TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    if title:
        axes.set_title(title, fontsize=10.5, color=TEXT, loc="left")
    return figure
