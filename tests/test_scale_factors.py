"""cluster.scale: everything k times as fast makes the step k times as short; a factor acts on its own resource only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Tiny

import simcluster
from simcluster.cli import main
from simcluster.scenario.scenario import from_document
from simcluster.step.simulate import simulate_scenario
from simcluster.traffic.nccl.platforms import NcclTimingFactors

LINKS = ("nvlink", "network", "pcie")
FAST = ("flops", "memory_bandwidth", *LINKS)
SLOW = ("launch", "latency")


def step(name: str, overrides: dict[str, Any] | None = None, **factors: float) -> float:
    changes = {f"cluster.scale.{key}": value for key, value in factors.items()}
    return simcluster.simulate(simcluster.scenario(name, {**(overrides or {}), **changes})).step_time


@pytest.mark.parametrize("name", ["tiny_3d", "gpt3_175b_64xa100"])
def test_all_resources_twice_as_fast_halve_the_step(name: str) -> None:
    """On machines with NCCL's pace as on plain links; host work of a software preset included."""
    software = {"software": "megatron-lm-2022"} if name.startswith("gpt3") else {}
    base = step(name, software)
    twice = step(name, software, **dict.fromkeys(FAST, 2.0), **dict.fromkeys(SLOW, 0.5))
    assert twice == pytest.approx(base / 2, rel=1e-9)
    others = [resource for resource in FAST if resource not in ("network", "pcie")]
    both = step(name, software, **dict.fromkeys([*others, "between_machines"], 2.0), **dict.fromkeys(SLOW, 0.5))
    assert both == twice


def test_passes_of_a_schedule_by_their_own_times_need_no_groups(tiny: Tiny) -> None:
    """Passes are timed alone: with no group in them, and links that are not those of the cluster as built."""
    job = {"gpus": 8, "parallel": {"tp": 1, "pp": 4, "dp": 2}, "pipeline": {"schedule": "zb-auto"}}
    cluster = {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}
    plain, faster = (
        simulate_scenario(tiny(**job, cluster={**cluster, "scale": {"network": factor}})).step_time for factor in (1, 2)
    )
    assert faster < plain


@pytest.mark.parametrize("resource", [*FAST, "between_machines", *SLOW])
def test_slower_is_never_faster(resource: str) -> None:
    base = step("tiny_3d")
    worse = step("tiny_3d", **{resource: 2.0 if resource in SLOW else 0.5})
    assert worse >= base * (1 - 1e-12)


def test_a_factor_acts_on_its_own_links() -> None:
    plain = simcluster.scenario("gpt3_175b_64xa100").cluster.built
    halved = simcluster.scenario("gpt3_175b_64xa100", {"cluster.scale.network": 0.5}).cluster.built
    for number, (a, b) in enumerate(plain.links):
        medium = plain.graph[a][b]["medium"]
        factor = 1.0 if medium in ("nvlink", "pcie") else 0.5
        assert halved.capacity[number] == plain.capacity[number] * factor
        assert halved.graph[a][b]["bandwidth"] == plain.graph[a][b]["bandwidth"] * factor
    assert (halved.latency == plain.latency).all()


def test_between_machines_is_network_and_pcie_and_not_nvlink() -> None:
    scale = {"cluster.scale.between_machines": 3.0, "cluster.scale.network": 0.5}
    plain = simcluster.scenario("gpt3_175b_64xa100").cluster.built
    faster = simcluster.scenario("gpt3_175b_64xa100", scale)
    for number, (a, b) in enumerate(plain.links):
        factor = {"nvlink": 1.0, "pcie": 3.0}.get(plain.graph[a][b]["medium"], 1.5)
        assert faster.cluster.built.capacity[number] == plain.capacity[number] * factor
    assert faster.cluster.scale.nccl_factors == NcclTimingFactors(between=1.5)


def test_memory_is_capacity_and_no_time() -> None:
    less = simcluster.simulate(simcluster.scenario("tiny_3d", {"cluster.scale.memory": 0.001}))
    plain = simcluster.simulate(simcluster.scenario("tiny_3d"))
    assert less.step_time == plain.step_time
    assert less.facts.memory == plain.facts.memory * 0.001


def test_the_factors_are_part_of_the_document() -> None:
    scenario = simcluster.scenario("tiny_3d", {"cluster.scale.flops": 1.5})
    assert scenario.document()["cluster"]["scale"]["flops"] == 1.5
    assert from_document(scenario.document()) == scenario


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("cluster.scale.network=0", "greater than 0"),
        ("cluster.scale.netwerk=2", "did you mean 'network'"),
        ("cluster.scale=3", "must be a mapping"),
        ("cluster.scale.flops=fast", "cluster.scale.flops"),
    ],
)
def test_bad_factors(override: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny_3d", "--set", override]) == 2
    assert words in capsys.readouterr().err


def test_the_issue_of_links_half_as_fast(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "tiny_3d", "--set", "cluster.scale.network=0.5", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["difference_s"] > 0
    assert [setting["path"] for setting in found["settings"]] == ["cluster.scale.network"]
