"""What-if study: the simulated step time when all ops of a kind take no time.

A free op takes no time and moves nothing, but its place in the order, and the waits for it, stay: a free collective
still synchronizes its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.documents.argument_types import check_arguments
from simcluster.planning.ops import Op, StageProgram
from simcluster.results.critical_path import op_kind_name
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.results.span_states import COMPUTE_KINDS, EXPOSED, HOST_STREAMS
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.unexpected_slowdown import describe_unexpected_slowdown, find_slower_ops

COMMUNICATION = "communication"
_PARTS_OF_BACKWARD = ("input_grad", "weight_grad")


@dataclass(frozen=True, slots=True)
class FreeOpsResult(Displayable):
    """Step time (s) when one kind of op takes no time, and the kind's time (s) on the critical path.

    ``estimate`` is the step time less ``on_path``, from the critical path alone. Simulated, the step takes longer where
    another path then is the longest; less only where others gain: transfers that had to share their links with the free
    ops, and kernels that were slowed by concurrent communication. ``note`` explains a step that is longer than with the
    op's cost; "" where it is not.
    """

    kind: str
    on_path: float
    estimate: float
    step_time: float
    note: str = ""


@check_arguments
def what_if_free(result: ResultLike, kinds: Sequence[str] = ()) -> Records[FreeOpsResult]:
    """Simulate the step once for each of these kinds of op, with all ops of the kind taking no time.

    A kind is one of compute ("forward", "backward", "recompute", "optimizer"), an axis ("tp", "pp", "dp"), a kind on an
    axis ("tp all_gather", "pp send"; a send is free for its receiver, too), "d2h" or "h2d" (copies), "host" (its own
    work), or "communication"; by default, every kind of compute and every axis that the step has, then all
    communication. Raises InputError for a kind that it lacks, and where all these steps would take too long to
    simulate.
    """
    result = to_result(result, "what_if_free")
    there = list_free_kinds(result)
    wrong = [kind for kind in kinds if kind not in there]
    if wrong:
        raise InputError(f"this step has no ops of kind {wrong[0]!r}; its kinds of op are {', '.join(there)}")
    chosen = kinds or [kind for kind in there if " " not in kind]
    require_time_for_steps(result.scenario, len(chosen), "what_if_free", ops=result.simulated_ops)
    on_path = path_seconds_by_kind(result)
    return Records(_simulate_free_kind(result, kind, on_path[kind]) for kind in chosen)


def count_free_steps(scenario: Scenario) -> int:
    """Return the number of steps that ``what_if_free`` simulates by default."""
    sizes = scenario.parallel.tp, scenario.parallel.pp, scenario.dp, scenario.parallel.cp, scenario.parallel.ep
    return 4 + sum(size > 1 for size in sizes)


def _simulate_free_kind(result: Result, kind: str, path_seconds: float) -> FreeOpsResult:
    found = simulate_scenario(result.scenario, change=partial(make_kind_free, kind=kind))
    note = describe_unexpected_slowdown(find_slower_ops(result, found, random_times=False))
    return FreeOpsResult(kind, path_seconds, result.step_time - path_seconds, found.step_time, note)


def list_free_kinds(run: Run) -> list[str]:
    """Return the kinds of op in a run that can be set to zero duration, such as "forward", "tp" or "tp all_gather"."""
    spans = run.spans
    pairs = dict.fromkeys(zip(spans.stream.tolist(), spans.kind.tolist(), strict=True))
    there = dict.fromkeys(
        name for stream, kind in pairs for name in _freeable_kinds(spans.words[stream], spans.words[kind])
    )
    there.pop("pp recv", None)
    order = {name: place for place, name in enumerate((*COMPUTE_KINDS, *_PARTS_OF_BACKWARD, *EXPOSED))}
    return sorted(there, key=lambda kind: (order.get(kind.split()[0], len(order)), kind))


def path_seconds_by_kind(run: Run) -> dict[str, float]:
    """Return the time (s) per step of each kind of op on the critical path."""
    found = dict.fromkeys(list_free_kinds(run), 0.0)
    path, spans = run.critical_path, run.spans
    for code, part in zip(path.number.tolist(), (path.end - path.start).tolist(), strict=True):
        for name in _freeable_kinds(spans.words[spans.stream[code]], spans.words[spans.kind[code]]):
            found[name] += part / path.steps
    return found


def make_kind_free(programs: Iterable[StageProgram], kind: str) -> list[StageProgram]:
    """Return copies of the stage programs in which all ops of this kind take no time."""
    return make_chosen_ops_free(programs, lambda op: kind in _freeable_kinds(op.stream, op.kind))


def make_chosen_ops_free(programs: Iterable[StageProgram], chosen: Callable[[Op], bool]) -> list[StageProgram]:
    """Return copies of the stage programs in which the ops for which ``chosen`` is true take no time."""
    made_free = cache(
        lambda segment: segment.with_replaced_works(lambda op: op.work.without_duration() if chosen(op) else op.work)
    )
    return [
        StageProgram(program.stage, {
            lane: [item._replace(segment=made_free(item.segment)) for item in items]
            for lane, items in program.lanes.items()
        })
        for program in programs
    ]  # fmt: skip


def _freeable_kinds(stream: str, op_kind: str) -> list[str]:
    if stream in HOST_STREAMS:
        return [stream, op_kind_name(stream, op_kind)]
    if stream != "compute":
        return [COMMUNICATION, stream, op_kind_name(stream, op_kind)]
    return ["backward", op_kind] if op_kind in _PARTS_OF_BACKWARD else [op_kind]
