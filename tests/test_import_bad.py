"""Files of other tools that are cut, wrong or not what they seem: exit status 2, one message, with the line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.importers.topology_files import import_topology
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import load_text

INPUTS = Path(__file__).parent / "inputs"
DUMP = (INPUTS / "nccl_dgx_a100.xml").read_text()
DIRECT = (INPUTS / "nccl_direct_a100.xml").read_text()
CLOUD = (INPUTS / "nccl_cloud_h100.xml").read_text()
SMI = (INPUTS / "smi_dgx_h100.txt").read_text()
PCIE = (INPUTS / "smi_pcie.txt").read_text()
LISTING = (INPUTS / "ib_two_rails.ibnetdiscover").read_text()
H100 = ["device=h100"]
NODES = [{"id": "a", "kind": "gpu", "host": 0}, {"id": "b", "kind": "gpu", "host": 1}]
EDGE = {"source": "a", "target": "b", "bandwidth": 1e9, "latency": 1e-6}


def graph(nodes=NODES, edges=(EDGE,), **more):
    return json.dumps({"directed": False, "graph": {"device": "h100"}, "nodes": nodes, "edges": list(edges), **more})


def graphml(body, keys='<key id="k" for="node" attr.name="kind" attr.type="string"/>'):
    return f'<graphml>\n{keys}\n<graph edgedefault="directed">\n{body}\n</graph></graphml>'


def change(text, old, new, count=1):
    assert old in text
    return text.replace(old, new, count)


BILLION = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>\n<system version="1">&b;</system>'
SMI_ROWS = SMI.splitlines()

# name: (ending, content, words that the message has, parameters)
BAD = {
    # XML in general
    "cut": (".xml", DUMP[: len(DUMP) // 2], [":71:", "not valid XML", "is open"], []),
    "entities": (".xml", BILLION, [":1:", "document type", "refused"], []),
    "undefined entity": (".xml", '<system version="1">\n&lol;</system>', [":2:", "entity", "is not defined"], []),
    "deep": (".xml", "<a>" * 100_000, [":1:", "64 levels"], []),
    "two roots": (".xml", '<system version="1"/>\n<system/>', [":2:", "after the end of the root"], []),
    "not XML": (".xml", "hello", ["unknown format; give one of NCCL topology XML"], []),
    "empty": (".xml", "  \n", ["empty"], []),
    "binary": (".xml", b"\x7fELF\0\0\0", ["binary file"], []),
    "UTF-16": (".txt", "GPU0".encode("utf-16"), ["UTF-16", "UTF-8"], []),
    "latin 1": (".txt", b"GPU0\n\nna\xefve", [":3:", "byte 8", "UTF-8"], []),
    "another root": (".xml", "<html><body/></html>", [":1:", "<html>", "<system>", "<graphml>"], []),
    "hwloc": (".xml", '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0"/>',
              [":2:", "hwloc", "NCCL_TOPO_DUMP_FILE"], []),
    "hwloc without a type": (".xml", '<topology version="2.0"><object/></topology>', [":1:", "hwloc"], []),
    # NCCL
    "version": (".xml", change(DUMP, 'system version="1"', 'system version="7"'), [":3:", "version is '7'"], []),
    "no CPU": (".xml", '<system version="1"/>', [":1:", "has no GPU"], []),
    "no GPU": (".xml", '<system version="1">\n<cpu numaid="0"/></system>', [":1:", "has no GPU"], []),
    "stray element": (".xml", change(DUMP, '<cpu numaid="3"', '<gpu/>\n<cpu numaid="3"'), [":4:", "not expected"], []),
    "two NUMA nodes": (".xml", change(DUMP, 'numaid="1"', 'numaid="3"'), ["numaid 3 is already at", ":4"], []),
    "bus id": (".xml", change(DUMP, '"0000:07:00.0"', '"seven"'), [":7:", "busid is 'seven'", "0000:07:00.0"], []),
    "bus id twice": (".xml", change(DUMP, '"0000:0f:00.0"', '"0000:07:00.0"'), [":17:", "already at", ":7"], []),
    "no bus id": (".xml", change(DUMP, 'busid="0000:07:00.0" ', ""), [":7:", "has no busid"], []),
    "no class": (".xml", change(CLOUD, 'class="0x030200" ', ""), [":6:", "has no class", "0x030200"], H100),
    "PCIe speed": (".xml", change(DUMP, "16.0 GT/s PCIe", "17 GT/s"), [":5:", "link_speed is '17 GT/s'", "32"], []),
    "PCIe width": (".xml", change(DUMP, 'link_width="16"', 'link_width="wide"'), [":5:", "link_width", "'wide'"], []),
    "GPU number twice": (".xml", change(DUMP, 'dev="1" sm', 'dev="0" sm'), [":18:", "dev 0 is already at", ":8"], []),
    "NVLink class": (".xml", change(DUMP, "0x068000", "0x123456"), [":9:", "tclass", "0x068000"], []),
    "NVLink count": (".xml", change(DUMP, 'count="2"', 'count="0"'), [":9:", "count is 0", "1 or more"], []),
    "one-sided NVLink": (".xml", change(DIRECT, 'count="4"', 'count="2"'), [":7:", "2 NVLinks", "but 4"], []),
    "NVLink to a NIC": (".xml", change(DIRECT, 'target="0000:65:00.0"', 'target="0000:31:00.0"'),
                        ["is not a GPU", ":7:"], []),
    "NVLink to itself": (".xml", change(DIRECT, 'target="0000:65:00.0"', 'target="0000:17:00.0"'),
                         [":7:", "to itself"], []),
    "unknown GPU": (".xml", change(DUMP, "0x20b2", "0x1111").replace('sm="80"', 'sm="61"', 1),
                    [":8:", "device 0x1111, sm 61", "device: h100"], []),
    "different GPUs": (".xml", change(DUMP, "0x20b2", "0x2330"), ["differ", "a100-80gb", "set device"], []),
    "cloud without device": (".xml", CLOUD, [":6:", "device: h100"], []),
    "CPU unknown": (".xml", CLOUD.replace("GenuineIntel", "Acme"), [":4:", "'Acme'", "socket"], H100),
    "NIC speed": (".xml", change(DUMP, 'speed="200000"', 'speed="fast"'), ["<net>", "speed is 'fast'"], []),
    "NVLinks said twice": (".xml", DUMP, ["nvlinks_per_gpu", "NVLinks; remove the parameter"], ["nvlinks_per_gpu=12"]),
    "no NIC to join": (".xml", DUMP, ["node 0 has no NIC", "nics"], ["nodes=2", "nics=[nothing*]"]),
    "too many": (".xml", DUMP, ["nodes", "GPUs; at most 32,768"], ["nodes=100000"]),
    # parameters
    "unknown parameter": (".xml", DUMP, ["nods", "did you mean 'nodes'"], ["nods=2"]),
    "parameter of another form": (".xml", DUMP, ["gpus_per_nic does not apply to NCCL's"], ["gpus_per_nic=2"]),
    "parameter without unit": (".xml", DUMP, ["nic.line_rate", "no unit"], ["nic.line_rate=50"]),
    "oversubscription": (".xml", DUMP, ["fabric.oversubscription", "greater than 0"], ["fabric.oversubscription=0"]),
    # nvidia-smi
    "no matrix": (".txt", "just\nwords\n", ["has an unknown format", "nvidia-smi topo -m"], []),
    "matrix cut below": (".txt", "\n".join(SMI_ROWS[:9]), [":5:", "no row for GPU4", "copy the whole"], []),
    "matrix cut right": (".txt", "\n".join(row[:60] for row in SMI_ROWS),
                         [":17:", "'NIC3' has no column", "copy the whole"], []),
    "row cut": (".txt", change(SMI, "\tPIX\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-55,112-167\t0\t\tN/A", "\tPIX"),
                [":6:", "row GPU0 has 9 cells, but there are 16 columns", "copy the whole"], []),
    "asymmetric": (".txt", change(SMI, "GPU1\tNV18", "GPU1\tNV12"),
                   [":7:", "GPU1 - GPU0 is NV12", "line 6", "NV18"], []),
    "unknown cell": (".txt", change(SMI, "GPU0\t X \tNV18", "GPU0\t X \tABC"), [":6:", "'ABC'", "PIX, PXB"], []),
    "empty cell": (".txt", change(SMI, "GPU0\t X \tNV18", "GPU0\t X \t"), [":6:", "GPU0 - GPU1 is ''"], []),
    "X elsewhere": (".txt", change(SMI, "GPU0\t X \tNV18", "GPU0\t X \tX"), [":6:", "GPU0 - GPU1 is 'X'"], []),
    "NVLink to NIC": (".txt", change(SMI, "NV18\tPIX", "NV18\tNV2"), [":6:", "NVLink joins GPUs only"], []),
    "row twice": (".txt", change(SMI, "\nGPU1\t", "\nGPU0\t"), [":7:", "row GPU0 occurs twice (see line 6)"], []),
    "strange row": (".txt", change(SMI, "\nGPU1\t", "\nTPU1\t"), [":7:", "'TPU1' has no column"], []),
    "column twice": (".txt", change(SMI, "\tGPU1\t", "\tGPU0\t"), [":5:", "two columns are called GPU0"], []),
    "no tree": (".txt", PCIE.replace("PIX", "PHB"), [":4:", "GPU0 - GPU1 is PHB", "PXB", "no PCIe tree"], H100),
    "GPU unknown": (".txt", PCIE, [":4:", "0 NVLinks per GPU", "device: h100"], []),
    "PCIe unknown": (".txt", PCIE, ["state the PCIe generation", "pcie: {line_rate"], ["device=l40s"]),
    "NIC unknown": (".txt", PCIE, ["state the NIC rate", "nic: {line_rate"],
                    ["device=l40s", "pcie.line_rate=32 GB/s", "socket.line_rate=20 GB/s"]),
    # ibnetdiscover
    "no device": (".txt", LISTING, ["lists no GPUs", "device: h100"], []),
    "listing cut": (".txt", LISTING[: len(LISTING) // 2], [":12:", "no record", "copy the whole"], H100),
    "listing cut in a line": (".txt", LISTING[: LISTING.index("4xNDR") + 1],
                              [":12:", "4xNDR", "copy the whole"], H100),
    "listing without its top": (".txt", LISTING[LISTING.index("[2]") :], [":1:", "before any Switch"], H100),
    "GUID twice": (".txt", LISTING + LISTING[LISTING.index("vendid") :], ["is already at", ":11"], H100),
    "wrong far port": (".txt", change(LISTING, 'f01000"[2]', 'f01000"[3]'), ["leads to port", "f01000"], H100),
    "port that is not listed": (".txt", change(LISTING, '[1](b83fd20300d1c000) \t"S', '[2](b83fd20300d1c000) \t"S'),
                                ["no port 2 in", "has 1 ports"], H100),
    "port twice": (".txt", change(LISTING, '\n[2]\t"H', '\n[1]\t"H'),
                   [":13:", "port 1 of", "already at", ":12"], H100),
    "speeds differ": (".txt", change(LISTING, "4xNDR", "4xHDR"), [":12:", "differ in speed"], H100),
    "unknown speed": (".txt", LISTING.replace("4xNDR", "4xZDR"), [":12:", "4xZDR", "NDR"], H100),
    "strange line": (".txt", change(LISTING, "vendid=0x2c9", "what is this"), [":7:", "what is this"], H100),
    "nobody kept": (".txt", LISTING, ["no adapter matches", "node001 mlx5_0"], ["device=h100", "hosts=[gpu*]"]),
    "NVLink unknown": (".txt", LISTING, ["nvlinks_per_gpu"], ["device=l40s", "pcie.line_rate=32 GB/s"]),
    # graphs
    "JSON cut": (".json", graph()[:-5], [":1:", "not valid JSON"], []),
    "JSON too deep": (".json", '{"nodes":' + "[" * 100_000, ["nested too deeply"], []),
    "other JSON": (".json", '{"a": 1}', ["node-link", "nodes and edges"], []),
    "NaN": (".json", change(graph(), "1000000000.0", "NaN"), ["NaN"], []),
    "no device in graph": (".json", graph(graph={}), ["device: h100"], []),
    "node without id": (".json", graph([{"kind": "gpu"}]), ["nodes[0]", "an id"], []),
    "node twice": (".json", graph([*NODES, {"id": "a", "kind": "gpu"}]), ["nodes[2]", "'a' occurs twice"], []),
    "node without kind": (".json", graph([*NODES, {"id": "c"}]), ["node 'c'", "no attribute 'kind'"], []),
    "unknown kind": (".json", graph([*NODES, {"id": "c", "kind": "swich"}]), ["node 'c'", "did you mean 'switch'"], []),
    "negative host": (".json", graph([{**NODES[0], "host": -1}, NODES[1]]), ["node 'a'", "host is -1"], []),
    "edge to nowhere": (".json", graph(edges=[{**EDGE, "target": "c"}]), ["edges[0], 'a' to 'c'", "no node 'c'"], []),
    "edge to itself": (".json", graph(edges=[{**EDGE, "target": "a"}]), ["edge 'a' to 'a'", "the same node"], []),
    "no bandwidth": (".json", graph(edges=[{"source": "a", "target": "b"}]),
                     ["edge 'a' to 'b'", "no attribute 'bandwidth'"], []),
    "no latency": (".json", graph(edges=[{k: v for k, v in EDGE.items() if k != "latency"}]),
                   ["no attribute 'latency'"], []),
    "zero bandwidth": (".json", graph(edges=[{**EDGE, "bandwidth": 0}]), ["'a' to 'b'", "greater than zero"], []),
    "negative latency": (".json", graph(edges=[{**EDGE, "latency": -1}]), ["latency is -1", "0 or more"], []),
    "infinite": (".json", change(graph(), "1000000000.0", "1e999"), ["bandwidth is inf"], []),
    "wrong unit": (".json", graph(edges=[{**EDGE, "bandwidth": "5 GB"}]), ["bandwidth", "'5 GB'", "GB/s"], []),
    "efficiency": (".json", graph(edges=[{**EDGE, "efficiency": 2}]), ["efficiency is 2"], []),
    "cut in two": (".json", graph(edges=[]), ["a cannot reach", "b"], []),
    "no GPU in graph": (".json", graph([{"id": "a", "kind": "switch"}], []), ["no GPU"], []),
    "GraphML undeclared": (".graphml", graphml('<node id="a"><data key="z">gpu</data></node>'),
                           [":1:", "no key z", "write_graphml"], []),
    "GraphML type": (".graphml", graphml('<node id="a"><data key="k">x</data></node>',
        '<key id="k" for="node" attr.name="host" attr.type="int"/>'), [":1:", "'x'", "write_graphml"], []),
    "GraphML node twice": (".graphml", graphml('<node id="a"/>\n<node id="a"/>'), [":5:", "occurs twice"], []),
    "GraphML edge": (".graphml", graphml('<node id="a"><data key="k">gpu</data></node>\n<edge source="a" target="b"/>'),
                     [":1:", "no node 'b'"], H100),
    "GraphML kind": (".graphml", graphml('<node id="a"/>'), ["node 'a'", "no attribute 'kind'"], H100),
}  # fmt: skip


def written(name, folder):
    ending, content, words, parameters = BAD[name]
    path = folder / f"x{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path, words, parameters


@pytest.mark.parametrize("name", BAD)
def test_topology_exits_2_with_one_message(name, tmp_path, capsys):
    path, words, parameters = written(name, tmp_path)
    assert cli.main(["topology", str(path), *[text for entry in parameters for text in ("--set", entry)]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("simcluster: error: ")
    assert len(captured.err.splitlines()) == 1
    assert len(captured.err) < 600
    assert "Traceback" not in captured.err
    message = captured.err.replace(str(tmp_path), "")
    assert "x." in message or any(entry.partition("=")[0].partition(".")[0] in message for entry in parameters)
    assert [word for word in words if word not in message] == [], message


def test_too_large(tmp_path):
    (tmp_path / "x.xml").write_text("<!-- " + "x" * 16_000_000 + " -->")
    with pytest.raises(InputError, match="larger than 16,000,000 bytes"):
        import_topology(tmp_path / "x.xml")


def test_missing_and_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        import_topology(tmp_path / "x.xml")
    with pytest.raises(InputError, match="cannot be read"):
        import_topology(tmp_path)


JOB = """
model: {layers: 8, hidden_size: 1024, heads: 16, ffn_hidden_size: 4096, vocab_size: 32000, sequence_length: 1024}
training: {global_batch: 16}
"""


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("{topology: x.xml}", ["<text>:1:", "cluster.topology", "x.xml:3:", "version"]),
        ("{topology: [x.xml, 7]}", ["files.1", "a text", "7"]),
        ("{topology: [y.xml, z.xml], nodes: 2}", ["nodes: 2", "2 files"]),
        ("{topology: {kind: import}}", ["files", "required"]),
        ("{topology: {kind: import, files: []}}", ["files", "at least 1"]),
        ("{topology: y.xml, nodes: two}", ["<text>:1:28", "nodes", "an integer", "'two'"]),
        ("{topology: y.xml, nodes: 1, gpus_per_node: 8}", ["gpus_per_node", "unknown key"]),
        ("{topology: none.xml}", ["none.xml", "no such file"]),
    ],
)
def test_scenario_says_which_key_and_which_line(cluster, words, tmp_path):
    (tmp_path / "x.xml").write_text(change(DUMP, 'system version="1"', 'system version="7"'))
    (tmp_path / "y.xml").write_text(DUMP)
    with pytest.raises(InputError) as caught:
        load_text(f"cluster: {cluster}{JOB}", folder=tmp_path)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def test_machines_with_different_gpus(tmp_path):
    (tmp_path / "h.xml").write_text(DUMP.replace("0x20b2", "0x2330").replace('sm="80"', 'sm="90"'))
    (tmp_path / "a.xml").write_text(DUMP)
    with pytest.raises(InputError, match=r"GPUs differ \(h100, a100-80gb\).*set device"):
        import_topology([tmp_path / "h.xml", tmp_path / "a.xml"])
    with pytest.raises(InputError, match="a whole network, not one node"):
        import_topology([tmp_path / "a.xml", INPUTS / "ib_two_rails.ibnetdiscover"], {"device": "h100"})


SAMPLES = sorted(path for path in INPUTS.iterdir() if path.is_file())
ANY = [("device", "h100"), ("pcie.line_rate", "32 GB/s"), ("socket.line_rate", "9 GB/s"), ("nic.line_rate", "9 GB/s")]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", range(12))
def test_damage_is_an_input_error_or_none(sample, seed, tmp_path):
    """Cut somewhere, bytes replaced, a line lost or doubled: built, or refused as bad input, never anything else."""
    random = Random(f"{sample.name} {seed}")
    raw = bytearray(sample.read_bytes())
    if seed % 3 == 0:
        raw = raw[: random.randrange(len(raw))]
    elif seed % 3 == 1:
        for _ in range(3):
            raw[random.randrange(len(raw))] = random.randrange(1, 256)
    else:
        lines = raw.splitlines(keepends=True)
        at = random.randrange(len(lines))
        raw = b"".join(lines[:at] + lines[at : at + 1] * random.choice([0, 2]) + lines[at + 1 :])
    (tmp_path / f"x{sample.suffix}").write_bytes(raw)
    usable = [pair for pair in ANY if pair[0] != "socket.line_rate" or sample.suffix != ".ibnetdiscover"]
    with suppress(InputError):
        assert load_cluster(tmp_path / f"x{sample.suffix}", usable).gpus
