"""Stages of a pipeline from Megatron-LM's options: the schedule, and which layers each stage holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simcluster.importers.megatron_sections import overlaps_batches
from simcluster.importers.option_values import Options

_MOST_SLICES = 10_000
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([^()|*,\s]|\|)\*(\d{1,4})")


def pipeline_of(run: Options, layers: int, pp: int) -> dict[str, Any]:
    """The fields of ``Pipeline``; none where there is one stage."""
    chunks = run.get("num-virtual-stages-per-pipeline-rank")
    per = run.get("num-layers-per-virtual-pipeline-stage")
    if per and pp > 1:
        if layers % (pp * per):
            raise run.error(
                "num-layers-per-virtual-pipeline-stage", f"{per} x {pp} stages does not divide {layers} layers"
            )
        if chunks and chunks != layers // (pp * per):
            raise run.error("num-virtual-stages-per-pipeline-rank", "says otherwise than the layers per virtual stage")
        chunks = layers // (pp * per)
    if pp == 1:
        return {}
    slices = _laid_out(run, layers, pp)
    if slices:
        chunks = len(slices) // pp
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
    cut = slices or (
        _uneven(run, layers, pp, first, last) if first or last else _with_ends(run, layers, pp, chunks or 1)
    )
    if cut:
        pipeline["layers_per_stage"] = cut
    if run.flag("no-scatter-gather-tensors-in-pipeline"):
        pipeline["scatter_gather"] = False
    return pipeline


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


def _laid_out(run: Options, layers: int, pp: int) -> list[int]:
    """Layers of each slice in the model's order, of a layout such as ``Et*3|(tt|)*29m|L``; t is a layer."""
    name = "pipeline-model-parallel-layout"
    text = run.get(name)
    if text is None:
        return []
    plain = text.strip("'\" ").replace(",", "").replace(" ", "")
    for _ in range(20):
        plain, found = _REPEATED.subn(lambda part: (part[1] or part[3] or "") * int(part[2] or part[4]), plain, count=1)
        if not found or len(plain) > _MOST_SLICES:
            break
    slices = plain.split("|")
    counts = [part.count("t") for part in slices]
    if len(plain) > _MOST_SLICES or set(plain) - set("Etm|L") or len(slices) % pp or sum(counts) != layers:
        what = f"{text[:40]!r} is no layout of {layers} layers (t) on {pp} stages; write one as in Et*3|(tt|)*29m|L"
        raise run.error(name, what)
    return counts
