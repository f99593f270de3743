"""Racks of 72 GPUs: what counts them is said where one writes it, and jobs that fill them unevenly are quick."""

from __future__ import annotations

import time
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.scenario.scenario import load
from simcluster.scenario.schema import scenario_schema
from simcluster.step.simulate import simulate

JOB: dict[str, Any] = {
    "cluster": {"topology": "gb200_nvl72", "nodes": 2}, "gpus": 128, "model": "llama3-70b",
    "training": {"global_batch": 128, "micro_batch": 1, "precision": "bf16-mixed"},
}  # fmt: skip
MIXTURE = {**JOB, "model": {"preset": "deepseek-v3"}, "pipeline": {"layers_per_stage": "auto"}}
OVERLAP = {"grad_reduce": True, "param_gather": True}


@pytest.mark.parametrize(
    "job",
    [
        {**JOB, "parallel": {"tp": 4, "pp": 4, "sequence_parallel": True, "zero": 1}, "overlap": OVERLAP},
        {**JOB, "parallel": {"tp": 8, "sequence_parallel": True, "zero": 3}},
        {**MIXTURE, "parallel": {"pp": 4, "ep": 32, "zero": 1}, "overlap": OVERLAP},
    ],
)
def test_128_gpus_on_racks_of_72_take_seconds(job: dict[str, Any]) -> None:
    begun = time.process_time()
    result = simulate(job)
    assert time.process_time() - begun < 10
    (warning,) = [text for text in result.warnings() if "racks" in text]
    assert "the last has 56 of 72 GPUs" in warning
    assert "cluster.machine.trays: 16 with cluster.nodes: 2 takes 64 of each rack" in warning
    assert warning in result.to_dict()["warnings"]


def test_racks_that_are_filled_alike_are_no_matter() -> None:
    layout = {"parallel": {"tp": 8, "pp": 2, "sequence_parallel": True, "zero": 1}, "pipeline": {"schedule": "1f1b"}}
    for cluster, gpus in (({"nodes": 1}, 64), ({"nodes": 2, "machine": {"trays": 16}}, 128), ({"nodes": 2}, 144)):
        job = {**JOB, **layout, "model": "llama3-8b", "cluster": {"topology": "gb200_nvl72", **cluster}, "gpus": gpus}
        job["training"] = {**JOB["training"], "global_batch": gpus}
        assert not [text for text in simulate(job).warnings() if "racks" in text]


def test_nodes_that_were_meant_as_trays_are_told_to_be_racks() -> None:
    job = {"model": JOB["model"], "training": JOB["training"], "parallel": {"tp": 4, "dp": 32}}
    with pytest.raises(InputError, match=r"a node of GB200 NVL72 is a rack of 72 GPUs in 18 trays.*counts racks"):
        load({**job, "cluster": {"topology": "gb200_nvl72", "nodes": 32}})
    machines = scenario_schema()["$defs"]["MachinesSpec"]["properties"]
    assert "rack of 72 GPUs" in machines["nodes"]["description"]


@pytest.mark.parametrize("gpus", [128, 144])
def test_new_fills_racks_evenly(gpus: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--model", "llama3-8b", "--cluster", "gb200_nvl72", "--gpus", str(gpus)]) == 0
    text = capsys.readouterr().out
    assert "nodes: 2" in text
    assert ("machine: {trays: 16}" in text) == (gpus == 128)
