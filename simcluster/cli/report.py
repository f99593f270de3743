"""simcluster report: one HTML page about a run, several runs, or variants with controls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.cli import common
from simcluster.cli.common import note_replaced_faults, read_overrides
from simcluster.cli.terminal import set_progress
from simcluster.documents.overrides import expand_vary
from simcluster.results.file import is_result_file, read_result
from simcluster.scenario.scenario import Base, Scenario
from simcluster.show.report import ReportEntry, make_entry, make_saved_entry, report_page
from simcluster.studies.variations import make_variations, number_duplicates, simulate_all


def run(args: argparse.Namespace) -> None:
    """Check the arguments, simulate or read the runs, write the page."""
    if args.timeline:
        raise InputError(
            f"--timeline {args.timeline}: only scenarios have timelines on a page; name the scenario instead"
        )
    if args.kernels is not None and args.against is None:
        raise InputError(f"--kernels {args.kernels} applies to a trace; name the trace with --against")
    overrides, vary = read_overrides(args), [expand_vary(text) for text in args.vary]
    saved = [name for name in args.runs if is_result_file(name)]
    if args.side_by_side and not vary:
        raise InputError("--side-by-side applies to variants of --vary; several runs are always side by side")
    if vary and not saved and len(args.runs) == 1 and not args.side_by_side and args.against is None:
        _write_variants(args, overrides, vary)
        return
    if saved and (overrides or vary or args.ranks):
        what = "--ranks" if args.ranks else "--set and --vary"
        raise InputError(f"{what} cannot change {saved[0]}, a saved result; name its scenario instead")
    alone = InputError(f"--against {args.against}: a trace is compared with one simulated scenario; name only one")
    if args.against is not None and (len(args.runs) != 1 or saved):
        raise alone
    compared = None if args.against is None else load_provided("trace of a report")(args.against, args.kernels)
    entries: list[ReportEntry] = []
    for name in args.runs:
        if name in saved:
            entries.append(make_saved_entry(read_result(name), origin=name))
        else:
            entries += _simulate_runs(name, overrides, vary, args.ranks)
    if compared and (len(entries) != 1 or entries[0].result is None):
        raise alone
    against = compared(entries[0].result) if compared else None
    names = number_duplicates([entry.name for entry in entries])
    entries = [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]
    set_progress(f"writing {args.output}")
    common.write_text(args.output, report_page(entries, title=args.title, against=against))
    set_progress()
    runs = f"{len(entries)} {'run' if len(entries) == 1 else 'runs'}"
    common.print_answer(
        args,
        lambda: f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, {runs}",
        lambda: [{"name": entry.name, **entry.numbers} for entry in entries],
    )


def _write_variants(
    args: argparse.Namespace, overrides: Sequence[tuple[str, Any]], vary: Sequence[tuple[str, Sequence[Any]]]
) -> None:
    from simcluster.cli.sweep import ProgressBar

    (name,) = args.runs
    load_provided("keys of a page")([path for path, _ in vary])
    note_replaced_faults(name, overrides)
    varied = load_provided("variants of a page")(
        Base(name),
        dict(vary),
        fixed=overrides,
        ranks=partial(_parse_ranks, args.ranks),
        origin=name,
        progress=ProgressBar(),
    )
    names = varied.names
    for each, state in zip(names, varied.states, strict=True):
        if isinstance(state, str):
            print(f"note: {each} is invalid: {state}", file=sys.stderr)
    set_progress(f"writing {args.output}")
    common.write_text(args.output, load_provided("page of variants")(varied, title=args.title))
    set_progress()
    common.print_answer(
        args,
        lambda: (
            f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, {len(varied.played):,} of {len(names):,} "
            f"variants; its controls choose one of {' x '.join(f'{len(key.values)} {key.path}' for key in varied.keys)}"
        ),
        lambda: [{"name": names[at], **state.entry.numbers} for at, state in varied.played.items()],
    )


def _parse_ranks(text: str | None, scenario: Scenario) -> Sequence[int] | None:
    return common.parse_ranks(text, scenario.gpus)


def _simulate_runs(
    path: str, overrides: Sequence[tuple[str, Any]], vary: Sequence[tuple[str, Sequence[Any]]], ranks: str | None
) -> list[ReportEntry]:
    """Return the runs of a scenario: one, or one per valid combination of varied values."""
    note_replaced_faults(path, overrides)
    variants = make_variations(path, overrides, vary)
    chosen = {
        name: common.parse_ranks(ranks, scenario.gpus)
        for name, scenario in variants.items()
        if not isinstance(scenario, InputError)
    }
    found = []
    for name, result in simulate_all(variants.items()).items():
        if isinstance(result, InputError):
            print(f"note: {name} is invalid: {common.join_problems(str(result))}", file=sys.stderr)
        else:
            found.append(make_entry(result, name=name, origin=path, ranks=chosen[name]))
    return found
