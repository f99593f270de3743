"""How a job scales: step time and throughput of a GPU over the number of GPUs, beside what would be ideal."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT

_NEEDED = ("gpus", "step_time_s", "tokens_per_s_per_gpu")
_LOOKS = (
    (COMPUTE_KINDS["forward"], "o"),
    (STREAMS["tp"], "s"),
    (COMPUTE_KINDS["weight_grad"], "^"),
    (STREAMS["dp"], "D"),
    (COMPUTE_KINDS["backward"], "v"),
    (STREAMS["ep"], "*"),
)
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_SAME = 1e-3  # of the tokens of a step: rounding of a table


@checked
def scaling(table: pd.DataFrame, *, by: str | None = None, title: str = "scaling") -> Figure:
    """Left: step time; right: tokens/s of a GPU, both over GPUs; a line for each value of the column ``by``.

    Dashed is the ideal: the first row's throughput of a GPU at every size.  Strong scaling (the same tokens a step) or
    weak (the same tokens a step and GPU) is read off the rows and said.
    """
    rows = _rows(table, by)
    series = [(str(name), part) for name, part in rows.groupby(by, sort=False)] if by else [("", rows)]
    if len(series) > len(_LOOKS):
        raise InputError(
            f"{by} has {len(series)} values; up to {len(_LOOKS)} lines can be told apart: keep some of the rows"
        )
    short = [name or "the rows" for name, part in series if part["gpus"].nunique() < 2]
    if short:
        raise InputError(f"{short[0]}: one number of GPUs; a scaling curve needs at least two")
    figure = Figure(figsize=(11.5, 4.8), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for number, ((name, part), (colour, marker)) in enumerate(zip(series, _LOOKS, strict=False)):
        _line(times, rates, part, name, colour, marker, above=number == 0 and len(series) > 1)
    _frame(times, rows, "step time", f"{_kind(series)}")
    _frame(rates, rows, "tokens/s/GPU", "throughput of a GPU; beside each point: of the ideal")
    rates.set_ylim(0, 1.18 * float(rows["tokens_per_s_per_gpu"].max()))
    times.plot([], [], "--", color=QUIET_TEXT, linewidth=1.0, label="ideal")
    times.legend(fontsize=8.5, frameon=False, title=by, title_fontsize=8.5)
    figure.suptitle(title, fontsize=11, color=TEXT)
    return figure


def _rows(table: pd.DataFrame, by: str | None) -> pd.DataFrame:
    """The rows with numbers, by size; of several at one size and ``by`` the fastest."""
    missing = [name for name in (*_NEEDED, *([by] if by else [])) if name not in table.columns]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}; rows of compare and of a sweep have {', '.join(_NEEDED)}"
        )
    rows = table.dropna(subset=list(_NEEDED)).sort_values(["gpus", "step_time_s"], kind="stable")
    if rows.empty:
        raise InputError("the table has no row with a result; give one with a variant that was simulated")
    return rows.drop_duplicates([*([by] if by else []), "gpus"])


def _tokens(part: pd.DataFrame) -> pd.Series:
    return part["tokens_per_s_per_gpu"] * part["step_time_s"] * part["gpus"]


def _kind(series: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """Strong or weak, by the tokens of a step."""
    kinds = set()
    for _, part in series:
        tokens = _tokens(part)
        strong, weak = (float(each.max() / each.min()) - 1 < _SAME for each in (tokens, tokens / part["gpus"]))
        kinds.add("strong scaling: the same batch" if strong else "weak scaling: the same batch for each GPU" if weak
                  else "batch and GPUs change")  # fmt: skip
    return kinds.pop() if len(kinds) == 1 else "batch and GPUs change"


def _line(times: Axes, rates: Axes, part: pd.DataFrame, name: str, colour: str, marker: str, *, above: bool) -> None:
    gpus, rate = part["gpus"].tolist(), part["tokens_per_s_per_gpu"].tolist()
    ideal = (_tokens(part) / (part["gpus"] * rate[0])).tolist()
    for axes, values, best in ((times, part["step_time_s"].tolist(), ideal), (rates, rate, [rate[0]] * len(rate))):
        axes.plot(gpus, best, "--", color=colour, linewidth=1.0, alpha=0.7)
        axes.plot(gpus, values, color=colour, marker=marker, linewidth=1.6, markersize=6, label=name or "simulated")
    for size, value in list(zip(gpus, rate, strict=True))[1:]:
        rates.annotate(
            f"{value / rate[0]:.0%}", (size, value), xytext=(0, 8 if above else -14), textcoords="offset points",
            ha="center", fontsize=8, color=colour,
        )  # fmt: skip


def _frame(axes: Axes, rows: pd.DataFrame, label: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted(rows["gpus"].unique().tolist())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    if label == "step time":
        shortest, longest = float(rows["step_time_s"].min()), float(rows["step_time_s"].max())
        unit, scale = next((pair for pair in _UNITS if longest >= pair[1]), _UNITS[-1])
        if longest > 2 * shortest:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.25 * longest)
        axes.yaxis.set_major_formatter(lambda seconds, _: f"{seconds / scale:.4g} {unit}")
    else:
        axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.set_xlabel("GPUs", fontsize=9, color=TEXT)
    axes.set_ylabel(label, fontsize=9, color=TEXT)
    axes.set_title(title, fontsize=9.5, color=TEXT, loc="left")
    axes.tick_params(labelsize=8.5)
    axes.grid(color="#ECEEF0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
