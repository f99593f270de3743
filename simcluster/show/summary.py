"""A result in ten seconds of reading: plain text, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.base.printable import on_a_line
from simcluster.base.units import format_bytes, format_seconds
from simcluster.faults.words import all_in_words
from simcluster.results.attention import attention_reached
from simcluster.results.metrics import BREAKDOWN
from simcluster.results.numbers import METRICS
from simcluster.scenario.data import data_in_words
from simcluster.scenario.fits import MOST_CHANGES
from simcluster.scenario.memory_plan import recipe_words, recompute_words
from simcluster.show.cells import PARTS
from simcluster.show.layout import gpus_of_cluster, layout

if TYPE_CHECKING:
    from simcluster.results.distribution import Distribution
    from simcluster.results.played import Run
    from simcluster.results.result import Result
    from simcluster.scenario.fits import MemoryRemedy
    from simcluster.scenario.scenario import Scenario

_BAR = 36  # characters of the longest bar
_STATE = ("parameters", "gradients", "optimizer", "activations", "other", "buffers")


def summary(result: Result) -> str:
    """The answer, where the time went, memory, waiting, warnings."""
    blocks = [job_lines(result.scenario), _answer(result), _where(result), _state(result), _collectives(result)]
    if result.without_faults is not None:
        blocks.append(_stragglers(result))
    warned = [f"warning: {text}" for text in result.warnings()]
    assumed = [f"assumed: {text}" for text in result.assumed]
    blocks.append([*warned, *assumed, *(f"note: {note.text}" for note in result.notes())])
    blocks.append(_remedies(result))
    blocks.append(_engine(result))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def replicas(distribution: Distribution) -> str:
    """The step times of many replicas; what stands above them in a summary is the step without chance."""
    mean, (low, high) = distribution.mean, distribution.interval
    parts = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    spread = [f"{name} {distribution.quantile(part):.6g} s" for name, part in parts.items()]
    how = "longest paths through the step above, with other times of kernels"
    return "\n".join(
        [
            f"{len(distribution):,} replicas, each with draws of its own (all above: the step without chance)",
            f"  step time    {mean:.6g} s on average, {mean / distribution.planned - 1:+.2%}   "
            f"(95 % interval of the mean {low:.6g} to {high:.6g} s)",
            f"               {', '.join(spread)}",
            f"  played as {how if distribution.method == 'sweep' else 'events, one after the other'}",
        ]
    )


def beside_events(off: Sequence[float]) -> list[str]:
    """How far replicas of a sweep are from events, as parts of their steps, if they are at all."""
    if not any(off):
        return []
    some = " and ".join(f"{each:+.2%}" for each in off)
    return [f"               links and interference as without chance: {some} from events with the same draws"]


def of_run(run: Run) -> str:
    """The step time of a played program that is no job's, and where the time went."""
    times = run.times
    lines = [
        f"  step time    {format_seconds(run.step_time)}",
        f"  bubble       {times.bubble_fraction:.1%} of the step",
    ]
    if times.communication > 0:
        lines.append(f"  overlap      {times.overlap_fraction:.1%} of {format_seconds(times.communication)}")
    return "\n".join(
        [f"{len(run.ranks):,} ranks, {run.steps:,} step{'s' * (run.steps > 1)}", "", *lines, "", *_where(run)]
    )


def job_lines(scenario: Scenario) -> list[str]:
    """What is run, in a few lines."""
    training = scenario.training
    recompute = "no recompute" if training.recompute == "none" else f"{recompute_words(training)} recompute"
    if training.recompute != "none" and training.recompute_every > 1:
        recompute += f" of 1 layer in {training.recompute_every}"
    return [
        on_a_line(scenario.title),
        f"{gpus_of_cluster(scenario)} | {layout(scenario)}",
        f"global batch {training.global_batch:,} x {scenario.model.sequence_length:,} tokens, micro batch "
        f"{training.micro_batch}, {scenario.microbatches:,} microbatch{'es' * (scenario.microbatches != 1)} | "
        f"{training.precision}, {recompute}",
        *([f"data: {told}"] if scenario.data and (told := data_in_words(scenario.data)) else []),
        *([f"faults: {all_in_words(scenario.given_faults)}"] if scenario.given_faults else []),
    ]


def _answer(result: Result) -> list[str]:
    facts, seconds = result.facts, result.step_time
    measured = result.measured
    lines = [f"  step time    {format_seconds(seconds)}"]
    if result.checkpoint is not None and result.steps > 1:
        lines[0] += f"   (mean of {result.steps} steps, a checkpoint among them: below)"
    if measured is not None:
        off = seconds / measured.step_time - 1
        side = "above" if off > 0 else "below"
        source = f", {measured.source}" if measured.source else ""
        lines[0] += f"   ({abs(off):.1%} {side} the measured {format_seconds(measured.step_time)}{source})"
    lines += _likely(result)
    lines.append(
        f"  throughput   {facts.tokens / seconds:,.0f} tokens/s, {facts.tokens / seconds / facts.ranks:,.1f} per GPU; "
        f"{facts.model_flops / seconds / facts.ranks / 1e12:.1f} TFLOP/s per GPU"
    )
    lines.append(
        f"  MFU          {result.mfu:.1%} of the peak in {facts.precision}   (HFU {result.hfu:.1%}; no recompute in "
        "MFU, causal attention at one half)"
    )
    if facts.low:
        lines.append(
            f"               {result.mfu_bf16:.1%} of the peak in bf16, {facts.bf16_flops / 1e12:,.4g} TFLOP/s, as "
            f"papers quote {facts.precision} runs"
        )
    if (reached := attention_reached(result.scenario)) is not None:
        parts = f"{reached.forward / reached.peak:.0%} and {reached.backward / reached.peak:.0%} of peak"
        lines.append(
            f"  attention    {reached.forward / 1e12:.0f} TFLOP/s forward, {reached.backward / 1e12:.0f} backward   "
            f"({reached.kernel}, with the passes around it: {parts})"
        )
    if measured is not None:
        lines.append(
            f"  measured     MFU {measured.mfu:.1%}   (HFU {measured.hfu:.1%}); {measured.tokens_per_s:,.0f} tokens/s"
        )
    if (told := result.scenario.measured) is not None and told.changed:
        lines.append(f"  measured     {told.of_another_run()}")
    if facts.attention != 1:
        lines.append(f"               attention within documents: {facts.attention:.1%} of that of whole sequences")
    if facts.real != 1:
        rate, mfu = (METRICS[name].of(result) for name in ("real_tokens_per_s", "real_mfu"))
        lines.append(f"  real tokens  {facts.real:.1%}, the rest is padding: {rate:,.0f} tokens/s; their MFU {mfu:.1%}")
    return lines


def _likely(result: Result) -> list[str]:
    """Where a measured time should be, and by which runs."""
    found = result.likely
    span = f"{format_seconds(found.low)} to {format_seconds(found.high)}"
    if found.far:
        return [f"  no promise   far from all that was validated: {', '.join(found.far)} (all runs: {span})"]
    like = "all validated runs" if found.like == "any" else f"{found.rows:,} validated runs ({found.like})"
    return [f"  likely       {span}   ({found.level:.0%} of {like})"]


def _where(result: Run) -> list[str]:
    breakdown, total = result.times.breakdown, result.step_time
    shown = [name for name in BREAKDOWN if breakdown[name] > 0]
    most = max(breakdown.values())
    width = max(len(PARTS[name]) for name in shown)
    lines = ["  where the step went (mean over ranks)"]
    for name in shown:
        seconds = breakdown[name]
        bar = "█" * round(_BAR * seconds / most) or "▏"
        lines.append(f"    {PARTS[name]:<{width}}  {format_seconds(seconds):>9}  {seconds / total:>6.1%}  {bar}")
    return lines


def _collectives(result: Result) -> list[str]:
    """What NCCL picked, a line for each axis and kind of collective; nothing where the links alone count."""
    ways: dict[tuple[str, str, str], list[float]] = {}
    for call in result.collectives:
        if call["protocol"]:
            way = f"{call['algorithm']} {call['protocol']}"
            ways.setdefault((call["axis"], call["kind"], way), []).append(call["size_bytes"])
    if not ways:
        return []
    lines = ["  what NCCL picks"]
    for (axis, kind, way), sizes in ways.items():
        low, high = format_bytes(min(sizes)), format_bytes(max(sizes))
        span = low if low == high else f"{low} to {high}"
        lines.append(f"    {axis} {kind} of {span}: {way}")
    return lines


def _state(result: Result) -> list[str]:
    times, memory, capacity = result.times, result.memory, result.facts.memory
    filled = min(_BAR, round(_BAR * memory.total / capacity))
    sizes = {name: getattr(memory, name) for name in _STATE}
    parts = [f"{name} {size / 1e9:.1f}" for name, size in sizes.items() if size or name != "buffers"]
    headroom = capacity - memory.total
    parts.append(f"{'free' if headroom >= 0 else 'short of'} {abs(headroom) / 1e9:.1f}")
    lines = []
    if result.scenario.parallel.pp > 1:
        lines.append(
            f"  bubble       {times.bubble_fraction:.1%} of the step: waiting for other stages   "
            f"({result.own_bubble.describe()})"
        )
    if times.communication > 0:
        lines.append(
            f"  overlap      {times.overlap_fraction:.1%} of {format_seconds(times.communication)} of communication "
            "a rank runs beside computation"
        )
    lines.append(
        f"  memory       {memory.total / 1e9:.1f} of {capacity / 1e9:.1f} GB on the fullest GPU  "
        f"{'█' * filled}{'░' * (_BAR - filled)}"
    )
    if result.memory_peak.kind:
        lines.append(f"               at {result.memory_peak.describe()}, on rank {result.memory_peak.rank}")
    lines.append(f"               GB: {', '.join(parts)}")
    lines.append(f"               {recipe_words(result.scenario)}")
    loaded = result.loading.lines() if result.loading else []
    return lines + _host(result) + loaded + (result.checkpoint.lines() if result.checkpoint else [])


def _host(result: Result) -> list[str]:
    """What went to host memory and back; nothing if nothing did."""
    names = {"d2h": "to the host", "h2d": "back"}
    copies = [
        f"{copy['bytes'] / 1e9:.1f} GB {names[direction]} in {format_seconds(copy['wire_s'])}, "
        f"{copy['hidden_s'] / copy['wire_s']:.0%} beside computation"
        for direction, copy in result.host_copies.items()
    ]
    if not copies:
        return []
    return [
        f"  offload      {result.host_memory / 1e9:.1f} GB in the fullest host memory",
        f"               a rank copies {'; '.join(copies)}",
    ]


def _remedies(result: Result) -> list[str]:
    """What would make a job fit that does not; nothing if it does."""
    remedies = result.remedies
    if remedies is None:
        return []

    def command(remedy: MemoryRemedy) -> str:
        return "  ".join(f"--set {text}" for text in remedy.overrides())

    if not remedies.found:
        closest = f"; closest: {command(remedies.closest)}" if remedies.closest else ""
        return [f"  no {MOST_CHANGES} changes make it fit: {remedies.short}{closest}"]
    number = remedies.found[0].changes
    what = "one change" if number == 1 else f"{number} changes together"
    lines = [f"  would fit with {what} (likely fastest first):"]
    return lines + [f"    {command(each)}  ({each.memory / 1e9:.1f} GB)" for each in remedies.found]


def _stragglers(result: Result) -> list[str]:
    assert result.without_faults is not None
    lines = [
        f"  stragglers   the step takes {result.slowdown:.3f} x what it takes without the faults "
        f"({format_seconds(result.without_faults)})"
    ]
    longest = [wait for wait in result.waits if wait.where == "group"][:3]
    return lines + [
        f"               rank {wait.rank} waited {format_seconds(wait.seconds)} for rank {wait.culprit}"
        for wait in longest
    ]


def _engine(result: Result) -> list[str]:
    simulated, total, record = len(result.weights), result.facts.ranks, result.record
    folded = f"{simulated:,} representative{'s' * (simulated > 1)}, " if simulated < total else ""
    names = {"simpy": "SimPy", "reference": "SimPy, the reference", "compiled": "compiled engine"}
    engine = names.get(record.engine, record.engine)
    return [f"  simulated {total:,} ranks ({folded}{record.events:,} events, {engine})"]
