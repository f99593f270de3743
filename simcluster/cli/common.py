"""Helpers that commands share: overrides, tables, JSON, output files, pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from simcluster.base.counts import parse_numbers
from simcluster.base.errors import InputError
from simcluster.base.written import open_atomic
from simcluster.base.written import write_text as write_text
from simcluster.cli.outputs import TABLES
from simcluster.cli.terminal import set_progress, style_text, write_json
from simcluster.show.blocks import Answer, blocks_text, table_lines

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.pictures import Figure


def read_overrides(args: argparse.Namespace, *scenarios: str) -> list[tuple[str, Any]]:
    """Return the overrides of the command line as (path, value) pairs: --set first, then other spellings.

    Prints a note on stderr about faults of these ``scenarios`` that an override replaces.
    """
    from simcluster.documents.overrides import parse_override  # heavy: reads YAML

    found = [parse_override(text) for text in (*args.set, *args.overrides)]
    for scenario in scenarios:
        note_replaced_faults(scenario, found)
    return found


def note_replaced_faults(scenario: str, overrides: Sequence[tuple[str, Any]]) -> None:
    """Print a note on stderr if the overrides replace the scenario's own faults."""
    given = [value for path, value in overrides if path == "faults"]
    if not given or not given[-1]:
        return
    from simcluster.documents.reading import read_document
    from simcluster.faults.words import describe_faults
    from simcluster.scenario.scenario import scenario_path

    own = read_document(scenario_path(scenario)).data.get("faults")
    if isinstance(own, list) and own and own != given[-1] and all(isinstance(fault, dict) for fault in own):
        print(
            f"note: faults=... replaces the scenario's faults ({describe_faults(own)}); faults+=... adds to them",
            file=sys.stderr,
        )


def read_cluster_overrides(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the overrides of a topology; nodes=4 and cluster.nodes=4 mean the same."""
    return [(path.removeprefix("cluster."), value) for path, value in read_overrides(args)]


def read_executor(args: argparse.Namespace) -> int | str:
    """Return the executor of --workers or --executor: a number of processes, or a Dask address."""
    if args.executor is None:
        return int(args.workers)
    if args.workers != 1:
        raise InputError("--workers and --executor both set the processes; give one of them")
    found = parse_executor(args.executor)
    assert found is not None
    return found


def parse_executor(text: str | None) -> int | str | None:
    """Parse --executor: a number of processes, or a Dask scheduler's address.

    The default is all cores, or None if there is only one.
    """
    if text is None:
        from simcluster.base.processes import count_cores

        return count_cores() if count_cores() > 1 else None
    if text.isdecimal():
        return int(text)
    if text.startswith("dask://"):
        return text
    raise InputError(f"--executor {text!r} must be a number of processes, or dask://HOST:PORT")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with aligned columns and a bold header."""
    return "\n".join(table_lines(header, rows, bold=bold_line))


def bold_line(line: str) -> str:
    """Return a line in bold if stdout is a terminal."""
    return style_text(line, "bold")


def join_problems(error: str) -> str:
    """Join the problems in an error message to one line, without the heading that counts them."""
    lines = [line.strip() for line in error.splitlines()]
    return "; ".join(lines[1:] or lines)


def parse_ranks(text: str | None, num_ranks: int, option: str = "--ranks") -> list[int] | None:
    """Parse rank numbers such as "0,8-15" or "all"; None for None."""
    if text is None:
        return None
    if text == "all":
        return list(range(num_ranks))
    ranks = parse_numbers(text, option)
    wrong = [rank for rank in ranks if rank >= num_ranks]
    if wrong:
        raise InputError(
            f"{option}: there is no rank {max(wrong)}; this job has ranks 0 to {num_ranks - 1}: use one of those"
        )
    return list(dict.fromkeys(ranks))


def report_written(args: argparse.Namespace, path: str | Path) -> str:
    """Return "wrote PATH", and remember the path, so that it is not reported a second time."""
    args.told = (*getattr(args, "told", ()), Path(path))
    return f"wrote {path}"


def print_answer(args: argparse.Namespace, text: Callable[[], str | Answer], document: Callable[[], object]) -> None:
    """Print an answer as text, or its JSON if --json is "-"; write its JSON to a file if requested."""
    if args.json != "-":
        found = text()
        print(found if isinstance(found, str) else blocks_text(found, bold=bold_line))
    if args.json:
        write_json(args.json, document())


def require_results(args: argparse.Namespace, count: int, nothing: Callable[[], str]) -> None:
    """Make the command fail after its files are written if it has no results.

    ``count`` are its results, ``nothing`` returns the message.
    """
    args.came_to_nothing = "" if count else nothing()


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table to .csv or .parquet, by the path's ending."""
    with open_atomic(path) as file:
        if path.suffix == ".parquet":
            table.to_parquet(file, index=False)
        else:
            table.to_csv(file, index=False, mode="wb")


def draw_pictures(
    args: argparse.Namespace,
    *wanted: tuple[Path | None, Callable[[], Figure]]
    | tuple[Path | None, Callable[[], Figure], Callable[[], pd.DataFrame]],
) -> None:
    """Draw each picture that has a path; write its table instead if the path has a table's ending."""
    for path, picture, *table in wanted:
        if path:
            set_progress(f"{'writing' if path.suffix in TABLES else 'drawing'} {path}")
        if path and table and path.suffix in TABLES:
            write_table(path, table[0]())
        elif path:
            save_picture(args, picture(), path)
    set_progress()


def save_picture(args: argparse.Namespace, picture: Figure, path: Path) -> None:
    """Write a picture to a file, in the size that the command line sets."""
    from simcluster.show.saving import save_figure  # matplotlib, only if there is a picture
    from simcluster.show.sizes import parse_picture_size

    save_figure(picture, path, size=parse_picture_size(args.picture_size) if args.picture_size else None, dpi=args.dpi)


class PictureInches(TypedDict, total=False):
    """Width and height in inches, as keyword arguments of pictures that depend on their size."""

    width: float
    height: float | None


def picture_inches(args: argparse.Namespace) -> PictureInches:
    """Return the picture's width and height in inches, as the command line sets them."""
    if not args.picture_size:
        return {}
    from simcluster.show.sizes import parse_picture_size

    size = parse_picture_size(args.picture_size)
    return {"width": size.width, "height": size.height}


def peak_memory() -> str:
    """Return the peak memory of this process as text."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB"
