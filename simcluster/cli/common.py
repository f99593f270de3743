"""Helpers shared by commands: overrides, tables, JSON, output files, pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.atomic_files import open_atomic
from simcluster.base.atomic_files import write_text_atomic as write_text_atomic
from simcluster.base.counts import parse_number_ranges
from simcluster.base.errors import InputError
from simcluster.cli.outputs import TABLES
from simcluster.cli.terminal import show_progress_text, style_text, write_json
from simcluster.show.output_blocks import OutputBlocks, render_as_text

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.plot_registry import Figure


def read_overrides(args: argparse.Namespace, *scenarios: str) -> list[tuple[str, Any]]:
    """Return the command line's scenario overrides as (key path, value) pairs, those of --set first.

    Prints a note on stderr about faults of these ``scenarios`` that an override replaces.
    """
    from simcluster.documents.overrides import parse_override  # heavy: reads YAML

    found = [parse_override(text) for text in (*args.set, *args.overrides)]
    for scenario in scenarios:
        note_replaced_faults(scenario, found)
    return found


def note_replaced_faults(scenario: str, overrides: Sequence[tuple[str, Any]]) -> None:
    """Print a note on stderr if the overrides replace faults of the scenario."""
    given = [value for path, value in overrides if path == "faults"]
    if not given or not given[-1]:
        return
    from simcluster.documents.yaml_documents import read_document
    from simcluster.faults.descriptions import describe_faults
    from simcluster.scenario.scenario import find_scenario_file

    own = read_document(find_scenario_file(scenario)).data.get("faults")
    if isinstance(own, list) and own and own != given[-1] and all(isinstance(fault, dict) for fault in own):
        replaced = f"faults=... replaces the scenario's faults ({describe_faults(own)})"
        print(f"note: {replaced}; faults+=... adds to them", file=sys.stderr)


def read_cluster_overrides(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the overrides of a topology's keys; "nodes=4" and "cluster.nodes=4" are the same."""
    return [(path.removeprefix("cluster."), value) for path, value in read_overrides(args)]


def read_executor(args: argparse.Namespace) -> int | str:
    """Return the value of --workers or --executor: a number of processes, or a Dask address."""
    if args.executor is None:
        return int(args.workers)
    if args.workers != 1:
        raise InputError("--workers and --executor both set the processes; give one of them")
    found = parse_executor(args.executor)
    assert found is not None
    return found


def parse_executor(text: str | None) -> int | str | None:
    """Parse the value of --executor: a number of processes, or the address of a Dask scheduler.

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


def make_bold(line: str) -> str:
    """Return the line in bold type if stdout is a terminal."""
    return style_text(line, "bold")


def join_error_lines(error: str) -> str:
    """Join the problems that an error message lists to one line, without the heading that counts them."""
    lines = [line.strip() for line in error.splitlines()]
    return "; ".join(lines[1:] or lines)


def parse_ranks(text: str | None, num_ranks: int, option: str = "--ranks") -> list[int] | None:
    """Parse rank numbers such as "0,8-15" or "all"; return None if ``text`` is None."""
    if text is None:
        return None
    if text == "all":
        return list(range(num_ranks))
    ranks = parse_number_ranges(text, option)
    wrong = [rank for rank in ranks if rank >= num_ranks]
    if wrong:
        raise InputError(
            f"{option}: there is no rank {max(wrong)}; this job has ranks 0 to {num_ranks - 1}: use one of those"
        )
    return list(dict.fromkeys(ranks))


def report_written_file(args: argparse.Namespace, path: str | Path) -> str:
    """Return "wrote PATH", and remember the path so that the command does not report it twice."""
    args.told = (*getattr(args, "told", ()), Path(path))
    return f"wrote {path}"


def print_answer(args: argparse.Namespace, text: Callable[[], str | OutputBlocks], data: Callable[[], object]) -> None:
    """Print a result as text, or as JSON with --json -; with --json FILE, also write its JSON to the file."""
    if args.json != "-":
        found = text()
        print(found if isinstance(found, str) else render_as_text(found, bold=make_bold))
    if args.json:
        write_json(args.json, data())


def fail_without_results(args: argparse.Namespace, count: int, message: Callable[[], str]) -> None:
    """Make the command exit with an error, after its files are written, if it has no results."""
    args.came_to_nothing = "" if count else message()


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table to a .csv or .parquet file."""
    with open_atomic(path) as file:
        if path.suffix == ".parquet":
            table.to_parquet(file, index=False)
        else:
            table.to_csv(file, index=False, mode="wb")


def draw_pictures(
    args: argparse.Namespace,
    *pictures: tuple[Path | None, Callable[[], Figure]]
    | tuple[Path | None, Callable[[], Figure], Callable[[], pd.DataFrame]],
) -> None:
    """Draw each picture whose path is set, or write its table if the path has a table's ending."""
    for path, picture, *table in pictures:
        if path:
            show_progress_text(f"{'writing' if path.suffix in TABLES else 'drawing'} {path}")
        if path and table and path.suffix in TABLES:
            write_table(path, table[0]())
        elif path:
            save_picture(args, picture(), path)
    show_progress_text()


def save_picture(args: argparse.Namespace, picture: Figure, path: Path) -> None:
    """Write a picture to a file, in the size set on the command line."""
    from simcluster.show.figure_files import save_figure  # matplotlib, only if there is a picture
    from simcluster.show.picture_sizes import parse_picture_size

    save_figure(picture, path, size=parse_picture_size(args.picture_size) if args.picture_size else None, dpi=args.dpi)


def picture_size_inches(args: argparse.Namespace) -> dict[str, Any]:
    """Return the width and height in inches set on the command line, as keyword arguments of drawing functions."""
    if not args.picture_size:
        return {}
    from simcluster.show.picture_sizes import parse_picture_size

    size = parse_picture_size(args.picture_size)
    return {"width": size.width, "height": size.height}


def format_peak_memory() -> str:
    """Return the peak memory of this process as text."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB"
