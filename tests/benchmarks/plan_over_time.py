"""How good the best so far of simcluster plan is after how long: a table for each of two searches.

``python tests/benchmarks/plan_over_time.py [SECONDS]`` begins each in a Python of its own, stops it after so many
seconds (60 unless others are said), and prints a row whenever there is a better layout: processor seconds from the
start of Python, its step, and by how much it is above the best found in the end.  Layouts are played in the same
process, one after the other, so that whoever shares the machine changes little; with more processes it is sooner.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

LLAMA = {
    "name": "Llama 3 70B, 256 H100",
    "cluster": {"topology": "dgx_h100", "nodes": 32},
    "gpus": 256,
    "model": {"preset": "llama3-70b"},
    "parallel": {"tp": 8, "pp": 4, "dp": 8, "sequence_parallel": True, "zero": 1},
    "pipeline": {"schedule": "interleaved", "chunks": 5},
    "training": {"global_batch": 512, "micro_batch": 1, "precision": "bf16-mixed"},
    "overlap": {"grad_reduce": True, "param_gather": True, "tensor": True, "pipeline": True},
}
README = {"cluster.nodes": 128, "training.global_batch": 1536}


def search(case: str, seconds: float) -> None:
    """One search, every better layout as a line of JSON: processor seconds, step (s), proven gap, words."""
    from simcluster.scenario.scenario import from_document, load
    from simcluster.show.plan_answer import layout_name
    from simcluster.studies.search.evaluation import SearchState
    from simcluster.studies.search.plan import plan

    told = None

    def better(state: SearchState) -> None:
        nonlocal told
        if state.layout and state.layout != told:
            told = state.layout
            print(json.dumps([time.process_time(), state.step_time, state.gap, layout_name(state.layout)]), flush=True)

    base = from_document(LLAMA) if case == "llama" else load("gpt3_175b_64xa100", README)
    found = plan(base, 256 if case == "llama" else 1024, time_limit=seconds, progress=better)
    gap = "not known" if found.gap is None else f"{found.gap:.1%}"
    print(json.dumps([time.process_time(), found.best[0].step_time, gap, "at the end"]), flush=True)


def main(seconds: float) -> None:
    """Both tables."""
    for case, title in (("llama", "Llama 3 70B, 256 H100"), ("readme", "GPT-3 175B, 1,024 A100")):
        done = subprocess.run(
            [sys.executable, __file__, case, str(seconds)], check=True, capture_output=True, text=True, env=os.environ
        )
        rows: list[list[Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        last = rows.pop()
        print(f"{title}: proven gap {last[2]} after {last[0]:.1f} s of processor time")
        for cpu, step, _, words in rows:
            print(f"  {cpu:6.1f} s  {step:7.3f} s  {step / last[1] - 1:+6.1%}  {words}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        search(sys.argv[1], float(sys.argv[2]))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
