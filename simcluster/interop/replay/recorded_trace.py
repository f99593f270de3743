"""A recorded job as a table with one row per op, in the format of ByteDance's straggler traces.

Source of the format: the traces published with "Understanding Stragglers in Large Model Training Using What-if
Analysis" (arXiv:2505.05713). A worker is a (dp rank, stage); of a tensor- or sequence-parallel group one rank is
recorded. ``start_ts`` and ``duration`` are seconds; ``start_ts`` counts from the first op of the step. ``seq_id``
numbers the ops of one type on one worker; ``mb_id`` is the microbatch, ``mc`` the chunk on the stage and ``gmc`` the
chunk in the whole model, each -1 where it does not apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.base.errors import InputError
from simcluster.documents.compressed_files import read_parquet

_CELL_BYTES = 120
"""Memory per cell (bytes) of a replayed trace: an op takes 1.3 kB."""
_MAX_LETTERS = 200
"""Limit of the letters of an op type: in an array every row takes the space of the longest."""
COLUMNS = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc",
)  # fmt: skip

FORWARD, BACKWARD = "forward-compute", "backward-compute"
WEIGHT_GRADIENT, GRADIENT_NORM = "weight-grad-compute", "gradient-norm"
"""Op types of simulated runs that the format lacks: W of a split backward, the local part of the norm."""
LAUNCH_PREFIX = "launch of "
"""Prefix of added op types: the part of a pass before it launches a collective."""
COLLECTIVE_PREFIX = "comm:"
"""Prefix of collective types from a profiler: comm:all_reduce:default_pg."""
MESSAGE_TYPES = {
    "forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm", "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}  # fmt: skip
"""Op types of both halves of a message between stages, and the name of the whole."""
COLLECTIVE_SCOPES = {
    "params-all-gather": "replicas", "grads-reduce-scatter": "replicas", "grads-all-reduce": "replicas",
    "embedding-grads-all-reduce": "pipeline", "optimizer-clip-main-grad": "job", "layernorm-grads-all-reduce": "worker",
}  # fmt: skip
"""Collective types and their members: the replicas of a stage, the stages of a replica, all workers, or a
tensor-parallel group of which one rank is recorded."""

METADATA_KEY = "simcluster"
BLOCKING_METADATA = {"sends": "blocking"}
"""File metadata under that key if sends block their worker, which the format cannot express."""


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """Recorded trace, stored as one array per column; each row is an op of one worker.

    ``optype`` is an index into ``optype_names``, ``row`` the number of the row in the file. ``blocking``: a send blocks
    its worker until it ends. If unknown, sends overlap with compute.
    """

    name: str
    optype_names: tuple[str, ...]
    dp_rank: Ints
    stage: Ints
    rank: Ints
    step: Ints
    optype: Ints
    start_ts: Floats
    duration: Floats
    seq_id: Ints
    mc: Ints
    mb_id: Ints
    gmc: Ints
    row: Ints
    blocking: bool = False

    def __len__(self) -> int:
        return len(self.row)

    @property
    def replicas(self) -> int:
        """Number of data-parallel ranks."""
        return int(self.dp_rank.max()) + 1

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return int(self.stage.max()) + 1

    @property
    def worker_numbers(self) -> Ints:
        """Worker number of every op: dp_rank x stages + stage."""
        return self.dp_rank * self.stages + self.stage

    def select_rows(self, chosen: Bools | Ints) -> RecordedTrace:
        """Return a copy of the trace that has only the rows selected by a mask or index array."""
        names = [each.name for each in fields(self)][2:-1]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def type_mask(self, optypes: Sequence[str] | Mapping[str, object]) -> Bools:
        """Return a mask of the ops with one of the given types."""
        return np.isin(self.optype, [code for code, word in enumerate(self.optype_names) if word in optypes])

    def describe(self, index: int) -> str:
        """Describe a row for error messages, as in 'row 17 (dp_rank 0, stage 1, step 23, forward-send 2)'."""
        return (
            f"row {self.row[index]} (dp_rank {self.dp_rank[index]}, stage {self.stage[index]}, step {self.step[index]},"
            f" {self.optype_names[self.optype[index]]} {self.seq_id[index]})"
        )


def read_recorded_trace(path: str | Path) -> RecordedTrace:
    """Read a recorded trace from a Parquet file without checking the values.

    Raises InputError if pyarrow or columns are missing, the file is invalid or truncated, or a column has a wrong type.
    """
    table = read_parquet(path, COLUMNS, cell=_CELL_BYTES)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; a trace needs "
            f"{', '.join(COLUMNS)}: add what is missing"
        )
    columns = {}
    for name in COLUMNS:
        holes = table.column(name).null_count
        if holes:
            row = int(np.flatnonzero(table.column(name).is_null().to_numpy())[0])
            raise InputError(f"{path}, row {row}: column {name} is empty (in {holes} rows); every op needs a value")
        columns[name] = table.column(name).to_numpy()
    if any(len(str(word)) > _MAX_LETTERS for word in dict.fromkeys(columns["optype"].tolist())):
        raise InputError(
            f"cannot read {path}: an optype has more than {_MAX_LETTERS} letters; name the ops as the format does"
        )
    try:
        about = json.loads((table.schema.metadata or {}).get(METADATA_KEY.encode(), b"null"))
    except (ValueError, RecursionError):
        raise InputError(
            f"cannot read {path}: its metadata {METADATA_KEY!r} is damaged; write the file again, or remove this key"
        ) from None
    return trace_from_columns(columns, name=Path(path).stem, blocking=about == BLOCKING_METADATA)


def trace_from_columns(columns: Mapping[str, Any], *, name: str, blocking: bool = False) -> RecordedTrace:
    """Build a recorded trace from columns in memory; raise InputError for a column of the wrong type."""
    try:
        words, codes = np.unique(np.asarray(columns["optype"], dtype=str), return_inverse=True)
    except (TypeError, ValueError):
        raise InputError(f"trace {name!r}: column optype has values that are not text; convert them") from None
    found: dict[str, Any] = {}
    for column in COLUMNS:
        if column == "optype":
            continue
        kind = np.float64 if column in ("start_ts", "duration") else np.int64
        try:
            found[column] = np.asarray(columns[column]).astype(kind)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"trace {name!r}: column {column} has values that are not numbers; convert them") from None
    found |= {"optype": codes.astype(np.int64), "row": np.arange(len(codes), dtype=np.int64)}
    return RecordedTrace(name=name, optype_names=tuple(map(str, words)), blocking=blocking, **found)


def find_overlapped_collectives(trace: RecordedTrace, tolerance: float) -> tuple[str, ...]:
    """Return the collective types that overlap with compute on the same worker by more than ``tolerance`` seconds."""
    workers = trace.replicas * trace.stages
    _, place = np.unique(trace.step * workers + trace.worker_numbers, return_inverse=True)
    end = trace.start_ts + trace.duration
    far = float(end.max() - trace.start_ts.min()) + 1.0
    compute = np.flatnonzero(trace.type_mask([FORWARD, BACKWARD]))
    compute = compute[np.lexsort((trace.start_ts[compute], place[compute]))]
    starts, ends = (place[compute] * far + time[compute] for time in (trace.start_ts, end))
    found = []
    for optype in COLLECTIVE_SCOPES:
        ops = np.flatnonzero(trace.type_mask([optype]))
        slack = np.minimum(tolerance, trace.duration[ops] / 2)
        first = np.searchsorted(ends, place[ops] * far + trace.start_ts[ops] + slack, side="right")
        last = np.searchsorted(starts, place[ops] * far + end[ops] - slack, side="left")
        if (last > first).any():
            found.append(optype)
    return tuple(found)


def group_equal_steps(trace: RecordedTrace, overlapped: tuple[str, ...]) -> list[Ints]:
    """Group steps that run the same ops in the same order; return each group's trace row numbers as [op, step]."""
    columns = (trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc, trace.mb_id, trace.gmc)
    order = np.lexsort((*columns[::-1], trace.step))
    bounds = np.flatnonzero(np.diff(trace.step[order])) + 1
    ends = trace.start_ts + trace.duration  # of ops that begin together one without duration is first
    in_order = ~trace.type_mask(MESSAGE_TYPES) & ~trace.type_mask(overlapped)
    equal: dict[tuple[bytes, ...], list[Ints]] = {}
    for rows in np.split(order, bounds):
        sequence = np.lexsort((ends[rows], trace.start_ts[rows], trace.stage[rows], trace.dp_rank[rows]))
        sequence = sequence[in_order[rows][sequence]]
        key = (*(column[rows].tobytes() for column in columns), sequence.tobytes())
        equal.setdefault(key, []).append(rows)
    return [np.stack(found, axis=1) for found in equal.values()]
