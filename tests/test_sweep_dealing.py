"""Variants dealt out to processes: each once, whatever takes how long, with those together that share most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.base.processes import WorkerPool, multiprocessing_context
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant
from simcluster.studies.sweep.sweep import make_sweep, order_variants, sweep
from simcluster.studies.sweep.sweep_executor import WorkSplit
from simcluster.studies.sweep.variant_simulation import Row

VARY = {"parallel.zero": [0, 1], "training.micro_batch": [1, 2], "parallel.tp": [1, 2], "parallel.pp": [1, 2]}


@given(
    keys=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("abc")), min_size=1, max_size=60),
    turns=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.001, 0.05, 1.0])), max_size=200),
)
def test_each_is_taken_once_whoever_comes_next(keys: list[tuple[str, str]], turns: list[tuple[int, float]]) -> None:
    deal = WorkSplit(sorted(keys), 4)
    taken: list[int] = []
    for member, seconds in turns:
        part = deal.take_tasks(member)
        taken += part
        if part:
            deal.seconds_per_task[member] = seconds
    for member in range(4):  # what is not worth another process is left to the one that has it
        while part := deal.take_tasks(member):
            taken += part
            deal.seconds_per_task[member] = 0.0
    assert sorted(taken) == list(range(len(keys)))


def test_neighbours_share_most_and_a_part_is_cut_where_they_share_least() -> None:
    made = make_sweep(BaseScenario("tiny_3d"), VARY)
    keys = order_variants(made, made.numbers)
    assert sorted(keys) == list(made.numbers)
    layouts = [
        (made.variant_values(number)["parallel.pp"], made.variant_values(number)["parallel.tp"]) for number in keys
    ]
    assert layouts == [(pp, tp) for pp in (1, 2) for tp in (1, 2) for _ in range(4)]
    assert [made.variant_values(number)["parallel.zero"] for number in keys] == [0, 1] * 8
    deal = WorkSplit(list(keys.values()), 3)
    assert deal.take_tasks(0) == range(1)
    assert deal.take_tasks(1) == range(8, 9)  # from the other pp on
    assert deal.take_tasks(2).start in (4, 12)  # from another tp on


@contextmanager
def another_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


HERE: list[int] = []
"""Empty in a fresh Python, filled in a copy of one in which a test has filled it."""


def where(variant: ScenarioVariant) -> Row:
    """Which process a variant is played in, and whether that is a copy of this one."""
    return {"status": "ok", "error": "", "copied": bool(HERE), "process": os.getpid()}


def test_processes_are_fresh_where_there_are_other_threads_and_rows_the_same() -> None:
    vary = {"parallel.tp": [1, 2]}
    serial = sweep("tiny_3d", vary)
    with another_thread():
        assert multiprocessing_context().get_start_method() == "spawn"
        pd.testing.assert_frame_equal(sweep("tiny_3d", vary, executor=2), serial, check_exact=True)


@pytest.mark.skipif(sys.platform != "linux", reason="copies are safe on Linux")
@pytest.mark.skipif(threading.active_count() > 1, reason="this process has other threads")
def test_processes_are_copies_where_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HERE", [os.getpid()])
    table = sweep("tiny_3d", VARY, executor=2, measure=where)
    assert table["copied"].all()
    assert os.getpid() not in set(table["process"])


def odd(task: int) -> int:
    if task == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if task % 2 == 0:
        raise InputError(f"{task} is even")
    return task


def test_a_crew_answers_raises_and_replaces_who_has_died() -> None:
    crew = WorkerPool(odd, 2)
    try:
        crew.submit(0, 13)
        assert crew.wait_for_results([0]) == [(0, None)]
        crew.submit(0, 3)
        assert crew.wait_for_results([0]) == [(0, 3)]
        crew.submit(1, 4)
        with pytest.raises(InputError, match="4 is even"):
            crew.wait_for_results([1])
    finally:
        crew.close()


ENDED_AT_ONCE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from simcluster.base.processes import WorkerPool
from simcluster.cli.terminal import catch_stopping_signals
fork = os.fork

def ended_at_once():
    found = fork()
    if not found:
        os.kill(os.getpid(), signal.SIGTERM)
    return found

os.fork = ended_at_once
with catch_stopping_signals():
    WorkerPool(abs, 2).close(at_once=True)
print("over")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copies on Linux alone")
def test_a_member_that_is_ended_as_it_begins_does_not_run_our_program(tmp_path: Path) -> None:
    (tmp_path / "ended.py").write_text(ENDED_AT_ONCE)
    command = [sys.executable, str(tmp_path / "ended.py"), str(Path(__file__).parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("over\n", "")


LEFT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from simcluster.base.processes import WorkerPool
if __name__ == "__main__":
    crew = WorkerPool(abs, 2)
    print(*(process.pid for process, _ in crew._members), flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_crew_ends_when_its_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    command = [sys.executable, str(tmp_path / "left.py"), str(Path(__file__).parent.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        members = process.stdout.readline().split()
        process.kill()
    assert len(members) == 2
    until = time.monotonic() + 10
    while any(_runs(member) for member in members):
        assert time.monotonic() < until, "they go on for ever"
        time.sleep(0.02)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
