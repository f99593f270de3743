"""A headless Chromium for tests, driven over its own pipe (DevTools protocol): no driver and no further package.

Tests of pages in it run with ``-m documents``, and are skipped where there is no Chromium.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands on descriptor 3 and answers on 4.
_LAUNCHER = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_PATIENCE = 60.0  # s; the machine may be busy


def found() -> str | None:
    """The program's path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


NEEDED = [
    pytest.mark.documents,
    pytest.mark.skipif(found() is None, reason="no Chromium: apt-get install -y chromium"),
]
"""Marks of tests of a page in a browser."""


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark one test of a module as a test of a page in a browser."""
    for mark in NEEDED:
        test = mark(test)
    return test


class Page:
    """One tab.  ``problems`` are errors and warnings that it logged, ``requests`` what it asked the network for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        result = self._browser.call(method, parameters, self._session)
        self._drain()
        return result

    def _drain(self) -> None:
        for event in self._browser.events_of(self._session):
            name, values = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                details = values["exceptionDetails"]
                self.problems.append(str(details.get("exception", details).get("description", details)))
            elif name == "Log.entryAdded":
                self.problems.append(f"{values['entry']['level']}: {values['entry']['text']}")
            elif name == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console.{values['type']}: {values['args']}")
            elif name == "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])

    def size(self, width: int, height: int, *, dark: bool = False, ratio: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path, until: str = "document.documentElement?.dataset.complete") -> None:
        """Load a file and wait until an expression holds."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait(until)

    def wait(self, expression: str, patience: float = _PATIENCE) -> Any:
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            value = self.run(expression)
            if value:
                return value
            time.sleep(0.02)
        raise TimeoutError(f"never: {expression}; the page says {self.problems}")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str, **more: Any) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)

    def frame(self) -> None:
        """Waits until the page has drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def picture(self, path: Path, *, whole: bool = False) -> bytes:
        parameters: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            parameters |= {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        data = base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"])
        path.write_bytes(data)
        return data

    def pdf(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
        path.write_bytes(data)
        return data


class Browser:
    def __init__(self, profile: Path) -> None:
        program = found()
        assert program
        ends, to_browser = os.pipe()
        from_browser, answers = os.pipe()
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (ends, answers))  # above 3 and 4, see below
        command = [
            sys.executable,
            "-c",
            _LAUNCHER,
            str(read),
            str(write),
            program,
            *_FLAGS,
            f"--user-data-dir={profile}",
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (ends, answers, read, write):
            os.close(end)
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        limit = time.monotonic() + _PATIENCE
        while True:
            answer = self._receive(limit)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if "method" in answer:
                self._events.append(answer)

    def events_of(self, session: str) -> list[dict[str, Any]]:
        own = [event for event in self._events if event.get("sessionId") == session]
        self._events = [event for event in self._events if event.get("sessionId") != session]
        return own

    def _receive(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, limit - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        try:
            self.call("Browser.close", {})
        except (OSError, TimeoutError, RuntimeError):
            self._process.kill()
        finally:
            os.close(self._to)
            os.close(self._from)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    opened = Browser(profile)
    try:
        yield opened
    finally:
        opened.close()
