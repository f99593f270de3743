"""The picture of the studio: a scenario pinned as A, and beside it the same with another schedule."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

from documents.commands import ROOT
from documents.shown import Shown

BASE = "gpt3_175b_64xa100"
_SCHEDULE = "1f1b"
_WIDTH, _HEIGHT, _SCALE = 1400, 1180, 0.8
_ANSWERED = "window.studio && document.documentElement.dataset.quick === String(studio.asked)"
_CHANGED = f"""(() => {{
  const {{input}} = studio.panel.rows.get("pipeline.schedule");
  input.value = "{_SCHEDULE}";
  for (const kind of ["input", "change"]) input.dispatchEvent(new Event(kind));
}})()"""


def fresh() -> Shown:
    """The words of its answer, as the page's server gives them now; no browser is needed for that."""
    from simcluster.studio_page.answers import StateAsked, answer
    from simcluster.studio_page.states import StudioState

    live = StudioState(BASE, (("pipeline.schedule", _SCHEDULE),))
    found = answer(StateAsked(live, StudioState(BASE), ROOT), "answer")
    words = [unescape(word).strip() for html in found["sections"].values() for word in re.split(r"<[^<>]*>", html)]
    return {"words": [word for word in words if word], "drawn": ""}


def draw(picture: Path) -> None:
    """The page as a browser shows it, all of it answered."""
    from chromium import Page, browser

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simcluster", "studio", BASE, "--folder", folder]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
            browser(Path(folder) / "profile") as opened,
        ):
            assert server.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
            assert address is not None
            tab = Page(opened)
            tab.size(_WIDTH, _HEIGHT, ratio=_SCALE)
            tab.call("Page.navigate", url=address[0])
            tab.wait(_ANSWERED)
            tab.run("document.querySelector('[data-act=pin]').click()")
            tab.wait(_ANSWERED)
            tab.run(_CHANGED)
            tab.wait("document.documentElement.dataset.complete === String(studio.asked)")
            tab.frame()
            tab.picture(picture)
            server.terminate()
