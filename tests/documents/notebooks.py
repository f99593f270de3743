"""Notebooks executed cell by cell in this process, with the outputs that Jupyter would store.

Where a cell's figures are not painted the outputs are the same but for the pixels: what each figure shows
(``documents.shown``) is kept in its output's metadata, and compared.  A test holds that a kernel says the same.
Jupyter's libraries are imported where they are used: they take a second, and every worker collects all tests.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import warnings
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from documents.commands import ROOT
from documents.shown import KEY, differences, shown_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nbformat import NotebookNode

SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
_RICH = {"_repr_html_": "text/html", "_repr_markdown_": "text/markdown"}


def executed(source: Path, *, paint: bool) -> NotebookNode:
    """Run the notebook of a source, from its folder as Jupyter does; a cell that raises or warns fails."""
    import jupytext
    from nbformat import NotebookNode

    notebook = jupytext.read(source)
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    with _at_home(source.parent):
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
            cell.metadata.clear()
            if cell.cell_type == "code":
                count += 1
                cell.execution_count = count
                cell.outputs = _outputs(cell.source, f"{source.name}, cell {number}", names, count, paint=paint)
    return notebook


@contextlib.contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    """From a folder, with matplotlib's and pandas' options as they are in a fresh kernel; restored afterwards."""
    import matplotlib as mpl
    import pandas as pd
    from matplotlib import pyplot as plt

    before = Path.cwd()
    backend = mpl.get_backend()
    plt.close("all")
    plt.switch_backend("agg")
    os.chdir(folder)
    try:
        with mpl.rc_context(), warnings.catch_warnings():
            mpl.rcdefaults()
            warnings.simplefilter("error")
            pd.reset_option("display")
            pd.set_option("display.max_columns", 20)  # what pandas takes where it is not on a terminal
            yield
    finally:
        pd.reset_option("display")
        os.chdir(before)
        plt.close("all")
        plt.switch_backend(backend)


def _outputs(source: str, where: str, names: dict[str, Any], count: int, *, paint: bool) -> list[NotebookNode]:
    """Run a cell: what it prints, the figures that it leaves open, and its last expression's value, if any."""
    from matplotlib import pyplot as plt
    from nbformat.v4 import new_output

    code = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    tree = ast.parse(code, filename=where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) and not _silent(code) else None
    out = io.StringIO()
    value = None
    early: list[NotebookNode] = []

    def show(*_: object, **__: object) -> None:
        early.extend(_open_figures(paint=paint))

    with contextlib.redirect_stdout(out), mock.patch.object(plt, "show", show):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    printed = [new_output("stream", name="stdout", text=out.getvalue())] if out.getvalue() else []
    valued = [] if value is None else [_valued(value, count, paint=paint)]
    return [*printed, *early, *valued, *_open_figures(paint=paint)]


def _open_figures(*, paint: bool) -> list[NotebookNode]:
    """What is open is shown and closed, as a kernel does at ``plt.show()`` and at the end of a cell."""
    from matplotlib import pyplot as plt
    from nbformat.v4 import new_output

    figures = [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")
    return [_pictured(new_output("display_data"), figure, paint=paint) for figure in figures]


def _silent(code: str) -> bool:
    return code.rstrip().endswith(";")


def _valued(value: Any, count: int, *, paint: bool) -> NotebookNode:
    """The output of a cell's value: plain text, HTML or Markdown where it has them, a picture where it is a figure."""
    from IPython.lib.pretty import pretty
    from matplotlib.figure import Figure
    from nbformat.v4 import new_output

    output = new_output("execute_result", execution_count=count)
    if isinstance(value, Figure):
        return _pictured(output, value, paint=paint)
    output.data["text/plain"] = pretty(value)
    for method, kind in _RICH.items():
        text = getattr(value, method, lambda: None)()
        if text is not None:
            output.data[kind] = text
    return output


def _pictured(output: NotebookNode, figure: Figure, *, paint: bool) -> NotebookNode:
    output.metadata[KEY] = shown_by(figure)
    output.data["text/plain"] = repr(figure)
    if paint:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        output.data["image/png"] = base64.b64encode(_few_colours(buffer)).decode()
    return output


def _few_colours(picture: io.BytesIO) -> bytes:
    from PIL import Image

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


# --- what is stored ---------------------------------------------------------------------------------------------------


def stored(source: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def store(source: Path) -> None:
    """Write the .ipynb beside its source: executed, with pictures, and nothing of this machine."""
    notebook = executed(source, paint=True)
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    source.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")


def stale(source: Path, fresh: NotebookNode) -> list[str]:
    """Where a notebook's stored outputs are not those of a fresh run."""
    found = []
    for number, (old, new) in enumerate(zip(stored(source).cells, fresh.cells, strict=True)):
        if old.source != new.source:
            found.append(f"cell {number}: the .py says otherwise")
            continue
        outputs = old.get("outputs", []), new.get("outputs", [])
        if [texts(each) for each in outputs[0]] != [texts(each) for each in outputs[1]]:
            found.append(f"cell {number}: {_first_difference(*outputs)}")
        for before, now in zip(*outputs, strict=False):
            shown = now.get("metadata", {}).get(KEY)
            if shown is not None:
                unlike = differences(before.get("metadata", {}).get(KEY), shown)
                found += [f"cell {number}: {what}" for what in unlike]
    return found


def texts(output: NotebookNode) -> tuple[str, dict[str, str]]:
    """An output without its pixels."""
    if output.output_type == "stream":
        return output.name, {"text/plain": output.text}
    return output.output_type, {kind: text for kind, text in output.data.items() if kind != "image/png"}


def _first_difference(old: list[NotebookNode], new: list[NotebookNode]) -> str:
    if len(old) != len(new):
        return f"{len(old)} outputs stored, {len(new)} now"
    for before, now in zip(map(texts, old), map(texts, new), strict=True):
        if before[0] != now[0] or set(before[1]) != set(now[1]):
            return f"{before[0]} of {sorted(before[1])} stored, {now[0]} of {sorted(now[1])} now"
        for kind, text in sorted(before[1].items(), reverse=True):  # plain text first
            for one, two in zip_longest(text.splitlines(), now[1][kind].splitlines()):
                if one != two:
                    return f"{one!r} stored, {two!r} now"
    return "the same"
