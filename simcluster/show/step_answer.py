"""Printed output of a simulated step: job, metrics, time breakdown, memory, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.texts import escape_table_cell
from simcluster.base.units import format_bytes, format_seconds
from simcluster.faults.descriptions import describe_fault, describe_faults
from simcluster.results.attention import attention_rates
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.step_metrics import METRICS
from simcluster.scenario.memory_plan import describe_recipe, describe_recompute
from simcluster.scenario.memory_remedies import MOST_CHANGES
from simcluster.schedules.comparison import ScheduleBubble
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBar, TableBlock, TextLines
from simcluster.show.table_cells import BREAKDOWN_LABELS, describe_gpus, describe_layout

if TYPE_CHECKING:
    from simcluster.results.result import Result
    from simcluster.results.simulated_run import Run
    from simcluster.scenario.data_section import Data
    from simcluster.scenario.memory_remedies import MemoryRemedies, MemoryRemedy
    from simcluster.scenario.prediction_intervals import PredictionInterval
    from simcluster.scenario.scenario import Scenario

_STATE = ("parameters", "gradients", "optimizer", "activations", "other", "buffers")
_SLOW = "straggler_slowdown"  # the step is simulated again for it


def describe_step(result: Result) -> OutputBlocks:
    """Return the printed output about a simulated step."""
    warned = [f"warning: {text}" for text in result.warnings()]
    assumed = [f"assumed: {text}" for text in result.assumed]
    notes = [f"note: {note.text}" for note in result.notes()]
    return [
        TextLines(describe_job(result.scenario), "head"),
        HeadlineValues(_rate_values(result)),
        time_breakdown_table(result),
        HeadlineValues(_memory_values(result)),
        TextLines(_list_nccl_choices(result), "layout"),
        HeadlineValues(_describe_stragglers(result) if result.clean else []),
        TextLines([*warned, *assumed, *notes], "warning"),
        TextLines(_describe_remedies(result.remedies) if result.remedies else []),
        TextLines([_describe_engine(result)]),
    ]


def describe_run(run: Run) -> OutputBlocks:
    """Return the printed output about a run that has no scenario, such as one with user-given op durations."""
    mean = run.times
    facts = [
        NamedValue("step time", format_seconds(run.step_time)),
        NamedValue("bubble", f"{mean.bubble_fraction:.1%}", " of the step"),
    ]
    if mean.communication > 0:
        facts.append(NamedValue("overlap", f"{mean.overlap_fraction:.1%}", f" of {format_seconds(mean.communication)}"))
    steps = f"{len(run.ranks):,} ranks, {run.steps:,} step{'s' * (run.steps > 1)}"
    return [TextLines([steps], "head"), HeadlineValues(facts), time_breakdown_table(run)]


def describe_job(scenario: Scenario) -> list[str]:
    """Return lines that describe the job: name, GPUs and layout, batches, data and faults."""
    training = scenario.training
    recompute = "no recompute" if training.recompute == "none" else f"{describe_recompute(training)} recompute"
    if training.recompute != "none" and training.recompute_every > 1:
        recompute += f" of 1 layer in {training.recompute_every}"
    return [
        escape_table_cell(scenario.title),
        f"{describe_gpus(scenario)} | {describe_layout(scenario)}",
        f"global batch {training.global_batch:,} x {scenario.model.sequence_length:,} tokens, micro batch "
        f"{training.micro_batch}, {scenario.microbatches:,} microbatch{'es' * (scenario.microbatches != 1)} | "
        f"{training.precision}, {recompute}",
        *([f"data: {data}"] if scenario.data and (data := _describe_data(scenario.data)) else []),
        *([f"faults: {describe_faults(scenario.document_faults)}"] if scenario.document_faults else []),
    ]


def _describe_data(data: Data) -> str:
    drawn = data.document_lengths
    parts = [] if drawn is None else describe_fault(drawn).split(", ")[1:]
    parts += ["no mask"] if drawn is not None and data.mask == "none" else []
    parts += [f"{data.unique:.4g} unique tokens"] if data.unique else []
    return ", ".join([*parts, *([data.loader.describe()] if data.loader else [])])


# --- numbers, known of results that were saved, too -------------------------------------------------------------------


def metrics_without_slowdown(result: Result) -> dict[str, float]:
    """Return a result's metrics without the straggler slowdown, which would require a second simulation."""
    return {name: metric.formula(result) for name, metric in METRICS.items() if name != _SLOW or result.clean is None}


def describe_rates(
    numbers: Mapping[str, Any], scenario: Scenario | None, likely: PredictionInterval | None
) -> list[NamedValue]:
    """Return step time, throughput and MFU as values to print, with the likely interval if known."""
    seconds, mfu = numbers["step_time_s"], numbers["mfu"]
    measured = scenario.measured_step_time if scenario else None
    precision = f" in {scenario.training.precision.removesuffix('-mixed')}" if scenario else ""
    halved = "" if scenario and not scenario.model.causal else "; causal attention counted as half"
    facts = [
        NamedValue("step time", format_seconds(seconds), remark=_describe_measured_error(scenario, seconds)),
        *([describe_likely_interval(likely)] if likely else []),
        NamedValue(
            "throughput",
            f"{numbers['tokens_per_s']:,.0f} tokens/s",
            f", {numbers['tokens_per_s_per_gpu']:,.1f} per GPU; {numbers['model_tflops_per_gpu']:.1f} TFLOP/s per GPU",
        ),
        NamedValue(
            "MFU", f"{mfu:.1%}", f" of the peak{precision}",
            f"HFU {numbers['hfu']:.1%}; excludes recompute{halved}",
        ),
    ]  # fmt: skip
    low, over = scenario.cluster.device.peak.bf16 if scenario else None, numbers.get("mfu_bf16", mfu)
    if over != mfu:
        peak = f", {low / 1e12:,.4g} TFLOP/s, as papers quote{precision.removeprefix(' in')} runs" if low else ""
        facts.append(NamedValue("", f"{over:.1%}", f" of the peak in bf16{peak}"))
    if scenario and (reached := attention_rates(scenario)) is not None:
        parts = f"{reached.forward / reached.peak:.0%} and {reached.backward / reached.peak:.0%} of peak"
        forward, backward = f"{reached.forward / 1e12:.0f} TFLOP/s", f"{reached.backward / 1e12:.0f}"
        aside = f"{reached.kernel}, including the small kernels around it: {parts}"
        facts.append(NamedValue("attention", forward, f" forward, {backward} backward", aside))
    if measured is not None:
        more = seconds / measured
        rate = f"HFU {more * numbers['hfu']:.1%}); {more * numbers['tokens_per_s']:,.0f} tokens/s"
        facts.append(NamedValue("measured", f"MFU {more * mfu:.1%}", f"   ({rate}"))
    if scenario and scenario.measured is not None and scenario.measured.changed:
        number, unit, why = scenario.measured.comparison_obstacle().split(" ", 2)
        facts.append(NamedValue("measured", f"{number} {unit}", f" {why}"))
    return facts


def describe_padding(numbers: Mapping[str, Any]) -> list[NamedValue]:
    """Return throughput and MFU without padding as values to print; none if there is no padding."""
    real = numbers["real_token_fraction"]
    rates = f"{numbers['real_tokens_per_s']:,.0f} tokens/s; their MFU {numbers['mfu_without_padding']:.1%}"
    return [NamedValue("real tokens", f"{real:.1%}", f", the rest is padding: {rates}")] if real != 1 else []


def describe_memory_use(numbers: Mapping[str, Any], capacity: float) -> list[NamedValue]:
    """Return bubble, overlap and peak memory as values to print, given a GPU's memory in bytes (0: unknown)."""
    facts = []
    own = ScheduleBubble(numbers.get("schedule_bubble_fraction", 0.0), numbers.get("schedule_bubble_formula", ""))
    if own.fraction or numbers["bubble_fraction"]:
        what, why = " of the step: waiting for other stages", own.describe() if own.fraction else ""
        facts.append(NamedValue("bubble", f"{numbers['bubble_fraction']:.1%}", what, why))
    if numbers["communication_s"] > 0:
        whole = format_seconds(numbers["communication_s"])
        what = f" of {whole} of communication per rank overlaps with computation"
        facts.append(NamedValue("overlap", f"{numbers['overlap_fraction']:.1%}", what))
    used = numbers["peak_memory_bytes"]
    of = f" of {capacity / 1e9:.1f}" if capacity else ""
    part = used / capacity if capacity else None
    return [*facts, NamedValue("memory", f"{used / 1e9:.1f}{of} GB", " on the fullest GPU", gauge_fraction=part)]


def _describe_measured_error(scenario: Scenario | None, seconds: float) -> str:
    measured = scenario.measured_step_time if scenario else None
    if scenario is None or scenario.measured is None or measured is None:
        return ""
    off = seconds / measured - 1
    named = f", {scenario.measured.source}" if scenario.measured.source else ""
    return f"{abs(off):.1%} {'above' if off > 0 else 'below'} the measured {format_seconds(measured)}{named}"


def describe_likely_interval(interval: PredictionInterval) -> NamedValue:
    """Return the likely range of a measured step time, and the validated runs used for it, as a value to print."""
    span = f"{format_seconds(interval.low)} to {format_seconds(interval.high)}"
    if interval.extrapolates_on:
        lacking = ", ".join(interval.extrapolates_on)
        return NamedValue("likely", "unknown", f": no validated run has {lacking} (all runs: {span})")
    runs = "all validated runs" if interval.like == "any" else f"{interval.rows:,} validated runs ({interval.like})"
    return NamedValue("likely", span, remark=f"{interval.level:.0%} of {runs}")


def time_breakdown_table(run: Run) -> TableBlock:
    """Return a table of how the step time is spent, with one row and bar per activity."""
    breakdown, total = run.times.breakdown, run.step_time
    shown = {name: breakdown[name] for name in BREAKDOWN if breakdown[name] > 0}
    rows = [(BREAKDOWN_LABELS[key], f"{format_seconds(own):>9}", f"{own / total:>6.1%}") for key, own in shown.items()]
    return TableBlock(
        ("part of the step", "seconds", "of it"), rows, title=["  where the step time went (mean over ranks)"],
        indent=4, bars=[TableBar(0.0, own, f"k-{name}") for name, own in shown.items()], chart=True,
    )  # fmt: skip


# --- what a result alone knows ----------------------------------------------------------------------------------------


def _rate_values(result: Result) -> list[NamedValue]:
    numbers = metrics_without_slowdown(result)
    facts = describe_rates(numbers, result.scenario, result.likely_interval)
    if result.checkpoint is not None and result.steps > 1 and not facts[0].remark:
        mean = f"mean of {result.steps} steps, including a checkpoint (see below)"
        facts[0] = NamedValue("step time", format_seconds(result.step_time), remark=mean)
    if result.facts.attention != 1:
        share = f"attention within documents: {result.facts.attention:.1%} of the FLOPs for whole sequences"
        facts.append(NamedValue("", share))
    return [*facts, *describe_padding(numbers)] if result.facts.real != 1 else facts


def _memory_values(result: Result) -> list[NamedValue]:
    memory, capacity = result.memory, result.facts.memory
    facts = describe_memory_use(
        {**metrics_without_slowdown(result), "schedule_bubble_formula": result.schedule_bubble.formula}, capacity
    )
    if result.memory_peak.kind:
        facts.append(NamedValue("", f"at {result.memory_peak.describe()}, on rank {result.memory_peak.rank}"))
    sizes = {name: getattr(memory, name) for name in _STATE}
    parts = [f"{name} {size / 1e9:.1f}" for name, size in sizes.items() if size or name != "buffers"]
    headroom = capacity - memory.total
    parts.append(f"{'free' if headroom >= 0 else 'over by'} {abs(headroom) / 1e9:.1f}")
    facts += [NamedValue("", f"GB: {', '.join(parts)}"), NamedValue("", describe_recipe(result.scenario))]
    facts += _describe_host_copies(result) if result.host_copies else ()
    lines = [
        *(result.loading.summary_lines() if result.loading else ()),
        *(result.checkpoint.summary_lines() if result.checkpoint else ()),
    ]
    return facts + [NamedValue(line[:15].strip(), line[15:]) for line in lines]


def _describe_host_copies(result: Result) -> Iterator[NamedValue]:
    names = {"d2h": "to the host", "h2d": "back"}
    copies = [
        f"{copy['bytes'] / 1e9:.1f} GB {names[direction]} in {format_seconds(copy['wire_s'])}, "
        f"{copy['hidden_s'] / copy['wire_s']:.0%} overlapped with computation"
        for direction, copy in result.host_copies.items()
    ]
    yield NamedValue("offload", f"{result.host_memory / 1e9:.1f} GB", " in the fullest host memory")
    yield NamedValue("", f"a rank copies {'; '.join(copies)}")


def _list_nccl_choices(result: Result) -> list[str]:
    ways: dict[tuple[str, str, str], list[float]] = {}
    for call in result.collectives:
        if call["protocol"]:
            way = f"{call['algorithm']} {call['protocol']}"
            ways.setdefault((call["axis"], call["kind"], way), []).append(call["size_bytes"])
    lines = ["  algorithms that NCCL chooses"] if ways else []
    for (axis, kind, way), sizes in ways.items():
        low, high = format_bytes(min(sizes)), format_bytes(max(sizes))
        lines.append(f"    {axis} {kind} of {low if low == high else f'{low} to {high}'}: {way}")
    return lines


def _describe_stragglers(result: Result) -> list[NamedValue]:
    whole = f" x what it takes without the faults ({format_seconds(result.without_faults or 0.0)})"
    longest = [wait for wait in result.waits if wait.where == "group"][:3]
    waits = [f"rank {wait.rank} waited {format_seconds(wait.seconds)} for rank {wait.culprit}" for wait in longest]
    slowdown = NamedValue("stragglers", f"the step takes {result.slowdown:.3f}", whole)
    return [slowdown, *(NamedValue("", wait) for wait in waits)]


def _describe_remedies(remedies: MemoryRemedies) -> list[str]:

    def command(remedy: MemoryRemedy) -> str:
        return "  ".join(f"--set {text}" for text in remedy.overrides())

    if not remedies.found:
        closest = f"; closest: {command(remedies.closest)}" if remedies.closest else ""
        return [f"  no combination of up to {MOST_CHANGES} changes fits: {remedies.shortage}{closest}"]
    number = remedies.found[0].changes
    what = "one change" if number == 1 else f"{number} changes together"
    lines = [f"  would fit with {what} (likely fastest first):"]
    return lines + [f"    {command(each)}  ({each.memory / 1e9:.1f} GB)" for each in remedies.found]


def _describe_engine(result: Result) -> str:
    simulated, total, record = len(result.weights), result.facts.ranks, result.record
    folded = f"{simulated:,} representative{'s' * (simulated > 1)}, " if simulated < total else ""
    names = {"simpy": "SimPy", "reference": "SimPy, the reference", "compiled": "compiled engine"}
    engine = names.get(record.engine, record.engine)
    return f"  simulated {total:,} ranks ({folded}{record.events:,} events, {engine})"
