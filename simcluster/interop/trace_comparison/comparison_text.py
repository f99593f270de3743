"""Text of a trace comparison: tables, and sentences sorted by the time that each sentence explains."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from statistics import median
from typing import NamedTuple

from simcluster.base.units import format_bytes, format_seconds, format_time_change
from simcluster.interop.trace_comparison import step_accounts as accounts
from simcluster.interop.trace_comparison.step_accounts import CallComparison, StepDifference
from simcluster.results.span_states import EXPOSED
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines

CAUSE_PHRASES = {
    "forward": "forward compute", "backward": "backward compute (including recompute)", "optimizer": "the optimizer",
    "other": "other compute", **{f"exposed_{axis}": f"exposed {axis} communication" for axis in EXPOSED},
    **{f"waiting_{axis}": f"waiting for late members of {axis} groups" for axis in ("tp", "cp", "ep", "dp")},
    "bubble": "pipeline bubble", "end": "waiting for the last rank at the end",
    "copying": "copies that nothing overlaps", "idle": "pauses (host, and between kernels)",
}  # fmt: skip
"""Display text of causes."""
MERGED_PHRASES = {
    **{f"exposed_{axis}": f"{axis} communication including waiting" for axis in ("tp", "cp", "ep", "dp")},
    "exposed_pp": "pp messages and bubble",
}
"""Display text where not every rank was recorded, so that waiting is not distinguished from transfer."""
_MAX_FINDINGS = 6
_MIN_SHARE = 0.05
"""Smallest share of the total change that is reported."""
_TOLERANCE = 0.02
"""Relative difference up to which counts, sizes and ratios are equal."""
_NAMED_SHARE = 0.25
"""Kinds of calls are named if their exposed time changes by this share of the largest change."""
_SLOW_SHARE = 0.05
"""Excess compute time, relative to the simulation and the other ranks, that makes a rank slow."""
LAUNCH_ROUNDING = 1.5e-9
"""Rounding (s) per launch: profilers count whole nanoseconds."""


class Finding(NamedTuple):
    """Sentence about a difference between trace and simulation, and the seconds that the sentence explains."""

    seconds: float
    sentence: str


def cause_phrase(found: StepDifference, cause: str) -> str:
    """Return the words that describe a cause of step time, as in "pipeline bubble" for ``bubble``."""
    return (MERGED_PHRASES.get(cause) if found.waiting_is_communication else None) or CAUSE_PHRASES[cause]


def difference_sentences(found: StepDifference) -> list[str]:
    """Return sentences that explain how trace and simulation differ, largest difference first."""
    sentences = [f"The trace seems to be of another job: {'; '.join(found.mismatches)}."] if found.mismatches else []
    changed = sum(abs(seconds) for seconds in found.causes.values())
    launches = [max(each.simulated.launches, each.recorded.launches) for each in found.kernels]
    least = LAUNCH_ROUNDING * max(1.0, *(each.recorded.launches for each in found.kernels), 1.0)
    equal = changed <= least and all(
        abs(each.recorded.seconds - each.simulated.seconds) <= LAUNCH_ROUNDING * many
        for each, many in zip(found.kernels, launches, strict=True)
    )
    sentences.append(_headline_sentence(found, equal=equal, least=least))
    if len(found.steps) > 1:
        low, high = min(found.steps), max(found.steps)
        sentences.append(
            f"The step time is the mean of {len(found.steps)} steps, from {format_seconds(low)} to "
            f"{format_seconds(high)} ({(high - low) / found.recorded.seconds:.1%} apart)."
        )
    ranks, of = len(found.rank_compute), found.result.facts.ranks
    if found.waiting_is_communication:
        why = f"{ranks} of {of} ranks {'was' if ranks == 1 else 'were'} recorded"
        why = why if ranks < of else "The trace does not state which ranks communicate"
        sentences.append(f"{why}: waiting for others counts as communication, on both sides.")
    if equal:
        return sentences
    findings = sorted(_generate_findings(found), key=lambda each: -abs(each.seconds))
    sentences += [each.sentence for each in findings if abs(each.seconds) >= _MIN_SHARE * changed][:_MAX_FINDINGS]
    if found.unmatched:
        unknown = sum(unmatched.seconds for unmatched in found.unmatched)
        sentences.append(
            f"{format_seconds(unknown)} of kernels in the trace ({unknown / found.recorded.seconds:.1%} of its step) "
            f"have no known kind, mostly {found.unmatched[0].name[:60]!r}."
        )
    return sentences


def _headline_sentence(found: StepDifference, *, equal: bool, least: float) -> str:
    one, two = format_seconds(found.simulated.seconds), format_seconds(found.recorded.seconds)
    if equal:
        return f"No difference: the trace takes {two} per step, as simulated, and so do all its parts."
    if abs(found.seconds) <= least:
        return f"The trace takes {two} per step, as simulated; its parts differ."
    slower = "longer" if found.seconds > 0 else "less"
    change = f"{format_seconds(abs(found.seconds))} ({abs(found.seconds) / found.simulated.seconds:.1%})"
    return f"The trace takes {two} per step: {change} {slower} than simulated ({one})."


def _generate_findings(found: StepDifference) -> Iterator[Finding]:
    every = rank_compute_ratios(found)
    middle = median(every.values()) if every else 0.0
    slow = {rank: ratio / middle for rank, ratio in every.items() if ratio > middle * (1.0 + _SLOW_SHARE)}
    slow = slow if len(every) > 1 else {}
    named = 0 < len(slow) <= len(found.rank_compute) / 2
    if named:
        yield _make_slow_ranks_finding(found, slow)
    computed = sum(found.causes.get(phase, 0.0) for phase in ("forward", "backward", "optimizer", "other"))
    # extra compute time of slow ranks, averaged over ranks
    extra = sum(found.rank_compute[rank][1] * (1 - 1 / over) for rank, over in slow.items()) / len(found.rank_compute)
    if not named or abs(computed - extra) > 0.2 * abs(computed):
        yield from (_make_kernel_finding(found, pair) for pair in found.kernels)
    for axis in EXPOSED:
        seconds = found.causes.get(f"exposed_{axis}", 0.0)
        pairs = [pair for pair in found.calls if pair.axis == axis]
        if seconds and pairs:
            yield _make_exposed_finding(found, f"exposed_{axis}", seconds, pairs)
    for cause, seconds in found.causes.items():
        if cause in ("bubble", "end", "copying") or cause.startswith("waiting_"):
            text = f"{format_time_change(seconds)} ({_format_both_sides(found, cause)})."
            yield Finding(seconds, f"{_capitalize(cause_phrase(found, cause))}: {text}")
    yield from _make_paused_rank_finding(found)
    idle, late = found.causes.get("idle", 0.0), ""
    if found.recorded.launch_delay:
        late = f"; in {format_seconds(found.recorded.launch_delay)} of these the host had not launched the next kernel"
    text = f"{format_time_change(idle)} ({_format_both_sides(found, 'idle')}){late}."
    yield Finding(idle, f"{_capitalize(cause_phrase(found, 'idle'))}: {text}")


def _format_both_sides(found: StepDifference, cause: str) -> str:
    one, two = (format_seconds(side.states.get(cause, 0.0)) for side in (found.simulated, found.recorded))
    return f"{one} simulated, {two} in the trace"


def rank_compute_ratios(found: StepDifference) -> dict[int, float]:
    """Return each rank's compute time in the trace, divided by the simulated compute time."""
    return {rank: two / one for rank, (one, two) in found.rank_compute.items() if one > 0}


def _make_slow_ranks_finding(found: StepDifference, slow: Mapping[int, float]) -> Finding:
    order = sorted(slow, key=lambda rank: -slow[rank])
    one, two = found.rank_compute[order[0]]
    others = [value for rank, value in rank_compute_ratios(found).items() if rank not in slow]
    names = ", ".join(map(str, order[:4])) + (", ..." if len(slow) > 4 else "")
    who = f"Rank {names} computes" if len(slow) == 1 else f"Ranks {names} compute"
    late = ("waiting_", "exposed_") if found.waiting_is_communication else ("waiting_",)
    waits = sum(
        seconds for cause, seconds in found.causes.items() if cause in ("bubble", "end") or cause.startswith(late)
    )
    for_it = f"; others wait {format_seconds(waits)} longer on average" if waits > 0 else ""
    return Finding(
        max(abs(found.seconds), two - one),
        f"{who} {two / one:.2f} x as long as simulated ({format_time_change(two - one)} on rank {order[0]}), the "
        f"others {median(others):.2f} x{for_it}.",
    )


def _make_paused_rank_finding(found: StepDifference) -> Iterator[Finding]:
    more = {
        rank: found.recorded.rank_idle[rank] - found.simulated.rank_idle[found.result.representative_of(rank)]
        for rank in found.rank_compute
    }
    worst, middle = max(more, key=lambda rank: more[rank]), median(more.values())
    over = more[worst] - middle
    if len(more) > 2 and over > _MIN_SHARE * found.simulated.seconds and over > 2 * abs(middle):
        yield Finding(
            over,
            f"The GPU of rank {worst} pauses {format_seconds(over)} longer than other GPUs, because of its "
            "host, or of waits other than communication.",
        )


def _make_kernel_finding(found: StepDifference, pair: accounts.KernelComparison) -> Finding:
    one, two = pair.simulated, pair.recorded
    seconds, whole = two.seconds - one.seconds, found.seconds
    if abs(seconds) <= LAUNCH_ROUNDING * max(one.launches, two.launches):
        return Finding(0.0, "")
    if not one.seconds:
        what = "is only in the trace"
    elif not two.seconds:
        what = "is not in the trace"
    elif not _is_close(one.launches, two.launches):
        launches = f"{two.launches:,.4g} launches (simulated: {one.launches:,.4g})"
        what = f"takes {two.seconds / one.seconds:.2f} x the time in the trace, with {launches}"
    else:
        ratio = two.seconds / one.seconds
        what = f"is {f'{ratio:.2f} x slower' if ratio >= 1 else f'{1 / ratio:.2f} x faster'} in the trace"
    share = format_time_change(seconds)
    if seconds * whole > 0 and abs(seconds) <= abs(whole) * 1.005:
        share = f"{format_seconds(abs(seconds))} of the {format_seconds(abs(whole))}"
    return Finding(seconds, f"{_capitalize(pair.name)} {what}: {share}.")


def _make_exposed_finding(found: StepDifference, cause: str, seconds: float, pairs: list[CallComparison]) -> Finding:
    changes = [abs(pair.recorded.exposed - pair.simulated.exposed) for pair in pairs]
    most, merged = max(changes), found.waiting_is_communication
    why = [
        words
        for pair, change in zip(pairs, changes, strict=True)
        if most and change >= _NAMED_SHARE * most and (words := _describe_call_difference(pair, merged=merged))
    ]
    reason = f": {'; '.join(why)}" if why else ""
    text = f"{format_time_change(seconds)} ({_format_both_sides(found, cause)}){reason}."
    return Finding(seconds, f"{_capitalize(cause_phrase(found, cause))}, {text}")


def _describe_call_difference(pair: CallComparison, *, merged: bool) -> str:
    one, two = pair.simulated, pair.recorded
    what = f"{pair.axis} {pair.kind.replace('_', '-')}"
    if not one.calls or not two.calls:
        return f"{what} is only in the {'trace' if two.calls else 'simulation'}"
    early = merged and pair.kind == accounts.MESSAGE_KIND  # a receive posted early lasts as long as the bubble
    why = []
    if not _is_close(one.calls, two.calls):
        why.append(f"is called {two.calls:,.4g} times, simulated {one.calls:,.4g}")
    if one.bytes and two.bytes and not _is_close(one.bytes / one.calls, two.bytes / two.calls):
        sizes = format_bytes(two.bytes / two.calls), format_bytes(one.bytes / one.calls)
        why.append(f"moves {sizes[0]} per call, simulated {sizes[1]}")
    if one.seconds and not early and not _is_close(ratio := (two.seconds / two.calls) / (one.seconds / one.calls), 1.0):
        why.append(f"takes {ratio:.2f} x as long per call")
    parts = [side.exposed / side.seconds if side.seconds else 0.0 for side in (two if early else one, two)]
    if abs(parts[1] - parts[0]) > _TOLERANCE:
        why.append(f"is {parts[1]:.0%} exposed, simulated {parts[0]:.0%}")
    return f"{what} {', '.join(why)}" if why else ""


def _is_close(one: float, two: float) -> bool:
    return abs(one - two) <= _TOLERANCE * max(abs(one), abs(two))


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:2] not in EXPOSED or text[2:3] != " " else text


MAX_ROWS = 16
"""Rows of a displayed table; JSON has all."""
_COLUMNS = ["simulated", "trace", "difference", "ratio"]
_MAX_NAME, _LINE_WIDTH = 72, 120


def report_blocks(found: StepDifference) -> list[OutputBlock]:
    """Return a trace comparison as output blocks: names of both sides, sentences, tables and notes."""
    ranks, of = len(found.rank_compute), found.result.facts.ranks
    recorded = f"{len(found.steps)} step{'s' * (len(found.steps) > 1)} of {ranks} of {of} ranks"
    sentences = [
        line
        for sentence in difference_sentences(found)
        for line in textwrap.wrap(sentence, _LINE_WIDTH, initial_indent="* ", subsequent_indent="  ")
    ]
    head = TextLines([f"simulated: {found.names[0]}", f"trace:     {found.names[1]} ({recorded})"])
    return [head, TextLines(sentences), *difference_tables(found), TextLines([f"note: {note}" for note in found.notes])]


def difference_tables(found: StepDifference) -> list[TableBlock]:
    """Return the comparison's tables by cause, kernel, collective, layer and rank; omit empty tables."""
    return [table for table in _build_tables(found) if table.rows]


def _build_tables(found: StepDifference) -> Iterator[TableBlock]:
    one, two = found.simulated.states, found.recorded.states
    names = [name for name in found.causes if one.get(name) or two.get(name)]
    rows = [[cause_phrase(found, name), *_time_cells(one.get(name, 0.0), two.get(name, 0.0))] for name in names]
    rows.append(["step", *_time_cells(found.simulated.seconds, found.recorded.seconds)])
    yield TableBlock(["", *_COLUMNS], rows, title=["step time by cause (mean of the recorded ranks)"])

    kernels = found.kernels[:MAX_ROWS]
    rows = [
        [k.name, *(f"{side.launches:,.4g}" for side in k[2:]), *_time_cells(k.simulated.seconds, k.recorded.seconds)]
        for k in kernels
    ]
    what = "span" if found.kernels_are_spans else "kernel kind"
    title = f"by {what}, per rank and step (largest difference first{_shown_count_note(len(rows), len(found.kernels))})"
    yield TableBlock(["", "launches", "in trace", *_COLUMNS], rows, title=[title])

    rows = []
    for each in found.unmatched[:MAX_ROWS]:
        name = each.name if len(each.name) <= _MAX_NAME else f"{each.name[: _MAX_NAME - 3]}..."
        rows.append([name, f"{each.launches:,.4g}", format_seconds(each.seconds)])
    whole = format_seconds(sum(unmatched.seconds for unmatched in found.unmatched))
    count = f"{len(found.unmatched)} name{'s' * (len(found.unmatched) > 1)}"
    title = f"kernels of no known kind: {whole} per rank and step, {count} (classify them: --kernels FILE)"
    yield TableBlock(["name", "launches", "time"], rows, title=[title])

    rows = [
        [
            f"{call.axis} {call.kind}", *(f"{side.calls:,.4g}" for side in call[2:]),
            *(format_bytes(side.bytes) if side.bytes else "-" for side in call[2:]),
            *(format_seconds(side.seconds) for side in call[2:]),
            *_time_cells(call.simulated.exposed, call.recorded.exposed),
        ]
        for call in found.calls[:MAX_ROWS]
    ]  # fmt: skip
    header = ["", "calls", "in trace", "bytes", "in trace", "time", "in trace", "exposed", "in trace", *_COLUMNS[2:]]
    since = "of the kernels" if found.waiting_is_communication else "from the last arrival on"
    title = f"communication, per rank and step (time {since}; exposed: no compute overlaps it)"
    yield TableBlock(header, rows, title=[title])

    rows = []
    layers = sorted(found.layers, key=lambda pair: -abs(sum(pair.simulated or ()) - sum(pair.recorded or ())))
    for pair in layers[:MAX_ROWS]:
        cells = [str(pair.layer)]
        for place in (0, 1):
            both = [side and side[place] for side in pair[1:]]
            cells += ["-" if value is None else format_seconds(value) for value in both]
            cells.append(f"{both[1] / both[0]:.2f} x" if both[0] and both[1] else "-")
        rows.append(cells)
    shown = _shown_count_note(len(rows), len(layers))
    title = f"compute by layer, per rank that has it (largest difference first{shown})"
    header = ["layer", "forward", "in trace", "ratio", "backward", "in trace", "ratio"]
    yield TableBlock(header, rows, title=[title])

    every = rank_compute_ratios(found)
    order = sorted(every, key=lambda rank: -every[rank])[: MAX_ROWS // 2] if len(every) > 1 else []
    title = f"compute by rank (slowest relative to the simulation first{_shown_count_note(len(order), len(every))})"
    rows = [[f"rank {n}", *_time_cells(*found.rank_compute[n])] for n in order]
    yield TableBlock(["", *_COLUMNS], rows, title=[title])


def _time_cells(one: float, two: float) -> list[str]:
    ratio = f"{two / one:.2f} x" if one > 0 and two > 0 else "-"
    change = "0" if abs(two - one) <= 1e-12 else format_time_change(two - one)
    return [format_seconds(one), format_seconds(two), change, ratio]


def _shown_count_note(shown: int, count: int) -> str:
    return f"; {shown} of {count}" if shown < count else ""
