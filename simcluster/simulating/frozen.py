"""What every op of every rank took in a run, so that it can be played again with some of it changed.

Imports ops, the lowered form and the engine's record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simcluster.lowering.lower import Lowered
from simcluster.planning.ops import StageProgram
from simcluster.simulating.engine import Record

Floats = npt.NDArray[np.float64]


def durations(lowered: Lowered, programs: Sequence[StageProgram], record: Record) -> dict[int, Floats]:
    """Seconds of every op of each simulated rank, ops in the order of its stage's program (lane by lane)."""
    program = lowered.program
    stage_of = dict(zip(program.lane_rank, program.lane_stage, strict=True))
    offsets = [np.array([row.end - row.start for row in rows]) for rows in program.row_sets]
    found: dict[int, Floats] = {}
    number = 0
    for rank in lowered.classes.rank_representatives:
        parts: list[Floats] = []
        for items in programs[stage_of[rank]].lanes.values():
            for item in items:
                left = len(item.segment.ops)
                while left:
                    if program.meeting[number] >= 0:
                        own = record.end[number : number + 1] - record.start[number : number + 1]
                    elif number in record.slowed:
                        own = np.array([last - first for first, last in record.slowed[number]])
                    else:
                        own = offsets[program.rows[number]]
                    parts.append(own)
                    left -= len(own)
                    number += 1
                assert left == 0, item.key
        found[rank] = np.concatenate(parts)
    assert number == len(program.seconds)
    return found
