"""README's pictures: the command of README that draws each, and whether it still would.

``growth.png`` is measured, not computed: processor times differ from day to day, so that it is drawn only by its own
command, and what it must agree with is the data that it keeps.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from documents import inflation_picture, sites_picture, studio_picture
from documents.commands import ROOT, Ran, ran, run_in
from documents.readme import commands, text
from documents.shown import Shown, differences, read_shown, write_shown

PICTURES = ROOT / "notebooks" / "pictures"
DRAWN = {  # picture: the file that README's command writes
    "gpt3_175b_64xa100": "step.png",
    "schedules": "schedules.png",
    "schedule_gallery": "gallery.png",
    "memory": "memory.png",
    "overlap": "overlap.png",
    "report": "two.html",
    "studio": "--open",  # its page is served, not written
    "studio_moves": "--open",
}
MEASURED = {"growth": "python tests/benchmarks/growth.py"}  # picture: its own command
PLAYED = {"two_sites": sites_picture, "inflation": inflation_picture}  # what draws it from many steps, plays some anew
_WORK = 1.25  # events of now over events when it was measured, and the other way round
_WIDTH, _HEIGHT, _SCALE = 1112, 2050, 0.8  # of the report's picture, and its pixels for one of the page


def shown_in_readme() -> list[str]:
    """The pictures of README and the pages, in order."""
    return re.findall(r"!\[[^\]]*\]\((?:\.\./)?notebooks/pictures/(\w+)\.png\)", text())


@cache
def command_of(picture: str) -> str:
    """The command of README that writes a picture; there must be one."""
    name = re.escape(DRAWN[picture])
    (found,) = (each for each in commands() if re.search(rf"(?<!\S){name}(?!\S)", each))
    return found


def stale(picture: str) -> list[str]:
    """What a picture shows otherwise than a fresh run of its command; empty where it shows what it should."""
    return differences(read_shown(PICTURES / f"{picture}.png"), fresh(picture))


@cache
def fresh(picture: str) -> Shown:
    """What a picture would show if it were drawn now."""
    if picture == "studio":
        return studio_picture.fresh()
    if picture == "studio_moves":
        return studio_picture.fresh_moves()
    if DRAWN[picture].endswith(".html"):
        with tempfile.TemporaryDirectory() as folder:
            return _of_page(_page(Path(folder), picture))
    done = ran(command_of(picture))
    assert done.status == 0, done.errors
    return done.shown[DRAWN[picture]]


def draw(picture: str) -> None:
    """Draw a picture anew, by its command."""
    path = PICTURES / f"{picture}.png"
    if picture == "studio":
        studio_picture.draw(path)
        _few_colours(path)
        write_shown(path, studio_picture.fresh())
        return
    if picture == "studio_moves":
        studio_picture.draw_moves(path)
        write_shown(path, studio_picture.fresh_moves())
        return
    with tempfile.TemporaryDirectory() as folder:
        if DRAWN[picture].endswith(".html"):
            page = _page(Path(folder), picture)
            _photograph(page, path, Path(folder) / "profile")
            write_shown(path, _of_page(page))
            return
        _succeeded(run_in(Path(folder), command_of(picture), paint=True))
        shutil.copy(Path(folder) / DRAWN[picture], path)


def _succeeded(done: Ran) -> None:
    assert done.status == 0, done.errors


def measured_otherwise() -> list[str]:
    """Where ``growth.png`` was measured of other cases, or of a program that does other work; empty where it holds.

    Its times are those of a day and a machine.  What can be held is what they were taken of: the cases that its command
    measures, and the events of those that play at once.
    """
    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    from growth import points
    from table_cases import LLAMA, simulated

    kept = (read_shown(PICTURES / "growth.png") or {}).get("measured")
    if kept is None:
        return ["it does not say what it shows"]
    events = {(what, point[0]): point[3] for what, series in kept.items() for point in series}
    cases = {(what, many): changes for what, many, changes in points()}
    found = [f"{what} {many}: no longer measured" for what, many in events if (what, many) not in cases]
    last = {what: max(many for name, many in events if name == what) for what, _ in events}  # beyond: over the limit
    found += [
        f"{what} {many}: not drawn" for what, many in cases if many < last.get(what, 0) and (what, many) not in events
    ]
    for case in (("GPUs", 8), ("GPUs", 16384), ("microbatches", 32), ("layers", 32)):
        now = simulated(LLAMA, cases[case]).count
        if not 1 / _WORK < now / events[case] < _WORK:
            found.append(f"{case[0]} {case[1]}: {events[case]:,} events when it was measured, {now:,} now")
    return found


# --- the report -------------------------------------------------------------------------------------------------------


def _page(folder: Path, picture: str) -> Path:
    _succeeded(run_in(folder, command_of(picture), paint=False))
    return folder / DRAWN[picture]


def _of_page(page: Path) -> Shown:
    """The words of a report down to its timeline, and a digest of what the timeline draws."""
    import hashlib
    from html import unescape

    whole = page.read_text(encoding="utf-8")
    columns = re.search(r'<script type="text/plain" id="columns">(.*?)</script>', whole, re.DOTALL)
    body = re.search(r"<body.*?>(.*?)<[^<>]*\bid=\"timeline\"", whole, re.DOTALL)
    assert columns is not None
    assert body is not None
    words = [unescape(word).strip() for word in re.split(r"<[^<>]*>", body[1])]
    return {
        "words": [word for word in words if word],
        "drawn": hashlib.sha256(columns[1].encode()).hexdigest()[:16],
    }


def _photograph(page: Path, picture: Path, profile: Path) -> None:
    """The top of a page as a browser shows it."""
    from chromium import Page, browser, found

    if found() is None:
        raise SystemExit(f"{picture.name} needs Chromium: apt-get install chromium")
    with browser(profile) as opened:
        tab = Page(opened)
        tab.size(_WIDTH, _HEIGHT, ratio=_SCALE)
        tab.open(page)
        tab.frame()
        tab.picture(picture)
    _few_colours(picture)


def _few_colours(picture: Path) -> None:
    from PIL import Image

    with Image.open(picture) as image:
        few = image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)
