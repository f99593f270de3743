"""simcluster report: one HTML page about one run, several runs, or variants with controls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.cli import common
from simcluster.cli.common import note_replaced_faults, read_overrides
from simcluster.cli.terminal import show_progress_text
from simcluster.documents.overrides import parse_vary_option
from simcluster.interactive.report import ReportEntry, make_entry, make_saved_entry, report_page
from simcluster.results.result_file import is_result_file, read_result
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.studies.variations import make_variant_scenarios, number_repeated_names, simulate_variants


def run(args: argparse.Namespace) -> None:
    """Check the arguments, simulate or read the runs, and write the page."""
    if args.timeline:
        raise InputError(
            f"--timeline {args.timeline}: only scenarios have timelines on a page; name the scenario instead"
        )
    if args.kernels is not None and args.against is None:
        raise InputError(f"--kernels {args.kernels} applies to a trace; name the trace with --against")
    overrides, vary = read_overrides(args), [parse_vary_option(text) for text in args.vary]
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
    compared = None if args.against is None else load_satellite_object("trace of a report")(args.against, args.kernels)
    entries: list[ReportEntry] = []
    for name in args.runs:
        if name in saved:
            entries.append(make_saved_entry(read_result(name), origin=name))
        else:
            entries += _simulate_runs(name, overrides, vary, args.ranks)
    if compared and (len(entries) != 1 or entries[0].result is None):
        raise alone
    against = compared(entries[0].result) if compared else None
    names = number_repeated_names([entry.name for entry in entries])
    entries = [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]
    show_progress_text(f"writing {args.output}")
    common.write_text_atomic(args.output, report_page(entries, title=args.title, against=against))
    show_progress_text()
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
    load_satellite_object("keys of a page")([path for path, _ in vary])
    note_replaced_faults(name, overrides)
    varied = load_satellite_object("variants of a page")(
        BaseScenario(name),
        dict(vary),
        fixed=overrides,
        ranks=partial(_parse_ranks, args.ranks),
        origin=name,
        progress=ProgressBar(),
    )
    names, simulated = varied.names, varied.simulated_variants
    for each, state in zip(names, varied.variants, strict=True):
        if isinstance(state, str):
            print(f"note: {each} is invalid: {state}", file=sys.stderr)
    show_progress_text(f"writing {args.output}")
    common.write_text_atomic(args.output, load_satellite_object("page of variants")(varied, title=args.title))
    show_progress_text()
    common.print_answer(
        args,
        lambda: (
            f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, {len(simulated):,} of {len(names):,} "
            f"variants; its controls choose one of {' x '.join(f'{len(key.values)} {key.path}' for key in varied.keys)}"
        ),
        lambda: [{"name": names[at], **state.entry.numbers} for at, state in simulated.items()],
    )


def _parse_ranks(text: str | None, scenario: Scenario) -> Sequence[int] | None:
    return common.parse_ranks(text, scenario.gpus)


def _simulate_runs(
    path: str, overrides: Sequence[tuple[str, Any]], vary: Sequence[tuple[str, Sequence[Any]]], ranks: str | None
) -> list[ReportEntry]:
    """Simulate a scenario, or each valid combination of varied values, and return the page's entries."""
    note_replaced_faults(path, overrides)
    variants = make_variant_scenarios(path, overrides, vary)
    chosen = {
        name: common.parse_ranks(ranks, scenario.gpus)
        for name, scenario in variants.items()
        if not isinstance(scenario, InputError)
    }
    found = []
    for name, result in simulate_variants(variants.items()).items():
        if isinstance(result, InputError):
            print(f"note: {name} is invalid: {common.join_error_lines(str(result))}", file=sys.stderr)
        else:
            found.append(make_entry(result, name=name, origin=path, ranks=chosen[name]))
    return found
