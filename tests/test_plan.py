"""simcluster plan: the best of the whole space, counted, resumed, explained; and every bad input."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.errors import InputError
from simcluster.scenario.scenario import Scenario
from simcluster.search.memory import Memory
from simcluster.search.plan import Found, alone, plan
from simcluster.search.space import broken_keys, space_of
from simcluster.search.words import name_of, why
from simcluster.simulate import replay

SMALL = {
    "training.micro_batch": (1, 2),
    "parallel.sequence_parallel": (False,),
    "training.recompute": ("none", "full"),
    "parallel.zero": (0, 1, 3),
}


def tiny(**changes: Any) -> Scenario:
    values = {path.replace("__", "."): value for path, value in changes.items()}
    return simcluster.load("tiny_3d", {"model.sequence_length": 256, **values})


@pytest.fixture(scope="module")
def found() -> Found:
    return plan(tiny(), 8, top=5, vary=SMALL)


@pytest.mark.parametrize(
    ("changes", "gigabytes"),
    [
        ({}, 80.0),
        ({"overlap__grad_reduce": True, "overlap__pipeline": False, "cluster__topology": "dgx_a100"}, 80.0),
        ({"model__hidden_size": 2048}, 1.2),
    ],
)
def test_it_finds_what_playing_everything_finds(changes: dict[str, Any], gigabytes: float) -> None:
    base = alone(tiny(**changes))
    vary = {**SMALL, "training.recompute": ("none",), "pipeline.schedule": ("1f1b", "interleaved", "zb-v")}
    if gigabytes < 80:
        vary["training.recompute"] = ("none", "full")
    memory, steps, tight = Memory(base), [], 0
    for layout in space_of(base, 8, vary).found[0]:
        if broken_keys(layout.on(base)):
            continue
        if memory.most(layout) > gigabytes * 1e9:
            tight += 1
            continue
        steps.append(replay(layout.on(base)).step_time)
    best = plan(base, 8, top=7, vary=vary, max_memory=gigabytes * 1e9)
    assert [each.score for each in best.best] == sorted(steps)[:7]
    assert best.played < len(steps), "nothing was pruned"
    assert tight or gigabytes == 80.0


def test_every_combination_is_counted_once(found: Found) -> None:
    assert sum(found.counts.values()) + found.played == found.total
    assert min(found.counts.values()) > 0


def test_the_winner_is_a_scenario_that_takes_what_was_said(found: Found) -> None:
    winner = found.best[0]
    assert replay(found.scenario).step_time == winner.step_time
    assert winner.row["account"]
    assert replay(found.scenario).memory.total <= winner.memory


def test_processes_threads_and_this_process_find_the_same(found: Found) -> None:
    with ThreadPoolExecutor(3) as pool:
        threads = plan(tiny(), 8, top=5, vary=SMALL, executor=pool)
    assert threads.to_dict() == found.to_dict()
    assert plan(tiny(), 8, top=5, vary=SMALL, executor=2).to_dict() == found.to_dict()


class Dies(Executor):
    """Plays so many layouts and is then killed."""

    def __init__(self, after: int) -> None:
        self.left = after

    def submit(self, call: Any, /, *args: Any, **named: Any) -> Future[Any]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        future: Future[Any] = Future()
        future.set_result(call(*args, **named))
        return future


class Counts(Dies):
    """Counts what is played."""


def test_a_search_that_was_killed_goes_on(found: Found, tmp_path: Path) -> None:
    store = tmp_path / "rows"
    first = Dies(6)
    with pytest.raises(KeyboardInterrupt):
        plan(tiny(), 8, top=5, vary=SMALL, store=store, executor=first)
    rest = Counts(10_000)
    again = plan(tiny(), 8, top=5, vary=SMALL, store=store, executor=rest)
    assert again.to_dict() == found.to_dict()
    whole = Counts(10_000)
    plan(tiny(), 8, top=5, vary=SMALL, executor=whole)
    done = 10_000 - rest.left
    assert done <= 10_000 - whole.left - 4  # two may have been under way
    none = Counts(10_000)
    plan(tiny(), 8, top=5, vary=SMALL, store=store, executor=none)
    assert none.left == 10_000


def test_cost_weighs_several_numbers_of_gpus() -> None:
    vary = {**SMALL, "pipeline.schedule": ("1f1b",), "parallel.zero": (0, 1)}
    counts = [4, 8]
    cheap = plan(tiny(), counts, objective="cost", price=3.6, top=3, vary=vary)
    fast = plan(tiny(), counts, top=3, vary=vary)
    each = [plan(tiny(), count, top=3, vary=vary).best[0] for count in counts]
    dollars = [best.step_time * best.layout.gpus * 3.6 / 3600 for best in each]
    assert cheap.best[0].score == pytest.approx(min(dollars))
    assert fast.best[0].step_time == min(best.step_time for best in each)
    rate = plan(tiny(), counts, objective="tokens_per_s_per_gpu", top=3, vary=vary)
    assert rate.best[0].layout == cheap.best[0].layout


def test_equal_programs_are_one_layout() -> None:
    """Without replicas ZeRO has nothing to share, and with one stage the order of dp and pp says nothing."""
    legal, counts = space_of(alone(tiny()), 8, {"parallel.zero": (0, 1, 2, 3)}).found
    assert {layout.zero for layout in legal if layout.dp == 1} == {0}
    assert len({layout.order for layout in legal if layout.pp == 1}) == 1
    assert counts["the same program as another layout"]


def test_words_say_why(found: Found) -> None:
    text = "\n".join(why(found))
    assert f"Against the second ({name_of(found.best[1])})" in text or "Against the second and" in text
    assert "the best with another" in text
    assert "the winner" in text


def test_the_front_is_the_fastest_in_less_and_less_memory() -> None:
    vary = {**SMALL, "pipeline.schedule": ("1f1b",)}
    found = plan(tiny(), 8, top=1, vary=vary, front=True)
    base, memory = alone(tiny()), Memory(alone(tiny()))
    every = [layout for layout in space_of(base, 8, vary).found[0] if not broken_keys(layout.on(base))]
    for before, point in zip(found.front, found.front[1:], strict=False):
        assert point.memory <= 0.95 * before.memory
        steps = [replay(each.on(base)).step_time for each in every if memory.most(each) <= 0.95 * before.memory]
        assert point.step_time == min(steps)
    assert not [each for each in every if memory.most(each) <= 0.95 * found.front[-1].memory]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_best_and_writes_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--executor", "1", "--top", "3", "--vary", "training.micro_batch=1", "--vary", "pipeline.schedule=1f1b"]
    files = ["--pareto", "front.png", "--write", "best.yaml", "-o", "rows.csv", "--json", "found.json"]
    assert cli.main(["plan", "tiny_3d", *options, *files]) == 0
    text = capsys.readouterr().out
    for word in (
        "combinations",
        "why not, or played",
        "tokens/s/GPU",
        "Against the second",
        "the winner: --parallel.tp",
    ):
        assert word in text
    found = json.loads(Path("found.json").read_text())
    assert len(found["best"]) == 3
    assert Path("front.png").stat().st_size > 10_000
    step = found["best"][0]["step_time_s"]
    assert simcluster.simulate(simcluster.load("best.yaml")).step_time == step
    rows = Path("rows.csv").read_text().splitlines()
    assert len(rows) > 3
    assert Path("rows.csv.rows").exists()
    pasted = text.rpartition("the winner: ")[2].split()
    assert cli.main(["run", "tiny_3d", *pasted, "--json", "run.json", "--quiet"]) == 0
    assert json.loads(Path("run.json").read_text())["step_time_s"] == step


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--gpus", "16"], "16 GPUs: the cluster has 8"),
        (["--gpus", "0"], "0 GPUs: the cluster has 8"),
        (["--gpus", "5"], "5 GPUs are not a multiple of the 2 of a machine; use 4 or 6"),
        (["--gpus", "many"], "--gpus 'many' must be a whole number, or several with commas"),
        (["--objective", "step"], "unknown objective 'step'"),
        (["--objective", "cost"], "the objective cost needs a price"),
        (["--objective", "cost", "--price", "-1"], "must be positive: dollars per GPU and hour"),
        (["--max-memory", "100 GB"], "max memory 100.0 GB: a"),
        (["--max-memory", "72"], "'72' is not a quantity"),
        (["--top", "0"], "top 0 must be at least 1"),
        (["--vary", "model.layers=4"], "model.layers is nothing that a plan decides"),
        (["--vary", "pipeline.schedule=1f1bb"], "did you mean '1f1b'"),
        (["--vary", "parallel.tp=3"], "no layout on 8 GPUs is legal: tp x pp does not divide the GPUs"),
        (["--vary", "parallel.tp=0"], "parallel.tp: 0 cannot be tried; give a whole number from 1"),
        (["--vary", "parallel.tp=[[1]]"], "parallel.tp: a list of 1 item cannot be tried"),
        (["--vary", "parallel.pp=true"], "parallel.pp: true cannot be tried"),
        (["--vary", "training.micro_batch=1.5"], "training.micro_batch: 1.5 cannot be tried"),
        (["--vary", "parallel.zero=7"], "give 0, 1, 2 or 3"),
        (["--vary", "parallel.order=tp"], "give a list such as [tp, cp, dp, pp]"),
        (["--vary", "training.recompute=some"], "'some' cannot be tried; give none or selective or operators or full"),
        (["--vary", "parallel.sequence_parallel=maybe"], "give true or false"),
        (["--max-memory", "100 MB"], "the closest holds"),
        (["--executor", "none"], "--executor 'none' must be a number of processes"),
        (["--write", "best.json"], "a scenario ends in .yaml"),
        (["--pareto", "front.txt"], "a picture ends in"),
        (["-o", "rows.txt"], "a table ends in"),
    ],
)
def test_bad_input(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "tiny_3d", *argv, *(["--executor", "1"] if "--executor" not in argv else [])]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_what_would_make_the_closest_fit() -> None:
    big = simcluster.load(
        "llama3_405b_1024xh100",
        {"gpus": 8, "parallel": {"tp": 8, "zero": 1}, "training.global_batch": 8, "pipeline": {}},
    )
    with pytest.raises(InputError, match=r"none of .* legal layouts fits in 80\.0 GB.*more GPUs are needed"):
        plan(big, 8)
