"""The sections of a scenario file as frozen models: parallel, pipeline, memory, overlap, collectives, measured.

Each checks its own values; rules between sections are in ``rules``.
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
from simcluster.model.kept import OffloadModule
from simcluster.model.layer_sections import ActivationInput, ContextExchange, ContextShares, Logits
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.schedules.specs import Rows, ScheduleChoice
from simcluster.schedules.stage_layout import StageLayout
from simcluster.traffic.nccl import platform_names

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
    """How the job is split: tp x cp x dp x pp GPUs.

    ``dp`` left out is what the GPUs leave over (0 stands for that only until the scenario is complete).  ``zero`` is
    the ZeRO stage (arXiv:1910.02054).  ``order`` lists the axes from the fastest-varying rank digit to the slowest, or
    is Megatron-Core's text of them (tp-cp-ep-dp-pp).
    ``cp`` ranks share every sequence, and ``cp_comm`` is how its queries meet keys and values of other ranks: handed
    round a ``ring`` beside the attention in pieces, gathered before it, or traded for heads by ``all_to_all``.
    ``cp_shares``: a rank has a ``zigzag`` of the sequence, a piece from its front and one from its back, or
    ``contiguous`` tokens, of which under a causal mask the last rank's are the most work, for which all wait.
    ``ep`` ranks share the experts of a mixture, each split over ``etp`` ranks: as many as tp, unless that is more than
    a stage has; 1 leaves them whole (Megatron-LM's expert-tensor-parallel-size).  For experts the tp x cp x dp ranks of
    a stage are etp x ep x those that hold the same, consecutive ones first ("parallel folding", arXiv:2504.14960).
    ``expert_dispatch`` is how tokens travel to them.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count = 0
    cp: Count = 1
    cp_comm: ContextExchange = "ring"
    cp_shares: ContextShares = "zigzag"
    ep: Count = 1
    etp: Count | None = None
    expert_dispatch: ExpertDispatch = ExpertDispatch()
    sequence_parallel: StrictBool = False
    zero: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_zero_stage)] = 0
    order: Annotated[tuple[Axis, ...], BeforeValidator(_order)] = ("tp", "cp", "dp", "pp")


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
    """Checks even, auto or a list of whole numbers."""
    if value in ("even", "auto"):
        return value
    items = value if isinstance(value, list | tuple) else ()
    if not items or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
        raise InputError(f"must be even, auto or a list of how many layers, as in [11, 13, 13, 11]; got {shown(value)}")
    return tuple(items)


def _layout(value: object) -> object:
    """Checks a layout slice by slice; a list of it as tuples."""
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
    """Which stage holds what of the model, the order of microbatches on the stages, and how they hand on.

    ``schedule`` is a name; a mapping with parameters, as in ``{name: interleaved, group_size: 8}`` or ``{name: zb-auto,
    memory_limit: 16, goal: span}``; a CSV file of torch.distributed.pipelining or ``FILE.py:FUNCTION``, relative to the
    scenario file and read in (the document then has its rows).  ``zb-auto`` without times is made for those of the run,
    and without a goal for the shortest step, since the optimizer waits for the gradient norm of all stages.

    ``chunks`` is how many pieces of the model a stage holds.  ``layers_per_stage`` is how many layers: ``even``; a list
    with a number for every stage, spread over its chunks as evenly as possible (those with embedding or LM head last to
    get one more), or for every slice in the model's order; ``auto`` makes the slowest slice as fast as it can be, by
    the times of the run (forward and backward of a layer, of the embedding, of LM head and loss).

    ``layout`` is what every slice holds (Megatron-Core's ``--pipeline-model-parallel-layout``, "Et*3|(tt|)*29,tL"): E
    the embedding, t a layer, L LM head and loss (``schedules.stage_layout``).  It says ``layers_per_stage`` and, where
    these are left out, ``chunks`` and ``schedule: interleaved``.

    ``p2p``: ``async`` sends go out and are received beside computation; at a ``rendezvous`` sender and receiver wait
    for each other and for the end, in blocking pairs as Megatron-LM without ``--overlap-p2p-communication`` (then
    ``overlap.pipeline`` has no say).  ``scatter_gather``: without sequence parallelism a stage boundary is sent split
    over the tp ranks and gathered on arrival, as Megatron-LM does (arXiv:2104.04473 section 4.1).
    """

    schedule: ScheduleChoice = "1f1b"
    chunks: Count = 1
    layers_per_stage: Annotated[
        Literal["even", "auto"] | tuple[int, ...], BeforeValidator(_layers_per_stage)
    ] = "even"  # fmt: skip
    layout: Annotated[str | tuple[str | tuple[str, ...], ...] | None, BeforeValidator(_layout)] = None
    p2p: Literal["async", "rendezvous"] = "async"
    scatter_gather: StrictBool = True

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
    """Complains about a word that is neither ``auto`` nor ``none`` nor an amount."""
    if isinstance(value, str) and value not in ("auto", "none") and not any(letter.isdigit() for letter in value):
        raise InputError(f'must be auto, none or an amount with its unit, as in "1 GB"; got {shown(value)}')
    return value


class HostMemory(Spec):
    """What the GPU hands to its host's memory, over the links between them (``Cluster.host_way``).

    ``activations``: the part, 0 to 1, of what the layers of a microbatch's forward keep; it goes when that is over and
    may come back from ``ahead`` actions before its backward.  Where the backward follows at once (pp 1, the last stage)
    the first layers go, each while later ones run, and come back one after the other.  ``modules``: of the inputs of
    these alone, by Megatron-Core's names (``--fine-grained-activation-offloading --offload-modules``), then all of them
    unless a part is said.  ``optimizer``: ``stream`` keeps the optimizer's state in host memory and updates on the GPU,
    in buckets of ``bucket`` parameters of which ``buffers`` fit there; ``host`` updates on the host: ``host_update`` is
    the B/s that the processors of one box, a tray in a rack, reach in Adam on their memory, reads and writes together,
    and ``source`` who says so.  The box's GPUs share it evenly.
    """

    activations: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    modules: Annotated[tuple[OffloadModule, ...], ONE_OR_MORE] = ()
    ahead: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    optimizer: Literal["none", "stream", "host"] = "none"
    bucket: Count = 40_000_000
    buffers: Count = 2
    host_update: BytesPerSecond | None = None
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _all_of_modules(cls, document: object) -> object:
        """Modules without a part are moved whole."""
        if isinstance(document, Mapping) and document.get("modules"):
            return {"activations": 1.0, **document}
        return document


class Memory(Spec):
    """What a rank's memory holds besides model state and the tensors that backward reads.

    ``fragmentation`` is a factor from 1 (none) on what comes and goes: activations, working sets, gathered parameters;
    model state is allocated once and packs.  What it adds counts as other.  ``communication_buffers``: ``none``, an
    amount for each GPU, or ``auto``, NCCL's channels for each group that the rank is in (``planning.buffers``).
    ``workspace`` is what libraries keep for matrix products.  ``library: megatron-te`` adds what Megatron-Core with
    Transformer Engine keeps.  ``logits``: the loss keeps an ``fp32`` copy of them, of all ranks of tp where they are
    ``gathered`` (a loss over whole rows, as outside of Megatron-LM), or a fused one writes their gradient over them
    ``in-place``.  ``activation_input``: what activation functions read is kept in 16 bits, or in ``fp8``
    (Megatron-Core's ``--activation-func-fp8-input-store``; DeepSeek-V3, arXiv:2412.19437 section 3.3.3).
    ``backward_temporaries`` counts what lives inside one layer: gradients of its backward, and rows on their way
    between experts. ``offload`` is what lives in the host's memory instead.
    """

    fragmentation: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.0
    communication_buffers: Annotated[Literal["auto", "none"] | Bytes, BeforeValidator(_buffers)] = "none"
    workspace: Bytes | None = None
    library: Literal["plain", "megatron-te"] = "plain"
    logits: Logits = "fp32"
    activation_input: ActivationInput = "16-bit"
    backward_temporaries: StrictBool = False
    offload: HostMemory = HostMemory()


def _mechanism(value: object) -> object:
    """Complains about a word that is neither ``none`` nor ``auto``."""
    if isinstance(value, str) and value not in ("none", "auto"):
        raise InputError(
            f"must be none, auto or a mechanism such as {{kind: factor, compute: 0.189}}, {{kind: sms, channels: 24}} "
            f"or {{kind: hbm, bytes_per_byte: 3}}; got {shown(value)}"
        )
    return value


class Overlap(Spec):
    """Which communication runs beside computation.  Reductions, gathers and pairs are off unless they are turned on, as
    Megatron-LM's own flags are; a run says so where that is 1 % of the step or more (``advice``).

    ``grad_reduce``: gradients in buckets while backward still runs (``bucket_size`` bytes each; left out, the
    program's own default).  ``param_gather``: parameters sharded by ZeRO gathered beside computation: with zero 1 and 2
    beside the next forward, with zero 3 ahead of every use (``fsdp.prefetch``).  ``tensor``: the
    input gradient's reduction beside the weight gradient.  ``tensor_pieces``: the products around tensor-parallel
    collectives cut into so many pieces along their rows, each gathered or reduced beside the next one's product
    (asynchronous tensor parallelism).  ``pipeline``: sends do not hold up the sender.  ``experts``: tokens travel to
    experts, and gradients back, beside shared experts and weight gradients (Megatron-LM's
    ``--moe-shared-expert-overlap`` and ``--delay-wgrad-compute``).  ``pairs``: in a schedule with fused pairs [F|B]
    (DualPipe, or interleaved with pairs) the collectives of a forward beside the computation of the backward that it is
    paired with, and the other way round (arXiv:2412.19437 section 3.2.1; Megatron-LM's
    ``--overlap-moe-expert-parallel-comm``).

    ``interference``: what the two do to each other meanwhile.  ``auto`` is what the device's catalogue entry says (with
    ``collectives.detail: steps`` nothing), ``none`` nothing; or a mechanism of ``simcluster.devices.interference``.
    """

    grad_reduce: StrictBool = False
    param_gather: StrictBool = False
    tensor: StrictBool = False
    tensor_pieces: Count = 1
    pipeline: StrictBool = True
    experts: StrictBool = False
    pairs: StrictBool = False
    bucket_size: Bytes | None = None
    interference: Annotated[Literal["none", "auto"] | InterferenceSpec, BeforeValidator(_mechanism)] = "auto"


class Fsdp(Spec):
    """How zero 3 (FSDP) shards, gathers and reduces; what runs beside computation is ``overlap``'s business.

    Parameters are gathered in units of ``unit_layers`` layers (embedding and LM head are units of their own), up to
    ``prefetch`` units ahead of their use, in the number format of the products (2 bytes with mixed precision, whatever
    the shards are kept in); gradients are reduced in the recipe's.  ``reshard_after_forward``: given up behind forward
    and gathered again for backward.  ``lanes``: gathers and reductions wait for each other on one communicator, or
    have two and share the links.  ``shard_group``: hybrid sharding (HSDP) over so many consecutive ranks of dp, whose
    gradients are then summed over the groups; left out, all of dp.  ``sync_every_microbatch``: gradients are reduced
    in each microbatch's backward; false: summed up unsharded and reduced in the last one's (no_sync); for zero 2 too.
    """

    unit_layers: Count = 1
    prefetch: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 1
    reshard_after_forward: StrictBool = True
    lanes: Literal["one", "two"] = "one"
    shard_group: Count | None = None
    sync_every_microbatch: StrictBool = True


class Collectives(Spec):
    """The algorithm of each collective, and how it is played.

    ``nccl`` names the platform whose latencies, rates and choices NCCL would have (``traffic.methods``): ``auto`` is
    what the topology file says, ``none`` leaves everything to the links.  An algorithm that is ``auto`` is the one that
    NCCL picks for the size; without a platform, the ring.  ``detail: flow`` is one activity with its use of every link,
    ``steps`` every step of the algorithm as transfers.
    """

    all_reduce: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["all_reduce"]))] = "auto"
    reduce_scatter: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["reduce_scatter"]))] = "auto"
    all_gather: Annotated[str, WordOf(lambda: ("auto", *ALGORITHMS["all_gather"]))] = "auto"
    detail: Literal["flow", "steps"] = "flow"
    nccl: Annotated[str, WordOf(lambda: ("auto", "none", *platform_names()))] = "auto"


class CheckpointInStep(Spec):
    """A checkpoint that is taken and played, ``after`` this step (numbered from 0), of which there should be one more.

    ``mode``, ``to`` and ``bytes_per_parameter`` are those of ``run.checkpoint``, which also stands for what is left
    out: ``snapshot`` stops training for the copy to host memory, and the write goes on beside the next steps;
    ``blocking`` stops it for the write.  Both end at a barrier of all ranks.  ``place: peers``: a snapshot that goes on
    to the memory of peers instead, as ``run.checkpoint.memory`` says.
    """

    after: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 0
    mode: Literal["blocking", "snapshot"] | None = None
    to: BytesPerSecond | None = None
    bytes_per_parameter: Annotated[float, Field(strict=False, gt=0)] | None = None
    place: Literal["storage", "peers"] = "storage"
