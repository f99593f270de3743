"""The built site: no page scrolls sideways at 1,280 pixels, and the search finds the field's names for keys.

``mkdocs build --strict`` makes it, as .ci/run does before these tests; without it they are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium import Page, browser, in_a_browser

SITE = Path(__file__).parents[1] / "out" / "site"
WIDE = """
    [document.documentElement.scrollWidth > innerWidth ? ["page", document.documentElement.scrollWidth] : null,
     ...[...document.querySelectorAll("pre, pre code, .md-typeset__scrollwrap, .md-typeset div")]
         .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
         .filter((each) => getComputedStyle(each).overflowX != "visible")
         .map((each) => [each.innerText.slice(0, 60), each.scrollWidth])].filter((each) => each)
"""
built = pytest.mark.skipif(not SITE.exists(), reason="no site: mkdocs build --strict")


@built
@in_a_browser
def test_no_page_scrolls_sideways(tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as opened:
        tab = Page(opened)
        tab.size(1280, 900)
        wide = {}
        for path in sorted(SITE.rglob("*.html")):
            tab.open(path, "document.readyState == 'complete'")
            if found := tab.run(WIDE):
                wide[str(path.relative_to(SITE))] = found
    assert wide == {}


@built
@pytest.mark.documents
@pytest.mark.parametrize("name", ["gradient accumulation", "activation checkpointing", "GEMM", "slow NIC", "FSDP"])
def test_the_search_knows_names_of_the_field(name: str) -> None:
    pages = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = [page["title"] for page in pages if page["location"].startswith("reference/keys/names.html#")]
    assert any(name.lower() in title.lower() for title in titles)
