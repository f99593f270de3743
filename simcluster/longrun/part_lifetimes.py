"""Weibull lifetimes of parts: sampling, maximum-likelihood fits, and rules for retiring a defective node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, assert_never

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.base.counts import format_full_number
from simcluster.base.errors import InputError
from simcluster.scenario.run_times import WeibullTime

_AGES, _GRID = 64, 4096


@dataclass(frozen=True)
class PartLifetimes:
    """Weibull lifetimes (s) of ``count`` parts with uniformly distributed initial ages, ``youngest`` to ``oldest``."""

    count: int
    law: WeibullTime
    youngest: float = 0.0
    oldest: float = 0.0

    @cached_property
    def hazard_table(self) -> tuple[Floats, Floats]:
        """Table of times (s) since the run's start and a random initial part's cumulative hazard at each time."""
        ages = self.youngest + (self.oldest - self.youngest) * (np.arange(_AGES) + 0.5) / _AGES
        scale, shape = self.law.scale, self.law.shape
        ages = np.unique(ages)
        at = scale * np.concatenate([[0.0], np.logspace(-12, 2, _GRID)])
        left = np.exp(-(((ages[:, None] + at) / scale) ** shape) + (ages[:, None] / scale) ** shape).mean(axis=0)
        kept = left > 0
        return at[kept], -np.log(left[kept])

    def next_failure_time(self, since: Floats, failed: int, unit: Floats) -> Floats:
        """Return the exposed seconds until the next initial part fails; infinity if every one has failed.

        From order statistics drawn one by one: ``failed`` of them have ended before ``since``; ``unit`` are exponential
        numbers of mean 1.
        """
        left = self.count - failed
        if not left:
            return np.full(unit.shape, np.inf)
        if self.youngest == self.oldest:  # in closed form
            scale, shape, age = self.law.scale, self.law.shape, self.youngest
            return scale * (((age + since) / scale) ** shape + unit / left) ** (1 / shape) - age
        at, known = self.hazard_table
        return np.interp(np.interp(since, at, known) + unit / left, known, at)


_STEEPEST = 1e3
"""Largest Weibull shape that is searched: nine of ten lifetimes end within 0.3 % of each other."""


@dataclass(frozen=True, slots=True)
class WeibullFit:
    """Weibull distribution fitted to lifetimes by maximum likelihood: shape, scale (s), and standard errors.

    The errors are from the observed information; ``likelihood_gain`` is its log-likelihood minus the exponential's.
    """

    shape: float
    scale: float
    shape_error: float
    scale_error: float
    likelihood_gain: float

    @property
    def mean(self) -> float:
        """Mean lifetime (s)."""
        return self.scale * math.gamma(1 + 1 / self.shape)


@dataclass(frozen=True)
class ObservedLifetimes:
    """Observed part lifetimes: age (s) at the start and end of observation, failed or censored, and weight."""

    age: Floats
    failed: Bools
    since: Floats
    weight: Floats

    @property
    def failure_count(self) -> float:
        """Number of observed lifetimes that ended in a failure."""
        return float(self.weight[self.failed].sum())

    @property
    def observed_seconds(self) -> float:
        """Total observed time (s)."""
        return float((self.weight * (self.age - self.since)).sum())

    def fit_weibull(self) -> WeibullFit:
        """Fit a Weibull distribution; raise InputError for fewer than two failures or for equal ages."""
        from scipy.optimize import brentq

        died = self.age[self.failed]
        if self.failure_count < 2 or not died.max() > died.min() > 0:
            raise InputError(
                f"{format_full_number(self.failure_count)} failures at {format_full_number(len(set(died.tolist())))} "
                "ages do not determine a Weibull shape; give two failures or more, at different ages"
            )
        unit = float(self.age.max())
        with np.errstate(divide="ignore"):
            logs, before = np.log(self.age / unit), np.log(self.since / unit)
        mean_log = float((self.weight[self.failed] * logs[self.failed]).sum()) / self.failure_count

        def weighted_moments(shape: float) -> tuple[float, float, float]:
            """Return sums of z, u z and u^2 z over lifetimes: z = age^shape - since^shape, u = ln age."""
            old, young = self.weight * np.exp(shape * logs), self.weight * np.exp(shape * before)
            early = np.where(np.isfinite(before), before, 0.0)
            return tuple(float((logs**n * old - early**n * young).sum()) for n in range(3))  # type: ignore[return-value]

        def log_likelihood_slope(shape: float) -> float:
            whole, first, _ = weighted_moments(shape)
            return 1 / shape + mean_log - first / whole

        if log_likelihood_slope(_STEEPEST) >= 0:
            raise InputError(
                f"{format_full_number(self.failure_count)} failures are at ages so close that the shape is "
                f"above {_STEEPEST:g}: give lifetimes of different lengths"
            )
        shape = float(brentq(log_likelihood_slope, 1e-3, _STEEPEST))
        whole, first, second = weighted_moments(shape)
        log_scale = math.log(whole / self.failure_count) / shape  # of ages in ``unit``
        deaths = self.failure_count
        first, second = first - log_scale * whole, second - 2 * log_scale * first + log_scale**2 * whole
        norm = math.exp(-shape * log_scale)
        information = np.array(
            [[deaths / shape**2 + norm * second, -shape * norm * first], [-shape * norm * first, shape**2 * deaths]]
        )
        errors = np.sqrt(np.diag(np.linalg.inv(information)))
        likelihood = deaths * (math.log(shape) - shape * log_scale + (shape - 1) * mean_log - 1)
        plain = deaths * (math.log(deaths * unit / self.observed_seconds) - 1)
        scale = unit * math.exp(log_scale)
        return WeibullFit(shape, scale, float(errors[0]), float(errors[1]) * scale, likelihood - plain)


_REMEMBERED = {"window": 1, "fading": 8}
"""Least number of past failures of a node that a rule considers; more if its limit is higher."""


def should_retire_node(
    failures: Sequence[float], rule: Literal["window", "fading"], limit: float, window: float
) -> bool:
    """Return whether to retire a node that failed at these times (s), the last of which is now.

    By "window" it has reached the limit with the failures within the last ``window`` seconds, by "fading" with a score
    of 1 for this failure and less for earlier ones, halved per window.
    """
    ages = failures[-1] - np.array(failures[: -1 - max(_REMEMBERED[rule], math.ceil(limit)) : -1])
    match rule:
        case "window":
            return bool((ages <= window).sum() >= limit)
        case "fading":
            return bool((0.5 ** (ages / window)).sum() >= limit)
        case _:
            assert_never(rule)
