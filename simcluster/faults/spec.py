"""Base class of faults: a section of a scenario, with a method for each effect on a job.

All methods have neutral defaults: a kind of fault overrides its effects. These are factors (``slowness`` of ranks, the
part ``left`` of links, each permanent or over time, ``profile``; ``slowdowns`` and ``lefts``, one per rank or link),
work that is uneven (``attention``, ``expert_loads``), other programs of ranks (``program``), and other seconds of
single computations (``retime``). Simulations call every fault with an effect (``acting_faults``), whatever its kind.
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
from simcluster.collectives.relayed import RelayedLinks, TokenRoutes
from simcluster.documents.diagnostics import Complaint
from simcluster.documents.spec import Spec
from simcluster.planning.ops import Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.perturbations import Computations
from simcluster.topology import Cluster

Blocks = tuple[tuple[int, ...], ...]
"""Numbers of the experts of each rank, or node, of an ep group."""

EFFECTS = ("slowness", "slowdowns", "left", "lefts", "attention", "expert_loads", "program", "retime")
"""Methods of ``FaultSpec`` that change a step: a kind of fault overrides at least one, or it is rejected by name."""


class RoutedTokens(NamedTuple):
    """Tokens of one pass of a microbatch through the experts of a layer.

    ``group`` is the number of the ep group in its stage; ``routes`` describe the experts that a token may choose. An
    expert takes at most ``capacity`` times an even share. ``seed`` is the scenario's.
    """

    routes: TokenRoutes
    seed: int
    layer: int
    step: int = 0
    microbatch: int = 0
    group: int = 0
    capacity: float = math.inf


@dataclass(frozen=True, slots=True)
class Batch:
    """Sizes of a step's work: microbatches per replica, sequences per microbatch, tokens per sequence.

    ``experts`` are those of a mixture-of-experts layer (0: none), of which each takes at most ``capacity`` times an
    even share of tokens, and ``routes`` what a token may choose of them (None: one).
    """

    steps: int
    microbatches: int
    micro_batch: int
    length: int
    experts: int = 0
    capacity: float = math.inf
    routes: TokenRoutes | None = None


@dataclass(frozen=True)
class Setting:
    """Job that faults change: its rank grid, the node of each rank, the seed and the batch.

    ``host_of[rank]`` is the rank's node, ``seed`` decides all draws. ``relays`` gives the links of an ep group of some
    ranks where tokens are relayed to experts. ``known`` are segments that were changed before, by all that the change
    depends on.
    """

    plan: Plan
    host_of: Sequence[int]
    seed: int
    batch: Batch
    relays: Callable[[Sequence[int]], RelayedLinks] | None = None
    known: dict[Hashable, Segment] = field(default_factory=dict)

    @cached_property
    def worker(self) -> list[tuple[int, int]]:
        """Data-parallel rank and pipeline stage of every rank."""
        found = [(0, 0)] * self.plan.num_ranks
        for (stage, dp, _, _), rank in np.ndenumerate(self.plan.grid):
            found[int(rank)] = dp, stage
        return found


class FaultSpec(Spec):
    """Base class of faults: one deviation from the plan.

    A kind of fault has the field ``kind`` (its word in documents), an ``EXAMPLE`` that acts on a job of 8 ranks on two
    nodes, a ``NEUTRAL`` document that changes nothing, and a field ``seed: Number | None = None`` if it draws.
    InputError, when the class is made, for a kind without any of ``EFFECTS``.
    """

    EXAMPLE: ClassVar[Mapping[str, Any]]
    NEUTRAL: ClassVar[Mapping[str, Any]]
    ONCE: ClassVar[str] = ""
    """Why a scenario can have only one of the kind; empty if it can have several."""

    if TYPE_CHECKING:  # a field of every kind, in its own place in the document
        kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        own = cls.model_fields.get("kind")  # a base of several kinds has a text, or no such field
        if own is not None and own.annotation is not str and not cls.effects():
            raise InputError(
                f"fault {cls.word()!r}: this kind has no effect on a simulation; give {cls.__name__} one of the "
                f"methods {', '.join(EFFECTS)} (described in faults/spec.py)"
            )

    @classmethod
    def word(cls) -> str:
        """Return the fault's value of ``kind`` in documents, such as "slow_gpu"."""
        return str(cls.model_fields["kind"].annotation.__args__[0])  # type: ignore[union-attr]

    @classmethod
    @cache  # asked of each fault of a job, of which a checkpoint that is written has one a rank
    def effects(cls) -> tuple[str, ...]:
        """Return the effects (of ``EFFECTS``) that the kind of fault has: the methods that it overrides."""
        return tuple(name for name in EFFECTS if getattr(cls, name) is not getattr(FaultSpec, name))

    # --- where and when -------------------------------------------------------------------------------------------

    def chosen(self, host_of: Sequence[int]) -> Sequence[int]:
        """Return the ranks that the fault is on; ``host_of[rank]`` is the rank's node."""
        return range(len(host_of))

    @property
    def everywhere(self) -> bool:
        """Return whether the fault is on all ranks, or on none in particular."""
        return True

    def links(self, cluster: Cluster) -> Sequence[int]:
        """Return the links that the fault is on, in both directions; InputError if the cluster lacks them."""
        return range(len(cluster.links))

    @property
    def lasts(self) -> bool:
        """Return whether the fault is permanent, so that its links and GPUs can simply be slowed down."""
        return True

    def profile(self, value: float, seed: int) -> Profile:
        """Return a profile that is ``value`` while the fault is present, else 1, unless it is permanent."""
        return WindowProfile(value)

    # --- effects --------------------------------------------------------------------------------------------------

    def slowness(self) -> float:
        """Return the factor on computation times of the fault's ranks while it is present."""
        return 1.0

    def slowdowns(self, ranks: int, seed: int) -> Floats:
        """Return the permanent factor on the computation times of each of N ``ranks``."""
        return np.ones(ranks)

    def left(self, capacity: float) -> float:
        """Return the share of a link's ``capacity`` (B/s) that remains while the fault is present."""
        return 1.0

    def lefts(self, cluster: Cluster, seed: int) -> dict[int, float]:
        """Return the permanently remaining share of each affected link's capacity."""
        return {}

    def attention(self, seed: int, batch: Batch, dp: int) -> Floats:
        """Return the factor on microbatches' core attention, [step, replica, microbatch]; memory is unchanged."""
        return np.ones((batch.steps, dp, batch.microbatches))

    def expert_loads(self, tokens: RoutedTokens, ep: int) -> Floats:
        """Return the factor on the tokens of the experts of every rank of an ep group, [ep]."""
        return np.ones(ep)

    def expert_copies(self, tokens: RoutedTokens, blocks: Blocks) -> Floats:
        """Return the factor on the tokens that visit each block of experts, which gets one copy per token."""
        return np.ones(len(blocks))

    @property
    def by_pass(self) -> bool:
        """Return whether ``expert_loads`` depends on step, microbatch and ep group."""
        return False

    def program(self, rank: int, program: StageProgram, setting: Setting) -> StageProgram:
        """Return a stage's program changed for a rank: other times or items, the same groups and sends."""
        return program

    def retime(self, rank: int, computations: Computations, seconds: Floats, setting: Setting) -> Floats:
        """Return the new times (s) of a rank's computations, given those after all ``program``s."""
        return seconds

    def colour(self, rank: int, setting: Setting) -> Hashable:
        """Return a value that is equal for ranks of a stage that ``program`` and ``retime`` change equally."""
        return rank

    # --- what is asked of it --------------------------------------------------------------------------------------

    @property
    def neutral(self) -> bool:
        """Return whether the fault changes nothing."""
        return False

    def times_within(self, seconds: float) -> float:
        """Return about how often the fault starts within ``seconds``; 0 if it is permanent."""
        return 0.0

    @property
    def by_chance(self) -> bool:
        """Return whether the fault's effect is random, so that it depends on the seed."""
        return "seed" in type(self).model_fields

    @property
    def shared(self) -> bool:
        """Return whether the fault delays all ranks equally, so that there is no straggler."""
        return False

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Yield violated rules, with key paths inside the fault; ``scenario`` is a ``ScenarioFields``."""
        yield from ()

    def numbered(self, place: int) -> Self:
        """Return the fault with its random stream numbered ``place``, if it is random and has no seed."""
        unnumbered = getattr(self, "seed", 0) is None  # a kind that draws nothing has no seed
        return self.model_copy(update={"seed": place}) if unnumbered else self

    def without(self) -> Self | None:
        """Return what replaces the fault if it is removed; None if nothing does."""
        return None

    def remedy(self) -> tuple[str, Self] | None:
        """Return a remedy in words, and the fault that remains after it; None if only a repair helps."""
        return None

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault (or None) in a job that continues without some ranks; ``place[rank]`` is the new number."""
        return self

    def in_cluster(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Return the fault with link numbers of the cluster instead of the job; ``gpus[rank]`` is a rank's GPU."""
        return self


def acting_faults(faults: Iterable[FaultSpec], effect: str) -> list[FaultSpec]:
    """Return the faults that have this one of ``EFFECTS`` and change something, in order."""
    return [fault for fault in faults if effect in fault.effects() and not fault.neutral]
