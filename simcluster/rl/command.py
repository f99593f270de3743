"""``simcluster rl``: simulate RL steps around a scenario that trains, show where the time goes, and draw a Gantt chart.

The chart shows the phases of the trainer, weight updates, and the sequences that every engine runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.rl.rollouts import list_uncounted_kinds
from simcluster.rl.spec import load_rl
from simcluster.rl.step import RlResult, simulate_rl, sweep_splits
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBlock, TextLines
from simcluster.show.palette import COMPUTE_KINDS, STREAMS, TEXT, WAITING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACTIVITIES = {
    "generating": "generating", "training": "log-probs and training", "tail": "idle: other engines still generate",
    "rollouts": "idle: waiting for rollouts", "reward": "idle: waiting for the reward",
    "trainer": "idle: waiting for the trainer", "weights": "weight update, or waiting for it",
}  # fmt: skip
_ASSUMES = (
    "assumed: a KV cache in 16 bits; not modelled: communication inside an engine, sampling, scheduling, preemption, "
    "the reference policy's memory"
)


def run(args: argparse.Namespace) -> None:
    """Simulate the file's RL steps, or every split of its GPUs; print and draw the answer."""
    rl = load_rl(args.file, common.read_overrides(args))
    with prefix_errors(args.file):
        splits = sweep_splits(rl) if args.sweep else {}
        results = [result for result in splits.values() if isinstance(result, RlResult)]
        found = (min(results, key=lambda result: (bool(result.warnings), result.step_time)) if results
                 else simulate_rl(rl))  # fmt: skip

    def blocks() -> OutputBlocks:
        return [*(_split_blocks(splits, found) if splits else ()), *_step_blocks(found)]

    def document() -> dict[str, Any]:
        rows = [{"rollout_gpus": count, **(_error(each) if isinstance(each, InputError) else to_document(each))}
                for count, each in splits.items()]  # fmt: skip
        return to_document(found) | ({"splits": rows} if rows else {})

    common.print_answer(args, blocks, document)
    common.draw_pictures(args, (args.gantt, lambda: draw_rl_steps(found)))


def to_document(found: RlResult) -> dict[str, Any]:
    """Return an RL step's numbers, JSON-compatible; times are seconds per step."""
    engines = len(found.pipeline.engines)
    return {
        "name": found.spec.name, "placement": found.spec.placement, "steps_off": found.spec.steps_off,
        "gpus": found.gpus, "trainer_gpus": found.scenario.gpus, "rollout_gpus": found.rollout_gpus,
        "engines": engines, "step_time_s": found.step_time, "phases_s": found.phases,
        "rollouts_s": dict(found.rollouts), "trainer_s": dict(found.trainer),
        "response_tokens_per_step": found.tokens, "tokens_per_s": found.tokens / found.step_time,
        "tokens_per_s_per_gpu": found.tokens / found.step_time / found.gpus,
        "sequences_per_update": found.scenario.training.global_batch, "decode": found.pipeline.stages.cost.source,
        "kv_cache_bytes": max(each.peak_bytes for each in found.pipeline.engines), "warnings": list(found.warnings),
        "uncounted_caches": list_uncounted_kinds(found.scenario.model),
    }  # fmt: skip


def _error(problem: InputError) -> dict[str, Any]:
    return {"error": common.join_error_lines(str(problem))}


def _step_blocks(found: RlResult) -> OutputBlocks:
    spec, step, engines = found.spec, found.step_time, len(found.pipeline.engines)
    model = found.scenario.model
    apart = spec.placement == "separate"
    gpus = (f"{found.scenario.gpus:,} GPUs train, {found.rollout_gpus:,} generate" if apart
            else f"{found.gpus:,} GPUs train and generate in turn")  # fmt: skip
    policy = f"{spec.steps_off} step{'s' * (spec.steps_off > 1)} off policy" if spec.steps_off else "in step"
    rate = found.tokens / step
    values = [
        NamedValue("step time", format_seconds(step), f", mean of {spec.steps - spec.steps_off - 1} RL steps"),
        NamedValue("generated", f"{rate:,.0f} response tokens/s", f", {rate / found.gpus:,.0f} per GPU"),
        NamedValue("decode", found.pipeline.stages.cost.source),
        NamedValue("update", f"{found.scenario.training.global_batch:,} sequences", f" x {spec.updates} per step"),
    ]
    phases = [[name, format_seconds(seconds), f"{seconds / step:.1%}"] for name, seconds in found.phases.items()]
    notes = ["phases of different steps overlap"] if spec.steps_off else []
    return [
        HeadlineValues(values, f"{spec.name}: {gpus} ({engines:,} x {spec.rollout.gpus_per_engine}), {policy}"),
        TableBlock(["phase", "time", "of step"], phases, notes=notes),
        _pool_table(found, apart=apart),
        TextLines(found.warnings, "warning"),
        TextLines([_ASSUMES + "".join(f", the cache of {kind} layers" for kind in list_uncounted_kinds(model))]),
    ]


def _pool_table(found: RlResult, *, apart: bool) -> TableBlock:
    pools: Mapping[str, Mapping[str, float]] = {"rollout GPUs": found.rollouts, "trainer GPUs": found.trainer}
    if not apart:  # the engines' view, in which the trainer is at work instead of waited for
        pools = {"GPUs": {"training" if name == "trainer" else name: part for name, part in found.rollouts.items()}}
    rows = [
        [text, *(f"{pool[name] / found.step_time:.1%}" if name in pool else "" for pool in pools.values())]
        for name, text in _ACTIVITIES.items() if any(pool.get(name) for pool in pools.values())
    ]  # fmt: skip
    return TableBlock(["share of time", *pools], rows)


def _split_blocks(splits: Mapping[int, RlResult | InputError], best: RlResult) -> Sequence[TableBlock | TextLines]:
    rows = [
        [f"{each.scenario.gpus:,}", f"{count:,}", format_seconds(each.step_time),
         f"{each.trainer['training'] / each.step_time:.1%}", f"{each.rollouts['generating'] / each.step_time:.1%}",
         "best" if each is best else "out of memory" if each.warnings else ""]
        for count, each in splits.items() if isinstance(each, RlResult)
    ]  # fmt: skip
    failed = {count: _error(each)["error"] for count, each in splits.items() if isinstance(each, InputError)}
    header = ["GPUs that train", "that generate", "step time", "training", "generating", ""]
    left = [f"{len(failed)} splits are not possible, as {count} GPUs that generate: {text}"
            for count, text in list(failed.items())[:1]]  # fmt: skip
    return [TableBlock(header, rows, notes=left)]


# --- Gantt chart ------------------------------------------------------------------------------------------------------

_MOST_ENGINES, _STEPS = 12, 3
_COLOURS = {
    "onload": COMPUTE_KINDS["offload"], "old log-probs": COMPUTE_KINDS["checkpoint"],
    "reference log-probs": COMPUTE_KINDS["weight_grad"], "training": COMPUTE_KINDS["backward"],
    "offload": COMPUTE_KINDS["other"], "reward after the last response": COMPUTE_KINDS["validation"],
}  # fmt: skip
_WEIGHTS, _ROLLOUTS = STREAMS["dp"], COMPUTE_KINDS["forward"]


def draw_rl_steps(found: RlResult) -> Figure:
    """Draw the last three of the reported RL steps: a row for the trainer, and one per engine (12 at most)."""
    from matplotlib.figure import Figure  # only if there is a picture
    from matplotlib.patches import Patch

    from simcluster.show.bars import choose_time_unit, set_up_bar_rows

    start, end = found.window
    start = max(start, end - _STEPS * found.step_time)
    unit, scale = choose_time_unit(end - start)
    count = len(found.pipeline.engines)
    shown = np.unique(np.linspace(0, count - 1, min(count, _MOST_ENGINES)).round().astype(int)).tolist()
    figure = Figure(figsize=(12.0, 1.9 + 0.36 * (len(shown) + 2)), layout="constrained")
    axes = figure.subplots()
    set_up_bar_rows(axes, ["trainer", "reward", *(f"engine {number}" for number in shown)], f"time ({unit})")
    axes.set_xlim(0, (end - start) / scale)
    used = _draw_trainer(axes, found, start, end, scale)
    for row, number in enumerate(shown, start=2):
        _draw_engine(axes, found, number, row, (start, end, scale))
    for begin, finish in found.pipeline.updates:
        if finish > start and begin < end:
            axes.axvspan((begin - start) / scale, (finish - start) / scale, color=_WEIGHTS, linewidth=0.8, zorder=3)
    colours = {**used, "weight update": _WEIGHTS, "running sequences (height: of the engine's maximum)": _ROLLOUTS}
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), frameon=False, fontsize=8.5)
    title = f"{found.spec.name}: {format_seconds(found.step_time)} per RL step"
    axes.set_title(title, fontsize=10, color=TEXT, loc="left")
    return figure


def _draw_trainer(axes: Axes, found: RlResult, start: float, end: float, scale: float) -> dict[str, str]:
    used, line, reward = dict[str, str](), found.pipeline, "reward after the last response"
    rewards = [(reward, *times) for times in zip(line.generated, line.scored, strict=True) if times[0] < times[1]]
    for name, begin, finish in [*line.phases, *rewards]:
        if finish > start and begin < end:
            used.setdefault(name, _COLOURS[name])
            axes.barh(int(name == reward), (finish - begin) / scale, left=(begin - start) / scale, height=0.7,
                      color=_COLOURS[name], edgecolor=_COLOURS[name], linewidth=0.8)  # fmt: skip
    return used


def _draw_engine(axes: Axes, found: RlResult, number: int, row: int, window: tuple[float, float, float]) -> None:
    start, end, scale = window
    times, running = np.array([*found.pipeline.engines[number].history, (end, 0)]).T
    x, height = np.maximum(times - start, 0.0) / scale, 0.8 * running / found.spec.rollout.concurrency
    axes.fill_between([0, (end - start) / scale], row - 0.4, row + 0.4, color=WAITING, alpha=0.35, linewidth=0)
    axes.fill_between(x, row + 0.4, row + 0.4 - height, step="post", color=_ROLLOUTS, linewidth=0)
