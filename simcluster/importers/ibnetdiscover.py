"""Import of an InfiniBand fabric from the output of ``ibnetdiscover``.

The listing has no GPUs: each host gets ``gpus_per_nic`` for each of its NICs, joined by NVLink through NVSwitch if the
GPU's generation (or ``nvlinks_per_gpu``) says so. Hosts are distinguished by the first word of an adapter's description
("node001 mlx5_0"); ``hosts`` and ``nics`` exclude storage and management. SHARP's aggregation nodes and routers are
ignored. Parallel cables between two switches are one link with their sum.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

import networkx as nx

from simcluster.base.errors import InputError
from simcluster.base.texts import natural_sort_key
from simcluster.importers import cluster_document
from simcluster.importers.cluster_document import GraphDocument, ImportedLink, ImportSpec, matches_any_pattern
from simcluster.importers.gpu_generations import DefaultLinks

PARAMETERS = ("hosts", "nics", "gpus_per_nic", "nvlinks_per_gpu", "nvlink", "pcie", "nic")

# payload bit/s per lane after line coding: InfiniBand Architecture Specification, volume 2
_LANE = {"SDR": 2e9, "DDR": 4e9, "QDR": 8e9, "FDR10": 10e9, "FDR": 13.64e9, "EDR": 25e9, "HDR": 50e9, "NDR": 100e9,
         "XDR": 200e9}  # fmt: skip
_RECORD = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?.*')
_PORT = re.compile(r'\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([^"]+)"\[(\d+)\](?:\[ext \d+\])?(.*)')
_RATE = re.compile(r"\b(\d+)x([A-Z]+\d*)\b")
_GUID = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=\S+")
_TIERS = ("leaf", "spine", "core")
_PCIE_LATENCY, _PORT_LATENCY = 1e-6, 6e-6  # GPU to NIC without a switch between them, as in dgx_h100.yaml


@dataclass(frozen=True, slots=True)
class _Cable:
    """Cable at one port of a device: the device and port at the cable's far end, and the rate (B/s)."""

    port: int
    far_device: str
    far_port: int
    rate: float
    location: str


@dataclass(frozen=True, slots=True)
class _FabricDevice:
    """Switch or channel adapter in the output of ibnetdiscover, with its cables by port number."""

    kind: str
    ports: int
    name: str
    description: str
    location: str
    cables: dict[int, _Cable] = field(default_factory=dict)

    @property
    def carries_traffic(self) -> bool:
        """Whether the device carries the job's traffic; routers and SHARP engines inside switches do not."""
        return self.kind == "Switch" or (self.kind == "Ca" and "Aggregation Node" not in self.description)

    @property
    def host_name(self) -> str:
        """Host name of a channel adapter."""
        return self.description.split()[0] if self.description.split() else self.name

    @property
    def nic_name(self) -> str:
        """Name of a channel adapter within its host."""
        return " ".join(self.description.split()[1:]) or self.name


def is_ibnetdiscover_listing(text: str) -> bool:
    """Return whether a text looks like the output of ``ibnetdiscover``."""
    return re.search(r'^(?:(?:switchguid|caguid)=0x|(?:Switch|Ca)\s+\d+\s+")', text, re.MULTILINE) is not None


def parse_ibnetdiscover_listing(text: str, source: str) -> dict[str, _FabricDevice]:
    """Parse the output of ibnetdiscover into devices by id; raise InputError with the line of an invalid device."""
    records: dict[str, _FabricDevice] = {}
    current: _FabricDevice | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line, place = raw.strip(), f"{source}:{number}"
        if not line or line.startswith("#") or _GUID.fullmatch(line.split()[0]):
            continue
        record, port = _RECORD.fullmatch(line), _PORT.fullmatch(line)
        if record:
            current = _FabricDevice(record[1], int(record[2][:9]), record[3], record[4] or "", place)
            twin = records.setdefault(current.name, current)
            if twin is not current:
                raise InputError(f"{place}: {current.name} is already at {twin.location}; GUIDs are unique: delete one")
        elif port and current:
            _parse_cable(current, port, place)
        elif port:
            raise InputError(f"{place}: a port line comes before any Switch or Ca record; copy the whole listing")
        else:
            raise InputError(
                f"{place}: {line[:60]!r} is not a line of ibnetdiscover output; delete it, or create the listing again"
            )
    _check_cable_ends(records)
    return records


def _parse_cable(record: _FabricDevice, port: re.Match[str], place: str) -> None:
    number = int(port[1][:9])
    if not 1 <= number <= record.ports:
        has = f"which has {record.ports} ports ({record.location})"
        raise InputError(f"{place}: no port {number} in {record.name}, {has}")
    if twin := record.cables.get(number):
        raise InputError(f"{place}: port {number} of {record.name} is already at {twin.location}; delete one of them")
    rates = _RATE.findall(re.sub(r'"[^"]*"', "", port[4]))
    if not rates:
        raise InputError(f"{place}: the line ends without width and speed, such as 4xNDR; copy the whole line")
    width, speed = rates[-1]
    if speed not in _LANE or width not in ("1", "2", "4", "8", "12"):
        raise InputError(f"{place}: {width}x{speed} is not a known width and speed; speeds are {', '.join(_LANE)}")
    record.cables[number] = _Cable(number, port[2], int(port[3][:9]), int(width) * _LANE[speed] / 8, place)


def _check_cable_ends(records: dict[str, _FabricDevice]) -> None:
    for record in records.values():
        for cable in record.cables.values():
            far = records.get(cable.far_device)
            if far is None and cable.far_device.startswith("R-"):
                continue
            what = f"leads to port {cable.far_port} of {cable.far_device}"
            back = far.cables.get(cable.far_port) if far else None
            if far is None:
                what = f"leads to {cable.far_device}, which has no record; copy the whole listing"
            elif back is None:
                what += f" ({far.location}), which lists no cable there; create the listing again"
            elif (back.far_device, back.far_port) != (record.name, cable.port):
                ends = f"port {back.far_port} of {back.far_device}"
                what += f", but that leads to {ends} ({back.location}); copy the listing again"
            elif back.rate != cable.rate:
                what = f"the two ends of the cable differ in speed (see {back.location}); create the listing again"
            else:
                continue
            raise InputError(f"{cable.location}: {what}")


# --- the cluster ------------------------------------------------------------------------------------------------------


def build_fabric_document(text: str, source: str, spec: ImportSpec, name: str) -> GraphDocument:
    """Return the topology document of the InfiniBand fabric in an ibnetdiscover listing."""
    spec.check_parameters("ibnetdiscover", PARAMETERS)
    if spec.device is None:
        raise InputError(f"{source}: ibnetdiscover lists no GPUs; name them in the import, as in device: h100")
    records, document = parse_ibnetdiscover_listing(text, source), GraphDocument(name, spec.device)
    adapters = [each for each in records.values() if each.kind == "Ca" and each.carries_traffic and each.cables]
    kept = [
        record
        for record in adapters
        if matches_any_pattern(record.host_name, spec.hosts) and matches_any_pattern(record.nic_name, spec.nics)
    ]
    if not kept:
        seen = ", ".join(dict.fromkeys(f"{record.host_name} {record.nic_name}" for record in adapters[:6])) or "none"
        raise InputError(f"{source}: no adapter matches 'hosts' and 'nics'; change the patterns: the file has {seen}")
    switches = _short_switch_names(records)
    machines: dict[str, list[tuple[str, _Cable]]] = {}
    for record in kept:
        for cable in record.cables.values():
            if cable.far_device in switches:
                label = record.nic_name if len(record.cables) == 1 else f"{record.nic_name} port {cable.port}"
                machines.setdefault(record.host_name, []).append((label.replace(" ", "."), cable))
    if not machines:
        raise InputError(f"{source}: no selected adapter has a cable to a switch; change 'hosts' or 'nics'")
    wires = DefaultLinks(spec, spec.device)
    for number, host in enumerate(sorted(machines, key=natural_sort_key)):
        for nic, cable in _add_host(document, wires, source, (number, host), machines[host]):
            wire = wires.nic_cable(cable.rate, "infiniband", "ibnetdiscover", latency=_PORT_LATENCY)
            document.add_link(nic, switches[cable.far_device], wire)
    _add_switches(document, records, switches, wires)
    return document


def _add_host(
    document: GraphDocument, wires: DefaultLinks, source: str, machine: tuple[int, str], ports: list[tuple[str, _Cable]]
) -> list[tuple[str, _Cable]]:
    """Add a host with NICs and GPUs, and NVSwitches between the GPUs; return the NICs' names and cables."""
    number, host = machine
    seen: Counter[str] = Counter()
    nics = []
    for label, cable in sorted(ports, key=lambda port: natural_sort_key(port[0])):
        seen[label] += 1
        nics.append((f"{host}.{label}:{seen[label]}" if seen[label] > 1 else f"{host}.{label}", cable))
    gpus = [f"{host}.gpu{i}" for i in range(wires.spec.gpus_per_nic * len(nics))]
    for gpu in gpus:
        document.add_node(gpu, "gpu", host=number)
    nvlinks = _nvlinks_to_nvswitch(wires, source) if len(gpus) > 1 else None
    if nvlinks:
        document.add_node(f"{host}.nvswitch", "nvswitch")
        for gpu in gpus:
            document.add_link(gpu, f"{host}.nvswitch", nvlinks)
    pcie = wires.default_pcie_link(f"{source}: the listing does not state the hosts' PCIe")
    _add_pcie_links(document, pcie, wires.spec, host, [nic for nic, _ in nics], joined=nvlinks is not None)
    return nics


def _add_pcie_links(
    document: GraphDocument, pcie: ImportedLink, spec: ImportSpec, host: str, nics: list[str], *, joined: bool
) -> None:
    """Link a host's GPUs and NICs by PCIe: directly, or through PCIe switches if several GPUs share a path."""
    several = not joined and spec.gpus_per_nic * len(nics) > 1
    shared = spec.gpus_per_nic > 1 or several
    if spec.pcie.latency is None:
        pcie = replace(pcie, latency=_PCIE_LATENCY / 2 if shared else _PCIE_LATENCY)
    if several:
        document.add_node(f"{host}.host", "host")
    for i, nic in enumerate(nics):
        document.add_node(nic, "nic")
        above = f"{host}.pcie{i}" if shared else nic
        if shared:
            document.add_node(above, "pcie")
            document.add_link(nic, above, pcie)
            if not joined:
                document.add_link(above, f"{host}.host", pcie)
        for gpu in range(i * spec.gpus_per_nic, (i + 1) * spec.gpus_per_nic):
            document.add_link(f"{host}.gpu{gpu}", above, pcie)


def _nvlinks_to_nvswitch(wires: DefaultLinks, source: str) -> ImportedLink | None:
    count, generation = wires.spec.nvlinks_per_gpu, wires.generation
    if count == 0:
        return None
    if count is None and generation is None:
        raise InputError(
            f"{source}: neither the listing nor the device's name states how GPUs are joined; "
            "add nvlinks_per_gpu (0 for none) to the import"
        )
    if generation is None and wires.spec.nvlink.line_rate is None:
        raise InputError("nvlinks_per_gpu: the NVLink rate is unknown; add nvlink: {line_rate: ..., efficiency: ...}")
    links = count if count is not None else generation.nvlinks if generation else 0
    return wires.links_to_nvswitch(wires.single_nvlink(generation.sm if generation else 80).multiply(links))


def _short_switch_names(records: dict[str, _FabricDevice]) -> dict[str, str]:
    """Return a short name for each switch id, such as leaf1 for a switch called "MF0;leaf1:MQM9700/U1"."""
    short = {}
    for record in records.values():
        if record.kind == "Switch":
            match = re.fullmatch(r"[^;]*;([^;:]+):.*", record.description)
            short[record.name] = (match[1] if match else record.description).strip() or record.name
    often = Counter(short.values())
    return {guid: name if often[name] == 1 else f"{name} {guid}" for guid, name in short.items()}


def _add_switches(
    document: GraphDocument, records: dict[str, _FabricDevice], switches: dict[str, str], wires: DefaultLinks
) -> None:
    levels = _switch_levels(records)
    for guid, name in switches.items():
        level = levels.get(guid, 0)
        document.add_node(name, "switch", tier=_TIERS[level] if level < len(_TIERS) else f"tier{level}")
    trunks: dict[tuple[str, str], float] = {}
    for guid in switches:
        for cable in records[guid].cables.values():
            if cable.far_device in switches and switches[guid] < switches[cable.far_device]:
                pair = (switches[guid], switches[cable.far_device])
                trunks[pair] = trunks.get(pair, 0.0) + cable.rate
    for (a, b), rate in trunks.items():
        nic = wires.nic_cable(rate, "infiniband", "")  # only its efficiency is used
        source = "ibnetdiscover; 0.6 us per further switch: assumed"
        document.add_link(a, b, replace(nic, line_rate=rate, latency=cluster_document.SWITCH_LATENCY, source=source))


def _switch_levels(records: dict[str, _FabricDevice]) -> dict[str, int]:
    """Return the level of each switch: its hops to the nearest switch that has adapters (level 0)."""
    switches = {name: record for name, record in records.items() if record.kind == "Switch"}
    adapters = {name for name, record in records.items() if record.kind == "Ca" and record.carries_traffic}
    cables = [(name, cable.far_device) for name, record in switches.items() for cable in record.cables.values()]
    graph = nx.Graph((name, far) for name, far in cables if far in switches)
    leaves = {name for name, far in cables if far in adapters}
    graph.add_nodes_from(leaves)
    return {name: int(hops) for name, hops in nx.multi_source_dijkstra_path_length(graph, leaves).items()}
