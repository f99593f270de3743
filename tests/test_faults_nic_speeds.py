"""NICs of which those of no two machines are equally fast: what a law and a table say, and who is held up by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny

from simcluster.base.errors import InputError
from simcluster.faults.device_speeds import NicSpeeds
from simcluster.scenario.scenario import load_text
from simcluster.step.simulate import simulate
from simcluster.studies.multi_job import simulate_jobs
from simcluster.topology import Cluster

TWO: dict[str, Any] = {
    "cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    "training": {"global_batch": 8},
}
LAW = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0.2}}


def of_machines(fault: NicSpeeds, cluster: Cluster, seed: int = 7) -> dict[int, set[float]]:
    """The different parts that are left of the links at the NICs of each machine that it is on."""
    found: dict[int, set[float]] = {}
    for link, left in fault.remaining_shares(cluster, seed).items():
        (nic,) = (name for name in cluster.links[link] if "nic" in name)
        found.setdefault(int(nic.partition(".")[0].removeprefix("node")), set()).add(left)
    return found


def test_a_law_gives_all_nics_of_a_machine_one_speed_of_its_own_and_none_more_than_it_has(tiny: Tiny) -> None:
    law = NicSpeeds.model_validate({**LAW, "seed": 0})
    few, many = (
        of_machines(law, tiny(**TWO | {"cluster": {**TWO["cluster"], "nodes": nodes}, "gpus": 4}).cluster.built)
        for nodes in (4, 64)
    )
    assert all(len(speeds) == 1 for speeds in many.values())
    speeds = np.array([next(iter(speeds)) for speeds in many.values()])
    assert len(set(speeds)) == len(speeds) < 64, "half of the draws are above 1, which no NIC reaches"
    assert 20 < len(speeds) < 44
    assert speeds.max() < 1
    assert few == {machine: own for machine, own in many.items() if machine < 4}


def test_a_table_says_what_slow_links_say(tiny: Tiny) -> None:
    job = {**TWO, "parallel": {"tp": 2, "pp": 2}}
    table = {"kind": "nic_speeds", "table": [[0, 0.8], [1, 0.3]]}
    one_by_one = [{"kind": "slow_link", "uplinks_of": node, "speed": speed} for node, speed in ((0, 0.8), (1, 0.3))]
    found, meant = simulate(tiny(**job, faults=[table])), simulate(tiny(**job, faults=one_by_one))
    assert found.step_time == meant.step_time > simulate(tiny(**job)).step_time
    assert found.timeline.equals(meant.timeline)


def test_a_table_is_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "nics.csv").write_text("node,speed\n1,0.5\n")
    said = "name: x\ncluster: {topology: dgx_h100, nodes: 2}\ngpus: 16\nmodel: {preset: llama3-8b}\n"
    said += "training: {global_batch: 16}\nfaults:\n  - {kind: nic_speeds, table: nics.csv}\n"
    assert load_text(said, folder=tmp_path).faults[0].table == ((1, 0.5),)  # type: ignore[union-attr]
    (tmp_path / "nics.csv").write_text("node,speed\n1;0.5\n")
    with pytest.raises(InputError, match=r"nics.csv:2: '1;0.5' is not node,speed"):
        load_text(said, folder=tmp_path)


@pytest.mark.parametrize(("fault", "rule"), [
    ({}, "the speed of each node's NIC is missing"),
    ({"law": LAW["law"], "table": [[0, 0.5]]}, "both set the speeds of NICs"),
    ({"table": [[0, 0.5], [0, 0.6]]}, "two speeds for node 0"),
    ({"table": [[2, 0.5]]}, "the job has no node 2"),
    ({"table": [[0, 1.5]]}, "less than or equal to 1"),
])  # fmt: skip
def test_what_is_no_speed_is_refused(tiny: Tiny, fault: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        tiny(**TWO, faults=[{"kind": "nic_speeds", **fault}])


def test_speeds_go_with_their_machines_when_some_leave() -> None:
    table = NicSpeeds.model_validate({"kind": "nic_speeds", "table": [[0, 0.5], [1, 0.9]]})
    left = table.for_remaining_ranks([0, 0, 1, 1], {2: 0, 3: 1})
    assert left is not None
    assert left.table == ((0, 0.9),)
    assert table.for_remaining_ranks([0, 0, 1, 1, 2, 2], {4: 0, 5: 1}) is None
    law = NicSpeeds.model_validate(LAW)
    assert law.for_remaining_ranks([0, 0, 1, 1], {2: 0, 3: 1}) is law


def test_jobs_that_share_a_cluster_have_tables_with_their_own_numbers(tiny: Tiny) -> None:
    """Machine 0 of the second job is the cluster's second; a law would be drawn for both."""
    job = {**TWO, "gpus": 4, "parallel": {"dp": 4}}
    table, law = ({"kind": "nic_speeds", **said} for said in ({"table": [[0, 0.25]]}, {"law": LAW["law"]}))
    cluster = tiny(**job).cluster.built
    assert NicSpeeds.model_validate(table).with_cluster_numbers(range(4, 8), [1]).table == ((1, 0.25),)
    with pytest.raises(InputError, match="use 'table'"):
        simulate_jobs([(tiny(**job), range(4)), (tiny(**job, faults=[law]), range(4, 8))], cluster)
