"""Fault of unevenly chosen experts: each expert-parallel rank's share of the tokens.

A mixture-of-experts layer sends every token to its ``top_k`` experts. A rank that holds popular ones multiplies more
tokens, and receives more bytes in the all-to-all before (dispatch) and returns more in the one after (combine); the
all-to-all and all ranks of the group wait for the fullest (MODELLING.md F.5). Its memory holds as many more rows.

A token visits ``top_k`` different experts, so none of them gets more than one row of each token: 1 / top_k of all rows.
``expert_loads`` returns the factors; ``faults.expert_loads`` applies them to the ops of a rank.
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
from simcluster.collectives.routing_distribution import RoutingDistribution, mean_groups_needed
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import KeyProblem
from simcluster.faults.fault_spec import Blocks, FaultSpec, RoutedTokens
from simcluster.faults.random_factors import random_stream
from simcluster.faults.targets import Number

_MOST_EXPERTS = 100_000
_ROUNDING = 1 + 1e-9


class TokenFractions(Spec):
    """Measured share of tokens of each expert."""

    kind: Literal["fractions"]
    values: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=_MOST_EXPERTS)]
    """Measured number of tokens of each expert; only proportions count, and no share may be above 1 / top_k."""

    @property
    def is_neutral(self) -> bool:
        """Return whether every expert has an equal share of the tokens."""
        return len({*self.values}) == 1

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        """Return each expert's share of tokens; raise InputError unless ``experts`` shares are given."""
        if len(self.values) != experts or not sum(self.values) > 0:
            what = f"{len(self.values)} fractions" if sum(self.values) > 0 else "fractions that are all 0"
            raise InputError(f"expert_imbalance: {what} for {experts} experts; give one per expert, not all 0")
        return np.array(self.values) / sum(self.values)


class ZipfTokens(Spec):
    """Shares of tokens by Zipf's law, assigned to experts in random order."""

    kind: Literal["zipf"]
    exponent: Annotated[float, Field(strict=False, ge=0, le=10)]
    """Exponent of Zipf's law: the k-th most popular expert gets tokens in proportion to 1 / k^exponent."""

    @property
    def is_neutral(self) -> bool:
        """Return whether every expert has an equal share of the tokens."""
        return self.exponent == 0

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        """Return a random share of tokens for each of ``experts`` experts."""
        weights = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
        return np.asarray(generator.permutation(weights / weights.sum()))


class DirichletTokens(Spec):
    """Shares of tokens of the experts, drawn from a symmetric Dirichlet distribution."""

    kind: Literal["dirichlet"]
    concentration: Annotated[float, Field(strict=False, gt=0, le=1e9)]
    """Concentration of the Dirichlet distribution; the larger, the more equal are the experts' shares."""

    @property
    def is_neutral(self) -> bool:
        """Return False, since random shares are never equal."""
        return False

    def draw(self, generator: np.random.Generator, experts: int) -> Floats:
        """Return a random share of tokens for each of ``experts`` experts."""
        return generator.dirichlet(np.full(experts, self.concentration))


Tokens = Annotated[TokenFractions | ZipfTokens | DirichletTokens, Field(discriminator="kind")]
"""A distribution of experts' shares; to add one, write a spec with ``is_neutral`` and ``draw`` and add it here."""


class ExpertImbalance(FaultSpec):
    """Fault: experts get unequal numbers of tokens.

    A token chooses its ``top_k`` experts without replacement, each as often as its share states. Where that would be
    more than one row of a token, every token visits the expert, and the others share what is left in their proportions.
    If ``top_groups`` forbids the result, the most that an expert gets is lowered until it does not. Counted fractions
    that are not possible are rejected.
    """

    EXAMPLE: ClassVar = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1}}
    NEUTRAL: ClassVar = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0}}

    kind: Literal["expert_imbalance"]
    tokens: Tokens
    """Distribution of tokens over experts; no expert gets more than one row per token (a share of 1 / top_k)."""
    per: Literal["layer", "pass"] = "layer"
    """When experts' shares of tokens are drawn: once per layer for all steps (layer), or per microbatch pass (pass)."""
    seed: Number | None = None

    @property
    def is_neutral(self) -> bool:
        return self.tokens.is_neutral

    @property
    def is_random(self) -> bool:
        return self.tokens.kind != "fractions" and not self.is_neutral

    @property
    def draws_per_pass(self) -> bool:
        return self.per == "pass"

    def expert_loads(self, tokens: RoutedTokens, ep: int) -> Floats:
        """Return the load of each rank's experts in an ep group, relative to an even share.

        The same factors multiply the bytes that each rank receives in the dispatch and sends in the combine. They sum
        to ``ep`` as long as no token is dropped. With a capacity, the load is a multiple of the smaller of capacity and
        even share. Expert e is on rank e // (experts / ep). The array is read-only and shared between calls. Raises
        InputError if ``ep`` does not divide the experts, or if there is not one fraction per expert.
        """
        experts = tokens.routes.experts
        if ep < 1 or experts < 1 or experts % ep:
            raise InputError(f"expert_imbalance: {experts} experts are not divisible by ep {ep}; set ep to a divisor")
        return _rank_loads(self, self._tokens_for_draw(tokens), ep)

    def token_copy_factors(self, tokens: RoutedTokens, blocks: Blocks) -> Floats:
        """Return the factor on the tokens sent to each rank or node of an ep group, relative to even choice.

        A block is what gets one copy of a token: a rank, or a node. Dropped tokens do not travel.
        """
        return _token_copy_factors(self, self._tokens_for_draw(tokens), blocks)

    def _tokens_for_draw(self, tokens: RoutedTokens) -> RoutedTokens:
        return tokens if self.draws_per_pass else tokens._replace(step=0, microbatch=0, group=0)

    def requested_rows_per_token(self, seed: int, routes: ExpertRouting, layer: int) -> float:
        """Return the rows per token of the most popular expert as drawn, which can exceed 1."""
        return float(_draw_shares(self, RoutedTokens(routes, seed, layer)).max()) * routes.top_k

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        moe = scenario.model.moe
        if moe is None:
            what = "the model is dense: it has no experts that could get unequal numbers of tokens"
            yield (), f"{what}; remove expert_imbalance, or use sequence_lengths for uneven attention"
            return
        if moe.pad_to_capacity:
            what = "model.moe.pad_to_capacity gives all experts equally many rows whatever the tokens choose"
            yield (), f"{what}; remove expert_imbalance or pad_to_capacity"
        if scenario.memory.offload.activations and not self.is_neutral:
            what = "activations of a rank's experts scale with their rows, but memory.offload assumes even shares"
            yield (), f"{what}; set memory.offload.activations to 0, or remove expert_imbalance"
        try:
            self.expert_loads(RoutedTokens(moe.token_routes, seed=0, layer=0), 1)
        except InputError as error:
            yield ("tokens",), str(error)


@lru_cache(maxsize=1 << 16)
def _rank_loads(fault: ExpertImbalance, tokens: RoutedTokens, ep: int) -> Floats:
    experts, capacity, shares = tokens.routes.experts, tokens.capacity, _feasible_shares(fault, tokens)
    loads = shares.reshape(ep, -1).sum(axis=1)
    found = np.asarray(loads * (ep / loads.sum()))
    if capacity < np.inf:  # of even shares
        taken = np.minimum(shares * (experts / shares.sum()), capacity) / min(capacity, 1.0)
        found = taken.reshape(ep, -1).mean(axis=1)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=1 << 12)
def _token_copy_factors(fault: ExpertImbalance, tokens: RoutedTokens, blocks: Blocks) -> Floats:
    routes, capacity = tokens.routes, tokens.capacity
    law, wanted = _joint_router_law(fault, tokens._replace(capacity=math.inf))
    taken = np.minimum(wanted, capacity)  # of even shares
    lost = 1.0 - np.divide(taken, wanted, out=np.ones_like(wanted), where=wanted > 0)
    even = np.array([routes.visit_fraction(block) for block in blocks])
    return law.block_visit_probabilities(blocks, lost) / (even * min(capacity, 1.0))


@lru_cache(maxsize=1 << 10)
def _joint_router_law(fault: ExpertImbalance, tokens: RoutedTokens) -> tuple[RoutingDistribution, Floats]:
    """Return the joint distribution of a token's experts, and each expert's rows relative to an even share."""
    routes, shares = tokens.routes, _feasible_shares(fault, tokens)
    return RoutingDistribution(routes, np.minimum(shares * routes.top_k, 1.0)), shares * routes.experts


def _draw_shares(fault: ExpertImbalance, tokens: RoutedTokens) -> Floats:
    identity = tokens[2:6] if fault.draws_per_pass else (tokens.layer,)
    return fault.tokens.draw(random_stream(tokens.seed, "experts", fault.seed, *identity), tokens.routes.experts)


def _feasible_shares(fault: ExpertImbalance, tokens: RoutedTokens) -> Floats:
    """Return each expert's share of rows as drawn, or the nearest shares that a router can produce.

    Raises InputError for counted fractions that no router can give.
    """
    routes, shares = tokens.routes, _draw_shares(fault, tokens)
    excess = _explain_impossible(shares, routes)
    if not excess:
        return shares
    if fault.tokens.kind == "fractions":
        raise InputError(f"expert_imbalance: {excess}")
    low, high = 1.0 / routes.experts, 1.0 / routes.top_k
    possible = _cap_shares(shares, high)
    if _explain_impossible(possible, routes):  # by groups: an even share is possible
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if _explain_impossible(_cap_shares(shares, middle), routes) else (middle, high)
        possible = _cap_shares(shares, low)
    return possible


def _explain_impossible(shares: Floats, routes: ExpertRouting) -> str:
    top = int(shares.argmax())
    if shares[top] * routes.top_k > _ROUNDING:
        what = f"expert {top} gets {shares[top]:.3g} of the rows, more than 1 / top_k = {1 / routes.top_k:.3g}"
        return f"{what}; a token visits {routes.top_k} different experts, so give no expert more than one row per token"
    limited = routes.top_groups < routes.groups
    needed = mean_groups_needed(shares * routes.top_k, routes) if limited else 0.0
    if needed > routes.top_groups * _ROUNDING:
        what = f"the fractions need {needed:.3g} groups of experts for each token, more than top_groups"
        return f"{what} {routes.top_groups}; use more even fractions, or raise top_groups"
    return ""


def _cap_shares(shares: Floats, most: float) -> Floats:
    full = np.zeros(len(shares), dtype=bool)
    while True:
        rest, free = max(1.0 - most * full.sum(), 0.0), float(shares[~full].sum())
        proportions = (
            np.where(full, 0.0, shares) / free if free > 0 else np.full(len(shares), 1 / max((~full).sum(), 1))
        )
        found = np.where(full, most, rest * proportions)
        over = ~full & (found > most)
        if not over.any():
            return np.asarray(found)
        full |= over
