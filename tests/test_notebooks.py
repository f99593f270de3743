"""Notebooks run, and each .ipynb is what its .py says.

After a change of a .py or of a figure:  python tests/test_notebooks.py --regenerate
"""

import base64
import io
import json
import os
import runpy
import sys
from itertools import groupby
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
LARGEST_BYTES = 400_000

of_others = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the kernel's client, not us


def ids(path: Path) -> str:
    return path.stem


def executed(source: Path, folder: Path) -> NotebookNode:
    """The notebook of a source, run in a fresh kernel from ``folder``; a cell that raises or warns fails."""
    notebook = jupytext.read(source)
    strict = nbformat.v4.new_code_cell("import warnings; warnings.simplefilter('error')")
    notebook.cells.insert(0, strict)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    notebook.cells.remove(strict)
    for cell in notebook.cells:  # as if the first of ours had been the first
        for counted in (cell, *cell.get("outputs", [])):
            if counted.get("execution_count"):
                counted.execution_count -= 1
    return notebook


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
    ]


@pytest.mark.parametrize("source", SOURCES[1:], ids=ids)
def test_runs_as_a_script(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported everything already; the first one runs in one of its own."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    with plt.rc_context():
        runpy.run_path(str(source), run_name="__main__")
    plt.close("all")
    assert not list(tmp_path.iterdir()), "a notebook leaves no files behind"


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_notebook_has_the_cells_of_its_source(source: Path) -> None:
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert cells(notebook) == cells(jupytext.read(source))


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_notebook_is_executed_small_and_from_no_machine(source: Path) -> None:
    path = source.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
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


@of_others
def test_the_first_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)
    fresh = executed(SOURCES[0], tmp_path)
    committed = nbformat.read(SOURCES[0].with_suffix(".ipynb"), as_version=4)
    assert kinds(fresh) == kinds(committed)
    assert not list(tmp_path.iterdir()), "a notebook leaves no files behind"


def kinds(notebook: NotebookNode) -> list[list[str]]:
    """What each cell puts out, in order; text may come in one piece or in several, as time goes."""
    return [
        [kind for kind, _ in groupby(output.output_type for output in cell.get("outputs", []))]
        for cell in notebook.cells
    ]


# --- regeneration ---------------------------------------------------------------------------------------------------


def regenerate(source: Path) -> None:
    """Write the .ipynb beside its source: executed, pictures with few colours, nothing of this machine."""
    notebook = executed(source, source.parent)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = _few_colours(data["image/png"])
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    source.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")


def _few_colours(png: str) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        small = image.convert("RGB").quantize(colors=64, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


if __name__ == "__main__":
    if sys.argv[1:] != ["--regenerate"]:
        sys.exit(__doc__)
    os.environ.pop("MPLBACKEND", None)
    for each in SOURCES:
        regenerate(each)
