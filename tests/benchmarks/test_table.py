"""The table of benchmarks: what simulations cost, beside what is aimed at and beside bare SimPy in the same process.

``python -m pytest -m benchmark -s tests/benchmarks/test_table.py``

Every row is a process of its own, the best of several (whoever shares the machine only adds): wall and processor
seconds, peak memory, events.  "x bare" is processor time over that of as many bare SimPy timeouts in the same process,
"x first" over that of 16,384 GPUs.  Red only where a case fails or an answer is wrong, never for a machine's mood.
It takes some minutes, half of them for 16,384 ranks unfolded; ``TABLE_ROWS="1 stream|one slow GPU"`` plays some rows.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fabric_cases import flat_ring
from table_cases import CASES, LLAMAS

pytestmark = pytest.mark.benchmark

RUNS = 3
ROWS = {  # case: aim
    "16,384 GPUs": "0.5 s, 300 MB, 3 x bare",
    "131,072 GPUs": "1.2 x first",
    "one slow GPU": "2 x first",
    "16 slow GPUs": "8 x first",
    "4 slow GPUs, the JSON": "",
    "one slow link": "2 x first",
    "512 ranks unfolded": "",
    "16,384 ranks unfolded": "40 s, 8 GB",
    "131,072 GPUs, the command": "",
    "1,048,576 GPUs, the command": "1.5 x of 131,072, 1 GB",
    "16,384 different speeds, the command": "4 s, 1 GB",
    "131,072 different speeds, the step": "16 s, 4 GB",
    "2 replicas of 1,024 GPUs": "2 s",
    "200 replicas of 1,024 GPUs": "25 s",
    "2 replicas of 16,384 GPUs": "",
    "50 replicas of 16,384 GPUs": "40 s",
    "fast path, P=16, M=16": "2.0 ms",
    "1,000 configurations": "",
    "1,000 configurations on 2 processes": "1,000 a second",
    "P=64, M=512, v=4": "2 s",
    "ring of 1,024 in steps": "10 s",
    "ring of 1,024 in flow": "20 ms",
    "1 stream": "2 x bare",
    "1,000 streams": "2 x bare",
    "16,000 streams": "2 x bare",
}
LONG = {  # once each
    "16 slow GPUs", "4 slow GPUs, the JSON", "16,384 ranks unfolded", "1,048,576 GPUs, the command",
    "131,072 different speeds, the step", "200 replicas of 1,024 GPUs", "2 replicas of 16,384 GPUs",
    "50 replicas of 16,384 GPUs",
}  # fmt: skip
START = {
    "import simcluster": ["-c", "import simcluster"],
    "simcluster --help": ["-m", "simcluster", "--help"],
    "simcluster run": ["-m", "simcluster", "run", "tiny_dp", "--json", "-"],
}


class Row(NamedTuple):
    wall: float
    cpu: float
    count: int
    what: str
    bare: float
    more: str
    peak: float


def measured(name: str, runs: int = RUNS) -> Row:
    """The run with the least processor time, of so many."""
    script = str(Path(__file__).with_name("table_cases.py"))
    found = []
    for _ in range(runs):
        done = subprocess.run([sys.executable, script, name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(Row(*json.loads(done.stdout)))
    best = min(found, key=lambda row: row.cpu)
    return best._replace(wall=min(row.wall for row in found), bare=min(row.bare for row in found))


def test_table() -> None:
    """All rows; prints Markdown."""
    print(f"\n{_cpu()}, {os.cpu_count()} cores, Python {platform.python_version()}; load {os.getloadavg()[0]:.1f}\n")
    print("| case | aim | wall | processor | peak MB | counted | x bare SimPy | x first | |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows: dict[str, Row] = {}
    chosen = [name for name in os.environ.get("TABLE_ROWS", "").split("|") if name] or list(ROWS)
    for name, aim in ((name, ROWS[name]) for name in chosen):
        row = rows[name] = measured(name, 1 if name in LONG else RUNS)
        bare = f"{row.cpu / row.bare:.1f}" if row.bare else ""
        first = f"{row.cpu / rows['16,384 GPUs'].cpu:.2f}" if "16,384 GPUs" in rows and name in LLAMAS else ""
        cells = [name, aim, _seconds(row.wall), _seconds(row.cpu), f"{row.peak:,.0f}", f"{row.count:,} {row.what}",
                 bare, first, row.more + _rate(row)]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    for name, row in rows.items():
        if name.endswith("unfolded"):
            folded = measured(f"{name} folded", 1)
            assert folded.more.split("step")[1] == row.more.split("step")[1], "folded is not unfolded"


def test_start_up() -> None:
    """The seconds that ``-X importtime`` counts, and the dearest modules; 0.3 is the aim of the first two."""
    print("\n| start | imports | dearest by themselves |\n|---|---|---|")
    for name, arguments in START.items():
        best: list[tuple[int, str]] = []
        for _ in range(RUNS):
            command = [sys.executable, "-X", "importtime", *arguments]
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
            parts = [line[12:].split("|") for line in lines if line.startswith("import time:") and "[us]" not in line]
            own = [(int(part[0]), part[2].strip()) for part in parts]
            best = own if not best or sum(one for one, _ in own) < sum(one for one, _ in best) else best
        assert len(best) > 10
        dear: dict[str, int] = {}
        for one, module in best:
            dear[module.split(".")[0]] = dear.get(module.split(".")[0], 0) + one
        largest = sorted(dear.items(), key=lambda each: -each[1])[:4]
        print(f"| {name} | {sum(one for one, _ in best) / 1e6:.3f} s | "
              f"{', '.join(f'{module} {one / 1e6:.3f}' for module, one in largest)} |")  # fmt: skip


def test_peer_in_steps(tmp_path: Path) -> None:
    """SimGrid, where it is installed, on the same transfers; the whole comparison is in test_network_speed."""
    from test_network_speed import by_simgrid, compiled

    program = compiled(tmp_path)
    if isinstance(program, str):
        pytest.skip(f"SimGrid is not here: {program}")
    ours = measured("ring of 1,024 in steps", 1)
    theirs, _ = by_simgrid(program, flat_ring(1024, 2.0**30))
    print(f"\nring of 1,024 in steps: {ours.wall:.2f} s, SimGrid {theirs:.2f} s: {ours.wall / theirs:.2f} x its time")


def test_every_row_has_its_case() -> None:
    assert set(ROWS) <= set(CASES)


def _seconds(value: float) -> str:
    return f"{1e3 * value:.2f} ms" if value < 0.1 else f"{value:.2f} s"


def _rate(row: Row) -> str:
    return f"; {row.count / row.cpu:,.0f} a second and core" if row.what in ("configurations", "resumes") else ""


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
