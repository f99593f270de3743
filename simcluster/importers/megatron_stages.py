"""Stages of a pipeline from Megatron-LM's options: the schedule, and which layers each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.megatron_forks import layers_of_slices, layers_that_work
from simcluster.importers.megatron_sections import overlaps_batches
from simcluster.importers.option_values import Options
from simcluster.schedules.stage_layout import StageLayout


def pipeline_of(run: Options, layers: int, pp: int) -> dict[str, Any]:
    """The fields of ``Pipeline``; none where there is one stage."""
    chunks = _chunks(run, len(layers_that_work(run)), pp)
    if pp == 1:
        return {}
    if run.get("schedules-method") or run.flag("use-dualpipev"):
        cut = layers_of_slices(run, 2 * pp)
        return {"schedule": "dualpipe-v", **({"layers_per_stage": cut} if cut else {})}
    if run.flag("enable-zero-bubble"):
        return {"schedule": _without_bubble(run, pp)}
    layout = _laid_out(run, layers, pp)
    if layout:
        chunks = layout.chunks(pp)
    interleaved = (chunks or 1) > 1
    group = run.get("microbatch-group-size-per-virtual-pipeline-stage")
    pipeline: dict[str, Any] = {"schedule": "interleaved" if interleaved else "1f1b"}
    if interleaved:
        pipeline["chunks"] = chunks
        grouped = {"group_size": group} if group and group != pp else {}
        paired = {"pairs": True} if overlaps_batches(run) else {}
        if grouped or paired:
            pipeline["schedule"] = {"name": "interleaved", **grouped, **paired}
    if not interleaved or run.flag("no-overlap-p2p-communication"):
        pipeline["p2p"] = "rendezvous"
    first, last = run.get("decoder-first-pipeline-num-layers"), run.get("decoder-last-pipeline-num-layers")
    if layout:
        pipeline["layout"] = str(layout)
    elif per_stage := (
        layers_of_slices(run, pp * (chunks or 1))
        or (_uneven(run, layers, pp, first, last) if first or last else _with_ends(run, layers, pp, chunks or 1))
    ):
        pipeline["layers_per_stage"] = per_stage
    if run.flag("no-scatter-gather-tensors-in-pipeline"):
        pipeline["scatter_gather"] = False
    return pipeline


def _without_bubble(run: Options, pp: int) -> str:
    """The schedule of the fork that ``enable-zero-bubble`` is of, by the memory that it may take."""
    if run.flag("zero-bubble-v-schedule"):
        return {"zero": "zb-v", "half": "v-half", "min": "v-min"}[run.get("zero-bubble-v-schedule-mem-setup") or "zero"]
    pending = run.get("zero-bubble-max-pending-backward") or "auto"
    if pending.isdecimal() and int(pending[:9]) > pp:
        return "zb-h2"
    if pending != str(pp):
        run.assumed.append(f"ZB-H1, where measured memory decides (zero-bubble-max-pending-backward {pending[:20]})")
    return "zb-h1"


def _chunks(run: Options, layers: int, pp: int) -> int | None:
    """Chunks of a stage, as given or by the layers of one."""
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
    """Layers of each stage where the ends have their own number and the rest is even."""
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
    """The layout slice by slice, without its layers of multi-token prediction, which a scenario's model has not."""
    name = "pipeline-model-parallel-layout"
    text = run.get(name)
    if text is None:
        return None
    try:
        layout = StageLayout.of(text.replace("\\", "").strip("'\" "))
        layout.chunks(pp)
    except InputError as error:
        raise run.error(name, str(error)) from None
    if sum(layout.counts) != layers:
        raise run.error(name, f"has {sum(layout.counts)} decoder layers (t), and the model has {layers}")
    if any(layout.multi_token):
        run.assumed.append("the layout is without its layers of multi-token prediction (m)")
    return StageLayout(tuple(letters.replace("m", "") for letters in layout.slices))
