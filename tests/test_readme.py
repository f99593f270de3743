"""README and the pages of docs say what the program does: outputs, figures, table of studies, commands and pictures.

After a change of a figure:  python tests/documents --regenerate readme pictures
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import above_aim, figures, notebooks, pictures, played, readme, scores
from documents.accepted import LONG, YOURS, wants
from documents.commands import ROOT
from documents.shown import differences, read_shown, shown_by, write_shown
from documents.tested import made_here

pytestmark = pytest.mark.documents
REGENERATE = "python tests/documents --regenerate"
HEALTH = "simcluster collective --measured examples/nccl.log --platform dgx-h100"


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", figures.SENTENCES, ids=lambda sentence: sentence.text[:30])
def test_a_sentence_says_what_runs_give(sentence: figures.Sentence) -> None:
    assert readme.figures_in(sentence.text, readme.text()).groups() == sentence.figures(), REGENERATE


def test_every_number_with_a_unit_is_checked_or_not_ours() -> None:
    assert not figures.unchecked(readme.text())


def test_a_number_that_nothing_stands_behind_is_found() -> None:
    whole = readme.text().replace("Routes are static", "A step takes 12.3 s. Routes are static")
    (found,) = figures.unchecked(whole)
    assert "A step takes 12.3 s" in found


@pytest.mark.parametrize("sentence", figures.SENTENCES, ids=lambda sentence: sentence.text[:30])
def test_figures_are_replaced_and_nothing_else(sentence: figures.Sentence) -> None:
    whole = readme.text()
    old = readme.figures_in(sentence.text, whole).groups()
    new = tuple(f"{number}9" for number in range(len(old)))
    changed = readme.with_figures(sentence.text, new, whole)
    assert readme.figures_in(sentence.text, changed).groups() == new
    assert readme.with_figures(sentence.text, old, changed) == whole


def test_regenerating_would_change_nothing() -> None:
    assert figures.all_renewed(readme.text()) == readme.text()
    assert figures.all_stale() == []


def test_the_first_notebook_has_as_many_cells_as_is_said() -> None:
    words = ("six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    code = [cell for cell in notebooks.stored(notebooks.SOURCES[0]).cells if cell.cell_type == "code"]
    assert f"the first step in {words[len(code) - 6]} cells" in readme.text()


def test_ranks_and_events_of_the_table_of_benchmarks() -> None:
    """Of the cases that play in a second; their times are of a day and a machine."""
    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    from table_cases import LLAMA, LLAMAS, simulated

    for case, begins in {
        "16,384 GPUs": "16,384 GPUs (",
        "one slow GPU": "one slow GPU among",
        "one slow link": "one slow link (",
    }.items():
        (row,) = re.findall(rf"^\| {re.escape(begins)}.*$", readme.text(), re.MULTILINE)
        found = simulated(LLAMA, LLAMAS[case])
        assert row.endswith(f" {found.count:,} |"), f"{case}: {found.count:,} {found.what}"
        assert re.search(rf"\({found.more.split()[0]}[ )]", row), found.more


# --- the table of studies ---------------------------------------------------------------------------------------------


def test_the_table_is_what_validate_gave() -> None:
    assert not scores.stale(readme.text()), REGENERATE


def test_what_is_above_its_aim_is_what_validate_gave() -> None:
    assert not above_aim.stale(scores.read(), readme.text()), REGENERATE
    assert [name for name, *_ in above_aim.lines_of(readme.text())] == list(above_aim.GROUPS)


def test_every_study_has_a_row() -> None:
    assert {study for study, _ in scores.ROWS.values()} == set(scores.read()["studies"])
    assert [row.key for row in scores.rows_of(readme.text())] == list(scores.ROWS)
    names = [re.findall(r"^name: (.*)$", path.read_text(), re.MULTILINE) for path in scores.STUDIES.glob("*.yaml")]
    assert {name for (name,) in names} == set(scores.read()["studies"])


@pytest.mark.parametrize("study", scores.CHEAP)
def test_a_study_scored_again_is_as_kept(study: str) -> None:
    """Those that need no other data and hardly any time; the others with --scores."""
    ((name, found),) = scores.now(study).items()
    assert found == scores.read()["studies"][name], "python tests/documents --scores DIR"


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Every command of README run up to its first simulation, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "documents"), "--accepted"], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_command_is_accepted(outcomes: dict[str, str]) -> None:
    """What can run in a clone comes to its simulation; what needs a file of the reader's complains of nothing else."""
    refused = {command: said for command, said in outcomes.items() if said not in ("simulates", "done")}
    unlike = {command: said for command, said in refused.items() if _missing(command) not in said}
    assert not unlike
    asked = {*readme.commands(), *readme.in_tables()} - {pictures.command_of(name) for name in pictures.DRAWN}
    assert set(outcomes) == asked
    assert len(readme.commands()) > 40
    assert len(readme.in_tables()) > 5
    assert len(refused) < 4


def _missing(command: str) -> str:
    """What such a complaint must name; of a command that wants nothing there must be none."""
    word = wants(command)
    named = {"calibrate": "needs PyTorch", "torch": "needs PyTorch", "validate": "*.yaml: no such file"}
    return "\0" if word is None else named.get(word, f"{word}: ")


def test_what_is_said_to_be_missing_is() -> None:
    words = " ".join([*readme.commands(), *(command for _, command in played.all_commands())]).split()
    assert all(word in words for word in (*YOURS, *LONG))


def test_every_example_is_tried_and_explained() -> None:
    """Each file of the folder has a row, and a command of the pages or of its row reads it; all are small."""
    folder = ROOT / "examples"
    said = (folder / "README.md").read_text(encoding="utf-8")
    tried = f"{' '.join(readme.commands())} {said}"
    for path in folder.iterdir():
        if path.name not in ("README.md", "make.py", "__pycache__"):
            assert f"| `{path.name}{'/' * path.is_dir()}` |" in said
            assert f"examples/{path.name}" in tried
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 1e6


def test_an_example_that_has_something_wrong_shows_it() -> None:
    from simcluster.interop.replay import load_recorded_job, measure_stragglers

    found = measure_stragglers(load_recorded_job(ROOT / "examples" / "trace.parquet"))
    assert found.slowdown > 1.1
    assert "much slower than it should be" in played.run_here(HEALTH)


# --- pages that are played --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", played.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, usual_engines: None) -> None:
    """But for the studies, which test_scenarios.py plays."""
    now = played.printed(page, studies=False)
    shown = {number: block for number, block in enumerate(played.blocks_of(page)) if block.shown is not None}
    assert len(shown) >= 4
    assert not [
        block.commands
        for number, block in shown.items()
        if block.study is None and not played.is_shown(block, now[number])
    ], REGENERATE


def test_what_is_left_out_is_not_compared() -> None:
    block = played.Block(("simcluster list",), "a\n...\nc\n", (0, 0))
    assert played.is_shown(block, "a\nb\nb\nc  \n")
    assert not played.is_shown(block, "a\nb\nd\n")
    assert not played.is_shown(block, "b\nb\nc\n")
    assert not played.is_shown(played.Block(("simcluster list",), "a\n", (0, 0)), "a\nb\n")


def test_the_cookbook_answers_nine_questions() -> None:
    page = played.PAGES[1]
    headings = re.findall(r"^## ([a-i])\. ", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert "".join(headings) == "abcdefghi"
    assert len({block.study for block in played.blocks_of(page)} - {None}) == 8  # two have none


def test_python_in_the_pages_uses_public_names() -> None:
    import simcluster

    blocks = re.findall(r"```python\n(.*?)```", readme.text(), re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        compile(block, "page", "exec")
        assert set(re.findall(r"\bsimcluster\.(\w+)", block)) <= set(simcluster.__all__)


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_every_picture_has_its_command() -> None:
    known = {*pictures.DRAWN, *pictures.MEASURED, *pictures.PLAYED}
    assert set(pictures.shown_in_readme()) == {path.stem for path in pictures.PICTURES.glob("*.png")} == known
    assert pictures.command_of("gpt3_175b_64xa100") == readme.commands()[0]  # "and draws the picture above"
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"/(\w+)\.png\)\n\n`([^`]*)`", gallery)) == {
        name: pictures.command_of(name) for name in pictures.DRAWN
    }


@made_here
@pytest.mark.parametrize("picture", pictures.DRAWN)
def test_a_picture_shows_what_its_command_draws(picture: str) -> None:
    """Words to the letter, and the numbers that are drawn; not pixels, which are matplotlib's and the fonts'."""
    assert not pictures.stale(picture), f"{REGENERATE} pictures"


@made_here
@pytest.mark.parametrize("picture", pictures.PLAYED)
def test_a_picture_of_many_steps_shows_them_as_they_play(picture: str) -> None:
    assert not pictures.PLAYED[picture].stale(), f"{REGENERATE} pictures"


def test_growth_was_measured_with_these_cases() -> None:
    """Its times are of a day; that its points are the ones that its command measures can be held."""
    assert not pictures.measured_otherwise()


def test_a_stale_picture_is_found(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    def drawn(values: list[float], title: str, **options: Any) -> Figure:
        figure = Figure()
        axes = figure.subplots()
        axes.bar(["a", "b"], values, **options)
        axes.set_title(title)
        return figure

    figure = drawn([1.0, 2.0], "13.71 s")
    path = tmp_path / "x.png"
    figure.savefig(path)
    assert differences(read_shown(path), shown_by(figure)) == ["it does not say what it shows"]
    write_shown(path, shown_by(figure))
    assert differences(read_shown(path), shown_by(figure)) == []
    assert differences(read_shown(path), shown_by(drawn([1.0, 2.0], "13.71 s"))) == []
    assert differences(read_shown(path), shown_by(drawn([1.0, 2.00001], "13.71 s"))) == ["other numbers are drawn"]
    assert differences(read_shown(path), shown_by(drawn([1.0, 2.0], "13.71 s", color="red"))) == [
        "other numbers are drawn"
    ]
    said = differences(read_shown(path), shown_by(drawn([1.0, 2.0], "13.17 s")))
    assert said == ["no longer: '13.71 s'", "new: '13.17 s'"]
