"""How long the studio takes from a change to the new picture, in headless Chromium, and its memory after many changes.

    python tests/benchmarks/studio_latency.py                      # three scenarios, 20 changes each
    python tests/benchmarks/studio_latency.py --parts              # processor time of each part, no browser
    python tests/benchmarks/studio_latency.py --memory 1000        # tiny_3d: memory of server and worker on the way

Milliseconds from the change of a control to the figures of the new state, to its timeline drawn beside them (the
picture), and to all that follows every change.  Beside them the processor time of the worker for the change, which
hardly depends on what else the machine does.  No state is asked for twice: nothing is answered from what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from chromium import Page, browser

SCENARIOS = ("tiny_3d", "gpt3_175b_64xa100", "llama3_405b_16384xh100")
_ALL = "window.studio && document.documentElement.dataset.quick === String(studio.asked)"
_WHEN_ALL = """new Promise((done) => {
    const look = () => { if (document.documentElement.dataset.quick === String(studio.asked)) done(true); };
    new MutationObserver(look).observe(document.documentElement, {attributes: true});
    look();
})"""
_STEP = os.sysconf("SC_CLK_TCK")


def changes() -> Iterator[tuple[str, Any]]:
    """One control after the other, each to another value than before: a walk on which no state is met twice."""
    for turn in range(1000):
        yield "cluster.scale.network", round(0.5 + 0.01 * turn, 2)
        yield "pipeline.schedule", "1f1b" if turn % 2 == 0 else "interleaved"
        yield "cluster.scale.nvlink", round(0.6 + 0.01 * turn, 2)
        yield "overlap.grad_reduce", turn % 2 == 1
        yield "training.recompute", ("full", "selective")[turn % 2]
        yield "cluster.scale.flops", round(0.8 + 0.01 * turn, 2)
        yield "cluster.scale.latency", round(1.5 + 0.01 * turn, 2)


@contextmanager
def server_of(scenario: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A studio on a scenario: its address, and the number of its process."""
    command = [sys.executable, "-m", "simcluster", "studio", scenario, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        assert address is not None
        try:
            yield address[0], server.pid
        finally:
            server.terminate()


@contextmanager
def studio(scenario: str, folder: Path) -> Iterator[tuple[Page, int]]:
    """A page of a studio on a scenario, and the number of the server's process."""
    with server_of(scenario, folder) as (address, server), browser(folder / "profile") as opened:
        tab = Page(opened)
        tab.size(1400, 900)
        tab.call("Page.navigate", url=address)
        tab.wait(_ALL)
        tab.call("Network.disable")  # it would tell this process all that the page receives: 4 MB a change
        yield tab, server


def change(tab: Page, key: str, value: Any) -> dict[str, float]:
    """What it took from a change to each part of the answer, in ms."""
    tab.run(f"studio.set({json.dumps(key)}, {json.dumps(value)}, true); {_WHEN_ALL}")  # not asked for again and again
    tab.frame()
    if not tab.run("document.querySelector('[data-part=problem]').hidden"):
        return {}  # refused
    return dict(tab.run("({...studio.times.at(-1), all: performance.now() - studio.began})"))


def worker_of(server: int) -> int:
    """The process that plays: of the server's children the one that has worked most."""
    found = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _parent(each) == server]
    return max(found, key=processor)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def processor(process: int) -> float:
    """Milliseconds of processor time."""
    values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(values[11]) + int(values[12])) / _STEP


def resident(process: int) -> float:
    """MB of memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def latencies(scenario: str, count: int) -> list[dict[str, float]]:
    """What so many changes took, the first of all kinds left out: it begins what later ones have."""
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, studio(scenario, Path(folder)) as (tab, server):
        worker, walk = worker_of(server), changes()
        for _ in range(7):
            change(tab, *next(walk))
        while len(rows) < count:
            before = processor(worker)
            took = change(tab, *next(walk))
            if took:
                rows.append({**took, "processor": processor(worker) - before})
    return rows


def told(scenario: str, rows: list[dict[str, float]]) -> Iterator[str]:
    """A line for each thing."""
    for name, words in (("figures", "figures"), ("picture", "figures and timeline"), ("all", "all that follows"),
                        ("processor", "worker, processor")):  # fmt: skip
        yield _line(scenario, words, [row[name] for row in rows])


def parts(scenario: str, count: int) -> Iterator[str]:
    """The same of each part of an answer, in milliseconds of the processor, in this process."""
    from simcluster.interactive.page.page_parts import QUICK_PARTS, PageQuery, compute_page_part
    from simcluster.interactive.page.studio_state import parse_state
    from simcluster.interactive.page.worker_pool import reduce_garbage_collection

    rows: dict[str, list[float]] = {part: [] for part in QUICK_PARTS}
    settings: dict[str, Any] = {}
    reduce_garbage_collection()
    for turn, (key, value) in enumerate(changes()):
        if turn == 7 + count:
            break
        settings[key] = value
        asked = PageQuery(parse_state({"base": scenario, "settings": settings}), None, Path())
        for part in QUICK_PARTS:
            begun = time.process_time()
            found = compute_page_part(asked, part)
            assert "problem" not in found, found
            if turn >= 7:
                rows[part].append(1000 * (time.process_time() - begun))
    for part, values in rows.items():
        yield _line(scenario, part, values)


def _line(scenario: str, words: str, found: list[float]) -> str:
    """The median, the value that nine of ten are under, and the worst."""
    values = sorted(found)
    ninth = values[max(0, round(0.9 * len(values)) - 1)]
    return f"{scenario:24} {words:22} {statistics.median(values):8.0f} {ninth:8.0f} {values[-1]:8.0f}"


def memory(count: int) -> None:
    """Memory of server and worker on the way through so many changes, asked for without a browser."""
    from websockets.sync.client import connect

    settings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, server_of("tiny_3d", Path(folder)) as (address, server):
        wire = connect(f"ws{address.removeprefix('http')}live", origin=address.rstrip("/"), max_size=None)  # type: ignore[arg-type]
        print(f"{'changes':>8} {'server, MB':>12} {'worker, MB':>12}")
        with wire:
            for done, (key, value) in zip(range(count + 1), changes(), strict=False):
                settings[key] = value
                wire.send(json.dumps({"ask": done, "live": {"base": "tiny_3d", "settings": settings}}))
                while not _answered(_json(wire.recv()), done):
                    pass
                if done % max(1, count // 10) == 0:
                    print(f"{done:8} {resident(server):12.0f} {resident(worker_of(server)):12.0f}", flush=True)


def _json(message: str | bytes) -> dict[str, Any]:
    """A message; of one with columns behind it the line before them."""
    return dict(json.loads(message if isinstance(message, str) else message.partition(b"\n")[0]))


def _answered(message: dict[str, Any], number: int) -> bool:
    """Is this the last of what follows every change, or the refusal of the change?"""
    told = message["of"]
    return message["ask"] == number and (told.get("part") == "detail" or "problem" in told)


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--memory", type=int, default=0, metavar="CHANGES")
    args = parser.parse_args()
    if args.memory:
        memory(args.memory)
        return
    print(f"{'scenario':24} {'ms':22} {'p50':>8} {'p90':>8} {'worst':>8}")
    for scenario in args.scenarios:
        begun = time.monotonic()
        lines = parts(scenario, args.changes) if args.parts else told(scenario, latencies(scenario, args.changes))
        for line in lines:
            print(line)
        print(f"  ({time.monotonic() - begun:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
