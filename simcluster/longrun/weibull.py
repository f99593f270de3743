"""A Weibull law of lives by maximum likelihood: lives that are over, still going on, or watched from some age on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.base.counts import in_full
from simcluster.base.errors import InputError

_STEEPEST = 1e3
"""The largest shape that is looked for: nine of ten lives end within 0.3 % of each other."""


@dataclass(frozen=True, slots=True)
class WeibullFit:
    """A Weibull law of lives by maximum likelihood: ``shape``, ``scale`` (s), their standard errors (observed
    information), and ``gain``: by how much its log-likelihood is above the exponential's."""

    shape: float
    scale: float
    shape_error: float
    scale_error: float
    gain: float

    @property
    def mean(self) -> float:
        """Mean life, s."""
        return self.scale * math.gamma(1 + 1 / self.shape)


@dataclass(frozen=True)
class WatchedLives:
    """Lives, one an entry: watched from age ``since`` to ``age`` (s), where it ``ended`` or only the watch did.

    ``weight`` are as many alike.
    """

    age: Floats
    ended: Bools
    since: Floats
    weight: Floats

    @property
    def failures(self) -> float:
        """How many ended."""
        return float(self.weight[self.ended].sum())

    @property
    def watched(self) -> float:
        """Seconds of all of them together."""
        return float((self.weight * (self.age - self.since)).sum())

    def weibull(self) -> WeibullFit:
        """The law; InputError for fewer than two failures, or all at one age, which say nothing of a shape."""
        from scipy.optimize import brentq

        died = self.age[self.ended]
        if self.failures < 2 or not died.max() > died.min() > 0:
            raise InputError(
                f"{in_full(self.failures)} failures at {in_full(len(set(died.tolist())))} ages: no shape follows from "
                "that; give two failures or more, at different ages"
            )
        unit = float(self.age.max())
        with np.errstate(divide="ignore"):
            logs, before = np.log(self.age / unit), np.log(self.since / unit)
        mean_log = float((self.weight[self.ended] * logs[self.ended]).sum()) / self.failures

        def moments(shape: float) -> tuple[float, float, float]:
            """Sums of z, u z and u^2 z over the lives, z = age^k less since^k and u = ln age."""
            old, young = self.weight * np.exp(shape * logs), self.weight * np.exp(shape * before)
            early = np.where(np.isfinite(before), before, 0.0)
            return tuple(float((logs**n * old - early**n * young).sum()) for n in range(3))  # type: ignore[return-value]

        def slope(shape: float) -> float:
            whole, first, _ = moments(shape)
            return 1 / shape + mean_log - first / whole

        if slope(_STEEPEST) >= 0:
            raise InputError(
                f"{in_full(self.failures)} failures are at ages so alike that the shape is above {_STEEPEST:g}: "
                "give lives of different ages"
            )
        shape = float(brentq(slope, 1e-3, _STEEPEST))
        whole, first, second = moments(shape)
        log_scale = math.log(whole / self.failures) / shape  # of ages in ``unit``
        deaths = self.failures
        first, second = first - log_scale * whole, second - 2 * log_scale * first + log_scale**2 * whole
        norm = math.exp(-shape * log_scale)
        information = np.array(
            [[deaths / shape**2 + norm * second, -shape * norm * first], [-shape * norm * first, shape**2 * deaths]]
        )
        errors = np.sqrt(np.diag(np.linalg.inv(information)))
        likelihood = deaths * (math.log(shape) - shape * log_scale + (shape - 1) * mean_log - 1)
        plain = deaths * (math.log(deaths * unit / self.watched) - 1)
        scale = unit * math.exp(log_scale)
        return WeibullFit(shape, scale, float(errors[0]), float(errors[1]) * scale, likelihood - plain)
