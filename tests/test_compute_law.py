"""The law of loss over compute alone: exact rows give their constants back, few rows say what they cannot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.documents.csv_tables import CsvRow
from simcluster.longrun.budget.loss_fit import ComputeLaw, fit_compute_law


def rows(compute: list[float], loss: list[float]) -> list[CsvRow]:
    table = zip(compute, loss, strict=True)
    return [
        CsvRow(number, {"compute": flops, "loss": nats}, {"compute": repr(flops), "loss": repr(nats)})
        for number, (flops, nats) in enumerate(table, 1)
    ]


def fitted(limit: float, a: float, alpha: float, count: int) -> ComputeLaw:
    flops = np.logspace(18, 22, count)
    return fit_compute_law(rows(flops.tolist(), (limit + a * flops**-alpha).tolist()), "rows.csv")


@settings(max_examples=12)
@given(st.floats(0.5, 2.5), st.floats(0.05, 0.3), st.floats(0.3, 3.0), st.integers(3, 9))
def test_rows_of_a_law_give_it_back(limit: float, alpha: float, above: float, count: int) -> None:
    """``above``: nats above the limit at 1e20 FLOP."""
    a = above * 1e20**alpha
    law = fitted(limit, a, alpha, count)
    assert (law.L_inf, law.a, law.alpha) == pytest.approx((limit, a, alpha), rel=1e-4)
    assert law.worst < 1e-6
    assert law.compute_to_loss(law.loss(3e21)) == pytest.approx(3e21, rel=1e-6)
    assert law.compute_to_loss(0.999 * law.L_inf) is None
    assert bool(law.errors) == (count > 3)


def test_two_rows_are_a_plain_power_law() -> None:
    law = fit_compute_law(rows([1e20, 1e22], [3.0, 2.5]), "rows.csv")
    assert law.L_inf == 0.0
    assert law.alpha == pytest.approx(np.log(3.0 / 2.5) / np.log(100), rel=1e-9)
    assert law.extrapolation_factor(1e24) == pytest.approx(100)


def test_errors_are_those_of_draws() -> None:
    """A standard error is the spread of the constant over runs with noise of their own."""
    flops, random = np.logspace(18, 22, 12), np.random.default_rng(1)
    exact = 1.7 + 120 * flops**-0.12
    laws = [
        fit_compute_law(rows(flops.tolist(), (exact * np.exp(5e-4 * random.standard_normal(12))).tolist()), "rows.csv")
        for _ in range(25)
    ]
    for name in ("L_inf", "alpha"):
        spread = np.std([getattr(law, name) for law in laws], ddof=1)
        assert spread == pytest.approx(np.mean([law.errors[name] for law in laws]), rel=0.5)


@pytest.mark.parametrize(
    ("compute", "loss", "words"),
    [
        ([1e20], [3.0], "two or more runs"),
        ([1e20, 1e20], [3.0, 2.9], "two or more runs of different compute"),
        ([1e20, 1e22], [2.5, 3.0], "do not fall with compute"),
        ([1e20, -1.0], [2.5, 2.0], "not a positive number"),
    ],
)
def test_rows_that_are_no_law(compute: list[float], loss: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_compute_law(rows(compute, loss), "rows.csv")


def test_the_command_fits_compute_and_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("compute,loss\n" + "".join(f"{c!r},{1.69 + 120 * c**-0.12!r}\n" for c in (1e18, 1e19, 1e20, 1e22)))
    asked = ["scaling", "--fit", str(path), "--compute", "1e24", "--loss", "1.5"]
    assert cli.main([*asked, "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fit"]["L_inf"] == pytest.approx(1.69, rel=1e-4)
    assert said["budget"]["loss"] == pytest.approx(1.69 + 120 * 1e24**-0.12, rel=1e-4)
    assert said["to_loss"]["flops"] is None
    assert cli.main(asked) == 0
    text = capsys.readouterr().out
    assert "never: no compute gets below 1.69" in text
    assert "extrapolated: C x 100 beyond the runs" in text
    assert cli.main(["scaling", "--fit", str(path), "--gpus", "8", "--days", "3"]) == 2
    assert "gives no model size" in capsys.readouterr().err
