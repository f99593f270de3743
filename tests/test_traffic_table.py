"""Bytes that a GPU sends, by axis: a textbook's numbers by closed form, and what the links of a run carried."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster import cli
from simcluster.base.arrays import Ints
from simcluster.collectives import ALGORITHMS, Group
from simcluster.collectives.tree import DoubleTreeHops
from simcluster.model.layers import parameters
from simcluster.results.link_loads import link_table
from simcluster.results.result import Result
from simcluster.results.traffic import AxisTraffic, sent_fractions
from simcluster.step.simulate import simulate
from simcluster.traffic.traffic import make_group

GB = 1e9


def row(result: Result, axis: str, kind: str = "", name: str = "") -> AxisTraffic:
    (found,) = [each for each in result.traffic if (each.axis, each.kind, each.name) == (axis, kind, name)]
    return found


def sent_by_layers(layers: int, side: int) -> float:
    """Of all-reduces over tp 8 in layers of b s = h = side, in fp16, on one machine."""
    text = f"""
cluster: {{topology: dgx_h100, nodes: 1}}
model: {{layers: {layers}, hidden_size: {side}, heads: 32, vocab_size: 51200, sequence_length: {side}}}
parallel: {{tp: 8}}
training: {{global_batch: 1, precision: fp16-mixed}}
overlap: {{tensor: false}}
collectives: {{nccl: none}}
"""
    result = simulate(simcluster.scenario(text))
    assert row(result, "tp").across == 0
    names = ("attention", "mlp")
    return sum(each.sent for each in result.traffic if each.axis == "tp" and each.name.startswith(names))


@pytest.mark.parametrize(("layers", "side", "sent"), [(96, 8192, 90.194), (32, 4096, 7.516)])
def test_tensor_parallel(layers: int, side: int, sent: float) -> None:
    """4 all-reduces a layer, of each 2 x 7/8 of 2 b s h bytes."""
    found = sent_by_layers(layers, side)
    assert found == layers * 4 * 2 * 7 / 8 * 2 * side * side
    assert found / GB == pytest.approx(sent, abs=5e-4)


def test_trees_over_many_machines() -> None:
    """Hops of trees over whole machines are counted: as many as one by one, to the bit."""
    cluster, ranks = simcluster.load_cluster("dgx_h100", {"nodes": 67}), 67 * 8
    phases = ALGORITHMS["all_reduce"]["tree"](make_group(cluster, range(ranks)))
    listed = [replace(phase, hops=phase.hops.hop_list) for phase in phases if isinstance(phase.hops, DoubleTreeHops)]
    assert len(listed) == len(phases) == 2
    assert sent_fractions(phases, cluster.node_of_gpu[:ranks]) == sent_fractions(listed, cluster.node_of_gpu[:ranks])


def replicas(zero: int) -> Result:
    """64 GPUs that reduce gradients of 2 bytes and gather weights of 2."""
    scenario = simcluster.scenario(
        "tiny_dp",
        {
            "cluster": {"topology": "flat", "gpus": 64},
            "training": {"global_batch": 64, "precision": "fp16-mixed", "memory_recipe": "mixed-16"},
            "parallel": {"dp": 64, "zero": zero},
        },
    )
    return simulate(scenario)


def test_data_parallel() -> None:
    """2 x 63/64 of the gradients: of 10 B parameters in fp16 39.375 GB; ZeRO 3 one half more, 59.0625 GB.

    But the model's ends stay between forward and backward, so they are gathered once.
    """
    plain, sharded = replicas(0), replicas(3)
    count = parameters(plain.scenario.model)
    dp = row(plain, "dp", "all_reduce", "gradients")
    assert dp.sent * 10e9 / count.total == pytest.approx(39.375 * GB)
    assert dp.sent == pytest.approx(2 * 63 / 64 * dp.buffer, rel=1e-12)
    assert dp.across == dp.sent
    gathered, reduced = (row(sharded, "dp", kind, name).sent for kind, name in
                         (("all_gather", "parameters"), ("reduce_scatter", "gradients")))  # fmt: skip
    assert reduced == pytest.approx(dp.sent / 2, rel=1e-12)
    ends = 63 / 64 * 2 * (count.embedding + count.final_norm)
    assert (gathered + ends + reduced) * 10e9 / count.total == pytest.approx(59.0625 * GB)


@pytest.mark.parametrize("name", ["tiny_dp", "tiny_3d"])
def test_it_is_what_links_carry(name: str) -> None:
    """Bytes on links that lead from GPUs, and from machines, per GPU."""
    result = simulate(simcluster.scenario(name))
    table, graph = link_table(result), result.scenario.cluster.built.graph
    kinds = {node: data["kind"] for node, data in graph.nodes(data=True)}
    of_gpus = table[[kinds[node] == "gpu" for node in table["link_from"]]]["bytes"].sum() / result.facts.ranks
    total = row(result, "")
    assert total.sent == pytest.approx(of_gpus, rel=1e-9)
    up = [kinds[a] == "nic" and kinds[b] == "switch" for a, b in zip(table["link_from"], table["link_to"], strict=True)]
    if any(up):
        assert total.across == pytest.approx(table[up]["bytes"].sum() / result.facts.ranks, rel=1e-9)


def test_axes_sum_to_all_and_collectives_to_their_axis(tiny: Tiny) -> None:
    result = simulate(tiny(cluster={"topology": "flat", "gpus": 8}, parallel={"tp": 2, "pp": 2, "dp": 2}))
    axes = [each for each in result.traffic if each.axis and not each.kind]
    for number in ("calls", "buffer", "sent", "across"):
        assert sum(getattr(each, number) for each in axes) == pytest.approx(getattr(row(result, ""), number))
        for axis in axes:
            parts = [each for each in result.traffic if each.axis == axis.axis and each.kind]
            assert sum(getattr(part, number) for part in parts) == pytest.approx(getattr(axis, number))
    assert all(0 <= each.across <= each.sent for each in result.traffic)
    assert all(each.hidden <= each.wire * (1 + 1e-12) for each in result.traffic)


@settings(max_examples=30, deadline=None)
@given(machines=st.integers(1, 4), each=st.integers(1, 4), algorithm=st.sampled_from(("ring", "tree", "hierarchical")))
def test_an_all_reduce_sends_twice_what_it_must(machines: int, each: int, algorithm: str) -> None:
    """2 (n - 1) / n of the buffer by any of them; a ring through machines crosses with one hop each."""
    count = machines * each
    hosts: Ints = np.repeat(np.arange(machines), each)
    nics = tuple((f"nic{host}.{place}",) for host in range(machines) for place in range(each))
    group = Group(tuple(hosts.tolist()), nics, tuple(f"switch{host}" for host in hosts))
    found = sent_fractions(ALGORITHMS["all_reduce"][algorithm](group, None), hosts)
    assert found.sent == pytest.approx(2 * (count - 1) / count)
    assert 0 <= found.across <= found.sent * (1 + 1e-12)
    assert (found.across > 0) == (machines > 1)
    if algorithm == "ring" and machines > 1:
        assert found.across == pytest.approx(found.sent / each)


def test_explain_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "tiny_3d", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "traffic (per step, mean GPU)" in text
    assert "between nodes" in text
    assert cli.main(["run", "tiny_3d", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["traffic"]
    assert [each["axis"] for each in rows if not each["kind"]] == ["", "tp", "pp", "dp"]
    assert set(rows[0]) == {
        "axis", "kind", "name", "calls", "buffer_bytes", "sent_bytes", "across_machines_bytes", "wire_s", "hidden_s",
    }  # fmt: skip
