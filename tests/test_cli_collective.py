"""simcluster collective: what it prints of one size and of many, how it fits the cluster, what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simcluster import cli
from simcluster.cli.collective_output import COLUMN_WIDTHS, align_cells
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.collective import collective_times
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.nccl.predictor import choose

BAD = Path(__file__).parent / "bad"
TOPOLOGIES = Path(__file__).parent.parent / "topologies"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["collective", *arguments]) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.err.splitlines() if not line.startswith("wrote ")] == []
    return printed.out


def fields(text: str) -> dict[str, str]:
    return {line[:9].strip(): line[9:] for line in text.splitlines()[1:]}


@pytest.mark.parametrize(
    ("gpus", "file", "milliseconds", "details"),
    [("8", "flat_8", "4.189663", ["flow", "steps"]), ("64", "flat", "42.908584", ["flow", "steps"]),
     ("256", "flat", "45.331901", ["flow", "steps"]), ("1024", "flat", "53.137730", ["flow"])],
)  # fmt: skip
def test_flat_rings(
    gpus: str, file: str, milliseconds: str, details: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for detail in details:
        path = str(TOPOLOGIES / f"{file}.yaml")
        arguments = ("all_reduce", "--size", "1GiB", "--gpus", gpus, "--cluster", path, "--detail", detail)
        text = output(capsys, *arguments, "--algorithm", "ring")
        assert text.startswith(f"all_reduce, algorithm ring, detail {detail}\n")
        assert fields(text)["time"] == f"{milliseconds} ms"


def test_64_rings_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("all_reduce", "--size", "1GiB", "--gpus", "512", "--cluster", "leaf_spine_512", "--split", "%64")
    text = output(capsys, *job, "--detail", "steps")
    assert "64 groups of 8 GPUs at once" in text
    assert fields(text)["time"].startswith("75.245928 ms")
    assert fields(text)["limit"].startswith("256 links leaf -> spine (network, 50 GB/s) carry 3.758 GB each")


def test_one_size_says_what_limits_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "all-reduce", "--size", "1GiB", "--gpus", "8", "--cluster", "flat_8")
    assert fields(text) == {
        "cluster": "flat machine of 8: 8 GPUs in 1 node",
        "size": "1.074 GB (1,073,741,824 B)",
        "time": "4.189663 ms",
        "algbw": "256.3 GB/s",
        "busbw": "448.5 GB/s  (algbw x 2(N-1)/N, N = 8)",
        "limit": "8 links gpu -> leaf (nvlink, 450 GB/s) carry 1.879 GB each: 99.7% of the time",
        "latency": "0.014000 ms in all rounds: 0.3% of the time",
        "links": "no link carries more than an even share of its level's flows",
    }


def test_a_send(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "send", "--size", "1 MB", "--gpus", "2", "--cluster", "flat")
    assert fields(text)["time"] == "0.025000 ms"  # 5 us + 1 MB / 50 GB/s
    assert fields(text)["limit"] == "1 link gpu -> leaf (network, 50 GB/s) carries 1 MB: 80.0% of the time"


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_range_of_sizes_prints_the_table_of_nccl_tests(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "all_reduce", "--size", "256MiB:1GiB", "--gpus", "64", "--cluster", "flat")
    assert text == (
        "# all_reduce, algorithm ring, detail flow\n"
        "# cluster  flat network: 64 GPUs in 64 nodes\n"
        "#\n"
        "#          size         count    type          time    algbw    busbw         algorithm\n"
        "#           (B)    (elements)                  (us)   (GB/s)   (GB/s)\n"
        "      268435456      67108864   float     11199.646    23.97    47.19              ring\n"
        "      536870912     134217728   float     21769.292    24.66    48.55              ring\n"
        "     1073741824     268435456   float     42908.584    25.02    49.27              ring\n"
        "# links    no link carries more than an even share of its level's flows\n"
    )


@pytest.mark.parametrize(("kind", "count", "factor"), [("reduce_scatter", 2**16, 7 / 8), ("all_gather", 2**16, 7 / 8)])
def test_counts_and_bus_bandwidth_follow_nccl_tests(
    kind: str, count: int, factor: float, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, kind, "--size", "2MiB:16MiB", "--gpus", "8", "--cluster", "dgx_h100")
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [2**21, 2**22, 2**23, 2**24]
    assert [int(row[1]) for row in rows] == [count, 2 * count, 4 * count, 8 * count]
    cluster = load_cluster("dgx_h100")
    for row in rows:
        time = collective_times(cluster, range(8), kind, int(row[0]))
        numbers = [f"{time.duration * 1e6:.3f}", f"{time.algbw / 1e9:.2f}", f"{time.busbw / 1e9:.2f}"]
        assert row[3:] == [*numbers, time.algorithm, time.method.protocol]
        assert time.busbw == pytest.approx(factor * time.algbw, rel=1e-12)


def test_small_messages_are_latency_bound_and_large_ones_bandwidth_bound(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("all_reduce", "--size", "8:16GiB", "--gpus", "64", "--cluster", "dgx_h100", "--json", "-")
    assert cli.main(["collective", *job]) == 2  # a size has a unit
    capsys.readouterr()
    links = ("--cluster", "dgx_h100", "--nccl", "none")
    job = ("all_reduce", "--size", "8B:16GiB", "--gpus", "64", *links, "--json", "-")
    rows = json.loads(output(capsys, *job))["results"]
    assert rows[0]["time_s"] == pytest.approx(rows[0]["limit"]["latency"], rel=1e-3)
    assert rows[-1]["time_s"] == pytest.approx(rows[-1]["limit"]["busy"], rel=1e-2)
    bandwidths = [row["busbw_bytes_per_s"] for row in rows]
    assert bandwidths == sorted(bandwidths)


def test_a_range_that_is_no_power_of_two_stops_below_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "all_reduce", "--size", "3 kB:13 kB", "--gpus", "4", "--cluster", "flat")
    assert [line.split()[0] for line in text.splitlines() if not line.startswith("#")] == ["3000", "6000", "12000"]


def test_nccl_picks_by_size_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The oracle of MODELLING.md D.5: 16 x 8, ring Simple, 1 GiB; and what the tuner takes instead of it."""
    job = ("all_reduce", "--gpus", "128", "--cluster", "dgx_h100", "--json", "-")
    rows = json.loads(output(capsys, *job, "--size", "1KiB:1GiB"))["results"]
    picked = list(dict.fromkeys((row["algorithm"], row["protocol"]) for row in rows))
    assert picked == [("tree", "LL"), ("tree", "LL128"), ("nvls_tree", "Simple")]
    text = output(capsys, "all_reduce", "--gpus", "128", "--cluster", "dgx_h100", "--size", "1GiB")
    assert text.startswith("all_reduce, NCCL's choice by size as on dgx-h100, detail flow\n")
    assert "nvls_tree Simple: the shortest by NCCL's tuner" in fields(text)["nccl"]
    text = output(capsys, *job[:-2], "--size", "1GiB", "--algorithm", "ring")
    assert fields(text)["nccl"].startswith("ring Simple: the shortest by NCCL's tuner, 7584.6 us;")


def test_links_slow_down_what_nccl_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    """On free links exactly NCCL's time; on NICs of half the rate what the links leave, on top of NCCL's latency."""

    def seconds(*overrides: str) -> float:
        job = ("all_reduce", "--gpus", "16", "--cluster", "dgx_a100", "--size", "1GiB", "--algorithm", "ring")
        (row,) = json.loads(output(capsys, *job, *overrides, "--json", "-"))["results"]
        return float(row["time_s"])

    call = {"nodes": 2, "gpus_per_node": 8, "size": 2.0**30, "platform": load_platform("dgx-a100")}
    made = choose("all_reduce", algorithms=["ring"], **call).prediction
    assert seconds() == pytest.approx(made.seconds, rel=1e-9)
    half = made.latency + 2 * 15 / 16 * 2**30 / 8 / 12.5e9
    assert seconds("nic.line_rate=100 Gbit/s", "nic.efficiency=1") == pytest.approx(half, rel=1e-9)


# --- where flows meet -------------------------------------------------------------------------------------------------

HASHED = ("all_reduce", "--size", "1GiB", "--gpus", "512", "--split", "%64", "--cluster", "leaf_spine_512",
          "--routing.kind", "ecmp")  # fmt: skip


def test_collisions_are_shown_by_level_and_link(capsys: pytest.CaptureFixture[str]) -> None:
    """64 rings of 8 over 2:1: an even share is 2 flows an uplink, and the fullest one sets the pace."""
    lines = output(capsys, *HASHED).splitlines()
    levels = [line for line in lines if "leaf -> spine (50 GB/s): most 6 flows, mean 2: 3.00 x an even share" in line]
    assert len(levels) == 1
    assert levels[0].startswith("levels   ")
    hottest = lines[[line.startswith("hottest") for line in lines].index(True) :]
    assert len(hottest) == 3
    assert all("11.27 GB in 6 flows, 3.00 x an even share" in line for line in hottest)
    assert "limit    4 links leaf -> spine (network, 50 GB/s) carry 11.27 GB each: 100.0% of the time" in lines
    (row,) = json.loads(output(capsys, *HASHED, "--json", "-"))["results"]
    assert [level["ends"] for level in row["levels"] if level["collisions"] == 3.0] == [
        "leaf -> spine",
        "spine -> leaf",
    ]
    assert row["hottest"][0]["flows"] == 6.0
    assert row["hottest"][0]["busy"] == row["limit"]["busy"]


def test_links_as_a_table_and_as_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output(capsys, *HASHED, "--links", str(tmp_path / "links.csv"))
    rows = list(csv.DictReader((tmp_path / "links.csv").read_text().splitlines()))
    assert len(rows) == 2 * 512 + 2 * 219
    assert max(float(row["flows"]) for row in rows) == 6.0
    assert sum(float(row["bytes"]) for row in rows if row["link_from"].startswith("gpu")) == pytest.approx(
        512 * 14 / 8 * 2**30
    )
    output(capsys, *HASHED, "--links", str(tmp_path / "links.png"))
    assert (tmp_path / "links.png").stat().st_size > 10_000


# --- uneven sizes and roots -------------------------------------------------------------------------------------------


def test_uneven_sizes_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rank 1 sends 6 MB, rank 2 receives 7 MB: 5 us + 7 MB / 50 GB/s."""
    file = tmp_path / "sizes.csv"
    file.write_text("# bytes\n0, 1MB, 2 MB\n1e6, 0, 5MB\n\n3000, 0, 7 GB\n".replace("7 GB", "0"))
    job = ("all-to-all-v", "--sizes", str(file), "--cluster", "flat")
    found = fields(output(capsys, *job))
    assert found["time"] == "0.145000 ms"
    assert found["size"] == "6 MB (6,000,000 B), the most that a rank sends; 9.003 MB in total"
    assert found["busbw"] == "48.28 GB/s  (bytes of the busiest rank over time)"
    document = json.loads(output(capsys, *job, "--json", "-"))
    assert document["collective"] == "all_to_all_v"
    assert document["results"][0]["busbw_bytes_per_s"] == pytest.approx(7e6 / 145e-6)
    pairwise = output(capsys, *job, "--algorithm", "pairwise", "--detail", "steps")
    assert float(fields(pairwise)["time"].split()[0]) >= 0.145


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1MB\n1MB,0,3\n", [":2:", "3 sizes in this row, but 2 rows", "square"]),
        ("0,-5\n1,0\n", [":1:", "'-5'", "0 or more"]),
        ("0,nan\n1,0\n", [":1:", "'nan'"]),
        ("0,much\n1,0\n", [":1:", "much"]),
        ("0,0\n0,0\n", ["all sizes are 0"]),
        ("5\n", ["1 rank", "at least 2"]),
        ("", ["empty"]),
        ("0,1,2\n1,0,2\n1,2,0\n", ["the file has 3 ranks", "4 GPUs"]),
    ],
)
def test_bad_sizes(text: str, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text(text)
    more = ["--gpus", "4"] if "4 GPUs" in words else []
    assert cli.main(["collective", "all_to_all_v", "--sizes", str(file), "--cluster", "flat", *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("error:") == 1
    assert [word for word in words if word not in printed.err] == [], printed.err


def test_a_root_and_chosen_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """From the second machine's GPU 0 to GPU 0 of the first: one message by the network."""
    job = ("broadcast", "--size", "1GiB", "--ranks", "0,8", "--cluster", "dgx_h100", "--nccl", "none")
    text = output(capsys, *job, "--root", "1", "--json", "-")
    assert json.loads(text)["root"] == 1
    (row,) = json.loads(text)["results"]
    assert row["hottest"][0]["link"] == ["node1.nic0", "unit0.leaf0"]  # PCIe carries more than the NIC
    assert "2 of 64 GPUs" in output(capsys, *job)


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_alone_on_stdout_and_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = ("all_reduce", "--size", "1GiB", "--gpus", "512", "--split", "%64", "--cluster", "leaf_spine_512")
    document = json.loads(output(capsys, *job, "--json", "-"))
    assert list(document) == [
        "collective", "detail", "nccl", "cluster", "cluster_gpus", "groups", "gpus_per_group", "results",
    ]  # fmt: skip
    assert (document["groups"], document["gpus_per_group"], document["cluster_gpus"]) == (64, 8, 512)
    (row,) = document["results"]
    assert row["time_s"] == pytest.approx(75.245928e-3, abs=1e-9)
    assert row["busbw_bytes_per_s"] == row["algbw_bytes_per_s"] * 14 / 8
    text = output(capsys, *job, "--json", str(tmp_path / "times.json"))
    assert fields(text)["time"].startswith("75.245928 ms")
    assert json.loads((tmp_path / "times.json").read_text()) == document


# --- the cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "16", "--cluster", "dgx_h100"], "the first 16 of 64 GPUs in 8 nodes"),
        (["--gpus", "100", "--cluster", "dgx_h100"], "the first 100 of 104 GPUs in 13 nodes, enlarged by nodes=13 (the file has nodes=8)"),  # noqa: E501
        (["--gpus", "72", "--cluster", "flat"], "72 GPUs in 72 nodes, enlarged by gpus=72 (the file has gpus=64)"),
        (["--gpus", "16", "--cluster", "dgx_a100", "nodes=2"], "16 GPUs in 2 nodes"),
        (["--gpus", "16", "--cluster", "dgx_a100", "--set", "nodes=3"], "the first 16 of 24 GPUs in 3 nodes"),
        (["--gpus", "6", "--cluster", "dgx_a100", "gpus_per_node=2", "nodes=3"], "6 GPUs in 3 nodes"),
    ],
)  # fmt: skip
def test_the_cluster_is_made_to_fit_and_the_output_says_so(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "all_reduce", "--size", "1MiB", *arguments)
    assert fields(text)["cluster"].split(": ", 1)[1] == said


def test_overrides_reach_the_links(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("all_reduce", "--size", "1GiB", "--gpus", "64", "--cluster", "flat")
    slow = output(capsys, *job, "--link.line_rate", "25 GB/s", "--set", "path_latency=0 s")
    assert fields(slow)["time"] == f"{126 * 2**24 / 25e9 * 1e3:.6f} ms"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("all_redoce", ["all_redoce", "did you mean 'all_reduce'"]),
        ("--cluster flt", ["flt", "did you mean 'flat'"]),
        ("--cluster no/such.yaml", ["no/such.yaml", "no such file"]),
        ("gpu=8", ["unknown key 'gpu'", "did you mean 'gpus'"]),
        ("gpus=-8", ["gpus", "greater"]),
        ("gpus=4", ["has 4 GPUs", "set gpus=8"]),
        ("--gpus 20 --cluster dgx_a100 nodes=2", ["has 16 GPUs", "set nodes=3"]),
        ("--gpus 5 --cluster two_nodes_explicit", ["has 4 GPUs", "at most 4"]),
        ("--gpus 1", ["'1'", "at least 2"]),
        ("--gpus 1e3", ["'1e3'", "whole number"]),
        ("--gpus 9000000", ["9,000,000 GPUs", "at most 2,000,000"]),
        ("--size 1024", ["'1024'", "512 MiB"]),
        ("--size=-1GiB", ["-1GiB", "whole number of bytes"]),
        ("--size 0B", ["'0B'", "whole number of bytes"]),
        ("--size 1.5B", ["'1.5B'", "whole number of bytes"]),
        ("--size 1e400B", ["1e400B"]),
        ("--size 1e300GB", ["1e300GB", "at most 1e+99"]),
        ("--size 1e30GB", ["1e30GB", "1 EB"]),
        ("--size 8MiB:1MiB", ["8MiB:1MiB", "must not be larger"]),
        ("--size 1MiB:", ["''", "512 MiB"]),
        ("--algorithm trie", ["unknown algorithm 'trie' for all_reduce", "ring"]),
        ("--detail stps", ["stps", "did you mean 'steps'"]),
        ("--split 64", ["'64'", "%64", "/8"]),
        ("--split %0", ["%0"]),
        ("--split %3", ["equal groups", "divides 8"]),
        ("--split %8", ["1 GPU", "at least 2"]),
        ("--gpus 6 --algorithm halving_doubling", ["power-of-two", "has 6", "use 4 or 8"]),
        ("--cluster disconnected_gpu --gpus 2", ["GPU gpu0 cannot reach GPU gpu1"]),
        ("--cluster zero_bandwidth", ["zero_bandwidth.yaml:4:8:", "greater than zero"]),
        ("--cluster negative_bandwidth", ["'-50 GB/s'", "greater than zero"]),
        ("--cluster duplicate_node --gpus 2", ["two nodes have the name 'gpu0'"]),
        ("--cluster edge_to_nowhere --gpus 2", ["no node 'leef'", "did you mean leaf"]),
        ("--root 0", ["all_reduce has no root", "broadcast and reduce"]),
        ("--root -1", ["--root"]),
        ("--sizes x.csv", ["all_to_all_v", "for all_reduce use --size"]),
        ("--links no/x.csv", ["does not exist"]),
        ("--links x.doc", ["x.doc", ".png"]),
        ("--gpus 8 --ranks 1,2", ["give one"]),
        ("--gpus 9000 --detail steps", ["161,982,000 transfers", "--detail flow"]),
        ("--json no/x.json", ["does not exist"]),
        ("send", ["send over 8 GPUs", "give 2"]),
        ("--detial steps", ["--detial", "did you mean '--detail'"]),
        ("--ranks 0,3,3", ["GPU 3 appears twice in a group"]),
        ("--ranks 0,x", ["'0,x'", "0,8-15"]),
        ("--ranks 5-3", ["is a descending range; write 3-5"]),
        ("broadcast --gpus 4 --root 4", ["root is 4", "0 to 3"]),
        ("all_to_all_v", ["--sizes"]),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    changes: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, more = changes.partition(" ")
    name, rest = ("all_reduce", changes) if first[:1] == "-" or "=" in first else (first, more)
    good = {"--size": "1GiB", "--gpus": "8", "--cluster": "flat"}
    if "--ranks" in rest and "--gpus" not in rest:
        del good["--gpus"]
    defaults = [word for option, value in good.items() if option not in rest for word in (option, value)]
    words_given = [str(BAD / f"{word}.yaml") if (BAD / f"{word}.yaml").exists() else word for word in rest.split()]
    assert cli.main(["collective", name, *defaults, *words_given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("simcluster: error: ")
    assert [word for word in words if word not in printed.err] == [], printed.err


def test_columns_stay_apart_whatever_is_in_them() -> None:
    """An algorithm's name may be longer than its column, and so may a number."""
    cells = ("1" * 20, "262144", "float", "25.349", "41.37", "1234567890.12", "two_level_halving_doubling LL128")
    assert align_cells(cells).split() == [*cells[:-1], *cells[-1].split()]
    short = ("1048576", "262144", "float", "25.349", "41.37", "72.39", "ring")
    assert len(align_cells(short)) == sum(COLUMN_WIDTHS)


def test_sizes_are_also_written_as_nccl_tests_does(capsys: pytest.CaptureFixture[str]) -> None:
    def times(size: str) -> list[float]:
        job = ("all_reduce", "--size", size, "--gpus", "4", "--cluster", "flat", "--json", "-")
        return [row["time_s"] for row in json.loads(output(capsys, *job))["results"]]

    assert times("1M:4m") == times("1MiB:4MiB")
    assert times("1MB") < times("1M"), "a unit is still a power of 1000"
