"""Base class of faults, with a method for each effect that a fault can have on a job.

All methods have neutral defaults; a kind of fault overrides the methods of its effects. Effects are factors on ranks
or links, permanent or over time (``profile``), uneven work, changed programs of ranks, and changed times of single
computations. Simulations call every fault with an effect (``faults_with_effect``), whatever its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile, WindowProfile
from simcluster.base.errors import InputError
from simcluster.collectives.token_relay import ExpertRouting, RelayLinkTimes
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import KeyProblem
from simcluster.planning.disturbances import ComputationColumns
from simcluster.planning.ops import Segment, StageProgram
from simcluster.topology import Cluster

Blocks = tuple[tuple[int, ...], ...]
"""Numbers of the experts of each rank, or node, of an ep group."""

EFFECTS = ("slowdown_factor", "slowdown_per_rank", "remaining_share", "remaining_shares", "attention_factors",
           "image_factors", "expert_loads", "change_program", "retime")  # fmt: skip
"""Methods of ``FaultSpec`` that change a step; a kind of fault must override at least one of them."""


class RoutedTokens(NamedTuple):
    """Tokens of one microbatch that pass through the experts of one layer.

    ``group`` is the number of the ep group in its stage; ``routes`` describe the experts that a token may choose. An
    expert takes at most ``capacity`` times an even share. ``seed`` is the scenario's.
    """

    routes: ExpertRouting
    seed: int
    layer: int
    step: int = 0
    microbatch: int = 0
    group: int = 0
    capacity: float = math.inf


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Sizes of the batch: microbatches per replica, sequences per microbatch, tokens per sequence.

    ``experts`` are those of a mixture-of-experts layer (0: none), of which each takes at most ``capacity`` times an
    even share of tokens, and ``routes`` what a token may choose of them (None: one). ``image_tokens``: mean number in a
    sequence.
    """

    steps: int
    microbatches: int
    micro_batch: int
    length: int
    experts: int = 0
    capacity: float = math.inf
    routes: ExpertRouting | None = None
    image_tokens: int = 0


@dataclass(frozen=True)
class JobContext:
    """The job that faults affect: workers, node of each rank, seed and batch.

    ``workers`` returns the data-parallel rank and pipeline stage of every rank, ``host_of[rank]`` is the rank's node,
    and ``seed`` decides all draws. ``relays`` returns the links of an ep group's ranks, if tokens are relayed to
    experts. ``known`` caches changed segments by everything that the change depends on.
    """

    workers: Callable[[], Sequence[tuple[int, int]]]
    host_of: Sequence[int]
    seed: int
    batch: BatchSizes
    relays: Callable[[Sequence[int]], RelayLinkTimes] | None = None
    known: dict[Hashable, Segment] = field(default_factory=dict)

    @cached_property
    def worker_of_rank(self) -> Sequence[tuple[int, int]]:
        """Data-parallel rank and pipeline stage of every rank."""
        return self.workers()


class FaultSpec(Spec):
    """Base class of faults, the ``faults`` entries of a scenario.

    A kind of fault has the field ``kind`` (its name in scenarios), an ``EXAMPLE`` that affects a job of 8 ranks on two
    nodes, a ``NEUTRAL`` document that changes nothing, and a field ``seed: Number | None = None`` if it is random.
    Defining a class without any of ``EFFECTS`` raises InputError.
    """

    EXAMPLE: ClassVar[Mapping[str, Any]]
    NEUTRAL: ClassVar[Mapping[str, Any]]
    ONCE: ClassVar[str] = ""
    """Reason why a scenario can have only one fault of this kind; empty if several are allowed."""

    if TYPE_CHECKING:  # a field of every kind, in its own place in the document
        kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        own = cls.model_fields.get("kind")  # a base of several kinds has a text, or no such field
        if own is not None and own.annotation is not str and not cls.effects():
            raise InputError(
                f"fault {cls.kind_name()!r}: this kind has no effect on a simulation; give {cls.__name__} one of the "
                f"methods {', '.join(EFFECTS)} (described in faults/fault_spec.py)"
            )

    @classmethod
    def kind_name(cls) -> str:
        """Return the fault's kind as scenarios name it, such as "slow_gpu"."""
        return str(cls.model_fields["kind"].annotation.__args__[0])  # type: ignore[union-attr]

    @classmethod
    @cache  # called for each fault of a job, and a checkpoint makes one fault per rank
    def effects(cls) -> tuple[str, ...]:
        """Return the names of the ``EFFECTS`` methods that this fault class overrides."""
        return tuple(name for name in EFFECTS if getattr(cls, name) is not getattr(FaultSpec, name))

    # --- where and when -------------------------------------------------------------------------------------------

    def affected_ranks(self, host_of: Sequence[int]) -> Sequence[int]:
        """Return the ranks that the fault affects, by default all; ``host_of[rank]`` is the rank's node."""
        return range(len(host_of))

    @property
    def affects_all_ranks(self) -> bool:
        """Return whether the fault is not limited to particular ranks."""
        return True

    def affected_links(self, cluster: Cluster) -> Sequence[int]:
        """Return the links that the fault affects, in both directions; InputError if the cluster lacks them."""
        return range(len(cluster.links))

    @property
    def is_permanent(self) -> bool:
        """Return whether the fault lasts for the whole simulation, so that its slowdown is constant."""
        return True

    def profile(self, value: float, seed: int) -> Profile:
        """Return a factor over time that is ``value`` while the fault is present, and 1 otherwise."""
        return WindowProfile(value)

    # --- effects --------------------------------------------------------------------------------------------------

    def slowdown_factor(self) -> float:
        """Return the factor on the computation times of affected ranks while the fault is present."""
        return 1.0

    def slowdown_per_rank(self, ranks: int, seed: int) -> Floats:
        """Return the permanent factor on every rank's computation times."""
        return np.ones(ranks)

    def remaining_share(self, capacity: float) -> float:
        """Return the share of a link's ``capacity`` (B/s) that remains while the fault is present."""
        return 1.0

    def remaining_shares(self, cluster: Cluster, seed: int) -> dict[int, float]:
        """Return the permanent share of capacity that each affected link keeps, by link."""
        return {}

    def attention_factors(self, seed: int, batch: BatchSizes, dp: int) -> Floats:
        """Return the factor on core attention work of each microbatch: [step, replica, microbatch]."""
        return np.ones((batch.steps, dp, batch.microbatches))

    def image_factors(self, seed: int, batch: BatchSizes, dp: int) -> Floats:
        """Return the factor on the encoder's work of each microbatch: [step, replica, microbatch]."""
        return np.ones((batch.steps, dp, batch.microbatches))

    def expert_loads(self, tokens: RoutedTokens, ep: int) -> Floats:
        """Return the factor on the number of tokens of each rank's experts in an ep group."""
        return np.ones(ep)

    def token_copy_factors(self, tokens: RoutedTokens, blocks: Blocks) -> Floats:
        """Return the factor on the tokens sent to each block of experts (those of a rank or node)."""
        return np.ones(len(blocks))

    @property
    def draws_per_pass(self) -> bool:
        """Return whether ``expert_loads`` differ between steps, microbatches and ep groups."""
        return False

    def change_program(self, rank: int, program: StageProgram, setting: JobContext) -> StageProgram:
        """Return a rank's program, changed from its stage's program; groups and sends must not change."""
        return program

    def retime(self, rank: int, computations: ComputationColumns, seconds: Floats, setting: JobContext) -> Floats:
        """Return new durations (s) of a rank's computations; ``seconds`` has the present durations."""
        return seconds

    def symmetry_key(self, rank: int, setting: JobContext) -> Hashable:
        """Return a key that ranks of a stage share if the fault changes them equally."""
        return rank

    # --- properties and changes --------------------------------------------------------------------------------------

    @property
    def is_neutral(self) -> bool:
        """Return whether the fault changes nothing."""
        return False

    def count_starts(self, seconds: float) -> float:
        """Return approximately how often the fault starts within ``seconds``; 0 if permanent."""
        return 0.0

    @property
    def is_random(self) -> bool:
        """Return whether the fault's effect depends on the seed."""
        return "seed" in type(self).model_fields

    @property
    def delays_all_equally(self) -> bool:
        """Return whether the fault delays all ranks equally, so that no rank is a straggler."""
        return False

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        """Yield an error, with the key's path inside the fault, for each mismatch of fault and ``scenario``."""
        yield from ()

    def with_stream_number(self, number: int) -> Self:
        """Return the fault with random stream number ``number``, unless it is not random or has a seed."""
        unnumbered = getattr(self, "seed", 0) is None  # a kind that draws nothing has no seed
        return self.model_copy(update={"seed": number}) if unnumbered else self

    def replacement_if_removed(self) -> Self | None:
        """Return the fault to put in place of this fault when studies remove it; None for no fault."""
        return None

    def remedy(self) -> tuple[str, Self] | None:
        """Return a remedy as text and the fault that remains after it; None if only a repair helps."""
        return None

    def for_remaining_ranks(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault after some ranks have left the job, or None; ``place`` maps old to new ranks."""
        return self

    def with_cluster_numbers(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Return the fault with the job's link numbers replaced by the cluster's; ``gpus[rank]``: a rank's GPU."""
        return self


def faults_with_effect(faults: Iterable[FaultSpec], effect: str) -> list[FaultSpec]:
    """Return the faults, in order, that override ``effect`` (a method in ``EFFECTS``) and are not neutral."""
    return [fault for fault in faults if effect in fault.effects() and not fault.is_neutral]
