"""simcluster sweep: simulate many variants on all cores or nodes, and resume interrupted sweeps."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import join_error_lines, read_overrides, write_table
from simcluster.cli.terminal import show_progress_text
from simcluster.documents.overrides import parse_vary_option
from simcluster.scenario.memory_plan import parse_headroom
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines
from simcluster.show.table_cells import column_headings, format_row
from simcluster.studies.sweep.quick_rows import FastestRows, RowMemory, find_fastest_rows, simulate_quickly
from simcluster.studies.sweep.sweep import SweepResult, load_sweep, run_sweep
from simcluster.studies.sweep.variant_simulation import simulate_variant

if TYPE_CHECKING:
    import pandas as pd

ROWS = ".rows"
"""Suffix of the database of finished rows, after the output's name."""
_BEST = 5


def run(args: argparse.Namespace) -> None:
    """Simulate the variants that have no row yet, write the table, and print a summary."""
    output = args.output
    headroom = parse_headroom(args.headroom)
    made = load_sweep(
        args.study,
        dict(parse_vary_option(text) for text in args.vary),
        overrides=read_overrides(args),
        sample=args.sample,
        seed=args.seed,
    )
    # "bounds" is an old spelling: exact steps cost no more
    measure = simulate_variant if args.quick is None else simulate_quickly
    store = output.with_name(output.name + ROWS)
    bar = ProgressBar()

    def report_progress(done: int, total: int, num_failed: int) -> None:
        bar(done, total, num_failed)
        if done:
            import pandas  # noqa: F401  # takes 0.3 s; other processes simulate meanwhile

    try:
        swept = run_sweep(
            made,
            executor=common.parse_executor(args.executor),
            store=store,
            retry=args.retry,
            measure=measure,
            progress=report_progress,
        )
    except KeyboardInterrupt:
        show_progress_text()
        print(f"{bar.done:,} of {bar.total:,} rows are in {store}; run the same command to resume", file=sys.stderr)
        raise
    show_progress_text()
    rows = swept.to_frame()
    write_table(output, rows)
    best = find_fastest_rows(swept, rows, headroom, _BEST)
    facts = {**_sweep_summary(swept, rows), **_fastest_rows_json(best)}
    common.fail_without_results(
        args,
        int((rows["status"] == "ok").sum()),
        lambda: (
            f"none of {len(rows):,} variants has a result; first reason: {join_error_lines(str(rows['error'].iloc[0]))}"
        ),
    )
    common.print_answer(args, lambda: [*_summary_blocks(facts, rows, swept.sweep.paths, output, best)], lambda: facts)


class ProgressBar:
    """Progress of a sweep on the terminal: finished rows, rows per second, and remaining time."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._begun: tuple[float, int] | None = None

    def __call__(self, done: int, total: int, num_failed: int) -> None:
        """Show the progress: ``done`` of ``total`` rows, ``num_failed`` of these without a result."""
        now = time.monotonic()
        self.done, self.total = done, total
        self._begun = self._begun or (now, done)
        show_progress_text(self.progress_line(now, num_failed))

    def progress_line(self, now: float, num_failed: int) -> str:
        """Return the progress line at time ``now`` of the monotonic clock."""
        begun, before = self._begun or (now, self.done)
        seconds, new = now - begun, self.done - before
        rate = new / seconds if seconds > 0 and new else 0.0
        text = f"{self.done:,}/{self.total:,} ({self.done / max(self.total, 1):.0%})"
        if rate:
            text += f"  {rate:.1f} per second, {_format_clock((self.total - self.done) / rate)} left"
        return text + (f"  {num_failed:,} without a result" if num_failed else "")


def _format_clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _sweep_summary(result: SweepResult, table: pd.DataFrame) -> dict[str, Any]:
    counts = table["status"].value_counts()
    errors = table.loc[table["status"] != "ok", "error"].value_counts()
    how = {str(kind): int(count) for kind, count in table["how"].value_counts().items()} if "how" in table else None
    return {
        "variants": len(table),
        "played_now": result.num_simulated,
        **({} if how is None else {"how": how}),
        **{status: int(counts.get(status, 0)) for status in ("ok", "refused", "failed")},
        "errors": {str(error): int(count) for error, count in errors.head(_BEST).items()},
    }


def _fastest_rows_json(best: FastestRows) -> dict[str, object]:
    both = (*best.rows_without_headroom, *best.rows)
    return {
        "headroom": best.headroom,
        "fastest": [each.variant for each in best.rows],
        "ahead_without_headroom": [each.variant for each in best.rows_without_headroom],
        "memory_bytes": {str(each.variant): each.memory for each in both},
        "notes": {str(each.variant): each.note for each in both if each.note},
    }


def _summary_blocks(
    summary: dict[str, Any], table: pd.DataFrame, paths: list[str], output: Path, best: FastestRows
) -> Iterator[OutputBlock]:
    yield TextLines([
        f"{summary['variants']:,} variants: {summary['ok']:,} simulated, {summary['refused']:,} refused, "
        f"{summary['failed']:,} failed ({summary['played_now']:,} now, the others earlier); {output}"
    ])  # fmt: skip
    numbered = table.set_index("variant")
    free = f"{100 * best.headroom:.6g} %"
    notes = [f"* {note}" for note in {row.note: None for row in (*best.rows, *best.rows_without_headroom)} if note]
    if best.rows:
        last = [] if best.rows_without_headroom else notes
        yield _variant_table(best.rows, numbered, paths, f"fastest that leave {free} of memory free", last)
    if best.rows_without_headroom:
        head = "faster than these, not recommended" if best.rows else f"none leaves {free} of memory free; fastest"
        title = f"{head} (! out of memory, ~ leaves less free)"
        yield _variant_table(best.rows_without_headroom, numbered, paths, title, notes)
    if "how" in summary:
        ways = ", ".join(f"{count:,} {_METHODS[kind]}" for kind, count in summary["how"].items())
        yield TextLines([f"{ways}; memory is simulated for variants simulated in full, else a planned upper bound"])
    errors = [f"  {count:,} x {join_error_lines(error)}" for error, count in summary["errors"].items()]
    yield TextLines(["without a result", *errors] if errors else [])


_METHODS = {"quick": "by the fast path (exact)", "full": "in full (exact)"}


def _variant_table(
    shown: Sequence[RowMemory], table: pd.DataFrame, paths: list[str], title: str, notes: Sequence[str]
) -> TableBlock:
    rows = []
    for each in shown:
        row: Any = table.loc[each.variant]
        step = format_seconds(row["step_time_s"])
        rows.append(
            [str(each.variant) + ("*" if each.note else ""), *(str(row[path]) for path in paths), step,
             *format_row("sweep", row.to_dict()), f"{each.memory / 1e9:.1f} GB{each.headroom_mark}"]
        )  # fmt: skip
    header = ["variant", *paths, "step", *column_headings("sweep"), "memory"]
    return TableBlock(header, rows, title=[title], notes=notes)
