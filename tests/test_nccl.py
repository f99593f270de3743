"""NCCL as a cost model: the tuner's numbers to the digit, what it picks, and how far the clock is from both."""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.traffic.nccl import constants as tuned
from simcluster.traffic.nccl.constants import ALGORITHMS, COLLECTIVES, PROTOCOLS
from simcluster.traffic.nccl.exchange import predict_exchange
from simcluster.traffic.nccl.platforms import ChannelGraph, ChannelGraphs, Platform, load_platform, platform_names
from simcluster.traffic.nccl.predictor import choose, predict
from simcluster.traffic.nccl.tuner import nvls_loop_bytes, tuner_bandwidth, tuner_latency
from simcluster.traffic.nccl.tuner_query import TunerQuery, bus_factor

MIB = 2**20
GIB = 2**30
H100 = load_platform("dgx-h100")
A100 = load_platform("dgx-a100")

_DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "validation"
DATA = Path(os.environ.get("SIMCLUSTER_DATA", _DEFAULT_DATA))
needs_data = pytest.mark.skipif(
    not (DATA / "nccl_measured.csv").is_file(),
    reason="needs the measured runs: name their directory in SIMCLUSTER_DATA",
)


# --- the tuner to the digit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "algorithm", "protocol", "collective", "delay", "rate", "times"),
    [
        (1, "ring", "Simple", "all_reduce", 56.00, 205.714, (61.1, 1360.9, 5275.6)),
        (1, "ring", "LL", "all_reduce", 15.00, 80.571, (28.0, 3346.6, 13341.6)),
        (1, "ring", "LL128", "all_reduce", 40.60, 189.257, (46.1, 1459.0, 5714.1)),
        (1, "tree", "LL128", "all_reduce", 31.50, 128.800, (45.1, 2115.6, 8368.0)),
        (2, "ring", "Simple", "all_reduce", 131.60, 192.000, (189.7, 1582.3, 5776.6)),
        (2, "tree", "LL128", "all_reduce", 48.50, 146.800, (60.4, 1877.1, 7362.8)),
        (16, "ring", "Simple", "all_reduce", 1190.00, 181.417, (1671.8, 3145.7, 7584.6)),
        (16, "tree", "Simple", "all_reduce", 176.40, 144.000, (191.0, 2247.7, 7632.9)),
        (16, "ring", "Simple", "reduce_scatter", 599.20, 362.835, (602.1, 1339.0, 3558.5)),
        (128, "ring", "Simple", "all_reduce", 9657.20, 180.176, (13525.9, 15009.9, 19479.5)),
    ],
)
def test_the_tuners_estimate_to_the_digit(nodes, algorithm, protocol, collective, delay, rate, times):
    """An independent implementation of tuning.cc for H100 with Intel CPUs: us, GB/s, us at 1 MiB, 256 MiB, 1 GiB."""
    case = TunerQuery(collective, algorithm, protocol, nodes, 8, H100)
    assert round(tuner_latency(case) * 1e6, 2) == delay
    assert round(tuner_bandwidth(case) / 1e9, 3) == rate
    for size, time in zip((MIB, 256 * MIB, GIB), times, strict=True):
        seconds = predict(
            collective, algorithm, protocol, nodes=nodes, gpus_per_node=8, size=size, platform=H100
        ).seconds
        assert round(seconds * 1e6, 1) == time


def test_nvls_by_hand():
    """8 channels x 40 GB/s x 0.85 x 7/8 x 2 of bus bandwidth, 8/14 of it algorithm bandwidth; 25 us of latency."""
    case = TunerQuery("all_reduce", "nvls", "Simple", 1, 8, H100)
    assert tuner_bandwidth(case) == pytest.approx(272e9, rel=1e-12)
    assert tuner_latency(case) == pytest.approx(25e-6, rel=1e-12)
    gather = TunerQuery("all_gather", "nvls", "Simple", 1, 8, H100)
    assert tuner_bandwidth(gather) == pytest.approx(
        8 * 40e9 * 0.85 * 7 / 8 * 7 / 8, rel=1e-12
    )  # no ratio for all-gather


def test_nvls_tree_by_hand():
    """Two nodes: the cap of 57.7 GB/s a channel binds; four: that of 45.5, below the 48 GB/s of the network."""
    two = TunerQuery("all_reduce", "nvls_tree", "Simple", 2, 8, H100)
    assert tuner_bandwidth(two) == pytest.approx(8 * 57.7e9 * 16 / 30, rel=1e-12)
    assert tuner_latency(two) == pytest.approx((25 + 2 * 20.9) * 1e-6, rel=1e-12)
    four = TunerQuery("all_reduce", "nvls_tree", "Simple", 4, 8, H100)
    assert tuner_bandwidth(four) == pytest.approx(8 * 45.5e9 * 32 / 62, rel=1e-12)
    assert tuner_latency(four) == pytest.approx((25 + 4 * 20.9) * 1e-6, rel=1e-12)


def test_pat_by_hand():
    case = TunerQuery("all_gather", "pat", "Simple", 8, 1, H100)
    assert tuner_latency(case) == pytest.approx((8 + 3 * 14 / 3.5 + 8 * 2.8) * 1e-6, rel=1e-12)
    assert tuner_bandwidth(case) == pytest.approx(0.75 * 48e9, rel=1e-12)  # one GPU a node has one NIC


def test_part_of_a_node_has_the_channels_of_its_own_nics():
    """D.5 by hand for the data-parallel group of tp = 4 on 16 nodes: 2 of 8 NICs, 48 GB/s each."""
    case = TunerQuery("all_reduce", "ring", "Simple", 16, 2, H100)
    assert tuner_bandwidth(case) == pytest.approx(2 * 48e9 * 32 / 62, rel=1e-12)
    whole = TunerQuery("all_reduce", "ring", "Simple", 16, 8, H100)
    assert tuner_bandwidth(whole) == pytest.approx(8 * 45e9 * 128 / 254, rel=1e-12)
    alone = TunerQuery("all_reduce", "tree", "Simple", 2, 1, A100)  # counted for NVLink up to 2 nodes, and here is none
    assert tuner_bandwidth(alone) == pytest.approx(0.5 * min(0.92 * 24e9, 23.6e9), rel=1e-12)


def test_collnet_latency_by_hand():
    sharp = replace(H100, collnet=True)
    direct = TunerQuery("all_reduce", "collnet_direct", "Simple", 4, 8, sharp)
    assert tuner_latency(direct) == pytest.approx((2 * (3.7 + 7 * 0.4) + 31) * 1e-6, rel=1e-12)
    chain = TunerQuery("all_reduce", "collnet_chain", "Simple", 4, 8, sharp)
    assert tuner_latency(chain) == pytest.approx((2 * 7 * 2.8 + 30) * 1e-6, rel=1e-12)


def test_a_host_that_is_slow_to_post_costs_every_step_of_a_ring():
    """AMD: 2 us a step, 6 us for Simple, which is more than the 3.4 us of NVLink."""
    amd = TunerQuery("all_reduce", "ring", "Simple", 2, 8, replace(H100, cpu="amd"))
    assert tuner_latency(amd) == pytest.approx((8.4 + 28 * 6 + 2 * 14) * 1e-6, rel=1e-12)


def test_the_cap_of_ll_between_nodes_goes_by_the_cpu():
    for cpu, two, more in (("intel", 39.0, 20.4), ("amd", 22.5, 19.0), ("other", 39.0, 20.4)):
        machine = replace(H100, cpu=cpu)
        for nodes, cap in ((2, two), (3, more), (4, more)):
            case = TunerQuery("all_gather", "ring", "LL", nodes, 8, machine)
            assert tuner_bandwidth(case) == pytest.approx(cap * 1e9 * case.ranks / (case.ranks - 1), rel=1e-12)


def test_rings_between_nodes_pay_more_latency_before_ampere():
    for platform, factor in ((load_platform("dgx-v100"), 1.9), (A100, 1.4)):
        case = TunerQuery("all_reduce", "ring", "Simple", 2, 8, platform)
        found = predict("all_reduce", "ring", "Simple", nodes=2, gpus_per_node=8, size=MIB, platform=platform)
        assert found.latency == pytest.approx(factor * tuner_latency(case), rel=1e-12)


def test_the_older_version_starts_nvls_later_and_caps_ll_lower():
    old = replace(H100, version="2.18.3")
    nvls = TunerQuery("all_reduce", "nvls", "Simple", 1, 8, old)
    assert tuner_latency(nvls) == pytest.approx(23e-6, rel=1e-12)
    assert tuner_bandwidth(TunerQuery("all_reduce", "ring", "LL", 1, 8, old)) == pytest.approx(
        87.7e9 * 8 / 14, rel=1e-12
    )


def test_a_plain_tree_costs_fifteen_percent():
    graphs = H100.channel_graphs(2)
    plain = replace(H100, several=replace(graphs, tree=replace(graphs.tree, plain_tree=True)))
    rates = [tuner_bandwidth(TunerQuery("all_reduce", "tree", "Simple", 2, 8, platform)) for platform in (plain, H100)]
    assert rates[0] == pytest.approx(0.85 * rates[1], rel=1e-12)


def test_trees_are_corrected_below_one_gibibyte_only():
    def rate(size: float) -> float:
        return predict("all_reduce", "tree", "Simple", nodes=2, gpus_per_node=8, size=size, platform=H100).bandwidth

    full = tuner_bandwidth(TunerQuery("all_reduce", "tree", "Simple", 2, 8, H100))
    assert rate(GIB - 1) == pytest.approx(0.9 * full, rel=1e-12)
    assert rate(GIB) == full
    assert rate(2 * MIB - 1) == pytest.approx(0.5 * full, rel=1e-12)
    assert rate(2 * MIB) == pytest.approx(0.6 * full, rel=1e-12)
    assert rate(63) == full


# --- invariants -----------------------------------------------------------------------------------------------------

platforms = st.sampled_from([load_platform(name) for name in platform_names()])
collectives = st.sampled_from(COLLECTIVES)
sizes = st.floats(1, 2.0**40)
models = st.sampled_from(["tuner", "effective"])


@st.composite
def groups(draw: st.DrawFn) -> tuple[Platform, int, int]:
    platform = draw(platforms)
    nodes = draw(st.integers(1, 64)) if platform.several else 1
    return platform, nodes, draw(st.integers(1 if nodes > 1 else 2, 8))


@given(group=groups(), collective=collectives, size=sizes, model=models)
def test_a_choice_is_the_tuners_shortest_and_splits_into_latency_and_rate(group, collective, size, model):
    platform, nodes, gpus_per_node = group
    choice = choose(collective, nodes=nodes, gpus_per_node=gpus_per_node, size=size, platform=platform, model=model)
    times = [candidate.seconds for candidate in choice.candidates]
    assert times == sorted(times)
    assert (choice.algorithm, choice.protocol) == (choice.candidates[0].algorithm, choice.candidates[0].protocol)
    assert len(choice.candidates) + len(choice.excluded) == len(ALGORITHMS) * len(PROTOCOLS)
    found = choice.prediction
    assert found.latency > 0
    assert found.bandwidth > 0
    assert found.seconds == found.latency + size / found.bandwidth
    assert found == predict(
        collective,
        choice.algorithm,
        choice.protocol,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        size=size,
        platform=platform,
        model=model,
    )


@given(group=groups(), collective=collectives, size=sizes, factor=st.floats(1.0, 100.0))
def test_more_bytes_never_take_less_effective_time_by_one_algorithm(group, collective, size, factor):
    platform, nodes, gpus_per_node = group

    def seconds(size: float) -> float:
        return predict(
            collective,
            "ring",
            "Simple",
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            size=size,
            platform=platform,
            model="effective",
        ).seconds

    assert seconds(size * factor) >= seconds(size) * (1 - 1e-12)


@given(group=groups(), size=sizes)
def test_an_all_reduce_by_ring_costs_a_reduce_scatter_and_an_all_gather(group, size):
    """Equal bytes on the wire; of the latency, the base is paid once instead of twice (and the penalty is not)."""
    platform, nodes, gpus_per_node = group
    rates = {
        collective: tuner_bandwidth(TunerQuery(collective, "ring", "Simple", nodes, gpus_per_node, platform))
        for collective in ("all_reduce", "reduce_scatter", "all_gather")
    }
    parts = 1 / rates["reduce_scatter"] + 1 / rates["all_gather"]
    assert 1 / rates["all_reduce"] == pytest.approx(parts, rel=1e-12)


@given(size=st.floats(MIB, 2.0**37), nodes=st.integers(1, 16))
def test_no_ring_carries_more_than_its_channels(size, nodes):
    """Bus bandwidth of the tuner's large-size estimate: what the channels are counted for."""
    found = predict("all_reduce", "ring", "Simple", nodes=nodes, gpus_per_node=8, size=size, platform=H100)
    assert found.bus_bandwidth < 360e9


# --- what is picked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "nodes", "size", "picked"),
    [
        ("dgx-a100", 1, 4096, ("ring", "LL")),
        ("dgx-a100", 1, 8 * MIB, ("ring", "LL128")),
        ("dgx-a100", 1, GIB, ("ring", "Simple")),
        ("dgx-h100", 1, 64 * MIB, ("nvls", "Simple")),
        ("dgx-h100", 2, 4096, ("tree", "LL")),
        ("dgx-h100", 2, MIB, ("tree", "LL128")),
        ("dgx-h100", 2, GIB, ("nvls_tree", "Simple")),
        # 16 NICs leave NVLink enough for a tree to overtake the ring where the correction of trees ends: a jump in
        # measured busbw from 156 at 512 MiB to 219 GB/s at 1 GiB, above the 200 GB/s of the NICs that bound a ring
        ("oci-gpu4", 2, GIB, ("tree", "Simple")),
        ("pcie-gen4", 1, GIB, ("ring", "Simple")),
    ],
)
def test_what_nccl_picks_for_an_all_reduce(platform, nodes, size, picked):
    choice = choose("all_reduce", nodes=nodes, gpus_per_node=8, size=size, platform=load_platform(platform))
    assert (choice.algorithm, choice.protocol) == picked


def test_a_choice_explains_itself():
    choice = choose("all_reduce", nodes=2, gpus_per_node=8, size=MIB, platform=H100)
    assert choice.reason == "tree LL128: the shortest by NCCL's tuner, 60.4 us; next nvls_tree Simple, 71.1 us"
    best, second = choice.candidates[:2]
    assert (best.algorithm, best.protocol) == ("tree", "LL128")
    assert (second.algorithm, second.protocol) == ("nvls_tree", "Simple")
    assert best.seconds == pytest.approx(60.4e-6, rel=1e-3)
    reasons = {(algorithm, protocol): why for algorithm, protocol, why in choice.excluded}
    assert "CollNet" in reasons["nvls", "Simple"]
    assert "only the Simple protocol" in reasons["nvls_tree", "LL"]


def test_ll128_needs_nvlink_unless_it_is_named():
    pcie = load_platform("pcie-gen4")
    free = choose("all_reduce", nodes=1, gpus_per_node=8, size=MIB, platform=pcie)
    assert all(candidate.protocol != "LL128" for candidate in free.candidates)
    named = choose("all_reduce", nodes=1, gpus_per_node=8, size=MIB, platform=pcie, protocols=["LL128"])
    assert named.protocol == "LL128"


def test_two_gpus_do_not_use_nvls():
    choice = choose("all_reduce", nodes=1, gpus_per_node=2, size=GIB, platform=H100)
    assert all(candidate.algorithm != "nvls" for candidate in choice.candidates)


# --- what the clock shows -------------------------------------------------------------------------------------------


def test_effective_time_by_hand():
    """launch, 24 channels' start, latency, size / (achieved x bandwidth), fill x size / (size + channels x 4 MiB)."""
    fitted = A100.effective
    found = predict(
        "all_reduce", "ring", "Simple", nodes=1, gpus_per_node=8, size=GIB, platform=A100, model="effective"
    )
    rate = 240e9 * 8 / 14
    fixed = fitted.launch + 24 * fitted.start + 56e-6
    fill = fitted.fill * GIB / (GIB + 12 * 4 * MIB)
    assert found.seconds == pytest.approx(fixed + GIB / (fitted.achieved * rate) + fill, rel=1e-12)
    assert (found.latency, found.issue) == (pytest.approx(fixed, rel=1e-12), fitted.launch)


def test_chunks_of_nvlink_sharp_grow_with_the_call():
    """calcCollChunking by hand for 8 H100: 16 channels x 8 GPUs x 16, 32, 64, 128 KiB a loop."""
    case = TunerQuery("all_reduce", "nvls", "Simple", 1, 8, H100)
    assert [nvls_loop_bytes(case, size * MIB) / MIB for size in (4, 8, 63, 64, 1023, 1024)] == [2, 4, 4, 8, 8, 16]
    tree = {nodes: TunerQuery("all_reduce", "nvls_tree", "Simple", nodes, 8, H100) for nodes in (2, 4)}
    assert [nvls_loop_bytes(tree[2], size * MIB) / MIB for size in (7, 8, 63, 64)] == [4, 8, 8, 16]
    assert [nvls_loop_bytes(tree[4], size * MIB) / MIB for size in (7, 8, 64)] == [4, 8, 8]


def test_an_older_version_chooses_by_its_tables_and_takes_the_newest_times():
    """2.27 counts a hop of an NVLS tree 14 us where 2.30 counts 20.9, and half its network: rings from 512 MiB on."""
    old = replace(H100, version="2.27.7")
    for size, newest, older in ((4 * MIB, "tree", "nvls_tree"), (GIB, "nvls_tree", "ring")):
        picked = [choose("all_reduce", nodes=4, gpus_per_node=8, size=size, platform=each) for each in (H100, old)]
        assert [each.algorithm for each in picked] == [newest, older]
    shape = {"nodes": 4, "gpus_per_node": 8, "size": GIB, "model": "effective"}
    times = [predict("all_reduce", "nvls_tree", "Simple", platform=each, **shape).seconds for each in (H100, old)]
    assert times[0] == times[1]


def test_an_exchange_by_hand():
    """8 A100, 64 MiB a rank: 4 of 32 channels for each of 7 peers, chunks of 512 KiB, 8.4 + 3.4 us; 16 KiB go by LL."""
    fitted = A100.effective
    found = predict_exchange("all_to_all", nodes=1, gpus_per_node=8, size=64 * MIB, platform=A100)
    moved = (7 / 8 * 64 * MIB + 7 * 4 * 512 * 1024) / (fitted.achieved * 240e9)
    fixed = fitted.launch + 28 * fitted.start + 11.8e-6
    assert (found.protocol, found.seconds) == ("Simple", pytest.approx(fixed + moved, rel=1e-12))
    far = predict_exchange("all_to_all", nodes=2, gpus_per_node=8, size=16 * 16 * 1024, platform=H100)
    assert far.protocol == "LL"
    assert far.latency - far.issue == pytest.approx((6.6 + 2.7 + 8 * 1.0) * 1e-6, rel=1e-12)  # the host posts 8 peers
    one = predict_exchange("send", nodes=2, gpus_per_node=1, size=MIB, platform=H100)
    assert one.latency - one.issue == pytest.approx((8.4 + 14 + 1.0) * 1e-6, rel=1e-12)


def test_part_of_a_node_by_nvls_keeps_the_wire_rate():
    """NVIDIA/nccl issue 1455 at 4 GiB: 370, 420, 440, 460, 480 GB/s of busbw on 4 to 8 GPUs."""
    for ranks, measured in zip(range(4, 9), (370e9, 420e9, 440e9, 460e9, 480e9), strict=True):
        found = predict(
            "all_reduce",
            "nvls",
            "Simple",
            nodes=1,
            gpus_per_node=ranks,
            size=4 * GIB,
            platform=H100,
            model="effective",
        )
        assert found.bus_bandwidth == pytest.approx(measured, rel=0.03)


def test_stated_bandwidths_of_machines_without_logs():
    """NVIDIA, GTC 2024 S62129 and GTC 2025 S72583: busbw of a large all-reduce in one node, GB/s."""
    for name, algorithms, stated in (
        ("dgx-v100", None, 122),
        ("dgx-a100", None, 232),
        ("dgx-h100", ["ring"], 370),
        ("dgx-h100", None, 480),
        ("dgx-b200", ["ring"], 700),
        ("dgx-b200", None, 850),
        ("pcie-gen4", None, 24),
        ("pcie-gen5", None, 48),
    ):
        choice = choose(
            "all_reduce",
            nodes=1,
            gpus_per_node=8,
            size=16 * GIB,
            platform=load_platform(name),
            algorithms=algorithms,
        )
        assert choice.prediction.bus_bandwidth / 1e9 == pytest.approx(stated, rel=0.035), name


def test_a_ring_between_nodes_runs_at_the_rate_of_its_nics():
    """2 x 8 H100 at 8 GiB, mpi-operator run by wutz: 391.45 GB/s of busbw; the tuner's list of speeds stops at 360."""
    found = predict(
        "all_reduce", "ring", "Simple", nodes=2, gpus_per_node=8, size=8 * GIB, platform=H100, model="effective"
    )
    assert found.bus_bandwidth / 1e9 == pytest.approx(391.45, rel=0.02)


# set -> platform, and the algorithms that the run was left with, where its rates leave no other reading
MEASURED = {
    "A100-40G-1n (superbench)": ("dgx-a100", None),
    "A100-1n (stas)": ("dgx-a100", None),
    "A100-40G-2n (OCI README older)": ("oci-gpu4", None),
    "A100-40G-2n (OCI)": ("oci-gpu4", None),
    "H100-1n (NVIDIA dgxc)": ("dgx-h100", None),
    "H100-1n (nccl-tests#290)": ("dgx-h100", None),
    "H100-2n (nccl-tests#309)": ("dgx-h100", None),
    "H100-2n (nccl-tests#309 gj-aion)": ("dgx-h100", None),
    "H100-2n (wutz mpi-operator)": ("dgx-h100", None),
    "H100-1n by #GPUs (nccl#1455)": ("dgx-h100", "algo"),
}


def _ratios(least: float, below: float, model: str = "effective") -> dict[tuple[str, str], list[float]]:
    """log(predicted / measured) of every size in the range, by set and collective."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (DATA / "nccl_measured.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["set"] not in MEASURED or row["collective"] not in COLLECTIVES:
                continue
            nodes, ranks, size = int(row["nodes"]), int(row["gpus"]), int(row["size_bytes"])
            if not least <= size < below:
                continue
            name, named = MEASURED[row["set"]]
            busbw = float(row["busbw_GBs"] or "nan") * 1e9
            time = row["time_us"]
            measured = float(time) * 1e-6 if time else size * bus_factor(row["collective"], ranks) / busbw
            choice = choose(
                row["collective"],
                nodes=nodes,
                gpus_per_node=ranks // nodes,
                size=size,
                platform=load_platform(name),
                algorithms=[row["algo"].lower()] if named else None,
                model=model,
            )
            ratios[row["set"], row["collective"]].append(math.log(choice.prediction.seconds / measured))
    return ratios


def _error(logs: list[float]) -> float:
    """The geometric mean of how far predicted and measured are apart, minus 1."""
    return math.exp(math.fsum(map(abs, logs)) / len(logs)) - 1


@needs_data
def test_measured_all_reduces_from_one_mebibyte():
    """Every set on its own: below 8 % on one node, below 12 % on two, but for the one that is not what it should be."""
    ratios = _ratios(MIB, math.inf)
    errors = {name: _error(logs) for (name, collective), logs in ratios.items() if collective == "all_reduce"}
    assert errors.keys() == MEASURED.keys()
    slow = errors.pop("H100-2n (wutz mpi-operator)")
    for name, error in errors.items():
        assert error < (0.08 if "-1n" in name else 0.12), (name, error)
    assert slow > 0.15  # measured at 1.16 x the expected time: 391 GB/s is the NICs' rate, so a ring, not NVLS trees


@needs_data
def test_measured_collectives_that_nothing_was_fitted_on():
    ratios = _ratios(MIB, math.inf)
    errors = {collective: _error(logs) for (_, collective), logs in ratios.items() if collective != "all_reduce"}
    assert errors.keys() == {"reduce_scatter", "all_gather", "broadcast", "reduce"}
    assert max(errors.values()) < 0.12, errors


@needs_data
def test_measured_small_sizes_are_nearer_than_the_tuner_puts_them():
    effective, tuner = (_ratios(1024, MIB, model) for model in ("effective", "tuner"))
    for key, logs in effective.items():
        assert _error(logs) < _error(tuner[key]), key


@needs_data
def test_the_tables_are_those_of_the_source():
    rows = list(csv.DictReader((DATA / "nccl_tuning_constants.csv").read_text(encoding="utf-8").splitlines()))
    tables = tuned.TABLES["2.30.7"]
    algorithms = {name.replace("_", ""): name for name in ALGORITHMS}
    checked = 0
    for row in rows:
        where = row["hw_or_cc"].lower()
        algorithm = algorithms.get(row["algo"].lower(), "")
        if row["table"] == "baseLatency_us":
            assert tables.base[algorithm][PROTOCOLS.index(row["proto"])] == float(row["n1"]), row
        elif row["table"] == "hwLatency_us":
            assert tables.hop[where, algorithm][PROTOCOLS.index(row["proto"])] == float(row["n1"]), row
        elif row["table"] == "treeCorrectionFactor":
            step = int(math.log2(int(where.removesuffix(" b")) / 64))
            assert tuned.TREE_CORRECTION[row["proto"]][step] == float(row["n1"]), row
        elif row["table"] == "nvlsEfficiency":
            assert tables.nvls_efficiency[where] == float(row["n1"]), row
        elif row["table"].endswith("Bw_GBs"):
            rated = {
                "llMaxBw_GBs": tables.ll_cap,
                "perChMaxRingLL128Bw_GBs": tables.ring_ll128_cap,
                "perChMaxTreeLL128Bw_GBs": tables.tree_ll128_cap,
                "perChMaxTreeBw_GBs": tables.tree_cap,
                "perChMaxNVLSTreeBw_GBs": tables.nvls_tree_cap,
            }[row["table"]]
            name = where.split("-")[0]
            assert rated[name] == (float(row["n1"]), float(row["n2"]), float(row["n4"])), row
        else:
            continue
        checked += 1
    assert checked == 180


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collective": "allreduce"}, "no collective 'allreduce'; did you mean 'all_reduce'"),
        ({"algorithm": "rings"}, "no algorithm 'rings'; did you mean 'ring'"),
        ({"protocol": "simple"}, "no protocol 'simple'; did you mean 'Simple'"),
        ({"model": "real"}, "no model 'real'"),
        ({"size": 0}, "above zero, not 0"),
        ({"size": -1.0}, "above zero, not -1.0"),
        ({"size": math.inf}, "above zero, not inf"),
        ({"nodes": 0}, "nodes must be a whole number from 1"),
        ({"nodes": 1, "gpus_per_node": 1}, "needs 2 ranks or more"),
        ({"gpus_per_node": 9}, "has 8 GPUs"),
        ({"algorithm": "nvls_tree", "nodes": 1}, "needs several nodes"),
        ({"algorithm": "nvls", "platform": A100, "nodes": 1}, "cannot multicast"),
        ({"algorithm": "tree", "collective": "broadcast"}, "rings only"),
        ({"algorithm": "tree", "collective": "all_gather"}, "only all-reduce"),
        ({"algorithm": "pat", "collective": "all_gather"}, "one GPU each"),
        ({"algorithm": "collnet_chain"}, "no in-network reduction"),
        ({"platform": load_platform("pcie-gen4")}, "one node without a network"),
    ],
)
def test_bad_questions(change, message):
    question = {
        "collective": "all_reduce",
        "algorithm": "ring",
        "protocol": "Simple",
        "nodes": 2,
        "gpus_per_node": 8,
        "size": MIB,
        "platform": H100,
        **change,
    }
    protocol = {"nvls_tree": "Simple", "pat": "Simple"}.get(question["algorithm"], question["protocol"])
    with pytest.raises(InputError, match=message):
        predict(**{**question, "protocol": protocol})


def test_a_choice_with_nothing_left_says_why():
    with pytest.raises(InputError, match="no enabled algorithm for all_reduce on dgx-a100; enable one: nvls: "):
        choose("all_reduce", nodes=1, gpus_per_node=8, size=MIB, platform=A100, algorithms=["nvls"])
    with pytest.raises(InputError, match="the list of algorithms is empty"):
        choose("all_reduce", nodes=1, gpus_per_node=8, size=MIB, platform=A100, algorithms=[])


def test_bad_platforms():
    with pytest.raises(InputError, match="no NCCL platform 'dgx-h10'; did you mean 'dgx-h100'"):
        load_platform("dgx-h10")
    with pytest.raises(InputError, match=r"no tuner tables for NCCL '2\.19'"):
        replace(H100, version="2.19")
    with pytest.raises(InputError, match=r"needs version 2\.30\.7"):
        replace(load_platform("dgx-b200"), version="2.18.3")


def test_a_machine_of_ones_own():
    """The presets are only data: four NICs halve what a ring between nodes is counted for."""
    ring = ChannelGraph(4, 45e9, 45e9)
    mine = replace(H100, name="mine", several=ChannelGraphs(ring=ring, tree=ring))
    assert tuner_bandwidth(TunerQuery("all_reduce", "ring", "Simple", 2, 8, mine)) == pytest.approx(96e9, rel=1e-12)
