"""A search that is stopped says what is best so far and what of it is proven, and goes on to the same bytes."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.base.time_limit import Deadline, TimeLimitExpired, limit_time
from simcluster.base.units import format_seconds
from simcluster.cli import plan as plan_command
from simcluster.cli import terminal
from simcluster.scenario import file_digests
from simcluster.scenario.scenario import Scenario
from simcluster.show.plan_answer import describe_own_layout, describe_proof, explain_winner, layout_name
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.search import evaluation
from simcluster.studies.search.evaluation import SearchState, SimulatedLayouts
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.plan import PlanResult, make_searchable_scenario, plan

FEW = {
    "training.micro_batch": (1,),
    "parallel.sequence_parallel": (False,),
    "training.recompute": ("none",),
    "parallel.zero": (0, 1, 3),
    "pipeline.schedule": ("1f1b",),
}


def tiny() -> Scenario:
    return simcluster.scenario("tiny_3d", {"model.sequence_length": 256})


class Stops(Executor):
    """Plays so many layouts, one at a time, and then raises."""

    _max_workers = 1

    def __init__(self, after: int = 10_000, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.left, self.error, self.played = after, error, 0

    def submit(self, call: Any, /, *args: Any, **named: Any) -> Future[Any]:
        if not self.left:
            raise self.error
        self.left -= 1
        self.played += 1
        future: Future[Any] = Future()
        future.set_result(call(*args, **named))
        return future


def stopped(after: int, error: type[BaseException] = TimeLimitExpired, **asked: Any) -> PlanResult:
    return plan(tiny(), 8, top=5, vary=FEW, executor=Stops(after, error), **asked)


@pytest.fixture(scope="module")
def whole() -> PlanResult:
    return plan(tiny(), 8, top=5, vary=FEW)


def test_a_stopped_search_proves_a_gap_that_holds_and_only_shrinks(whole: PlanResult) -> None:
    before = 1.0
    for after in (1, 2, 3, 4):
        found = stopped(after)
        assert not found.proven
        assert found.stopped == "time limit"
        gap = 1.0 if found.gap is None else found.gap  # stopped before all bounds were known
        assert gap <= before
        assert gap < 1 or after < 3
        assert found.best[0].score * (1 - gap) <= whole.best[0].score <= found.best[0].score
        assert found.left != 0
        assert found.num_combinations == whole.num_combinations == sum(found.counts.values()) + found.num_simulated
        assert found.counts["not simulated: the search was stopped"] > 0
        before = gap
    assert (whole.proven, whole.gap, whole.left, whole.stopped) == (True, 0.0, 0, "")


def test_what_was_stopped_says_so_everywhere(whole: PlanResult) -> None:
    found = stopped(2, KeyboardInterrupt)
    (said,) = describe_proof(found)
    assert said.startswith("Not proven (stopped by an interrupt after ")
    document = json.loads(json.dumps(found.to_dict()))
    assert (document["proven"], document["gap"], document["stopped"]) == (False, found.gap, "interrupt")
    assert set(document) == set(whole.to_dict())
    assert set(document["best"][0]) == set(whole.to_dict()["best"][0])
    assert found.own_layout is not None, "one's own layout is among the first"
    assert describe_own_layout(found)[0].startswith("Your layout (tp 2")
    assert "the winner" not in "".join((*describe_own_layout(found), *explain_winner(found)))
    assert describe_proof(whole) == []
    assert "longer than the winner" in describe_own_layout(whole)[0]


def test_without_any_layout_time_is_short_and_an_interrupt_goes_through() -> None:
    with pytest.raises(InputError, match=r"no layout was simulated in 1\.000 us, .*; give it more time"):
        plan(tiny(), 8, vary=FEW, time_limit="1 us")
    with pytest.raises(KeyboardInterrupt):
        stopped(0, KeyboardInterrupt)
    with pytest.raises(InputError, match="plan: time_limit must be a text or a number, got bool: true; write"):
        plan(tiny(), 8, vary=FEW, time_limit=True)
    for wrong in (0, -1, float("inf"), float("nan"), "soon", "60"):
        with pytest.raises(InputError, match=r"time limit .* must be a time above 0: use .*'60 s'"):
            plan(tiny(), 8, vary=FEW, time_limit=wrong)


def test_the_first_layout_is_the_own_one_with_more_recomputation_where_that_fits_alone() -> None:
    own, less = (tiny().with_({"training.recompute": each}) for each in ("none", "full"))
    needs = [simulate_scenario(each).memory.total for each in (own, less)]
    found = plan(own, 8, max_memory=sum(needs) / 2, executor=Stops(1))
    assert (found.num_simulated, found.stopped, found.proven) == (1, "interrupt", False)
    assert found.best[0].layout.apply_to(found.base).parallel == own.parallel
    assert found.best[0].layout.recompute != "none"
    assert found.best[0].memory <= sum(needs) / 2


def test_a_search_that_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: PlanResult
) -> None:
    store, times = tmp_path / "rows", 0
    for error in (KeyboardInterrupt, TimeLimitExpired):
        first = Stops(2, error)
        assert not plan(tiny(), 8, top=5, vary=FEW, store=store, executor=first).proven
        times += first.played
    rest, at_once = Stops(), Stops()
    again = plan(tiny(), 8, top=5, vary=FEW, store=store, executor=rest)
    for found in (again, plan(tiny(), 8, top=5, vary=FEW, executor=at_once)):
        assert json.dumps(found.to_dict()) == json.dumps(whole.to_dict())
        assert found.table.to_csv() == whole.table.to_csv()
        assert (explain_winner(found), describe_own_layout(found)) == (
            explain_winner(whole),
            describe_own_layout(whole),
        )
    assert rest.played == at_once.played - times
    none = Stops()
    plan(tiny(), 8, top=5, vary=FEW, store=store, executor=none)
    assert none.played == 0
    monkeypatch.setattr(file_digests, "sources_digest", lambda: "another simulator")
    plan(tiny(), 8, top=5, vary=FEW, store=store, executor=none)
    assert none.played == at_once.played


def test_rows_of_a_table_are_those_that_had_to_be_played(whole: PlanResult) -> None:
    assert len(whole.table) >= whole.num_simulated
    assert list(whole.table["score"]) == sorted(whole.table["score"])


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_an_alarm_stops_what_never_looks_and_is_gone_afterwards() -> None:
    def work() -> None:
        with limit_time(0.02):
            busy(5.0)

    with pytest.raises(TimeLimitExpired):
        work()
    with limit_time(60.0) as deadline:
        assert 0 < deadline.seconds_left <= 60
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    with limit_time(None) as none:
        assert none.seconds_left == float("inf")
    with pytest.raises(TimeLimitExpired):
        Deadline(0.0).raise_if_expired()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_is_lost_rings_again() -> None:
    class Slow:
        def __del__(self) -> None:
            busy(0.2)

    def work() -> None:
        with limit_time(0.02):
            Slow()
            busy(5.0)

    with pytest.raises(TimeLimitExpired):
        work()


def test_alarms_do_not_interrupt_cleanup() -> None:
    cleaned = False

    def work() -> None:
        nonlocal cleaned
        with limit_time(0.02):
            try:
                busy(5.0)
            finally:
                busy(0.3)
                cleaned = True

    with pytest.raises(TimeLimitExpired):
        work()
    assert cleaned
    time.sleep(0.1)  # and none rings afterwards


# --- the command ------------------------------------------------------------------------------------------------------

PLAN = ["plan", "tiny_3d", "--model.sequence_length", "256", "--executor", "1", "--top", "10",
        *(f"--vary={path}={','.join(map(str, values)).lower()}" for path, values in FEW.items())]  # fmt: skip


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_print_the_best_so_far(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keep, kept = SimulatedLayouts.store_row, []

    def and_signal(player: SimulatedLayouts, layout: Layout | None, row: dict[str, Any]) -> None:
        keep(player, layout, row)
        kept.append(layout)
        if len(kept) == 4:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(SimulatedLayouts, "store_row", and_signal)
    before = signal.getsignal(number)
    assert cli.main([*PLAN, "--json", str(tmp_path / "found.json"), "-o", str(tmp_path / "rows.csv")]) == status
    assert signal.getsignal(number) is before
    text = capsys.readouterr().out
    assert "Not proven (" in text
    assert "the best so far: --parallel.tp" in text
    assert json.loads((tmp_path / "found.json").read_text())["proven"] is False
    assert len(kept) == 4
    assert (tmp_path / "rows.csv").exists()


def test_a_time_limit_of_the_command_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = SimulatedLayouts.store_row

    def until(player: SimulatedLayouts, layout: Layout | None, row: dict[str, Any]) -> None:
        keep(player, layout, row)
        if len(player.rows) == 2:
            raise TimeLimitExpired

    monkeypatch.setattr(SimulatedLayouts, "store_row", until)
    assert cli.main([*PLAN, "--time-limit", "60s", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["proven"], found["stopped"]) == (False, "time limit")


def test_time_is_up_in_the_midst_of_work_beside_a_clock_that_ticks_on() -> None:
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: ticks.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        with pytest.raises(TimeLimitExpired), limit_time(0.1):
            for _ in range(10**9):  # asks nobody whether time is up
                pass
        assert ticks
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(0.01)
        ticks.clear()
        for _ in range(1000):  # an alarm ends a sleep, or comes before it
            if not ticks:
                time.sleep(0.01)
        assert ticks
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_without_a_terminal_it_is_told_now_and_then(
    whole: PlanResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(plan_command.time, "monotonic", lambda: clock[0])
    told = plan_command.SearchProgressReporter()
    state = SearchState("layouts", whole.best[1].layout, 1.5, 0.032, 3, 40, 0.0, 130.0)
    said = []
    for clock[0], layout in ((100.5, 1), (101.5, 1), (105.0, 1), (111.6, 1), (112.0, 0), (112.7, 0), (122.8, 0)):
        state = state._replace(layout=whole.best[layout].layout)
        told.report(state)
        said.append(capsys.readouterr().err.count("\n"))
    assert said == [0, 1, 0, 0, 1, 0, 0], "what is news; all else is the clock's"
    words = plan_command.progress_text(state)
    assert words.startswith(
        "simulating layouts, best so far 1.500 s, proven gap 3.2%, 3 simulated, at most 40 left, about "
    )
    assert words.rpartition(": ")[2] == layout_name(whole.best[0].layout)
    endless = plan_command.progress_text(state._replace(seconds_left=1.2e6, is_own_layout=True))
    assert endless.startswith("simulating layouts, best found 1.500 s (yours), within 3.2% of the bound, 3 simulated")
    assert " h left" not in endless
    clock[0] = 124.0
    told.report(state._replace(gap=0.0))
    proven = "simulating the next-best layouts, the best 1.500 s, proven, 3 simulated, at most 40 left"
    assert proven in capsys.readouterr().err, "that it is proven is told at once"


def test_the_layout_that_practice_would_try_is_told_with_its_bound_before_it_is_played() -> None:
    states: list[SearchState] = []
    found = plan(tiny(), 8, vary=FEW, progress=states.append)
    before = [state for state in states if state.layout is None and state.first_layout is not None]
    assert before, "it is told only once it was played"
    assert all(state.num_simulated == 0 for state in before)
    first = before[0].first_layout
    assert first is not None
    assert 0 < before[0].first_layout_bound <= simulate_scenario(first.apply_to(found.base)).step_time
    told = plan_command.progress_text(before[0])
    assert f"the first layout takes at least {format_seconds(before[0].first_layout_bound)}, 0 simulated" in told
    assert told.endswith(layout_name(first))


def test_a_line_of_a_search_has_the_name_and_the_time_of_its_command_once(
    whole: PlanResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(plan_command.time, "monotonic", lambda: clock[0])
    with terminal.track_progress("plan"):
        told = plan_command.SearchProgressReporter()
        state = SearchState("layouts", whole.best[0].layout, 1.5, 0.032, 3, 40, 0.0, 130.0)
        clock[0] = 117.0
        told.report(state)
    assert capsys.readouterr().err == f"simcluster plan: 17 s, {plan_command.progress_text(state)}\n"


def test_what_is_played_in_full_for_the_best_is_not_played_again_for_its_account() -> None:
    scenario = make_searchable_scenario(tiny()).with_({"parallel.zero": 3, "pipeline.schedule": "1f1b"})
    text = json.dumps(scenario.document())
    row = evaluation.simulate_layout(text, None, math.inf)
    step = row["step_time_s"]
    assert row == evaluation.LayoutTask(text, None, with_breakdown=True).simulate()
    slower = evaluation.simulate_layout(text, None, 0.99 * step)
    assert "account" not in slower
    assert slower["step_time_s"] == step


def test_a_limit_may_be_longer_than_the_system_sets_an_alarm_for() -> None:
    with limit_time(1e300) as deadline:
        assert deadline.seconds_left > 1e299
