"""Notebooks run, each .ipynb is what its .py says, and its outputs are those of a fresh run.

After a change of a .py or of a figure:  python tests/documents --regenerate notebooks
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import notebooks
from documents.notebooks import SOURCES
from documents.tested import made_here

if TYPE_CHECKING:  # Jupyter's libraries are imported by the tests that use them: see ``documents.notebooks``
    from nbformat import NotebookNode

LARGEST_BYTES = 400_000

pytestmark = pytest.mark.documents
of_others = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the kernel's client, not us
SMALL = """\
# %% [markdown]
# # A title

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown

wide = pd.DataFrame({f"a rather long name {number}": [number / 3, None] for number in range(12)})
wide

# %%
print("said")
plt.plot([1, 2], [3, 4])
plt.show()
wide.iloc[0].round(3)

# %%
plt.plot([1, 2], [3, 4])
"silent";

# %%
Markdown(f"Half of it is **{0.5:.0%}**.")
"""


def ids(path: Path) -> str:
    return path.stem


def cells(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_there_are_notebooks() -> None:
    assert [source.stem for source in SOURCES] == [
        "01_first_step",
        "02_worked_examples",
        "03_schedules",
        "04_stragglers",
        "05_accuracy",
        "06_planning",
        "07_long_run",
        "08_budget_and_loss",
        "09_order_statistics",
    ]


@made_here
@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_stored_outputs_are_those_of_a_fresh_run(source: Path) -> None:
    """Texts and tables to the letter; of each picture its words and the numbers that it draws."""
    before = set(source.parent.iterdir())
    fresh = notebooks.executed(source, paint=False)
    assert set(source.parent.iterdir()) == before, "a notebook leaves no files behind"
    assert not notebooks.stale(source, fresh), "python tests/documents --regenerate notebooks"


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_notebook_has_the_cells_of_its_source(source: Path) -> None:
    import jupytext

    assert cells(notebooks.stored(source)) == cells(jupytext.read(source))


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_notebook_is_executed_small_and_from_no_machine(source: Path) -> None:
    import nbformat

    path = source.with_suffix(".ipynb")
    notebook = notebooks.stored(source)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < LARGEST_BYTES
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not [cell for cell in notebook.cells if set(cell.metadata) - {"lines_to_next_cell"}]
    assert str(Path.home()) not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_uses_no_private_names(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert "._" not in text
    assert "import _" not in text


# --- the mechanism ----------------------------------------------------------------------------------------------------


@of_others
def test_a_kernel_stores_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process put out what they do in Jupyter: text, tables, Markdown, pictures, in this order."""
    import jupytext
    from nbclient import NotebookClient

    monkeypatch.delenv("MPLBACKEND", raising=False)
    source = tmp_path / "small.py"
    source.write_text(SMALL, encoding="utf-8")
    ours = notebooks.executed(source, paint=True)
    theirs = jupytext.read(source)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(theirs, timeout=120, kernel_name="python3", resources=resources).execute()
    assert [len(cell.get("outputs", [])) for cell in ours.cells] == [0, 1, 3, 1, 1]
    for own, kernel in zip(ours.cells, theirs.cells, strict=True):
        outputs = own.get("outputs", []), kernel.get("outputs", [])
        assert [notebooks.texts(each) for each in outputs[0]] == [notebooks.texts(each) for each in outputs[1]]
        pictures = [["image/png" in each.get("data", {}) for each in them] for them in outputs]
        assert pictures[0] == pictures[1]


def test_what_is_stale_is_found(tmp_path: Path) -> None:
    """Another word in a table, another number in a picture, and prose that the .py has otherwise."""
    source = tmp_path / "small.py"
    source.write_text(SMALL, encoding="utf-8")
    notebooks.store(source)
    assert notebooks.stale(source, notebooks.executed(source, paint=False)) == []
    source.write_text(SMALL.replace("A title", "Another").replace("0.5:", "0.4:").replace("[3, 4]", "[3, 5]"))
    changed = notebooks.executed(source, paint=False)
    assert [each.split(":")[0] for each in notebooks.stale(source, changed)] == [f"cell {n}" for n in (0, 2, 3, 4)]
    for cell in changed.cells:  # as if the sources were the same
        cell.source = next(old.source for old in notebooks.stored(source).cells if old.id == cell.id)
    assert notebooks.stale(source, changed) == [
        "cell 2: other numbers are drawn",
        "cell 3: other numbers are drawn",
        "cell 4: 'Half of it is **50%**.' stored, 'Half of it is **40%**.' now",
    ]
