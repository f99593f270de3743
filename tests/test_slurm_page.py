"""The page on Slurm clusters: its script as it stands, with Dask's workers on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import simcluster

PAGE = Path(__file__).parents[1] / "docs" / "slurm.md"
STAND_IN = """\
import subprocess
import sys

from distributed import Client

class SLURMCluster:
    def __init__(self, queue, cores, processes, memory, walltime):
        assert processes == cores
        self._started = [self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "there")]

    def _start(self, *argv):
        return subprocess.Popen([sys.executable, "-m", "dask", *argv, "--no-dashboard"], stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def scale(self, jobs):
        worker = ("worker", "--scheduler-file", "there", "--nthreads", "1", "--no-nanny")
        self._started += [self._start(*worker) for _ in range(2)]

    def wait_for_workers(self, count):
        with Client(scheduler_file="there") as client:
            client.wait_for_workers(count)
            self.scheduler_address = client.scheduler.address

    def __exit__(self, *error):
        for process in self._started:
            process.kill()
            process.wait()
"""
"""Replaces dask-jobqueue: separate processes, since Dask closes workers in threads within 10 s or fails."""


@pytest.mark.programs
def test_the_script_sweeps_on_the_workers_of_a_cluster(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "sweep_on_slurm.py").write_text(script, encoding="utf-8")
    (tmp_path / "dask_jobqueue.py").write_text(STAND_IN, encoding="utf-8")
    command = [sys.executable, "sweep_on_slurm.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    vary = {"training.micro_batch": [1, 2], "pipeline.schedule": ["gpipe", "1f1b"]}
    here = simcluster.sweep("tiny_3d", vary)[["training.micro_batch", "pipeline.schedule", "step_time_s"]]
    assert done.stdout == f"{here.to_string(index=False)}\n"
    assert (tmp_path / "rows.parquet").exists()


def test_commands_of_the_page_are_ours() -> None:
    from simcluster.cli import COMMANDS

    blocks = "".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert set(re.findall(r"^simcluster (\w+)", blocks, re.MULTILINE)) == {"sweep", "plan"} <= set(COMMANDS)
