"""Makes those files of this folder that simcluster writes: python examples/make.py.  The others are written by hand."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import simcluster
from simcluster.cli import main
from simcluster.interop.replay.trace_writer import write_recorded_trace

HERE = Path(__file__).parent
SLOW = 'tiny_3d --set "faults=[{kind: slow_gpu, rank: 5, slowdown: 1.3}]"'
COMMANDS = (
    f"run {SLOW} --trace {HERE}/profiles --trace-ranks all",
    f"chakra write tiny_dp -o {HERE}/traces",
    f"schedule zb-h1 --stages 2 --microbatches 4 --csv {HERE}/mine.csv",
)
NOISE = (1.04, 0.99, 1.02, 1.01, 1.35, 1.03, 1.0, 1.02, 1.01, 1.0, 1.01)  # of what the model says, size by size
_HEAD = """\
# Made by simcluster (examples/make.py), measured nowhere; in the form in which nccl-tests prints.
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
{devices}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def nccl_log() -> str:
    """A log of all_reduce_perf on two machines of 8 H100; one size takes far longer than it should."""
    devices = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on      node{rank // 8} device  {rank % 8} [0x0{rank % 8}] "
        f"NVIDIA H100 80GB HBM3"
        for rank in range(16)
    )
    rows = []
    for power, noise in zip(range(20, 31), NOISE, strict=True):
        seconds = noise * simcluster.collective_times("dgx_h100", range(16), "all_reduce", 2**power).duration
        rate = 2**power / seconds / 1e9
        four = f"{seconds * 1e6:9.2f} {rate:7.2f} {rate * 30 / 16:7.2f}"
        rows.append(f"{2**power:12d} {2**power // 4:12d}     float     sum      -1 {four}      0 {four}    N/A\n")
    return _HEAD.format(devices=devices) + "".join(rows)


def step_times() -> str:
    """Step times of 16 ranks: rank 5 is always 15 % slower, node2 always 6 %, and rank 9 twice waits 0.4 s for data."""
    rows = ["rank,node,step,step_time_ms,compute_ms\n"]
    for step in range(100, 120):
        factors = [1 + 0.002 * ((7 * rank + 3 * step) % 5 - 2) for rank in range(16)]
        factors[5] *= 1.15
        factors[8:12] = [1.06 * factor for factor in factors[8:12]]
        compute = [800 * factor + 400 * (rank == 9 and step in (104, 113)) for rank, factor in enumerate(factors)]
        rows += [f"{rank},node{rank // 4},{step},{max(compute) + 50:.1f},{compute[rank]:.1f}\n" for rank in range(16)]
    return "".join(rows)


if __name__ == "__main__":
    for command in COMMANDS:
        assert main([*shlex.split(command), "--quiet"]) == 0, command
    shutil.rmtree(HERE / "profiles" / "merged")
    slow = {"kind": "slow_gpu", "rank": 5, "slowdown": 1.3}
    write_recorded_trace(
        simcluster.simulate(simcluster.scenario("tiny_3d", faults=[slow], steps=3)), HERE / "trace.parquet"
    )
    (HERE / "nccl.log").write_text(nccl_log(), encoding="utf-8")
    (HERE / "step_times.csv").write_text(step_times(), encoding="utf-8")
