"""Stages of a pipeline from Megatron-LM's options: the schedule, and which layers each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.megatron_forks import layers_of_slices, layers_that_work
from simcluster.importers.megatron_parallel import overlaps_batches, sharded_parameters
from simcluster.importers.option_values import Options
from simcluster.schedules.stage_layout import StageLayout

_VIRTUAL = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")
_V_SHAPED = ("dualpipe-v", "zb-v", "v-half", "v-min")
"""Schedules with two slices of the model on each stage."""


def pipeline_of(run: Options, layers: int, pp: int) -> dict[str, Any]:
    """Return the fields of ``Pipeline``; none where there is one stage."""
    chunks = _chunks(run, len(layers_that_work(run)), pp)
    if pp == 1:
        return {}
    layout, schedule = _laid_out(run, layers, pp), _schedule(run, pp)
    fixed = (2 if schedule in _V_SHAPED else 1) if schedule else None
    _require_slices(run, schedule, fixed, chunks, layout.chunks(pp) if layout else None)
    if fixed:
        pipeline: dict[str, Any] = {"schedule": schedule}
        chunks = fixed
    else:
        chunks = layout.chunks(pp) if layout else chunks or 1
        pipeline = _in_turn(run, chunks, pp)
    first, last = run.get("decoder-first-pipeline-num-layers"), run.get("decoder-last-pipeline-num-layers")
    if layout:
        pipeline["layout"] = str(layout)
    elif per_stage := (
        layers_of_slices(run, pp * chunks)
        or (_uneven(run, layers, pp, first, last) if first or last else _with_ends(run, layers, pp, chunks))
    ):
        pipeline["layers_per_stage"] = per_stage
    if run.flag("no-scatter-gather-tensors-in-pipeline"):
        pipeline["scatter_gather"] = False
    return pipeline


def _in_turn(run: Options, chunks: int, pp: int) -> dict[str, Any]:
    """Return the fields of 1F1B, interleaved where a stage has several chunks."""
    pipeline: dict[str, Any] = {"schedule": "interleaved" if chunks > 1 else "1f1b"}
    group = run.get("microbatch-group-size-per-virtual-pipeline-stage")
    if chunks > 1:
        pipeline["chunks"] = chunks
        grouped = {"group_size": group} if group and group != pp else {}
        paired = {"pairs": True} if overlaps_batches(run) else {}
        if grouped or paired:
            pipeline["schedule"] = {"name": "interleaved", **grouped, **paired}
    if chunks == 1 or run.flag("no-overlap-p2p-communication"):
        pipeline["p2p"] = "rendezvous"
    return pipeline


def _schedule(run: Options, pp: int) -> str:
    """Return the schedule of a fork that the options name; empty for Megatron-LM's own."""
    if run.get("schedules-method") or run.flag("use-dualpipev"):
        return "dualpipe-v"
    if run.flag("enable-zero-bubble"):
        return _without_bubble(run, pp)
    return "zb-h1" if run.flag("enable-zbh1-pipeline") else ""


def _require_slices(run: Options, schedule: str, fixed: int | None, *given: int | None) -> None:
    """Raise InputError where options ask for another number of slices on a stage than the schedule has."""
    virtual = next((name for name in _VIRTUAL if run.get(name)), _VIRTUAL[0])
    for name, count in zip((virtual, "pipeline-model-parallel-layout"), given, strict=True):
        if fixed and count and count != fixed:
            what = f"asks for {count} slices of the model on each stage, and {schedule} has {fixed}"
            raise run.error(name, f"{what}; use {fixed}, or take one of the two options out")


def _without_bubble(run: Options, pp: int) -> str:
    """Return the schedule of ``enable-zero-bubble``, by the memory that it may take."""
    if run.flag("zero-bubble-v-schedule"):
        return {"zero": "zb-v", "half": "v-half", "min": "v-min"}[run.get("zero-bubble-v-schedule-mem-setup") or "zero"]
    pending = run.get("zero-bubble-max-pending-backward") or "auto"
    if pending.isdecimal() and int(pending[:9]) > pp:
        return "zb-h2"
    if pending != str(pp):
        run.assumed.append(f"ZB-H1, where measured memory decides (zero-bubble-max-pending-backward {pending[:20]})")
    return "zb-h1"


def _chunks(run: Options, layers: int, pp: int) -> int | None:
    """Return the chunks of a stage, as given or by the layers of one."""
    chunks: int | None = run.get("num-virtual-stages-per-pipeline-rank")
    per = run.get("num-layers-per-virtual-pipeline-stage")
    if not per or pp == 1:
        return chunks
    if layers % (pp * per):
        raise run.error("num-layers-per-virtual-pipeline-stage", f"{per} x {pp} stages does not divide {layers} layers")
    if chunks and chunks != layers // (pp * per):
        raise run.error("num-virtual-stages-per-pipeline-rank", "says otherwise than the layers per virtual stage")
    return int(layers // (pp * per))


def _uneven(run: Options, layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """Return the layers of each stage where the ends have their own number and the rest is even."""
    rest, stages = layers - (first or 0) - (last or 0), pp - bool(first) - bool(last)
    if rest < 0 or (rest % stages if stages else rest):
        raise run.error(
            "decoder-first-pipeline-num-layers" if first else "decoder-last-pipeline-num-layers",
            f"leaves {rest} of {layers} layers for {stages} stages, which does not come out even",
        )
    middle = [rest // stages] * stages if stages else []
    return [*([first] if first else []), *middle, *([last] if last else [])]


def _with_ends(run: Options, layers: int, pp: int, chunks: int) -> Sequence[int] | str:
    """Layers of each slice where embedding and loss count as layers; ``auto`` where they do not come out even."""
    counted = "embedding" in (run.get("pp-partition-method") or "")  # DeepSpeed's type:transformer|embedding
    begin, end = (int(counted or run.flag(f"account-for-{what}-in-pipeline-split")) for what in ("embedding", "loss"))
    each, left = divmod(layers + begin + end, pp * chunks)
    if begin or end:
        if left:
            raise run.error(
                "account-for-embedding-in-pipeline-split", f"{layers} + {begin + end} over {pp * chunks}: uneven"
            )
        return [each - begin * (part == 0) - end * (part == pp * chunks - 1) for part in range(pp * chunks)]
    if not left:
        return []
    run.assumed.append(
        f"{layers} layers do not come out even on {pp * chunks} slices, which Megatron-LM refuses: cut by their times"
    )
    return "auto"


def _laid_out(run: Options, layers: int, pp: int) -> StageLayout | None:
    """Return the layout slice by slice; InputError where it differs from the model."""
    name = "pipeline-model-parallel-layout"
    text = run.get(name)
    if text is None:
        return None
    try:
        layout = StageLayout.of(text.replace("\\", "").strip("'\" "))
        layout.chunks(pp)
        layout.require_multi_token_last(run.get("mtp-num-layers") or 0)
    except InputError as error:
        raise run.error(name, str(error)) from None
    if sum(layout.counts) != layers:
        raise run.error(name, f"has {sum(layout.counts)} decoder layers (t), and the model has {layers}")
    if sharded_parameters(run):  # whose model is without them
        return StageLayout(tuple(letters.replace("m", "") for letters in layout.slices))
    return layout
