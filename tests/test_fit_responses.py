"""Rows of a fit as functions of its constants: interpolated between few points, the fit is as by simulating always."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.evidence.calibration.least_squares import FitSolution, Loss, fit_least_squares
from simcluster.evidence.validation.fitting import FitDeclaration, load_fits
from simcluster.evidence.validation.fitting_rows import ConstantValues, FitSample, RowResult, load_fit_samples
from simcluster.evidence.validation.fitting_run import run_fits
from simcluster.evidence.validation.fitting_search import (
    TOLERANCE,
    ConstantSearchResult,
    CrossValidationFold,
    RowResponses,
    search_constants,
    simulate_measured_row,
)
from simcluster.evidence.validation.study import load_study
from simcluster.evidence.validation.study_runs import validate_studies, worker_pool

Law = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Made:
    """A row whose time is a law of the constants; it counts how often it is simulated."""

    run_key: str
    law: Law
    seconds: float
    asked: list[ConstantValues]

    def simulate(self, settings: ConstantValues) -> RowResult:
        self.asked.append(settings)
        return self.law([value for _, value in settings]), None

    def current_value(self, path: str) -> float:
        return 0.5


def rows_of(laws: Sequence[Law], seconds: Sequence[float]) -> list[FitSample]:
    questions = [Made(str(place), *each, []) for place, each in enumerate(zip(laws, seconds, strict=True))]
    return [FitSample(each.run_key, "made", each, lambda _, each=each: each.seconds) for each in questions]


def fit_of(*bounds: tuple[float, float], loss: Loss = "squares", step: float = 0.01) -> FitDeclaration:
    constants = {
        f"c{place}": {"path": f"software.c{place}", "bounds": each, "unfitted": max(each) / 2, "source": "made"}
        for place, each in enumerate(bounds)
    }
    rows = [{"study": "made"}]
    return FitDeclaration.model_validate({"constants": constants, "rows": rows, "loss": loss, "step": step})


def found_of(
    fit: FitDeclaration, samples: Sequence[FitSample], folds: Sequence[CrossValidationFold] = ()
) -> tuple[ConstantSearchResult, RowResponses]:
    with worker_pool(simulate_measured_row, 1) as ask:
        responses = RowResponses(fit, samples, ask, lambda what: None)
        responses.simulate_first_points([])
        return search_constants(responses, folds), responses


def direct(fit: FitDeclaration, samples: Sequence[FitSample], start: Sequence[float]) -> FitSolution:
    """Without interpolation: every trial simulated."""
    with worker_pool(simulate_measured_row, 1) as ask:
        responses = RowResponses(fit, samples, ask, lambda what: None)
        parameters = responses.make_fit_parameters(start)
        return fit_least_squares(parameters, responses.residuals, loss=fit.loss, step=1e-5, tolerance=1e-10)


def total(work: float, other: float) -> Law:
    """A step whose products take ``work`` at the constant, beside what does not depend on it."""
    return lambda values: work / values[0] + other


def roof(work: float, memory: float, other: float) -> Law:
    """A step with a kernel that is bound by memory where products are fast: a kink."""
    return lambda values: max(work / values[0], memory) + other


def test_with_one_constant_it_is_the_natural_cubic_spline_through_the_points() -> None:
    fit, samples = fit_of((0.3, 1.0)), rows_of([total(1.0, 0.2), roof(1.0, 1.75, 0.1)], [1.0, 2.0])
    with worker_pool(simulate_measured_row, 1) as ask:
        responses = RowResponses(fit, samples, ask, lambda what: None)
        responses.simulate_first_points([(0.35,), (0.62,)])
        known = sorted(responses._known)
        spline = CubicSpline(
            np.log(np.array(known)[:, 0]), [responses.residuals(each) for each in known], bc_type="natural"
        )
        assert len(known) > 2
        for value in [*np.linspace(known[0][0], known[-1][0], 31), *(each[0] for each in known)]:
            assert responses.interpolate_residuals([value]) == pytest.approx(spline(np.log(value)), abs=1e-9)


@pytest.mark.parametrize("loss", ["squares", "absolute"])
def test_one_constant_as_if_every_trial_was_simulated(loss: Loss) -> None:
    laws = [total(1.0, 0.2), total(2.0, 0.1), roof(1.0, 1.75, 0.1), total(0.3, 1.0)]
    seconds = [1.0 / 0.6 + 0.21, 2.0 / 0.58 + 0.1, 1.0 / 0.56 + 0.1, 0.3 / 0.63 + 1.02]  # no constant makes all true
    fit, samples = fit_of((0.3, 1.0), loss=loss), rows_of(laws, seconds)
    found, responses = found_of(fit, samples)
    exact = direct(fit, samples, (0.6,))
    assert found.converged
    assert found.error <= TOLERANCE
    assert found.solution.values == pytest.approx(exact.values, rel=3e-4)
    assert found.solution.errors == pytest.approx(exact.errors, rel=0.05)
    assert responses.residuals(found.solution.values) == pytest.approx(exact.residuals, abs=3e-4)
    assert responses.num_points < 15


@given(st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_three_constants_as_if_every_trial_was_simulated(seed: int) -> None:
    """Times that are sums of three parts, measured 3 % off."""
    chance = np.random.default_rng(seed)
    shares = chance.uniform(0.1, 1.0, (12, 3))
    true = (0.6, 4e-5, 0.1)

    def law(share: Any) -> Law:
        return lambda values: share[0] / values[0] + share[1] * values[1] / 4e-5 + share[2] * (1 + values[2])

    laws = [law(share) for share in shares]
    seconds = [each(true) * math.exp(0.03 * chance.normal()) for each in laws]
    fit, samples = fit_of((0.3, 1.0), (1e-6, 1e-3), (0.0, 2.0)), rows_of(laws, seconds)
    found, _ = found_of(fit, samples)
    exact = direct(fit, samples, true)
    assert found.converged
    assert found.error <= TOLERANCE
    spreads = [spread or 1.0 for spread in exact.errors]
    for value, wanted, spread in zip(found.solution.values, exact.values, spreads, strict=True):
        assert abs(value - wanted) < 0.2 * spread + 1e-3 * wanted


def test_folds_as_if_every_trial_was_simulated() -> None:
    laws = [total(1.0 + 0.1 * place, 0.3) for place in range(6)]
    seconds = [law([0.5 + 0.04 * place]) for place, law in enumerate(laws)]
    fit, samples = fit_of((0.3, 1.0)), rows_of(laws, seconds)
    every = tuple(range(6))
    folds = [
        CrossValidationFold("model", str(out), out, tuple(set(every) - set(out))) for out in ((0, 1), (2,), (3, 4, 5))
    ]
    found, responses = found_of(fit, samples, folds)
    assert found.fold_error is not None  # (3, 4, 5) left out leads 5 % away
    assert found.fold_error <= TOLERANCE
    for fold, values in zip(folds, found.folds, strict=True):
        left = [samples[place] for place in fold.remaining_rows]
        exact = direct(fit, left, (0.6,)).values
        assert values == pytest.approx(exact, rel=1e-3)
        truth = np.array([math.log(laws[place](exact) / seconds[place]) for place in every])
        assert responses.interpolate_residuals(values) == pytest.approx(truth, abs=TOLERANCE)


def test_what_is_said_of_the_interpolation_is_what_a_simulation_finds() -> None:
    """Of the worst row, before the point belongs to it; afterwards it is exact there."""
    laws = [roof(1.0, 1.6, 0.1), total(1.0, 1.0)]
    samples = rows_of(laws, [2.0, 2.0])
    with worker_pool(simulate_measured_row, 1) as ask:
        responses = RowResponses(fit_of((0.3, 1.0)), samples, ask, lambda what: None)
        responses.simulate_first_points([])
        guess = np.exp(responses.interpolate_residuals((0.62,))) * 2.0
        off = max(abs(guess[place] / law([0.62]) - 1.0) for place, law in enumerate(laws))
        assert off > 1e-3
        assert responses.add_point((0.62,)) == pytest.approx(off)
        assert np.exp(responses.interpolate_residuals((0.62,))) * 2.0 == pytest.approx([law([0.62]) for law in laws])


def test_rows_that_are_played_alike_are_played_once_a_point() -> None:
    asked: list[ConstantValues] = []
    law = total(1.0, 0.3)
    samples = [FitSample(str(place), "made", Made("one", law, 0.0, asked), lambda _, slower=slower: law([0.6]) * slower)
               for place, slower in enumerate((0.98, 1.0, 1.02))]  # fmt: skip
    found, responses = found_of(fit_of((0.3, 1.0)), samples)
    assert responses.num_distinct_rows == 1
    assert len(asked) == responses.num_points
    assert len(set(asked)) == len(asked)
    assert [
        round(predicted / measured, 3) for predicted, measured in responses.simulate_point(found.solution.values)
    ] == [pytest.approx(1 / slower, abs=2e-3) for slower in (0.98, 1.0, 1.02)]


def test_a_constant_that_no_row_feels_has_no_standard_error() -> None:
    samples = rows_of([total(1.0 + place, 0.2) for place in range(4)], [2.0, 3.5, 5.1, 6.9])
    found, _ = found_of(fit_of((0.3, 1.0), (1e-6, 1e-3)), samples)
    known, unknown = found.solution.errors
    assert known is not None
    assert unknown is None


def test_rows_that_jump_are_said_not_to_converge() -> None:
    """No point is near enough to another, where a time is rough at every scale."""

    def rough(values: Sequence[float]) -> float:
        return 1.0 / values[0] * (1.0 + 0.02 * math.sin(1e7 * values[0]))

    found, _ = found_of(fit_of((0.3, 1.0)), rows_of([rough, total(1.0, 0.1)], [1.7, 1.9]))
    assert not found.converged
    assert found.error > TOLERANCE


STUDY = """kind: steps
name: made
source: made
original: nowhere
table:
  header: [batch, seconds]
  rows: [[1, 0.01], [1, 0.0102], [2, 0.02]]
scenario: tiny_dp
columns: {batch: training.micro_batch}
measured: {column: seconds, quantity: step_time, unit: s}
"""
FITS = """fits:
  made:
    constants:
      power: {path: cluster.device.matmul.power, bounds: [0.2, 1.0], unfitted: 0.9, source: made}
MORE    rows: [{study: STUDY}]
"""


def made(tmp_path: Path, study: str = STUDY, more: str = "") -> Path:
    (tmp_path / "made.yaml").write_text(study)
    path = tmp_path / "fits.yaml"
    path.write_text(FITS.replace("STUDY", str(tmp_path / "made.yaml")).replace("MORE", more))
    return path


def test_a_part_of_a_step_is_what_its_study_predicts(tmp_path: Path) -> None:
    """One layer, a step less a smaller one: as ``validate`` has it, to the bit."""
    (report,) = validate_studies([load_study("korthikanti_table4")])
    path = tmp_path / "fits.yaml"
    path.write_text(FITS.replace("STUDY", "korthikanti_table4").replace("MORE", ""))
    samples = load_fit_samples(load_fits(path), "made", None)
    assert isinstance(samples, list)
    assert len(samples) == 5
    for sample, point in zip(samples, report.points, strict=True):
        answer = sample.run.simulate(())
        assert sample.predicted_and_measured(answer) == (point.predicted, point.measured)


def test_the_command_says_what_was_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--file", str(made(tmp_path))]) == 0
    told = capsys.readouterr().out
    (outcome,) = run_fits(load_fits(tmp_path / "fits.yaml"), ["made"])
    played = outcome.effort
    assert (len(outcome.rows), played.rows) == (3, 2)  # the same step was measured twice
    assert f"simulated at {played.points} points, interpolated in between: largest error {played.error:.3%}" in told
    assert played.error <= TOLERANCE
    assert "NOT converged" not in told


def test_a_part_that_takes_no_time_is_refused(tmp_path: Path) -> None:
    study = STUDY.replace("unit: s}", "unit: s, less: {training.micro_batch: 1}}")
    with pytest.raises(InputError, match="it must be above zero") as caught:
        run_fits(load_fits(made(tmp_path, study)), ["made"])
    assert "fits.yaml" in str(caught.value)


def test_fewer_rows_than_constants_are_refused(tmp_path: Path) -> None:
    more = "".join(
        f"      {name}: {{path: cluster.device.{name}, bounds: [1 us, 2 us], unfitted: 1 us, source: made}}\n"
        for name in ("launch", "memory_half_size", "by_row")
    )
    with pytest.raises(InputError, match="4 constants cannot be fitted to 3 rows"):
        run_fits(load_fits(made(tmp_path, STUDY, more)), ["made"])
