"""simcluster sensitivity: elasticities of a step, played and along its critical path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.cli import main
from simcluster.results.path_estimate import estimate_path_seconds
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.sensitivities import (
    RESOURCES,
    Sensitivity,
    scale_resource,
    sensitivity,
    simulate_less_recompute,
)

BY = 0.01

# Four machines of one GPU, whose PCIe is as narrow as the NIC behind it (64 x 0.75 = 50 x 0.96 GB/s), and a step that
# reduces its gradients over them with nothing beside.
TIE: dict[str, Any] = {
    "cluster": {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 1, "pcie": {"efficiency": 0.75}},
    "overlap.grad_reduce": False,
    "collectives.nccl": "none",
}
SETS = [f"--set={path}={json.dumps(value)}" for path, value in TIE.items()]


def tied(**factors: float) -> simcluster.Result:
    changes = {**TIE, **{f"cluster.scale.{name}": factor for name, factor in factors.items()}}
    return simulate_scenario(simcluster.scenario("tiny_dp", changes))


@pytest.mark.parametrize("name", ["tiny_3d", "tiny_dp", "gpt3_175b_64xa100"])
def test_elasticities_sum_to_that_of_everything(name: str) -> None:
    """A step in which everything is k times as fast takes 1/k: the gains sum to that (Euler), to first order.

    A little less where two paths are as long as each other: one resource alone then shortens one of them.
    """
    batch = {"training.global_batch": 8} if name.startswith("gpt3") else {}
    parts = [resource for resource in RESOURCES if resource != "between_machines"]  # the network and PCIe once more
    found = sensitivity(simcluster.scenario(name, batch), parts, by=BY)
    together = (1 - 1 / (1 + BY)) / BY
    assert 0.99 * together < sum(each.gain for each in found) < together * (1 + 1e-3)
    assert [each.gain for each in found] == sorted([each.gain for each in found], reverse=True)
    for each in found:
        assert each.estimated_gain == pytest.approx(each.gain, abs=4e-3), each.resource


def test_the_path_under_its_own_program_is_the_step() -> None:
    for name in ("tiny_3d", "gpt3_175b_64xa100"):
        base = simulate_scenario(simcluster.scenario(name))
        same = simulate_scenario(base.scenario)
        assert estimate_path_seconds(base.critical_path, base, same) == pytest.approx(base.step_time, rel=1e-12)


def test_another_program_gives_no_estimate() -> None:
    base = simulate_scenario(simcluster.scenario("tiny_3d"))
    other = simulate_scenario(simcluster.scenario("tiny_3d", {"training.global_batch": 16}))
    assert estimate_path_seconds(base.critical_path, base, other) is None


def test_factors_add_to_those_that_are_there() -> None:
    scenario = scale_resource(scale_resource(simcluster.scenario("tiny_dp"), "network", 1.0), "network", 1.0)
    assert scenario.cluster.scale.network == 4.0
    assert scale_resource(scenario, "latency", 1.0).cluster.scale.latency == 0.5
    assert scenario.cluster.built.capacity.max() > simcluster.scenario("tiny_dp").cluster.built.capacity.max()


def test_derivatives_up_and_down_differ_at_a_tie() -> None:
    found = {each.resource: each for each in sensitivity(tied(), ["network", "pcie", "between_machines", "flops"])}
    base = tied().step_time
    wire = 2 * (base - tied(between_machines=2.0).step_time) / base
    for name in ("network", "pcie"):
        assert found[name].gain == 0.0
        assert found[name].loss == pytest.approx(wire, rel=1e-3)
        assert found[name].one_sided
        assert "no gain for dp" in found[name].note()
        assert f"1 % less costs {wire:.3f} %, 1 % more gives 0.000 %" in found[name].note()
    for name in ("between_machines", "flops"):
        assert not found[name].one_sided
        assert found[name].note() == ""
    assert found["between_machines"].gain == pytest.approx(wire / 1.01, rel=1e-3)


@given(st.floats(0.0, 1.0), st.floats(0.001, 1.0))
def test_a_part_that_goes_with_the_resource_has_no_two_sides(part: float, by: float) -> None:
    """However large the part and the change, its curvature is no kink."""
    more, less = 1 - part + part / (1 + by), 1 - part + part * (1 + by)
    assert not Sensitivity("network", by, 1.0, None, more, None, less).one_sided


def test_the_command_heads_its_columns_by_what_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "tiny_dp", *SETS, "--resources", "network,between_machines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = [word for word in lines[2].split("  ") if word]
    assert [word.strip() for word in header] == [
        "resource", "change", "saved per step", "step, 1 % more", "1 % less", "1 % more by critical path",
    ]  # fmt: skip
    assert lines[4].split()[-6:] == ["0.000", "%", "+0.413", "%", "0.000", "%"]
    assert lines[6].startswith("network bandwidth (NICs and switches): no gain for dp: limited by gpu - nic (PCIe)")


def test_more_memory_is_worth_less_recomputation() -> None:
    base = simulate_scenario(simcluster.scenario("tiny_3d", {"training.recompute": "full"}))
    ways = simulate_less_recompute(base)
    assert [way.recompute for way in ways] == ["selective", "none"]
    assert base.memory.total <= ways[0].bytes <= ways[1].bytes
    assert ways[1].step_time < base.step_time
    assert (
        simulate_less_recompute(simulate_scenario(simcluster.scenario("tiny_3d", {"training.recompute": "none"}))) == []
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "s.png"
    prices = ["--price", "flops=1000", "--price", "network=1"]
    assert main(["sensitivity", "tiny_3d", *prices, "--plot", str(picture), "--by", "2%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith("network bandwidth")  # by far the most for a dollar
    assert "+2.00%" in lines[3]
    assert picture.stat().st_size > 10_000
    assert main(["sensitivity", "tiny_3d", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["resource"] for each in found["sensitivity"]} == set(RESOURCES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "0%"], "must be a percentage"),
        (["--by", "many"], "must be a percentage"),
        (["--resources", "netwrk"], "did you mean 'network'"),
        (["--price", "network=-1"], "write RESOURCE=DOLLARS"),
        (["--price", "netwrk=1"], "did you mean 'network'"),
        (["--plot", "x.doc"], "x.doc"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "tiny_dp", *arguments]) == 2
    assert words in capsys.readouterr().err
