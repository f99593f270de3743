"""What a barrier makes of chance: everybody waits for the largest of all draws.  Pure."""

from __future__ import annotations

import math

from simcluster.base.errors import InputError


def largest_lognormal(count: int, sigma: float) -> float:
    """The mean of the largest of so many lognormal factors of mean 1: what one barrier of that many ranks makes of
    draws for whole steps.  Integrated; MODELLING.md G.2.

    >>> round(largest_lognormal(1, 0.05), 12), round(largest_lognormal(64, 0.05), 4)
    (1.0, 1.1232)
    """
    from scipy.integrate import quad
    from scipy.stats import norm

    if count < 1 or not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"the largest of {count} factors of sigma {sigma}: take 1 or more, and a sigma of 0 or more")

    def density(value: float) -> float:
        logarithm = sigma * value - sigma**2 / 2 + norm.logpdf(value) + (count - 1) * norm.logcdf(value)
        return count * math.exp(logarithm)

    middle = float(norm.ppf((count - 0.375) / (count + 0.25)))
    parts = [(middle - 10, middle), (middle, middle + 10 + sigma)]
    return math.fsum(float(quad(density, low, high, limit=400, epsabs=1e-13)[0]) for low, high in parts)
