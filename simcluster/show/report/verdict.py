"""What to take away from the page, in a sentence or three: which run is faster and why, or what would make one faster.

What it says would help was played; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.base.units import format_seconds
from simcluster.results.result import Result
from simcluster.show.cells import PARTS, change
from simcluster.show.report.entry import MOST_WORKERS, Entry
from simcluster.show.report.html import Markup, element, typeset
from simcluster.studies.whatif.difference import Difference, phrase
from simcluster.studies.whatif.preflight import Remedy, checks_of
from simcluster.studies.whatif.remedies import Trials

_MODEL = ("forward", "backward", "recompute")
_WORTH = 0.995  # a change that leaves more of the step than this is not worth a sentence
_NAMED = 0.01  # of the step: what is less is no loss to speak of
_MOST_PLAYED = 4  # changes that are tried for the sentence
_MOST_TRIED = 2  # of one point
_MOST_CAUSES = 3
_MOST_LOSSES = 2


def verdict(entries: Sequence[Entry]) -> Markup:
    """The sentences, as the first paragraph of the page."""
    said = _of_one(entries[0]) if len(entries) == 1 else _of_several(entries)
    return element("p", typeset(" ".join(said)), class_="verdict")


# --- several runs -----------------------------------------------------------------------------------------------------


def _of_several(entries: Sequence[Entry]) -> Iterator[str]:
    first, *others = entries
    able = [entry for entry in others if entry.numbers.get("fits")] or others
    best = min(able, key=lambda entry: entry.account.step_time)
    if len(entries) > 2:
        fastest = min([first, best], key=lambda entry: entry.account.step_time)
        fitting = " of those that fit" if any(not entry.numbers.get("fits") for entry in entries) else ""
        yield f"Of {len(entries)} runs {fastest.name} is the fastest{fitting}: {_seconds(fastest)} a step."
    yield _against(first, best)
    for entry in entries:
        if not entry.numbers.get("fits"):
            yield f"{entry.name} does not fit: {_room(entry)}."


def _against(first: Entry, other: Entry) -> str:
    """ "interleaved is 5.8 % faster than 1f1b (13.71 s against 14.56 s a step): pipeline bubble −923.8 ms, ..."."""
    part = other.account.step_time / first.account.step_time - 1
    if abs(part) < 5e-4:
        return f"{other.name} is as fast as {first.name}: {_seconds(other)} a step."
    found = Difference((first.name, other.name), first.account, other.account, ())
    largest = sorted(found.causes.items(), key=lambda cause: -abs(cause[1]))[:_MOST_CAUSES]
    told = [f"{phrase(name).partition(' (')[0]} {change(seconds)}" for name, seconds in largest
            if abs(seconds) > 0.05 * abs(found.seconds)]  # fmt: skip
    return (
        f"{other.name} is {abs(part):.1%} {'slower' if part > 0 else 'faster'} than {first.name} "
        f"({_seconds(other)} against {_seconds(first)} a step): {', '.join(told)}."
    )


# --- one run ----------------------------------------------------------------------------------------------------------


def _of_one(entry: Entry) -> Iterator[str]:
    whole, parts = entry.account.step_time, entry.account.breakdown
    work = sum(parts[name] for name in _MODEL)
    lost = sorted(((seconds, name) for name, seconds in parts.items() if name not in _MODEL), reverse=True)
    losses = [f"{_loss(name)} ({seconds / whole:.1%})" for seconds, name in lost[:_MOST_LOSSES]
              if seconds > _NAMED * whole]  # fmt: skip
    again = ", recompute included" if parts["recompute"] else ""
    most = f"; most of the rest is {' and '.join(losses)}" if losses else ""
    yield f"A step takes {_seconds(entry)}, {work / whole:.1%} of it compute{again}{most}."
    if entry.result is not None:
        if entry.result.without_faults is not None and entry.result.slowdown > 1 + _NAMED:
            yield f"Without its faults it would take {format_seconds(entry.result.without_faults)}."
        yield from _help(entry.result) if entry.replays else ()
    yield f"It {'fits' if entry.numbers.get('fits') else 'does not fit'}: {_room(entry)}."
    if entry.result is not None and entry.result.remedies and entry.result.remedies.found:
        options = " ".join(f"--set {text}" for text in entry.result.remedies.found[0].overrides())
        yield f"It would fit with {options}."


def _loss(name: str) -> str:
    """ "exposed tensor parallel communication", "bubble"."""
    part = PARTS[name].removesuffix(", exposed")
    axis = name.startswith("exposed_") and name != "exposed_pp"
    return f"exposed {part}{' communication' if axis else ''}" if PARTS[name] != part else part


def _help(result: Result) -> Iterator[str]:
    """The change of the scenario that makes the step shortest, of a few that the launch checklist would try."""
    if result.scenario.dp * result.scenario.parallel.pp > MOST_WORKERS:
        return
    trials, found = Trials(result, None, _MOST_PLAYED), list[Remedy]()
    points = (check(result) for check in checks_of(result.scenario))
    slow = [point for point in points if point.verdict != "pass" and point.for_time]
    if not slow:
        yield "No point of the launch checklist (simcluster check) finds it slow."
    for point in slow:
        for values in point.tries[:_MOST_TRIED]:
            tried = trials.play(values)
            if tried is not None:
                whole, played = tried
                found.append(Remedy(whole, played.step_time, result.step_time, played.memory.total))
    best = min(found, key=lambda remedy: remedy.step_time, default=None)
    if best is not None and best.step_time < _WORTH * result.step_time:
        yield (
            f"What would help: with {best.options()} it takes {format_seconds(best.step_time)} "
            f"({best.change:+.1%}), as played; simcluster check tries more."
        )


def _seconds(entry: Entry) -> str:
    return format_seconds(entry.account.step_time)


def _room(entry: Entry) -> str:
    """ "64.3 of 80.0 GB on the fullest GPU"; of a result whose GPU is not known what it holds."""
    used, capacity = entry.numbers["peak_memory_bytes"], entry.capacity
    of = f" of {capacity / 1e9:,.1f} GB" if capacity else ""
    return f"{used / 1e9:,.1f} GB{of} on the fullest GPU"
