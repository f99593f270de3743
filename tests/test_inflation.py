"""The largest of N factors in closed form, and what a step makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import Tiny
from long_run_forms import largest_normal

from simcluster.base.errors import InputError
from simcluster.studies.whatif.sensitivities import barrier_inflation, inflation, largest_lognormal


def test_one_factor_has_mean_one() -> None:
    for sigma in (0.0, 0.03, 1.0):
        assert largest_lognormal(1, sigma) == pytest.approx(1.0, rel=1e-10)
    assert largest_lognormal(131_072, 0.0) == pytest.approx(1.0, rel=1e-10)


def test_the_larger_of_two() -> None:
    """E max(X, Y) = 2 Phi(sigma / sqrt 2) for lognormal factors of mean 1."""
    for sigma in (0.05, 0.5, 2.0):
        assert largest_lognormal(2, sigma) == pytest.approx(1 + math.erf(sigma / 2), rel=1e-9)


@pytest.mark.parametrize("count", [8, 1024, 131_072, 1_048_576])
def test_small_sigma_is_the_normal_law(count: int) -> None:
    assert (largest_lognormal(count, 1e-5) - 1) / 1e-5 == pytest.approx(largest_normal(count), rel=1e-3)


def test_it_is_what_draws_give() -> None:
    factors = np.exp(np.random.default_rng(1).normal(0, 0.3, (40_000, 16)) - 0.045)
    assert largest_lognormal(16, 0.3) == pytest.approx(factors.max(axis=1).mean(), rel=3e-3)


def test_a_step_of_one_barrier_is_the_closed_form(tiny: Tiny) -> None:
    """Replicas that meet once, at the end of a step with one draw each: what computes is inflated as the law says."""
    flat = {"topology": "flat", "gpus": 8}
    scenario = tiny(gpus=8, cluster=flat, parallel={"dp": 8, "zero": 0}, training={"global_batch": 64})
    table = inflation({"dp": scenario}, [0.0, 0.2], per="step", replicas=300)
    assert table["inflation"][0] == 1.0
    computing = (table["inflation"][1] - 1) / (table["barrier"][1] - 1)
    assert 0.5 < computing <= 1 + 3 * table["interval"][1] / (table["barrier"][1] - 1)


def test_speeds_that_last_are_one_barrier_of_their_inverse(tiny: Tiny) -> None:
    """Ranks that differ for ever and meet at the end of a step: at most 1 / speed of the slowest."""
    flat = {"topology": "flat", "gpus": 8}
    scenario = tiny(gpus=8, cluster=flat, parallel={"dp": 8, "zero": 0}, training={"global_batch": 64})
    table = inflation({"dp": scenario}, [0.2], per="gpu", replicas=300)
    assert (
        table["barrier"][0]
        == barrier_inflation(8, 0.2, "gpu")
        == pytest.approx(math.exp(0.04) * largest_lognormal(8, 0.2))
    )
    computing = (table["inflation"][0] - 1) / (table["barrier"][0] - 1)
    assert 0.5 < computing <= 1 + 3 * table["interval"][0] / (table["barrier"][0] - 1)


def test_the_inverse_of_one_speed_is_longer_than_its_mean() -> None:
    """E[1 / X] = exp(sigma^2) of a lognormal X with mean 1."""
    assert barrier_inflation(1, 0.3, "gpu") == pytest.approx(math.exp(0.09), rel=1e-10)
    assert barrier_inflation(1, 0.3) == pytest.approx(1.0, rel=1e-10)


def test_what_does_not_draw_is_refused(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="per 'layer' is not a unit of random draws; use gpu, kernel, pass, step"):
        inflation({"it": tiny()}, [0.1], per="layer")  # type: ignore[arg-type]


def test_no_ranks_have_no_largest() -> None:
    with pytest.raises(InputError, match=r"count must be at least 1.*; got 0"):
        largest_lognormal(0, 0.1)
