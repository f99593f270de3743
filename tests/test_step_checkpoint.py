"""A checkpoint in a step: what is saved, what training stands for, and the write beside the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator, find_job_network
from simcluster.model.layers import parameters
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import (
    checkpoint_bytes,
    checkpoint_bytes_by_rank,
    checkpoint_bytes_per_parameter,
    checkpoint_cost,
    node_nic_rates,
    step_checkpoint_spec,
)
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.extra_steps import add_overlapped_steps

ALONE = {"overlap.interference": "none", "overlap.grad_reduce": True}


def saving(name: str = "tiny_3d", *, steps: int = 2, more: dict[str, Any] | None = None, **checkpoint: Any) -> Scenario:
    return load(name, {"checkpoint": {"to": "10 GB/s", **checkpoint}, "steps": steps, **(more or {})})


def played(**given: Any) -> tuple[Result, Any]:
    result = simulate(saving(**given))
    return result, result.checkpoint


def test_training_stands_and_the_write_goes_on_as_long_as_a_run_of_weeks_says() -> None:
    """The run of weeks works its seconds out of links and bytes; here they are flows."""
    result, found = played(mode="snapshot", more=ALONE)
    weight = checkpoint_cost(result.scenario, step_checkpoint_spec(result.scenario))
    assert found.stands_s == pytest.approx(weight.stall, rel=0.01)  # and latencies
    skew = 0.002_3  # a stage with fewer bytes has its snapshot, and begins to write, so much earlier
    assert weight.write <= found.write_s <= weight.write + skew
    blocking, whole = played(mode="blocking", more=ALONE)
    assert whole.stands_s == pytest.approx(
        checkpoint_cost(blocking.scenario, step_checkpoint_spec(blocking.scenario)).stall, rel=1e-3
    )
    assert whole.beside_s == 0.0


@pytest.mark.parametrize("to", ["10 GB/s", "50 GB/s"])
def test_a_step_beside_the_write_is_the_state_that_a_run_of_weeks_plays(to: str) -> None:
    result, found = played(mode="snapshot", to=to, more=ALONE)
    weight = checkpoint_cost(result.scenario, step_checkpoint_spec(result.scenario))
    states = ClusterStateSimulator(result.scenario.model_copy(update={"steps": 1}))
    assert states.scenario.checkpoint is None
    state = states.step_time_during_write("write", dict(weight.shares))
    assert found.beside_s == pytest.approx(found.step_s)  # in flight all the time
    assert state > states.healthy_step_time
    assert found.step_s - states.healthy_step_time == pytest.approx(state - states.healthy_step_time, rel=0.25)
    assert found.step_s == pytest.approx(state, rel=2e-4)


def test_copies_to_peers_take_the_cables_of_both_directions() -> None:
    result = simulate(load("tiny_3d", {"checkpoint.place": "peers", "steps": 3, **ALONE}))
    found, scenario = result.checkpoint, result.scenario
    assert found is not None
    spec = step_checkpoint_spec(scenario)
    by_rank = checkpoint_bytes_by_rank(scenario, checkpoint_bytes_per_parameter(scenario, spec))
    of_machine = by_rank.reshape(4, 2).sum(axis=1)
    half = node_nic_rates(scenario, [0, 1, 2, 3]) / 2
    skew = 0.002_3  # as above
    assert (of_machine / half).max() <= found.write_s <= (of_machine / half).max() + skew
    assert found.stands_s == pytest.approx(checkpoint_cost(scenario, spec).memory_stall, rel=0.01)
    out, both = (scenario.cluster.built.host_memory_route(3, way) for way in ("storage", "peers"))
    ends = {link: pair for pair, link in scenario.cluster.built.link_index.items()}
    back = [ends[link][::-1] for link, _ in both[len(out) :]]
    assert both[: len(out)] == out
    assert back == [ends[link] for link, _ in out]
    assert "copied to peers' memory" in "\n".join(found.summary_lines())
    again = simulate(scenario, engine="reference")
    assert again.step_time == result.step_time
    assert again.checkpoint == found


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in ("tiny_3d", "tiny_dp", "hsdp_7b_128xa100", "mixtral_8x7b_128xh100", "slow_gpu")),
        ("tiny_3d", {"steps": 3}),
        ("llama3_70b_16xh100_offload", {}),
        *(("tiny_3d", {"cluster.topology": topology}) for topology in ("dgx_a100", "hgx_h800", "pcie_ethernet")),
    ],
)
def test_copies_to_peers_are_in_every_part_of_a_result(name: str, more: dict[str, Any]) -> None:
    result = simulate(load(name, {"checkpoint.place": "peers", **more}))
    assert result.to_dict()["account"] == result.account.to_dict()
    keys = result.span_calls[1]
    written = {key.communicator for key in keys if key.axis == "storage"}
    assert written
    communicators = result.folding.communicators
    assert {communicators.table_of_communicator(number).name for number in written} == {("copy", "peers")}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"checkpoint.mode": "blocking"}, "copies to peers never block training"),
        ({"cluster.nodes": 1, "cluster.gpus_per_node": 8}, "the job's only node has no peer node"),
    ],
)
def test_copies_to_peers_that_cannot_be_are_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load("tiny_3d", {"checkpoint.place": "peers", **more})


def test_it_has_its_own_entry_and_is_neither_other_nor_a_straggler() -> None:
    for mode in ("snapshot", "blocking"):
        result, found = played(mode=mode)
        breakdown = result.times.breakdown
        assert sum(breakdown.values()) == pytest.approx(result.step_time, rel=1e-12)
        assert breakdown["checkpoint"] == pytest.approx((found.stands_s + found.behind_s) / 2, rel=0.1)
        assert breakdown["other"] == breakdown["straggler_wait"] == 0.0
        bubble = simulate(load("tiny_3d")).times.breakdown["bubble"]
        assert breakdown["bubble"] == pytest.approx(bubble, rel=0.3)  # ranks with less to save do not wait for others
        spans = result.timeline
        assert set(spans[spans["kind"] == "checkpoint"]["stream"]) == {"storage", "host"} | (
            {"d2h"} if mode == "snapshot" else set()
        )


def test_a_stall_of_the_host_for_a_checkpoint_is_a_checkpoint_too() -> None:
    stall = {"kind": "host_stall", "cause": "checkpoint", "seconds": "5 ms"}
    breakdown = simulate(load("tiny_dp", {"faults": [stall]})).times.breakdown
    assert breakdown["checkpoint"] == pytest.approx(5e-3)
    assert breakdown["other"] == 0.0


@pytest.mark.parametrize(
    ("name", "more", "savers"),
    [
        ("tiny_3d", {}, 8),  # ZeRO 1: every rank its shard
        ("tiny_3d", {"parallel.zero": 0}, 4),  # without, the first replica
        ("tiny_dp", {"parallel.zero": 3, "fsdp.shard_group": 2}, 2),  # the first group of shards
    ],
)
def test_each_rank_saves_what_the_run_of_weeks_counts(name: str, more: dict[str, Any], savers: int) -> None:
    scenario = saving(name, mode="snapshot", more=more)
    result = simulate(scenario)
    counted = checkpoint_bytes_by_rank(
        scenario, checkpoint_bytes_per_parameter(scenario, step_checkpoint_spec(scenario))
    )
    assert np.count_nonzero(counted) == savers
    once = checkpoint_bytes(scenario, step_checkpoint_spec(scenario))  # in storage: no copies of what tp ranks all hold
    for way, whole in (("d2h", counted.sum()), ("storage", once)):
        found = []
        for rank in range(scenario.gpus):
            spans = result.timeline_of(rank)
            found.append(spans[(spans["kind"] == "checkpoint") & (spans["stream"] == way)]["bytes"].sum())
        assert found == pytest.approx((counted * whole / counted.sum()).tolist())
    assert result.checkpoint is not None
    assert result.checkpoint.bytes == pytest.approx(once)


@pytest.mark.parametrize("name", ["tiny_3d", "mixtral_8x7b_128xh100", "gpt3_175b_64xa100"])
def test_machines_write_over_the_cables_of_their_gpus(name: str) -> None:
    scenario = load(name)
    cluster = scenario.cluster.built
    fabric = find_job_network(cluster, scenario.gpus)
    of_host: dict[int, float] = {}
    for port, switch in fabric.nic_cables:
        host = int(cluster.node_of_gpu[fabric.ports[port]])
        of_host[host] = of_host.get(host, 0.0) + float(cluster.capacity[cluster.link_index[port, switch]])
    assert node_nic_rates(scenario, list(of_host)).tolist() == pytest.approx(list(of_host.values()))
    for gpu in (0, scenario.gpus - 1):
        way = cluster.host_memory_route(gpu, "storage")
        assert sum(part for _, part in way) == 1.0


def test_the_steps_are_as_many_as_the_write_lasts() -> None:
    one = saving(steps=1, mode="snapshot", to="30 GB/s")
    many = add_overlapped_steps(one)
    found = simulate(many).checkpoint
    assert found is not None
    assert many.steps > 2
    assert found.behind_s < found.step_s  # type: ignore[operator]
    assert add_overlapped_steps(saving(steps=7)).steps == 7
    assert add_overlapped_steps(load("tiny_3d")).steps == 1


def test_the_command_takes_it_from_the_run_or_from_its_own_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    given = ["--checkpoint.to", "30 GB/s", "--checkpoint.mode", "snapshot"]
    assert main(["run", "tiny_3d", "--checkpoint", *given, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "  checkpoint   after step 0 training stops for 3.851 ms" in text
    known = json.loads(out.read_text())
    assert known["checkpoint"]["after"] == 0
    assert known["scenario"]["steps"] > 2
    spec = {"days": "1 d", "checkpoint": {"to": "40 GB/s", "mode": "snapshot"}}
    assert step_checkpoint_spec(load("tiny_3d", {"run": spec, "checkpoint.after": 0})).to == 40e9
    assert step_checkpoint_spec(load("tiny_3d", {"run": spec, "checkpoint.to": "1 GB/s"})).to == 1e9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checkpoint.after": 0}, "is required: set the storage write rate"),
        ({"checkpoint": {"to": "1 GB/s", "after": 3}, "steps": 2}, "set steps to 5"),
    ],
)
def test_what_cannot_be_played_is_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load("tiny_3d", changes)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("mode", ["blocking", "snapshot"])
def test_what_is_written_takes_storage_as_long_as_its_bytes(tp: int, mode: str) -> None:
    """Each parameter once in both: norms that tensor-parallel ranks all hold go to their hosts, not all to storage."""
    cut = {"parallel.tp": tp, "parallel.dp": 4 // tp, "parallel.sequence_parallel": tp > 1}
    scenario = saving(mode=mode, to="100 MB/s", more={**ALONE, **cut})
    found, each = (
        simulate(scenario).checkpoint,
        checkpoint_bytes_per_parameter(scenario, step_checkpoint_spec(scenario)),
    )
    assert found is not None
    assert found.bytes == pytest.approx(each * parameters(scenario.model).total, rel=1e-12)
    assert found.bytes / found.write_s == pytest.approx(100e6, rel=1e-3)
    copied = float(checkpoint_bytes_by_rank(scenario, each).sum())
    assert (copied > found.bytes * (1 + 1e-9)) == (tp > 1)
