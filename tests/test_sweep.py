"""simcluster sweep: the same rows whatever plays them, none lost and none repeated whatever is killed."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import AtOnce

import simcluster
from simcluster.base.errors import InputError
from simcluster.base.progress import DEFAULT_ESTIMATE_LIMIT, estimate_limit, no_time_limit
from simcluster.base.store import RowStore
from simcluster.base.version import sources_digest
from simcluster.cli import main
from simcluster.cli.sweep import ProgressBar
from simcluster.results.result import VERSION
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant
from simcluster.studies.sweep import dask_cluster
from simcluster.studies.sweep.sweep import MAX_VARIANTS, load_sweep, make_sweep, run_sweep, sweep
from simcluster.studies.sweep.variant_simulation import Row, simulate_on_executor

VARY: dict[str, list[Any]] = {"parallel.tp": [1, 2], "parallel.pp": [1, 2], "parallel.sequence_parallel": [True, False]}


def cheap(variant: ScenarioVariant) -> Row:
    """A stand-in for a simulation, which says what was asked of it."""
    changes = dict(variant.changes)
    if changes.get("seed") == 13:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    if changes.get("seed") == 7:
        return {"status": "failed", "error": "seven"}
    return {"status": "ok", "error": "", "step_time_s": changes["seed"] / 3}


def seeds(count: int) -> dict[str, list[int]]:
    return {"seed": list(range(count))}


# --- what is varied ---------------------------------------------------------------------------------------------------


def test_the_grid_is_in_order_and_complete() -> None:
    made = make_sweep(
        BaseScenario("tiny_dp"), {"a": [1, 2], "b": [3, 4, 5]}, fixed=[("c", 0)], rows=[{"d": 8}, {"d": 9}]
    )
    assert made.paths == ["d", "a", "b"]
    values = [tuple(made.variant_values(number).values()) for number in made.numbers]
    assert values == [(d, a, b) for d in (8, 9) for a in (1, 2) for b in (3, 4, 5)]
    assert made.make_variant(0).changes == (("c", 0), ("d", 8), ("a", 1), ("b", 3))


def test_a_sample_has_no_repetition_and_is_the_same_by_its_seed() -> None:
    grid = {"a": list(range(1000)), "b": list(range(1000)), "c": list(range(1000))}
    first = make_sweep(BaseScenario("tiny_dp"), grid, sample=500, seed=3)
    assert len(set(first.numbers)) == 500
    assert first.numbers == make_sweep(BaseScenario("tiny_dp"), grid, sample=500, seed=3).numbers
    assert first.numbers != make_sweep(BaseScenario("tiny_dp"), grid, sample=500, seed=4).numbers
    with pytest.raises(InputError, match=r"1,000,000,000 variants are more than .*--sample"):
        make_sweep(BaseScenario("tiny_dp"), grid)
    assert MAX_VARIANTS < 1000**3


def test_a_study_file_with_a_grid_and_one_with_a_table(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("scenario: tiny_dp\nset: {steps: 2}\nvary: {seed: [1, 2], training.micro_batch: [1]}\n")
    made = load_sweep(study, {"training.global_batch": [8]})
    assert [made.make_variant(number).changes for number in made.numbers] == [
        (("steps", 2), ("seed", number), ("training.micro_batch", 1), ("training.global_batch", 8)) for number in (1, 2)
    ]
    (tmp_path / "rows.csv").write_text("S,MB\n1,1\n2,\n")
    study.write_text("scenario: tiny_dp\ntable: rows.csv\ncolumns: {S: seed, MB: training.micro_batch}\n")
    loaded = load_sweep(study, {})
    assert [dict(loaded.make_variant(number).changes) for number in loaded.numbers] == [
        {"seed": 1, "training.micro_batch": 1},
        {"seed": 2},
    ]


# --- the same rows, whatever plays them -------------------------------------------------------------------------------


def test_any_executor_gives_the_serial_rows_to_the_bit() -> None:
    serial = sweep("tiny_3d", VARY)
    assert list(serial["status"]).count("ok") == 2
    assert (serial["status"] == "refused").any()
    for executor in (2, AtOnce(), ThreadPoolExecutor(2)):
        pd.testing.assert_frame_equal(sweep("tiny_3d", VARY, executor=executor), serial, check_exact=True)
    good = serial[serial["status"] == "ok"].iloc[0]
    changes = {path: good[path].item() for path in VARY}
    assert good["step_time_s"] == simcluster.simulate(simcluster.scenario("tiny_3d", changes)).step_time


@pytest.mark.programs
def test_dask_gives_the_serial_rows_to_the_bit(dask_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = sweep("tiny_3d", VARY)
    pd.testing.assert_frame_equal(sweep("tiny_3d", VARY, executor=dask_address), serial, check_exact=True)
    monkeypatch.setattr(dask_cluster, "sources_digest", lambda: "another simulator")
    with pytest.raises(InputError, match=r"worker tcp://.* has other versions of simcluster, .*restart the workers"):
        sweep("tiny_3d", VARY, executor=dask_address)


def test_a_variant_that_kills_its_process_is_a_row_and_the_rest_go_on() -> None:
    table = sweep("tiny_dp", {"seed": [1, 13, 2, 7]}, executor=2, measure=cheap)
    assert list(table["status"]) == ["ok", "failed", "ok", "failed"]
    assert "was killed" in table["error"][1]


class Unlucky(AtOnce):
    """An executor whose tasks end with an exception when a given one is among them."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem

    def submit(self, task: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        if any(number == 3 for number, _ in arguments[-1]):
            future: Future[Any] = Future()
            future.set_exception(self.problem)
            return future
        return super().submit(task, *arguments, **more)


class Closed(AtOnce):
    """An executor that is gone by the time that it is given a task, as a client of Dask whose scheduler is."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem

    def submit(self, task: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        raise self.problem


class Watched:
    """Who looks after it, and says what is said of a Dask cluster."""

    def __init__(self, *, killed: bool) -> None:
        self._killed = killed

    def chunk_function(self) -> Any:
        return partial(dask_cluster.simulate_if_same_version, sources_digest())

    def check_alive(self) -> None:
        raise AssertionError

    def has_killed_process(self, problem: BaseException) -> bool:
        if not self._killed:
            raise InputError(f"lost: {problem}")
        return True


def test_a_task_that_kills_who_plays_it_is_a_row_and_its_neighbours_are_played() -> None:
    tasks = [(number, ScenarioVariant(BaseScenario("tiny_dp"), (("seed", number),))) for number in range(6)]
    rows = simulate_on_executor(Unlucky(RuntimeError("gone")), 1, tasks, cheap, Watched(killed=True))
    found = {number: row["status"] for chunk in rows for number, row in chunk}
    assert found == {number: "failed" if number == 3 else "ok" for number in range(6)}


@pytest.mark.parametrize("problem", [CancelledError(), OSError("closed"), RuntimeError("gone")])
def test_an_executor_that_is_lost_is_one_message(problem: Exception, tmp_path: Path) -> None:
    made = make_sweep(BaseScenario("tiny_dp"), seeds(6))
    tasks = [(number, made.make_variant(number)) for number in made.numbers]
    with pytest.raises(InputError, match="lost"):
        list(simulate_on_executor(Unlucky(problem), 1, tasks, cheap, Watched(killed=False)))
    with pytest.raises(InputError, match="lost"):
        list(simulate_on_executor(Closed(problem), 1, tasks, cheap, Watched(killed=False)))
    with pytest.raises(InputError, match=r"the executor is broken .*: run it again with a new executor"):
        run_sweep(made, executor=Closed(BrokenExecutor("x")), measure=cheap)
    with pytest.raises(InputError, match=r"the executor is broken .*: run it again with a new executor"):
        run_sweep(made, executor=Unlucky(BrokenExecutor("x")), store=tmp_path / "rows", measure=cheap)
    assert run_sweep(made, store=tmp_path / "rows", measure=cheap).num_simulated < 6


@pytest.mark.parametrize(("asked", "most"), [(False, DEFAULT_ESTIMATE_LIMIT), (True, math.inf)])
def test_who_plays_begins_what_the_command_was_asked_to_begin(asked: bool, most: float) -> None:
    """--yes goes with a task: other threads, as other machines, know nothing of it."""
    with no_time_limit(asked), ThreadPoolExecutor(1) as executor:
        rows = list(simulate_on_executor(executor, 1, [(0, None)], how_long))
    assert rows == [[(0, {"most_s": most})]]


def how_long(_: object) -> dict[str, float]:
    return {"most_s": estimate_limit()}


def test_a_worker_with_another_simulator_plays_nothing() -> None:
    with pytest.raises(
        InputError, match=r"a worker of the Dask cluster has other versions of simcluster, .* restart the workers"
    ):
        dask_cluster.simulate_if_same_version("another simulator", cheap, [])


# --- nothing is lost --------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_played_again_and_a_sweep_may_grow(tmp_path: Path) -> None:
    store = tmp_path / "rows"
    first = run_sweep(make_sweep(BaseScenario("tiny_dp"), seeds(10)), store=store, measure=cheap)
    assert first.num_simulated == 10
    more = run_sweep(make_sweep(BaseScenario("tiny_dp"), {"seed": [3, 3, 12, 11]}), store=store, measure=cheap)
    assert more.num_simulated == 2
    assert [row["step_time_s"] for row in more.rows] == [1.0, 1.0, 4.0, 11 / 3]
    other = make_sweep(BaseScenario("tiny_dp"), {"seed": [3]}, fixed=[("steps", 2)])
    assert run_sweep(other, store=store, measure=cheap).num_simulated == 1
    again = run_sweep(make_sweep(BaseScenario("tiny_dp"), seeds(10)), store=store, retry=True, measure=cheap)
    assert again.num_simulated == 1  # the seventh had failed
    assert again.rows == first.rows


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from simcluster.studies.sweep.sweep import make_sweep
from simcluster.scenario.scenario import BaseScenario
from simcluster.studies.sweep.sweep import run_sweep

def say(done, *_):
    print(done, flush=True)
    time.sleep(0.05)  # or it would be over before it is killed

if __name__ == "__main__":
    made = make_sweep(BaseScenario("tiny_dp"), {"seed": list(range(int(sys.argv[2])))})
    run_sweep(made, executor=2, store=Path(sys.argv[1]), progress=say)
"""


def test_a_sweep_killed_twice_equals_an_undisturbed_one(tmp_path: Path) -> None:
    """SIGKILL of the whole group of processes, at random moments; 1,000 variants, five times: see tests/benchmarks."""
    killed(tmp_path, 40, times=2)


def killed(folder: Path, count: int, *, times: int) -> None:
    script, store = folder / "run.py", folder / "rows"
    script.write_text(KILLED)
    rng = random.Random(count)
    command = [sys.executable, str(script), str(store), str(count), str(Path(__file__).parent.parent)]
    before = 0
    for _ in range(times):
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        aim = before + rng.randint(1, count // 20)
        told = next((int(line) for line in process.stdout if int(line) >= aim), None)
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL, "it must be killed before it is finished"
        with closing(sqlite3.connect(store)) as kept:
            now = kept.execute("SELECT count(*) FROM rows").fetchone()[0]
        assert told is not None
        assert count > now >= told, "what was told to be done is on disk"
        before = now
    made = make_sweep(BaseScenario("tiny_dp"), seeds(count))
    swept = run_sweep(made, store=store)
    assert swept.num_simulated == count - before, "rows that were on disk are not played again"
    pd.testing.assert_frame_equal(swept.to_frame(), run_sweep(made).to_frame(), check_exact=True)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_table_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.csv"
    arguments = ["sweep", "tiny_3d", "--vary", "parallel.tp=1,2", "--parallel.sequence_parallel", "false"]
    arguments += ["--executor", "1", "-o", str(output)]
    assert main(arguments) == 0
    assert "2 variants" in capsys.readouterr().out
    table = pd.read_csv(output)
    assert list(table["parallel.tp"]) == [1, 2]
    assert main([*arguments, "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["variants"], summary["played_now"]) == (2, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.csv.rows"]


@pytest.mark.usefixtures("in_this_process")
def test_values_of_several_types_fit_in_a_column(tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    vary = "pipeline.schedule=1f1b,{name: interleaved}"
    assert main(["sweep", "tiny_3d", "--vary", vary, "--executor", "1", "-o", str(output)]) == 0
    assert pd.read_parquet(output)["pipeline.schedule"].iloc[0] == "1f1b"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a sweep needs at least one varied key"),
        (["--vary", "paralel.tp=1,2"], "did you mean 'parallel'"),
        (["--vary", "cluster.scale.netwerk=1,2"], "did you mean 'network'"),
        (["--vary", "seed=1,2", "--executor", "many"], "must be a number of processes"),
        (["--vary", "seed=1,2", "--executor", "0"], "cannot simulate anything"),
        (["--vary", "seed=1,2", "--sample", "0"], "at least 1"),
        (["--vary", "seed="], "empty value"),
    ],
)
def test_bad_input(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "tiny_dp", *arguments, "-o", str(tmp_path / "rows.csv")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scenario: tiny_dp\nvary: {seed: []}\n", "seed"),
        ("scenario: tiny_dp\nvary: {sed: [1]}\n", "did you mean 'seed'"),
        ("scenario: tiny_dp\ntable: rows.csv\n", "'table' needs 'columns', which map the table's headers to"),
        ("scenario: tiny_dp\ntable: none.csv\ncolumns: {S: seed}\n", "does not exist"),
        ("scenario: tiny_dp\ntable: rows.csv\ncolumns: {T: seed}\n", "no column 'T'"),
        ("scenario: tiny_dp\nvarry: {seed: [1]}\n", "did you mean 'vary'"),
    ],
)
def test_bad_studies(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("S\n1\n")
    (tmp_path / "study.yaml").write_text(text)
    assert main(["sweep", str(tmp_path / "study.yaml"), "-o", str(tmp_path / "out.csv")]) == 2
    assert words in capsys.readouterr().err


def test_bad_stores(tmp_path: Path) -> None:
    made = make_sweep(BaseScenario("tiny_dp"), seeds(3))
    (tmp_path / "text").write_text("not a database, but long enough to be looked at as one " * 20)
    with pytest.raises(InputError, match="not a store of finished rows"):
        run_sweep(made, store=tmp_path / "text", measure=cheap)
    with RowStore(tmp_path / "old", "0.0.9"):
        pass
    with pytest.raises(InputError, match=rf"created by simcluster 0\.0\.9, this is {VERSION}"):
        run_sweep(made, store=tmp_path / "old", measure=cheap)
    with (
        RowStore(tmp_path / "holed", VERSION) as kept,
        pytest.raises(InputError, match=r"row a is listed but cannot be read; choose anoth"),
    ):
        list(kept.read_rows(["a"]))
    with RowStore(tmp_path / "busy", VERSION), pytest.raises(InputError, match="another process is writing"):
        run_sweep(made, store=tmp_path / "busy", measure=cheap)
    file = sqlite3.connect(tmp_path / "foreign")
    file.execute("PRAGMA application_id=7")
    file.execute("CREATE TABLE x (y)")
    file.close()
    with pytest.raises(InputError, match="the database of another program"):
        run_sweep(made, store=tmp_path / "foreign", measure=cheap)


def test_a_full_disk_is_one_message_and_loses_nothing(tmp_path: Path) -> None:
    store = tmp_path / "rows"
    with RowStore(store, VERSION) as kept:
        kept.add_rows([("a", {"status": "ok"})])
        kept._file.execute(f"PRAGMA max_page_count={kept._file.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(InputError, match="finished rows are safe"):
            kept.add_rows((str(number), {"text": "x" * 10_000}) for number in range(50))
    with RowStore(store, VERSION) as kept:
        assert kept.find_stored_keys(["a", "0"]) == {"a"}


DAMAGE = ["", "7", "null", '{"status": "ok"}', b"\xff\xfe", None, 3.5, "[" * 5000]
"""What may stand in the place of a row."""


def test_a_damaged_row_is_played_again_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, store = make_sweep(BaseScenario("tiny_dp"), seeds(len(DAMAGE) + 2)), tmp_path / "rows"
    expected = run_sweep(made, store=store, measure=cheap).to_frame()
    file = sqlite3.connect(store)
    keys = [key for (key,) in file.execute("SELECT key FROM rows ORDER BY key")]
    file.execute("CREATE TABLE other AS SELECT * FROM rows")
    file.execute("DROP TABLE rows")
    file.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, row)")
    file.execute("INSERT INTO rows SELECT * FROM other")
    for key, damage in zip(keys, DAMAGE, strict=False):
        file.execute("UPDATE rows SET row=? WHERE key=?", (damage, key))
    file.execute("UPDATE rows SET row=substr(row, 1, length(row) - 2) || '~}' WHERE key=?", (keys[-1],))
    file.commit()
    file.close()
    with pytest.warns(RuntimeWarning, match=rf"{len(DAMAGE) + 1} of {len(DAMAGE) + 2} rows are damaged"):
        swept = run_sweep(made, store=store, measure=cheap)
    assert swept.num_simulated == len(DAMAGE) + 1
    pd.testing.assert_frame_equal(swept.to_frame(), expected, check_exact=True)
    assert run_sweep(made, store=store, measure=cheap).num_simulated == 0


def test_what_cannot_be_sent_is_said_at_once() -> None:
    with pytest.raises(InputError, match="cannot be sent to another process"):
        sweep("tiny_dp", seeds(4), executor=2, measure=lambda variant: {"status": "ok", "error": ""})


def test_the_bar_tells_rate_and_time_left() -> None:
    bar = ProgressBar()
    bar(10, 100, 0)
    bar._begun = (0.0, 10)
    bar.done = 30
    assert bar.progress_line(10.0, 2) == "30/100 (30%)  2.0 per second, 0:35 left  2 without a result"


def test_rows_of_another_measure_are_other_rows(tmp_path: Path) -> None:
    made = make_sweep(BaseScenario("tiny_dp"), {"seed": [1, 2]})
    assert run_sweep(made, store=tmp_path / "rows", measure=cheap).num_simulated == 2
    again = run_sweep(made, store=tmp_path / "rows")
    assert again.num_simulated == 2
    assert "mfu" in again.rows[0]
