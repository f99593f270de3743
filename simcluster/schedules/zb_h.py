"""ZB-H1 and ZB-H2: 1F1B with the backward split, the weight gradients filling the bubble."""

from __future__ import annotations

from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk


def zb_h1(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """1F1B whose stage r puts W off by r microbatches, so that I hurries up the pipeline: no more memory than 1F1B.

    Makespan M (F + B) + (P - 1) max(F, I, F + I - W) for M >= P; at most P microbatches in flight, now on every stage.
    The paper's (P - 1)(F + I - W) is the case W <= min(F, I).  Source: Qi et al., arXiv:2401.10241, section 2.
    InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_h1(2, 3))
    ['r0 F0 F1 I0 W0 F2 I1 W1 I2 W2', 'r1 F0 I0 F1 I1 W0 F2 I2 W1 W2']
    """
    return _split_1f1b("zb-h1", num_stages, num_microbatches, num_chunks, depth=1)


def zb_h2(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """ZB-H1 at twice the depth, which fills the warm-up too: no bubble in the span of a stage where F = I = W.

    For M >= 2 P - 1 the makespan is M (F + B) + (P - 1) max(F, I - F, F + I - 2 W) and the longest span of a stage, for
    W <= F, M (F + B) + max(0, (P - 1)(F + I - 2 W)); 2 P - 1 microbatches are in flight on every stage.
    Source: Qi et al., arXiv:2401.10241, section 2.  InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_h2(2, 3))
    ['r0 F0 F1 F2 I0 W0 I1 W1 I2 W2', 'r1 F0 I0 F1 I1 F2 I2 W0 W1 W2']
    """
    return _split_1f1b("zb-h2", num_stages, num_microbatches, num_chunks, depth=2)


def _split_1f1b(name: str, num_stages: int, num_microbatches: int, num_chunks: int, depth: int) -> Schedule:
    """Stage r: depth (P - 1 - r) + 1 forwards; then I, the W of depth r microbatches earlier, and F in turn; then W."""
    require_counts(name, num_stages, num_microbatches, num_chunks)
    require_one_chunk(name, num_chunks)
    rows = []
    for stage in range(num_stages):
        ahead, delay = min(depth * (num_stages - 1 - stage) + 1, num_microbatches), depth * stage
        row = [Action("F", m) for m in range(ahead)]
        for m in range(num_microbatches):
            row.append(Action("I", m))
            if m >= delay:
                row.append(Action("W", m - delay))
            if m + ahead < num_microbatches:
                row.append(Action("F", m + ahead))
        row += [Action("W", m) for m in range(max(0, num_microbatches - delay), num_microbatches)]
        rows.append(row)
    return Schedule.along(loop_route(num_stages, 1), name, rows, num_microbatches)
