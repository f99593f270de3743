"""simcluster plan: the best of the whole space, counted, resumed, explained; and every bad input."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.scenario.memory_plan import HEADROOM
from simcluster.scenario.scenario import Scenario
from simcluster.show.output_blocks import render_as_text
from simcluster.show.plan_answer import (
    describe_memory_by_layout,
    describe_own_layout,
    describe_plan,
    explain_winner,
    layout_table,
    ranked_layout_name,
)
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.search.evaluation import SearchState
from simcluster.studies.search.layout import Layout, layout_of_scenario
from simcluster.studies.search.layout_memory import LayoutMemory
from simcluster.studies.search.layout_space import find_broken_keys, make_layout_space
from simcluster.studies.search.own_layout import make_memory_ladder
from simcluster.studies.search.plan import MAX_LISTED, PlanResult, RankedLayout, make_searchable_scenario, plan

SMALL = {
    "training.micro_batch": (1, 2),
    "parallel.sequence_parallel": (False,),
    "training.recompute": ("none", "full"),
    "parallel.zero": (0, 1, 3),
}


def tiny(**changes: Any) -> Scenario:
    values = {path.replace("__", "."): value for path, value in changes.items()}
    return simcluster.scenario("tiny_3d", {"model.sequence_length": 256, **values})


def score_of(played: tuple[float, Layout]) -> float:
    return played[0]


@pytest.fixture(scope="module")
def found() -> PlanResult:
    return plan(tiny(), 8, top=5, vary=SMALL)


@pytest.fixture(scope="module")
def found_few() -> PlanResult:
    return plan(tiny(), 8, top=7, vary=FEW)


@pytest.mark.parametrize(
    ("changes", "gigabytes"),
    [
        ({}, 80.0),
        ({"overlap__grad_reduce": True, "overlap__pipeline": False, "cluster__topology": "dgx_a100"}, 80.0),
        ({"model__hidden_size": 2048}, 1.2),
        ({"model__moe": {"experts": 2, "top_k": 1, "expert_ffn_hidden_size": 2048}}, 80.0),
    ],
)
def test_it_finds_what_playing_everything_finds(changes: dict[str, Any], gigabytes: float) -> None:
    base = make_searchable_scenario(tiny(**changes))
    vary = {**SMALL, "training.recompute": ("none",), "pipeline.schedule": ("1f1b", "zb-v")}
    if changes:
        vary["training.micro_batch"] = (1,)
    else:
        vary |= {"pipeline.schedule": ("1f1b", "interleaved", "zb-v"), "parallel.zero": (0, 1)}
    if "model__moe" in changes:
        vary |= {"parallel.cp": (1, 2), "parallel.tp": (1,), "parallel.etp": (None, 2), "parallel.zero": (0, 1)}
        vary["pipeline.schedule"] = ("1f1b",)
    if gigabytes < 80:
        vary["training.recompute"] = ("none", "full")
    memory, steps, tight = LayoutMemory(base), [], 0
    for layout in make_layout_space(base, 8, vary).layouts_and_counts[0]:
        if find_broken_keys(layout.apply_to(base)):
            continue
        if memory.planned_bytes(layout) > gigabytes * 1e9:
            tight += 1
            continue
        steps.append((simulate_scenario(layout.apply_to(base)).step_time, layout._replace(order=())))
    best = plan(base, 8, top=7, vary=vary, max_memory=gigabytes * 1e9)
    assert [each.score for each in best.best] == [step for step, _ in sorted(dict.fromkeys(steps), key=score_of)[:7]]
    assert best.num_simulated < len(steps), "nothing was pruned"
    assert tight or gigabytes == 80.0


FEW = {**SMALL, "pipeline.schedule": ("1f1b",), "training.micro_batch": (1,)}
MOST_FREE = 0.995
"""Of 80 GB: what is left is about what layouts of the tiny model hold."""


@pytest.fixture(scope="module")
def few() -> list[tuple[float, float, Layout]]:
    """Step, bytes and layout of all that is legal among the few."""
    base = make_searchable_scenario(tiny())
    memory = LayoutMemory(base)
    legal = [
        each
        for each in make_layout_space(base, 8, FEW).layouts_and_counts[0]
        if not find_broken_keys(each.apply_to(base))
    ]
    return [(simulate_scenario(each.apply_to(base)).step_time, memory.planned_bytes(each), each) for each in legal]


@pytest.fixture(scope="module")
def found_tight() -> PlanResult:
    return plan(tiny(), 8, top=3, vary=FEW, headroom=MOST_FREE, near_misses=True)


@pytest.mark.parametrize("headroom", [MOST_FREE, 0.99])
def test_the_winner_leaves_the_headroom_and_what_beats_it_is_marked(
    headroom: float, few: list[tuple[float, float, Layout]], found_tight: PlanResult
) -> None:
    """As all of them played: the best of those below the limit, and the best of the others that are faster."""
    limit = (1 - headroom) * 80e9
    below = sorted({step for step, held, _ in few if held <= limit})
    above = [(step, each._replace(order=())) for step, held, each in few if held > limit and step < below[0]]
    other = headroom != MOST_FREE
    best = plan(tiny(), 8, top=3, vary=FEW, headroom=headroom, near_misses=True) if other else found_tight
    assert best.best[0].score == below[0]
    assert best.capacity == limit
    assert all(each.memory <= limit for each in (*best.best, *best.other_layouts))
    assert [each.score for each in best.tight] == sorted(step for step, _ in dict.fromkeys(above))[:3]
    assert all(limit < each.memory <= 80e9 for each in best.tight)
    assert sum(best.counts.values()) + best.num_simulated == best.num_combinations
    if headroom == MOST_FREE:
        assert best.tight, "the limit excludes nothing that is faster"


def test_by_default_a_tenth_is_left_free_and_a_size_is_the_limit_itself(found: PlanResult) -> None:
    assert (found.capacity, found.memory_limit.headroom) == (0.9 * 80e9, HEADROOM)
    one = {**FEW, "parallel.tp": (2,), "parallel.zero": (1,), "training.recompute": ("none",)}
    named = plan(tiny(), 8, top=1, vary=one, max_memory="72 GB")
    assert (named.capacity, named.memory_limit.headroom) == (72e9, 0.0)
    both = plan(tiny(), 8, top=1, vary=one, max_memory="40 GB", headroom="5%")
    assert both.capacity == pytest.approx(38e9)


def test_orders_that_are_one_program_are_one_row(found_few: PlanResult, few: list[tuple[float, float, Layout]]) -> None:
    """Every layout of the best has the others beside it that take as long to the bit and differ in order alone."""
    best = found_few.best
    assert len({(each.layout._replace(order=()), each.score) for each in best}) == 7
    twins = 0
    for each in best[:-1]:
        alike = {layout for step, _, layout in few if step == each.score}
        alike = {layout for layout in alike if layout._replace(order=()) == each.layout._replace(order=())}
        assert alike == {each.layout, *each.same_program_layouts}
        assert ("dp and pp in either order" in ranked_layout_name(each)) == bool(each.same_program_layouts)
        twins += len(each.same_program_layouts)
    assert twins, "no layout has a twin"


def test_zero_2_and_3_under_a_pipeline_have_a_note(found: PlanResult) -> None:
    def note(zero: int, pp: int) -> str:
        layout = Layout(8, 2, pp, 4 // pp, True, 1, "none", "1f1b", 1, zero, ("tp", "cp", "dp", "pp"))
        return RankedLayout(0.0, layout, 0.0, {}).note(found.base)

    assert "torchtitan supports it" in note(3, 2)
    assert [note(3, 1), note(1, 2), note(0, 2)] == [""] * 3


def test_every_combination_is_counted_once(found: PlanResult) -> None:
    assert sum(found.counts.values()) + found.num_simulated == found.num_combinations
    assert min(found.counts.values()) > 0


def test_the_winner_is_a_scenario_that_takes_what_was_said(found: PlanResult) -> None:
    winner = found.best[0]
    assert simulate_scenario(found.scenario).step_time == winner.step_time
    assert winner.row["account"]
    assert simulate_scenario(found.scenario).memory.total <= winner.memory


def test_processes_threads_and_this_process_find_the_same(
    found: PlanResult, found_few: PlanResult, found_tight: PlanResult
) -> None:
    with ThreadPoolExecutor(3) as pool:
        threads = plan(tiny(), 8, top=7, vary=FEW, executor=pool)
    assert threads.to_dict() == found_few.to_dict()
    assert threads.table.equals(found_few.table)
    assert explain_winner(threads) == explain_winner(found_few)
    assert not found.tight
    assert found_tight.tight
    again = plan(tiny(), 8, top=3, vary=FEW, headroom=MOST_FREE, near_misses=True, executor=2)
    assert again.to_dict() == found_tight.to_dict()


def test_one_is_proven_unless_more_are_asked_for_and_the_next_that_had_to_be_played_stand_behind_it(
    found: PlanResult, found_few: PlanResult
) -> None:
    one = plan(tiny(), 8, vary=FEW)
    behind = [found, found_few, one, plan(tiny(), 8, vary=SMALL)]
    with ThreadPoolExecutor(3) as pool:
        assert plan(tiny(), 8, vary=FEW, executor=pool).to_dict() == one.to_dict()
    assert [each.layout for each in one.best] == [found_few.best[0].layout]
    assert one.num_simulated <= found_few.num_simulated
    assert any(each.runners_up for each in behind)
    for each in behind:
        listed = (*each.best, *each.runners_up)
        assert len(listed) <= MAX_LISTED
        assert [one.score for one in listed] == sorted(one.score for one in listed)
        programs = {(one.score, one.layout._replace(order=())) for one in listed}
        assert len(programs) == len(listed), "an order of the same program is listed by itself"
        assert {one.layout for one in each.runners_up} <= {one.layout for one in each.other_layouts}
        places = [row[0].rstrip("*") for row in layout_table(each).rows[len(each.tight) :]]
        count = len(each.best)
        assert places == [f"{place}" if place <= count else f"({place})" for place in range(1, len(listed) + 1)]


def test_cost_weighs_several_numbers_of_gpus() -> None:
    vary = {**FEW, "parallel.zero": (0, 1)}
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
    legal, counts = make_layout_space(
        make_searchable_scenario(tiny()), 8, {"parallel.zero": (0, 1, 2, 3)}
    ).layouts_and_counts
    assert {layout.zero for layout in legal if layout.dp == 1} == {0}
    assert len({layout.order for layout in legal if layout.pp == 1}) == 1
    assert counts["the same program as another layout"]


def test_words_say_why(found: PlanResult) -> None:
    text = "\n".join(explain_winner(found))
    assert f"Against the second ({ranked_layout_name(found.best[1])})" in text or "Against the second and" in text
    assert "the best with another" in text
    assert "the winner" in text


def test_the_front_is_the_fastest_in_less_and_less_memory(few: list[tuple[float, float, Layout]]) -> None:
    found = plan(tiny(), 8, top=1, vary=FEW, front=True)
    assert len(found.front) > 2
    for before, point in zip(found.front, found.front[1:], strict=False):
        assert point.memory <= 0.95 * before.memory
        assert point.step_time == min(step for step, held, _ in few if held <= 0.95 * before.memory)
    assert not [held for _, held, _ in few if held <= 0.95 * found.front[-1].memory]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_best_and_writes_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--executor", "1", "--top", "3", "--vary", "training.micro_batch=1", "--vary", "pipeline.schedule=1f1b"]
    options += ["--vary", "parallel.zero=0,1", "--vary", "parallel.sequence_parallel=false"]
    files = ["--pareto", "front.png", "--write", "best.yaml", "-o", "rows.csv", "--json", "found.json"]
    assert cli.main(["plan", "tiny_3d", *options, *files]) == 0
    text = capsys.readouterr().out
    for word in (
        "combinations",
        "outcome",
        "tokens/s/GPU",
        "Against the second",
        "the winner: --parallel.tp",
    ):
        assert word in text
    found = json.loads(Path("found.json").read_text())
    assert len(found["best"]) == 3
    assert Path("front.png").stat().st_size > 10_000
    step = found["best"][0]["step_time_s"]
    assert simcluster.simulate(simcluster.scenario("best.yaml")).step_time == step
    rows = Path("rows.csv").read_text().splitlines()
    assert len(rows) > 3
    assert Path("rows.csv.rows").exists()
    pasted = text.rpartition("the winner: ")[2].split()
    assert cli.main(["run", "tiny_3d", *pasted, "--json", "run.json", "--quiet"]) == 0
    assert json.loads(Path("run.json").read_text())["step_time_s"] == step


def test_the_table_has_a_column_for_each_value_that_differs_and_says_once_what_all_share(found: PlanResult) -> None:
    table = layout_table(found)
    values = {"micro": "micro_batch", "ZeRO": "zero", "recompute": "recompute", "sp": "sequence_parallel"}
    for heading, name in values.items():
        differ = len({getattr(each.layout, name) for each in (*found.best, *found.runners_up)}) > 1
        assert (heading in table.header) == differ, heading
    assert len(table.rows) == len(found.best) + len(found.runners_up)
    assert table.shared_settings == f"all layouts: 8 GPUs, micro batch {found.best[0].layout.micro_batch}"
    assert not any(each.layout.sequence_parallel for each in (*found.best, *found.runners_up)), (
        "of which nothing is said"
    )
    zero = table.header.index("ZeRO")
    assert [row[zero] for row in table.rows] == [str(each.layout.zero) for each in (*found.best, *found.runners_up)]


def test_the_table_fits_a_terminal_of_80_columns(found: PlanResult) -> None:
    whole, narrow = layout_table(found), layout_table(found, 80)
    assert 80 < whole.width <= 120
    assert layout_table(found, 120) == whole
    assert narrow.width <= 80
    assert {"tp", "pp", "dp", "step", "MFU", "memory"} <= set(narrow.header) < set(whole.header)
    lines = render_as_text(describe_plan(found, 80)).partition("memory: at most")[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert "exposed: " not in render_as_text(describe_plan(found, 40)), "what has no column has no place in the key"


PLAIN = ["--vary", "pipeline.schedule=1f1b", "--vary", "training.recompute=none", "--vary", "training.micro_batch=1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--gpus", "16"], "16 GPUs requested: the cluster has 8"),
        (["--gpus", "0"], "0 GPUs requested: the cluster has 8"),
        (["--gpus", "5"], "5 GPUs are not a multiple of the 2 GPUs per node; use 4 or 6"),
        (["--gpus", "many"], "--gpus 'many' must be a whole number, or several with commas"),
        (["--objective", "step"], "unknown objective 'step'"),
        (["--objective", "cost"], "the objective 'cost' needs a price"),
        (["--objective", "cost", "--price", "-1"], "must be positive; give dollars per GPU and hour"),
        (["--max-memory", "100 GB"], "max memory 100.0 GB: a"),
        (["--max-memory", "72"], "'72' is not a quantity"),
        (["--headroom", "100%"], "headroom must be the share of GPU memory left free"),
        (
            ["--headroom", "some"],
            "share of GPU memory left free, at least 0 and below 1, as in \"10%\" or 0.1; got 'some'",
        ),
        (["--headroom", "99.99%", *PLAIN], "fits in 80.0 GB per GPU with 99.99 % of it kept free; the closest needs"),
        (["--headroom", "99.99%", *PLAIN], "; this layout fits with headroom 0 (--headroom 0)"),
        (["--top", "0"], "top is 0; it must be at least 1 layout"),
        (["--vary", "model.layers=4"], "model.layers is not an axis of a plan"),
        (["--vary", "pipeline.schedule=1f1bb"], "did you mean '1f1b'"),
        (["--vary", "parallel.tp=3"], "no valid layout for 8 GPUs: tp x pp x cp does not divide the number of GPUs"),
        (["--vary", "parallel.tp=0"], "parallel.tp: 0 is not a valid value; give a whole number from 1"),
        (["--vary", "parallel.tp=[[1]]"], "parallel.tp: a list of 1 item is not a valid value"),
        (["--vary", "parallel.pp=true"], "parallel.pp: true is not a valid value"),
        (["--vary", "training.micro_batch=1.5"], "training.micro_batch: 1.5 is not a valid value"),
        (["--vary", "parallel.zero=7"], "give 0, 1, 2 or 3"),
        (["--vary", "parallel.order=tp"], "give a list such as [tp, cp, dp, pp]"),
        (["--vary", "training.recompute=some"], "'some' is not a valid value; give none or selective or operators"),
        (["--vary", "parallel.sequence_parallel=maybe"], "give true or false"),
        (["--max-memory", "100 MB"], "the closest needs"),
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


def test_the_command_marks_what_is_faster_and_leaves_too_little(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--executor", "1", "--top", "2", "--headroom", f"{MOST_FREE:.1%}", "--near-misses"]
    vary = [f"--vary={path}={','.join(map(str, values)).lower()}" for path, values in FEW.items()]
    assert cli.main(["plan", "tiny_3d", "--model.sequence_length", "256", *options, *vary, "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["headroom"] == MOST_FREE
    assert said["tight"][0]["step_time_s"] < said["best"][0]["step_time_s"]
    assert cli.main(["plan", "tiny_3d", "--model.sequence_length", "256", *options, *vary]) == 0
    text = capsys.readouterr().out
    rows = text.partition("tokens/s/GPU")[2].splitlines()[1:]
    marked = [row for row in rows if row.endswith(" GB ~")]
    assert len(marked) == len(said["tight"])
    assert rows[: len(marked)] == marked
    assert rows[len(marked)].startswith("1 ")
    assert "bounds say enough:" not in text  # a marked one may have such a size
    assert "memory: at most 0.4 GB per GPU, 99.5 % of 80.0 GB left free (--headroom)" in text
    assert "~ faster than the winner, but leaves too little memory free: not recommended" in text


def test_what_would_make_the_closest_fit() -> None:
    big = simcluster.scenario(
        "llama3_405b_1024xh100",
        {"gpus": 8, "parallel": {"tp": 8, "zero": 1}, "training.global_batch": 8, "pipeline": {}},
    )
    with pytest.raises(
        InputError, match=r"none of .* legal layouts fits in 80\.0 GB per GPU with 10 % of it.*use more GPUs"
    ):
        plan(big, 8)


def test_ones_own_layout_stands_beside_the_winner_with_the_reason(found: PlanResult) -> None:
    own, seconds = found.own_layout, simulate_scenario(make_searchable_scenario(tiny())).step_time
    assert own is not None
    assert own.step_time == own.score == seconds
    told = describe_own_layout(found)[0]
    longer = seconds - found.best[0].step_time
    assert told.startswith("Your layout (tp 2 (sequence parallel), pp 2 (1f1b), dp 2 (ZeRO-1)): it takes")
    assert f"{format_seconds(longer)} ({longer / found.best[0].step_time:.1%}) longer than the winner" in told
    assert found.to_dict()["own"]["over_winner"] == pytest.approx(seconds / found.best[0].step_time - 1, rel=1e-12)


def test_ones_own_layout_is_simulated_first_and_may_win_with_values_that_no_axis_tries() -> None:
    states: list[SearchState] = []
    vary = {"training.micro_batch": (1,), "training.recompute": ("none",), "parallel.zero": (1,), "parallel.tp": (2,)}
    own = tiny().with_({"pipeline.schedule": "gpipe"})
    found = plan(own, 8, vary=vary, progress=states.append)
    layout = layout_of_scenario(found.base)
    assert layout not in make_layout_space(found.base, 4, vary).layouts_and_counts[0]
    assert next((state.is_own_layout, state.layout) for state in states if state.num_simulated) == (True, layout)
    assert found.own_layout is not None
    assert (
        found.own_layout.step_time
        == simcluster.simulate(make_searchable_scenario(own)).step_time
        >= found.best[0].step_time
    )
    alone_in_space = plan(own, 8, vary={**vary, "parallel.pp": (2,), "pipeline.chunks": (4,)})
    assert layout not in {each.layout for each in alone_in_space.best}, "an axis that is named is kept to"


def test_the_winner_as_ones_own_is_as_fast_and_other_numbers_of_gpus_have_none(found: PlanResult) -> None:
    sizes = {"parallel.tp": (2,), "parallel.pp": (2,), "training.micro_batch": (1,), "pipeline.schedule": ("1f1b",),
             "training.recompute": ("none",), "parallel.sequence_parallel": (True,), "parallel.zero": (1,)}  # fmt: skip
    same = plan(tiny(), 8, vary=sizes)
    assert describe_own_layout(same)[0].endswith(f", {format_seconds(same.best[0].step_time)} per step, is the winner.")
    other = plan(tiny(), 4, vary={**sizes, "parallel.pp": (1,)})
    assert other.own_layout is None
    assert describe_own_layout(other)[0] == "Your layout uses 8 GPUs; the search is over other numbers of GPUs."


def test_the_second_stage_of_zero_keeps_no_whole_gradients() -> None:
    """A job that reduces gradients at the end would: its ladder reduces them as they come."""
    held = {rung.words: rung.memory or 0.0 for rung in make_memory_ladder(simcluster.scenario("gpt3_175b_64xa100"))}
    gone = held["dp 64, ZeRO 1"] - held["dp 64, ZeRO 2"]
    assert gone == pytest.approx(4 * 174.6e9, rel=0.06)  # 4 bytes a parameter, but for shards and a unit under way


def test_the_ladder_goes_from_one_gpu_up(found: PlanResult) -> None:
    held = {rung.words: rung.memory for rung in found.memory_ladder}
    assert list(held)[:4] == ["one GPU", "dp 8, ZeRO 1", "dp 8, ZeRO 2", "dp 8, ZeRO 3"]
    assert all(size is not None for size in held.values())
    for rung in found.memory_ladder:
        alike = simcluster.scenario("tiny_3d", {"model.sequence_length": 256, **rung.changes})
        total = simcluster.simulate(alike).memory.total
        assert rung.memory is not None
        assert rung.memory >= total  # at the most: what waits between stages, units gathered ahead
        assert rung.memory == total or alike.parallel.pp > 1 or alike.parallel.zero == 3
    assert "  one GPU                    1.6 GB  fits" in describe_memory_by_layout(found)
