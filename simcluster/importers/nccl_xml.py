"""Import of one node from NCCL's topology XML (``NCCL_TOPO_DUMP_FILE`` or ``NCCL_TOPO_FILE``).

The elements are ``cpu`` (a NUMA node), ``pci`` (a switch, or by its class a GPU or a NIC), ``gpu`` with its ``nvlink``
and ``c2c``, ``nic`` with its ``net``. Link rates follow NCCL v2.30.7, src/graph/topo.cc and topo.h. Files of clouds
have pci elements only; NVLink is then that of the GPU's generation. A dump of a multi-node NVLink domain holds all its
nodes (distinguished by ``host_hash``).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.importers.cluster_document import ImportedNodes, ImportSpec, NicCable, Node, Wire, matches_patterns
from simcluster.importers.generations import NIC_LATENCY, PCIE_LATENCY, TABLES, UsualWires
from simcluster.importers.xml_tree import Element

PARAMETERS = ("nodes", "fabric", "nics", "nvlinks_per_gpu", "nvlink", "pcie", "socket", "nic")
_PARENT_TAGS = {"gpu": "pci", "cpu": "system", "net": "nic", "system": "nothing: it is the root"}
_LANE = {"2.5": 0.25e9, "5": 0.5e9, "8": 1e9, "16": 2e9, "32": 4e9, "64": 8e9}  # GT/s: payload B/s per lane
_SPEED = re.compile(r"(\d+(?:\.\d+)?) *GT/s(?: PCIe)?")
_UNKNOWN_SPEED = ("", "unknown", "unknown speed")  # NCCL takes these as Gen3
_BUS_ID = re.compile(r"[0-9a-f]{1,8}:[0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-9a-f]{1,2}")
_NO_GPU = "has no GPU: no gpu element and no pci element of class 0x03...."


@dataclass(frozen=True, slots=True)
class _Device:
    """A device on the PCIe tree (GPU, NIC or switch) with its upstream link."""

    kind: str
    element: Element
    wire: Wire
    below: tuple[_Device, ...] = ()

    @property
    def gpu(self) -> Element:
        return next(self.element.children_named("gpu"), self.element)

    @property
    def bus(self) -> str:
        return self.element.get("busid").lower()

    def gpus(self) -> list[_Device]:
        return [self] if self.kind == "gpu" else [gpu for slot in self.below for gpu in slot.gpus()]


def read_nccl_topology(root: Element, spec: ImportSpec) -> ImportedNodes:
    """Return the nodes and links in NCCL's topology XML; raise InputError naming an invalid line."""
    spec.check_parameters("NCCL's topology XML", PARAMETERS)
    device = spec.device or _find_gpu_model(root)
    if root.get("version") != "1":
        raise root.error(f"version is {root.get('version')[:40]!r}; NCCL writes and reads version 1")
    return _NcclReader(UsualWires(spec, device), ImportedNodes(device)).read_nodes(root)


class _NcclReader:
    """Converter of an NCCL topology dump to nodes and links."""

    def __init__(self, wires: UsualWires, system: ImportedNodes) -> None:
        self._wires, self._spec, self._system = wires, wires.spec, system
        self._bus: dict[tuple[int, str], Element] = {}  # (machine, bus id)
        self._gpus: dict[tuple[int, str], tuple[Node, Element, Node]] = {}  # by bus id: node, its element, its CPU
        self._count: Counter[tuple[int, str]] = Counter()

    def read_nodes(self, root: Element) -> ImportedNodes:
        """Read the devices and links of all CPUs in the dump."""
        if not root.children:
            raise root.error("is empty; a dump has cpu elements in it")
        hosts: dict[str, int] = {}
        cpus: dict[Node, tuple[Element, list[_Device]]] = {}
        for cpu in root.children:
            if cpu.tag != "cpu":
                raise cpu.error("is not expected here; <system> holds cpu elements (NUMA nodes)")
            machine, numa = hosts.setdefault(cpu.get("host_hash"), len(hosts)), cpu.whole_number("numaid")
            key = (machine, f"numa{numa}")
            if key in cpus:
                raise cpu.error(f"numaid {numa} is already at {cpus[key][0].place}; each NUMA node must occur once")
            cpus[key] = (cpu, self._read_devices(cpu, machine))
        self._name_gpus(cpus)
        used = {host: (cpu, slots) for host, (cpu, slots) in cpus.items() if slots}
        for host, (_, slots) in used.items():
            self._system.nodes[host] = "host"
            for slot in slots:
                self._add_device(slot, host)
        if not self._gpus:
            raise root.error(_NO_GPU)
        for (a, (cpu, _)), (b, _) in itertools.combinations(used.items(), 2):
            if a[0] == b[0]:  # all pairs of NUMA nodes of a host, as NCCL does
                self._system.add_link(a, b, self._wires.socket(*_numa_rate(cpu, self._spec)))
        self._add_nvlinks()
        return self._system

    def _read_devices(self, parent: Element, machine: int) -> list[_Device]:
        """Return the GPUs, NICs and PCIe switches below an XML element, ignoring other devices."""
        found = []
        for element in parent.children:
            if element.tag == "pci":
                found += self._read_pci(element, machine)
            elif element.tag == "nic":  # a virtual NIC at the CPU: nothing narrower in between
                speed = sum(_port_rate(net) for net in self._selected_ports([element]))
                if speed:
                    found.append(_Device("nic", element, Wire(speed, 1.0, 0.0, "pcie", "no PCIe device in the dump")))
            elif element.tag in _PARENT_TAGS:
                raise element.error(f"is not expected in <{parent.tag}>; it belongs in <{_PARENT_TAGS[element.tag]}>")
        return found

    def _read_pci(self, element: Element, machine: int) -> list[_Device]:
        bus = element.require("busid").lower()
        if not _BUS_ID.fullmatch(bus):
            raise element.error(f"busid is {bus[:40]!r}; it looks like 0000:07:00.0")
        twin = self._bus.setdefault((machine, bus), element)
        if twin is not element:
            raise element.error(f"busid {bus} is already at {twin.place}; each PCI device must occur once")
        kind, gpus, nics = _pci_class(element), list(element.children_named("gpu")), list(element.children_named("nic"))
        if len(gpus) > 1:
            raise gpus[1].error(f"is the second GPU of {bus}; a PCI device has only one")
        if gpus or kind.startswith("03"):
            return [_Device("gpu", element, self._wires.pcie(*_pcie_lanes(element)))]
        if nics or kind.startswith("02"):
            silent = not any(next(nic.children_named("net"), None) for nic in nics)
            kept = silent or self._selected_ports(nics)
            return [_Device("nic", element, self._wires.pcie(*_pcie_lanes(element)))] if kept else []
        below = tuple(self._read_devices(element, machine))
        if not kind and not element.children:
            raise element.error("has no class; add class=0x030200 (GPU), 0x020700 (InfiniBand) or 0x060400 (switch)")
        return [_Device("pcie", element, self._wires.pcie(*_pcie_lanes(element)), below)] if below else []

    def _selected_ports(self, nics: list[Element]) -> list[Element]:
        nets = [net for nic in nics for net in nic.children_named("net")]
        return [net for net in nets if matches_patterns(net.get("name"), self._spec.nics)]

    def _name_gpus(self, cpus: dict[Node, tuple[Element, list[_Device]]]) -> None:
        """Name the GPUs by CUDA device number if the dump has it, else in bus id order."""
        by_machine: dict[int, list[tuple[_Device, Node]]] = {}
        for host, (_, slots) in cpus.items():
            gpus = [(gpu, host) for slot in slots for gpu in slot.gpus()]
            by_machine.setdefault(host[0], []).extend(gpus)
        for machine, gpus in sorted(by_machine.items()):
            numbers: dict[int, Element] = {}
            for slot, _ in gpus:
                for gpu in slot.element.children_named("gpu"):
                    if gpu.get("dev") and numbers.setdefault(gpu.whole_number("dev"), gpu) is not gpu:
                        raise gpu.error(f"dev {gpu.get('dev')} is already at {numbers[gpu.whole_number('dev')].place}")
            place = {id(gpu): number for number, gpu in numbers.items()} if len(numbers) == len(gpus) else {}
            gpus.sort(
                key=lambda pair: (
                    place.get(id(pair[0].gpu), 0),
                    [int(part, 16) for part in re.split("[:.]", pair[0].bus)],
                )
            )
            for index, (slot, host) in enumerate(gpus):
                node = (machine, f"gpu{index}")
                self._system.nodes[node] = "gpu"
                self._gpus[machine, slot.bus] = (node, slot.gpu, host)

    def _add_device(self, slot: _Device, parent: Node) -> None:
        machine = parent[0]
        if slot.kind == "gpu":
            self._system.add_link(self._gpus[machine, slot.bus][0], parent, slot.wire)
        elif slot.kind == "nic":
            self._add_nic(slot, parent)
        else:
            node = self._add_node(machine, "pcie", "pcie")
            self._system.add_link(node, parent, slot.wire)
            for inner in slot.below:
                self._add_device(inner, node)

    def _add_nic(self, slot: _Device, parent: Node) -> None:
        """Add a network card as one NIC per port, below a PCIe switch if it has several ports."""
        medium = "infiniband" if _pci_class(slot.element).startswith("0207") else "ethernet"
        machine, inner = parent[0], slot.wire
        nets = self._selected_ports(
            [slot.element] if slot.element.tag == "nic" else list(slot.element.children_named("nic"))
        )
        ports = [(net.get("name"), self._port_wire(net, medium)) for net in nets]
        if not ports:
            rate = self._wires.rate_or_default("nic", f"{slot.element.place}: the file does not state the NIC rate")
            ports = [("", self._wires.nic_cable(rate, medium, "usual for the GPU, not in the file"))]
        if len(ports) > 1:
            card = self._add_node(machine, "card", "pcie")
            self._system.add_link(card, parent, slot.wire)
            parent, inner = card, Wire(slot.wire.line_rate, slot.wire.efficiency, 0.0, "pcie", "inside the card")
        for name, wire in ports:
            node = self._add_node(machine, "nic", "nic", name)
            self._system.add_link(node, parent, inner)
            self._system.ports.append(NicCable(node, wire))

    def _port_wire(self, net: Element, medium: str) -> Wire:
        rate, text = _port_rate(net), net.get("latency") or "0"
        try:
            seconds = float(text) / 1e6
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1:
            raise net.error(f"latency is {text[:40]!r}; a number of microseconds is expected")
        latency = NIC_LATENCY + seconds / 2  # NCCL adds it once per ring step, which passes two NICs
        return self._wires.nic_cable(rate, medium, f"{rate / 1.25e8:g} Gbit/s in NCCL's dump", latency=latency)

    def _add_node(self, machine: int, word: str, kind: str, name: str = "") -> Node:
        """Add a graph node with a unique name, by default a word and a number."""
        if not name:
            name = f"{word}{self._count[machine, word]}"
            self._count[machine, word] += 1
        names = (name if i == 1 else f"{name}:{i}" for i in itertools.count(1))
        node = next((machine, text) for text in names if (machine, text) not in self._system.nodes)
        self._system.nodes[node] = kind
        return node

    def _add_nvlinks(self) -> None:
        links: dict[tuple[Node, Node], tuple[int, Element]] = {}
        for (machine, bus), (node, gpu, cpu) in self._gpus.items():
            for nvlink in gpu.children_named("nvlink"):
                far = self._find_far_end(nvlink, machine, bus, cpu)
                if far is not None:
                    have = links[node, far][0] if (node, far) in links else 0
                    links[node, far] = (have + _positive_attribute(nvlink, "count"), nvlink)
            for c2c in gpu.children_named("c2c"):
                rate = _positive_attribute(c2c, "bw") * _positive_attribute(c2c, "count") * 1e6
                self._system.add_link(node, cpu, Wire(rate, 1.0, PCIE_LATENCY, "c2c", "C2C rate of NCCL's dump"))
        if links and self._spec.nvlinks_per_gpu is not None:
            raise InputError("nvlinks_per_gpu: the dump lists the NVLinks; remove the parameter")
        sm_of = {
            node: gpu.whole_number("sm")
            for node, gpu, _ in self._gpus.values()
            if next(gpu.children_named("nvlink"), None)
        }
        for (a, b), (count, nvlink) in links.items():
            wire = self._wires.nvlink(sm_of[a]).multiply(count)
            if b[1] == "nvswitch":
                self._system.nodes.setdefault(b, "nvswitch")
                self._system.add_link(a, b, self._wires.nvlink_to_nvswitch(wire))
                continue
            back = links.get((b, a), (0, nvlink))[0]
            if self._system.nodes[b] == "gpu" and back != count:
                raise nvlink.error(f"{count} NVLinks from {a[1]} to {b[1]} but {back} from {b[1]} to {a[1]}")
            self._system.add_link(a, b, wire)
        stated = any(gpu.tag == "gpu" for _, gpu, _ in self._gpus.values())
        if not stated or (not links and self._spec.nvlinks_per_gpu):
            self._add_usual_nvlinks()

    def _find_far_end(self, nvlink: Element, machine: int, bus: str, cpu: Node) -> Node | None:
        """Return the graph node at the far end of an NVLink, or None for a GPU outside the dump."""
        kind, target = nvlink.require("tclass").lower().removeprefix("0x"), nvlink.get("target").lower()
        if kind.startswith("068001"):
            return cpu
        if kind.startswith("0680"):  # the nodes of a dump share their NVSwitches
            return (machine if self._system.node_count == 1 else -1, "nvswitch")
        if not kind.startswith("03"):
            raise nvlink.error(f"tclass is {kind[:40]!r}; it is 0x068000 (NVSwitch), 0x030200 (GPU) or 0x068001 (CPU)")
        if target == bus:
            raise nvlink.error(f"leads from {bus} to itself; remove it")
        if (machine, target) not in self._bus:
            return None
        if (machine, target) not in self._gpus:
            raise nvlink.error(f"target {target} is not a GPU; see {self._bus[machine, target].place}")
        return self._gpus[machine, target][0]

    def _add_usual_nvlinks(self) -> None:
        """Add the default NVLinks of the GPU's generation, all to NVSwitches."""
        count, generation = self._spec.nvlinks_per_gpu, self._wires.generation
        if count == 0 or len(self._gpus) == 1:
            return
        if generation is None:
            raise InputError(
                "the file does not list NVLinks, and the device is of no known generation; give "
                "nvlinks_per_gpu (0 for none) and a device such as h100"
            )
        single = self._wires.nvlink(generation.sm)
        wire = self._wires.nvlink_to_nvswitch(single.multiply(generation.nvlinks if count is None else count))
        for (machine, _), (node, _, _) in self._gpus.items():
            self._system.nodes.setdefault((machine, "nvswitch"), "nvswitch")
            self._system.add_link(node, (machine, "nvswitch"), wire)


# --- single elements, by NCCL's rules ---------------------------------------------------------------------------------


def _find_gpu_model(root: Element) -> str:
    """Return the catalogue name of a dump's GPUs by PCI id, or else by compute capability."""
    found: dict[str, Element] = {}
    for pci in root.descendants("pci"):
        gpus = list(pci.children_named("gpu"))
        if not gpus and not _pci_class(pci).startswith("03"):
            continue
        sm = gpus[0].whole_number("sm", -1) if gpus else -1
        name = TABLES["pci_ids"].get(pci.get("device").lower()) or TABLES["devices_of_sm"].get(str(sm))
        if name is None:
            raise (gpus or [pci])[0].error(
                f"a GPU of device {pci.get('device') or '(not given)'}, sm {sm if sm > 0 else '(not given)'} is not in "
                "the catalogue; name it in the import, as in device: h100"
            )
        found.setdefault(name, pci)
    if len(found) > 1:
        last = next(reversed(found.values()))
        raise last.error(f"the GPUs differ ({', '.join(found)}); a cluster has one: set device")
    if not found:
        raise root.error(_NO_GPU)
    return next(iter(found))


def _pcie_lanes(pci: Element) -> tuple[float, int, str]:
    """Return the lane rate (B/s), lane count and description of a device's upstream PCIe link.

    NCCL's rule: an unknown speed is Gen3, width 0 is 16 lanes.
    """
    text, width = pci.get("link_speed"), pci.whole_number("link_width", 0)
    match = _SPEED.fullmatch(text)
    known = _LANE.get(match[1].removesuffix(".0"), 0.0) if match else 0.0
    if not known and text.lower() not in _UNKNOWN_SPEED:
        raise pci.error(f"link_speed is {text[:40]!r}; it is one of {', '.join(_LANE)} GT/s")
    if not 0 <= width <= 32:
        raise pci.error(f"link_width is {width}; it is the number of lanes, 1 to 32")
    speed = text.removesuffix(" PCIe") if known else "of unknown speed, assumed 8 GT/s,"
    return known or 1e9, width or 16, f"PCIe {speed} x{width or 16}"


def _pci_class(pci: Element) -> str:
    return pci.get("class").lower().removeprefix("0x")


def _positive_attribute(element: Element, name: str) -> int:
    number = element.whole_number(name)
    if number < 1:
        raise element.error(f"{name} is {number}; it is 1 or more")
    return number


def _port_rate(net: Element) -> float:
    """Return the rate of a NIC port (B/s); NCCL assumes 10 Gbit/s if the driver does not know."""
    megabits = net.whole_number("speed", 0)
    return (megabits if megabits > 0 else 10_000) * 125e3


def _numa_rate(cpu: Element, spec: ImportSpec) -> tuple[float, str]:
    """Return the rate (B/s) between two NUMA nodes by NCCL's rule, and its description."""
    arch, vendor = cpu.get("arch"), cpu.get("vendor")
    model = cpu.whole_number("modelid", 0) if vendor == "GenuineIntel" and cpu.whole_number("familyid", 0) == 6 else 0
    for known in TABLES["cpus"]:
        if arch == known.get("arch", arch) and vendor == known.get("vendor", vendor) and model >= known.get("model", 0):
            return known["rate"], known["what"]
    if spec.socket.line_rate is None:
        raise cpu.error(
            f"arch {arch[:20]!r} and vendor {vendor[:20]!r} do not determine the rate between NUMA nodes; add "
            "socket: {line_rate: ...} to the import, or arch, vendor, familyid and modelid here"
        )
    return spec.socket.line_rate, "between NUMA nodes"
