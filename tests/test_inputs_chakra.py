"""Execution traces: a run written and played again takes the same time; bad traces are one clear message."""

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.astra_network import parse_astra_network
from simcluster.interop.chakra import (
    ChakraTrace,
    TraceNode,
    read_chakra_trace,
    simulate_trace,
    write_chakra_trace,
    write_run_as_chakra,
    writer,
)
from simcluster.interop.chakra.trace import load_message_classes, serialize_with_length
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate
from simcluster.topology import Cluster

GIB = 2**30
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 0, 2, 6, 7, 9


def comp(number: int, seconds: float, *after: int, **attributes: Any) -> TraceNode:
    return TraceNode(number, f"comp {number}", "comp", after, seconds, attributes)


def coll(number: int, kind: int, size: int, *after: int, **attributes: Any) -> TraceNode:
    return TraceNode(number, f"coll {number}", "coll", after, 0.0, {"comm_type": kind, "comm_size": size, **attributes})


def message(number: int, kind: str, source: int, target: int, size: int, *after: int, tag: int = 0) -> TraceNode:
    place = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": size}
    return TraceNode(number, f"{kind} {number}", kind, after, 0.0, place)


def memory(number: int, kind: str, size: int, *after: int) -> TraceNode:
    return TraceNode(number, f"{kind} {number}", kind, after, 0.0, {"tensor_size": size})


def ring(tmp_path: Path, npus: int = 4) -> Cluster:
    """Links of 1 GiB/s and 1 us each way."""
    (tmp_path / "ring.yml").write_text(f"topology: [Ring]\nnpus_count: [{npus}]\nbandwidth: [1]\nlatency: [1000]\n")
    return load_cluster(tmp_path / "ring.yml", [("device", "h100")])


def trace(*ranks: list[TraceNode], **groups: tuple[int, ...]) -> ChakraTrace:
    return ChakraTrace("job", tuple(tuple(nodes) for nodes in ranks), groups)


def seconds(tmp_path: Path, job: ChakraTrace, **more: Any) -> float:
    return simulate_trace(job, ring(tmp_path), **more).seconds


def test_computation_follows_its_dependencies_one_at_a_time(tmp_path: Path) -> None:
    job = trace([comp(3, 1e-3), comp(1, 2e-3), comp(2, 4e-3, 3), comp(9, 9e-3, is_cpu_op=True)])
    played = simulate_trace(job, ring(tmp_path))
    assert [(node.node, node.start, node.end) for node in sorted(played.nodes, key=lambda node: node.node)] == [
        (1, 0.0, pytest.approx(2e-3)),
        (2, pytest.approx(3e-3), pytest.approx(7e-3)),
        (3, pytest.approx(2e-3), pytest.approx(3e-3)),
        (9, 0.0, pytest.approx(9e-3)),
    ]


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (ALL_REDUCE, GIB, 6 * (0.25 + 1e-6)),
        (REDUCE_SCATTER, GIB, 3 * (0.25 + 1e-6)),
        (ALL_GATHER, GIB // 4, 3 * (0.25 + 1e-6)),  # comm_size is what every rank puts in
        (BARRIER, 0, 6 * (1 / GIB + 1e-6)),  # of 4 bytes
    ],
)
def test_collectives_take_what_the_closed_form_says(tmp_path: Path, kind: int, size: int, expected: float) -> None:
    assert seconds(tmp_path, trace(*[[coll(1, kind, size)]] * 4)) == pytest.approx(expected, rel=1e-4)


def test_a_collective_begins_when_the_last_rank_is_there(tmp_path: Path) -> None:
    ranks = [[comp(1, 1e-3 * rank), coll(2, ALL_REDUCE, GIB, 1)] for rank in range(1, 5)]
    played = simulate_trace(trace(*ranks), ring(tmp_path))
    assert [node.start for node in played.nodes if node.kind == "coll"] == [pytest.approx(4e-3)] * 4


def test_a_receive_ends_when_the_message_arrives_and_sends_do_not_wait(tmp_path: Path) -> None:
    job = trace(
        [comp(1, 1.0), message(2, "send", 0, 2, GIB, 1), message(3, "send", 0, 1, GIB, 1)],
        [message(5, "recv", 0, 1, GIB), comp(6, 1.0, 5)],
        [message(1, "recv", 0, 2, GIB), comp(2, 1.0, 1)],
    )
    played = {(node.rank, node.node): node for node in simulate_trace(job, ring(tmp_path)).nodes}
    assert played[0, 2].start == played[0, 3].start == 1.0
    assert played[2, 2].start == pytest.approx(played[0, 2].end)
    assert played[1, 6].end == pytest.approx(played[0, 3].end + 1)


def test_tags_tell_messages_apart_and_equal_ones_come_in_order(tmp_path: Path) -> None:
    job = trace(
        [message(1, "send", 0, 1, GIB, tag=7), message(2, "send", 0, 1, GIB, 1, tag=8)],
        [message(1, "recv", 0, 1, GIB, tag=8), message(2, "recv", 0, 1, GIB, tag=7)],
    )
    ends = {node.node: node.end for node in simulate_trace(job, ring(tmp_path)).nodes if node.rank == 1}
    assert ends[2] < ends[1]


def test_groups_by_name_and_by_dimension(tmp_path: Path) -> None:
    pairs = trace(
        *[[coll(1, ALL_REDUCE, GIB, pg_name=str(rank // 2))] for rank in range(4)], **{"0": (0, 1), "1": (2, 3)}
    )
    assert seconds(tmp_path, pairs) == pytest.approx(2 * (0.5 + 1e-6))
    text = "topology: [Ring, Switch]\nnpus_count: [2, 2]\nbandwidth: [4, 1]\nlatency: [0, 0]\n"
    (tmp_path / "two.yml").write_text(text)
    cluster = load_cluster(tmp_path / "two.yml", [("device", "h100")])
    dimensions = parse_astra_network(text, "two.yml")
    for involved, expected in (((True, False), 0.25), ((False, True), 1.0)):
        job = trace(*[[coll(1, ALL_REDUCE, GIB, involved_dim=involved)]] * 4)
        assert simulate_trace(job, cluster, dimensions=dimensions).seconds == pytest.approx(expected)


def test_without_a_duration_the_roofline_says_how_long(tmp_path: Path) -> None:
    cluster = ring(tmp_path)
    from simcluster.devices.device import load_device

    h100 = load_device("h100")
    peak, bandwidth = h100.peak_flops("bf16"), h100.memory_bandwidth
    for flops, size in ((10**12, 1), (1, 10**9)):
        played = simulate_trace(trace([comp(1, 0.0, num_ops=flops, tensor_size=size)]), cluster)
        assert played.seconds == pytest.approx(max(flops / peak, size / bandwidth), rel=1e-6)
        assert "1 compute nodes take times estimated from the peak" in played.notes[0]
    given_time = trace([comp(1, 1.0, num_ops=10**12)])
    assert simulate_trace(given_time, cluster).seconds == 1.0
    assert simulate_trace(given_time, cluster, roofline=True).seconds < 0.01
    assert "they take 0 s" in simulate_trace(trace([comp(1, 0.0)]), cluster).notes[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny_dp", []),
        ("tiny_3d", []),
        ("tiny_3d", ["memory.offload.activations=0.5"]),
        ("tiny_3d", ["memory.offload.optimizer=host", "memory.offload.host_update=100 GB/s"]),
    ],
)
def test_a_run_of_ours_takes_the_same_time_when_its_traces_are_played(
    tmp_path: Path, name: str, changes: list[str]
) -> None:
    scenario = load(name, changes)
    result = simulate(scenario, folded=False)
    files = write_run_as_chakra(result, tmp_path / "et", name)
    assert len(files) == scenario.gpus
    job = read_chakra_trace(tmp_path / "et")
    assert simulate_trace(job, scenario.cluster.built).seconds == result.step_time * scenario.steps


def test_what_a_trace_cannot_say_is_refused(tmp_path: Path) -> None:
    folded = simulate(load("tiny_3d"))
    with pytest.raises(InputError, match="one rank on behalf of several; simulate it with folded=False"):
        write_run_as_chakra(folded, tmp_path, "job")


@pytest.mark.parametrize("changes", [[], ["pipeline.schedule=interleaved", "pipeline.chunks=2", "model.layers=8"]])
def test_a_rendezvous_costs_up_to_a_latency_more(tmp_path: Path, changes: list[str]) -> None:
    """The receiver says that it is there with a byte that the sender waits for: never sooner, and a latency later for
    each of them that follow each other at most; without latency the time of the run."""
    scenario = load("tiny_3d", ["pipeline.p2p=rendezvous", *changes])
    result = simulate(scenario, folded=False)
    write_run_as_chakra(result, tmp_path, "job")
    job, cluster = read_chakra_trace(tmp_path), scenario.cluster.built
    kinds = Counter(node.kind for nodes in job.ranks for node in nodes)
    receives = int((result.record.ops.label < 0).sum())
    assert kinds["send"] == kinds["recv"] == 2 * receives > 0
    ready = [node for nodes in job.ranks for node in nodes if node.name.startswith("ready")]
    ends = [(node.integer_attribute("comm_src"), node.integer_attribute("comm_dst")) for node in ready]
    latency = max(cluster.mean_route_latency(cluster.spread_route(*pair)) for pair in ends)
    most = max(sum(node.kind == "recv" for node in nodes) for nodes in job.ranks)
    own, played = result.step_time * scenario.steps, simulate_trace(job, cluster).seconds
    assert own < played <= own + most * (latency + 1e-9)


def test_a_copy_goes_the_way_to_the_host_both_ways_at_once(tmp_path: Path) -> None:
    cluster = load_cluster("dgx_h100", [("nodes", 1)])
    (link, _), *_ = way = cluster.host_memory_route(0, "d2h")
    rate, latency = min(float(cluster.capacity[each]) for each, _ in way), cluster.mean_route_latency(way)
    assert link >= 0
    size = 10**9
    once = simulate_trace(trace([memory(1, "mem_store", size)]), cluster).seconds
    assert once == pytest.approx(latency + size / rate)
    both = simulate_trace(trace([memory(1, "mem_store", size), memory(2, "mem_load", size)]), cluster)
    assert both.seconds == pytest.approx(once)
    assert both.exposed_seconds == (both.seconds,)
    in_turn = [memory(1, "mem_store", size), memory(2, "mem_store", size)]
    assert simulate_trace(trace(in_turn), cluster).seconds == pytest.approx(2 * once)


def test_what_is_too_large_is_refused_before_it_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on representatives: the same number as rank by rank."""
    scenario = load("tiny_3d")
    ops = len(simulate(scenario, folded=False).record.ops)
    monkeypatch.setattr(writer.schema, "MAX_NODES", ops)
    writer.require_writable_op_count(simulate(scenario), "job")
    monkeypatch.setattr(writer.schema, "MAX_NODES", ops - 1)
    with pytest.raises(InputError, match=f"job: has {ops:,} ops on 8 ranks; the limit is {ops - 1:,}"):
        writer.require_writable_op_count(simulate(scenario), "job")


NODES = st.lists(
    st.tuples(
        st.sampled_from(["comp", "metadata", "mem_load"]),
        st.text(max_size=12),
        st.floats(0, 1e4),
        st.dictionaries(
            st.text(max_size=8),
            st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False)
            | st.text(max_size=8)
            | st.binary(max_size=8)
            | st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
            | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4).map(tuple),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(NODES)
def test_nodes_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, parts: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("et")
    nodes = tuple(
        TraceNode(number, name, kind, tuple(range(number)), length, attributes)
        for number, (kind, name, length, attributes) in enumerate(parts)
    )
    job = ChakraTrace("job", (nodes,), {"a": (0,)})
    write_chakra_trace(job, folder)
    back = read_chakra_trace(folder)
    for was, now in zip(nodes, back.ranks[0], strict=True):
        assert now.seconds == pytest.approx(was.seconds, abs=1.1e-6)
        assert (now.id, now.name, now.kind, now.after, now.attributes) == (
            was.id,
            was.name,
            was.kind,
            was.after,
            was.attributes,
        )
    assert back.groups == {"a": (0,)}


def test_the_bytes_are_those_of_the_schema(tmp_path: Path) -> None:
    """Written out by hand from et_def.proto: version "1.0.0"; node 1 "c", comp, after 0, 5 us, is_cpu_op false."""
    write_chakra_trace(
        trace([TraceNode(0, "", "comp"), TraceNode(1, "c", "comp", (0,), 5e-6, {"is_cpu_op": False})]), tmp_path
    )
    raw = (tmp_path / "job.0.et").read_bytes()
    head = b"\x07\x0a\x051.0.0"
    assert raw.startswith(head)
    node = b"\x08\x01\x12\x01c\x18\x04\x2a\x01\x00\x38\x05\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"
    assert node in raw
    exact = b"\x52\x1d\x0a\x12simcluster_seconds\x19" + struct.pack("<d", 5e-6)
    assert exact in raw


def test_packed_files_are_read_too(tmp_path: Path) -> None:
    write_chakra_trace(trace([comp(1, 1e-3)]), tmp_path)
    raw = (tmp_path / "job.0.et").read_bytes()
    (tmp_path / "job.0.et").unlink()
    (tmp_path / "job.0.et.gz").write_bytes(gzip.compress(raw, mtime=0))
    assert read_chakra_trace(tmp_path).ranks[0][0].seconds == 1e-3


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (trace([comp(1, 1.0, 2), comp(2, 1.0, 1)]), "waits for itself through other nodes"),
        (
            trace([comp(1, 1.0, 7)]),
            r"job, rank 0: node 1 \('comp 1', comp\) waits for node 7, which is not in the trace",
        ),
        (trace([comp(1, 1.0), comp(1, 1.0)]), "its id is a duplicate"),
        (trace([TraceNode(1, "x", "invalid")]), "is not supported; use comp, send, recv, coll, mem_load or mem_store"),
        (trace([TraceNode(1, "x", "mem_load")]), "has no attribute 'tensor_size'"),
        (trace([memory(1, "mem_store", 4)]), r"job, rank 0: node 1 .* GPU npu0 has no link to host memory"),
        (trace([coll(1, 3, 4)], [coll(1, 3, 4)]), "comm_type 3 is not supported"),
        (trace([coll(1, 99, 4)]), "comm_type 99 is not supported"),
        (trace([TraceNode(1, "x", "coll")]), "has no attribute 'comm_type'"),
        (trace([coll(1, ALL_REDUCE, "big")]), "has 'big' as 'comm_size'; it must"),  # type: ignore[arg-type]
        (trace([coll(1, ALL_REDUCE, -1)]), "has '-1' as 'comm_size'"),
        (trace([coll(1, ALL_REDUCE, 8)], [coll(1, ALL_REDUCE, 16)]), "all_reduce of 16 bytes, but rank 0 has node 1"),
        (trace([coll(1, ALL_REDUCE, 8)], [comp(1, 1.0)]), "only 1 of the 2 ranks of its group; record all_reduce 1"),
        (trace([coll(1, ALL_REDUCE, 8, pg_name="3")]), "there is no process group '3' .*comm_groups.json"),
        (trace([coll(1, ALL_REDUCE, 8, pg_name="a")], [comp(1, 1.0)], a=(1,)), "but its group is"),
        (trace([coll(1, ALL_REDUCE, 8, involved_dim=(True, False))]), "involved_dim lists 2 dimensions"),
        (trace([message(1, "send", 0, 1, 8)], [comp(1, 1.0)]), "a receive is missing"),
        (trace([comp(1, 1.0)], [message(1, "recv", 0, 1, 8)]), "a send is missing"),
        (trace([message(1, "send", 0, 0, 8)]), "goes from rank 0 to rank 0"),
        (trace([message(1, "send", 0, 9, 8)]), "goes from rank 0 to rank 9"),
        (trace(*[[comp(1, 1.0)]] * 5), "the trace has 5 ranks, the cluster only 4 GPUs"),
    ],
)
def test_what_cannot_be_played_is_one_clear_message(tmp_path: Path, job: ChakraTrace, words: str) -> None:
    with pytest.raises(InputError, match=words):
        seconds(tmp_path, job)


def test_ranks_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    job = trace(
        [coll(1, ALL_REDUCE, 8, pg_name="a"), coll(2, ALL_REDUCE, 8, 1, pg_name="b")],
        [coll(1, ALL_REDUCE, 8, pg_name="b"), coll(2, ALL_REDUCE, 8, 1, pg_name="a")],
        a=(0, 1),
        b=(0, 1),
    )
    with pytest.raises(InputError, match=r"deadlock: 4 lanes \(op queues\) wait for each other"):
        seconds(tmp_path, job)


def raw_trace() -> bytes:
    known = load_message_classes()
    parts = [known["GlobalMetadata"](version="1.0.0"), *(known["Node"](id=n, name="x", type=4) for n in range(3))]
    return b"".join(map(serialize_with_length, parts))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\x00", "has a header but no nodes"),
        (b"hello, this is text and no trace", "cut off|no message"),
        (b"\xff" * 40, "the length of a message is cut off"),
        (b"\xff\xff\xff\xff\x0f", "a message has 4,294,967,295 bytes: not an execution trace"),
        (b"\x00\x05\x08", "byte 1: a message of 5 bytes is cut off after 1"),
        (b"\x00\x02\x08\x01", "is unknown; use 1 to"),
        (b"\x00\x04\x08\x01\x18\x63", "is unknown; use 1 to"),
        (b"\x00\x02\xff\xff", "message 1 is not a message of an execution trace"),
        (b"\x1f\x8b" + b"\x00" * 20, "incomplete or damaged"),
        (gzip.compress(b"\x00" * 100, mtime=0)[:-4], "incomplete or damaged"),
    ],
)
def test_a_bad_file_is_one_clear_message(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "job.0.et").write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_chakra_trace(tmp_path)
    assert "job.0.et" in str(caught.value)


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.interop.chakra.trace.MAX_BYTES", 1_000_000)
    (tmp_path / "job.0.et").write_bytes(gzip.compress(b"\x00" * 10_000_000, mtime=0))
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        read_chakra_trace(tmp_path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_file_is_a_trace_or_one_complaint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(raw_trace()[: data.draw(st.integers(1, len(raw_trace())))])
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("et")
    (folder / "job.0.et").write_bytes(raw)
    try:
        read_chakra_trace(folder)
    except InputError:
        return


def test_a_trace_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.0.et").write_bytes(raw_trace())
    monkeypatch.setattr("simcluster.interop.chakra.trace.MAX_NODES", 2)
    with pytest.raises(InputError, match="the traces have more than 2 nodes"):
        read_chakra_trace(tmp_path)
    monkeypatch.undo()
    write_chakra_trace(trace([comp(1, 1.0, flags=(True,) * 50)]), tmp_path)
    monkeypatch.setattr("simcluster.interop.chakra.trace.MAX_ITEMS", 40)
    with pytest.raises(InputError, match="or more than 40 dependencies and attribute-list items"):
        read_chakra_trace(tmp_path)


def test_which_files_belong_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no execution traces"):
        read_chakra_trace(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_chakra_trace(tmp_path / "absent" / "job")
    for name in ("a.0.et", "a.2.et", "b.0.et"):
        (tmp_path / name).write_bytes(raw_trace())
    with pytest.raises(InputError, match=r"traces of several jobs \(a, b\)"):
        read_chakra_trace(tmp_path)
    with pytest.raises(InputError, match="there are 2 traces, but none of rank 1"):
        read_chakra_trace(tmp_path / "a")
    assert len(read_chakra_trace(tmp_path / "b").ranks) == 1
    (tmp_path / "b.00.et").write_bytes(raw_trace())
    with pytest.raises(InputError, match="rank 0 has two files"):
        read_chakra_trace(tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("[1]", "is a list of 1 item"),
        ('{"a": 1}', "group 'a' is 1"),
        ('{"a": [0, 0]}', "group 'a' is"),
        ('{"a": [0, 1]}', "a list of ranks from 0 to 0"),
        ('{"a": [0], "a": [0]}', "'a' appears twice"),
        ('{"a": ' + "[" * 50_000, "is not JSON"),
    ],
)
def test_bad_groups_are_one_clear_message(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "job.0.et").write_bytes(raw_trace())
    (tmp_path / "comm_groups.json").write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        read_chakra_trace(tmp_path)
    assert "comm_groups.json" in str(caught.value)


def test_the_command_writes_and_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, table = tmp_path / "et", tmp_path / "nodes.csv"
    assert main(["chakra", "write", "tiny_dp", "-o", str(folder)]) == 0
    assert "wrote 4 traces" in capsys.readouterr().out
    cluster = ["--cluster", "dgx_h100", "nodes=1"]
    assert main(["chakra", "simulate", str(folder), *cluster, "--nodes", str(table), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trace"], found["ranks"]) == ("tiny_dp", 4)
    assert table.read_text().startswith("rank,node,name,kind,start,end")
    assert main(["chakra", "simulate", str(folder), *cluster]) == 0
    assert "tiny_dp: 4 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chakra", "paly", "x"], "choose one of: simulate, write"),
        (["chakra", "simulate", "x"], "name the cluster"),
        (["chakra", "simulate", "x", "--cluster", "dgx_h100"], "there are no execution traces"),
        (["chakra", "simulate", "x", "--cluster", "dgx_h100", "-o", "y"], "--output applies only to chakra write"),
        (["chakra", "write", "tiny_dp"], "name the folder"),
        (["chakra", "write", "tiny_dp", "-o", "y", "--cluster", "dgx_h100"], "--cluster applies only to chakra simul"),
        (["chakra", "write", "tiny_dp", "-o", "y", "cluster.gpus=32768", "parallel.dp=32768",
          "training.global_batch=131072"], "has 2,621,440 ops on 32,768 ranks; the limit is 2,000,000"),
    ],
)  # fmt: skip
def test_bad_commands_end_with_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
