"""The first sentences of a report: they say what the numbers of the page say, and what was played to say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_pages import other_entry, small_entry

from simcluster.base.units import format_seconds
from simcluster.show.report import Entry, page
from simcluster.show.report.summary import verdict


@pytest.fixture(scope="module")
def entry() -> Entry:
    return small_entry()


@pytest.fixture(scope="module")
def other() -> Entry:
    return other_entry()


def test_one_run_where_the_time_went_what_helps_and_whether_it_fits(entry: Entry) -> None:
    told = verdict([entry])
    assert entry.result is not None
    account = entry.account
    work = sum(account.breakdown[name] for name in ("forward", "backward", "recompute")) / account.step_time
    assert f"A step takes {format_seconds(account.step_time)}, {100 * work:.1f} % of it" in told
    assert f"Without its faults it would take {format_seconds(entry.result.without_faults or 0)}" in told
    assert "It fits: " in told
    largest = max(("bubble", "straggler_wait", "exposed_dp"), key=lambda name: account.breakdown[name])
    assert f"({100 * account.breakdown[largest] / account.step_time:.1f} %)" in told


def test_several_runs_the_difference_and_its_causes(entry: Entry, other: Entry) -> None:
    told = verdict([entry, other])
    change = other.account.step_time / entry.account.step_time - 1
    assert f"tensor parallel is {100 * abs(change):.1f} % {'slower' if change > 0 else 'faster'} than tiny" in told
    assert verdict([entry, replace(entry, name="again")]).startswith('<p class="verdict">again is as fast as tiny')
    three = verdict([entry, other, replace(other, name="small", numbers={**other.numbers, "fits": False})])
    assert "Of 3 runs " in three
    assert "small does not fit: " in three


def test_runs_side_by_side_say_what_is_likely_measured_and_what_a_gpu_holds(entry: Entry, other: Entry) -> None:
    text = page([entry, other])
    assert entry.result is not None
    assert f" of {entry.result.facts.memory / 1e9:,.1f} GB" in text
    assert ">likely</th>" in text
    assert ">measured</th>" not in text  # no scenario names one
