"""Kernels of a rank, one row each: shapes of a textbook, how they are split, and their time against a run."""

from __future__ import annotations

import json

import pytest
from conftest import Tiny

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate
from simcluster.studies.kernels import KernelRow, kernels

BUSY = ("forward", "backward", "recompute", "input_grad", "weight_grad")


def by_name(rows: tuple[KernelRow, ...], phase: str = "forward") -> dict[str, KernelRow]:
    return {row.name: row for row in rows if row.phase == phase}


def test_gpt3_with_tp_8() -> None:
    """2,048 tokens: qkv and the MLP's first product split by columns, projection and the second by rows."""
    rows = kernels(load("gpt3_175b_64xa100"))
    forward = by_name(rows)
    assert {name: (forward[name].m, forward[name].k, forward[name].n, forward[name].split)
            for name in ("qkv", "projection", "mlp_up", "mlp_down")} == {
        "qkv": (2048, 12288, 4608, "column 1/8"),
        "projection": (2048, 1536, 12288, "row 1/8"),
        "mlp_up": (2048, 12288, 6144, "column 1/8"),
        "mlp_down": (2048, 6144, 12288, "row 1/8"),
    }  # fmt: skip
    assert forward["qkv"].whole == (2048, 12288, 36864, 1)
    assert forward["scores"].split == "heads 1/8"
    assert forward["qkv"].flops == 2 * 2048 * 12288 * 4608
    assert forward["qkv"].bytes == 2 * (2048 * 12288 + 12288 * 4608 + 2048 * 4608)
    assert (forward["qkv"].roof, forward["attention_norm"].roof) == ("compute", "memory")
    for phase in ("input_grad", "weight_grad"):  # gradients are split as the weights are
        back = by_name(rows, phase)
        assert back[f"qkv_{phase}"].split == "column 1/8"
        assert back[f"mlp_down_{phase}"].split == "row 1/8"
        assert back[f"qkv_{phase}"].flops == forward["qkv"].flops
    assert forward["qkv"].launches == 12 * 64  # layers of a stage, microbatches


@pytest.mark.parametrize(
    "job",
    [
        {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"pp": 2}},
        {
            "cluster": {"topology": "flat", "gpus": 2},
            "parallel": {"tp": 2},
            "training": {"global_batch": 4, "recompute": "full"},
        },
    ],
)
def test_their_time_is_the_stage_s_compute(job: dict[str, object], tiny: Tiny) -> None:
    result = simulate(tiny(**job))
    spans = result.timeline
    spans = spans[(spans["stream"] == "compute") & spans["kind"].isin(BUSY)]
    for stage in range(result.scenario.parallel.pp):
        mine = spans[spans["stage"] == stage]
        busy = float((mine["end"] - mine["start"]).sum()) / mine["rank"].nunique()
        rows = kernels(result.scenario, stage)
        assert sum(row.step_seconds for row in rows) == pytest.approx(busy, rel=1e-6)
        assert all(0 < row.of_roof <= 1 for row in rows)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_products_of_all_ranks_are_the_model_s(tp: int, tiny: Tiny) -> None:
    """FLOP of a layer's products x tp do not depend on tp, and only what is split says so."""
    rows = kernels(tiny(cluster={"topology": "flat", "gpus": tp}, parallel={"tp": tp}))
    layer = [row for row in rows if row.kind == "matmul" and row.block in ("attention", "mlp")]
    one = kernels(tiny(cluster={"topology": "flat", "gpus": 1}, parallel={"tp": 1}))
    whole = {(row.name, row.phase): row.flops for row in one}
    for row in layer:
        assert tp * row.flops == whole[row.name, row.phase]
        assert row.split.endswith(f"1/{tp}") if tp > 1 else row.split == "whole"


def test_experts_of_a_mixture() -> None:
    rows = by_name(kernels(load("mixtral_8x7b_128xh100", {"parallel.ep": 8})))
    assert rows["experts_up"].split == "experts 1/8, tokens x8"  # those of eight ranks meet in front of one
    assert rows["qkv"].split == "whole"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "tiny_3d", "--stage", "1", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stage"] == 1
    assert document["kernels"] == [row.to_dict() for row in kernels(load("tiny_3d"), 1)]
    assert cli.main(["kernels", "tiny_3d", "--phase", "forward"]) == 0
    assert "1024 x 1024 -> 1536" in capsys.readouterr().out


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(InputError, match="stage: 2 does not exist; this job has stages 0 to 1"):
        kernels(load("tiny_3d"), 2)
