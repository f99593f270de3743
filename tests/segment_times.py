"""The length of a segment whose ops take given times and nothing else runs."""

from __future__ import annotations

from collections.abc import Callable

from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.planning.ops import Op, Segment


def segment_seconds(segment: Segment, seconds: Callable[[Op], float]) -> float:
    """Return when the last op of a segment is over."""
    made = ExplicitProgram()
    lanes = {name: made.add_lane(0) for name in dict.fromkeys(op.lane for op in segment.ops)}
    for op in segment.ops:
        made.add_op(lanes[op.lane], seconds(op), after=op.after)
    return float(simulate_tables(made.make_tables([]), str, keeps_times=False).lane_end.max())
