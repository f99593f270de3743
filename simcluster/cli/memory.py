"""simcluster memory: memory per GPU by ZeRO stage, and the largest setting that fits."""

from __future__ import annotations

import argparse
import math
from typing import Any

from simcluster.base.counts import format_count
from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.planning.footprint import Footprint
from simcluster.scenario.memory_plan import describe_recipe, fit_mark
from simcluster.scenario.memory_plan import describe_recipe_parts as parts_of_recipe
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.output_blocks import OutputBlocks, TableBar, TableBlock, TextLines
from simcluster.show.table_cells import describe_layout
from simcluster.studies.state_ladder import DEFAULT_RECIPE, ModelStateLadder, zero_stages
from simcluster.studies.whatif.job_memory import PARTS, JobMemory, job_memory, memory_by_category
from simcluster.studies.whatif.largest_value import largest_that_fits

_COUNT_OPTIONS = {"recipe": "training.memory_recipe", "dp": "parallel.dp", "device": "cluster.device"}
"""Options of a number of parameters: the key of a scenario with that meaning."""
_HEADER = ["weights", "gradients", "optimizer", "activations", "other", "total", "free"]
_SMALL, _TENSORS = 0.01, 16  # a tensor has a row from this share on; most rows


def run(args: argparse.Namespace) -> None:
    """Print the memory that a scenario, or a model with a number of parameters, needs."""
    if (args.scenario is None) == (args.parameters is None):
        raise InputError(
            "memory needs either a scenario or a number of parameters; name a scenario, or give --parameters 13B"
        )
    if args.scenario is None:
        _print_state_memory(args)
    else:
        _print_job_memory(args)


def _print_state_memory(args: argparse.Namespace) -> None:
    if args.largest or args.set or args.overrides:
        raise InputError("--largest and --set need a scenario; with --parameters give --recipe, --dp and --device")
    ladder = zero_stages(
        args.parameters, recipe=args.recipe or DEFAULT_RECIPE, dp=args.dp or 8, device=args.device or "h100"
    )
    default = "" if args.recipe else ", by default"
    common.print_answer(args, lambda: zero_stage_blocks(ladder, default), ladder.to_dict)


def _print_job_memory(args: argparse.Namespace) -> None:
    for name, path in _COUNT_OPTIONS.items():
        if getattr(args, name) is not None:
            raise InputError(f"--{name} applies only to --parameters; change a scenario with --{path} VALUE")
    overrides = read_overrides(args, args.scenario)
    scenario = load(args.scenario, overrides)
    if args.largest:
        found = largest_that_fits(args.scenario, args.largest, overrides)
        common.print_answer(args, lambda: "\n".join([*_title_lines(scenario).lines, found.summary()]), found.to_dict)
        return
    memory = job_memory(scenario)
    common.print_answer(args, lambda: job_memory_blocks(memory), memory.to_dict)


# --- of counts --------------------------------------------------------------------------------------------------------


def zero_stage_blocks(ladder: ModelStateLadder, default: str = "") -> OutputBlocks:
    """Return the printed model state by ZeRO stage; ``default`` is the mark of a default recipe."""
    recipe, size = ladder.recipe, f"{ladder.capacity / 1e9:.4g} GB"
    gpus = f"{ladder.dp:,} x {ladder.device} ({size})"
    rows = [
        [
            str(stage.zero),
            f"{stage.bytes_per_parameter:.4g}",
            f"{stage.bytes / 1e9:,.2f}{fit_mark(stage.bytes, ladder.capacity)}",
            f"{stage.reduction:.3g}x",
            format_bytes(stage.total),
            format_bytes(stage.redundant) if stage.redundant > 1.0 else "-",
            "none" if stage.smallest_dp is None else f"{stage.smallest_dp:,}",
            format_count(stage.largest),
        ]
        for stage in ladder.stages
    ]
    header = ["ZeRO", "B/parameter", "GB per GPU", "less", "all GPUs", "redundant", "smallest dp", "largest model"]
    bars = [TableBar(0.0, stage.bytes) for stage in ladder.stages]
    return [
        TextLines([
            f"model state of {format_count(ladder.parameters)} parameters on {gpus}",
            f"{recipe.total:g} B per parameter ({parts_of_recipe(recipe)}: {recipe.name}{default})",
        ], "head"),
        TableBlock(header, rows, bars=bars, bar_scale=ladder.capacity),
        TextLines([
            f"smallest dp: fewest replicas that fit; largest model: parameters that fit on {ladder.dp:,}; "
            "activations are not included",
            *([f"! more than {size}"] if not all(stage.fits for stage in ladder.stages) else []),
        ]),
    ]  # fmt: skip


# --- of a scenario ----------------------------------------------------------------------------------------------------


def _title_lines(scenario: Scenario) -> TextLines:
    return TextLines(
        [f"{scenario.title}: {scenario.gpus:,} GPUs | {describe_layout(scenario)}", describe_recipe(scenario)], "head"
    )


def job_memory_blocks(memory: JobMemory) -> OutputBlocks:
    """Return the printed memory of a job as text blocks."""
    capacity = memory.capacity
    stages = [[str(stage), *_memory_table_cells(held, capacity)] for stage, held in enumerate(memory.stages)]
    title = [f"GB on the fullest rank of each stage, of {capacity / 1e9:.4g} GB"]
    bars = [TableBar(0.0, held.total) for held in memory.stages]
    return [
        _title_lines(memory.scenario),
        TableBlock(["stage", *_HEADER], stages, title=title, bars=bars, bar_scale=capacity),
        *([_activation_table(memory)] if memory.kept else []),
        _zero_table(memory) if memory.rungs else TextLines(["ZeRO: 1 replica has nothing to shard over (dp 1, cp 1)"]),
    ]


def _zero_table(memory: JobMemory) -> TableBlock:
    rows = [
        [
            f"{rung.zero}{' (yours)' if rung.own else ''}",
            *(_memory_table_cells(rung.footprint, memory.capacity) if rung.footprint else ["-"] * len(_HEADER)),
            format_seconds(rung.step_time) if rung.step_time is not None else "invalid",
        ]
        for rung in memory.rungs
    ]
    notes = [f"ZeRO {row.zero} invalid: {common.join_error_lines(row.refused)}" for row in memory.rungs if row.refused]
    held = {rung.zero: rung.footprint.gradients for rung in memory.rungs if rung.footprint}
    if held.get(2, 0.0) > held.get(1, math.inf):
        notes.append(
            "ZeRO 2 holds more gradients than ZeRO 1 here: during reduction whole gradients exist along with shards, "
            "bucket by bucket (overlap.bucket_size) or, with overlap.grad_reduce off, all of them"
        )
    shards = memory.scenario.dp * memory.scenario.parallel.cp
    title = f"this job at each ZeRO stage, over {shards:,} GPUs; GB on the fullest GPU, and simulated step time"
    return TableBlock(["ZeRO", *_HEADER, "step"], rows, title=[title], notes=notes)


def _activation_table(memory: JobMemory) -> TableBlock:
    whole = sum(part.total_bytes for part in memory.kept)
    large = [part for part in memory.kept if part.total_bytes >= _SMALL * whole][:_TENSORS]
    rows = [
        [part.block, part.tensor, f"{part.bytes / 1e6:,.1f}", f"{part.alive:,}", f"{part.total_bytes / 1e9:,.2f}"]
        for part in large
    ]
    rest = whole - sum(part.total_bytes for part in large)
    number = len(memory.kept) - len(large)
    rows += [["", f"{number} smaller", "", "", f"{rest / 1e9:,.2f}"]] if number else []
    title = (
        f"activations of stage {memory.fullest}, the fullest, by tensor: {whole / 1e9:,.2f} GB at the peak, as "
        "planned; each row per layer and microbatch"
    )
    return TableBlock(["block", "tensor", "MB each", "alive", "GB"], rows, title=[title])


def _memory_table_cells(footprint: Footprint, capacity: float) -> list[str]:
    parts: dict[str, Any] = memory_by_category(footprint)
    total = f"{footprint.total / 1e9:,.2f}{fit_mark(footprint.total, capacity)}"
    return [*(f"{parts[name] / 1e9:,.2f}" for name in PARTS), total, f"{(capacity - footprint.total) / 1e9:,.2f}"]
