"""What a long run asks of the step simulator: states, devices by name, checkpoints, intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest

import simcluster
from simcluster.base.errors import InputError
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.long_run import FailureMode, LongRun, RestartPhase
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies import cluster_states as states_module
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator, JobDevices, find_job_network
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, CheckpointInterval, parse_interval
from simcluster.model.layers import parameters
from simcluster.scenario.checkpoint_plan import HOST_LINK, CheckpointCost, checkpoint_bytes_by_rank, checkpoint_cost
from simcluster.scenario.run_section import CheckpointSpec
from simcluster.scenario.run_times import FixedTime
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate
from simcluster.topology import Cluster
from simcluster.topology.cluster import make_cluster


def tiny(run: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    given = {"days": "1 d", "failures": [FAILURE], "checkpoint": {"to": "100 GB/s"}} | (run or {})
    return load("tiny_3d", {"run": given, **{key.replace("__", "."): value for key, value in changes.items()}})


FAILURE = {"name": "GPU", "of": "gpu", "mtbf": "10 d"}


def weighed(scenario: Scenario, **checkpoint: Any) -> CheckpointCost:
    spec = CheckpointSpec.model_validate(checkpoint)
    return checkpoint_cost(scenario, spec)


def step_of(**changes: Any) -> float:
    return simulate(load("tiny_3d", changes)).step_time


# --- devices ----------------------------------------------------------------------------------------------------------


def from_graph(cluster: Cluster) -> Cluster:
    """The same cluster without closed forms."""
    return make_cluster(cluster.name, cluster.device, nx.DiGraph(cluster.graph))


@pytest.mark.parametrize("name", ["tiny_3d", "mixtral_8x7b_128xh100"])
def test_devices_are_those_of_the_graph(name: str) -> None:
    scenario = load(name)
    built = scenario.cluster.topology.build()  # not the one that is shared, whose graph others may have asked for
    scenario.cluster.__dict__.update(unscaled=built, built=built)
    cluster, parts = scenario.cluster.built, JobDevices(scenario)
    assert "graph" not in cluster.wiring.__dict__
    found = {of: parts.devices_of_kind(of) for of in ("gpu", "memory", "host", "nic", "cable", "switch", "job")}
    assert "graph" not in cluster.wiring.__dict__  # none is made for names and counts
    kinds = cluster.graph.nodes(data="kind")
    for of in ("gpu", "nic", "switch"):
        named = [found[of].device_label(place) for place in range(found[of].count)]
        assert sorted(named) == sorted(node for node, kind in kinds if kind == of)
    cables = [tuple(found["cable"].device_label(place).split(" - ")) for place in range(found["cable"].count)]
    wanted = {frozenset(link) for link in cluster.graph.edges if any(kinds[node] == "switch" for node in link)}
    assert {frozenset(cable) for cable in cables} == wanted
    assert len(cables) == len(wanted)
    assert found["host"].count == len(set(cluster.host_of))
    assert found["memory"].count == scenario.gpus
    assert find_job_network(from_graph(cluster), scenario.gpus).switch_level == parts.job_network.switch_level
    for devices in found.values():
        assert len(devices.device_class) == devices.count
        assert set(devices.device_class.tolist()) <= set(range(max(1, len(devices.representatives))))


def test_a_job_on_a_part_of_the_cluster_has_only_what_it_can_use() -> None:
    whole = load("mixtral_8x7b_128xh100")
    less = find_job_network(whole.cluster.built, 8)
    assert set(less.ports.values()) == set(range(8))
    assert len(less.nic_cables) == 8
    one = find_job_network(whole.cluster.built, 1)
    assert len(one.switch_level) == 1  # all meet in the leaf
    assert not one.trunk_cables


# --- states -----------------------------------------------------------------------------------------------------------

SLOW = [
    {"name": "slow GPU", "of": "gpu", "effect": "slow", "mtbf": "10 d", "by": [1.5], "lasts": "1 h"},
    {"name": "slow machine", "of": "host", "effect": "slow", "mtbf": "10 d", "by": [1.5], "lasts": "1 h"},
    {"name": "slow NIC", "of": "nic", "effect": "slow", "mtbf": "10 d", "left": [0.1], "lasts": "1 h"},
    {"name": "slow cable", "of": "cable", "effect": "slow", "mtbf": "10 d", "left": [0.1], "lasts": "1 h"},
    {"name": "slow switch", "of": "switch", "effect": "slow", "mtbf": "10 d", "left": [0.1], "lasts": "1 h"},
]


def test_states_equal_scenarios_with_the_fault_written_by_hand() -> None:
    scenario = tiny({"failures": [FAILURE, *SLOW]})
    states = ClusterStateSimulator(scenario)
    paces = {cause.name: cause.paces for cause in build_long_run(scenario, states).causes}
    plan_first = [0, 4]  # the first rank of each stage: tp 2, dp 2
    healthy = step_of()
    assert states.healthy_step_time == healthy

    def by_hand(*faults: dict[str, Any]) -> float:
        return step_of(faults=list(faults)) / healthy

    assert paces["slow GPU"][0].tolist() == [
        by_hand({"kind": "slow_gpu", "rank": rank, "factor": 1.5}) for rank in plan_first
    ]
    assert paces["slow NIC"][0].tolist() == [
        by_hand({"kind": "slow_link", "nic_of": rank, "factor": 0.1}) for rank in plan_first
    ]
    assert paces["slow machine"][0].tolist() == [
        by_hand({"kind": "slow_gpu", "node": n, "factor": 1.5}) for n in (0, 2)
    ]
    leaf = load("tiny_3d").cluster.built.switches[0]
    links = [a for a, b in load("tiny_3d").cluster.built.links if b == leaf]
    slow = [{"kind": "slow_link", "between": [a, leaf], "factor": 0.1} for a in links]
    assert paces["slow switch"][0, 0] == by_hand(*slow)
    assert paces["slow cable"][0, 0] == paces["slow NIC"][0, 0] > 1


def test_a_state_is_played_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Scenario] = []

    def counted(scenario: Scenario) -> Any:
        played.append(scenario)
        return simulate(scenario)

    monkeypatch.setattr(states_module, "simulate_scenario", counted)
    scenario = tiny(
        {
            "failures": [*SLOW[:1], SLOW[0] | {"name": "again", "by": [1.5, 2.0]}],
            "checkpoint": {"stall": "1 s", "every": "10 min"},
        }
    )
    states = ClusterStateSimulator(scenario)
    build_long_run(scenario, states)
    assert len(played) == 1 + 4  # healthy; two stages x (1.5, 2)
    assert len(states.step_times) == 5
    build_long_run(scenario, states)
    assert len(played) == 1 + 4
    assert any("each for the nearest of 8 devices" in note for note in states.notes)


def test_more_than_fifty_states_are_refused() -> None:
    states = ClusterStateSimulator(tiny())
    assert states.healthy_step_time
    states.used_times |= {f"state {number}": 1.0 for number in range(49)}
    with pytest.raises(InputError, match="more than 50 cluster states"):
        states.step_time_with_missing_nodes(1)


def test_a_neighbour_takes_its_share_of_what_lies_between_switches() -> None:
    beside = {"name": "other job", "of": "neighbour", "effect": "slow", "mtbf": "6 h", "lasts": "1 h", "left": [0.25]}
    layout = {"cluster.nodes": 8, "cluster.gpus_per_node": 1, "cluster.fabric.nodes_per_unit": 2}
    run = {"failures": [beside], "checkpoint": {"to": "100 GB/s", "every": "1 h"}}
    scenario = tiny(run, **layout)
    states = ClusterStateSimulator(scenario)
    cause = build_long_run(scenario, states).causes[0]
    cables = [
        {"kind": "slow_link", "between": list(cable), "factor": 0.25}
        for cable in states.devices.job_network.trunk_cables
    ]
    assert len(cables) > 1
    slowed = simulate(load("tiny_3d", {**layout, "faults": cables}))
    assert cause.paces is not None
    assert cause.paces[0, 0] == slowed.step_time / states.healthy_step_time > 1
    assert cause.label(0) == "another job"
    alone = load("tiny_dp", {"run": {"days": "1 d", **run}})
    assert build_long_run(alone, found := ClusterStateSimulator(alone)).causes == ()
    assert "other job does not occur: the job's nodes have no neighbour" in found.notes
    with pytest.raises(InputError, match="of: neighbour' allows only one effect"):
        tiny({"failures": [{"name": "other job", "of": "neighbour", "mtbf": "6 h"}]})


def test_a_policy_tells_the_states_that_it_asks_for() -> None:
    slow = {"name": "slow GPU", "of": "gpu", "mtbf": "10 d", "effect": "slow", "by": [2.0], "lasts": "1 h"}
    policies = {"slow": tiny({"failures": [FAILURE, slow]}), "not": {"run.failures": [FAILURE]}}
    found = simcluster.compare_policies({**policies, "again": {"run.price": 1.0}}, played=2)
    told = [set(run.states) for run in found.runs.values()]
    assert told[0] == told[2] > told[1] == {"healthy"}
    assert found.runs["again"].notes == found.runs["slow"].notes != ()


def test_more_than_can_be_played_is_refused_of_a_policy_too() -> None:
    many = {"run.failures": [FAILURE, {"name": "alarm", "of": "gpu", "effect": "alarm", "mtbf": "1 us"}]}
    with pytest.raises(InputError, match="take too long to simulate"):
        simcluster.compare_policies({"now": tiny(), "many": many}, played=2)


def test_a_write_takes_its_part_of_the_nics() -> None:
    scenario = tiny({"checkpoint": {"to": "20 GB/s", "mode": "snapshot", "every": "10 min"}})
    states = ClusterStateSimulator(scenario)
    run = build_long_run(scenario, states)
    weight = weighed(scenario, to="20 GB/s", mode="snapshot")
    faults = [{"kind": "background_load", "uplinks_of": host, "share": share} for host, share in weight.shares]
    assert len(faults) == 4
    assert run.pattern.storage.slowed == 1 - step_of() / step_of(faults=faults) > 0
    assert any(words.startswith("write in flight") for words in states.step_times)
    rates = np.array([share for _, share in weight.shares]) * 2 * 48e9 * weight.write
    by_rank = checkpoint_bytes_by_rank(scenario, 14)
    by_rank *= weight.size / by_rank.sum()  # what tp ranks all hold is written once
    assert rates == pytest.approx(by_rank.reshape(4, 2).sum(axis=1), rel=1e-9)


def test_fewer_replicas_are_the_smaller_job() -> None:
    scenario = tiny({"short": "shrink", "spares": {"warm": 1}})
    run = build_long_run(scenario, ClusterStateSimulator(scenario))
    smaller = simulate(load("tiny_3d", {"gpus": 4, "parallel.dp": 1})).step_time
    # dp 2: one can be missing, though shrink_to says 4, and with it both of its machines
    assert run.shrunk_paces == (smaller / step_of(),) * 2
    single = tiny({"short": "shrink", "spares": {"warm": 1}}, gpus=4, parallel__dp=1)
    with pytest.raises(InputError, match="needs two or more replicas"):
        build_long_run(single, ClusterStateSimulator(single))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_ranks_write_all_of_the_job_between_them() -> None:
    scenario = load("tiny_3d")
    with_zero = checkpoint_bytes_by_rank(scenario, 14)
    without = checkpoint_bytes_by_rank(load("tiny_3d", {"parallel.zero": 0}), 14)
    assert (without > 0).tolist() == [True, True, False, False] * 2  # the first replica
    assert with_zero.sum() == pytest.approx(without.sum(), rel=1e-12)
    whole = 14 * parameters(scenario.model).total
    assert whole < with_zero.sum() < 1.02 * whole  # both ranks of tp hold the positions and norms
    split = {"parallel": {"tp": 1, "pp": 2, "dp": 4, "zero": 1}, "overlap.tensor": False}
    assert checkpoint_bytes_by_rank(load("tiny_3d", split), 14).sum() == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(("name", "writers"), [("mixtral_8x7b_128xh100", 128), ("hsdp_7b_128xa100", 8), ("tiny_dp", 1)])
def test_each_parameter_is_written_once(name: str, writers: int) -> None:
    scenario = load(name)  # experts on ranks of their own, shards within a machine, replicas without shards
    found = checkpoint_bytes_by_rank(scenario, 14)
    assert found.sum() == pytest.approx(14 * parameters(scenario.model).total, rel=1e-12)
    assert np.count_nonzero(found) == writers


def test_copies_in_peers_memory_follow_from_pcie_and_the_network() -> None:
    switch = {"name": "rack", "of": "switch", "mtbf": "100 d", "survives": "storage"}
    checkpoint = {"to": "1 GB/s", "mode": "snapshot", "memory": {}}
    states = ClusterStateSimulator(
        tiny({"failures": [FAILURE, switch], "checkpoint": checkpoint, "restart": [{"part": "load"}]})
    )
    run = build_long_run(states.scenario, states)
    weight = weighed(states.scenario, **checkpoint)
    memory = run.pattern.memory
    assert memory is not None
    assert (memory.stall, memory.write) == (weight.memory_stall, weight.memory_write)
    share = dict(weight.memory_shares)
    assert max(share.values()) == 0.5
    faults = [{"kind": "background_load", "uplinks_of": host, "share": part} for host, part in share.items()]
    assert memory.slowed == 1 - step_of() / step_of(faults=faults) > run.pattern.storage.slowed
    assert run.pattern.snapshots_per_stored > 1
    times = [law.seconds for law in (run.restart[0].memory, run.restart[0].storage) if isinstance(law, FixedTime)]
    assert times == [weight.load_memory, weight.load_storage]
    assert any("in 6 snapshots), which has 2000.0 GB" in note for note in states.notes)


def test_published_checkpoints() -> None:
    llama = weighed(load("llama3_405b_16384xh100"), to="2 TB/s", bytes_per_parameter=14)
    assert llama.size == pytest.approx(5.67e12, rel=3e-3)
    assert llama.stall == pytest.approx(2.84, rel=3e-3)
    flat = {"kind": "flat", "gpus": 256, "gpus_per_host": 8, "link": {"line_rate": "25 GB/s"}, "path_latency": "5 us"}
    gpt = load("tiny_3d", {
        "cluster": {"topology": flat, "device": "a100-80gb"}, "model": {"preset": "gpt3-175b"},
        "parallel": {"tp": 1, "pp": 1, "dp": 256, "zero": 1}, "training": {"global_batch": 256, "micro_batch": 1},
        "overlap": {"tensor": False},
    })  # fmt: skip
    each = 1.75e12 / parameters(gpt.model).total
    found = weighed(gpt, to="100 GB/s", bytes_per_parameter=each, mode="snapshot")
    assert each == pytest.approx(10, rel=0.01)
    assert found.size == pytest.approx(1.75e12)
    assert found.write == pytest.approx(17.5)
    assert found.rank == pytest.approx(6.836e9, rel=2e-3)  # with the rows that pad the vocabulary
    assert found.stall == found.rank / HOST_LINK == pytest.approx(0.285, rel=2e-3)
    assert any("no link to host memory" in note for note in found.notes)


def test_links_bound_what_storage_does_not() -> None:
    scenario = load("tiny_3d")
    by_rank = checkpoint_bytes_by_rank(scenario, 14)
    machine = by_rank.reshape(4, 2).sum(axis=1).max()
    cluster = scenario.cluster.built
    pcie = cluster.path_bandwidth([link for link, _ in cluster.host_memory_route(0, "d2h")])
    nics = 2 * cluster.capacity[cluster.link_index["node0.nic0", cluster.switches[0]]]
    fast = weighed(scenario, to="100 TB/s", mode="snapshot")
    copied, machine = machine, machine * fast.size / by_rank.sum()  # what tp ranks all hold is written once
    assert fast.stall == pytest.approx(by_rank.max() / pcie)
    assert fast.write == pytest.approx(2 * machine / nics)  # half of a link beside training
    assert {round(share, 9) for _, share in fast.shares} >= {0.5}
    assert weighed(scenario, to="100 TB/s").stall == pytest.approx(machine / nics)
    assert any("NICs, not by storage" in note for note in fast.notes)
    slow = weighed(scenario, to="1 GB/s", read="2 GB/s")
    assert slow.stall == pytest.approx(slow.size / 1e9)
    assert slow.load_storage == pytest.approx(slow.size / 2e9)
    assert slow.load_memory == pytest.approx(max(by_rank.max() / pcie, copied / nics))


# --- how often --------------------------------------------------------------------------------------------------------


def stopping(rate: float, survives: int = 0) -> FailureMode:
    return FailureMode(name=f"stop {survives}", effect="stop", rate=rate, survives=survives)


def efficiency(savings: CheckpointCosts, causes: tuple[FailureMode, ...], found: CheckpointInterval) -> float:
    """The share of time that is kept, played on the same failures for every interval."""
    pattern = CheckpointPattern(
        10.0, found.steps, savings.storage, savings.memory, found.snapshots_per_stored, savings.verify
    )
    now = FixedTime(seconds="60 s")
    run = LongRun(pattern, causes, until=20 * 86400.0, restart=(RestartPhase("all", now, now),))
    outcomes = simulate_runs(run, 0, 40)
    return float(outcomes.steps.mean()) * 10.0 / run.until


@pytest.mark.parametrize(
    ("savings", "causes"),
    [
        (CheckpointCosts(SnapshotCost(60.0), None, 0.0, 1), (stopping(1 / 10800),)),
        (CheckpointCosts(SnapshotCost(3.0, 120.0, 0.02), None, 0.0, 1), (stopping(1 / 10800),)),
        (
            CheckpointCosts(SnapshotCost(60.0), SnapshotCost(2.0), 0.0, "auto"),
            (stopping(1 / 14400), stopping(1 / 86400, 1)),
        ),
    ],
    ids=["blocking", "behind", "two levels"],
)
def test_the_automatic_interval_is_as_good_as_a_search(
    savings: CheckpointCosts, causes: tuple[FailureMode, ...]
) -> None:
    chosen = parse_interval("auto", 10.0, savings, causes)
    least = max(saving.write for saving in (savings.storage, savings.memory) if saving) / 10
    tried = {
        (steps, cycles): efficiency(savings, causes, CheckpointInterval(steps, cycles))
        for steps in sorted({max(1, round(chosen.steps * factor)) for factor in (0.5, 1.5)})
        for cycles in sorted({max(1, round(chosen.snapshots_per_stored * factor)) for factor in (0.4, 2)})
        if steps >= least and (cycles > 1) == (savings.memory is not None)
    }
    assert len(tried) >= 2
    ours = efficiency(savings, causes, chosen)
    assert ours > max(tried.values()) - 5e-4
    assert ours - min(tried.values()) > 0.005  # the search can tell


def test_the_automatic_interval_is_never_below_the_write() -> None:
    causes = (stopping(1 / 10800),)
    bound = parse_interval("auto", 10.0, CheckpointCosts(SnapshotCost(0.0, 155.0), None, 0.0, 1), causes)
    assert bound.steps == 16
    assert "limited by the write" in bound.notes[0]
    free = parse_interval("auto", 10.0, CheckpointCosts(SnapshotCost(1e-6, 1.0), None, 0.0, 1), causes)
    assert free.steps == 1
    assert "limited to whole steps" in free.notes[0]
    wide = parse_interval("auto", 10.0, CheckpointCosts(SnapshotCost(60.0, 1.0), None, 0.0, 1), causes)
    assert wide.steps == round((2 * 60 * 10800) ** 0.5 / 10)
    assert parse_interval("20 min", 10.0, CheckpointCosts(SnapshotCost(60.0), None, 0.0, 1), ()).steps == 120
    assert parse_interval("83 steps", 10.0, CheckpointCosts(SnapshotCost(60.0), None, 0.0, 1), ()).steps == 83


def test_what_cannot_be_chosen_is_said() -> None:
    savings = CheckpointCosts(SnapshotCost(60.0), SnapshotCost(2.0), 0.0, "auto")
    with pytest.raises(InputError, match="auto needs run"):
        parse_interval("auto", 10.0, replace(savings, memory=None), ())
    with pytest.raises(InputError, match="no failure needs a checkpoint on storage"):
        parse_interval("auto", 10.0, savings, (stopping(1e-4),))
    with pytest.raises(InputError, match="needs a duration"):
        weighed(load("tiny_3d"))


def test_what_a_machine_does_not_have_does_not_fail() -> None:
    gpus = [{"name": f"gpu{place}", "kind": "gpu", "host": 0} for place in range(2)]
    edges = [{"between": [gpu["name"], "box"], "line_rate": "300 GB/s", "latency": "1 us"} for gpu in gpus]
    box = {"kind": "graph", "name": "box", "nodes": [*gpus, {"name": "box", "kind": "nvswitch"}], "edges": edges}
    run = {"failures": [FAILURE, SLOW[2]], "checkpoint": {"to": "100 GB/s", "mode": "snapshot", "every": "10 min"}}
    alone = {"cluster": {"topology": box, "device": "a100-80gb"}, "parallel": {"tp": 2, "pp": 1, "dp": 1}}
    states = ClusterStateSimulator(tiny(run, **alone))
    found = build_long_run(states.scenario, states)
    assert [cause.name for cause in found.causes] == ["GPU"]
    assert "slow NIC does not occur: the job's nodes have no nic" in states.notes
    assert list(states.step_times) == ["healthy"]  # what is written takes no link
    assert found.pattern.storage.slowed == 0
