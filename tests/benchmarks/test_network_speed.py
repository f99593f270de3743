"""Speed of simulated networks: random flows, and rings transfer by transfer, with SimGrid as the peer.

``python -m pytest -m benchmark -s tests/benchmarks``

Prints tables; red only where a prediction is wrong.  SimGrid (https://simgrid.org) is used where its C++ library and a
compiler are installed (Debian: libsimgrid-dev): ``simgrid_steps.cpp`` simulates the same transfers over the same routes
with its CM02 model, without what it adds to fit TCP.  Wall times are medians; SimGrid's is that of its simulation
alone, ours includes looking up the routes.

When the last ring is done must agree to 1e-6.  So must the end of every ring, unless the case does not settle it,
for rings that meet on their way around hold each other back, round after round, and so may magnify the last bits.
Whether it does is seen by changing all capacities by 1e-11, here, without SimGrid.
"""
# ruff: noqa: T201

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fabric_cases import RingCase, flat_ring, random_flows, rings_on_a_tree

from simcluster.engine.run import simulate_tables

pytestmark = pytest.mark.benchmark

GIB = 2.0**30
CASES: dict[str, Callable[[], RingCase]] = {
    "64 rings of 8": lambda: rings_on_a_tree(64, 8, GIB),
    "64 rings of 16": lambda: rings_on_a_tree(64, 16, GIB),
    "flat ring of 1,024": lambda: flat_ring(1024, GIB),
}
RUNS = 3
NEUTRAL = [
    "network/model:CM02",
    "network/TCP-gamma:0",  # no cap by window and latency
    "network/weight-S:0",  # shares do not depend on bandwidths
    "network/crosstraffic:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/optim:Full",  # its default, Lazy, is slower here, and ends many rings up to 1 % apart from Full
    "surf/precision:1e-12",
    "maxmin/precision:1e-12",
]
CLOSE = 1e-6
NUDGE = 1e-11


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


# --- random flows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_flows", [1_000, 10_000])
def test_random_flows(num_flows: int) -> None:
    """Simulate random flows over 10,240 links that begin at once and end one after another."""
    tables = random_flows(num_flows)
    begun = time.perf_counter()
    simulated = simulate_tables(tables, str, keeps_times=False)
    wall = time.perf_counter() - begun
    assert simulated.events >= num_flows
    print(f"\n{num_flows:7,d} random flows over 10,240 links: {wall:8.3f} s, {1e6 * wall / num_flows:.1f} us per flow")


# --- rings ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def simgrid(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The compiled player, or the reason why there is none."""
    return compiled(tmp_path_factory.mktemp("simgrid"))


def compiled(folder: Path) -> Path | str:
    """The player in a folder, or the reason why there is none."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        return "no C++ compiler"
    program = folder / "simgrid_steps"
    source = Path(__file__).with_name("simgrid_steps.cpp")
    command = [compiler, "-O2", "-std=c++17", str(source), "-o", str(program), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return program
    return next((line for line in done.stderr.splitlines() if "error" in line), "it does not compile").strip()


def by_simgrid(program: Path, case: RingCase) -> tuple[float, list[float]]:
    """Wall seconds, and simulated seconds at which each ring is done."""
    command = [str(program), "--log=root.thres:error", *(f"--cfg={each}" for each in NEUTRAL)]
    words = subprocess.run(command, input=case.as_text(), capture_output=True, text=True, check=True).stdout.split()
    assert int(words[1]) == case.transfers
    return float(words[0]), [float(word) for word in words[2:]]


def difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative one."""
    return max(abs(one - other) / other for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_rings_in_steps(name: str, simgrid: Path | str) -> None:
    """Predictions equal to SimGrid's to 1e-6 where it is there; its time beside ours."""
    case = CASES[name]()
    print(f"\n{case.name}: {case.transfers:,d} transfers ({machine()})")
    walls, peers = [], []
    for _ in range(RUNS):
        walls.append(seconds(lambda: case.play("steps")))
        if isinstance(simgrid, Path):
            peers.append(by_simgrid(simgrid, case)[0])
    ours, flow = case.play("steps"), case.play("flow")
    flow_wall = statistics.median(seconds(lambda: case.play("flow")) for _ in range(RUNS))
    wall = statistics.median(walls)
    print(f"  in steps   {wall:8.3f} s    last ring done at {max(ours):.9f} s")
    print(f"  as flows   {flow_wall:8.3f} s    last ring done at {max(flow):.9f} s")
    if isinstance(simgrid, str):
        print(f"  SimGrid    not here: {simgrid}")
        return
    theirs = by_simgrid(simgrid, case)[1]
    peer = statistics.median(peers)
    last, each = difference([max(ours)], [max(theirs)]), difference(ours, theirs)
    print(f"  SimGrid    {peer:8.3f} s    last ring done at {max(theirs):.9f} s")
    print(f"  our steps take {wall / peer:.2f} x its time; apart by {last:.1e} (last ring), {each:.1e} (any ring)")
    assert last < CLOSE
    if each >= CLOSE:
        moved = difference(case.nudged(NUDGE).play("steps"), ours)
        print(f"  capacities changed by {NUDGE:.0e} move a ring's end by {moved:.1e}: the case does not settle it")
        assert moved >= CLOSE
