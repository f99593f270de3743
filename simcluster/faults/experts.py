"""Work that is uneven because tokens choose their experts: how many go to the experts of each expert-parallel rank.

A mixture-of-experts layer sends every token to its ``top_k`` experts.  A rank that holds popular ones multiplies more
tokens, and receives more bytes in the all-to-all before (dispatch) and returns more in the one behind (combine); the
all-to-all and all ranks of the group wait for the fullest (MODELLING.md F.5).  Its memory holds as many more rows.

``expert_loads`` says what to multiply; ``faults.expert_loads`` does it to the ops of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint
from simcluster.documents.spec import Spec
from simcluster.faults.draws import stream
from simcluster.faults.spec import FaultSpec
from simcluster.faults.where import Number

_MOST_EXPERTS = 100_000


class TokenFractions(Spec):
    """What was counted: ``values[e]`` of the tokens go to expert e (only their proportions count)."""

    kind: Literal["fractions"]
    values: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=_MOST_EXPERTS)]

    @property
    def neutral(self) -> bool:
        return len({*self.values}) == 1

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        """The share of each of so many experts.  InputError where there is not one value to each."""
        if len(self.values) != experts or not sum(self.values) > 0:
            what = f"{len(self.values)} fractions" if sum(self.values) > 0 else "fractions that are all 0"
            raise InputError(f"expert_imbalance: {what} for {experts} experts; give one to each, not all of them 0")
        return np.array(self.values) / sum(self.values)


class ZipfTokens(Spec):
    """The k-th most popular expert gets tokens in proportion to 1 / k^``exponent``; which one that is, is drawn."""

    kind: Literal["zipf"]
    exponent: Annotated[float, Field(strict=False, ge=0, le=10)]

    @property
    def neutral(self) -> bool:
        return self.exponent == 0

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        weights = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
        return np.asarray(generator.permutation(weights / weights.sum()))


class DirichletTokens(Spec):
    """Shares drawn from a symmetric Dirichlet law: the larger ``concentration``, the more alike."""

    kind: Literal["dirichlet"]
    concentration: Annotated[float, Field(strict=False, gt=0, le=1e9)]

    @property
    def neutral(self) -> bool:
        return False

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        return generator.dirichlet(np.full(experts, self.concentration))


Tokens = Annotated[TokenFractions | ZipfTokens | DirichletTokens, Field(discriminator="kind")]
"""A law of shares; to add one, write a spec with ``neutral`` and ``draw`` and add it here."""


class ExpertImbalance(FaultSpec):
    """Experts that get unequally many ``tokens``.

    The shares are drawn ``per`` layer, the same in all microbatches and steps (what a router has learnt), or per pass
    of a microbatch.  ``seed`` is the number of the stream of draws, as for jitter.
    """

    EXAMPLE: ClassVar = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1}}
    NEUTRAL: ClassVar = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0}}

    kind: Literal["expert_imbalance"]
    tokens: Tokens
    per: Literal["layer", "pass"] = "layer"
    seed: Number | None = None

    @property
    def neutral(self) -> bool:
        return self.tokens.neutral

    @property
    def by_chance(self) -> bool:
        return self.tokens.kind != "fractions" and not self.neutral

    @property
    def by_pass(self) -> bool:
        return self.per == "pass"

    def expert_loads(
        self,
        *,
        seed: int,
        experts: int,
        ep: int,
        layer: int,
        step: int = 0,
        microbatch: int = 0,
        replica: int = 0,
        capacity: float = math.inf,
    ) -> Floats:
        """What the experts' products take on every expert-parallel rank of a group, [ep]; 1 is an even share.

        The same factors multiply the bytes that each rank receives in the dispatch and sends in the combine.  They sum
        to ``ep`` as long as no token is lost: beyond ``capacity`` times an even share an expert drops them, and what it
        takes is a multiple of what planning gives it, the smaller of capacity and even share.  Expert e is on rank
        e // (experts / ep).
        ``replica`` is the number of the group: with ``per: pass`` each group has other tokens.  The array, the same one
        each time, cannot be written to.  Raises InputError where the ranks do not divide the experts, or fractions are
        not one to each.
        """
        if ep < 1 or experts < 1 or experts % ep:
            raise InputError(f"expert_imbalance: ep {ep} does not divide {experts} experts; each rank has as many")
        identity = (layer, step, microbatch, replica) if self.by_pass else (layer,)
        return _loads(self, seed, experts, ep, identity, capacity)

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """There are experts, and as many fractions as there are."""
        moe = scenario.model.moe
        if moe is None:
            what = "the model is dense: it has no experts that could get unequally many tokens"
            yield (), f"{what}; leave expert_imbalance out, or use sequence_lengths for uneven attention"
            return
        if moe.pad_to_capacity:
            what = "model.moe.pad_to_capacity gives every expert as many rows whatever the tokens choose"
            yield (), f"{what}; leave expert_imbalance out, or pad_to_capacity"
        if scenario.memory.offload.activations and not self.neutral:
            what = "what a rank's experts keep goes with the rows they get, and memory.offload takes an even share of"
            yield (), f"{what} it; set memory.offload.activations to 0, or leave expert_imbalance out"
        try:
            self.expert_loads(seed=0, experts=moe.experts, ep=1, layer=0)
        except InputError as error:
            yield ("tokens",), str(error)


@lru_cache(maxsize=1 << 16)
def _loads(
    fault: ExpertImbalance, seed: int, experts: int, ep: int, identity: tuple[int, ...], capacity: float
) -> Floats:
    shares = fault.tokens.draw(stream(seed, "experts", fault.seed, *identity), experts)
    loads = shares.reshape(ep, -1).sum(axis=1)
    found = np.asarray(loads * (ep / loads.sum()))
    if capacity < np.inf:  # of even shares
        taken = np.minimum(shares * (experts / shares.sum()), capacity) / min(capacity, 1.0)
        found = taken.reshape(ep, -1).mean(axis=1)
    found.setflags(write=False)
    return found
