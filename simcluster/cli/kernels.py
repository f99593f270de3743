"""simcluster kernels: list a rank's kernels with shape, split, FLOP, bytes, time and limit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines
from simcluster.show.table_cells import describe_layout
from simcluster.studies.kernels import KernelRow, kernels

_HEADER = [
    "kernel", "phase", "per rank: m x k -> n", "whole model", "split", "GFLOP", "bytes", "FLOP/byte", "time", "roof",
    "of roof", "per step",
]  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Print the kernels of one rank of a pipeline stage."""
    scenario = load(args.scenario, read_overrides(args, args.scenario))
    found = kernels(scenario, args.stage)
    common.print_answer(
        args,
        lambda: _kernel_blocks(scenario, args.stage, found, args.phase),
        lambda: {"stage": args.stage, "kernels": [row.to_dict() for row in found]},
    )


def _kernel_blocks(scenario: Scenario, stage: int, kernels: Sequence[KernelRow], phase: str | None) -> OutputBlocks:
    device = scenario.cluster.device
    precision = scenario.training.precision.removesuffix("-mixed")
    peak, bandwidth = device.peak_flops(precision), device.memory_bandwidth
    shown = [row for row in kernels if phase in (None, row.phase)]
    rows = [_table_cells(row) for row in shown]
    sums = sum(row.step_seconds for row in shown)
    ridge = f"{peak / bandwidth:.0f} FLOP/byte"
    return [
        TextLines([
            f"{scenario.title}: {describe_layout(scenario)}; stage {stage}",
            f"{device.name}: {peak / 1e12:.4g} TFLOP/s in {precision}, {bandwidth / 1e12:.4g} TB/s: compute is the "
            f"roof above {ridge}",
        ]),
        TableBlock(_HEADER, rows),
        TextLines([
            f"{format_seconds(sums)} of kernels per step and rank{f' ({phase})' if phase else ''}",
            "m: tokens; k, n: input and output widths of a matmul; for attention, k: head width, n: keys",
            "column, row: the rank has a part of the matmul's weights, split along its output or its input",
        ]),
    ]  # fmt: skip


def _table_cells(row: KernelRow) -> list[str]:
    return [
        row.name,
        row.phase,
        _format_matmul_shape(row.m, row.k, row.n, row.batch),
        "" if row.whole is None else _format_matmul_shape(*row.whole),
        row.split,
        f"{row.flops / 1e9:,.1f}" if row.flops else "-",
        format_bytes(row.bytes),
        f"{row.intensity:,.0f}" if row.flops else "-",
        format_seconds(row.seconds),
        row.roof,
        f"{row.of_roof:.0%}",
        format_seconds(row.step_seconds),
    ]


def _format_matmul_shape(m: int, k: int, n: int, batch: int) -> str:
    if not m:
        return ""
    return f"{f'{batch} of ' if batch > 1 else ''}{m} x {k} -> {n}"
