"""Logs of nccl-tests: read as they are printed, and held against the model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.traffic.nccl.log import compare_log, overall_verdict, parse_log, read_log
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.nccl.predictor import choose

MIB = 2**20
GIB = 2**30
H100 = load_platform("dgx-h100")
A100 = load_platform("dgx-a100")

HEADER = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
{devices}
NCCL version 2.26.2+cuda12.2
node0:4242:4242 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
FOOTER = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 235.26
#
"""


def _row(size: int, seconds: float, factor: float, operation: str = "sum      -1", type_: str = "float") -> str:
    rate = size / (round(seconds * 1e6, 2) * 1e-6) / 1e9
    four = f"{seconds * 1e6:9.2f} {rate:7.2f} {rate * factor:7.2f}"
    return f"{size:12d} {size // 4:12d} {type_:>9s} {operation:>12s} {four}      0 {four}    N/A\n"


def _log(rows: str, nodes: int = 1, gpus_per_node: int = 8) -> str:
    devices = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on      node{rank // gpus_per_node} device  "
        f"{rank % gpus_per_node} [0x0{rank % gpus_per_node}] NVIDIA H100 80GB HBM3"
        for rank in range(nodes * gpus_per_node)
    )
    return HEADER.format(devices=devices) + rows + FOOTER


def test_a_log_as_it_is_printed():
    text = _log(_row(MIB, 74.78e-6, 1.75) + _row(GIB, 8159.5e-6, 1.75))
    log = parse_log(text)
    assert log.collective == "all_reduce"
    assert (log.nodes, log.gpus_per_node, log.version) == (1, 8, "2.26.2")
    assert log.gpus[0] == "NVIDIA H100 80GB HBM3"
    assert log.average_bus_bandwidth == pytest.approx(235.26e9)
    assert [(row.size, row.in_place) for row in log.rows] == [(MIB, False), (MIB, True), (GIB, False), (GIB, True)]
    first, second = log.rows[:2]
    assert first.seconds == pytest.approx(74.78e-6)
    assert first.algorithm_bandwidth == pytest.approx(14.02e9)
    assert first.bus_bandwidth == pytest.approx(24.54e9, rel=1e-3)
    assert (first.wrong, second.wrong) == (0, -1)
    assert text.splitlines()[first.line - 1].split()[0] == str(MIB)


def test_old_logs_without_root_or_operation():
    old = "  1048576   262144   float     sum    74.78   14.02   24.54  5e-07    74.50   14.07   24.63  5e-07\n"
    gathered = "  1048576    32768   float            72.95   14.37   12.58  0e+00    73.00   14.36   12.57  0e+00\n"
    for line in (old, gathered):
        row = parse_log(line).rows[0]
        assert (row.size, row.wrong) == (MIB, -1)
        assert row.seconds in (pytest.approx(74.78e-6), pytest.approx(72.95e-6))


def test_in_place_may_be_missing():
    line = "  1048576  32768  float  none  -1  87.42  11.99  10.50  0  N/A  N/A  N/A  N/A\n"
    assert [row.in_place for row in parse_log(line).rows] == [False]


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "0: ", "[1,12]<stdout>: ", "[0]", "[0] ", "[1,0]<stdout>:[0]", "node-1: ",
     "[1,0][n1:77]<stdout>:", "[prterun-n1-77@1,0]<stdout>: ", "[pod/nccl-launcher/main] "],
)  # fmt: skip
def test_prefixes_of_launchers(prefix):
    plain = _log(_row(MIB, 74.78e-6, 1.75))
    prefixed = "".join(prefix + line for line in plain.splitlines(keepends=True))
    assert parse_log(prefixed) == parse_log(plain)


@pytest.mark.parametrize("tag", ["[0]", "[1,3]<stdout>:"])
def test_tags_of_empty_output_may_stand_inside_a_row(tag):
    """Of mpirun --tag-output and PSM, where another rank's empty output is between (NVIDIA/nccl issue 1453)."""
    plain = _row(MIB, 74.78e-6, 1.75) + _row(GIB, 8e-3, 1.75)
    words = [line.split() for line in plain.splitlines()]
    tagged = "\n".join(
        f"{tag}  {' '.join(row[:5])}{tag}   {' '.join(row[5:9])}{tag} {' '.join(row[9:])}" for row in words
    )
    assert parse_log(tagged) == parse_log(plain)


def test_the_programs_name_says_the_collective():
    rows = _row(GIB, 8e-3, 0.875, "none      -1")
    assert parse_log(_log(rows)).collective == ""  # all-gather or all-to-all
    assert parse_log("# Collective test starting: all_gather_perf\n" + _log(rows)).collective == "all_gather"
    assert parse_log("$ srun ./build/alltoall_perf -b 1G\n" + _log(rows)).collective == "all_to_all"


@pytest.mark.parametrize(
    ("factor", "operation", "collective"),
    [
        (1.75, "sum -1", "all_reduce"),
        (0.875, "sum -1", "reduce_scatter"),
        (1, "sum 0", "reduce"),
        (1, "none 0", "broadcast"),
    ],
)
def test_columns_that_leave_no_doubt_say_the_collective(factor, operation, collective):
    assert parse_log(_log(_row(GIB, 5e-3, factor, operation))).collective == collective


@given(
    rows=st.lists(st.tuples(st.integers(1, 2**35), st.floats(1e-6, 10.0)), min_size=1, max_size=20),
)
def test_what_is_printed_is_read_back(rows):
    log = parse_log(_log("".join(_row(size, seconds, 1.75) for size, seconds in rows)))
    outside = [row for row in log.rows if not row.in_place]
    assert [row.size for row in outside] == [size for size, _ in rows]
    for row, (_, seconds) in zip(outside, rows, strict=True):
        assert row.seconds == pytest.approx(seconds, abs=0.0051e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1048576 262144 float sum -1 74.78 14.02", "log:2: 7 columns"),
        ("1048576 262144 float sum -1 abc 14.02 24.54 0 74.50 14.07 24.63 0", "log:2: the time out of place is 'abc'"),
        ("1048576 262144 float sum -1 74.78 nan 24.54 0 74.50 14.07 24.63 0", "log:2: algbw out of place is 'nan'"),
        ("1048576 262144 float sum -1 0.00 14.02 24.54 0 74.50 14.07 24.63 0", "log:2: the time out of place is 0.00"),
        ("1048576 262144 float sum -1 74.78 140.2 24.54 0 74.50 14.07 24.63 0", "log:2: 1048576 B in 74.78 us out of"),
        ("1048576 262144 float sum -1 74.78 14.02 24.54 0 74.50 1.07 24.63 0", "log:2: 1048576 B in 74.50 us in place"),
        ("# Avg bus bandwidth    : lots", "log:2: the average bus bandwidth is 'lots'"),
    ],
)
def test_bad_lines_are_named(line, message):
    with pytest.raises(InputError) as caught:
        parse_log(f"# nThread 1\n{line}\n", source="log")
    assert message in str(caught.value)


def test_no_log_at_all(tmp_path):
    with pytest.raises(InputError, match="contains no measured size"):
        parse_log("hello\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "nothing.log")
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="no measured size"):
        read_log(binary)


# --- health ---------------------------------------------------------------------------------------------------------


def _run(slowed: float, nodes: int, algorithms: list[str] | None = None) -> str:
    """A log in which every size takes ``slowed`` x what the model says."""
    rows = ""
    for power in range(10, 34):
        found = choose(
            "all_reduce", nodes=nodes, gpus_per_node=8, size=2**power, platform=H100, algorithms=algorithms
        ).prediction
        rows += _row(2**power, slowed * found.seconds, 2 * (8 * nodes - 1) / (8 * nodes))
    return _log(rows, nodes)


@pytest.mark.parametrize(
    ("slowed", "one", "all_"),
    [
        (1.0, "as expected", "as expected"),
        (1.2, "slower", "much slower than it should be"),
        (2.0, "much slower than it should be", "much slower than it should be"),
        (0.5, "faster than the model", "faster than the model"),
    ],
)
def test_health_of_a_run_at_a_known_part_of_its_speed(slowed, one, all_):
    readings = compare_log(parse_log(_run(slowed, 2)), H100)
    assert [reading.size for reading in readings] == [2**power for power in range(10, 34)]
    for reading in readings:
        assert reading.ratio == pytest.approx(slowed, rel=1e-3)
        assert reading.verdict == one if reading.size >= MIB else reading.verdict.startswith("small: ")
    ratio, verdict = overall_verdict(readings)
    assert ratio == pytest.approx(slowed, rel=1e-4)
    assert verdict == all_


def test_a_run_kept_from_nvls_looks_like_a_ring():
    readings = compare_log(parse_log(_run(1.0, 1, ["ring"])), H100)
    last = readings[-1]
    assert last.expected_by == "nvls Simple"
    assert last.verdict == "much slower than it should be"
    assert last.looks_like == "ring Simple"


def test_rates_at_the_nics_limit_on_two_h100_nodes_look_like_a_ring():
    """2 x 8 H100, wutz's mpi-operator run: 391 GB/s of busbw where NVLS trees reach 467; us by size."""
    times = {2**29: 2622.9e-6, 2**30: 5200.4e-6, 2**31: 10308.0e-6, 2**32: 20528.0e-6, 2**33: 41145.0e-6}
    readings = compare_log(parse_log(_log("".join(_row(s, t, 1.875) for s, t in times.items()), nodes=2)), H100)
    assert overall_verdict(readings)[1] == "much slower than it should be"
    assert {reading.looks_like for reading in readings if reading.verdict != "as expected"} == {"ring Simple"}
    assert [reading.verdict == "as expected" for reading in readings] == [True, False, False, False, False]


def test_health_takes_what_the_log_does_not_say():
    row = "  1048576   262144   float     sum    74.78   14.02   24.54  5e-07    74.50   14.07   24.63  5e-07\n"
    log = parse_log(row)
    with pytest.raises(InputError, match="does not state the collective"):
        compare_log(log, A100, 1, 8)
    with pytest.raises(InputError, match="does not state the number of nodes"):
        compare_log(log, A100, collective="all_reduce")
    with pytest.raises(InputError, match="no estimate for 'all_to_all'"):
        compare_log(log, A100, 1, 8, "all_to_all")
    (reading,) = compare_log(log.rows, A100, 1, 8, "all_reduce")
    assert reading.measured == pytest.approx(74.78e-6)  # out of place


def test_small_sizes_alone_are_no_verdict():
    readings = compare_log(parse_log(_log(_row(1024, 36e-6, 1.75))), A100, collective="all_reduce")
    with pytest.raises(InputError, match="no size of at least"):
        overall_verdict(readings)


def test_the_command_holds_a_log_against_the_model(tmp_path, capsys):
    expected = [
        choose("all_reduce", nodes=1, gpus_per_node=8, size=size, platform=H100).prediction.seconds
        for size in (MIB, 64 * MIB, GIB)
    ]
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    sizes = (MIB, 64 * MIB, GIB)
    good.write_text(_log("".join(_row(s, t, 1.75) for s, t in zip(sizes, expected, strict=True))))
    bad.write_text(_log("".join(_row(s, 3 * t, 1.75) for s, t in zip(sizes, expected, strict=True))))
    assert main(["collective", "--measured", str(good), "--platform", "dgx-h100"]) == 0
    assert "from 1 MiB up: 1.00 x the expected time (geometric mean): as expected" in capsys.readouterr().out
    assert main(["collective", "--measured", str(bad), "--platform", "dgx-h100", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ratio"] == pytest.approx(3.0, rel=1e-3)
    assert document["verdict"] == "much slower than it should be"
    assert [row["size"] for row in document["rows"]] == list(sizes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--platform", "dgx-a100"]),
        (["--platform", "dgx-h10"], ["dgx-h10", "dgx-h100"]),
        (["--platform", "dgx-h100"], ["nowhere.log"]),
    ],
)
def test_a_health_check_that_cannot_be_made_is_one_message(capsys, arguments, words):
    assert main(["collective", "--measured", "nowhere.log", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("simcluster: error: ")
    assert all(word in shown for word in words), shown


def test_a_collective_without_its_arguments_says_which_are_missing(capsys):
    assert main(["collective", "all_reduce", "--gpus", "8"]) == 2
    assert "required: --size, --cluster" in capsys.readouterr().err
