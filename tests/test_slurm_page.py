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
from distributed import LocalCluster

class SLURMCluster(LocalCluster):
    def __init__(self, queue, cores, processes, memory, walltime):
        assert processes == cores
        super().__init__(n_workers=0, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0")

    def scale(self, jobs):
        super().scale(2)
"""


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
