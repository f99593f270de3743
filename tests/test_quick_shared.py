"""What quick steps of a sweep's variants share: no field that a step follows from is left out of what it is kept by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from simcluster import InputError
from simcluster.scenario.fast_path import STEP_FIELDS
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.sweep.quick_steps import QuickStepCalculator
from simcluster.studies.sweep.stage_network import NeedsFullRunError

BASE: dict[str, Any] = {
    "cluster.nodes": 2, "gpus": 16, "model.layers": 6, "model.hidden_size": 1024, "model.heads": 16,
    "model.kv_heads": 16, "model.ffn_hidden_size": 4096, "parallel.tp": 4, "parallel.pp": 2, "parallel.dp": 2,
    "pipeline.schedule": "1f1b", "pipeline.chunks": 1, "training.global_batch": 16, "overlap.interference": "none",
}  # fmt: skip
BY_HAND: dict[str, tuple[Any, ...]] = {
    "collectives.nccl": ("none",),
    "overlap.interference": ({"kind": "factor", "compute": 0.1},),
    "pipeline.layers_per_stage": ((4, 2),),
    "pipeline.schedule": ("gpipe",),
    "training.memory_recipe": ("mixed-16",),
    "training.recompute_modules": (("core_attn",), ("mlp",)),
}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"parallel.tp": 2, "parallel.dp": 4},
    {"parallel.tp": 8, "parallel.dp": 1},
    {"gpus": 8, "parallel.pp": 1},
    {"parallel.pp": 1, "parallel.dp": 4},
    {"pipeline.schedule": "interleaved", "pipeline.chunks": 3},
)
ASIDE = (  # sections that a plain quick step does not ask, or that it is not proved for
    "checkpoint.", "data.", "fsdp.", "measured.", "memory.offload.", "model.mla.", "model.moe.", "software.experts.",
    "training.muon.", "training.outer.",
)  # fmt: skip
TOLD_APART = {  # some of what passes, networks and stages are known to follow from
    "cluster.scale.flops", "cluster.scale.launch", "cluster.scale.nvlink", "collectives.nccl", "memory.logits",
    "model.layers", "model.norm", "overlap.interference", "overlap.pipeline", "overlap.tensor", "overlap.tensor_pieces",
    "parallel.sequence_parallel", "parallel.zero", "pipeline.layers_per_stage", "software.gap", "software.kernels",
    "software.optimizer", "training.attention", "training.global_batch", "training.memory_recipe",
    "training.micro_batch", "training.precision", "training.recompute",
}  # fmt: skip


def words(annotation: Any) -> tuple[Any, ...]:
    """The words that an annotation allows, at any depth."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in words(part))


def one_by_one() -> Iterator[tuple[str, Scenario, float]]:
    """Of every field the first value with which there is a quick step of another length, played by itself."""
    base = load("gpt3_175b_64xa100", BASE)
    before = QuickStepCalculator().step_time(base)
    yield "", base, before
    for path, field in STEP_FIELDS.items():
        if path.startswith(ASIDE):
            continue
        for value in BY_HAND.get(path) or (*words(field.annotation), True, False, 2, 32, 2048, 0.5, "20 us"):
            found = variant(base, {path: value})
            if found and found[1] != before:
                yield path, *found
                break
    for changes in LAYOUTS:
        found = variant(base, changes)
        assert found, changes
        yield " ".join(changes), *found


def variant(base: Scenario, changes: dict[str, Any]) -> tuple[Scenario, float] | None:
    """The changed scenario, on the same cluster where that is as it was, and its step; None where there is none."""
    try:
        made = load("gpt3_175b_64xa100", BASE | changes)
        if made.cluster == base.cluster:
            made = made.model_copy(update={"cluster": base.cluster})
        return made, QuickStepCalculator().step_time(made)
    except (InputError, NeedsFullRunError):
        return None


def test_variants_that_differ_in_one_field_share_nothing_that_it_changes() -> None:
    """Each played behind all the others, in both orders, as each is by itself."""
    alone = list(one_by_one())
    assert {path for path, _, _ in alone} >= TOLD_APART
    for order in (alone, alone[::-1]):
        way = QuickStepCalculator()
        for path, made, expected in order:
            assert way.step_time(made) == expected, path
