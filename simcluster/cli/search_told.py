"""How far a search is, on stderr: one line that is rewritten on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from simcluster.base.units import format_seconds
from simcluster.cli.terminal import hush, progress, stamped
from simcluster.studies.search.progress import SearchState
from simcluster.studies.search.words import name_of_layout

EVERY = 10.0
"""Seconds between lines where stderr is no terminal."""
_LOOK = 0.25
_DOING = {
    "bounds": "bounding layouts",
    "layouts": "playing layouts",
    "less memory free": "playing what leaves less memory free",
    "less memory": "playing what holds less",
    "accounts": "accounting for the best",
}
_ENDLESS = 4 * 3600.0  # seconds left from which on a search is not expected to end
_AT_ONCE = 1.0  # seconds: a better layout is told no sooner after a line


class SearchTold:
    """Tells how far a search is: by a thread beside it, which also speaks while the search cannot."""

    def __init__(self) -> None:
        self._state: SearchState | None = None
        self._line = time.monotonic()
        self._best: object = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def now(self, state: SearchState) -> None:
        """How far it is."""
        self._state = state
        if self._thread is None and not self._over.is_set():  # not before processes are begun as copies of this one
            self._thread = threading.Thread(target=self._tell, daemon=True)
            self._thread.start()
            hush()

    def close(self) -> None:
        """The line on a terminal is wiped."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            hush(False)
        progress()

    def _tell(self) -> None:
        while not self._over.wait(_LOOK):
            self.look()

    def look(self) -> None:
        """Say it if it is time."""
        state, now = self._state, time.monotonic()
        if state is None:
            return
        if sys.stderr.isatty():
            progress(words_of(state))
        elif now - self._line >= (_AT_ONCE if _found(state) != self._best else EVERY):
            self._line, self._best = now, _found(state)
            print(stamped(words_of(state)), file=sys.stderr, flush=True)


def words_of(state: SearchState) -> str:
    """A line: playing layouts, best so far 16.39 s, gap 3.2 %, 12 played, at most 40 left, about 25 s left: tp 4, ...;
    before one is played: bounding layouts, the first takes 16.39 s at least, 0 played: tp 4, ...; and once the best is
    proven: playing the next best, the best 16.39 s, proven, ...

    The layout comes last: a narrow terminal shows how far it is, if nothing else.
    """
    proven = state.gap == 0.0
    parts = ["playing the next best" if proven and state.phase == "layouts" else _DOING[state.phase]]
    if state.layout is None and state.first is not None:
        parts.append(f"the first takes {format_seconds(state.first_time)} at least")
    endless = state.seconds_left is not None and state.seconds_left > _ENDLESS
    if state.layout is not None:
        best = "the best" if proven else "best found" if endless else "best so far"
        parts.append(f"{best} {format_seconds(state.step_time)}{' (yours)' if state.own else ''}")
    if state.gap is not None:
        within = f"within {state.gap:.1%} of the bound" if endless else f"proven gap {state.gap:.1%}"
        parts.append("proven" if proven else within)
    parts.append(f"{state.played:,} played")
    if state.left:
        parts.append(f"at most {state.left:,} left")
    if state.seconds_left is not None and not endless:
        parts.append(f"about {_round(state.seconds_left)} left")
    layout = state.layout or state.first
    return ", ".join(parts) + (f": {name_of_layout(layout)}" if layout else "")


def _found(state: SearchState) -> object:
    """What is news as soon as it is another: the first layout, the best, and that it is proven to be the best."""
    return state.first, state.layout, state.gap == 0.0


def _round(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
