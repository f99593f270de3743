"""Readers of gzip and Parquet files that limit memory, so that a small file cannot unpack to fill all memory.

The only module that unpacks gzip and reads Parquet. A file unpacks to at most 20 times its size, or 256 MB if that is
more; Parquet's footer, and JSON's brackets and commas, give the unpacked size before anything is parsed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from simcluster.base.errors import InputError
from simcluster.documents.input_files import command_hint, missing_file_hint

RATIO, FLOOR = 20, 256_000_000
"""Limit of a file's unpacked size: this factor on its size, or this many bytes if that is more."""
_MEMORY_RATIO, _MEMORY_FLOOR = 85, 850_000_000
"""Limit of a file's memory as Python objects: this factor on its size, or this many bytes if that is more."""
_OBJECT, _ARRAY, _ITEM = 232, 64, 40
"""Approximate bytes of memory of an object with up to 5 keys, a list, and one more value in either (CPython 3.11)."""
_CELL, _MOST_COLUMNS = 8, 1000
_PIECE = 1 << 24
_PARQUET = "Parquet needs pyarrow; run pip install 'simcluster[parquet]'"


def read_maybe_gzip(path: Path, max_bytes: int) -> bytes:
    """Return a file's bytes, decompressed if the file is in gzip format.

    Raises InputError if it is truncated or damaged, has more than ``max_bytes`` bytes, or unpacks to more than allowed.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        allowed = min(max_bytes, max_unpacked_bytes(size)) if packed else max_bytes
        with gzip.open(path) if packed else path.open("rb") as file:
            content = _read_at_most(file, allowed + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"cannot read {path}: its gzip stream is incomplete or damaged; copy it again") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise InputError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None
    if len(content) > max_bytes:
        raise InputError(f"cannot read {path}: it is larger than {max_bytes:,} bytes, the limit; record less")
    if len(content) > allowed:
        raise _unpacked_size_error(path, size, f"more than {allowed:,} bytes")
    if packed:
        _check_json_memory(path, size, content)
    return content


def max_unpacked_bytes(size: int) -> int:
    """Return the limit on the unpacked size (bytes) of a compressed file of ``size`` bytes."""
    return max(FLOOR, RATIO * size)


def _max_memory_bytes(size: int) -> int:
    return max(_MEMORY_FLOOR, _MEMORY_RATIO * size)


def _read_at_most(file: IO[bytes] | gzip.GzipFile, max_bytes: int) -> bytes:
    """Read up to ``max_bytes`` bytes in small pieces, since one large read would allocate the full amount at once."""
    pieces: list[bytes] = []
    while max_bytes > 0 and (piece := file.read(min(max_bytes, _PIECE))):
        pieces.append(piece)
        max_bytes -= len(piece)
    return b"".join(pieces)


def _check_json_memory(path: Path, size: int, content: bytes) -> None:
    """Raise InputError if the JSON in a gzip file would take too much memory once parsed."""
    if content[:64].lstrip()[:1] not in (b"{", b"["):
        return
    memory = 2 * len(content) + _OBJECT * content.count(b"{") + _ARRAY * content.count(b"[")
    memory += _ITEM * content.count(b",")
    if memory > _max_memory_bytes(size):
        raise _unpacked_size_error(path, size, f"JSON that needs about {memory / 1e9:.1f} GB of memory")


def _unpacked_size_error(path: Path, size: int, what: str) -> InputError:
    return InputError(
        f"cannot read {path}: its {size:,} bytes unpack to {what}; the limit is {RATIO} times a packed file's size, "
        f"or {FLOOR // 1_000_000} MB if more. If you trust it, unpack it first (gunzip) and name the unpacked file"
    )


# --- Parquet ----------------------------------------------------------------------------------------------------------


def import_pyarrow(path: str | Path, verb: str) -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet; if they are missing, raise InputError that begins "cannot DOING PATH"."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]  # an extra; slow to import
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(f"cannot {verb} {path}: {_PARQUET}") from None
    return arrow, parquet


def read_parquet(path: str | Path, columns: Sequence[str] | None = None, *, cell: int = _CELL) -> Any:
    """Read some columns (``columns``; default: all) of a Parquet file as a pyarrow table.

    Text is dictionary-encoded. ``cell`` is the approximate memory (bytes) of a value in use. Raises InputError if
    pyarrow is missing, and for a file that is not Parquet, is truncated, or unpacks, by its footer, to more than
    allowed.
    """
    arrow, parquet = import_pyarrow(path, "read")
    if not Path(path).is_file():
        raise InputError(f"cannot read {path}: there is no such file{missing_file_hint(Path(path), '.parquet')}")
    try:
        with parquet.ParquetFile(path) as file:  # the footer alone
            schema = file.schema_arrow
            names = [name for name in schema.names if columns is None or name in columns]
            nested = [name for name in names if arrow.types.is_nested(schema.field(name).type)]
            if nested:
                raise InputError(
                    f"cannot read {path}: column {nested[0]} holds lists; a cell must be one value: split the lists"
                )
            _check_parquet_size(Path(path), file.metadata, names, cell)
        with parquet.ParquetFile(path, read_dictionary=names) as file:
            table = file.read(columns=names)
        table.validate(full=True)
    except InputError:
        raise
    except (arrow.ArrowException, OSError, ValueError, MemoryError):
        raise InputError(
            f"cannot read {path}: not a valid Parquet file (truncated, or another format); copy it again, or "
            f"export it again from its program{command_hint(path)}"
        ) from None
    return table


def _check_parquet_size(path: Path, footer: Any, names: Sequence[str], cell: int) -> None:
    size, rows = path.stat().st_size, footer.num_rows
    if len(names) > _MOST_COLUMNS:
        raise InputError(f"cannot read {path}: it has {len(names):,} columns; at most {_MOST_COLUMNS:,} can be read")
    values = rows * len(names)
    # not from a column's metadata: pyarrow crashes the process if these are damaged
    unpacked = sum(max(0, footer.row_group(number).total_byte_size) for number in range(footer.num_row_groups))
    if max(unpacked, _CELL * values) > max_unpacked_bytes(size) or cell * values > _max_memory_bytes(size):
        raise InputError(
            f"cannot read {path}: its {size:,} bytes unpack to {rows:,} rows of {len(names)} columns, about "
            f"{max(unpacked, cell * values) / 1e6:,.0f} MB of memory; a packed file may unpack to {RATIO} times its "
            f"size, or {FLOOR // 1_000_000} MB, and take {_MEMORY_RATIO} times its size of memory, or "
            f"{_MEMORY_FLOOR // 1_000_000} MB. Write fewer rows per file, or, if you trust it, without compression"
        )


def arrow_table_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a pyarrow table as dicts; raise ValueError for a value without a Python equivalent."""
    columns = []
    for name in table.column_names:
        column: list[Any] = []
        for chunk in table.column(name).chunks:
            words = getattr(chunk, "dictionary", None)
            known = None if words is None else words.to_pylist()
            found = (chunk if known is None else chunk.indices).to_pylist()
            column += found if known is None else [None if place is None else known[place] for place in found]
        columns.append(column)
    return [dict(zip(table.column_names, cells, strict=True)) for cells in zip(*columns, strict=True)]
