"""Hook of MkDocs that adds files of the root, notebooks, generated reference pages and the menu.

In the site the folder ``docs`` is the root, and README its first page; links are written for the repository and turned.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api import api_pages
from menu import MENU, ROOT_FILES
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import notebook_pages
from reference import _TEXTS, built_in_pages, command_menu, command_pages, key_pages

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_COMMAND = re.compile(r"^(\|[^|]*\| )`(simcluster (\w+)[^`|]*)` \|", re.MULTILINE)
"""A row of the command tour, up to its command."""
_UNIT = re.compile(r"(?<=>) (?=\d)|(?<=\d) (?=(?:%|s|ms|us|min|x|[GM]B|W)(?:[ ,;.)]|$))")
"""The space between a number and its unit."""
_LONG_NAME = re.compile(r"`([\w.]{22,})`")
_BOOST = (("reference/keys/names", 8), ("reference/", 2), ("CHANGELOG", 0.2), ("MODELLING", 0.5), ("notebooks/", 0.7))
"""Weight of pages in the search, by how their address begins."""
_GENERATED = {
    "Scenario keys": key_pages, "Commands": command_pages, "Built-in": built_in_pages, "Python": api_pages,
    "Notebooks": notebook_pages,
}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs``, and the menu."""
    for source, there in ROOT_FILES.items():
        files.append(File.generated(config, there, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "notebooks" / "pictures").glob("*.png")):
        files.append(File.generated(config, f"notebooks/pictures/{path.name}", abs_src_path=str(path)))
    generated: dict[str, list[Any]] = {}
    for title, make in _GENERATED.items():
        generated[title] = []
        for uri, content in make(ROOT).items():
            files.append(File.generated(config, uri, content=content))
            if uri.endswith(".md"):
                generated[title].append(uri)
    generated["Commands"] = command_menu()
    config["nav"] = _filled(MENU, generated)
    _publish_linked(files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links that work in the site."""
    where = page.file.src_uri
    page.meta.setdefault("search", {"boost": next((boost for begin, boost in _BOOST if where.startswith(begin)), 1)})
    source = _sources().get(where, f"docs/{where}")
    in_site = {**ROOT_FILES, **{each: each for each in _linked(source, markdown)}}

    def turned(found: re.Match[str]) -> str:
        target = _target(source, found[2])
        if target is None:
            return found[0]
        there = in_site.get(target, target.removeprefix("docs/"))
        if target.startswith("notebooks/") and target.endswith(".ipynb"):
            there = target.replace(".ipynb", ".md")
        relative = posixpath.relpath(there, posixpath.dirname(where) or ".")
        return f"{found[1]}{relative}{found[3] or ''}{found[4]}"

    if where == "howto.md":
        markdown = _COMMAND.sub(_command_cell, markdown)
    markdown = "".join(_for_tables(line) for line in markdown.splitlines(keepends=True))
    return _LINK.sub(turned, markdown) if where in _sources() or (ROOT / source).exists() else markdown


def _command_cell(found: re.Match[str]) -> str:
    """Return a cell with a command whose words do not break, and a link to its options."""
    words = "".join(f"&#{ord(each)};" if each in "*_[]{}<>&" else each for each in found[2]).split()
    code = " ".join(f"<span>{word}</span>" for word in words)
    called = {text.get("called"): name for name, text in _TEXTS["commands"].items()}
    page = called.get(" ".join(found[2].split()[1:3]), found[3])
    return f"{found[1]}<code>{code}</code> [options](reference/commands/{page}.md) |"


def _for_tables(line: str) -> str:
    """Return a line of Markdown with better breaks in a table: no number leaves its unit, long names break at dots."""
    if not line.startswith("|"):
        return line
    parts = line.split("`")
    line = "`".join(part if number % 2 else _UNIT.sub("&nbsp;", part) for number, part in enumerate(parts))
    return _LONG_NAME.sub(
        lambda found: f"<code>{found[1].replace('.', '.<wbr>').replace('_', '&#95;<wbr>')}</code>", line
    )


def _sources() -> dict[str, str]:
    return {there: source for source, there in ROOT_FILES.items()}


def _target(source: str, link: str) -> str | None:
    """Return the file of the repository that a link names; None if there is none."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return target if (ROOT / target).is_file() else None


def _linked(source: str, markdown: str) -> set[str]:
    """Return the files of the repository to which a page links, other than pages."""
    targets = {_target(source, found[2]) for found in _LINK.finditer(markdown)}
    return {
        each
        for each in targets
        if each and each not in ROOT_FILES and not each.startswith(("docs/", "notebooks/"))
    }  # fmt: skip


def _publish_linked(files: Files, config: MkDocsConfig) -> None:
    """Return the files to which pages link, unchanged."""
    pages = {**{source: ROOT / source for source in ROOT_FILES}}
    pages |= {f"docs/{path.name}": path for path in (ROOT / "docs").glob("*.md")}
    linked = {each for source, path in pages.items() for each in _linked(source, path.read_text(encoding="utf-8"))}
    for each in sorted(linked):
        files.append(File.generated(config, each, abs_src_path=str(ROOT / each)))


def _filled(menu: Mapping[str, Any], generated: Mapping[str, list[Any]]) -> list[Any]:
    """Return the menu for MkDocs; None represents the generated pages of that title."""
    return [
        {title: generated[title] if below is None else _filled(below, generated) if isinstance(below, dict) else below}
        for title, below in menu.items()
    ]
