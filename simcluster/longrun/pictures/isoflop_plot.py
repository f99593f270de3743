"""isoFLOP curves: loss over the size of the model at a few budgets, the path of the best models, one's own on it."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcluster.base.counts import format_count
from simcluster.documents.argument_types import checked
from simcluster.longrun.scaling.scale import Scaling
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, rgb, tinted

_CURVE, _PATH, _OWN = rgb(COMPUTE_KINDS["forward"]), rgb(STREAMS["tp"]), rgb(COMPUTE_KINDS["optimizer"])
_TINTS = (0.72, 0.5, 0.0, 0.5, 0.72)
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1.0}
_WORDS = 10.0  # what is said of models that are nearer (a factor of parameters) would overlap
_WIDE = 12.0  # how far from the best model a curve is drawn: a factor of parameters


@checked
def isoflop(found: Scaling, title: str = "") -> Figure:
    """A curve a budget; dots are the best models, the star one's own; grey is beyond the runs of the law's fit."""
    figure = Figure(figsize=(9.2, 5.2), layout="constrained")
    axes = figure.subplots()
    budgets = list(found.isoflop.groupby("compute", sort=True))
    best = [found.law.optimum(float(str(compute))) for compute, _ in budgets]
    for (_, part), size, tint in zip(budgets, best, _TINTS, strict=True):
        near = part[np.abs(np.log(part["parameters"] / size.parameters)) <= np.log(_WIDE)]
        axes.plot(near["parameters"], near["loss"], color=tinted(_CURVE, tint), linewidth=2.4 if not tint else 1.5)
        last = near.iloc[-1]
        words = f"{size.compute:.3g} FLOP".replace("e+", "e")
        axes.annotate(words, (last["parameters"], last["loss"]), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8.5, color=TEXT if not tint else QUIET_TEXT)  # fmt: skip
    sizes, losses = [size.parameters for size in best], [size.loss or 0.0 for size in best]
    axes.plot(sizes, losses, "--o", color=_PATH, linewidth=1.3, markersize=5, label="best model for each budget")
    _own(axes, found)
    _frame(axes, found, (min(sizes) / _WIDE, max(sizes) * _WIDE))
    axes.legend(fontsize=9, frameon=False, loc="upper center", ncols=3)
    say_range(figure, found)
    figure.suptitle(title or f"{found.law.formula()}   ({found.law.name})", fontsize=11, color=TEXT, x=0.01, ha="left")
    return figure


def say_range(figure: Figure, found: Scaling) -> None:
    """Below a picture: on which runs its law was fitted."""
    said = f"{found.law.name} was fitted on {found.law.range_words()}; what lies beyond is extrapolated"
    figure.supxlabel(said, fontsize=8, color=QUIET_TEXT, x=0.01, ha="left")


def _own(axes: Axes, found: Scaling) -> None:
    """The best model in words, and one's own where there is one."""
    if found.best is not None and found.best.loss is not None:
        best = found.best
        words = f"{format_count(best.parameters)}, {format_count(best.tokens)} tokens\nloss {best.loss:.3f}"
        axes.annotate(words, (best.parameters, best.loss or 0.0), xytext=(0, 9), textcoords="offset points",
                      ha="center", fontsize=8.5, color=_PATH, bbox=_PAPER)  # fmt: skip
    own = found.own if found.own is not None else found.to_loss
    if own is None or own.loss is None or not np.isfinite(own.tokens):
        return
    axes.plot([own.parameters], [own.loss], "*", color=_OWN, markersize=14, label="your model", zorder=5)
    words = f"{format_count(own.parameters)}, {format_count(own.tokens)} tokens\nloss {own.loss:.3f}"
    below = found.best is not None and abs(math.log(own.parameters / found.best.parameters)) < math.log(_WORDS)
    axes.annotate(words, (own.parameters, own.loss), xytext=(0, -11 if below else 11), textcoords="offset points",
                  ha="center", va="top" if below else "bottom", fontsize=8.5, color=_OWN, bbox=_PAPER)  # fmt: skip


def _frame(axes: Axes, found: Scaling, ends: tuple[float, float]) -> None:
    axes.set_xscale("log")
    low, high = ends
    axes.set_xlim(low / 1.2, high * 3.5)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom - 0.1 * (top - bottom), top + 0.12 * (top - bottom))
    fitted = found.law.parameters
    if fitted is not None and fitted[1] < high * 3.5:
        begin = max(fitted[1], low / 1.2)
        axes.axvspan(begin, high * 3.5, color="#ECEEF0", zorder=0, linewidth=0)
        words = f" beyond the runs of the fit: above {format_count(fitted[1])}"
        axes.annotate(words, (begin, 0.015), xycoords=("data", "axes fraction"), fontsize=8.5, color=QUIET_TEXT)
    axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
    axes.set_xlabel("parameters", fontsize=9.5, color=TEXT)
    axes.set_ylabel("loss (nats a token)", fontsize=9.5, color=TEXT)
    axes.grid(color="#DDE0E3", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
