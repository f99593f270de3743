"""simcluster report: one HTML page about a run, several side by side, or variants to switch among."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import provided
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of, say_what_is_replaced
from simcluster.cli.terminal import progress
from simcluster.documents.given_files import why_missing
from simcluster.documents.overrides import expand_vary
from simcluster.documents.packed import read_parquet
from simcluster.results.file import is_saved, read_saved
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Base, Scenario
from simcluster.show.report import Entry, entry_of_result, entry_of_saved, page
from simcluster.show.report.saved import TEXTS
from simcluster.studies.variations import distinct, play_all, possible_variations

if TYPE_CHECKING:
    import pandas as pd


_MOST_BYTES = 1_000_000_000
_MOST_ROWS = 20_000_000
_CELL = 24  # bytes of memory


def run(args: argparse.Namespace) -> None:
    """Check everything that was named, play or read it, write the page."""
    if args.kernels is not None and args.against is None:
        raise InputError(f"--kernels {args.kernels} is for a trace; name it with --against")
    overrides, vary = overrides_of(args), [expand_vary(text) for text in args.vary]
    saved = [name for name in args.runs if is_saved(name)]
    if args.side_by_side and not vary:
        raise InputError("--side-by-side is for the variants of --vary; several runs are side by side anyway")
    if vary and not saved and len(args.runs) == 1 and not args.side_by_side and args.against is None:
        _moving(args, overrides, vary)
        return
    if saved and (overrides or vary or args.ranks):
        what = "--ranks" if args.ranks else "--set and --vary"
        raise InputError(f"{what} cannot change {saved[0]}, which was played already; name its scenario instead")
    if len(args.timeline) > len(saved):
        raise InputError(
            f"--timeline is given {len(args.timeline)} times for {len(saved)} saved results; a scenario's timeline is "
            "played, a result's is the file that was written with it"
        )
    alone = InputError(f"--against {args.against}: a trace stands beside one scenario that is played; name one alone")
    if args.against is not None and (len(args.runs) != 1 or saved):
        raise alone
    compared = None if args.against is None else provided("trace of a report")(args.against, args.kernels)
    timelines = dict(zip(saved, [read_timeline(Path(name)) for name in args.timeline], strict=False))
    entries: list[Entry] = []
    for name in args.runs:
        if name in saved:
            entries.append(entry_of_saved(read_saved(name), origin=name, columns=timelines.get(name)))
        else:
            entries += _played(name, overrides, vary, args.ranks)
    if compared and (len(entries) != 1 or entries[0].result is None):
        raise alone
    against = compared(entries[0].result) if compared else None
    names = distinct([entry.name for entry in entries])
    entries = [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]
    progress(f"writing {args.output}")
    common.write_text(args.output, page(entries, title=args.title, against=against))
    progress()
    runs = f"{len(entries)} {'run' if len(entries) == 1 else 'runs'}"
    common.answer(
        args,
        lambda: f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, {runs}",
        lambda: [{"name": entry.name, **entry.numbers} for entry in entries],
    )


def _moving(
    args: argparse.Namespace, overrides: Sequence[tuple[str, Any]], vary: Sequence[tuple[str, Sequence[Any]]]
) -> None:
    """Every variant played beforehand, on a page with a control for each key."""
    from simcluster.cli.sweep import Bar

    (name,) = args.runs
    provided("keys of a page")([path for path, _ in vary])
    if args.timeline:
        raise InputError("--timeline is a saved result's; those of variants are played")
    say_what_is_replaced(name, overrides)
    varied = provided("variants of a page")(
        Base(name), dict(vary), fixed=overrides, ranks=partial(_ranks_of, args.ranks), origin=name, progress=Bar()
    )
    names = varied.names()
    for each, state in zip(names, varied.states, strict=True):
        if isinstance(state, str):
            print(f"note: {each} is refused: {state}", file=sys.stderr)
    progress(f"writing {args.output}")
    common.write_text(args.output, provided("page of variants")(varied, title=args.title))
    progress()
    played = dict(varied.played())
    common.answer(
        args,
        lambda: (
            f"{args.output}: {args.output.stat().st_size / 1e6:.1f} MB, {len(played):,} of {len(names):,} variants; "
            f"its controls choose one of {' x '.join(f'{len(key.values)} {key.path}' for key in varied.keys)}"
        ),
        lambda: [{"name": names[at], **state.entry.numbers} for at, state in played.items()],
    )


def _ranks_of(text: str | None, scenario: Scenario) -> Sequence[int] | None:
    return common.ranks_of(text, scenario.gpus)


def _played(
    path: str, overrides: Sequence[tuple[str, Any]], vary: Sequence[tuple[str, Sequence[Any]]], ranks: str | None
) -> list[Entry]:
    """Return a scenario's runs: one, or one for each combination of varied values that can be."""
    say_what_is_replaced(path, overrides)
    variants = possible_variations(path, overrides, vary)
    chosen = {
        name: common.ranks_of(ranks, scenario.gpus)
        for name, scenario in variants.items()
        if not isinstance(scenario, InputError)
    }
    found = []
    for name, result in play_all(variants.items()).items():
        if isinstance(result, InputError):
            print(f"note: {name} is refused: {common.on_one_line(str(result))}", file=sys.stderr)
        else:
            found.append(entry_of_result(result, name=name, origin=path, ranks=chosen[name]))
    return found


def read_timeline(path: Path) -> dict[str, Any]:
    """Return the columns of a timeline in a file; InputError for a file that cannot be one."""
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"--timeline {path}: a timeline ends in .csv or .parquet; write one with simcluster run --timeline"
        )
    if not path.is_file():
        raise InputError(f"--timeline {path}: there is no such file{why_missing(path, path.suffix)}")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"--timeline {path}: is larger than {_MOST_BYTES / 1e9:g} GB; write one with fewer steps")
    try:
        table = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except InputError:
        raise
    except Exception:  # whatever the readers of broken files raise
        raise InputError(
            f"--timeline {path}: cannot be read as a table in {path.suffix}; write it with simcluster run --timeline"
        ) from None
    return {str(name): table[name].to_numpy() for name in table.columns}


def _csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    kinds = dict.fromkeys(TEXTS, "str")
    return pd.read_csv(path, keep_default_na=False, dtype=kinds, nrows=_MOST_ROWS)


def _parquet(path: Path) -> pd.DataFrame:
    table = read_parquet(path, COLUMNS, cell=_CELL)
    if table.num_rows > _MOST_ROWS:
        rows = f"{table.num_rows:,} rows; {_MOST_ROWS:,}"
        raise InputError(f"--timeline {path}: has {rows} are the most that a page is made of")
    found: pd.DataFrame = table.to_pandas(strings_to_categorical=False)
    return found.astype({name: object for name, kind in found.dtypes.items() if str(kind) == "category"})
