"""compare --price: dollars per trillion tokens of healthy steps, equal to those of a train run without failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

import simcluster
from simcluster import cli


def rows(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert cli.main(["compare", *argv, "--json", "-"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("text", "prices"), [("2.5", (2.5, 2.5)), ("2.5,4.5", (2.5, 4.5))])
def test_a_price_is_of_all_or_of_each_scenario(
    capsys: pytest.CaptureFixture[str], text: str, prices: tuple[float, float]
) -> None:
    found = rows(capsys, "tiny_3d", "tiny_dp", "--price", text)
    for name, price, row in zip(("tiny_3d", "tiny_dp"), prices, found, strict=True):
        result = simcluster.simulate(simcluster.scenario(name))
        dollars = 1e12 * result.facts.ranks * price / result.tokens_per_s / 3600
        assert row["dollars_per_1t_tokens"] == pytest.approx(dollars, rel=1e-12)
        assert any("healthy steps" in words for words in row["assumed"])


def test_variants_may_have_a_price_each(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["tiny_3d", "--vary", "cluster.device=h100,b200"]
    one, other = (row["dollars_per_1t_tokens"] for row in rows(capsys, *vary, "--price", "2,2"))
    dear = [row["dollars_per_1t_tokens"] for row in rows(capsys, *vary, "--price", "2,6")]
    assert dear == [one, pytest.approx(3 * other)]
    assert "dollars_per_1t_tokens" not in rows(capsys, *vary)[0]


def test_padding_is_paid_for_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    packed = "data={documents: {kind: lognormal, median: 600, sigma: 0.5}, packing: pad}"
    plain, padded = (
        rows(capsys, "tiny_dp", "--price", "2", *more)[0] for more in ([], ["--set", packed])
    )  # fmt: skip
    assert padded["real_token_fraction"] < 1
    assert padded["dollars_per_1t_tokens"] > plain["dollars_per_1t_tokens"]
    share = plain["tokens_per_s"] / padded["real_tokens_per_s"]
    assert padded["dollars_per_1t_tokens"] == pytest.approx(plain["dollars_per_1t_tokens"] * share)


def test_the_table_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny_3d", "tiny_dp", "--price", "2.5,4.5"]) == 0
    text = capsys.readouterr().out
    assert "$/1T tokens" in text
    assert "assumed: dollars are for healthy steps" in text


@pytest.mark.parametrize("price", ["0", "-1", "nan", "inf", "x", "1,2,3", "2.5,"])
def test_what_is_no_price_is_refused(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny_3d", "tiny_dp", f"--price={price}"]) == 2
    assert "--price" in capsys.readouterr().err


def test_a_price_that_is_set_as_a_key_is_told_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny_3d", "--set", "price=2.5"]) == 2
    told = capsys.readouterr().err
    assert "--price 2.5" in told
    assert "--run.price 2.5" in told
