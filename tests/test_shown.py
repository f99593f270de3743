"""What Python shows of objects: a line, a text, a picture; of everything that a public function returns."""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter

import simcluster
from simcluster import plots
from simcluster.base.display import Displayable, clip_line
from simcluster.base.errors import InputError
from simcluster.base.satellites import DISPLAY_TABLES
from simcluster.base.satellites import load_object as load_place
from simcluster.base.texts import escape_controls
from simcluster.cli import main
from simcluster.cli.answers import ANSWERS
from simcluster.evidence.validation.schedule_studies import ScheduleTask
from simcluster.evidence.validation.step_studies import StepTask
from simcluster.interactive.notebook import cell_drawings
from simcluster.interactive.report.html import typeset_numbers
from simcluster.longrun.studies.policy_comparison import PolicyComparison
from simcluster.longrun.studies.training import train_stages
from simcluster.results.result import Result
from simcluster.results.step_metrics import METRICS
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.output_blocks import HeadlineValues, OutputBlock, TableBlock, TextLines, render_as_text
from simcluster.studies.multi_job import PlacedJob
from simcluster.studies.whatif.largest_value import LargestFittingValue

LONGEST_LINE = 200
MOST_TEXT = 20_000
MOST_HTML = 300_000
WEEK = {"days": "7 d", "failures": [{"name": "machine", "of": "host", "mtbf": "3 d"}],
        "checkpoint": {"stall": "20 s", "every": "1 h"}}  # fmt: skip
STAGES = [{"until": "0.5T tokens", "set": {"training.global_batch": 64}}, {"set": {}}]
FEW = {"pipeline.schedule": ("1f1b",), "training.micro_batch": (1,), "training.recompute": ("none",)}


@cache
def scenario() -> Scenario:
    return load("tiny_3d")


@cache
def result() -> Result:
    return simcluster.simulate(scenario())


@cache
def week() -> Any:
    return simcluster.train(load("tiny_dp", {"run": WEEK}), played=2)


@cache
def replicas() -> Any:
    return simcluster.monte_carlo(load("jitter_8", {"replicas": 4}))


@cache
def machine() -> Any:
    return simcluster.load_cluster("dgx_h100", [("nodes", 1)])


def stages() -> Any:
    run = {**WEEK, "days": None, "tokens": "1T", "stages": STAGES}
    return train_stages(load("tiny_dp", {"run": run}), played=2)


def together() -> Any:
    jobs = [PlacedJob(load("tiny_dp"), tuple(range(first, first + 4))) for first in (0, 4)]
    return simcluster.simulate_jobs(jobs, machine())


def replayed() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        week().log.to_csv(log, index=False)
        return simcluster.replay_failures(week().scenario, log, played=1)


MADE: dict[str, Callable[[], Any]] = {
    "check": lambda: simcluster.check("tiny_dp"),
    "collective_times": lambda: simcluster.collective_times(machine(), range(8), "all_reduce", 1e9),
    "compare_policies": lambda: PolicyComparison({"every hour": week(), "the same": week()}),
    "compare_replicas": lambda: simcluster.compare_replicas(replicas(), replicas()),
    "diff": lambda: simcluster.diff("tiny_dp", result()),
    "job_memory": lambda: simcluster.job_memory("tiny_3d"),
    "kernels": lambda: simcluster.kernels("tiny_3d"),
    "largest_that_fits": lambda: LargestFittingValue("model.layers", 4, 8, 70e9, 9, 81e9, 80e9, {}, None),
    "scenario": scenario,
    "load_cluster": machine,
    "monte_carlo": replicas,
    "plan": lambda: simcluster.plan(scenario(), 8, top=2, vary=FEW),
    "simulate_schedules": lambda: simcluster.simulate_schedules(["1f1b", "zb-h1"], stages=4, microbatches=8),
    "replay_failures": replayed,
    "replay_trace": lambda: simcluster.replay_trace(result()),
    "compute_optimal": lambda: simcluster.compute_optimal(compute="1e22"),
    "sensitivity": lambda: simcluster.sensitivity(result(), ("network", "flops")),
    "simulate": result,
    "simulate_costs": lambda: simcluster.simulate_costs(
        simcluster.Costs(forward=1.0, backward=2.0), stages=4, microbatches=8
    ),
    "simulate_jobs": together,
    "zero_stages": lambda: simcluster.zero_stages("70B"),
    "stragglers": lambda: simcluster.stragglers(result()),
    "train": week,
    "train_stages": stages,
    "estimate_training": lambda: simcluster.estimate_training("70B", "15T"),
    "validate_studies": lambda: simcluster.validate_studies(["korthikanti_table4"]),
    "what_if_free": lambda: simcluster.what_if_free(result(), ("forward", "tp")),
    "mitigations": lambda: simcluster.mitigations(result()),
}
"""What public functions return, by their names."""
PARTS: dict[str, Callable[[], Any]] = {
    "cluster": lambda: scenario().cluster.built,
    "best": lambda: made("plan").best,
    **{name: lambda name=name: getattr(result(), name)  # type: ignore[misc]
       for name in ("account", "critical_path", "job", "memory_timeline", "overlap")},
}  # fmt: skip
"""What a user meets in those."""


@cache
def made(name: str) -> Any:
    return {**MADE, **PARTS}[name]()


def shown_in(it: Any) -> list[Displayable]:
    """The object, or the members of a list of them."""
    return [it] if isinstance(it, Displayable) else [each for each in it if isinstance(each, Displayable)]


@pytest.mark.parametrize("name", [*MADE, *PARTS])
def test_an_object_is_a_line_at_a_prompt(name: str) -> None:
    for each in shown_in(made(name)):
        assert type(each).__name__ in repr(each)
        assert len(repr(each)) < LONGEST_LINE
        assert "\n" not in repr(each)
        assert "object at 0x" not in repr(each)


@pytest.mark.parametrize("name", [*MADE, *PARTS])
def test_an_object_is_printed_as_its_command_prints_it(name: str) -> None:
    it = made(name)
    text = str(it)
    assert 0 < len(text) < MOST_TEXT
    assert not isinstance(it, Displayable) or it.summary() == text
    assert "array(" not in text
    assert "object at 0x" not in text


@pytest.mark.parametrize("name", [*MADE, *PARTS])
def test_an_object_is_a_picture_in_a_notebook(name: str) -> None:
    """Small, whole, and complete in itself: no script, nothing to be fetched, no name that a page could have twice."""
    for each in shown_in(made(name))[:1]:
        html = each._repr_html_()
        assert len(html) < MOST_HTML
        tree = ET.fromstring(html)
        assert tree.attrib == {"class": "simcluster"}
        assert not {part.tag for part in tree.iter()} & {"script", "img", "link", "iframe", "a"}
        assert not [part.tag for part in tree.iter() if "id" in part.attrib]
        assert "url(" not in html
        assert "http" not in "".join(part.text or "" for part in tree.iter("style"))
        assert "nan" not in {word for part in tree.iter("path") for word in re.findall("[a-z]+", part.get("d", ""))}


def cells_of(block: OutputBlock) -> list[str]:
    """What a block says, piece by piece."""
    match block:
        case HeadlineValues():
            return [piece for fact in block.values for piece in (fact.name, fact.value, fact.remark)]
        case TableBlock():
            return [cell for row in (block.header, *block.rows) for cell in row]
        case TextLines():
            return [line for line in block.lines if line.strip()]
        case _:
            return []


@pytest.mark.parametrize("name", [*MADE, *PARTS])
def test_text_and_page_say_all_of_an_answer(name: str) -> None:
    """An answer is built once, as blocks; both renderers have every piece of it."""
    it = made(name)
    place = next((ANSWERS[each.__name__] for each in type(it).__mro__ if each.__name__ in ANSWERS), None)
    if place is None or isinstance(it, list):
        return
    blocks = load_place(place)(it)
    text, page = render_as_text(blocks), " ".join("".join(ET.fromstring(it._repr_html_()).itertext()).split())
    assert str(it) == escape_controls(text)
    for block in blocks:
        for piece in cells_of(block):
            assert piece in text or isinstance(block, TableBlock)  # a chart has no header
            assert " ".join(typeset_numbers(piece).split()) in page or " ".join(piece.split()) in page


def answers() -> dict[str, set[type]]:
    """The classes that public functions say they return, by function."""
    found = {}
    for name in simcluster.__all__:
        function = getattr(simcluster, name)
        if inspect.isfunction(function):
            words = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
            home = vars(importlib.import_module(function.__module__))
            known = {home[word] for word in words if inspect.isclass(home.get(word))}
            found[name] = {each for each in known if each.__module__.startswith("simcluster")}
    return found


def test_all_that_public_functions_return_is_shown() -> None:
    """A new one: derive its result from ``base.display.Displayable``, and give it a line in ``show/repr_lines.py``."""
    of = answers()
    assert {each for each, classes in of.items() if not classes} == {
        "compare", "compare_packing", "differences", "no_time_limit", "inflation", "list_names", "report",
        "scenario_schema", "studio", "sweep",
    }, "these return tables of pandas, widgets, or plain data, which show themselves"  # fmt: skip
    assert {each for classes in of.values() for each in classes if not issubclass(each, Displayable)} == set()


def test_what_is_said_is_of_classes_that_there_are() -> None:
    def below(of: type) -> set[str]:
        return {each.__name__ for each in of.__subclasses__()}.union(*(below(each) for each in of.__subclasses__()))

    for name in MADE:
        made(name)
    import simcluster.interop.replay.step_times
    import simcluster.longrun.studies.advice  # noqa: F401

    named = {name for places in DISPLAY_TABLES.values() for place in places for name in load_place(place)}
    named -= {"", "RankedLayout", "Records"}  # a named tuple has no base
    assert named <= below(Displayable)


def test_what_is_compared_by_its_line_says_all_of_it() -> None:
    """Rows of a validation are played once where their ``repr`` is the same: nothing in them may be shown in short."""
    for kind in (StepTask, ScheduleTask, simcluster.Costs):
        assert not issubclass(kind, Displayable)
        words = {word for each in fields(kind) for word in re.findall(r"\w+", str(each.type))}
        assert not words & {each.__name__ for each in Displayable.__subclasses__()}


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_an_attribute(name: str) -> None:
    assert getattr(result(), name) == METRICS[name].formula(result())
    assert name in dir(result())


def test_a_step_of_given_times_has_those_that_need_no_job() -> None:
    run = made("simulate_costs")
    assert run.bubble_fraction == pytest.approx(9 / 33)
    assert run.step_time_s == run.step_time
    assert not hasattr(run, "tokens_per_s")


def test_the_breakdown_is_a_series_that_sums_to_the_step() -> None:
    assert isinstance(result().breakdown, pd.Series)
    assert result().breakdown.sum() == pytest.approx(result().step_time, rel=1e-12)
    assert dict(result().breakdown) == result().to_dict()["breakdown_s"]


def test_the_summary_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny_3d"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{result().summary()}\n" == f"{result()}\n"
    assert main(["diff", "tiny_dp", "tiny_3d"]) == 0
    assert capsys.readouterr().out == f"{made('diff')}\n"


def test_a_gantt_is_of_the_job_s_own_ranks() -> None:
    """Any rank of the job, simulated or not; the title says which step it is."""
    last = scenario().gpus - 1
    assert result().representative_of(last) != last
    picture: Any = result().gantt(ranks=[0, last], width=6)
    (axes,) = picture.axes
    assert [label.get_text().split(" · ")[0] for label in axes.get_yticklabels()] == ["rank 0", f"rank {last}"]
    words = [text.get_text() for text in picture.findobj() if hasattr(text, "get_text")]
    assert any(scenario().name in word for word in words)
    for ranks in ([], [last + 1], [-1]):
        with pytest.raises(InputError, match=f"this job has ranks 0 to {last}"):
            result().gantt(ranks=ranks)


def test_a_gantt_is_interactive_where_that_is_asked_for() -> None:
    cell = result().gantt(interactive=True, ranks=[7])
    assert cell._repr_html_() == plots.gantt_html(result(), ranks=[7])._repr_html_()
    with pytest.raises(InputError, match="width, title cannot be used with interactive=True, which takes only ranks"):
        result().gantt(interactive=True, width=3, title="mine")  # type: ignore[call-overload]


@pytest.mark.parametrize("chosen", [False, True])
def test_a_notebook_shows_figures_though_they_are_not_pyplot_s(chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a display formatter as a fresh kernel has it; what a user chose for figures stays."""
    formatter = DisplayFormatter()
    png = formatter.formatters["image/png"]
    if chosen:
        png.for_type("matplotlib.figure.Figure", lambda figure: b"chosen")
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(display_formatter=formatter))
    for picture in (result().gantt(width=6), plots.gantt(result(), width=6)):
        data, _ = formatter.format(picture, include={"image/png"})
        assert data["image/png"].startswith(b"chosen" if chosen else b"\x89PNG")


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_a_long_name_does_not_make_a_long_line() -> None:
    named = scenario().model_copy(update={"name": "many words\n" * 50})
    assert len(repr(named)) < LONGEST_LINE
    assert "\n" not in repr(named)
    assert clip_line("one  two\nthree", 9) == "one tw..."


def test_names_are_text_and_nothing_else() -> None:
    hostile = scenario().model_copy(update={"name": "<script>alert('&')</script>"})
    tree = ET.fromstring(hostile._repr_html_())
    assert any(part.text == hostile.name for part in tree.iter("div"))


def test_rows_go_where_boxes_would_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_drawings, "_MOST_BOXES", 12)
    tree = ET.fromstring(cell_drawings.timeline_html(result().timeline, 8))
    assert "1 of 8 ranks shown" in "".join(tree.itertext())


def test_boxes_lie_where_spans_do() -> None:
    """A pipeline of 4 stages and 8 microbatches: each computes 24 of 33 seconds, the first from the begin on."""
    tree = ET.fromstring(cell_drawings.timeline_html(made("simulate_costs").timeline, 4))
    for stage, drawing in enumerate(tree.iter("svg")):
        assert drawing.get("aria-label") == f"rank {stage} · stage {stage}"
        paths = [path for path in drawing.iter("path") if path.get("class") in ("k-forward", "k-backward")]
        boxes = [
            (float(left), float(width))
            for path in paths
            for left, width in re.findall(r"M(\S+) 0h(\S+?)v", path.get("d", ""))
        ]
        assert len(boxes) == 16
        assert sum(width for _, width in boxes) == pytest.approx(1000 * 24 / 33, abs=1)
        assert min(left for left, _ in boxes) == pytest.approx(1000 * stage / 33, abs=0.1)
