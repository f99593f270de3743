"""How much the step time depends on each resource: bars as played, up and down, a mark by the critical path alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING
from simcluster.studies.whatif.sensitivities import RESOURCES, TIMES, Sensitivity

_ROW_HEIGHT = 0.48
_MORE, _LESS = (0.16, 0.36), (-0.2, 0.2)  # of a row: middle and height of the bars
_LOOKS = {
    "flops": COMPUTE_KINDS["forward"],
    "memory_bandwidth": COMPUTE_KINDS["backward"],
    "nvlink": STREAMS["tp"],
    "network": STREAMS["dp"],
    "between_machines": STREAMS["pp"],
}


@checked
def sensitivity(found: Sequence[Sensitivity], title: str = "") -> Figure:
    """Percent of the step for each percent of a resource, longest bar first; InputError for nothing.

    The thick bar is what more of it saves, the thin one below what less of it costs.
    """
    if not found:
        raise InputError("nothing to draw: name at least one resource")
    ordered = sorted(found, key=lambda each: (each.gain, each.loss or 0.0))
    figure = Figure(figsize=(8.5, 1.6 + _ROW_HEIGHT * len(ordered)), layout="constrained")
    axes = figure.subplots()
    widest = max(*(max(each.gain, each.loss or 0.0) for each in ordered), 1e-3)
    for row, each in enumerate(ordered):
        colour = _LOOKS.get(each.resource, WAITING)
        axes.barh(row + _MORE[0], each.gain, height=_MORE[1], color=colour)
        text = f"{each.gain:.3f} %"
        if each.loss is not None:
            axes.barh(row + _LESS[0], each.loss, height=_LESS[1], color=colour, alpha=0.45)
            text += f"  (less: {each.loss:.3f} %)" if each.one_sided else ""
        end = max(each.gain, each.loss or 0.0, 0.0)
        axes.text(end + 0.012 * widest, row, text, va="center", fontsize=9, color=TEXT)
    known = [
        (row + _MORE[0], each.estimated_gain) for row, each in enumerate(ordered) if each.estimated_gain is not None
    ]
    axes.scatter(
        [gain for _, gain in known], [row for row, _ in known], marker="d", s=26, facecolor="white", edgecolor=TEXT,
        linewidth=1.0, zorder=3, label="by the critical path alone",
    )  # fmt: skip
    names = [RESOURCES[each.resource] + (" (less)" if each.resource in TIMES else "") for each in ordered]
    axes.set_yticks(range(len(names)), names, fontsize=9.5, color=TEXT)
    axes.set_xlim(min(0.0, min(each.gain for each in ordered)), widest * 1.28)
    axes.set_xlabel(
        "% of the step for each 1 %, as played: saved by more (thick), lost by less (thin)",
        fontsize=9,
        color=QUIET_TEXT,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    if title:
        figure.suptitle(f"{title}: what more of each resource would save", fontsize=10.5, color=TEXT, x=0.01, ha="left")
    return figure
