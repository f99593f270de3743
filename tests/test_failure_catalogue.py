"""The catalogue of failures: what each source prints follows from the entry's rates, and the list says so."""

from __future__ import annotations

import json

import pytest

from simcluster import cli
from simcluster.longrun.catalogue import GPUS_A_MACHINE, WatchedFailures, failures_of, watched_failures
from simcluster.scenario.run_failures import FailuresSpec

ENTRIES = watched_failures()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_what_was_published_follows_from_the_rates(entry: WatchedFailures) -> None:
    seconds, devices = entry.counted
    expected = sum(cause.rate(devices, devices / GPUS_A_MACHINE, devices) for cause in entry.causes) * seconds
    if "between" in entry.published:
        low, high = entry.published["between"]
        assert low < expected < high
    else:
        assert expected == pytest.approx(entry.published["count"], rel=1e-3)
    assert len(entry.source) > 30
    assert len(entry.holds) > 20
    assert failures_of(FailuresSpec(of=entry.name)) == entry.causes


def test_rates_that_papers_print_otherwise() -> None:
    """Of other units, and other sizes: RSC-1's 1.8 h at 16,384 GPUs, Llama 3's 3.1 h, Imbue's machines a week."""
    by_name = {entry.name: entry for entry in ENTRIES}
    assert 1 / by_name["rsc-1"].rate(16384) / 3600 == pytest.approx(1.8, abs=0.05)
    assert 1 / by_name["rsc-1"].rate(131072) / 3600 == pytest.approx(0.23, abs=0.01)
    assert 1 / by_name["llama3"].rate(16384) / 3600 == pytest.approx(3.093, abs=1e-3)
    assert by_name["imbue"].rate(4088) * 7 * 86400 / 511 == pytest.approx(0.03, rel=1e-3)
    assert by_name["titan-old"].rate(1) * 365.25 * 86400 == pytest.approx(0.0664)
    low, high = by_name["llama3"].interval or (0.0, 0.0)
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
    assert "which log?" in capsys.readouterr().err
