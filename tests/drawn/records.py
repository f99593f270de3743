"""Records of two engines compared op by op."""

from __future__ import annotations

from typing import Any

import numpy as np

from simcluster.reference.step_record import OpTable, StepRecord


def record_difference(one: StepRecord, other: StepRecord) -> str:
    """Return where two records of the same ranks differ first, "" for equal ones."""
    for name, first, second in (
        ("lanes", [*zip(one.lane_rank, one.lane_stage, one.lane_end, strict=True)],
         [*zip(other.lane_rank, other.lane_stage, other.lane_end, strict=True)]),
        *((name, list(getattr(one.times, name)), list(getattr(other.times, name))) for name in one.times._fields),
        *((name, column, columns_of(other.ops)[name]) for name, column in columns_of(one.ops).items()),
    ):  # fmt: skip
        if first != second:
            place = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
            if place is None:
                return f"{name}: {len(first)} and {len(second)}"
            return f"{name} of {place} is {first[place]!r}, not {second[place]!r}"
    return ""


def columns_of(ops: OpTable) -> dict[str, list[Any]]:
    """Return the columns with what numbers represent, and op by op what it waits for."""
    meets: dict[int, list[int]] = {}
    for op in np.flatnonzero(ops.parties > 1).tolist():
        meets.setdefault(int(ops.meeting[op]), []).append(op)
    waits = [[each for each in dict.fromkeys(ops.dependencies.op[first:last].tolist()) if each != before]
             for first, last, before in zip(ops.dependencies.offsets[:-1], ops.dependencies.offsets[1:],
                                            ops.previous_ops.tolist(), strict=True)]  # fmt: skip
    return {
        "label": [ops.labels[label] if label >= 0 else None for label in ops.label.tolist()],
        "lane": [(int(ops.lane_rank[lane]), ops.lane_name[lane]) for lane in ops.lane.tolist()],
        **{name: getattr(ops, name).tolist() for name in ("step", "chunk", "microbatch", "seconds", "parties")},
        "meetings": sorted(meets.values()),
        "receives": sorted(zip(*(column.tolist() for column in ops.receives), strict=True)),
        "waits": waits,
    }
