"""simcluster plan: the best layouts of a job on so many GPUs, out of all there are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from simcluster.base.errors import InputError
from simcluster.base.processes import cores
from simcluster.cli import common
from simcluster.cli.common import write_table, write_text
from simcluster.cli.overrides import overrides_of
from simcluster.cli.plan_table import layout_table
from simcluster.cli.search_told import SearchTold
from simcluster.cli.signals import exit_status, stopping_signals
from simcluster.cli.sweep import ROWS
from simcluster.cli.terminal import columns
from simcluster.documents.overrides import expand_vary
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.pictures import picture
from simcluster.show.report.yaml_text import yaml_text
from simcluster.show.standing import held_from_one_gpu_up, not_proven, standing
from simcluster.studies.search.changes import overrides, written
from simcluster.studies.search.plan import LISTED, Found, plan
from simcluster.studies.search.tally import PRUNED
from simcluster.studies.search.words import name_of_first, why


def run(args: argparse.Namespace) -> None:
    """Search, print the best and why; where a signal stops it, what is found so far, with the signal's exit status."""
    scenario = load(args.scenario, overrides_of(args))
    with stopping_signals() as signals, SearchTold() as told:
        try:
            found = plan(
                scenario,
                _gpus(args.gpus),
                objective=args.objective,
                max_memory=args.max_memory,
                headroom=args.headroom,
                price=args.price,
                top=args.top,
                vary=dict(expand_vary(text) for text in args.vary),
                front=args.pareto is not None,
                near_misses=args.near_misses,
                time_limit=args.time_limit,
                executor=_executor(args.executor),
                store=args.output.with_name(args.output.name + ROWS) if args.output else None,
                progress=told.now,
            )
        except KeyboardInterrupt:
            told.close()
            print("stopped before any layout was played", file=sys.stderr)
            raise SystemExit(exit_status(signals)) from None
    _answer(args, scenario, found)
    if found.stopped == "interrupt":
        raise SystemExit(exit_status(signals))


def _answer(args: argparse.Namespace, scenario: Scenario, found: Found) -> None:
    if args.output:
        write_table(args.output, found.table)
    common.answer(args, lambda: text_of(found, columns()), found.to_dict)
    title = f"{scenario.title}: {found.played:,} layouts played"
    common.draw(args, (args.pareto, lambda: picture("pareto")(found, title)))
    if args.write:
        write_text(args.write, yaml_text(found.scenario.document()))


def _gpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--gpus {text!r} must be a whole number, or several with commas, as in 512,1024")
    return [int(part) for part in parts]


def _executor(text: str | None) -> int:
    if text is None:
        return cores()
    if not text.isdecimal() or not int(text):
        raise InputError(f"--executor {text!r} must be a number of processes, from 1")
    return int(text)


def text_of(found: Found, width: int | None = None) -> str:
    """What a person reads, on a terminal of so many columns: what is best first, what was left out behind it."""
    options = " ".join(
        f"--{path} {written(value)}" for path, value in overrides(found.base, found.best[0].layout).items()
    )
    which = "the best" if found.gap == 0 else "the best so far"
    blocks = [
        [f"{found.base.name}: {which} of {found.total:,} combinations"],
        [*layout_table(found).within(width).lines, *_remarks(found)],
        *([paragraph] for paragraph in (*not_proven(found), *standing(found), *why(found))),
        held_from_one_gpu_up(found),
        _counts(found),
        [f"{name_of_first(found)}: {options}"],
        found.left_out.in_words(),
    ]
    return common.in_blocks(blocks)


def _counts(found: Found) -> list[str]:
    """How many combinations were played, and why the others were not."""
    counts = sorted(found.counts.items(), key=lambda item: -item[1])
    lines = [f"{number:>12,}  {reason}" for reason, number in [*counts, ("played", found.played)]]
    return ["combinations  why not, or played", *lines]


def _remarks(found: Found) -> Iterator[str]:
    """What marks in the table mean, and the limit of memory."""
    yield f"memory: at most {found.capacity / 1e9:.1f} GB a GPU{_of_whole(found)}"
    if found.gap == 0 and len(found.best) < LISTED and (found.behind or PRUNED in found.counts):
        yield from _proven(found)
    if found.tight:
        yield "~ ahead of the winner, but leaves less free: not recommended"
    for note in dict.fromkeys(
        note for each in (*found.tight, *found.best, *found.behind) if (note := each.note(found.base))
    ):
        yield f"* {note}"


def _proven(found: Found) -> Iterator[str]:
    """Which of the table are proven to be the best, and what proves more of them."""
    which = (
        "1 is proven to be the best" if len(found.best) == 1 else f"1 to {len(found.best)} are proven to be the best"
    )
    if found.behind:
        yield f"{which}; in brackets the next that had to be played (?: no account of its time was made)"
        yield f"others may lie between these: --top {LISTED} proves {LISTED}"
    else:
        yield f"{which}; --top {LISTED} proves the {LISTED} best"


def _of_whole(found: Found) -> str:
    """How the limit comes about."""
    part = found.limit.headroom
    return f", {100 * part:.4g} % of {found.limit.whole / 1e9:.1f} GB left free (--headroom)" if part else ""
