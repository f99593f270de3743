"""What every step ends with, however gradients and parameters travel over dp.

Gradients of an embedding that two stages have (tied, or for multi-token prediction) are summed between first and last
stage, the gradient norm is taken over all ranks that have a part of the gradients, and the optimizer runs, on the GPU
or with the host (``offload``).

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from simcluster.model.parameters import lm_head_parameters_per_tp_rank
from simcluster.planning.job import Job
from simcluster.planning.offload import Reduced, host_update, stream_update
from simcluster.planning.ops import MAIN, Item, MemoryChange, Need, Op, Segment
from simcluster.planning.optimizer import Update
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Compute, Host

_NORM_BYTES = 4.0  # one fp32 number


def end_step(
    job: Job, lanes: ProgramBuilder, step: int, needs: tuple[Need, ...], *, share: int, parameters: float,
    norm: tuple[str, ...], reduced: Sequence[Reduced] = (), whole: float = 0.0,
) -> None:  # fmt: skip
    """The end of a step on a rank that has the gradients of ``parameters`` once ``needs`` have happened.

    ``share``: of the embedding's gradient it has one part in so many; ``norm`` are the axes over which the squares of
    gradients are added, one after the other.  ``reduced`` lists them in the parts that are complete early; ``whole``
    counts all gradients that the rank accumulated.
    """
    data, stage = job.data_parallel, lanes.stage
    held = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
    shared = job.model.tied_embeddings or job.model.predicting  # these read the embedding, too
    if shared and any(part.embedding for part in held) != any(part.lm_head for part in held):
        size = lm_head_parameters_per_tp_rank(job.model, job.plan.tp) * data.gradient_bytes / share
        block_all(lanes, step, "all_reduce", "embedding_gradients", [("embedding", size)], needs)
        needs = ()
        early = [part for part in reduced if not part.tied]
        reduced = early + [replace(part, needs=lanes.reached()) for part in reduced if part.tied]
    reduced = reduced or [Reduced(parameters, (*needs, *lanes.reached()))]
    seconds = data.norm_seconds(parameters) + (data.buffer_seconds(whole) if whole else 0.0)
    squares = Segment((Op(Compute(seconds), "compute", "optimizer", "gradient_norm"),))
    lanes.put(MAIN, Item(squares, ("norm", step), needs, step))
    for index, axis in enumerate(norm):
        block_all(lanes, step, "all_reduce", "gradient_norm", [(axis, _NORM_BYTES)], part=norm[:index])
    if job.offload.optimizer == "stream":
        return stream_update(job, lanes, step, parameters)
    if job.offload.optimizer == "host":
        return host_update(job, lanes, step, reduced, lanes.reached(), data.zero_seconds(max(whole, parameters)))
    if job.offload.optimizer != "none":
        assert_never(job.offload.optimizer)
    others = data.zero_seconds(whole - parameters) if whole > parameters else 0.0  # gradients that others' updates read
    seconds = data.optimizer_seconds(parameters) + others
    layers = [layer for part in held for layer in part.layers]
    made = data.optimizer.update(layers) if data.optimizer else Update()
    if made.calls:
        block_all(lanes, step, made.kind, made.called, made.calls)
    ops = [Op(Compute(seconds + min(made.seconds, 0.0)), "compute", "optimizer", "optimizer")]
    ops += [Op(Compute(made.seconds), "compute", "optimizer", made.name)] if made.seconds > 0 else []
    update = Segment(tuple(ops))
    if data.outer is None:
        return lanes.put(MAIN, Item(update, ("optimizer", step), (), step))
    lanes.put(MAIN, Item(update, ("inner_optimizer", step), (), step))
    shares = 1 if data.zero else job.replicas  # of one worker, who hold the same
    data.outer.put(lanes, step, parameters / shares, parameters * data.parameter_bytes if shares > 1 else 0.0)
    return lanes.put(MAIN, Item(Segment((Op(Host(0.0), "host", "optimizer", "outer"),)), ("optimizer", step), (), step))


def block_all(
    lanes: ProgramBuilder, step: int, kind: str, name: str, calls: Sequence[tuple[str, float]],
    needs: tuple[Need, ...] = (), *, part: tuple[object, ...] = (), memory: tuple[MemoryChange, ...] = (),
) -> None:  # fmt: skip
    """Collectives of (axis, bytes), one after the other; the main lane waits for all."""
    segment = lanes.collectives(kind, name, calls, memory=memory)
    lanes.put(MAIN, Item(segment, (name, kind, step, *part), needs, step))
