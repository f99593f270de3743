"""What an engineer would say of a trace beside its simulation: one sentence a finding, the largest first."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from simcluster.base.units import format_bytes, format_change, format_seconds
from simcluster.interop.own_trace.pairs import CallPair, KernelPair, StepPair
from simcluster.interop.own_trace.side import MESSAGE

PHRASES = {
    "forward": "forward compute",
    "backward": "backward compute (with what is recomputed)",
    "optimizer": "the optimizer",
    "other": "other compute",
    **{f"exposed_{axis}": f"{axis} communication, exposed" for axis in ("tp", "cp", "ep", "pp", "dp")},
    **{f"waiting_{axis}": f"waiting for late members of {axis} groups" for axis in ("tp", "cp", "ep", "dp")},
    "bubble": "pipeline bubble",
    "end": "waiting for the last rank at the end",
    "copying": "copies beside nothing",
    "idle": "pauses: the host, and between kernels",
}
"""Causes in words."""
MERGED = {
    **{f"exposed_{axis}": f"{axis} communication, with waiting" for axis in ("tp", "cp", "ep", "dp")},
    "exposed_pp": "pp messages and bubble",
}
"""Where not every rank was recorded, and waiting cannot be told from transfer."""
_MOST = 6
_WORTH = 0.05
"""Of all that changed: what is less is not told."""
_OTHER = 0.02
"""Counts, sizes and ratios that differ by no more are the same."""
_NAMED = 0.25
"""Kinds of calls are named whose exposed time changes by so much of what changes most."""
_SLOW = 0.05
"""A rank that computes by so much longer than the others (both against the simulation) stands out."""
NOTHING = 1.5e-9
"""Seconds a launch: profilers count whole nanoseconds."""


class Finding(NamedTuple):
    """A sentence, and the seconds that it explains."""

    seconds: float
    sentence: str


def phrase(found: StepPair, cause: str) -> str:
    """A cause in words."""
    return (MERGED.get(cause) if found.merged else None) or PHRASES[cause]


def in_words(found: StepPair) -> list[str]:
    """The sentences of a difference."""
    told = []
    if found.doubts:
        told.append(f"The trace seems to be of another job: {'; '.join(found.doubts)}.")
    told.append(_headline(found))
    if len(found.steps) > 1:
        low, high = min(found.steps), max(found.steps)
        told.append(
            f"It is the mean of {len(found.steps)} steps, from {format_seconds(low)} to {format_seconds(high)} "
            f"({(high - low) / found.recorded.seconds:.1%} apart)."
        )
    ranks, of = len(found.computed), found.result.facts.ranks
    if found.merged:
        why = f"{ranks} of {of} ranks {'was' if ranks == 1 else 'were'} recorded"
        why = why if ranks < of else "The trace does not tell who communicates with whom"
        told.append(f"{why}: waiting for others counts as communication, on both sides.")
    if _alike(found):
        return told
    changed = sum(abs(seconds) for seconds in found.causes.values())
    findings = sorted(_findings(found), key=lambda each: -abs(each.seconds))
    worth = [each for each in findings if abs(each.seconds) >= _WORTH * changed]
    told += [each.sentence for each in worth[:_MOST]]
    if found.unmatched:
        unknown = sum(each.seconds for each in found.unmatched)
        told.append(
            f"{format_seconds(unknown)} of kernels in the trace ({unknown / found.recorded.seconds:.1%} of its step) "
            f"are of no known kind, most of it {found.unmatched[0].name[:60]!r}."
        )
    return told


def _alike(found: StepPair) -> bool:
    """Is there no more between the two than what is lost in writing times down?"""
    changed = sum(abs(seconds) for seconds in found.causes.values())
    return changed <= _least(found) and all(
        abs(each.recorded.seconds - each.played.seconds) <= NOTHING * max(each.recorded.launches, each.played.launches)
        for each in found.kernels
    )


def _least(found: StepPair) -> float:
    """Seconds that a step of so many launches may differ by as it is written down."""
    return NOTHING * max(1.0, *(each.recorded.launches for each in found.kernels), 1.0)


def _headline(found: StepPair) -> str:
    one, two = format_seconds(found.played.seconds), format_seconds(found.recorded.seconds)
    if _alike(found):
        return f"No difference: the trace takes {two} a step, as simulated, and so do all its parts."
    if abs(found.seconds) <= _least(found):
        return f"The trace takes {two} a step, as simulated; its parts differ."
    slower = "longer" if found.seconds > 0 else "less"
    change = f"{format_seconds(abs(found.seconds))} ({abs(found.seconds) / found.played.seconds:.1%})"
    return f"The trace takes {two} a step: {change} {slower} than simulated ({one})."


def _findings(found: StepPair) -> Iterator[Finding]:
    slow = list(_slow_ranks(found))
    yield from slow
    computed = sum(found.causes.get(phase, 0.0) for phase in ("forward", "backward", "optimizer", "other"))
    if not slow or abs(computed - _extra(found)) > 0.2 * abs(computed):
        yield from (_kernel(found, pair) for pair in found.kernels)
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        seconds = found.causes.get(f"exposed_{axis}", 0.0)
        pairs = [pair for pair in found.calls if pair.axis == axis]
        if seconds and pairs:
            yield _exposed(found, f"exposed_{axis}", seconds, pairs)
    for cause, seconds in found.causes.items():
        if cause in ("bubble", "end", "copying") or cause.startswith("waiting_"):
            yield Finding(
                seconds, f"{_capital(phrase(found, cause))}: {format_change(seconds)} ({_from_to(found, cause)})."
            )
    yield from _paused_rank(found)
    idle = found.causes.get("idle", 0.0)
    late = f"; in {format_seconds(found.recorded.late)} of them the host had not launched what came next" * bool(
        found.recorded.late
    )
    yield Finding(idle, f"{_capital(phrase(found, 'idle'))}: {format_change(idle)} ({_from_to(found, 'idle')}){late}.")


def _from_to(found: StepPair, cause: str) -> str:
    one, two = (format_seconds(side.states.get(cause, 0.0)) for side in (found.played, found.recorded))
    return f"{one} simulated, {two} in the trace"


def ratios(found: StepPair) -> dict[int, float]:
    """How many times as long as simulated every rank computes."""
    return {rank: two / one for rank, (one, two) in found.computed.items() if one > 0}


def slow_ranks(found: StepPair) -> dict[int, float]:
    """Ranks that compute much longer, against the simulation, than the median does: their ratios over it."""
    every = ratios(found)
    if len(every) < 2:
        return {}
    middle = median(every.values())
    return {rank: ratio / middle for rank, ratio in every.items() if ratio > middle * (1.0 + _SLOW)}


def _extra(found: StepPair) -> float:
    """Seconds of the mean rank that slow ranks compute longer than the others."""
    slow = slow_ranks(found)
    return sum(found.computed[rank][1] * (1 - 1 / over) for rank, over in slow.items()) / len(found.computed)


def _slow_ranks(found: StepPair) -> Iterator[Finding]:
    slow = slow_ranks(found)
    if not slow or len(slow) > len(found.computed) / 2:
        return
    worst = max(slow, key=lambda rank: slow[rank])
    one, two = found.computed[worst]
    others = [value for rank, value in ratios(found).items() if rank not in slow]
    names = ", ".join(map(str, sorted(slow, key=lambda rank: -slow[rank])[:4])) + (", ..." if len(slow) > 4 else "")
    who = f"Rank {names} computes" if len(slow) == 1 else f"Ranks {names} compute"
    waits = sum(
        seconds for cause, seconds in found.causes.items()
        if cause in ("bubble", "end") or cause.startswith("waiting_") or (found.merged and cause.startswith("exposed_"))
    )  # fmt: skip
    for_it = f"; others wait {format_seconds(waits)} longer on average" if waits > 0 else ""
    yield Finding(
        max(abs(found.seconds), two - one),
        f"{who} {two / one:.2f} x as long as simulated ({format_change(two - one)} on rank {worst}), the others "
        f"{median(others):.2f} x{for_it}.",
    )


def _paused_rank(found: StepPair) -> Iterator[Finding]:
    """The rank that pauses much longer than the others do, all against the simulation."""
    more = {
        rank: found.recorded.paused[rank] - found.played.paused[found.result.simulated_for(rank)]
        for rank in found.computed
    }
    worst = max(more, key=lambda rank: more[rank])
    over = more[worst] - median(more.values())
    if len(more) > 2 and over > _WORTH * found.played.seconds and over > 2 * abs(median(more.values())):
        yield Finding(
            over,
            f"The GPU of rank {worst} pauses {format_seconds(over)} longer than those of others: its host, or what it "
            "waits for besides communication.",
        )


def _kernel(found: StepPair, pair: KernelPair) -> Finding:
    one, two = pair.played, pair.recorded
    seconds = two.seconds - one.seconds
    what = f"{pair.kind} {pair.phase}" if pair.kind != pair.phase else pair.kind
    if abs(seconds) <= NOTHING * max(one.launches, two.launches):
        return Finding(0.0, "")
    if not one.seconds:
        return Finding(seconds, f"{_capital(what)} is in the trace alone: {_share(found, seconds)}.")
    if not two.seconds:
        return Finding(seconds, f"{_capital(what)} is not in the trace: {_share(found, seconds)}.")
    ratio = two.seconds / one.seconds
    if not _same(one.launches, two.launches):
        launches = f"{two.launches:,.4g} launches for {one.launches:,.4g} simulated"
        return Finding(
            seconds,
            f"{_capital(what)} takes {ratio:.2f} x the time in the trace, in {launches}: {_share(found, seconds)}.",
        )
    how = f"{ratio:.2f} x slower" if ratio >= 1 else f"{1 / ratio:.2f} x faster"
    return Finding(seconds, f"{_capital(what)} is {how} in the trace: {_share(found, seconds)}.")


def _share(found: StepPair, seconds: float) -> str:
    whole = found.seconds
    if seconds * whole > 0 and abs(seconds) <= abs(whole) * 1.005:
        return f"{format_seconds(abs(seconds))} of the {format_seconds(abs(whole))}"
    return format_change(seconds)


def _exposed(found: StepPair, cause: str, seconds: float, pairs: list[CallPair]) -> Finding:
    """Why communication of an axis holds ranks up more or less: its calls, or what hides them."""
    most = max(abs(pair.recorded.exposed - pair.played.exposed) for pair in pairs)
    why = [
        words
        for pair in pairs
        if most
        and abs(pair.recorded.exposed - pair.played.exposed) >= _NAMED * most
        and (words := _why(pair, merged=found.merged))
    ]
    reason = f": {'; '.join(why)}" if why else ""
    return Finding(
        seconds, f"{_capital(phrase(found, cause))}, {format_change(seconds)} ({_from_to(found, cause)}){reason}."
    )


def _why(pair: CallPair, *, merged: bool) -> str:
    """What is other of one kind of call: how many, of what size, how long, how much of them is hidden."""
    one, two = pair.played, pair.recorded
    what = f"{pair.axis} {pair.kind.replace('_', '-')}"
    if not one.calls or not two.calls:
        return f"{what} is in the {'trace' if two.calls else 'simulation'} alone"
    why = []
    if not _same(one.calls, two.calls):
        why.append(f"is called {two.calls:,.4g} times, simulated {one.calls:,.4g}")
    if one.bytes and two.bytes and not _same(one.bytes / one.calls, two.bytes / two.calls):
        sizes = format_bytes(two.bytes / two.calls), format_bytes(one.bytes / one.calls)
        why.append(f"is of {sizes[0]} a call, simulated {sizes[1]}")
    if one.seconds and not _same(a_call := (two.seconds / two.calls) / (one.seconds / one.calls), 1.0):
        why.append(f"takes {a_call:.2f} x as long a call")
    if merged and pair.kind == MESSAGE:  # a receive that was posted early lasts as long as the bubble
        why, one = [each for each in why if not each.startswith("takes")], two
    parts = [side.exposed / side.seconds if side.seconds else 0.0 for side in (one, two)]
    if abs(parts[1] - parts[0]) > _OTHER:
        why.append(f"is exposed by {parts[1]:.0%}, simulated {parts[0]:.0%}")
    return f"{what} {', '.join(why)}" if why else ""


def _same(one: float, two: float) -> bool:
    return abs(one - two) <= _OTHER * max(abs(one), abs(two))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:3] not in ("tp ", "cp ", "ep ", "pp ", "dp ") else text
