"""Bidirectional schedules Chimera and DualPipe, and V-shaped DualPipeV, which needs only one copy of the model."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, RowWriter, Schedule, bidirectional_routes, snake_route
from simcluster.schedules.check import require_counts, require_fixed_chunks


def chimera(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make Chimera: half of the microbatches run down the stages, half up through a second copy of the model.

    Units of P microbatches follow each other ("direct concatenation"): for M = k P the makespan is M (F + B) + (P -
    2)(max(F, B) + (k - 1) |B - F|), and P/2 + 1 + min(r, P - 1 - r) microbatches are in flight on stage r. Source: Li
    and Hoefler, arXiv:2107.06925, section 3. InputError for counts below one, or stages or microbatches that are odd.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(chimera(2, 2))
    ['r0 F0.0 F1.1 B1.1 B0.0', 'r1 F1.1 F0.0 B0.0 B1.1']
    """
    require_counts("chimera", num_stages, num_microbatches, num_chunks)
    require_fixed_chunks("chimera", num_chunks, 2, "a copy of the model for each direction")
    if num_stages % 2 or num_microbatches % 2:
        raise InputError(
            f"schedule 'chimera': {num_microbatches} microbatches on {num_stages} stages; both must be even, "
            f"since half run in each direction: use {num_microbatches + num_microbatches % 2} on "
            f"{num_stages + num_stages % 2}"
        )
    half = num_microbatches // 2
    return Schedule(
        name="chimera",
        rows=tuple(_make_chimera_row(num_stages, stage, half) for stage in range(num_stages)),
        num_microbatches=num_microbatches,
        num_chunks=2,
        routes=bidirectional_routes(num_stages),
        route_of=(0,) * half + (1,) * half,
    )


def _make_chimera_row(num_stages: int, stage: int, each_way: int) -> tuple[Action, ...]:
    """Return the actions of a stage, ordered by time slot; each forward or backward takes one slot."""
    slots: dict[int, Action] = {}
    for chunk, place in ((0, stage), (1, num_stages - 1 - stage)):
        for index in range(each_way):
            unit, turn = divmod(index, num_stages // 2)
            forward = 2 * num_stages * unit + 2 * turn + place
            backward = 2 * num_stages * unit + 2 * turn + 2 * num_stages - 1 - place
            microbatch = chunk * each_way + index
            slots[forward] = Action("F", microbatch, chunk)
            slots[backward] = Action("B", microbatch, chunk)
    return tuple(slots[slot] for slot in sorted(slots))


def dualpipe_v(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make DualPipeV: stage r of P holds model slices r and 2 P - 1 - r, and runs F and B in fused pairs.

    With f = i >= w and b the times of one chunk and f + b that of a fused pair the makespan is 2 M (f + b) + (P - 1)(f
    + 2 b - 3 w); at most 2 P + 1 half-stages in flight. Source: DeepSeek's DualPipe repository (README and
    ``dualpipev.py``), after Sea AI Lab's "cut in half"; DualPipe itself: arXiv:2412.19437, section 3.2. InputError for
    counts below one, chunks other than two, or fewer than 2 P microbatches.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(dualpipe_v(2, 4))[0]
    'r0 F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 [F3.0|B1.1] [F2.1|B0.0] B2.1 [F3.1|B1.0] B3.1 I2.0 W2.0 I3.0 W3.0'
    """
    require_counts("dualpipe-v", num_stages, num_microbatches, num_chunks)
    require_fixed_chunks("dualpipe-v", num_chunks, 2, "one for each direction")
    if num_microbatches < 2 * num_stages:
        raise InputError(
            f"schedule 'dualpipe-v': {num_microbatches} microbatches on {num_stages} stages; it needs at least two "
            f"per stage: use {2 * num_stages} or more, or schedule 'zb-v', which takes any number"
        )
    written = [
        write_dualpipe_row(num_stages, stage, num_microbatches, (0, 0), middle=stage == num_stages - 1)
        for stage in range(num_stages)
    ]
    return Schedule.with_single_route(
        snake_route(num_stages, 2),
        "dualpipe-v",
        [row.actions for row in written],
        num_microbatches,
        fused=[row.fused for row in written],
    )


def write_dualpipe_row(
    half: int, distance: int, per_chunk: int, first: tuple[int, int], *, middle: bool, near: int = 0
) -> RowWriter:
    """Write a stage's row in DualPipe's eight steps, given its distance (``distance``) from its end of the pipeline.

    ``half`` is the number of stages from an end to the middle. ``per_chunk`` microbatches pass through each of the two
    chunks; ``near`` is the chunk whose microbatches come first, ``first`` where the numbers of each chunk begin. Only a
    stage in the middle has its first pair unfused.
    """
    row = RowWriter(first)
    inner, far = half - distance - 1, 1 - near
    steady = per_chunk - 2 * half + distance + 1

    def append_words(words: str, times: int) -> None:
        row.append_actions(words.replace("n", str(near)).replace("f", str(far)), times)

    append_words("Fn", 2 * inner)
    append_words("Fn Ff", distance + 1)
    append_words("If Wf Ff", inner)
    for index in range(steady):
        append_words("Fn Bf" if middle and index == 0 else "[Fn|Bf]", 1)
        append_words("[Ff|Bn]", 1)
    append_words("Bf [Ff|Bn]", inner)
    split = (distance + 1) // 2  # from here on W is put off
    for index in range(distance + 1):
        whole_first = index < split or (index == split and distance % 2 == 0)
        append_words("Bf" if whole_first else "If", 1)
        append_words("Bn" if index < split else "In", 1)
    append_words("W In", inner)
    append_words("W", distance + 1)
    return row


def dualpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make DualPipe: half of the microbatches run down the stages, half up; stage r of P holds slices r and P - 1 - r.

    The first half of the microbatches goes down (chunk 0), the second half up (chunk 1). With F = I >= W and F + B the
    time of a fused pair the makespan is M (F + B) + (P/2 - 1)(F + 2 B - 3 W); at most P + 1 microbatches in flight.
    Source: DeepSeek-V3, arXiv:2412.19437, figure 5 and table 2; its repository DualPipe. InputError for counts below
    one, stages or microbatches that are odd, or fewer than 2 P microbatches.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(dualpipe(2, 4))[0]
    'r0 F0.0 F2.1 F1.0 B2.1 [F3.1|B0.0] B3.1 I1.0 W1.0'
    """
    require_counts("dualpipe", num_stages, num_microbatches, num_chunks)
    require_fixed_chunks("dualpipe", num_chunks, 2, "a copy of the model for each direction")
    if num_stages % 2 or num_microbatches % 2 or num_microbatches < 2 * num_stages:
        raise InputError(
            f"schedule 'dualpipe': {num_microbatches} microbatches on {num_stages} stages; both must be even, with at "
            f"least two microbatches per stage: use "
            f"{2 * (num_stages + num_stages % 2)} on {num_stages + num_stages % 2}, or schedule 'dualpipe-v'"
        )
    half, each_way = num_stages // 2, num_microbatches // 2
    written = []
    for stage in range(num_stages):
        place = min(stage, num_stages - 1 - stage)
        near = int(stage >= half)
        written.append(write_dualpipe_row(half, place, each_way, (0, each_way), middle=place == half - 1, near=near))
    return Schedule(
        name="dualpipe",
        rows=tuple(tuple(row.actions) for row in written),
        num_microbatches=num_microbatches,
        num_chunks=2,
        routes=bidirectional_routes(num_stages),
        route_of=(0,) * each_way + (1,) * each_way,
        fused=tuple(tuple(row.fused) for row in written),
    )
