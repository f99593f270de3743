"""What the page says of runs and spans: the verdict, ways of calls, who is late, ends of messages, equal ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_scenario
from report_pages import other_entry, small_entry

from simcluster.base.units import format_seconds
from simcluster.interactive.report import ReportEntry, report_page
from simcluster.interactive.report.packing import BinaryColumns, pack_timeline
from simcluster.interactive.report.rows import describe_slow_ranks, describe_spans, make_rank_rows
from simcluster.interactive.report.summary import verdict_html
from simcluster.results.result import Result
from simcluster.step.simulate import simulate
from simcluster.traffic.nccl.tuner_query import bus_factor


@pytest.fixture(scope="module")
def entry() -> ReportEntry:
    return small_entry()


@pytest.fixture(scope="module")
def folded() -> Result:
    """Eight ranks of which two are played: tp 2, pp 2, dp 2."""
    found = simulate(
        tiny_scenario(
            cluster={"topology": "flat", "gpus": 8}, parallel={"tp": 2, "pp": 2, "dp": 2}, training={"global_batch": 8}
        )
    )
    assert len(found.weights) == 2
    return found


def test_the_ends_of_a_message_are_at_the_same_time(entry: ReportEntry) -> None:
    assert entry.result is not None
    facts, spans = entry.span_descriptions, entry.result.spans
    sent = np.flatnonzero(spans.kind == spans.word_code("send"))
    received = facts.partner_span[sent]
    assert len(sent) > 8
    assert (spans.kind[received] == spans.word_code("recv")).all()
    assert (facts.partner_span[received] == sent).all()
    for name in ("start", "end", "microbatch", "bytes"):
        assert (getattr(spans, name)[sent] == getattr(spans, name)[received]).all(), name
    assert (abs(spans.stage[sent] - spans.stage[received]) == 1).all()


def test_who_is_late_is_one_that_was_ready_last(entry: ReportEntry) -> None:
    assert entry.result is not None
    facts, spans = entry.span_descriptions, entry.result.spans
    waited = np.flatnonzero(facts.awaited_rank >= 0)
    assert len(waited)
    for at in waited.tolist():
        same = (
            (spans.start == spans.start[at])
            & (spans.rank == facts.awaited_rank[at])
            & (spans.stream == spans.stream[at])
        )
        assert (spans.ready[same] == spans.start[at]).any()
        assert facts.awaited_rank[at] != spans.rank[at]


def test_a_collective_says_how_it_is_done(folded: Result) -> None:
    facts, spans = describe_spans(folded), folded.spans
    words = np.array(spans.words)
    for at in np.flatnonzero(spans.group != spans.word_code("")).tolist():
        kind = str(words[spans.kind[at]])
        members = int(facts.algorithms[facts.algorithm[at]].rpartition(" ")[2])
        method = next(
            each for each in folded.collectives if each["kind"] == kind and each["size_bytes"] == spans.bytes[at]
        )
        assert facts.algorithms[facts.algorithm[at]].startswith(method["algorithm"].replace("_", " "))
        assert facts.bus_factor[at] == bus_factor(kind, members)  # type: ignore[arg-type]


def test_a_rank_that_was_not_played_has_its_own_peers_groups_and_late_ones(folded: Result) -> None:
    facts = describe_spans(folded)
    rows = {row.rank: row for row in make_rank_rows(folded, facts, range(8))}
    plan = folded.job.plan
    place = {rank: tuple(int(each[0]) for each in np.nonzero(plan.grid == rank)) for rank in range(8)}
    for rank, row in rows.items():
        assert row.source == folded.representative_of(rank)
        for group in folded.timeline_of(rank)["group"].unique():
            assert group in ("", *row.groups.values())
        for way, peer in row.peers.items():
            assert plan.stage_of_every_rank()[peer] == int(way.split()[1])
            assert (
                sum(one == other for one, other in zip(place[rank], place[peer], strict=True)) == len(place[rank]) - 1
            )
        for late in row.awaited_ranks.values():
            assert late != rank
    assert {row.peers["to 1"] for row in rows.values() if plan.stage_of_every_rank()[row.rank] == 0} == set(
        np.flatnonzero(plan.stage_of_every_rank() == 1).tolist()
    )


def test_spans_that_are_left_out_take_their_facts_along(entry: ReportEntry) -> None:
    assert entry.result is not None
    facts, spans = entry.span_descriptions, entry.result.spans
    kept = spans.rank >= 2
    some = facts.select(kept)
    assert len(some.awaited_rank) == kept.sum()
    own = spans.select(kept)
    path, start, end = some.critical_path
    assert len(path) < len(facts.critical_path[0])
    assert (own.start[path] <= start + 1e-12).all()
    assert (end <= own.end[path] + 1e-12).all()
    raw = pack_timeline(own, BinaryColumns(), weights={}, facts=some)
    assert raw["columns"]["path_lane"][1] == len(path)


def test_the_slow_rank_is_named(entry: ReportEntry, folded: Result) -> None:
    assert entry.result is not None
    assert describe_slow_ranks(entry.result) == {3: "slow × 1.5"}
    assert [row.slowdown_text for row in entry.rows] == ["", "", "", "slow × 1.5"]
    assert describe_slow_ranks(folded) == {}


@pytest.fixture(scope="module")
def other() -> ReportEntry:
    return other_entry()


def test_one_run_where_the_time_went_what_helps_and_whether_it_fits(entry: ReportEntry) -> None:
    told = verdict_html([entry])
    assert entry.result is not None
    account = entry.account
    work = sum(account.breakdown[name] for name in ("forward", "backward", "recompute")) / account.step_time
    assert f"A step takes {format_seconds(account.step_time)}, {100 * work:.1f} % of it" in told
    assert f"Without its faults the step would take {format_seconds(entry.result.without_faults or 0)}" in told
    assert "It fits: " in told
    largest = max(("bubble", "straggler_wait", "exposed_dp"), key=lambda name: account.breakdown[name])
    assert f"({100 * account.breakdown[largest] / account.step_time:.1f} %)" in told


def test_several_runs_the_difference_and_its_causes(entry: ReportEntry, other: ReportEntry) -> None:
    told = verdict_html([entry, other])
    change = other.account.step_time / entry.account.step_time - 1
    assert f"tensor parallel is {100 * abs(change):.1f} % {'slower' if change > 0 else 'faster'} than tiny" in told
    assert verdict_html([entry, replace(entry, name="again")]).startswith('<p class="verdict">again is as fast as tiny')
    three = verdict_html([entry, other, replace(other, name="small", numbers={**other.numbers, "fits": False})])
    assert "Of 3 runs " in three
    assert "small does not fit: " in three


def test_runs_side_by_side_say_what_is_likely_measured_and_what_a_gpu_holds(
    entry: ReportEntry, other: ReportEntry
) -> None:
    text = report_page([entry, other])
    assert entry.result is not None
    assert f" of {entry.result.facts.memory / 1e9:,.1f} GB" in text
    assert ">likely</th>" in text
    assert ">measured</th>" not in text  # no scenario names one
