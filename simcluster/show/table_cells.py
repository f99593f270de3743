"""Formatting of table cells: metrics, time changes, causes of a difference, GPUs and parallel layouts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_seconds, format_time_change
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.step_metrics import MetricUnit, TableName, table_metrics

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


_FORMATTERS: Mapping[MetricUnit, Callable[[float], str]] = {
    "s": format_seconds,
    "1/s": lambda value: f"{value:,.1f}",
    "FLOP": lambda value: f"{value:.4g}",
    "TFLOP/s": lambda value: f"{value:,.1f}",
    "bytes": lambda value: f"{value / 1e9:.1f} GB",
    "fraction": lambda value: f"{value:.1%}",
    "factor": lambda value: f"{value:.3f}",
    "count": lambda value: f"{value:,.0f}",
    "yes or no": lambda value: "yes" if value else "no",
}
UNKNOWN_CELL = "?"
NO_TIME = 1e-12
"""Changes of fewer seconds are shown as 0."""
_SMALL = 0.005  # of the largest change of a step: smaller causes are summed
BREAKDOWN_LABELS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "exposed_tp": "tensor parallel, exposed",
    "exposed_pp": "pipeline sends, exposed",
    "exposed_dp": "data parallel, exposed",
    "exposed_cp": "context parallel, exposed",
    "exposed_ep": "expert parallel, exposed",
    "bubble": "bubble",
    "straggler_wait": "waiting for stragglers",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "data": "data loading, exposed",
    "validation": "validation",
    "offload": "offload copies, exposed",
    "other": "other",
}
"""Parts of a step, by their key in the breakdown."""


def format_metric(unit: MetricUnit, value: float) -> str:
    """Format a metric's number with its unit: 13.69 s, 74.1 GB, 45.2%."""
    return _FORMATTERS[unit](value)


def format_signed_seconds(seconds: float) -> str:
    """Format a change in seconds with sign and unit (+38.66 us); below 1 ps it is 0."""
    return "0" if abs(seconds) <= NO_TIME else format_time_change(seconds)


def format_seconds_or_dash(seconds: float) -> str:
    """Format seconds with their unit; "-" for None."""
    return format_seconds(seconds) if seconds > NO_TIME else "-"


def cause_css_class(cause: str) -> str:
    """Return the CSS class for the bar of a cause; bars have the colour of the affected part of the step."""
    part = f"exposed_{re.split('[_ ]', cause)[0]}"
    return f"k-{part if part in BREAKDOWN else cause if cause in BREAKDOWN else 'other'}"


def column_headings(table: TableName) -> list[str]:
    """Return the metric headings of a table ("compare", "sweep", "plan" or "report")."""
    return [metric.heading for metric in table_metrics(table).values()]


def format_row(table: TableName, row: Mapping[Any, Any]) -> list[str]:
    """Format a table row's metrics; "!" marks memory above a GPU's capacity, "?" an unknown value."""
    found = []
    for name, metric in table_metrics(table).items():
        value = row.get(name)
        known = value is not None and value == value
        text = format_metric(metric.unit, float(value)) if known else UNKNOWN_CELL  # type: ignore[arg-type]
        found.append(text + (" !" if known and name == "peak_memory_bytes" and not row["fits"] else ""))
    return found


def list_main_causes(causes: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the main causes of a difference with their seconds; smaller causes are summed as "rest"."""
    largest = max(abs(seconds) for seconds in causes.values())
    found = [(name, seconds) for name, seconds in causes.items() if abs(seconds) > _SMALL * largest]
    rest = sum(causes.values()) - sum(seconds for _, seconds in found)
    return [*found, ("rest", rest)] if abs(rest) > 1e-3 * _SMALL * largest else found


def join_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join parts of a text to lines of at most ``width`` characters, with semicolons between parts."""
    lines = [*parts[:1]]
    for part in parts[1:]:
        longer = f"{lines[-1]}; {part}"
        lines[-1:] = [longer] if len(longer) <= width else [lines[-1], part]
    return lines


def describe_gpus(scenario: Scenario) -> str:
    """Describe a scenario's GPUs: their number and the cluster's name, as in "64 GPUs of DGX H100".

    The device is added if the cluster's name does not give it: "64 GPUs (b200) of DGX H100".
    """
    cluster = scenario.cluster
    name, device = cluster.built.name, cluster.device.name
    family = re.escape(device.partition("-")[0])
    named = re.search(rf"(?<![a-z0-9]){family}(?![a-z0-9])", name, re.IGNORECASE)
    return f"{scenario.gpus:,} GPUs{'' if named else f' ({device})'} of {name}"


def describe_layout(scenario: Scenario) -> str:
    """Describe a parallel layout: "tp 8 (sequence parallel), pp 8 x 3 chunks (interleaved), dp 2 (ZeRO-1), ep 4".

    tp, pp and dp are always given; tp x pp x dp x cp is the number of GPUs. The ep x etp ranks of an expert group
    belong to the tp x cp x dp ranks of a stage; etp of them share an expert.
    """
    parallel, pipeline = scenario.parallel, scenario.pipeline
    parts = [f"tp {parallel.tp}" + (" (sequence parallel)" if parallel.sequence_parallel else "")]
    parts += [f"cp {parallel.cp} ({parallel.cp_comm.replace('_', ' ')})"] if parallel.cp > 1 else []
    chunks = f" x {pipeline.chunks} chunks" if pipeline.chunks > 1 else ""
    parts.append(f"pp {parallel.pp}{chunks}" + (f" ({pipeline.schedule_name})" if parallel.pp > 1 else ""))
    groups = f", groups of {scenario.fsdp.shard_group}" if scenario.fsdp.shard_group else ""
    parts.append(f"dp {parallel.dp}" + (f" (ZeRO-{parallel.zero}{groups})" if parallel.zero else ""))
    if parallel.ep > 1 or parallel.etp is not None:
        split = f" x etp {parallel.etp or parallel.tp}" if parallel.tp > 1 or (parallel.etp or 1) > 1 else ""
        parts.append(f"ep {parallel.ep}{split}")
    return ", ".join(parts)
