"""How time and memory grow with GPUs, microbatches, layers and stragglers: one figure.

``python tests/benchmarks/growth.py [FIGURE]`` measures every point in a process of its own (``simulate()``, processor
seconds and peak memory), prints them, and draws them; the figure is notebooks/pictures/growth.png if none is named, and
keeps what was measured in a text chunk, so that a test can see whether it is of a program that did the same work.
The job is Llama 3 405B as in scenarios/llama3_405b_16384xh100.yaml, TP 8 and PP 16 from 128 GPUs on.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from documents.shown import write_shown
from table_cases import LLAMA, SLOW, peak, simulated

LIMIT = 100.0  # seconds of a point; what takes longer is left out, and so is all beyond it
SHORT = 2.0  # seconds of a point that is measured three times: whoever shares the machine only adds
Point = tuple[float, float, float, int]  # how many, processor seconds, MB, events

AIMS = {"GPUs": [(16384, 0.5, 300), (131072, 0.6, None)], "slow GPUs": [(1, 1.0, None), (16, 4.0, None)]}
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]  # Okabe and Ito: told apart by colour-blind readers, too


def points() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """What is varied, how many of it, and the changes to the scenario."""
    layers = {1: [126], 2: [63, 63]}
    for gpus in (8, 16, 32, 64, 128, 512, 2048, 4096, 16384, 65536, 131072):
        pp = max(1, min(16, gpus // 8))
        changes: dict[str, Any] = {
            "gpus": gpus, "cluster.nodes": gpus // 8, "parallel.pp": pp, "parallel.dp": gpus // 8 // pp,
            "training.global_batch": 16 * (gpus // 8 // pp), "pipeline.chunks": 1, "pipeline.schedule": "1f1b",
        }  # fmt: skip
        if pp == 16:
            changes |= {"pipeline.chunks": 8, "pipeline.schedule": "interleaved"}
        else:
            changes["pipeline.layers_per_stage"] = layers.get(pp) or [126 // pp + (s < 126 % pp) for s in range(pp)]
        yield "GPUs", gpus, changes
    for many in (16, 32, 64, 128, 256, 512):
        yield "microbatches", many, {"training.global_batch": 128 * many}
    for many in (16, 32, 64, 128, 256, 512, 1024):
        cut = {"pipeline.layers_per_stage": "even", "pipeline.chunks": min(8, many // 16)}
        one = {"pipeline.schedule": "1f1b"} if many == 16 else {}
        yield "layers", many, {"model.layers": many, **cut, **one}
    for many in (1, 2, 4, 8, 16, 32, 64):
        yield "slow GPUs", many, {"faults": [{**SLOW, "rank": 253 * number + 5} for number in range(many)]}


def measure() -> dict[str, list[Point]]:
    """All points, by what is varied."""
    found: dict[str, list[Point]] = {}
    given_up: set[str] = set()
    for what, many, changes in points():
        if what in given_up:
            continue
        command = [sys.executable, __file__, "--one", json.dumps(changes)]
        try:
            runs = [_run(command)]
            while runs[0][0] < SHORT and len(runs) < 3:
                runs.append(_run(command))
        except subprocess.TimeoutExpired:
            given_up.add(what)
            print(f"{what} {many}: over {LIMIT:.0f} s", flush=True)
            continue
        cpu, megabytes, events, said = min(runs)
        found.setdefault(what, []).append((many, cpu, megabytes, events))
        print(f"{what:13s} {many:8,d} {cpu:8.2f} s {megabytes:7.0f} MB  {said}", flush=True)
    return found


def _run(command: list[str]) -> tuple[float, float, int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT)
    cpu, megabytes, events, said = json.loads(done.stdout)
    return cpu, megabytes, events, said


def draw(found: dict[str, list[Point]], figure: Path) -> None:
    """Time above, memory below, a column for each of what is varied."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter

    fig, axes = plt.subplots(2, len(found), figsize=(3.1 * len(found), 5.2), sharey="row", sharex="col", squeeze=False)
    for column, (what, series) in enumerate(found.items()):
        for row, (label, place) in enumerate((("processor time, s", 1), ("peak memory, MB", 2))):
            ax = axes[row][column]
            ax.loglog([p[0] for p in series], [p[place] for p in series], "o-", ms=4, color=COLOURS[column])
            aims = [(aim[0], aim[place]) for aim in AIMS.get(what, []) if aim[place] is not None]
            if aims:
                ax.plot(*zip(*aims, strict=True), "v", ms=7, mfc="none", color="black", label="aim: below")
                ax.legend(frameon=False, fontsize=8, loc="upper left")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            if row:
                ax.yaxis.set_major_locator(FixedLocator([50, 100, 200, 400, 800]))
            ax.yaxis.set_minor_formatter(NullFormatter())
            if max(p[0] for p in series) < 2000:  # named where they are, not by powers of ten
                ax.set_xticks([p[0] for p in series], [f"{p[0]}" for p in series], fontsize=8)
            ax.grid(which="major", color="0.88", linewidth=0.8)
            ax.spines[["top", "right"]].set_visible(False)
            if column == 0:
                ax.set_ylabel(label)
            if row == 0:
                ax.set_title({"GPUs": "more GPUs"}.get(what, f"more {what}, 16,384 GPUs"), fontsize=10)
            else:
                ax.set_xlabel(what)
    fig.suptitle("One simulate() of Llama 3 405B, TP 8, PP 16 (fewer below 128 GPUs), 16 microbatches", fontsize=11)
    fig.tight_layout()
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, dpi=150)
    write_shown(figure, {"measured": found})


def one(changes: dict[str, Any]) -> None:
    """A point, as JSON: processor seconds, MB, and more."""
    figures = simulated(LLAMA, changes)
    print(json.dumps([figures.cpu, peak(), figures.count, f"{figures.count:,} {figures.what}; {figures.more}"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(json.loads(sys.argv[2]))
    else:
        root = Path(__file__).parents[2]
        draw(measure(), Path(sys.argv[1]) if sys.argv[1:] else root / "notebooks" / "pictures" / "growth.png")
