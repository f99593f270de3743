"""The sections of a scenario file as frozen models: parallel, pipeline, memory, overlap, fsdp, collectives, checkpoint.

Each checks its own values; rules between sections are in ``rules``.  The text below a field is what editors, the
reference and the studio show (``keys``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import Bytes, BytesPerSecond
from simcluster.collectives import ALGORITHMS
from simcluster.devices.interference import InterferenceSpec
from simcluster.documents.diagnostics import shown
from simcluster.documents.kinds import WordOf
from simcluster.documents.spec import ONE_OR_MORE, Count, Spec
from simcluster.model.choices import CONTEXT_METHODS, ActivationInput, ContextShares, Logits, OffloadModule
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.schedules.specs import Rows, ScheduleChoice
from simcluster.schedules.stage_layout import StageLayout
from simcluster.traffic.nccl.platforms import platform_names

Axis = Literal["tp", "cp", "dp", "pp"]
Engine = Literal["auto", "simpy", "compiled", "reference"]
"""Engine of a step: SimPy or the compiled engine on one rank of each class of equal ranks, or the ``reference``: SimPy
on every rank.  ``auto`` takes SimPy for a single small step, and the compiled engine for others and in studies."""


def _renamed_engine(value: object) -> object:
    """Return the engine of today for a name of version 0.1."""
    return "compiled" if value in ("events", "path") else value


EngineChoice = Annotated[Engine, BeforeValidator(_renamed_engine)]


def _zero_stage(value: object) -> object:
    if isinstance(value, bool) or value not in (0, 1, 2, 3):
        raise InputError(
            f"must be 0 (off), or what is sharded over dp: 1 (optimizer states), 2 (gradients too) or 3 (parameters "
            f"too, as FSDP does); got {shown(value)}"
        )
    return value


def _order(value: object) -> object:
    """A list of axes, from Megatron-Core's spelling, too: tp-cp-ep-dp-pp.  ``ep`` may stand between tp and dp, where
    experts are folded anyhow."""
    axes = value.split("-") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
    if axes is None or "ep" not in axes:
        return value if axes is None else axes
    place = {axis: number for number, axis in enumerate(axes)}
    if not place.get("tp", len(axes)) < place["ep"] < place.get("dp", -1):
        raise InputError(f"ep is to stand behind tp and before dp, as in tp-cp-ep-dp-pp; got {shown(value)}")
    return [axis for axis in axes if axis != "ep"]


class Parallel(Spec):
    """Degrees of parallelism: tp x cp x dp x pp GPUs; ep x etp for experts ("parallel folding", arXiv:2504.14960)."""

    tp: Count = 1
    """Tensor parallelism: ranks that share the matrices of every layer; keep it inside a node's NVLink domain."""
    pp: Count = 1
    """Pipeline parallelism: stages that the layers are cut into."""
    dp: Count = 0  # until the scenario is complete
    """Data parallelism: replicas of the model; default: the GPUs over tp x pp x cp."""
    cp: Count = 1
    """Context parallelism: ranks that share every sequence."""
    cp_comm: Annotated[str, WordOf(lambda: CONTEXT_METHODS)] = "ring"
    """How queries meet keys and values of other cp ranks: passed around a ring, overlapped with attention in pieces;
    gathered before it; or exchanged for heads (all_to_all)."""
    cp_shares: ContextShares = "zigzag"
    """Tokens of a cp rank: a piece from the front of the sequence and one from its back (zigzag), or contiguous ones,
    of which the last rank's are the most work under a causal mask."""
    ep: Count = 1
    """Expert parallelism: ranks of a stage (of tp x cp x dp, consecutive ones first) that share the experts."""
    etp: Count | None = None
    """Tensor parallelism of the experts; 1: whole ones; default: tp, or 1 where a stage has too few ranks for that."""
    expert_dispatch: ExpertDispatch = ExpertDispatch()
    """How tokens travel to experts and back."""
    sequence_parallel: StrictBool = False
    """Are norms and residuals split over tp along the sequence? Less memory, the same bytes."""
    zero: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_zero_stage)] = 0
    """ZeRO stage (arXiv:1910.02054), sharded over dp: 0 nothing, 1 optimizer states (Megatron-LM's distributed
    optimizer), 2 gradients too, 3 parameters too (FSDP)."""
    order: Annotated[tuple[Axis, ...], BeforeValidator(_order)] = ("tp", "cp", "dp", "pp")
    """Axes from the fastest-varying digit of a rank to the slowest, also in Megatron-Core's form (tp-cp-ep-dp-pp)."""


LONG_NAMES = {
    "tensor_model_parallel_size": "tp",
    "tensor_parallel_degree": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipeline_parallel_degree": "pp",
    "data_parallel_size": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_parallel_degree": "ep",
    "context_parallel_degree": "cp",
    "expert_tensor_parallel_size": "etp",
}
"""What other tools call the sizes of the axes; files and overrides may use these names in ``parallel``."""


def _layers_per_stage(value: object) -> object:
    if value in ("even", "auto"):
        return value
    items = value if isinstance(value, list | tuple) else ()
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
        raise InputError(f"must be even, auto or a list of how many layers, as in [11, 13, 13, 11]; got {shown(value)}")
    return tuple(items)


def _layout(value: object) -> object:
    """Check a layout slice by slice; return a list of it as tuples."""
    if not isinstance(value, str | list | tuple) or not value:
        raise InputError(f'must be a layout slice by slice, as in "Et*3|(tt|)*29,tL", or a list; got {shown(value)}')
    if not isinstance(value, str):
        rows = [[row] if isinstance(row, str) else row for row in value]
        if not all(isinstance(row, list | tuple) and all(isinstance(name, str) for name in row) for row in rows):
            raise InputError(f"must have names of layers, or a text, for every slice; got {shown(value)}")
        value = tuple(row if isinstance(row, str) else tuple(row) for row in value)
    StageLayout.of(value)
    return value


class Pipeline(Spec):
    """Stages, the layers on each, and the order of microbatches on them."""

    schedule: ScheduleChoice = "1f1b"
    """Order of microbatches on the stages: a name (simcluster list schedules), a mapping with parameters such as
    {name: interleaved, group_size: 8}, a CSV file of torch.distributed.pipelining, or FILE.py:FUNCTION."""
    chunks: Count = 1
    """Pieces of the model per stage (virtual stages), for schedules that take them."""
    layers_per_stage: Annotated[
        Literal["even", "auto"] | tuple[int, ...], BeforeValidator(_layers_per_stage)
    ] = "even"  # fmt: skip
    """Layers per stage: even; auto, which makes the slowest slice as fast as possible; or a list with a number per
    stage, spread evenly over its chunks, or per slice in the model's order."""
    layout: Annotated[str | tuple[str | tuple[str, ...], ...] | None, BeforeValidator(_layout)] = None
    """Contents of each slice, instead of layers_per_stage: text such as Et*3|(tt|)*29,tL (E the embedding, t a layer, L
    LM head and loss) or a list (Megatron-Core's pipeline-model-parallel-layout); it sets chunks and schedule, too."""
    p2p: Literal["async", "rendezvous"] = "async"
    """Do sends overlap with compute (async), or do sender and receiver wait for each other (rendezvous), as
    Megatron-LM without --overlap-p2p-communication?"""
    scatter_gather: StrictBool = True
    """Without sequence parallelism: is a stage boundary sent split over tp and gathered on arrival, as Megatron-LM does
    (arXiv:2104.04473 section 4.1)?"""

    @property
    def schedule_name(self) -> str:
        """What the schedule is called."""
        schedule = self.schedule
        if isinstance(schedule, Rows):
            return schedule.title
        return schedule if isinstance(schedule, str) else schedule.name

    def recut(self, layers_per_stage: str) -> dict[str, Any]:
        """Changes of a scenario by which its layers are cut like this, whatever cut them before."""
        layout: dict[str, Any] = {} if self.layout is None else {"pipeline.layout": None}
        return {"pipeline.layers_per_stage": layers_per_stage, **layout}


def _buffers(value: object) -> object:
    if isinstance(value, str) and value not in ("auto", "none") and not any(letter.isdigit() for letter in value):
        raise InputError(f'must be auto, none or an amount with its unit, as in "1 GB"; got {shown(value)}')
    return value


class HostMemory(Spec):
    """State that a GPU keeps in its host's memory, over the links between them (``Cluster.host_way``)."""

    activations: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Part, 0 to 1, of what a forward keeps that goes to the host: after it, or, where the backward follows at once,
    the first layers while later ones run."""
    modules: Annotated[tuple[OffloadModule, ...], ONE_OR_MORE] = ()
    """Modules whose inputs go, by Megatron-Core's names (--offload-modules); all of them unless activations says a
    part; default: a part of everything."""
    ahead: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    """Actions before its backward from which it may come back."""
    optimizer: Literal["none", "stream", "host"] = "none"
    """Where the optimizer's state is: on the GPU; in host memory and updated on the GPU in buckets (stream); or in host
    memory and updated there (host)."""
    bucket: Count = 40_000_000
    """Parameters per bucket."""
    buffers: Count = 2
    """Buckets that fit on the GPU at once."""
    host_update: BytesPerSecond | None = None
    """Rate of Adam on the processors of one node (of a rack: one tray), reads and writes together, for all its GPUs."""
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _all_of_modules(cls, document: object) -> object:
        if isinstance(document, Mapping) and document.get("modules"):
            return {"activations": 1.0, **document}
        return document


class Memory(Spec):
    """Memory of a GPU besides model state and the tensors that backward reads."""

    fragmentation: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.0
    """Factor from 1 on memory that comes and goes: activations, working sets, gathered parameters."""
    communication_buffers: Annotated[Literal["auto", "none"] | Bytes, BeforeValidator(_buffers)] = "none"
    """NCCL's buffers: none, auto (its channels for each group of the rank), or an amount per GPU."""
    workspace: Bytes | None = None
    """Memory that libraries keep for matmuls."""
    library: Literal["plain", "megatron-te"] = "plain"
    """What else layers keep: nothing (plain), or what Megatron-Core with Transformer Engine keeps."""
    logits: Logits = "fp32"
    """Does the loss keep a copy of the logits in fp32, one of all tp ranks (gathered), or write the gradient over them
    (in-place)?"""
    activation_input: ActivationInput = "16-bit"
    """Are the inputs of activation functions kept in 16 bits, or in fp8 (DeepSeek-V3, arXiv:2412.19437 section
    3.3.3)?"""
    backward_temporaries: StrictBool = False
    """Does the peak include memory that lives inside one layer: gradients of its backward, rows on their way between
    experts?"""
    offload: HostMemory = HostMemory()
    """State that is kept in the host's memory instead."""


def _mechanism(value: object) -> object:
    if isinstance(value, str) and value not in ("none", "auto"):
        raise InputError(
            f"must be none, auto or a mechanism such as {{kind: factor, compute: 0.189}}, {{kind: sms, channels: 24}} "
            f"or {{kind: hbm, bytes_per_byte: 3}}; got {shown(value)}"
        )
    return value


class Overlap(Spec):
    """Communication that overlaps with compute.

    Reductions, gathers and pairs are off unless they are turned on, as Megatron-LM's own flags are; a run says so where
    that costs 1 % of the step or more (``advice``).
    """

    grad_reduce: StrictBool = False
    """Are gradients reduced in buckets while backward still runs?"""
    param_gather: StrictBool = False
    """Are sharded parameters gathered during compute: with zero 1 and 2 during the next forward, with zero 3 ahead of
    every use (fsdp.prefetch)?"""
    tensor: StrictBool = False
    """Is the input gradient reduced over tp while the weight gradient's matmul runs?"""
    tensor_pieces: Count = 1
    """Pieces that matmuls around tp collectives are cut into, to overlap with them (async tensor parallelism)."""
    pipeline: StrictBool = True
    """Do sends between stages not hold up the sender?"""
    experts: StrictBool = False
    """Do tokens travel to experts during the matmuls of shared experts and of weight gradients (Megatron-LM's
    --moe-shared-expert-overlap and --delay-wgrad-compute)?"""
    pairs: StrictBool = False
    """In fused pairs [F|B] of a schedule: do collectives of one run during the compute of the other (arXiv:2412.19437
    section 3.2.1)?"""
    bucket_size: Bytes | None = None
    """Bytes per bucket of gradients; default: the program's own."""
    interference: Annotated[Literal["none", "auto"] | InterferenceSpec, BeforeValidator(_mechanism)] = "auto"
    """How communication and compute slow each other down: none, auto (as the device's catalogue entry says; with
    collectives.detail: steps not at all), or a mechanism."""


class Fsdp(Spec):
    """Sharding, gathering and reducing with zero 3 (FSDP); what overlaps with compute is set in ``overlap``.

    Parameters are gathered in the number format of the matmuls, gradients reduced in the recipe's.
    """

    unit_layers: Count = 1
    """Layers whose parameters are gathered together; embedding and LM head are separate units."""
    prefetch: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    """Units that are gathered ahead of their use."""
    reshard_after_forward: StrictBool = True
    """Are parameters freed after forward, and gathered again for backward?"""
    lanes: Literal["one", "two"] = "one"
    """Do gathers and reductions wait for each other on one communicator, or have two and share the links?"""
    shard_group: Count | None = None
    """Hybrid sharding (HSDP) over groups of N consecutive ranks of dp; default: all of dp."""
    sync_every_microbatch: StrictBool = True
    """Are gradients reduced in each microbatch's backward, or only in the last one's (no_sync)? For zero 2, too."""


class Collectives(Spec):
    """The algorithm of each collective, and how it is simulated."""

    all_reduce: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["all_reduce"]))] = "auto"
    """Algorithm of all-reduce; auto: the one that NCCL picks for the size, or the ring without a platform."""
    reduce_scatter: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["reduce_scatter"]))] = "auto"
    """Algorithm of reduce-scatter; auto as for all_reduce."""
    all_gather: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["all_gather"]))] = "auto"
    """Algorithm of all-gather; auto as for all_reduce."""
    detail: Literal["flow", "steps"] = "flow"
    """One activity with its use of every link (flow), or every step of the algorithm as transfers (steps)."""
    nccl: Annotated[str, WordOf(lambda: ("auto", "none", *platform_names()))] = "auto"
    """Platform whose latencies, rates and choices NCCL has; auto: the topology's; none: the links alone."""


class CheckpointInStep(Spec):
    """A checkpoint that is taken and simulated after a step; there should be one more step for its write.

    Both modes end at a barrier of all ranks.  ``mode``, ``to`` and ``bytes_per_parameter`` default to those of
    ``run.checkpoint``.
    """

    after: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 0
    """Step after which it is taken, counted from 0."""
    mode: Literal["blocking", "snapshot"] | None = None
    """Does training stop for the copy to host memory (snapshot), or for the write (blocking)?"""
    to: BytesPerSecond | None = None
    """Rate of writes to storage, for the whole job."""
    bytes_per_parameter: Annotated[float, Field(strict=False, gt=0)] | None = None
    """Bytes written per parameter; default: weights and optimizer state of the recipe."""
    place: Literal["storage", "peers"] = "storage"
    """Where the bytes go from the host: storage, or the memory of peers (run.checkpoint.memory)."""
