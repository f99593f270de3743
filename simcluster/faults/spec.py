"""What a fault is: a frozen piece of a scenario's document, with a method for everything that it can do or be asked.

All methods have neutral defaults: a kind of fault overrides what it does.  Its effects are factors (``slowness`` of
ranks, the part ``left`` of links, each for ever or over time, ``profile``; ``slowdowns`` and ``lefts``, each rank and
link its own), work that is uneven (``attention``, ``expert_loads``), other programs of ranks (``program``), and other
seconds of single computations (``retime``).  Simulations ask every fault that has an effect for it (``acting``),
whatever its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile, Window
from simcluster.base.errors import InputError
from simcluster.collectives.relayed import RelayedLinks, TokenRoutes
from simcluster.documents.diagnostics import Complaint
from simcluster.documents.spec import Spec
from simcluster.planning.ops import Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.perturbations import Computations
from simcluster.topology import Cluster

Blocks = tuple[tuple[int, ...], ...]
"""Numbers of the experts of each rank, or machine, of an ep group."""

EFFECTS = ("slowness", "slowdowns", "left", "lefts", "attention", "expert_loads", "program", "retime")
"""Methods of ``FaultSpec`` that change a step: a kind of fault overrides one at least, or it is refused by its name."""


class RoutedTokens(NamedTuple):
    """The tokens of one pass of a microbatch through the experts of a layer.

    ``group`` is the number of the ep group in its stage; ``routes`` say which experts a token chooses.  An expert takes
    at most ``capacity`` times an even share.  ``seed`` is the scenario's.
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
    """What a step works through: microbatches of each replica, sequences in each, tokens in those.

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
    """The job that a fault changes: ``host_of[rank]`` is the rank's machine, ``seed`` decides all that is drawn.

    ``relays`` gives the links of an ep group of some ranks where tokens are relayed to experts.  ``known`` are segments
    that were changed before, by all that the change depends on.
    """

    plan: Plan
    host_of: Sequence[int]
    seed: int
    batch: Batch
    relays: Callable[[Sequence[int]], RelayedLinks] | None = None
    known: dict[Hashable, Segment] = field(default_factory=dict)

    @cached_property
    def worker(self) -> list[tuple[int, int]]:
        """(dp rank, stage) of every rank."""
        found = [(0, 0)] * self.plan.num_ranks
        for (stage, dp, _, _), rank in np.ndenumerate(self.plan.grid):
            found[int(rank)] = dp, stage
        return found


class FaultSpec(Spec):
    """One thing that is not as planned.

    A kind of fault has the field ``kind`` (its word in documents), an ``EXAMPLE`` that acts on a job of 8 ranks on two
    machines, a ``NEUTRAL`` document that changes nothing, and a field ``seed: Number | None = None`` if it draws.
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
                f"fault {cls.word()!r}: nothing plays faults of this kind, so it would change nothing; give "
                f"{cls.__name__} one of the methods {', '.join(EFFECTS)} (faults/spec.py says what they do)"
            )

    @classmethod
    def word(cls) -> str:
        """The kind as a document names it."""
        return str(cls.model_fields["kind"].annotation.__args__[0])  # type: ignore[union-attr]

    @classmethod
    @cache  # asked of each fault of a job, of which a checkpoint that is written has one a rank
    def effects(cls) -> tuple[str, ...]:
        """Those of ``EFFECTS`` that the kind has."""
        return tuple(name for name in EFFECTS if getattr(cls, name) is not getattr(FaultSpec, name))

    # --- where and when -------------------------------------------------------------------------------------------

    def chosen(self, host_of: Sequence[int]) -> Sequence[int]:
        """The ranks that it is on; ``host_of[rank]`` is the rank's machine."""
        return range(len(host_of))

    @property
    def everywhere(self) -> bool:
        """Is it on all ranks, or on none in particular?"""
        return True

    def links(self, cluster: Cluster) -> Sequence[int]:
        """The links that it is on, both directions of each.  InputError for what is not in the cluster."""
        return range(len(cluster.links))

    @property
    def lasts(self) -> bool:
        """Is it always there, so that the links and GPUs that it is on simply are as slow as it makes them?"""
        return True

    def profile(self, value: float, seed: int) -> Profile:
        """The factor ``value`` over time, 1 while it is not there; asked where it does not last."""
        return Window(value)

    # --- effects --------------------------------------------------------------------------------------------------

    def slowness(self) -> float:
        """What multiplies the seconds of computation of the ranks that it is on, while it is there."""
        return 1.0

    def slowdowns(self, ranks: int, seed: int) -> Floats:
        """What multiplies the seconds of computation of each of so many ranks, for ever."""
        return np.ones(ranks)

    def left(self, capacity: float) -> float:
        """The part of a link of so many B/s that there is while it is there, of the links that it is on."""
        return 1.0

    def lefts(self, cluster: Cluster, seed: int) -> dict[int, float]:
        """The part of each of these links that there is, for ever."""
        return {}

    def attention(self, seed: int, batch: Batch, dp: int) -> Floats:
        """What multiplies the core attention of microbatches, [step, replica, microbatch]; memory does not change."""
        return np.ones((batch.steps, dp, batch.microbatches))

    def expert_loads(self, tokens: RoutedTokens, ep: int) -> Floats:
        """Return the factor on the tokens of the experts of every rank of an ep group, [ep]."""
        return np.ones(ep)

    def expert_copies(self, tokens: RoutedTokens, blocks: Blocks) -> Floats:
        """Return the factor on the tokens that visit any expert of each block, which gets one copy of each token."""
        return np.ones(len(blocks))

    @property
    def by_pass(self) -> bool:
        """Return whether ``expert_loads`` depend on step, microbatch and group."""
        return False

    def program(self, rank: int, program: StageProgram, setting: Setting) -> StageProgram:
        """The stage's program as a rank has it that it is on: other seconds, other items; the same groups and sends."""
        return program

    def retime(self, rank: int, computations: Computations, seconds: Floats, setting: Setting) -> Floats:
        """Return the new seconds of a rank's computations, given the present ones; called after all ``program``s."""
        return seconds

    def colour(self, rank: int, setting: Setting) -> Hashable:
        """Return a value that is equal for ranks of a stage that ``program`` and ``retime`` change equally."""
        return rank

    # --- what is asked of it --------------------------------------------------------------------------------------

    @property
    def neutral(self) -> bool:
        """Does it change nothing?"""
        return False

    def times_within(self, seconds: float) -> float:
        """How often it comes and goes in a step of so many seconds, about: 0 of what does not."""
        return 0.0

    @property
    def by_chance(self) -> bool:
        """Does what it does depend on the seed?"""
        return "seed" in type(self).model_fields

    @property
    def shared(self) -> bool:
        """Does it hold all ranks up alike, so that it makes no straggler?"""
        return False

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Rules that it breaks, with keys inside its own document; ``scenario`` is a ``ScenarioFields``."""
        yield from ()

    def numbered(self, place: int) -> Self:
        """With this number of its stream of draws, if it draws and has none."""
        unnumbered = getattr(self, "seed", 0) is None  # a kind that draws nothing has no seed
        return self.model_copy(update={"seed": place}) if unnumbered else self

    def without(self) -> Self | None:
        """What stands in its place when it is taken away; None for nothing."""
        return None

    def remedy(self) -> tuple[str, Self] | None:
        """What can be done about it, in words, and what is then left of it; None for nothing but repair."""
        return None

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """It in a job that goes on without some ranks, ``place[rank]`` being those that others have then; None if it is
        gone with them."""
        return self

    def in_cluster(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Its links by the cluster's numbers of GPUs and machines, in place of a job's own (``gpus[rank]``)."""
        return self


def acting(faults: Iterable[FaultSpec], effect: str) -> list[FaultSpec]:
    """Those that have one of ``EFFECTS``, in their order."""
    return [fault for fault in faults if effect in fault.effects() and not fault.neutral]
