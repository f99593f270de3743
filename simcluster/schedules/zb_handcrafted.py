"""Handcrafted zero-bubble schedules: ZB-H1 and ZB-H2 (1F1B with a split backward), and the V-shaped ZB-V."""

from __future__ import annotations

from simcluster.schedules.actions import Action, RowWriter, Schedule, loop_route, snake_route
from simcluster.schedules.check import require_counts, require_fixed_chunks, require_one_chunk


def zb_v(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make ZB-V: stage r of P holds model slices r and 2 P - 1 - r, so microbatches end on the stage where they began.

    With f = i = w the times of one chunk and M >= 2 P - 1 the span of every stage is 6 M f, without bubble, and the
    makespan 6 M f + (P - 1) f; at most 2 P half-stages in flight on every stage. A shorter step is the same schedule
    without the microbatches that it lacks. Source: Qi et al., arXiv:2401.10241, section 6. InputError for counts below
    one or chunks other than two.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_v(2, 2))[0]
    'r0 F0.0 F1.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 I1.0 W1.0'
    """
    require_counts("zb-v", num_stages, num_microbatches, num_chunks)
    require_fixed_chunks("zb-v", num_chunks, 2, "one for each direction")
    enough = max(num_microbatches, 2 * num_stages - 1)
    full = (_make_zb_v_row(num_stages, stage, enough) for stage in range(num_stages))
    rows = [[action for action in row if action.microbatch < num_microbatches] for row in full]
    return Schedule.with_single_route(snake_route(num_stages, 2), "zb-v", rows, num_microbatches)


def zb_v_first_forwards(num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> int:
    """Return the number of forwards that a stage of ZB-V runs before its first backward.

    >>> [zb_v_first_forwards(4, 4, 2, stage) for stage in range(4)]
    [5, 6, 7, 8]
    """
    del num_chunks  # two
    return min(2 * num_stages - 1 - stage, num_microbatches) + min(stage + 1, num_microbatches)


def _make_zb_v_row(num_stages: int, stage: int, num_microbatches: int) -> list[Action]:
    """Return the actions of one stage in ZB-V's handcrafted order, for at least 2 P - 1 microbatches."""
    row = RowWriter()
    row.append_actions("F0", 2 * (num_stages - stage) - 1)
    row.append_actions("F1 F0", stage)
    row.append_actions("F1 I1 W1", num_stages - stage)
    while row.count_passes("F1") < num_microbatches:
        row.append_actions("F0 I0 W0 F1 I1 W1" if row.count_passes("F0") < num_microbatches else "I0 W0 F1 I1 W1")
    row.append_actions("I0 I1", stage)
    row.append_actions("I0 W0", num_stages - stage)
    row.append_actions("W1", num_microbatches - row.count_passes("W1"))
    row.append_actions("W0", num_microbatches - row.count_passes("W0"))
    return row.actions


def zb_h1(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make ZB-H1: 1F1B with a split backward; stage r delays weight gradients by r microbatches.

    Makespan M (F + B) + (P - 1) max(F, I, F + I - W) for M >= P; at most P microbatches in flight, now on every stage.
    The paper's (P - 1)(F + I - W) is the case W <= min(F, I). Source: Qi et al., arXiv:2401.10241, section 2.
    InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_h1(2, 3))
    ['r0 F0 F1 I0 W0 F2 I1 W1 I2 W2', 'r1 F0 I0 F1 I1 W0 F2 I2 W1 W2']
    """
    return _make_split_1f1b("zb-h1", num_stages, num_microbatches, num_chunks, depth=1)


def zb_h2(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make ZB-H2: ZB-H1 with twice the warm-up; if F = I = W, no stage is idle between its first and last pass.

    For M >= 2 P - 1 the makespan is M (F + B) + (P - 1) max(F, I - F, F + I - 2 W) and the longest span of a stage, for
    W <= F, M (F + B) + max(0, (P - 1)(F + I - 2 W)); 2 P - 1 microbatches are in flight on every stage. Source: Qi et
    al., arXiv:2401.10241, section 2. InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(zb_h2(2, 3))
    ['r0 F0 F1 F2 I0 W0 I1 W1 I2 W2', 'r1 F0 I0 F1 I1 F2 I2 W0 W1 W2']
    """
    return _make_split_1f1b("zb-h2", num_stages, num_microbatches, num_chunks, depth=2)


def _make_split_1f1b(name: str, num_stages: int, num_microbatches: int, num_chunks: int, depth: int) -> Schedule:
    """Make 1F1B with backward passes split into input and weight gradients.

    Stage r: depth (P - 1 - r) + 1 forwards; then I, the W of depth r microbatches earlier, and F in turn; then W.
    """
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
    return Schedule.with_single_route(loop_route(num_stages, 1), name, rows, num_microbatches)
