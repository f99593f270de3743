"""What checkpoints and offload take of a host's memory, against what it has."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.scenario.checkpoint_plan import (
    checkpoint_bytes_by_rank,
    checkpoint_bytes_per_parameter,
    describe_host_memory,
    host_checkpoint_bytes,
)
from simcluster.scenario.run_section import CheckpointSpec
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate

SPEC = CheckpointSpec.model_validate({"mode": "snapshot", "to": "100 GB/s"})


def fullest(scenario: Scenario, gpus: int) -> float:
    """Bytes of the boxes of so many GPUs, the fullest."""
    size = checkpoint_bytes_by_rank(scenario, checkpoint_bytes_per_parameter(scenario, SPEC))
    return float(size.reshape(-1, gpus).sum(axis=1).max())


@pytest.mark.parametrize(
    ("checkpoint", "copies"),
    [
        ({"mode": "blocking"}, 0),
        ({"mode": "snapshot"}, 2),
        ({"mode": "blocking", "memory": {}}, 4),
        ({"mode": "snapshot", "memory": {}}, 6),
    ],
)
def test_copies_in_memory_are_counted(checkpoint: dict[str, Any], copies: int) -> None:
    scenario, spec = load("tiny_3d"), CheckpointSpec.model_validate(checkpoint | {"to": "1 GB/s"})
    assert host_checkpoint_bytes(scenario, spec) == pytest.approx(copies * fullest(scenario, 2))


def test_a_tray_of_a_rack_has_its_own_memory() -> None:
    rack = load("tiny_3d", {"cluster": {"topology": "gb200_nvl72"}, "gpus": 8})
    assert len({rack.cluster.built.node_and_tray(rank) for rank in range(8)}) == 2
    assert host_checkpoint_bytes(rack, SPEC) == pytest.approx(2 * fullest(rack, 4))
    assert "960.0 GB (of a tray" in describe_host_memory(rack, 0.0, SPEC)[0]


@pytest.mark.parametrize(
    ("there", "words", "bad"),
    [
        ("0.5 GB", "host memory does not fit: needs 0.8 GB of a host's memory (0.8 GB in 2 snapshots), which", True),
        ("0.9 GB", "host memory is tight: ", True),
        ("2 TB", "host memory: needs 0.8 GB", False),
    ],
)  # fmt: skip
def test_it_is_held_against_what_there_is(there: str, words: str, bad: bool) -> None:
    found, deserves = describe_host_memory(load("tiny_3d", {"cluster.host_memory": there}), 0.0, SPEC)
    assert found.startswith(words)
    assert deserves == bad


def test_machines_that_ship_say_how_much_they_have_and_who_says_so() -> None:
    for name in ("dgx_a100", "dgx_h100", "dgx_b200"):
        known = load("tiny_3d", {"cluster": {"topology": name, "nodes": 1}}).cluster.topology.host_memory
        assert known is not None
        assert known.size == 2e12
        assert "NVIDIA DGX" in known.source
    assert describe_host_memory(load("tiny_3d"), 0.0, None) == ("", False)
    flat = load("tiny_3d", {"cluster": {"topology": "flat", "gpus": 8}})
    assert "not checked, since cluster.host_memory is not set" in describe_host_memory(flat, 1e9, None)[0]
    with pytest.raises(InputError, match="host_memory"):
        load("tiny_3d", {"cluster.host_memory": "much"})


def test_a_step_warns_and_a_run_of_weeks_says_so() -> None:
    little = {"cluster.host_memory": "0.3 GB"}
    offloaded = simulate(load("tiny_3d", {**little, "memory.offload.optimizer": "stream"}))
    assert (
        f"needs {offloaded.host_memory / 1e9:.1f} GB of a host's memory (0.4 GB offloaded)" in offloaded.warnings()[0]
    )
    taken = simulate(load("tiny_3d", {**little, "checkpoint": {"mode": "snapshot", "to": "1 GB/s"}}))
    assert any(text.startswith("host memory does not fit") for text in taken.warnings())
    run = {"days": "1 d", "failures": "llama3", "checkpoint": {"mode": "snapshot", "to": "1 GB/s"}}
    states = ClusterStateSimulator(load("tiny_3d", {**little, "run": run}))
    build_long_run(states.scenario, states)
    assert any(note.startswith("host memory does not fit") for note in states.notes)
