"""simcluster topology: every shipped cluster described, changed, drawn; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcluster import cli, plots
from simcluster.base.errors import InputError
from simcluster.base.progress import set_estimate_limit
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.cluster_measurement import measure_cluster

SHIPPED = sorted((Path(__file__).parent.parent / "topologies").glob("*.yaml"))
HOST = Path(__file__).parent.parent / "examples/host.xml"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["topology", *arguments]) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.err.splitlines() if not line.startswith("wrote ")] == []
    return printed.out


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_file_and_its_name_are_described_alike(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, str(path))
    assert text == measure_cluster(load_cluster(path)).format() + "\n"
    assert output(capsys, path.stem) == text


@pytest.mark.parametrize(
    "spelling",
    [["--set", "nodes=128"], ["nodes=128"], ["--set", "nodes=128", "--set", "nvlink.efficiency=1.0"]],
)
def test_the_file_can_be_changed(spelling: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "dgx_h100", *spelling)
    assert text.startswith("DGX H100: 1,024 GPUs (h100) in 128 nodes of 8\n")
    assert ("450 GB/s to the other GPUs" in text) == (len(spelling) == 4)


def test_dotted_options_change_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "dgx_a100", "--nvlink.efficiency", "0.5", "nodes=2")
    assert "150 GB/s to the other GPUs of its node" in text
    assert "16 GPUs" in text


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = json.loads(output(capsys, "leaf_spine_512", "--json", "-"))
    assert (document["gpus"], document["machines"], document["device"]) == (512, 512, "h100")
    assert document["bisection"] == 4 * 32 * 50e9  # half of the leaves send through all their uplinks
    assert list(document["nodes"].values()) == [512, 8, 32]  # GPUs, leaves, spines
    assert document["oversubscription"] == {"leaf": 2.0}
    assert document["links"][0]["bandwidth"] == 50e9
    text = output(capsys, "leaf_spine_512", "--json", str(tmp_path / "report.json"))
    assert text.startswith("leaf-spine, 512 GPUs, 2:1")
    assert json.loads((tmp_path / "report.json").read_text()) == document


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_thousand_gpus_are_drawn(
    ending: str, magic: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / f"cluster.{ending}"
    text = output(capsys, "dgx_h100", "nodes=128", "--plot", str(picture))
    assert text.startswith("DGX H100: 1,024 GPUs")
    assert picture.read_bytes().startswith(magic)
    assert picture.stat().st_size < 1e6  # by hierarchy: thousands of GPUs are not thousands of shapes


def test_a_description_that_takes_longer_than_is_begun_is_refused() -> None:
    with (
        set_estimate_limit(1.0),
        pytest.raises(InputError, match=r"it would take about 2 s to describe its 16,000 GPUs.*fewer nodes"),
    ):
        measure_cluster(load_cluster("dgx_h100", [("nodes", 2000)]))


def test_the_picture_is_a_public_function() -> None:
    figure = plots.topology(load_cluster("two_nodes_explicit"))
    assert "two nodes, written out" in figure.get_suptitle()


def test_a_machine_by_itself_is_drawn_without_a_fabric() -> None:
    figure = plots.topology(load_cluster(HOST))
    assert [axes.get_title() for axes in figure.axes] == ["the node"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dgx_h200"], ["dgx_h200", "did you mean"]),
        (["nowhere/x.yaml"], ["nowhere/x.yaml", "no such file"]),
        (["dgx_h100", "nods=4"], ["nods", "did you mean 'nodes'"]),
        (["dgx_h100", "nodes=none"], ["nodes", "'none'"]),
        (["dgx_h100", "--set", "nodes"], ["nodes", "not an override"]),
        (["dgx_h100", "nodes=1000000"], ["8,000,000 GPUs", "at most 2,000,000"]),
        (["dgx_h100", "--nvlink.line_rate", "450"], ["line_rate", "450", "no unit"]),
        (["dgx_h100", "--plot", "x.jpeg"], ["x.jpeg", ".png"]),
        (["dgx_h100", "--plot", "nowhere/x.png"], ["does not exist"]),
        (["dgx_h100", "--json", "nowhere/x.json"], ["does not exist"]),
        (["dgx_h100", "--plt", "x.png"], ["--plt", "did you mean '--plot'"]),
        ([], ["FILE"]),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["topology", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("simcluster: error: ")
    assert [word for word in words if word not in printed.err] == [], printed.err
