"""simcluster stragglers: causes that slow down a step, ranks that wait for other ranks, and remedies."""

from __future__ import annotations

import argparse
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.results.result import Result
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import load
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines
from simcluster.show.plot_registry import load_plot
from simcluster.show.study_answers import describe_stragglers
from simcluster.show.table_cells import describe_layout
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.mitigations import Mitigation, mitigations
from simcluster.studies.whatif.straggling import StragglerCosts, count_straggler_steps, stragglers

_WAITS = 5


def run(args: argparse.Namespace) -> None:
    """Simulate the step without each cause in turn, and print, draw and write the result."""
    if args.steps is not None:
        load_satellite_object("stragglers in step times")(args)
        return
    if args.scenario is None:
        raise InputError("no scenario: write simcluster stragglers SCENARIO, or --steps FILE with step times by rank")
    scenario = load(args.scenario, read_overrides(args, args.scenario))
    require_time_for_steps(scenario, count_straggler_steps(scenario), "stragglers")
    result = simulate_scenario(scenario)
    found = stragglers(result)
    tried = mitigations(result) if args.mitigate else []
    head = [result.scenario.title, f"{result.scenario.gpus:,} GPUs | {describe_layout(result.scenario)}"]
    blocks = [TextLines(head), *describe_stragglers(found), *_wait_tables(result)]
    common.print_answer(
        args,
        lambda: [*blocks, *([_remedy_table(result, tried)] if args.mitigate else [])],
        lambda: _json_document(result, found, tried),
    )
    common.draw_pictures(
        args,
        (args.heatmap, lambda: load_plot("stragglers")(result, found)),
        (args.matrix, lambda: load_plot("waits")(result)),
    )


def _wait_tables(result: Result) -> list[TableBlock]:
    longest = result.waits[:_WAITS]
    if not longest:
        return []
    counts = dict(result.weights)
    rows = [
        [f"rank {wait.rank}" + (f" (and {counts[wait.rank] - 1:,} more)" if counts[wait.rank] > 1 else ""),
         f"rank {wait.culprit}", wait.where, format_seconds(wait.seconds / result.steps)]
        for wait in longest
    ]  # fmt: skip
    return [TableBlock(["rank", "waits for", "at", "seconds"], rows, title=["the longest waits, summed per step"])]


def _remedy_table(result: Result, remedies: list[Mitigation]) -> OutputBlock:
    if not remedies:
        return TextLines(["remedies: no known remedy applies"])
    rows = [["unchanged", format_seconds(result.step_time), f"{result.scenario.training.global_batch:,}",
             f"{result.scenario.gpus:,}", "", "", ""]]  # fmt: skip
    rows += [
        [each.what, format_seconds(each.step_time), f"{each.samples:,}", f"{each.gpus:,}", f"{each.pays:+.1%}",
         f"{each.pays_per_gpu:+.1%}", each.note]
        for each in remedies
    ]  # fmt: skip
    header = ["remedy", "step", "batch", "GPUs", "time saved", "GPU time saved", ""]
    return TableBlock(header, rows, notes=["  saved: for the same sequences; negative costs more"])


def _json_document(result: Result, costs: StragglerCosts, remedies: list[Mitigation]) -> dict[str, Any]:
    waits = [
        {"rank": wait.rank, "culprit": wait.culprit, "where": wait.where, "seconds": wait.seconds / result.steps}
        for wait in result.waits
    ]
    return {
        "name": result.scenario.name,
        **costs.to_dict(),
        "waits": waits,
        "mitigations": [each.to_dict() for each in remedies],
        "scenario": result.scenario.document(),
    }
