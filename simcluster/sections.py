"""The sections of a scenario file as frozen models: parallel, pipeline, training, overlap, collectives, measured.

Each checks its own values; rules between sections are in ``scenario_rules``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool

from simcluster.collectives import ALGORITHMS
from simcluster.complaints import did_you_mean, listed, shown
from simcluster.errors import InputError
from simcluster.nccl import platform_names
from simcluster.spec import Spec
from simcluster.units import Bytes, Seconds

Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
"""How many of something: a whole number from 1, as in the file (8, not "8" nor 8.0)."""

Axis = Literal["tp", "cp", "dp", "pp"]
Precision = Literal["bf16-mixed", "fp16-mixed", "fp32"]
Recompute = Literal["none", "selective", "full"]
MemoryRecipe = Literal["mixed-16", "fp32-16", "mixed-18", "bf16-12"]


def _only_one(value: object) -> object:
    """Axes that are in the grid but not modelled: 1 is the size of an axis that is not there."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 1:
        raise InputError(f"{value} is not modelled yet; context and expert parallelism come later: leave it out, or 1")
    return value


def _zero_stage(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value in (2, 3):
        raise InputError(f"ZeRO stage {value} is not modelled yet; use 0 (off) or 1 (optimizer states sharded over dp)")
    if isinstance(value, bool) or value not in (0, 1):
        raise InputError(f"must be 0 (off) or 1 (optimizer states sharded over dp), got {shown(value)}")
    return value


class Parallel(Spec):
    """How the job is split: tp x cp x dp x pp GPUs.

    ``dp`` left out is what the GPUs leave over (0 stands for that only until the scenario is complete).  ``zero`` is
    the ZeRO stage (arXiv:1910.02054).  ``order`` lists the axes from the fastest-varying rank digit to the slowest.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count = 0
    cp: Annotated[Count, BeforeValidator(_only_one)] = 1
    ep: Annotated[Count, BeforeValidator(_only_one)] = 1
    sequence_parallel: StrictBool = False
    zero: Annotated[Literal[0, 1], BeforeValidator(_zero_stage)] = 0
    order: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")


LONG_NAMES = {
    "tensor_model_parallel_size": "tp",
    "tensor_parallel_degree": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipeline_parallel_degree": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
"""What other tools call the sizes of the axes; files and overrides may use these names in ``parallel``."""


class Pipeline(Spec):
    """The order of microbatches on the stages.  ``chunks`` is how many pieces of the model a stage holds.

    ``scatter_gather``: without sequence parallelism a stage boundary is sent split over the tp ranks and gathered on
    arrival, as Megatron-LM does (arXiv:2104.04473 section 4.1).
    """

    schedule: str = "1f1b"
    chunks: Count = 1
    scatter_gather: StrictBool = True


class Training(Spec):
    """The batch (in sequences), the number formats, and what is kept for backward.

    ``memory_recipe`` names the bytes per parameter by hand; left out, they follow from precision and optimizer.
    """

    global_batch: Count
    micro_batch: Count = 1
    precision: Precision = "bf16-mixed"
    recompute: Recompute = "none"
    optimizer: Literal["adam"] = "adam"
    attention: Literal["fused", "unfused"] = "fused"
    dropout: StrictBool = False
    memory_recipe: MemoryRecipe | None = None


class Overlap(Spec):
    """Which communication runs beside computation.

    ``grad_reduce``: gradients in buckets while backward still runs (``bucket_size`` bytes each; left out, the
    program's own default).  ``param_gather``: ZeRO-1's all-gather beside the next forward.  ``tensor``: the
    input gradient's reduction beside the weight gradient.  ``pipeline``: sends do not hold up the sender.
    """

    grad_reduce: StrictBool = False
    param_gather: StrictBool = False
    tensor: StrictBool = False
    pipeline: StrictBool = True
    bucket_size: Bytes | None = None


def _algorithm_of(kind: str) -> Callable[[object], object]:
    """Checks the name of an algorithm of a kind of collective."""

    def validate(value: object) -> object:
        known = ("auto", *ALGORITHMS[kind])
        if value not in known:
            raise InputError(f"must be one of {listed(known)}{did_you_mean(str(value), known)}; got {shown(value)}")
        return value

    return validate


def _nccl_platform(value: object) -> object:
    """Checks the name of a platform of NCCL."""
    known = ("auto", "none", *platform_names())
    if value not in known:
        raise InputError(f"must be one of {listed(known)}{did_you_mean(str(value), known)}; got {shown(value)}")
    return value


class Collectives(Spec):
    """The algorithm of each collective, and how it is played.

    ``nccl`` names the platform whose latencies, rates and choices NCCL would have (``simcluster.methods``): ``auto`` is
    what the topology file says, ``none`` leaves everything to the links.  An algorithm that is ``auto`` is the one that
    NCCL picks for the size; without a platform, the ring.  ``detail: flow`` is one activity with its use of every link,
    ``steps`` every step of the algorithm as transfers.
    """

    all_reduce: Annotated[str, BeforeValidator(_algorithm_of("all_reduce"))] = "auto"
    reduce_scatter: Annotated[str, BeforeValidator(_algorithm_of("reduce_scatter"))] = "auto"
    all_gather: Annotated[str, BeforeValidator(_algorithm_of("all_gather"))] = "auto"
    detail: Literal["flow", "steps"] = "flow"
    nccl: Annotated[str, BeforeValidator(_nccl_platform)] = "auto"


class Measured(Spec):
    """What a real run of this scenario took, and who says so; shown beside the prediction, never used for it."""

    step_time: Seconds
    source: str = ""
