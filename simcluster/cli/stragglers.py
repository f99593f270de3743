"""simcluster stragglers: what makes a scenario's step longer than it need be, who waits for whom, and what pays."""

from __future__ import annotations

import argparse
from typing import Any

from simcluster.base.satellites import provided
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.cli.overrides import overrides_of
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.scenario import load
from simcluster.show.layout import layout
from simcluster.show.pictures import picture
from simcluster.step.simulate import replay
from simcluster.studies.whatif.mitigations import Mitigation, what_pays
from simcluster.studies.whatif.straggling import Cause, Stragglers, steps_without_causes, stragglers

_WAITS = 5
_WORST = 5


def run(args: argparse.Namespace) -> None:
    """Load, check where results go, play, print, draw, write."""
    scenario = load(args.scenario, overrides_of(args, args.scenario))
    require_time_for(scenario, steps_without_causes(scenario), "stragglers")
    result = replay(scenario)
    found = stragglers(result)
    tried = what_pays(result) if args.mitigate else []
    blocks = [[*_head(result), "", *_answer(found)], _causes(found), _where(found), _waits(result)]
    if args.mitigate:
        blocks.append(_tried(result, tried))
    common.answer(args, lambda: common.in_blocks(blocks), lambda: _document(result, found, tried))
    common.draw(
        args,
        (args.heatmap, lambda: picture("stragglers")(result, found)),
        (args.matrix, lambda: picture("waits")(result)),
    )


def text_of(found: Stragglers) -> str:
    """What a person reads of stragglers without the step that has them."""
    return common.in_blocks([_answer(found), _causes(found), _where(found)])


def _head(result: Result) -> list[str]:
    return [result.scenario.title, f"{result.scenario.gpus:,} GPUs | {layout(result.scenario)}"]


def _answer(found: Stragglers) -> list[str]:
    def line(name: str, value: str, text: str) -> str:
        return f"  {name:<12}{value:>9}   {text}".rstrip()

    estimated = found.estimated
    return [
        line("step time", format_seconds(found.step_time), ""),
        line("T_ideal", format_seconds(found.clean), "without the faults of the scenario, played"),
        line("S", f"{found.slowdown:.4f}", "the step over T_ideal"),
        line("S, by trace", f"{estimated.slowdown:.4f}",
             "the estimator's: over a step where every op takes what is typical of its type"),
    ]  # fmt: skip


def _causes(found: Stragglers) -> list[str]:
    if not found.causes:
        return ["nothing straggles: no faults, and no stage that others wait for"]

    def row(cause: Cause) -> list[str]:
        estimate, off = cause.estimated_cost, ""
        if estimate is not None:
            off = f"{100 * (estimate - cause.cost):+.1f}"
        alone = "" if cause.alone is None else f"+{cause.alone / found.clean - 1:.1%}"
        costs = [f"{cause.cost:.1%}", "" if estimate is None else f"{estimate:.1%}", off]
        return [cause.what, *costs, format_seconds(cause.without), alone]

    header = ["cause", "costs", "by trace", "points off", "step without", "alone"]
    table = format_table(header, [row(cause) for cause in found.causes])
    return ["what the step would save without it (costs), what a trace's estimator makes of that, by how many points",
            "it is off, and what it adds to a step without the others (alone)", *table.splitlines(),
            *(f"{cause.what}: {cause.note}" for cause in found.causes if cause.note)]  # fmt: skip


def _where(found: Stragglers) -> list[str]:
    estimated = found.estimated
    types = [[name, f"{value:.4f}"] for name, value in estimated.by_type.items() if value >= 1.0005][:_WORST]
    stages = [[f"stage {stage}", f"{value:.4f}"] for stage, value in enumerate(estimated.by_stage)]
    replicas = sorted(enumerate(estimated.by_replica.tolist()), key=lambda entry: -entry[1])[:_WORST]
    rows = [*types, *stages, *([f"dp rank {dp}", f"{value:.4f}"] for dp, value in replicas)]
    lines = ["where, by trace: S if only this took what it took, and all else what is typical"]
    lines += format_table(["group", "S"], rows).splitlines()
    names = ", ".join(f"dp {dp} stage {stage} ({estimated.by_worker[dp, stage]:.3f})"
                      for dp, stage in estimated.worst[:_WORST])  # fmt: skip
    return [*lines, f"  the slowest 3 % of workers: {names}", *provided("straggling in words")(estimated)]


def _waits(result: Result) -> list[str]:
    longest = result.waits[:_WAITS]
    if not longest:
        return []
    counts = dict(result.weights)
    rows = [
        [f"rank {wait.rank}" + (f" (and {counts[wait.rank] - 1:,} like it)" if counts[wait.rank] > 1 else ""),
         f"rank {wait.culprit}", wait.where, format_seconds(wait.seconds / result.steps)]
        for wait in longest
    ]  # fmt: skip
    return ["the longest waits, in all, a step", *format_table(["who", "for", "at", "seconds"], rows).splitlines()]


def _tried(result: Result, tried: list[Mitigation]) -> list[str]:
    if not tried:
        return ["what pays: nothing of what is known to help applies here"]
    rows = [["as it is", format_seconds(result.step_time), f"{result.scenario.training.global_batch:,}",
             f"{result.scenario.gpus:,}", "", "", ""]]  # fmt: skip
    rows += [
        [each.what, format_seconds(each.step_time), f"{each.samples:,}", f"{each.gpus:,}", f"{each.pays:+.1%}",
         f"{each.pays_per_gpu:+.1%}", each.note]
        for each in tried
    ]  # fmt: skip
    header = ["what pays", "step", "batch", "GPUs", "time saved", "GPU time saved", ""]
    return [*format_table(header, rows).splitlines(), "  saved: for the same sequences; negative costs more"]


def _document(result: Result, found: Stragglers, tried: list[Mitigation]) -> dict[str, Any]:
    waits = [
        {"rank": wait.rank, "culprit": wait.culprit, "where": wait.where, "seconds": wait.seconds / result.steps}
        for wait in result.waits
    ]
    return {
        "name": result.scenario.name,
        **found.to_dict(),
        "waits": waits,
        "mitigations": [each.to_dict() for each in tried],
        "scenario": result.scenario.document(),
    }
