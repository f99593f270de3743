"""Links in series: what holds when one is raised, as ``run``, ``compare`` and ``diff`` say it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.cli import main
from simcluster.results.contention import EqualCalls, list_link_calls
from simcluster.results.link_upgrade import LinkUpgrade, UpgradeLimit, find_upgrade_limit
from simcluster.results.result import Result
from simcluster.scenario.document_resolution import load_cluster
from simcluster.step.simulate import simulate_scenario
from simcluster.traffic.traffic import Traffic, sum_usage

# Four machines of one GPU, whose PCIe is as narrow as the NIC behind it (64 x 0.75 = 50 x 0.96 GB/s), and a step that
# reduces its gradients over them with nothing beside.
TIE: dict[str, Any] = {
    "cluster": {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 1, "pcie": {"efficiency": 0.75}},
    "overlap.grad_reduce": False,
    "collectives.nccl": "none",
}
SETS = [f"--set={path}={json.dumps(value)}" for path, value in TIE.items()]
PAIR = load_cluster("two_nodes_explicit")  # gpu - nic 26.24, nic - leaf 23.7 and, at the second machine, 11.85 GB/s


def step(**factors: float) -> simcluster.Result:
    changes: dict[str, Any] = {f"cluster.scale.{name}": factor for name, factor in factors.items()}
    return played({**TIE, **changes})


def played(changes: dict[str, Any]) -> simcluster.Result:
    return simulate_scenario(simcluster.scenario("tiny_dp", changes))


# --- one resource of two in series ------------------------------------------------------------------------------------


def test_neither_alone_pays_and_both_do() -> None:
    """A message takes B / 48e9 s: less only if both links are faster, more as soon as one of them is slower."""
    base, both = step().step_time, step(between_machines=2.0).step_time
    assert step(network=2.0).step_time == base
    assert step(pcie=2.0).step_time == base
    assert step(network=2.0, pcie=2.0).step_time == both
    wire = 2 * (base - both)  # of which half is saved
    assert wire > 0.1 * base
    assert step(network=0.5).step_time == pytest.approx(base + wire, rel=1e-9)
    assert step(pcie=0.5).step_time == pytest.approx(base + wire, rel=1e-9)


def test_what_a_run_says() -> None:
    network, pcie = step(network=2.0).warnings(), step(pcie=2.0).warnings()
    assert network == [
        "cluster.scale.network 2: no gain for dp: limited by gpu - nic (PCIe) at 48 GB/s, in series with nic - leaf "
        "(now 96 GB/s); raise both: --cluster.scale.between_machines 2"
    ]
    assert pcie == [
        "cluster.scale.pcie 2: no gain for dp: limited by nic - leaf at 48 GB/s, in series with gpu - nic (PCIe) "
        "(now 96 GB/s); raise both: --cluster.scale.between_machines 2"
    ]
    assert step(between_machines=2.0).warnings() == []
    assert step(network=0.5).warnings() == []
    assert step(nvlink=2.0).warnings() == [
        "cluster.scale.nvlink 2: no gain: this job does not communicate over these links"
    ]
    assert played({"cluster.scale.pcie": 2.0}).warnings() == [
        "cluster.scale.pcie 2: no gain: the cluster has no such links"
    ]


def test_the_remedy_is_a_command_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = step(network=2.0).warnings()
    option = text.rpartition(": ")[2].split()
    assert main(["run", "tiny_dp", *SETS, *option, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == step(network=2.0, pcie=2.0).step_time


def test_a_machine_as_shipped_gets_what_its_pcie_has_left() -> None:
    """55.04 over 48 GB/s: a network twice as fast makes messages 1.147 times as fast."""
    shipped = {**TIE, "cluster": {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 1}}
    (text,) = played({**shipped, "cluster.scale.network": 2.0}).warnings()
    assert "x2 link rate gives x1.147 for dp: limited by gpu - nic (PCIe) at 55.04 GB/s" in text
    assert played({**shipped, "cluster.scale.network": 1.1}).warnings() == []


def test_nccls_own_pace_is_named_where_it_holds() -> None:
    job = {"cluster": {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 1}, "cluster.scale.pcie": 2.0}
    (text,) = played(job).warnings()
    assert text.startswith("cluster.scale.pcie 2: no gain for dp: limited by NCCL's pace at ")
    before = {"cluster": job["cluster"]}
    found = simcluster.diff(played(before), played({**before, "cluster.nic.line_rate": "800 Gbit/s"}))
    assert found.limiting_links is not None
    assert found.limiting_links.remedy.endswith("--collectives.nccl none, only the links limit")


def test_compare_and_diff_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    vary = "cluster.nic.line_rate=400 Gbit/s,800 Gbit/s"
    assert main(["compare", "tiny_dp", *SETS, "--vary", vary]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  line_rate 800 Gbit/s: no gain for dp: limited by gpu - nic (PCIe) at 48 GB/s")
    assert last.endswith("raise both: --cluster.scale.pcie 2 as well")  # a factor on the network would come on top
    assert main(["compare", "tiny_dp", *SETS, "--vary", vary, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["held_back"] and row["held_back"]["by"] for row in rows] == [None, "gpu - nic"]
    found = simcluster.diff(step(), step(network=2.0))
    assert found.limiting_links is not None
    assert found.to_dict()["held_back"]["rate"] == 48e9
    assert simcluster.diff(step(network=2.0), step()).limiting_links is None


# --- the cause, on links ----------------------------------------------------------------------------------------------


def between(flows: int = 1, bound: float = math.inf) -> EqualCalls:
    """Messages from GPU 0 to the other machine's GPU 2, so many at a time."""
    return EqualCalls("pp", 1.0, (Traffic(sum_usage([(float(flows), PAIR.spread_route(0, 2))]), 1.0, 1, 0.0, bound),))


def raised(network: float = 1.0, pcie: float = 1.0) -> LinkUpgrade:
    media = [PAIR.graph[a][b]["medium"] for a, b in PAIR.links]
    factors = np.array([{"nvlink": 1.0, "pcie": pcie}.get(medium, network) for medium in media])
    return LinkUpgrade(PAIR, PAIR.capacity, PAIR.capacity * factors)


def test_what_holds_by_hand() -> None:
    assert find_upgrade_limit([between()], raised(network=2.0)) is None  # 11.85 to 23.7 GB/s: all of it
    held = find_upgrade_limit([between()], raised(network=3.0))
    assert held is not None
    assert (held.by, held.resource, held.rate) == ("gpu - nic", "pcie", 0.82 * 32e9)
    assert (held.links, held.links_rate, held.factor) == ("nic - leaf", 3 * 0.948 * 12.5e9, 3.0)
    assert held.gain == pytest.approx(0.82 * 32 / (0.948 * 12.5))
    four = find_upgrade_limit([between(flows=4)], raised(network=3.0))
    assert four == replace(held, flows=4.0, links_flows=4.0)  # four of them share all links alike
    assert four is not None
    assert four.describe() == held.describe()


def test_links_that_messages_share_say_how_many() -> None:
    """Two GPUs of a PCIe switch send out by a NIC each; both cross the switch's one link to the host bridge."""
    boxes = load_cluster("pcie_ethernet", [("nodes", 2)])
    usage = sum_usage((1.0, boxes.spread_route(source, source + 8)) for source in (0, 1))
    media = [boxes.graph[a][b]["medium"] for a, b in boxes.links]
    faster = boxes.capacity * np.array([8.0 if medium == "ethernet" else 1.0 for medium in media])
    held = find_upgrade_limit(
        [EqualCalls("dp", 1.0, (Traffic(usage, 1.0, 1, 0.0),))], LinkUpgrade(boxes, boxes.capacity, faster)
    )
    assert held is not None
    assert (held.by, held.resource, held.flows) == ("pcie - host", "pcie", 2.0)
    assert held.gain == pytest.approx((0.82 * 32 / 2) / (0.948 * 12.5))
    assert (
        "at 26.24 GB/s shared by 2 messages, in series with nic - leaf (now 94.8 GB/s shared by 1)" in held.describe()
    )


def test_nothing_to_say() -> None:
    assert find_upgrade_limit([between()], raised()) is None
    assert find_upgrade_limit([between()], raised(network=0.5)) is None
    assert find_upgrade_limit([], raised(network=2.0)) == UpgradeLimit(2.0, 1.0)
    assert UpgradeLimit(2.0, 1.0).describe() == "no gain: this job does not communicate over these links"


def test_most_seconds_decide() -> None:
    """A large call that is held outweighs a small one that is not, and the other way round."""
    traffic = between().traffics
    slow = (Traffic(traffic[0].usage, 1.0, 1, 0.0, 5e9),)  # its protocol reaches no more
    calls_of = [EqualCalls("pp", 1.0, traffic), EqualCalls("dp", 3.0, slow)]
    held = find_upgrade_limit(calls_of, raised(network=2.0))
    assert held is not None
    assert (held.by, held.axes) == ("NCCL's pace", ("dp",))
    assert held.gain == pytest.approx((2.0 + 3 * 1.0) / 4)
    assert (
        find_upgrade_limit([EqualCalls("pp", 4.0, traffic), EqualCalls("dp", 3.0, slow)], raised(network=2.0)) is None
    )


@given(st.floats(1.001, 50.0), st.floats(1.0, 50.0), st.integers(1, 8))
def test_gain_is_what_the_narrowest_leaves(network: float, pcie: float, flows: int) -> None:
    change = raised(network, pcie)
    usage = between(flows).traffics[0].usage
    rates = [min(capacity[link] / n for link, n in usage) for capacity in (change.before, change.after)]
    held = find_upgrade_limit([between(flows)], change)
    if held is not None:
        assert held.gain == pytest.approx(rates[1] / rates[0])
        assert 1.0 <= held.gain < held.factor
    both = find_upgrade_limit([between(flows)], raised(network, network))
    assert both is None  # all links in series by one factor: nothing holds


def calls_of(result: Result) -> Iterator[EqualCalls]:
    return list_link_calls(result.folding.communicators, result.span_calls, result.spans, result.weights)


def test_calls_of_uneven_experts_are_seen() -> None:
    """Their sizes are none that was planned for; their links are."""
    uneven = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0.3}}
    job = {"model.layers": 4, "parallel.pp": 1, "pipeline.schedule": "1f1b", "pipeline.chunks": 1, "gpus": 64,
           "parallel.order": ["tp", "cp", "pp", "dp"], "training.global_batch": 64, "cluster.gpus_per_node": 1,
           "cluster.nodes": 64, "faults": [uneven]}  # fmt: skip
    result = simulate_scenario(simcluster.scenario("mixtral_8x7b_128xh100", job))
    seconds = {call.axis: call.seconds for call in calls_of(result)}
    assert max(seconds, key=seconds.__getitem__) == "ep"


def test_calls_are_all_communication_of_a_run() -> None:
    """Seconds over all ranks, by axis as in the spans: groups, sends and copies."""
    for name in ("tiny_3d", "llama3_70b_16xh100_offload"):
        result = simulate_scenario(simcluster.scenario(name))
        found: dict[str, float] = {}
        for call in calls_of(result):
            found[call.axis] = found.get(call.axis, 0.0) + call.seconds
        table = result.timeline
        weight = table["rank"].map(result.weights)
        took = (table["end"] - table["start"]) * weight
        sends = took[table["kind"] == "send"].sum()
        grouped = took[table["group"] != ""].sum()
        copies = took[table["stream"].isin(["d2h", "h2d"])].sum()
        assert sum(found.values()) == pytest.approx(sends + grouped + copies, rel=1e-9)
        assert found.get("pp", 0.0) == pytest.approx(sends, rel=1e-9)


# --- links that NCCL's platform has figures of its own for ------------------------------------------------------------

B200 = {"cluster": {"topology": "dgx_b200", "nodes": 1}, "gpus": 8}


@pytest.mark.parametrize(
    ("base", "link"),
    [
        *(({}, link) for link in ("nic", "nvlink", "pcie", "fabric.leaf_to_spine")),
        ({"cluster.topology": "dgx_a100"}, "nic"),
        ({"cluster.topology": "hgx_h800", "collectives.nccl": "dgx-h100"}, "nvlink"),
        *((B200, f"machine.{link}") for link in ("nvlink", "pcie")),
    ],
)
def test_a_latency_that_nothing_takes_is_rejected(base: dict[str, Any], link: str) -> None:
    key = f"cluster.{link}.latency"
    with pytest.raises(simcluster.InputError) as told:
        simcluster.scenario("tiny_3d", {**base, key: "1 s"})
    assert str(told.value).startswith(f"override: {key}: has no effect")
    for words in ("NCCL's platform dgx-", "collectives.nccl to none", "cluster.scale.latency"):
        assert words in str(told.value)
    simcluster.scenario("tiny_3d", {**base, key: "1 s", "collectives.nccl": "none"})


def test_a_latency_that_something_takes_acts() -> None:
    def seconds(**changes: Any) -> float:
        return simulate_scenario(
            simcluster.scenario("tiny_3d", {name.replace("__", "."): v for name, v in changes.items()})
        ).step_time

    slow = {"cluster__nic__latency": "1 ms"}
    assert seconds(collectives__nccl="none", **slow) > seconds(collectives__nccl="none")
    assert seconds(collectives__all_reduce="halving_doubling", **slow) > seconds(
        collectives__all_reduce="halving_doubling"
    )
    assert seconds(cluster__nic__latency="6 us") == seconds()  # that of the topology


def test_every_command_rejects_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "check", "memory", "train"):
        assert main([command, "tiny_3d", "--cluster.nic.latency", "1 s"]) == 2
        assert "cluster.nic.latency: has no effect" in capsys.readouterr().err
    assert main(["compare", "tiny_3d", "--vary", "cluster.nic.latency=1 us,1 s"]) == 2
    assert "cluster.nic.latency: has no effect" in capsys.readouterr().err
    inline = simcluster.scenario(simcluster.scenario("tiny_3d").document())
    with pytest.raises(simcluster.InputError, match=r"cluster\.topology\.nic\.latency: has no effect"):
        inline.with_({"cluster.topology.nic.latency": "1 s"})


def test_a_run_warns_of_a_rate_beyond_nccls_pace() -> None:
    fast = {"cluster.nic.line_rate": "800 Gbit/s"}
    (warning,) = simulate_scenario(simcluster.scenario("tiny_3d", fast)).warnings()
    assert warning.startswith("cluster.nic.line_rate: almost no gain for dp")
    assert "limited by NCCL's pace at 44.83 GB/s" in warning
    assert "with --collectives.nccl none, only the links limit" in warning
    for other in ({"cluster.nic.line_rate": "200 Gbit/s"}, {"cluster.name": "mine"}):
        assert simulate_scenario(simcluster.scenario("tiny_3d", other)).warnings() == []
