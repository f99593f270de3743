"""Kinds of input that other programs write: profiles, exports, Parquet, execution traces; and our own stores."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz import corpus, mutation
from fuzz.case import Case

OUT = ["--json", "-"]
WHAT_IF = (
    "last-stage=mean",
    "links=2x",
    "compute=1.1x",
    "stage=1",
    "dp=0",
    "schedule=zb-h1",
    "type=backward-compute",
    "worker=0,1",
)


def profile(dice: Random) -> Case:
    """Profiles of PyTorch, one of them damaged."""
    base, ranks = dice.choice((("tests/inputs/kineto/rank{}.json.gz", 2), ("examples/profiles/rank00{}.json.gz", 8)))
    bad = corpus.profile(base.format(0), dice.choice((None, 1000)))
    text = (
        corpus.dumped(mutation.tree(dice, bad)) if dice.random() < 0.7 else mutation.raw(dice, json.dumps(bad).encode())
    )
    packed = gzip.compress(text, 1)
    files = {
        "p/rank0.json.gz": mutation.raw(dice, packed) if dice.random() < 0.1 else packed,
        **{f"p/rank{rank}.json.gz": corpus.content(base.format(rank)) for rank in range(1, ranks)},
    }
    command = dice.choice(
        (
            ["replay", "p"],
            ["replay", "p", "--what-if", "links=2x"],
            ["diff", "tiny_dp", "p"],
            ["replay", "p", "--export", "again"],
            ["report", "tiny_dp", "--against", "p", "-o", "r.html"],
            ["diff", "tiny_3d", "p/rank0.json.gz"],
        )
    )
    return Case([*command, *OUT], files)


def _sqlite(dice: Random, content: bytes, times: int) -> bytes:
    """A database with cells changed, rows or columns gone, or its bytes damaged."""
    if dice.random() < 0.2:
        return mutation.raw(dice, content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(content)
        base = sqlite3.connect(path)
        base.execute("PRAGMA journal_mode=DELETE")
        tables = [
            name
            for (name,) in base.execute(
                "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        for _ in range(times):
            _change(dice, base, dice.choice(tables))
        base.commit()
        base.close()
        return path.read_bytes()


def _change(dice: Random, base: sqlite3.Connection, table: str) -> None:
    try:
        columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
        ids = [row[0] for row in base.execute(f'SELECT rowid FROM "{table}"')]
        way = dice.randrange(12)
        if way == 0:
            base.execute(f'ALTER TABLE "{table}" RENAME TO other')
        elif way == 1:
            base.execute(f'ALTER TABLE "{table}" DROP COLUMN "{dice.choice(columns)}"')
        elif way == 2:
            base.execute(f'DELETE FROM "{table}" WHERE rowid >= ?', (dice.choice(ids),))
        elif ids:
            column, row = dice.choice(columns), dice.choice(ids)
            (old,) = base.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid=?', (row,)).fetchone()
            base.execute(f'UPDATE "{table}" SET "{column}"=? WHERE rowid=?', (_cell(dice, old), row))
    except (sqlite3.Error, OverflowError, UnicodeEncodeError, IndexError):
        pass


def _cell(dice: Random, old: Any) -> Any:
    """A cell's new value; of JSON, what stands in it changed."""
    if isinstance(old, str) and old[:1] in "[{" and old and dice.random() < 0.6:
        try:
            return json.dumps(mutation.tree(dice, json.loads(old)))
        except ValueError:
            return old
    new = mutation.near(dice, old) if dice.random() < 0.5 else mutation.value(dice)
    return new if new is None or isinstance(new, int | float | str) else json.dumps(new)


def nsight(dice: Random) -> Case:
    """An export of Nsight Systems."""
    files = {"r.sqlite": _sqlite(dice, corpus.nsight(), dice.choice((1, 1, 2, 5)))}
    command = dice.choice(
        (["diff", "tiny_dp", "r.sqlite"], ["report", "tiny_dp", "--against", "r.sqlite", "-o", "r.html"])
    )
    return Case([*command, *OUT], files)


STORES = (
    ("sweep study.yaml -o x.csv --executor 1", "x.csv.rows"),
    ("plan tiny_3d --executor 1 -o x.csv --vary parallel.tp=2,4", "x.csv.rows"),
    ("train week.yaml --played 20 --store x.store", "x.store"),
    ("train week.yaml --played 20 --store x.store --vary run.spares.warm=0,1", "x.store"),
)


def store(dice: Random) -> Case:
    """The store of a command that was stopped, damaged, and the command run again."""
    command, name = dice.choice(STORES)
    (content,) = corpus.made(command, name)
    files = {name: _sqlite(dice, content, dice.choice((1, 1, 3))), "study.yaml": corpus.dumped(corpus.STUDY)}
    return Case([*command.split(), *OUT], {**files, "week.yaml": corpus.week()})


def _parquet(dice: Random, content: bytes) -> bytes:
    """A Parquet file with a column's values, type or name, or its metadata changed, or its bytes."""
    import pyarrow as arrow
    from pyarrow import parquet

    if dice.random() < 0.2:
        return mutation.raw(dice, content)
    table = parquet.read_table(io.BytesIO(content))
    at = dice.randrange(table.num_columns)
    name, cells = table.column_names[at], table.column(at).to_pylist()
    way = dice.randrange(8)
    try:
        if way == 0:
            table = table.remove_column(at)
        elif way == 1:
            table = table.rename_columns(
                [each if n != at else str(mutation.near(dice, each)) for n, each in enumerate(table.column_names)]
            )
        elif way == 2:
            table = table.slice(0, dice.choice((0, 1, 2, 5)))
        elif way == 3:
            table = table.replace_schema_metadata(
                {key: mutation.raw(dice, each) for key, each in (table.schema.metadata or {b"pandas": b"{}"}).items()}
            )
        elif way == 4:
            table = table.set_column(at, name, arrow.array([str(each) for each in cells]))
        else:
            value = mutation.near(dice, cells[0]) if dice.random() < 0.5 else mutation.value(dice)
            for row in dice.sample(range(len(cells)), min(len(cells), dice.choice((1, 1, 3, len(cells))))):
                cells[row] = value
            table = table.set_column(at, name, arrow.array(cells))
        sink = io.BytesIO()
        parquet.write_table(table, sink)
        return sink.getvalue()
    except (arrow.ArrowException, OverflowError, ValueError, TypeError):
        return mutation.raw(dice, content)


def job_trace(dice: Random) -> Case:
    """An op-level trace of a real job."""
    more = dice.choice(
        ([], ["--steps", "0"], ["--what-if", dice.choice(WHAT_IF)], ["--gantt", "g.png"] if dice.random() < 0.1 else [])
    )
    return Case(
        ["replay", "t.parquet", *more, *OUT], {"t.parquet": _parquet(dice, corpus.content("examples/trace.parquet"))}
    )


def parquet_table(dice: Random) -> Case:
    """A log of failures, or of a run, as Parquet."""
    (log,) = corpus.made("train week.yaml --played 1 --log l.parquet", "l.parquet")
    command = dice.choice(
        (
            ["train", "week.yaml", "--played", "2", "--replay", "l.parquet"],
            ["failures", "l.parquet", "--scenario", "week.yaml"],
        )
    )
    return Case([*command, *OUT], {"l.parquet": _parquet(dice, log), "week.yaml": corpus.week()})


def chakra(dice: Random) -> Case:
    """Execution traces of Chakra, or the groups beside them."""
    files = {f"t/tiny_dp.{rank}.et": corpus.content(f"examples/traces/tiny_dp.{rank}.et") for rank in range(4)}
    groups = corpus.content("examples/traces/comm_groups.json")
    if dice.random() < 0.3:
        groups = corpus.dumped(mutation.tree(dice, json.loads(groups)))
    else:
        name = f"t/tiny_dp.{dice.randrange(4)}.et"
        files[name] = mutation.raw(dice, files[name])
    return Case(["chakra", "play", "t", "--cluster", "dgx_h100", *OUT], {**files, "t/comm_groups.json": groups})


BINARIES: dict[str, Callable[[Random], Case]] = {
    "profile": profile,
    "Nsight export": nsight,
    "store": store,
    "job trace": job_trace,
    "Parquet table": parquet_table,
    "Chakra traces": chakra,
}
