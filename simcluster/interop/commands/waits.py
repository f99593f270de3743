"""What replays of traces and of profiles say alike of slowdowns, waits and what-ifs: words, JSON and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from simcluster.base.arrays import Floats
from simcluster.base.processes import Crew, context, cores
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.alike import alike
from simcluster.cli.common import format_table
from simcluster.interop.recorded import Recorded, Straggling
from simcluster.interop.recorded.waiting import longest, recorded_matrix
from simcluster.interop.recorded.whatif import ReplayAnswer
from simcluster.show.pictures import picture

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.pictures import Figure


_WAITS = 5


@contextmanager
def played_as_events(job: Recorded) -> Iterator[Callable[[Straggling], int]]:
    """Every step on the event engine too, on another core where there is one: inside, a function that says how many
    events that were.  Both ways must agree to the bit."""
    crew = None
    if cores() > 1 and context().get_start_method() == "fork":  # else the job would have to be sent
        _ = job.parts  # made once, for both
        crew = Crew(partial(_events_of, job), 1)
        crew.begin(0, None)

    def events(found: Straggling) -> int:
        answer = crew.finished([0])[0][1] if crew else None
        times, count = answer or job.events()
        if (times != found.replayed).any():
            raise RuntimeError("the event engine and the longest path disagree on a replayed step")
        return count

    try:
        yield events
    finally:
        if crew:
            crew.close(now=True)


def _events_of(job: Recorded, task: None) -> tuple[Floats, int]:
    return job.events()


def played_line(job: Recorded, events: int) -> str:
    """How the job was replayed."""
    steps = f"{len(job.steps)} step{'s' * (len(job.steps) != 1)}"
    return (
        f"replayed {steps} as {events:,} events; what-ifs and slowdowns by longest paths through "
        "the same program, which give the same times to the bit"
    )


def seconds_line(name: str, seconds: float, text: str) -> str:
    """A number of the head, with what it is."""
    return f"  {name:<14}{format_seconds(seconds):>9}   {text}".rstrip()


def slowdown_line(found: Straggling) -> str:
    """S, and its range over the steps."""
    low, high = found.by_step.min(), found.by_step.max()
    return f"  {'S':<14}{found.slowdown:>9.4f}   slowdown by stragglers (single steps {low:.3f} to {high:.3f})"


def explained(found: Straggling) -> list[str]:
    """How much of the slowdown two suspects explain; what is over 100 % is said."""
    shares = {
        "the slowest 3 % of workers": found.worst_workers.removed,
        "the last stage": found.last_stage.removed,
    }
    known = {who: share for who, share in shares.items() if share is not None}
    wide = max((len(who) for who in known), default=0)
    lines = [f"  slowdown explained by {who:<{wide}} {share:>7.1%}" for who, share in known.items()]
    if any(share > 1 for share in known.values()):
        lines.append("  over 100 %: without them a step would be shorter than what is typical")
    return lines


def types_table(found: Straggling, most: int | None = None) -> list[str]:
    """The slowdown by each type of op, the largest first."""
    rows = [[name, f"{value:.4f}"] for name, value in list(found.by_type.items())[:most]]
    return ["slowdown by what the op type alone does", *format_table(("op type", "S"), rows).splitlines()]


def answers_table(answers: Sequence[ReplayAnswer]) -> list[str]:
    """Every question with the step that it gives; nothing where none was asked."""
    if not answers:
        return []
    rows = [[answer.question, format_seconds(answer.after), f"{answer.change:+.2%}"] for answer in answers]
    first = ["as recorded", format_seconds(answers[0].before), ""]
    return format_table(("what if", "step", "change"), [first, *rows]).splitlines()


def played_document(job: Recorded, answers: Sequence[ReplayAnswer], events: int) -> dict[str, Any]:
    """Answers, notes and how it was played, for JSON."""
    asked = [
        {"question": a.question, "step_time_s": a.after, "before_s": a.before, "change": a.change} for a in answers
    ]
    return {
        "what_if": asked,
        "notes": list(job.notes),
        "engine": {"events": events, "slowdowns": "longest paths through the same program"},
    }


def waits_table(ranks: Sequence[int], seconds: Floats) -> list[str]:
    """The longest waits of a rank for another."""
    pairs = longest(seconds, seconds.size)
    if not pairs:
        return []
    named = ((f"rank {ranks[one]} for rank {ranks[other]}", [format_seconds(each)]) for one, other, each in pairs)
    rows = [[row.names[0], *row.cells, _more(len(row.names) - 1)] for row in alike(named)[:_WAITS]]
    table = format_table(["who for whom", "seconds", ""], rows)
    return ["the longest waits, in all, a step", *table.splitlines()]


def _more(pairs: int) -> str:
    return f"and {pairs} pair{'s' * (pairs > 1)} more" if pairs else ""


def tell(
    args: argparse.Namespace,
    blocks: Sequence[Sequence[str]],
    document: Mapping[str, Any],
    job: Recorded,
    seconds: Floats,
) -> None:
    """Text and JSON of a replay, with all waits in the JSON, longest first."""
    waits = [
        {"rank": job.ranks[one], "culprit": job.ranks[other], "seconds": each}
        for one, other, each in longest(seconds, seconds.size)
    ]
    common.answer(args, lambda: common.in_blocks(blocks), lambda: {**document, "waits": waits})


def draw(
    args: argparse.Namespace, job: Recorded, timeline: Callable[[], pd.DataFrame], heatmap: Callable[[], Figure]
) -> None:
    """The replayed timeline as a table and its first step as a picture; who straggles, and who waits for whom."""
    made = cache(timeline)
    if args.timeline:
        common.write_table(args.timeline, made())

    def gantt() -> Figure:
        first = made()[made()["step"] == job.steps[0]]
        return picture("gantt")(
            first, title=f"{job.name}, step {job.steps[0]}, replayed", num_ranks=len(job.ranks), **common.inches(args)
        )

    def matrix() -> Figure:
        from simcluster.show.heatmaps import plot_waits

        return plot_waits(recorded_matrix(job), title=f"{job.name}, replayed: who waits for whom")

    common.draw(args, (args.gantt, gantt), (args.matrix, matrix), (args.heatmap, heatmap))
