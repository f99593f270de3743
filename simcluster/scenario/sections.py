"""Sections of a scenario file: parallel, pipeline, memory, overlap, fsdp, collectives, checkpoint.

Each checks its own values; rules between sections are in ``rules``. The text below a field is its description in
editors, the reference and the studio (``scenario_keys``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import Bytes, BytesPerSecond
from simcluster.collectives import ALGORITHMS
from simcluster.devices.interference import InterferenceSpec
from simcluster.documents.base_spec import ONE_OR_MORE, Count, Spec
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.field_annotations import NameFromSet
from simcluster.model.kernel_choices import CONTEXT_METHODS, ActivationInput, ContextShares, Logits, OffloadModule
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.schedules.specs import RowsSpec, ScheduleChoice
from simcluster.schedules.stage_layout import StageLayout
from simcluster.traffic.nccl.platforms import platform_names

Axis = Literal["tp", "cp", "dp", "pp"]
Engine = Literal["auto", "simpy", "compiled", "reference"]
"""Simulation engine of a step: SimPy or the compiled engine simulate one rank per class of equal ranks; ``reference``
simulates every rank with SimPy. ``auto`` uses SimPy for one small step and the compiled engine otherwise."""


def _replace_old_engine_name(value: object) -> object:
    return "compiled" if value in ("events", "path") else value


EngineChoice = Annotated[Engine, BeforeValidator(_replace_old_engine_name)]


def _check_zero(value: object) -> object:
    if isinstance(value, bool) or value not in (0, 1, 2, 3):
        raise InputError(
            f"must be a ZeRO stage: 0 (off), 1 (optimizer states sharded over dp), 2 (also gradients) or 3 (also "
            f"parameters, as in FSDP); got {quote_value(value)}"
        )
    return value


def _parse_order(value: object) -> object:
    """Convert an axis order (a list, or text such as tp-cp-ep-dp-pp) to a list without ``ep``."""
    axes = value.split("-") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
    if axes is None or "ep" not in axes:
        return value if axes is None else axes
    place = {axis: number for number, axis in enumerate(axes)}
    if not place.get("tp", len(axes)) < place["ep"] < place.get("dp", -1):
        raise InputError(f"ep must be after tp and before dp, as in tp-cp-ep-dp-pp; got {quote_value(value)}")
    return [axis for axis in axes if axis != "ep"]


class Parallel(Spec):
    """Degrees of parallelism: tp x cp x dp x pp GPUs, and ep x etp for experts (arXiv:2504.14960)."""

    tp: Count = 1
    """Tensor parallelism: number of ranks that split the matrices of every layer; best within one NVLink domain."""
    pp: Count = 1
    """Pipeline parallelism: number of stages that the layers are divided into."""
    dp: Count = 0  # until the scenario is complete
    """Data parallelism: number of replicas of the model; default: GPUs / (tp x pp x cp)."""
    cp: Count = 1
    """Context parallelism: number of ranks that split every sequence."""
    cp_comm: Annotated[str, NameFromSet(lambda: CONTEXT_METHODS)] = "ring"
    """Communication of context parallelism: keys and values are passed around a ring during attention (ring), gathered
    before attention (all_gather), or sequence parts are exchanged for attention heads (all_to_all); heads within groups
    of cp_inner ranks, and a ring across these groups (hybrid, Megatron-LM's a2a+p2p)."""
    cp_inner: Count | None = None
    """Consecutive cp ranks that exchange heads with cp_comm hybrid, such as those of a node; a divisor of cp."""
    cp_shares: ContextShares = "zigzag"
    """Tokens of each cp rank: one piece from each half of the sequence, which balances causal attention (zigzag), or
    one contiguous piece, which gives the last rank the most work (contiguous)."""
    cp_states: StrictBool = False
    """Pass states between cp ranks in layers that have one, such as Mamba-2 and linear attention (all-gather of states,
    independent of the sequence's length), instead of exchanging tokens for heads; other layers follow cp_comm."""
    ep: Count = 1
    """Expert parallelism: number of ranks that experts are split over, consecutive within a stage's tp x cp x dp."""
    etp: Count | None = None
    """Tensor parallelism within each expert (1: not split); default: tp, or 1 if a stage has too few ranks."""
    expert_dispatch: ExpertDispatch = ExpertDispatch()
    """Dispatch of tokens to experts and back: method, number formats, SMs."""
    sequence_parallel: StrictBool = False
    """Sequence parallelism: split norms and residuals over tp along the sequence; less memory, equal traffic."""
    zero: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_check_zero)] = 0
    """ZeRO stage (arXiv:1910.02054), sharded over dp: 0 nothing, 1 optimizer state (Megatron-LM's distributed
    optimizer), 2 also gradients, 3 also parameters (FSDP)."""
    order: Annotated[tuple[Axis, ...], BeforeValidator(_parse_order)] = ("tp", "cp", "dp", "pp")
    """Order of the axes in rank numbers, fastest-varying first; Megatron-Core's form (tp-cp-ep-dp-pp) is accepted."""


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
"""Other tools' names of the parallelism degrees; files and overrides may use them in ``parallel``."""


def _parse_layers(value: object) -> object:
    if value in ("even", "auto"):
        return value
    items = value if isinstance(value, list | tuple) else ()
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
        raise InputError(f"must be even, auto or a list of layer counts, as [11, 13, 13, 11]; got {quote_value(value)}")
    return tuple(items)


def _check_layout(value: object) -> object:
    if not isinstance(value, str | list | tuple) or not value:
        raise InputError(f'must be a layout by slices, as in "Et*3|(tt|)*29,tL", or a list; got {quote_value(value)}')
    if not isinstance(value, str):
        rows = [[row] if isinstance(row, str) else row for row in value]
        if not all(isinstance(row, list | tuple) and all(isinstance(name, str) for name in row) for row in rows):
            raise InputError(f"must have names of layers, or a text, for every slice; got {quote_value(value)}")
        value = tuple(row if isinstance(row, str) else tuple(row) for row in value)
    StageLayout.parse(value)
    return value


class Pipeline(Spec):
    """Pipeline parallelism: stages, the layers on each stage, and the order of microbatches on the stages."""

    schedule: ScheduleChoice = "1f1b"
    """Order of microbatches on the stages: a name (simcluster list schedules), a mapping with parameters such as {name:
    interleaved, group_size: 8}, a CSV file of torch.distributed.pipelining, or FILE.py:FUNCTION."""
    chunks: Count = 1
    """Model chunks per stage (virtual stages), for schedules that support them."""
    layers_per_stage: Annotated[
        Literal["even", "auto"] | tuple[int, ...], BeforeValidator(_parse_layers)
    ] = "even"  # fmt: skip
    """Layers per stage: even; auto, which makes the slowest chunk as fast as possible; or a list with one number per
    stage (spread evenly over its chunks) or per chunk (in the model's order)."""
    layout: Annotated[str | tuple[str | tuple[str, ...], ...] | None, BeforeValidator(_check_layout)] = None
    """Contents of each chunk, instead of layers_per_stage: text such as Et*3|(tt|)*29,tL (E embedding, t layer, L LM
    head and loss) or a list (Megatron-Core's pipeline-model-parallel-layout); it also sets chunks and schedule."""
    p2p: Literal["async", "rendezvous"] = "async"
    """Sends between stages: overlapped with compute (async), or with sender and receiver waiting for each other
    (rendezvous), as in Megatron-LM without --overlap-p2p-communication."""
    scatter_gather: StrictBool = True
    """Without sequence parallelism: split the activations sent between stages over tp and gather them on arrival, as
    Megatron-LM does (arXiv:2104.04473 section 4.1)."""

    @property
    def schedule_name(self) -> str:
        """Name of the pipeline schedule."""
        schedule = self.schedule
        if isinstance(schedule, RowsSpec):
            return schedule.title
        return schedule if isinstance(schedule, str) else schedule.name

    def stage_layer_changes(self, layers_per_stage: str) -> dict[str, Any]:
        """Return the scenario changes that set the layers per stage and remove a layout."""
        layout: dict[str, Any] = {} if self.layout is None else {"pipeline.layout": None}
        return {"pipeline.layers_per_stage": layers_per_stage, **layout}


def _check_buffers(value: object) -> object:
    if isinstance(value, str) and value not in ("auto", "none") and not any(letter.isdigit() for letter in value):
        raise InputError(f'must be auto, none or an amount with its unit, as in "1 GB"; got {quote_value(value)}')
    return value


class HostOffload(Spec):
    """Offloading of a GPU's activations and optimizer state to the memory of its host."""

    activations: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Share (0 to 1) of saved activations to offload to host memory: of all layers after the forward, or, if the
    backward follows at once, of the first layers while later layers run."""
    modules: Annotated[tuple[OffloadModule, ...], ONE_OR_MORE] = ()
    """Modules whose inputs are offloaded, by Megatron-Core's names (--offload-modules), entirely unless `activations`
    sets a share; default: all modules, by the share in `activations`."""
    ahead: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    """Number of pipeline actions before its backward at which an offloaded activation may be copied back to the GPU."""
    optimizer: Literal["none", "stream", "host"] = "none"
    """Location of the optimizer state: on the GPU (none); in host memory, updated on the GPU in buckets (stream); or in
    host memory, updated by the CPU (host)."""
    bucket: Count = 40_000_000
    """Number of parameters per bucket of the offloaded optimizer."""
    buffers: Count = 2
    """Number of buckets of offloaded optimizer state that the GPU holds at once."""
    host_update: BytesPerSecond | None = None
    """Memory bandwidth (reads plus writes) of Adam on the CPUs of a node (in a rack: of a tray), shared by its GPUs."""
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _apply_default_share(cls, document: object) -> object:
        if isinstance(document, Mapping) and document.get("modules"):
            return {"activations": 1.0, **document}
        return document


class Memory(Spec):
    """GPU memory in addition to model state and saved activations."""

    fragmentation: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.0
    """Factor (1 or more) for fragmentation of transient memory: activations, working sets, gathered parameters."""
    communication_buffers: Annotated[Literal["auto", "none"] | Bytes, BeforeValidator(_check_buffers)] = "none"
    """Memory of NCCL's buffers: none, auto (from the channels of each communicator), or an amount per GPU."""
    workspace: Bytes | None = None
    """Workspace memory per GPU of matmul libraries such as cuBLAS."""
    library: Literal["plain", "megatron-te"] = "plain"
    """Additional tensors that layers keep: none (plain), or those of Megatron-Core with Transformer Engine."""
    logits: Logits = "fp32"
    """How the loss stores logits: as a copy in fp32 (fp32), as a copy gathered from all tp ranks (gathered), or
    overwritten by their gradient (in-place)."""
    activation_input: ActivationInput = "16-bit"
    """Number format of saved inputs of activation functions: 16 bits, or fp8 (DeepSeek-V3, arXiv:2412.19437 3.3.3)."""
    backward_temporaries: StrictBool = False
    """Whether peak memory counts short-lived tensors of single layers: gradients of a layer's backward, rows in transit
    to experts."""
    offload: HostOffload = HostOffload()
    """Activations and optimizer state that are kept in host memory instead of GPU memory."""


def _check_mechanism(value: object) -> object:
    if isinstance(value, str) and value not in ("none", "auto"):
        raise InputError(
            f"must be none, auto or a mechanism such as {{kind: factor, compute: 0.189}}, {{kind: sms, channels: 24}} "
            f"or {{kind: hbm, bytes_per_byte: 3}}; got {quote_value(value)}"
        )
    return value


class Overlap(Spec):
    """Settings of which communication overlaps with compute.

    Reductions, gathers and pairs are off by default, as in Megatron-LM; a run reports where that costs 1 % of the step
    or more (``cost_advice``).
    """

    grad_reduce: StrictBool = False
    """Overlap gradient reduction, in buckets, with the backward pass."""
    param_gather: StrictBool = False
    """Overlap the gather of sharded parameters with compute: with zero 1 and 2 with the next forward, with zero 3 ahead
    of every use (fsdp.prefetch)."""
    tensor: StrictBool = False
    """Overlap the tp reduction of input gradients with the matmul of weight gradients."""
    tensor_pieces: Count = 1
    """Number of pieces of matmuls next to tp collectives, so that the two overlap (async tensor parallelism)."""
    pipeline: StrictBool = True
    """Overlap sends between stages with the sender's compute."""
    experts: StrictBool = False
    """Overlap the dispatch of tokens to experts with the matmuls of shared experts and weight gradients (Megatron-LM's
    --moe-shared-expert-overlap and --delay-wgrad-compute)."""
    pairs: StrictBool = False
    """In fused pairs [F|B] of a schedule, overlap the collectives of one action with the compute of the other
    (arXiv:2412.19437 section 3.2.1)."""
    bucket_size: Bytes | None = None
    """Bytes per gradient bucket; default: as in Megatron-LM, max(40 million, 1 million x dp) parameters."""
    interference: Annotated[Literal["none", "auto"] | InterferenceSpec, BeforeValidator(_check_mechanism)] = "auto"
    """How much overlapping communication and compute slow each other down: none, auto (from the device's catalogue
    entry; none with collectives.detail: steps), or a mechanism."""


class Fsdp(Spec):
    """Settings of FSDP (ZeRO 3): sharding, gathers and reductions; ``overlap`` sets what overlaps with compute.

    Parameters are gathered in the number format of the matmuls, gradients reduced in the recipe's.
    """

    unit_layers: Count = 1
    """Number of layers per FSDP unit, which are gathered together; embedding and LM head are separate units."""
    prefetch: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    """Number of FSDP units that are gathered ahead of their use."""
    reshard_after_forward: StrictBool | Annotated[int, Field(strict=True, ge=2)] = True
    """Free gathered parameters after the forward and gather them again for the backward (true), keep them (false), or
    N: keep 1/N of them, gathered again from groups of N consecutive ranks (DeepSpeed's hpZ, an integer in FSDP2)."""
    lanes: Literal["one", "two"] = "one"
    """Communicators of gathers and reductions: one, where they wait for each other, or two, which share the links."""
    shard_group: Count | None = None
    """Hybrid sharding (HSDP): number of consecutive dp ranks that a shard group has; default: all dp ranks."""
    sync_every_microbatch: StrictBool = True
    """Reduce gradients in every microbatch's backward (true) or only the last (false, no_sync); for zero 2 and 3."""

    @property
    def regather_group(self) -> int:
        """Number of ranks that keep parameters between forward and backward; 0: all of a shard group, or every rank."""
        kept = self.reshard_after_forward
        return 0 if isinstance(kept, bool) else kept


class Collectives(Spec):
    """Settings of collectives: the algorithm of each type, and how the simulation models them."""

    all_reduce: Annotated[str, NameFromSet(lambda: ("auto", *ALGORITHMS["all_reduce"]))] = "auto"
    """Algorithm of all-reduce; auto: NCCL's choice for the message size, or the ring without an NCCL platform."""
    reduce_scatter: Annotated[str, NameFromSet(lambda: ("auto", *ALGORITHMS["reduce_scatter"]))] = "auto"
    """Algorithm of reduce-scatter; auto: NCCL's choice for the message size, or the ring without an NCCL platform."""
    all_gather: Annotated[str, NameFromSet(lambda: ("auto", *ALGORITHMS["all_gather"]))] = "auto"
    """Algorithm of all-gather; auto: NCCL's choice for the message size, or the ring without an NCCL platform."""
    detail: Literal["flow", "steps"] = "flow"
    """How a collective is simulated: as one flow over all its links (flow), or as transfers step by step (steps)."""
    nccl: Annotated[str, NameFromSet(lambda: ("auto", "none", *platform_names()))] = "auto"
    """NCCL platform that sets latencies, rates and algorithms; auto: the topology's; none: only the links count."""


class StepCheckpointSection(Spec):
    """A checkpoint that is simulated after a step; its write can overlap with further simulated steps.

    Both modes end at a barrier of all ranks. ``mode``, ``to`` and ``bytes_per_parameter`` default to those of
    ``run.checkpoint``.
    """

    after: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 0
    """Step after which the checkpoint is taken, counted from 0."""
    mode: Literal["blocking", "snapshot"] | None = None
    """Training stops until the checkpoint is written (blocking), or only while it is copied to host memory (snapshot);
    default: as in run.checkpoint."""
    to: BytesPerSecond | None = None
    """Rate at which storage writes the checkpoint, for the whole job; default: as in run.checkpoint."""
    bytes_per_parameter: Annotated[float, Field(strict=False, gt=0)] | None = None
    """Bytes per parameter in the checkpoint; default: as in run.checkpoint, or weights and optimizer state."""
    place: Literal["storage", "peers"] = "storage"
    """Destination of the checkpoint: storage, or the host memory of peer nodes (run.checkpoint.memory)."""
