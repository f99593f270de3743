"""What stands above numbers: every axis of the layout, and the faults that are really played."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny

import simcluster
from simcluster.cli import main
from simcluster.documents.builtin_documents import builtin_names
from simcluster.faults.descriptions import describe_faults
from simcluster.interactive.report import make_entry
from simcluster.interactive.report.summary import run_job_lines
from simcluster.show.table_cells import describe_gpus, describe_layout

JITTER = "{kind: jitter, factor: {kind: lognormal, sigma: 0.05}}"


@pytest.mark.parametrize("name", builtin_names("scenarios"))
def test_the_axes_of_a_header_are_the_gpus(name: str) -> None:
    scenario = simcluster.scenario(name)
    line = describe_layout(scenario)
    sizes = {axis: int(size) for axis, size in re.findall(r"(?:^|, |x )(tp|cp|pp|dp|ep|etp) (\d+)", line)}
    assert math.prod(sizes.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")) == scenario.gpus, line
    assert sizes.get("ep", 1) == scenario.parallel.ep


def test_every_axis_is_named() -> None:
    assert "cp 16" in describe_layout(simcluster.scenario("llama3_405b_128k_16384xh100"))
    assert describe_layout(simcluster.scenario("mixtral_8x7b_128xh100")).endswith("dp 32 (ZeRO-1), ep 8")
    whole = {"parallel.tp": 4, "parallel.sequence_parallel": True, "parallel.dp": 8, "parallel.etp": 1}
    assert describe_layout(simcluster.scenario("mixtral_8x7b_128xh100", whole)).endswith("dp 8 (ZeRO-1), ep 8 x etp 1")


def test_the_same_line_is_in_text_page_and_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"parallel.cp": 2, "parallel.dp": 1}
    result = simcluster.simulate(simcluster.scenario("tiny_3d", changes))
    line = describe_layout(result.scenario)
    assert "cp 2 (ring)" in line
    assert line in str(result)
    assert line in run_job_lines(make_entry(result))[0]
    assert main(["compare", "tiny_3d", "--parallel.dp", "null", "--vary", "parallel.cp=1,2"]) == 0
    assert f"cp 2: 8 GPUs of {result.scenario.cluster.built.name} | {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"topology": "dgx_h100", "nodes": 1}, "8 GPUs of DGX H100"),
        ({"topology": "dgx_h100", "nodes": 1, "device": "b200"}, "8 GPUs (b200) of DGX H100"),
        ({"topology": "dgx_a100", "nodes": 1}, "8 GPUs of DGX A100"),
        ({"topology": "aws_p4d", "nodes": 1}, "8 GPUs (a100-40gb) of AWS p4d.24xlarge"),
    ],
)
def test_a_device_that_the_cluster_is_not_named_after_is_told(cluster: dict[str, Any], told: str, tiny: Tiny) -> None:
    assert describe_gpus(tiny(cluster=cluster, gpus=8, parallel={"dp": 8}, training={"global_batch": 8})) == told


def test_titles_say_which_faults_are_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added faults beside the scenario's own; other ones in their place, said in one line."""
    from matplotlib.figure import Figure

    titles: list[str] = []
    monkeypatch.setattr(Figure, "suptitle", lambda self, title, **_: titles.append(title))
    scenario, options = str(tmp_path / "s.yaml"), ["--replicas", "4", "--histogram", str(tmp_path / "h.png")]
    document = simcluster.scenario("tiny_dp", {"faults": [{"kind": "slow_gpu", "rank": 2, "factor": 1.2}]}).document()
    Path(scenario).write_text(json.dumps(document), encoding="utf-8")
    slow, jitter = "slow gpu, rank 2, slowdown 1.2", "jitter, factor lognormal sigma 0.05"
    assert main(["run", scenario, "--set", f"faults+=[{JITTER}]", *options]) == 0
    captured = capsys.readouterr()
    assert f"\nfaults: {slow}; {jitter}" in captured.out
    assert f"\nfaults: {slow}; {jitter}" in titles[0]
    assert captured.err == f"wrote {options[-1]}\n"
    assert main(["run", scenario, "--set", f"faults=[{JITTER}]", *options]) == 0
    captured = capsys.readouterr()
    assert f"\nfaults: {jitter}" in captured.out
    assert f"\nfaults: {jitter}" in titles[1]
    assert captured.err == (
        f"note: faults=... replaces the scenario's faults ({slow}); faults+=... adds to them\nwrote {options[-1]}\n"
    )
    assert main(["run", scenario, "--set", "faults=[]", "-q"]) == 0
    assert "faults:" not in capsys.readouterr().out


def test_faults_can_be_added_from_python_and_in_a_study() -> None:
    own = simcluster.scenario("slow_gpu").faults
    added = simcluster.scenario("slow_gpu", {"faults+": [{"kind": "slow_gpu", "rank": 0, "factor": 1.5}]})
    assert added.faults[:1] == own
    assert added.faults == simcluster.scenario("slow_gpu", ["faults+={kind: slow_gpu, rank: 0, factor: 1.5}"]).faults
    assert describe_faults(added.faults) == "slow gpu, rank 29, slowdown 1.2; slow gpu, rank 0, slowdown 1.5"
    rows = simcluster.sweep("tiny_3d", {"faults+": [{"kind": "slow_gpu", "rank": 0, "factor": 2.0}]})
    assert rows["straggler_slowdown"].gt(1.01).all()
