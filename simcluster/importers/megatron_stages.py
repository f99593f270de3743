"""The ``pipeline`` section of a scenario from Megatron-LM's options: schedule and layers per stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.megatron_forks import count_layers_per_slice, real_layer_flags
from simcluster.importers.megatron_options import MegatronOptions
from simcluster.importers.megatron_parallel import overlaps_other_microbatch, shards_parameters
from simcluster.schedules.stage_layout import StageLayout

_VIRTUAL_STAGE_OPTIONS = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")
_LAYOUT = "pipeline-model-parallel-layout"
_V_SCHEDULES = {"zero": "zb-v", "half": "v-half", "min": "v-min"}
"""Schedules with two model slices per stage, by allowed memory."""
_PAIRS = {"name": "1f1b", "pairs": "forward-backward"}


def pipeline_section(run: MegatronOptions, layers: int, pp: int) -> dict[str, Any]:
    """Return the scenario's ``pipeline`` section; for a single stage it only has pairs of passes that overlap."""
    chunks = _chunks_per_stage(run, len(real_layer_flags(run)), pp)
    if pp == 1:
        return {"schedule": _PAIRS} if overlaps_other_microbatch(run) else {}
    layout, schedule = _parse_explicit_layout(run, layers, pp), _fork_schedule(run, pp)
    laid = layout.chunks_per_stage(pp) if layout else None
    if schedule:
        fixed = 2 if schedule in ("dualpipe-v", *_V_SCHEDULES.values()) else 1
        virtual = next((name for name in _VIRTUAL_STAGE_OPTIONS if run.get(name)), _VIRTUAL_STAGE_OPTIONS[0])
        for name, count in ((virtual, chunks), (_LAYOUT, laid)):
            if count and count != fixed:
                what = f"requests {count} model slices per stage, but {schedule} has {fixed}"
                raise run.error(name, f"{what}; use {fixed}, or remove one of the two options")
        pipeline: dict[str, Any] = {"schedule": schedule}
        chunks = fixed
    else:
        chunks = laid or chunks or 1
        pipeline = _one_f_one_b_section(run, chunks, pp)
    if layout:
        pipeline["layout"] = str(layout)
    elif per_stage := count_layers_per_slice(run, pp * chunks) or _layers_per_stage(run, layers, pp, chunks):
        pipeline["layers_per_stage"] = per_stage
    if run.is_on("no-scatter-gather-tensors-in-pipeline"):
        pipeline["scatter_gather"] = False
    return pipeline


def _one_f_one_b_section(run: MegatronOptions, chunks: int, pp: int) -> dict[str, Any]:
    """Return the fields of a 1F1B schedule, interleaved if each stage has several model chunks."""
    rendezvous = {"p2p": "rendezvous"} if chunks == 1 or run.is_on("no-overlap-p2p-communication") else {}
    if chunks == 1:
        return {"schedule": _PAIRS if overlaps_other_microbatch(run) else "1f1b", **rendezvous}
    group = run.get("microbatch-group-size-per-virtual-pipeline-stage")
    more = {"group_size": group if group != pp else None, "pairs": overlaps_other_microbatch(run)}
    more = {name: value for name, value in more.items() if value}
    schedule = {"name": "interleaved", **more} if more else "interleaved"
    return {"schedule": schedule, "chunks": chunks, **rendezvous}


def _fork_schedule(run: MegatronOptions, pp: int) -> str:
    """Return the pipeline schedule that a Megatron-LM fork's options request; "" if they request none."""
    if run.get("schedules-method") or run.is_on("use-dualpipev"):
        return "dualpipe-v"
    if not run.is_on("enable-zero-bubble"):
        return "zb-h1" if run.is_on("enable-zbh1-pipeline") else ""
    if run.is_on("zero-bubble-v-schedule"):
        return _V_SCHEDULES[run.get("zero-bubble-v-schedule-mem-setup") or "zero"]
    pending = run.get("zero-bubble-max-pending-backward") or "auto"
    if pending.isdecimal() and int(pending[:9]) > pp:
        return "zb-h2"
    if pending != str(pp):
        run.assumed.append(f"schedule ZB-H1, without measured memory (zero-bubble-max-pending-backward {pending[:20]})")
    return "zb-h1"


def _chunks_per_stage(run: MegatronOptions, layers: int, pp: int) -> int | None:
    """Return the model chunks per pipeline stage: the number stated, or that from the layers per virtual stage."""
    (per, chunks), (by_layers, by_stages) = map(run.get, _VIRTUAL_STAGE_OPTIONS), _VIRTUAL_STAGE_OPTIONS
    if not per or pp == 1:
        return chunks  # type: ignore[no-any-return]
    if layers % (pp * per):
        raise run.error(by_layers, f"{layers} layers are not divisible by {per} x {pp} stages")
    if chunks and chunks != layers // (pp * per):
        raise run.error(by_stages, "contradicts the layers per virtual stage; keep one of the two options")
    return int(layers // (pp * per))


def _layers_per_stage(run: MegatronOptions, layers: int, pp: int, chunks: int) -> Sequence[int] | str:
    """Return each model slice's layer count; ``auto`` if the slices cannot be equal, empty if they are equal."""
    ends = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    first, last = ([count] if (count := run.get(name)) else [] for name in ends)
    if first or last:
        rest, stages = layers - sum(first + last), pp - len(first + last)
        if rest < 0 or (rest % stages if stages else rest):
            what = f"leaves {rest} of {layers} layers for {stages} stages"
            what += "; the rest must be a multiple of the stages, at least 0"
            raise run.error(ends[not first], what)
        return [*first, *[rest // max(stages, 1)] * stages, *last]
    counted = "embedding" in (run.get("pp-partition-method") or "")  # DeepSpeed's type:transformer|embedding
    begin, end = (int(counted or run.is_on(f"account-for-{what}-in-pipeline-split")) for what in ("embedding", "loss"))
    slices, more = pp * chunks, begin + end
    each, left = divmod(layers + more, slices)
    if left and more:
        parts = " and ".join(["embedding"] * begin + ["LM head"] * end)
        what = f"{layers} layers + {more} for {parts} must be divisible by {slices} model slices"
        raise run.error(f"account-for-{'embedding' if begin else 'loss'}-in-pipeline-split", what)
    if left:
        uneven = f"{layers} layers are not divisible by {slices} slices"
        run.assumed.append(f"{uneven} (Megatron-LM: error): split by layer times")
        return "auto"
    return [each - begin * (part == 0) - end * (part == slices - 1) for part in range(slices)] if more else []


def _parse_explicit_layout(run: MegatronOptions, layers: int, pp: int) -> StageLayout | None:
    """Return the explicit pipeline layout; raise InputError if its layer count differs from the model's."""
    text = run.get(_LAYOUT)
    if text is None:
        return None
    try:
        layout = StageLayout.parse(text.replace("\\", "").strip("'\" "))
        layout.chunks_per_stage(pp)
        layout.check_multi_token_layers(run.get("mtp-num-layers") or 0, pp)
    except InputError as error:
        raise run.error(_LAYOUT, str(error)) from None
    if sum(layout.decoder_layers) != layers:
        raise run.error(_LAYOUT, f"has {sum(layout.decoder_layers)} decoder layers ('t'), but the model has {layers}")
    if shards_parameters(run):  # the model is taken without prediction layers
        return StageLayout(tuple(letters.replace("m", "") for letters in layout.slices))
    return layout
