"""Failures: fits of logs give back the laws that were drawn, and entries of the catalogue what was published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.csv_tables import CsvRow, read_csv
from simcluster.documents.yaml_documents import parse_document
from simcluster.longrun.failure_catalogue import (
    GPUS_PER_NODE,
    PublishedFailures,
    published_failures,
    resolve_failure_causes,
)
from simcluster.longrun.failure_fit import fit_failures
from simcluster.longrun.part_lifetimes import ObservedLifetimes
from simcluster.scenario.run_failures import FailuresSpec
from simcluster.scenario.run_section import RunSpec

YEAR = 365.25 * 86400


def lives(
    rng: np.random.Generator, count: int, shape: float, scale: float, watch: tuple[float, float]
) -> ObservedLifetimes:
    """Drawn lives (years) of parts that are watched for the same time or less."""
    life, stop = scale * rng.weibull(shape, count), rng.uniform(*watch, count)
    return ObservedLifetimes(np.minimum(life, stop) * YEAR, life < stop, np.zeros(count), np.ones(count))


def rows_of(table: list[dict[str, object]]) -> list[CsvRow]:
    """Rows as a CSV file has them."""
    return [CsvRow(n, row, {name: str(value) for name, value in row.items()}) for n, row in enumerate(table, 1)]  # type: ignore[arg-type]


def test_drawn_lives_give_back_their_law_within_its_errors() -> None:
    """Over 60 draws the deviations are standard normal: the errors are right, too, with and without late entry."""
    rng = np.random.default_rng(1)
    deviations = []
    for late in (0.0, 0.5):
        for _ in range(30):
            life, since = 3 * rng.weibull(1.7, 1000), rng.uniform(0, late + 1e-12, 1000)
            stop = since + rng.uniform(0.5, 3, 1000)
            seen = life > since
            drawn = ObservedLifetimes(
                np.minimum(life, stop)[seen], (life < stop)[seen], since[seen], np.ones(int(seen.sum()))
            )
            fit = drawn.fit_weibull()
            deviations.append([(fit.shape - 1.7) / fit.shape_error, (fit.scale - 3) / fit.scale_error])
    found = np.array(deviations)
    assert np.abs(found.mean(axis=0)).max() < 4 / 60**0.5
    assert np.abs(found.std(axis=0) - 1).max() < 4 / 120**0.5


def test_the_gain_is_the_likelihood_that_scipy_has() -> None:
    from scipy.stats import expon, weibull_min

    drawn = lives(np.random.default_rng(2), 500, 0.7, 2.0, (0.5, 4.0))
    fit, age, ended = drawn.fit_weibull(), drawn.age, drawn.failed
    both = [
        law.logpdf(age[ended]).sum() + law.logsf(age[~ended]).sum()
        for law in (weibull_min(fit.shape, scale=fit.scale), expon(scale=drawn.observed_seconds / drawn.failure_count))
    ]
    assert fit.likelihood_gain == pytest.approx(both[0] - both[1], rel=1e-9)
    assert fit.likelihood_gain > 3.3


def test_two_batches_are_told_apart_by_their_column() -> None:
    """As Titan's GPUs: an old batch that wears out, and a new one that hardly fails; together they are neither."""
    rng = np.random.default_rng(3)
    old = lives(rng, 18_837, 2.64, 7.1, (3.0, 6.0))
    new = lives(rng, 11_370, 1.02, 0.0025 ** (-1 / 1.02), (1.0, 4.0))
    table: list[dict[str, object]] = [
        {"cause": "GPU", "age": float(age), "end": "failed" if ended else "censored", "batch": batch}
        for batch, drawn in (("old", old), ("new", new))
        for age, ended in zip(drawn.age, drawn.failed, strict=True)
    ]
    fits = fit_failures(rows_of(table), "drawn", by="batch")
    by_batch = {fit.batch: fit for fit in fits.causes}
    assert by_batch["old"].law == "weibull"
    assert by_batch["new"].law == "exponential"
    for batch, shape in (("old", 2.64), ("new", 1.02)):
        law = by_batch[batch].lives
        assert law is not None
        assert law.shape == pytest.approx(shape, abs=3 * law.shape_error)
    assert by_batch["old"].rate / by_batch["new"].rate > 10
    pooled = fits.total.lives
    assert pooled is not None
    assert abs(pooled.shape - 2.64) > 3 * pooled.shape_error
    modes = {mode["name"]: mode for mode in fits.to_failures_section()}
    assert modes["GPU, old"]["law"]["shape"] == pytest.approx(2.64, abs=0.1)
    assert 3 * 8766 <= float(modes["GPU, old"]["law"]["youngest"].split()[0]) < 3.1 * 8766
    assert "law" not in modes["GPU, new"]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Llama 3's table 5 as counts."""
    path = tmp_path / "llama3.csv"
    modes = load_presets("failures.yaml")["llama3"]["modes"]
    path.write_text("cause,of,count\n" + "".join(f"{mode['name']},{mode['of']},{mode['count']}\n" for mode in modes))
    return path


def test_llama_3_as_counts(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    total = fit_failures(read_csv(llama), "table 5", gpus=16384, days=54).total
    assert total.count == 419
    assert (round(total.low), round(total.high)) == (380, 461)
    assert 1 / total.rate / 3600 == pytest.approx(3.093, abs=5e-4)
    cli.main(
        ["failures", str(llama), "--gpus", "16384", "--days", "54", "-o", str(tmp_path / "own.yaml"), "--json", "-"]
    )
    document = json.loads(capsys.readouterr().out)
    assert document["causes"][0]["cause"] == "faulty GPU"
    assert "never seen" not in str(document["notes"])
    section = parse_document((tmp_path / "own.yaml").read_text(), source="own.yaml").data
    run = RunSpec.model_validate({"days": "54 d", **section})  # as it would be pasted
    assert sum(each.job_failure_rate(1, 1, 16384) for each in run.failures.also) == pytest.approx(total.rate, rel=1e-12)


def test_what_a_person_must_know_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = np.sort(10 * np.random.default_rng(4).random(60) ** 0.4)
    log = tmp_path / "log.csv"
    log.write_text(
        "cause,time,device\n" + "".join(f"NIC,{time * 24!r} h,host{n % 50}\n" for n, time in enumerate(times.tolist()))
    )
    log.write_text(log.read_text() + "SSD,1 h,host7\n" * 4 + "software bug,1 h,job\n" * 4)
    cli.main(["failures", str(log), "--gpus", "800", "--days", "10"])
    said = capsys.readouterr().out
    assert "NIC: came more and more often" in said
    assert "SSD: 4 of 4 on host7: defective" in said
    assert "on job" not in said
    assert "SSD, software bug: only 4 observed: the true rate is 0.27 to 2.56 times the fit (95 %)" in said
    assert "800 GPUs are assumed observed for all of 10 d" in said
    assert '{"name": "NIC", "of": "job", "count": 60, "within": "10 d", "gpus": 800' in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuase,time\nx,1 h\n", "no column 'cause'; did you mean 'cuase'"),
        ("cause,time\n,1 h\n", "row 1: has no cause"),
        ("cause,time\nx,99 d\n", "after the end of observation, day 54"),
        ("cause,time\nx,yesterday\n", "row 1: time"),
        ("cause,count\nx,-3\n", "row 1: count: '-3'"),
        ("cause,age,end\nx,1 h,maybe\n", "row 1: end: 'maybe'"),
        ("cause,age,end\n,1 h,failed\n", "row 1: has no cause"),
        ("cause,age,since\nx,1 h,2 h\n", "row 1: age: '1 h' must be more than 'since'"),
        ("cause,age\nx,\n", "row 1: age"),
        ("cause,time\n", "has no rows"),
    ],
)
def test_bad_logs_are_one_message(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError) as raised:
        fit_failures(read_csv(tmp_path / "log.csv"), "log", gpus=8, days=54)
    assert words in str(raised.value)


def test_what_was_watched_must_be_known(llama: Path) -> None:
    with pytest.raises(InputError, match="the observed time is unknown"):
        fit_failures(read_csv(llama), "log", gpus=8)
    with pytest.raises(InputError, match="no column 'batch'"):
        fit_failures(read_csv(llama), "log", gpus=8, days=1, by="batch")
    assert ObservedLifetimes(np.array([1.0]), np.array([True]), np.zeros(1), np.ones(1)).failure_count == 1
    with pytest.raises(InputError, match="do not determine a Weibull shape"):
        ObservedLifetimes(np.ones(3), np.array([True] * 3), np.zeros(3), np.ones(3)).fit_weibull()


ENTRIES = published_failures()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_what_was_published_follows_from_the_rates(entry: PublishedFailures) -> None:
    seconds, devices = entry.observed_exposure
    expected = (
        sum(cause.job_failure_rate(devices, devices / GPUS_PER_NODE, devices) for cause in entry.causes) * seconds
    )
    if "between" in entry.published:
        low, high = entry.published["between"]
        assert low < expected < high
    else:
        assert expected == pytest.approx(entry.published["count"], rel=1e-3)
    assert len(entry.source) > 30
    assert len(entry.holds) > 20
    assert resolve_failure_causes(FailuresSpec(of=entry.name)) == entry.causes


def test_rates_that_papers_print_otherwise() -> None:
    """Of other units, and other sizes: RSC-1's 1.8 h at 16,384 GPUs, Llama 3's 3.1 h, Imbue's machines a week."""
    by_name = {entry.name: entry for entry in ENTRIES}
    assert 1 / by_name["rsc-1"].job_failure_rate(16384) / 3600 == pytest.approx(1.8, abs=0.05)
    assert 1 / by_name["rsc-1"].job_failure_rate(131072) / 3600 == pytest.approx(0.23, abs=0.01)
    assert 1 / by_name["llama3"].job_failure_rate(16384) / 3600 == pytest.approx(3.093, abs=1e-3)
    assert by_name["imbue"].job_failure_rate(4088) * 7 * 86400 / 511 == pytest.approx(0.03, rel=1e-3)
    assert by_name["titan-old"].job_failure_rate(1) * 365.25 * 86400 == pytest.approx(0.0664)
    low, high = by_name["llama3"].rate_interval_factors or (0.0, 0.0)
    assert (round(419 * low), round(419 * high)) == (380, 461)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["failures", "--list", "--gpus", "16384", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["failures"]}
    assert list(rows) == [entry.name for entry in ENTRIES]
    assert rows["llama3"]["job_mtbf_s"] == pytest.approx(54 * 86400 / 419)
    assert rows["llama3"]["mtbf_s"] == pytest.approx(54 * 86400 / 419 * 16384)
    assert rows["alibaba-links"]["job_mtbf_s"] is None
    assert cli.main(["failures", "--list"]) == 0
    said = capsys.readouterr().out
    assert "a job of 1,024 GPUs" in said
    assert "49.49 h" in said
    assert all(entry.source.split(":")[0] in " ".join(said.split()) for entry in ENTRIES)
    assert cli.main(["failures"]) == 2
    assert "no log is given" in capsys.readouterr().err
