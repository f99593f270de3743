"""What PCIe carries: by the overhead of its packets, and by what copies and NICs were measured to reach through it."""

from __future__ import annotations

import pytest

from simcluster.base.units import parse_bytes_per_second
from simcluster.cli import main
from simcluster.documents.catalogue import load_link_entry
from simcluster.scenario.document_resolution import load_cluster

CODING = 128 / 130
PACKET = 24
"""Bytes around a posted write's payload: 4 framing and sequence number, 16 header with a 64-bit address, 4 CRC."""

# payload of a packet in bytes, and the lowest and highest B/s of the sources that links.yaml names (one direction)
LINKS = {
    "pcie3-x16": (128, 12.4e9, 13.1e9),
    "pcie4-x16": (128, 25.7e9, 26.3e9),
    "pcie5-x16": (256, 55.0e9, 55.63e9),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_copy_gets_what_packets_leave_and_what_was_measured(name: str) -> None:
    payload, low, high = LINKS[name]
    link = load_link_entry(name)
    line_rate = parse_bytes_per_second(link["line_rate"])
    packets_alone = CODING * payload / (payload + PACKET)
    assert packets_alone == pytest.approx({128: 0.8291, 256: 0.9002}[payload], abs=5e-5)  # by hand
    assert link["efficiency"] < packets_alone  # acknowledgements and credits are not in it
    assert low * 0.999 <= line_rate * link["efficiency"] <= high * 1.002


@pytest.mark.parametrize(("topology", "gigabytes"), [("dgx_h100", 55.04), ("dgx_a100", 26.24), ("dgx_b200", 55.04)])
def test_a_nic_is_what_limits_the_way_out_of_a_machine(topology: str, gigabytes: float) -> None:
    """NICs of 400 Gbit/s were measured to deliver 48.9 GB/s (ndr in links.yaml), so PCIe carries more than that."""
    cluster = load_cluster(topology, [("nodes", 2)])
    way = [
        (cluster.graph[a][b]["medium"], cluster.capacity[link])
        for link in cluster.route(0, 8)
        for a, b in [cluster.links[link]]
    ]
    pcie = min(rate for medium, rate in way if medium == "pcie")
    network = min(rate for medium, rate in way if medium != "pcie")
    assert pcie == pytest.approx(gigabytes * 1e9)
    assert network < pcie


def test_the_report_says_what_the_number_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "dgx_h100", "nodes=2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "gpu - nic 16 x 55.04 GB/s each way = 64 GB/s x 0.86" in text
    assert "payload of a link = line rate x efficiency" in text
    assert "0.86: copies between host and GPU measure 55 to 55.6 GB/s" in text
    assert "bound by" in text
