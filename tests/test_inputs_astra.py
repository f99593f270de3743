"""Network files of ASTRA-sim: what their numbers mean, and what collectives take on the clusters they describe."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.astra_network import NetworkDimension, group_npus_along_axes, parse_astra_network
from simcluster.importers.topology_files import import_topology
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import load_text
from simcluster.studies.bench.collective import collective_times
from simcluster.topology import Cluster

GIB = 2**30


def network(kinds: str, npus: str, bandwidth: str = "400", latency: str = "500") -> str:
    return f"topology: [{kinds}]\nnpus_count: [{npus}]\nbandwidth: [{bandwidth}]\nlatency: [{latency}]\n"


def cluster_of(tmp_path: Path, text: str) -> Cluster:
    (tmp_path / "net.yml").write_text(text)
    return load_cluster(tmp_path / "net.yml", [("device", "h100")])


def test_their_gigabyte_is_two_to_the_thirty() -> None:
    (dimension,) = parse_astra_network(network("Switch", "8"), "net.yml")
    assert dimension == NetworkDimension("Switch", 8, 400 * GIB, 500e-9)
    assert dimension.bandwidth == pytest.approx(429.4967296e9)


@pytest.mark.parametrize(
    ("kind", "hops"), [("Ring", 1), ("FullyConnected", 1), ("Switch", 2)]
)  # a way through a switch pays the latency twice
def test_a_ring_all_reduce_takes_what_the_closed_form_says(tmp_path: Path, kind: str, hops: int) -> None:
    cluster = cluster_of(tmp_path, network(kind, "8"))
    size = 8 * GIB
    found = collective_times(cluster, range(8), "all_reduce", size, algorithm="ring")
    assert found.duration == pytest.approx(14 * (size / 8 / (400 * GIB) + hops * 500e-9), rel=1e-9)


def test_a_full_mesh_sends_to_all_at_once_and_a_switch_does_not(tmp_path: Path) -> None:
    size = 8 * GIB
    mesh = collective_times(cluster_of(tmp_path, network("FullyConnected", "8")), range(8), "all_to_all", size)
    switch = collective_times(cluster_of(tmp_path, network("Switch", "8")), range(8), "all_to_all", size)
    assert mesh.duration == pytest.approx(size / 8 / (400 * GIB) + 0.5e-6, rel=1e-3)
    assert switch.duration == pytest.approx(7 * size / 8 / (400 * GIB) + 1e-6, rel=1e-3)


def test_messages_go_around_a_ring_the_short_way(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, network("Ring", "8"))
    for target, hops in ((1, 1), (2, 2), (4, 4), (6, 2)):
        found = collective_times(cluster, [0, target], "send", GIB)
        assert found.duration == pytest.approx(1 / 400 + hops * 500e-9, rel=1e-9)


def test_dimensions_number_the_first_fastest(tmp_path: Path) -> None:
    text = network("Ring, Switch", "4, 2", "400, 50", "500, 1000")
    cluster = cluster_of(tmp_path, text)
    assert len(cluster.gpus) == 8
    inside = collective_times(cluster, range(4), "all_reduce", GIB, algorithm="ring")
    across = collective_times(cluster, [0, 4], "send", GIB)
    assert inside.duration == pytest.approx(6 * (GIB / 4 / (400 * GIB) + 500e-9))
    assert across.duration == pytest.approx(1 / 50 + 2e-6)
    dimensions = parse_astra_network(text, "net.yml")
    assert group_npus_along_axes(dimensions, (True, False)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert group_npus_along_axes(dimensions, (False, True)) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Ring", "Switch", "FullyConnected"]), st.integers(1, 4)), min_size=1, max_size=3
    ).filter(lambda dims: any(count > 1 for _, count in dims))
)
def test_every_network_has_its_links_and_reaches_everything(dimensions: list[tuple[str, int]]) -> None:
    kinds, counts = ", ".join(kind for kind, _ in dimensions), ", ".join(str(count) for _, count in dimensions)
    each = ", ".join("10" for _ in dimensions)
    found = parse_astra_network(network(kinds, counts, each, each), "net.yml")
    npus = 1
    for _, count in dimensions:
        npus *= count
    links = npus + sum(dimension.link_count * npus // dimension.npus for dimension in found)
    from simcluster.importers.astra_network import build_astra_document
    from simcluster.importers.cluster_document import ImportSpec
    from simcluster.topology.explicit_graph import GraphSpec

    document = build_astra_document(found, ImportSpec(kind="import", files=("net.yml",)), "h100", "net").to_dict()
    assert len(document["edges"]) == links
    cluster = GraphSpec.model_validate(document).build()
    assert len(cluster.gpus) == npus
    assert cluster.spread_route(0, npus - 1)


def test_a_scenario_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "net.yml").write_text(network("Switch", "4"))
    text = (
        "cluster: {topology: ./net.yml, device: h100}\n"
        "model: {layers: 2, hidden_size: 256, heads: 4, vocab_size: 1000, sequence_length: 128}\n"
        "training: {global_batch: 4}\n"
    )
    assert load_text(text, folder=tmp_path).gpus == 4
    assert import_topology(tmp_path / "net.yml", {"device": "h100"})["kind"] == "graph"


def test_the_command_writes_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.yml").write_text(network("Ring, Switch", "4, 2", "400, 50", "500, 1000"))
    command = ["import", "astra-network", str(tmp_path / "net.yml"), "--device", "h100"]
    assert main([*command, "-o", str(tmp_path / "topology.yaml")]) == 0
    assert "429.497 GB/s" in (tmp_path / "topology.yaml").read_text()
    assert len(load_cluster(tmp_path / "topology.yaml").gpus) == 8
    assert main(["import", "astra-network", str(tmp_path / "net.yml")]) == 2
    assert "name the GPU to simulate for each NPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (network("Ring", "8").replace("latency: [500]", ""), "latency: is required and missing"),
        (network("Torus", "8"), "net.yml:1:12: topology.0: must be Ring, Switch or FullyConnected, got 'Torus'"),
        (network("ring", "8"), "did you mean 'Ring'"),
        (network("Ring", "0"), "npus_count.0: must be greater than or equal to 1, got 0"),
        (network("Ring", "1"), "describes 1 NPUs"),
        (network("Ring", "8.5"), "npus_count.0: must be an integer, got 8.5"),
        (network("Ring", "true"), "npus_count.0: must be an integer, got true"),
        (network("Ring", "1" + "0" * 5000), "not a usable number|npus_count.0"),
        (network("Ring", "8", "-1"), "bandwidth.0: must be greater than or equal to 0.000001, got -1"),
        (network("Ring", "8", ".nan"), "bandwidth.0: must be a finite number, got nan"),
        (network("Ring", "8", "400 GB/s"), "bandwidth.0: must be a number, got '400 GB/s'"),
        (network("Ring", "8", "400", ".inf"), "latency.0: must be a finite number"),
        (network("Ring, Ring", "8"), r"differ in length \(topology 2, npus_count 1"),
        (network("FullyConnected", "50000"), "links; from 2 to 100,000 NPUs"),
        (network("Ring, Ring, Ring", "1000, 1000, 1000", "1, 1, 1", "1, 1, 1"), "1,000,000,000 NPUs"),
        (network("Ring", "8") + "topology: [Switch]\n", "this key is already at"),
        (network("Ring", "8") + "dimension: 2\n", "dimension: unknown key 'dimension'; known keys: topology"),
        ("npus_count: !!python/object/apply:os.system ['true']\n" + network("Ring", "8")[17:], "tags"),
        ("npus_count: &a [8]\ntopology: *a\n", "anchors and aliases"),
        ("npus_count: " + "[" * 80 + "8" + "]" * 80, "nested more than 50 levels"),
        (network("Ring", "8")[:30], "not valid YAML|lacks"),
        ("npus_count: [" + "1," * 600_000 + "1]", "longer than 20,000 characters"),
    ],
)
def test_a_bad_network_is_one_clear_message(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "net.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        import_topology(path, {"device": "h100"})
    assert "net.yml" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_gpu_has_to_be_said(tmp_path: Path) -> None:
    (tmp_path / "net.yml").write_text(network("Ring", "8"))
    with pytest.raises(InputError, match="state which GPU they are, as in device: h100"):
        import_topology(tmp_path / "net.yml")
