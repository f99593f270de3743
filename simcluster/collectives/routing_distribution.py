"""Probability that a token is routed to any of some experts, when experts have unequal loads.

A token visits ``top_k`` different experts of at most ``top_groups`` groups. How often it visits each expert is given;
what is not given is as balanced routing has it: groups are open independently of each other, and so are experts in open
groups, but for the numbers of both (conditional Poisson sampling; Tille, Sampling Algorithms, 2006, chapter 5). Equal
shares make every choice equally likely, so that a block is visited as ``ExpertRouting`` counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.collectives.token_relay import ExpertRouting

_CLOSE, _MOST = 1e-6, 40  # of the given frequencies, and how often they are approached
_NEARLY = 1.0 - 1e-6  # so that every choice that the groups allow has a chance
_SELDOM = 1e-12  # a group that no token visits is open where others do not make up the number
_LOG_ODDS = 30.0
_DAMPED = 0.6  # of a step, where two choices that exclude each other are corrected for each other


class RoutingDistribution:
    """Distribution of a token's ``top_k`` experts in which expert e is chosen with probability ``visits[e]``.

    Each is 0 to 1, their sum top_k. These must be possible: ``mean_groups_needed`` is at most ``top_groups``.
    """

    def __init__(self, routes: ExpertRouting, visits: Floats) -> None:
        self._visits = visits
        limited = routes.top_groups < routes.groups
        groups = (
            routes.groups if limited else _largest_divisor_up_to_root(routes.experts)
        )  # all open: any parts give the same, these soon
        self._top_k, self._limited = routes.top_k, limited
        self._counted = routes.top_groups if limited else 0  # of open groups, whose number counts where it is limited
        shares = visits.reshape(groups, -1)
        often = _group_open_probabilities(shares, routes) if limited else np.ones(groups)
        inside = np.divide(shares, often[:, None], out=np.zeros_like(shares), where=often[:, None] > 0)
        if limited:  # that a group is open, or an expert of it visited, is certain only where each token visits one
            often = np.where((shares >= 1.0).any(axis=1), 1.0, np.minimum(often, _NEARLY))
        inside = np.where(shares >= 1.0, 1.0, np.minimum(inside, _NEARLY))
        self._groups, self._experts = self._fit_probabilities(often, inside)

    def block_visit_probabilities(self, blocks: Sequence[Iterable[int]], lost: Floats | float = 0.0) -> Floats:
        """Return the probability that a token reaches each block; a fraction ``lost`` of each expert's tokens fails.

        Where the law is not found to the last (shares that leave it hardly a choice), at least as often as the fullest
        expert, and at most as often as all of them.
        """
        left = np.zeros((len(blocks), self._experts.size))
        for block, row in zip(blocks, left, strict=True):
            row[list(block)] = 1.0
        kept = self._experts * (1.0 - left * (1.0 - lost)).reshape(-1, *self._experts.shape)
        whole = self._joint_probabilities(self._visit_count_probabilities(self._experts[None]))
        missed = self._joint_probabilities(self._visit_count_probabilities(kept))
        found = 1.0 - missed[:, self._counted, self._top_k] / whole[:, self._counted, self._top_k]
        each = left * self._visits * (1.0 - lost)
        return np.asarray(np.clip(found, each.max(axis=1), np.minimum(each.sum(axis=1), 1.0)))

    def _fit_probabilities(self, group_targets: Floats, expert_targets: Floats) -> tuple[Floats, Floats]:
        """Fit the Bernoulli parameters of groups and of experts that give these choice frequencies.

        Groups are open as ``group_targets``, and an expert of an open group is visited as often as ``expert_targets``.
        """
        groups, experts, last = group_targets, expert_targets, np.inf
        for _ in range(_MOST):
            self._groups, self._experts = groups, experts
            found, there = self._marginal_probabilities()
            far = max(float(abs(found - group_targets).max()), float(abs(there - expert_targets).max()))
            if far < _CLOSE:
                break
            step = 1.0 if far < last / 2 else _DAMPED
            groups = _adjust_log_odds(groups, group_targets, found, step)
            experts = _adjust_log_odds(experts, expert_targets, there, step)
            last = far
        return groups, experts

    def _marginal_probabilities(self) -> tuple[Floats, Floats]:
        """Return the probability that each group is open (allowed), and of each expert given an open group."""
        groups, own = self._experts.shape
        whole = self._visit_count_probabilities(self._experts[None])
        # of all other groups; their number of open ones and of visits
        others = self._joint_probabilities(np.repeat(whole, groups, axis=0), absent=np.eye(groups, dtype=bool))
        rest = others[:, self._counted - self._limited, ::-1]  # visits that are left for this group
        open_ways = (whole[0] * rest).sum(axis=1)
        shut_ways = others[:, self._counted, self._top_k] if self._limited else np.zeros(groups)
        weight, closed = self._groups * open_ways, (1.0 - self._groups) * shut_ways
        found = np.divide(weight, weight + closed, out=np.zeros(groups), where=weight + closed > 0)
        # [expert left out, group, visits]
        without = self._visit_count_probabilities(self._experts * (1.0 - np.eye(own))[:, None])
        missed = (without * rest).sum(axis=2).T
        ways = open_ways[:, None]
        there = 1.0 - np.divide(missed, ways, out=np.zeros_like(missed), where=ways > 0)
        return found, np.where(self._experts > 0, there, 0.0)

    def _visit_count_probabilities(self, chosen: Floats) -> Floats:
        """Return for each group the probability that 0, 1, ... top_k of its experts are chosen, if the group is open.

        ``chosen`` [case, group, expert] is the chance that an expert is visited and counts; that it is not visited does
        not change.
        """
        found = np.zeros((*chosen.shape[:2], self._top_k + 1))
        found[..., 0] = 1.0
        for expert in range(chosen.shape[2]):
            more = found * (1.0 - self._experts[:, expert, None])
            more[..., 1:] += found[..., :-1] * chosen[..., expert, None]
            found = more
        return found

    def _joint_probabilities(self, polynomials: Floats, absent: Bools | None = None) -> Floats:
        """Return the probability of each pair (number of open groups, number of chosen experts), for every case.

        Groups that are ``absent`` [case, group] do not count.
        """
        cases = len(polynomials)
        found = np.zeros((cases, self._counted + 1, self._top_k + 1))
        found[:, 0, 0] = 1.0
        for group, often in enumerate(self._groups.tolist()):
            more = found * (1.0 - often)
            own = often * polynomials[:, None, group]
            for visits in range(self._top_k + 1):
                before = found[:, : self._counted + 1 - self._limited, : self._top_k + 1 - visits]
                more[:, self._limited :, visits:] += before * own[..., visits, None]
            found = more if absent is None else np.where(absent[:, group, None, None], found, more)
        return found


def mean_groups_needed(visits: Floats, routes: ExpertRouting) -> float:
    """Return the lowest mean number of expert groups per token that allows these expert probabilities."""
    return float(_min_open_probabilities(visits.reshape(routes.groups, -1), routes).sum())


def _min_open_probabilities(shares: Floats, routes: ExpertRouting) -> Floats:
    """Return the lowest probability of being open (usable by a token) that each expert group can have."""
    most = min(shares.shape[1], routes.top_k)
    return np.asarray(np.maximum(shares.max(axis=1), shares.sum(axis=1) / most))


def _group_open_probabilities(shares: Floats, routes: ExpertRouting) -> Floats:
    """Return the probability that a token may use each expert group: proportional to its load, within limits."""
    least, visits = np.minimum(_min_open_probabilities(shares, routes), 1.0), np.maximum(shares.sum(axis=1), _SELDOM)
    low, high = 0.0, 1.0
    while np.maximum(least, np.minimum(high * visits, 1.0)).sum() < routes.top_groups and high < 1e300:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        enough = np.maximum(least, np.minimum(middle * visits, 1.0)).sum() >= routes.top_groups
        low, high = (low, middle) if enough else (middle, high)
    return np.asarray(np.maximum(least, np.minimum(high * visits, 1.0)))


def _adjust_log_odds(odds_of: Floats, wanted: Floats, found: Floats, step: float) -> Floats:
    free = (odds_of > 0) & (odds_of < 1) & (wanted > 0) & (wanted < 1) & (found > 0) & (found < 1)
    before, mine, theirs = (np.where(free, each, 0.5) for each in (odds_of, wanted, found))
    missed = np.log(mine / (1 - mine)) - np.log(theirs / (1 - theirs))
    odds = np.log(before / (1 - before)) + step * missed
    return np.where(free, 1.0 / (1.0 + np.exp(-np.clip(odds, -_LOG_ODDS, _LOG_ODDS))), odds_of)


def _largest_divisor_up_to_root(experts: int) -> int:
    return max(part for part in range(1, experts + 1) if experts % part == 0 and part * part <= experts)
