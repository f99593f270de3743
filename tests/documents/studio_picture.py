"""The pictures of the studio: a scenario pinned as A with another schedule beside it, and changes as they go by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from documents.commands import ROOT
from documents.shown import Shown

if TYPE_CHECKING:
    from chromium import Page

BASE = "gpt3_175b_64xa100"
_SCHEDULE = "1f1b"
_WIDTH, _HEIGHT, _SCALE = 1400, 1180, 0.8
_ANSWERED = "window.studio && document.documentElement.dataset.quick === String(studio.asked)"
_MOVES: tuple[tuple[tuple[str, Any], ...], ...] = (  # what the controls are set to, one picture after the other
    (),
    (("pipeline.schedule", _SCHEDULE),),
    (("pipeline.schedule", _SCHEDULE), ("cluster.scale.network", 0.25)),
    (("pipeline.schedule", _SCHEDULE), ("training.recompute", "full")),
)
_HINTED = 600.0  # s that all hints may take: they come last, behind whatever else the machine does
_LOW, _SMALL, _SECONDS, _COLOURS = 960, 0.62, 1.6, 160  # height, pixels for one of the page, how long each, colours


def fresh() -> Shown:
    """The words of its answer and its controls, as the page's server gives them now; no browser is needed for that."""
    return {"words": _words(((("pipeline.schedule", _SCHEDULE),), ())), "drawn": ""}


def fresh_moves() -> Shown:
    """The words of all that go by."""
    return {"words": [word for settings in _MOVES for word in _words((settings, None))], "drawn": ""}


def _words(states: tuple[Any, Any]) -> list[str]:
    from simcluster.interactive.page.page_parts import PageQuery, compute_page_part
    from simcluster.interactive.page.studio_state import StudioState

    live, pinned = (None if each is None else StudioState(BASE, each) for each in states)
    assert live is not None
    asked = PageQuery(live, pinned, ROOT)
    found = compute_page_part(asked, "answer")
    controls = [control["label"] for control in compute_page_part(asked, "figures")["controls"]]
    words = [unescape(word).strip() for html in found["sections"].values() for word in re.split(r"<[^<>]*>", html)]
    return [*controls, *(word for word in words if word)]


@contextmanager
def _page(height: int, ratio: float) -> Iterator[Page]:
    """The studio in a browser, its first state answered."""
    from chromium import Page, browser

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simcluster", "studio", BASE, "--folder", folder]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
            browser(Path(folder) / "profile") as opened,
        ):
            try:
                assert server.stdout is not None
                address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
                assert address is not None
                tab = Page(opened)
                tab.size(_WIDTH, height, ratio=ratio)
                tab.call("Page.navigate", url=address[0])
                tab.wait(_ANSWERED)
                yield tab
            finally:
                server.terminate()


def draw(picture: Path) -> None:
    """The page as a browser shows it, all of it answered."""
    with _page(_HEIGHT, _SCALE) as tab:
        tab.run("document.querySelector('[data-act=pin]').click()")
        tab.wait(_ANSWERED)
        tab.run(f"studio.set('pipeline.schedule', {_SCHEDULE!r}, true)")
        tab.wait("document.documentElement.dataset.complete === String(studio.asked)", _HINTED)
        tab.frame()
        tab.picture(picture)


def draw_moves(picture: Path) -> None:
    """The page after each change, as one PNG that moves."""
    from PIL import Image

    frames = []
    with _page(_LOW, _SMALL) as tab:
        for settings in _MOVES:
            tab.run(f"studio.go({{base: {json.dumps(BASE)}, settings: {json.dumps(dict(settings))}}}, null)")
            tab.wait(_ANSWERED)
            tab.run("document.querySelector('[data-part=progress]').style.visibility = 'hidden'")  # of what is below
            tab.frame()
            tab.picture(picture)
            with Image.open(picture) as image:
                frames.append(image.convert("RGB"))
    all_of_them = Image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for place, frame in enumerate(frames):
        all_of_them.paste(frame, (0, place * frame.height))
    palette = all_of_them.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    few[0].save(picture, save_all=True, append_images=few[1:], duration=round(1000 * _SECONDS), loop=0, optimize=True)
