"""Pages of the notebooks with their stored outputs; nothing is run."""

from __future__ import annotations

import re
from pathlib import Path

from nbconvert import MarkdownExporter

_OPEN = """\
!!! note "To run it"
    In a clone: `pip install '.[notebooks]' jupyterlab && jupyter lab notebooks/{name}.ipynb`
"""


def notebook_pages(root: Path) -> dict[str, str | bytes]:
    """Return one page per notebook, and its pictures."""
    pages: dict[str, str | bytes] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        exporter = MarkdownExporter()
        text, resources = exporter.from_filename(str(path))
        for name, picture in resources["outputs"].items():
            pages[f"notebooks/{path.stem}_{name}"] = picture
            text = text.replace(f"({name})", f"({path.stem}_{name})")
        text = re.sub(r"<style scoped>.*?</style>", "", text, flags=re.DOTALL)  # pandas' own
        text = re.sub(r"\(([\w/]+)\.ipynb", r"(\1.md", text)
        title, _, rest = text.lstrip().partition("\n")
        pages[f"notebooks/{path.stem}.md"] = f"{title}\n\n{_OPEN.format(name=path.stem)}\n{rest}"
    return pages
