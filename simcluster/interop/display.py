"""Reprs of trace objects: one-line texts (``LINES``), and the commands' full reports (``TEXTS``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.display import clip_line
from simcluster.base.units import format_seconds
from simcluster.show.repr_lines import NAME, repr_line

if TYPE_CHECKING:
    from simcluster.interop.export.trace_export import TraceFiles
    from simcluster.interop.replay.straggler_metrics import StragglerMetrics
    from simcluster.interop.trace_comparison.trace_difference import TraceDifference


def _trace_difference_line(found: TraceDifference) -> str:
    sides = zip(found.names, (found.simulated, found.recorded), strict=True)
    text = " -> ".join(f"{clip_line(name, NAME // 2)} {format_seconds(side.seconds)}" for name, side in sides)
    return f"TraceDifference({text}: {found.seconds / found.simulated.seconds:+.1%})"


def _trace_files_line(found: TraceFiles) -> str:
    last = found.files[-1] if len(found.files) == 1 else found.files[0].parent
    return repr_line(found, str(last), f"{len(found.ranks):,} of {found.job_ranks:,} ranks")


def _straggler_metrics_line(found: StragglerMetrics) -> str:
    return f"StragglerMetrics(S {found.slowdown:.4f}: {len(found.steps)} steps, error of the replay {found.error:.1%})"


LINES: Mapping[str, Callable[[Any], str]] = {
    "StragglerMetrics": _straggler_metrics_line,
    "TraceDifference": _trace_difference_line,
    "TraceFiles": _trace_files_line,
}


def _trace_difference_text(found: TraceDifference) -> str:
    from simcluster.interop.trace_comparison.comparison_text import report_blocks
    from simcluster.show.output_blocks import render_as_text

    return render_as_text(report_blocks(found))


TEXTS: Mapping[str, Callable[[Any], str]] = {"TraceDifference": _trace_difference_text}
