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
from simcluster.importers import cluster_document
from simcluster.importers.cluster_document import DeviceKey, ImportedLink, ImportedNodes, ImportSpec, NicCable
from simcluster.importers.gpu_generations import NIC_LATENCY, PCIE_LATENCY, TABLES, DefaultLinks
from simcluster.importers.xml_tree import XmlElement

PARAMETERS = ("nodes", "fabric", "nics", "nvlinks_per_gpu", "nvlink", "pcie", "socket", "nic")
_PARENT_TAGS = {"gpu": "pci", "cpu": "system", "net": "nic", "system": "nothing: it is the root"}
_LANE = {"2.5": 0.25e9, "5": 0.5e9, "8": 1e9, "16": 2e9, "32": 4e9, "64": 8e9}  # GT/s: payload B/s per lane
_SPEED = re.compile(r"(\d+(?:\.\d+)?) *GT/s(?: PCIe)?")
_UNKNOWN_SPEED = ("", "unknown", "unknown speed")  # NCCL takes these as Gen3
_BUS_ID = re.compile(r"[0-9a-f]{1,8}:[0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-9a-f]{1,2}")
_NO_GPU = "has no GPU: no gpu element and no pci element of class 0x03...."


@dataclass(frozen=True, slots=True)
class _PcieDevice:
    """PCIe device (GPU, NIC or switch) with the link to its parent in the PCIe tree."""

    kind: str
    element: XmlElement
    wire: ImportedLink
    children: tuple[_PcieDevice, ...] = ()

    @property
    def gpu_element(self) -> XmlElement:
        return next(self.element.children_named("gpu"), self.element)

    @property
    def bus_id(self) -> str:
        return self.element.get("busid").lower()

    def gpus(self) -> list[_PcieDevice]:
        return [self] if self.kind == "gpu" else [gpu for slot in self.children for gpu in slot.gpus()]


def read_nccl_topology(root: XmlElement, spec: ImportSpec) -> ImportedNodes:
    """Return the devices and links in NCCL's topology XML; raise InputError with the line of an error."""
    spec.check_parameters("NCCL's topology XML", PARAMETERS)
    device = spec.device or _find_gpu_model(root)
    if root.get("version") != "1":
        raise root.error(f"version is {root.get('version')[:40]!r}; it must be 1, which NCCL writes")
    return _NcclReader(DefaultLinks(spec, device), ImportedNodes(device)).read_nodes(root)


class _NcclReader:
    """Converter of an NCCL topology file to compute nodes and links."""

    def __init__(self, wires: DefaultLinks, system: ImportedNodes) -> None:
        self._wires, self._spec, self._system = wires, wires.spec, system
        self._element_by_bus_id: dict[tuple[int, str], XmlElement] = {}  # (machine, bus id)
        self._gpus: dict[tuple[int, str], tuple[DeviceKey, XmlElement, DeviceKey]] = {}  # by bus id: node, element, CPU
        self._count: Counter[tuple[int, str]] = Counter()

    def read_nodes(self, root: XmlElement) -> ImportedNodes:
        """Return the devices and links of all CPUs in the dump."""
        if not root.children:
            raise root.error("is empty; a dump has cpu elements in it")
        hosts: dict[str, int] = {}
        cpus: dict[DeviceKey, tuple[XmlElement, list[_PcieDevice]]] = {}
        for cpu in root.children:
            if cpu.tag != "cpu":
                raise cpu.error("is not expected here; <system> holds cpu elements (NUMA nodes)")
            machine, numa = hosts.setdefault(cpu.get("host_hash"), len(hosts)), cpu.whole_number_attribute("numaid")
            key = (machine, f"numa{numa}")
            if key in cpus:
                raise cpu.error(f"numaid {numa} is already at {cpus[key][0].location}; each NUMA node must occur once")
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
                self._system.add_link(a, b, self._wires.numa_link(*_numa_link_rate(cpu, self._spec)))
        self._add_nvlinks()
        return self._system

    def _read_devices(self, parent: XmlElement, machine: int) -> list[_PcieDevice]:
        """Return the GPUs, NICs and PCIe switches below an XML element; skip other devices."""
        found = []
        for element in parent.children:
            if element.tag == "pci":
                found += self._read_pci_device(element, machine)
            elif element.tag == "nic":  # a virtual NIC at the CPU: nothing narrower in between
                if speed := sum(_nic_port_rate(net) for net in self._select_ports([element])):
                    wire = ImportedLink(speed, 1.0, 0.0, "pcie", "no PCIe device in the dump")
                    found.append(_PcieDevice("nic", element, wire))
            elif element.tag in _PARENT_TAGS:
                raise element.error(f"is not expected in <{parent.tag}>; it belongs in <{_PARENT_TAGS[element.tag]}>")
        return found

    def _read_pci_device(self, element: XmlElement, machine: int) -> list[_PcieDevice]:
        bus = element.require_attribute("busid").lower()
        if not _BUS_ID.fullmatch(bus):
            raise element.error(f"busid is {bus[:40]!r}; write it as in 0000:07:00.0")
        if (twin := self._element_by_bus_id.setdefault((machine, bus), element)) is not element:
            raise element.error(f"busid {bus} is already at {twin.location}; each PCI device must occur once")
        kind, gpus, nics = _pci_class(element), list(element.children_named("gpu")), list(element.children_named("nic"))
        if len(gpus) > 1:
            raise gpus[1].error(f"is the second GPU of {bus}; a PCI device has only one")
        if gpus or kind.startswith("03"):
            return [_PcieDevice("gpu", element, self._wires.pcie_link(*_pcie_rate_and_lanes(element)))]
        if nics or kind.startswith("02"):
            silent = not any(next(nic.children_named("net"), None) for nic in nics)
            kept = silent or self._select_ports(nics)
            return [_PcieDevice("nic", element, self._wires.pcie_link(*_pcie_rate_and_lanes(element)))] if kept else []
        below = tuple(self._read_devices(element, machine))
        if not kind and not element.children:
            raise element.error("has no class; add class=0x030200 (GPU), 0x020700 (InfiniBand) or 0x060400 (switch)")
        if not below:
            return []
        return [_PcieDevice("pcie", element, self._wires.pcie_link(*_pcie_rate_and_lanes(element)), below)]

    def _select_ports(self, nics: list[XmlElement]) -> list[XmlElement]:
        nets = [net for nic in nics for net in nic.children_named("net")]
        return [net for net in nets if cluster_document.matches_any_pattern(net.get("name"), self._spec.nics)]

    def _name_gpus(self, cpus: dict[DeviceKey, tuple[XmlElement, list[_PcieDevice]]]) -> None:
        """Name the GPUs by CUDA device number if the file states these numbers, else in order of PCI bus id."""
        by_machine: dict[int, list[tuple[_PcieDevice, DeviceKey]]] = {}
        for host, (_, slots) in cpus.items():
            gpus = [(gpu, host) for slot in slots for gpu in slot.gpus()]
            by_machine.setdefault(host[0], []).extend(gpus)
        for machine, gpus in sorted(by_machine.items()):
            numbers: dict[int, XmlElement] = {}
            for slot, _ in gpus:
                for gpu in slot.element.children_named("gpu"):
                    twin = numbers.setdefault(gpu.whole_number_attribute("dev"), gpu) if gpu.get("dev") else gpu
                    if twin is not gpu:
                        raise gpu.error(f"dev {gpu.get('dev')} is already at {twin.location}")
            place = {id(gpu): number for number, gpu in numbers.items()} if len(numbers) == len(gpus) else {}
            gpus.sort(key=lambda pair: [int(part, 16) for part in re.split("[:.]", pair[0].bus_id)])
            gpus.sort(key=lambda pair: place.get(id(pair[0].gpu_element), 0))  # stable: equals stay in bus id order
            for index, (slot, host) in enumerate(gpus):
                node = (machine, f"gpu{index}")
                self._system.nodes[node] = "gpu"
                self._gpus[machine, slot.bus_id] = (node, slot.gpu_element, host)

    def _add_device(self, slot: _PcieDevice, parent: DeviceKey) -> None:
        machine = parent[0]
        if slot.kind == "gpu":
            self._system.add_link(self._gpus[machine, slot.bus_id][0], parent, slot.wire)
        elif slot.kind == "nic":
            self._add_nic(slot, parent)
        else:
            node = self._new_device(machine, "pcie", "pcie")
            self._system.add_link(node, parent, slot.wire)
            for inner in slot.children:
                self._add_device(inner, node)

    def _add_nic(self, slot: _PcieDevice, parent: DeviceKey) -> None:
        """Add a network card as one NIC per port; the ports of a card with several share a PCIe switch."""
        medium = "infiniband" if _pci_class(slot.element).startswith("0207") else "ethernet"
        machine, inner = parent[0], slot.wire
        nics = [slot.element] if slot.element.tag == "nic" else list(slot.element.children_named("nic"))
        ports = [(net.get("name"), self._port_link(net, medium)) for net in self._select_ports(nics)]
        if not ports:
            rate = self._wires.rate_or_default("nic", f"{slot.element.location}: the file does not state the NIC rate")
            ports = [("", self._wires.nic_cable(rate, medium, "usual for the GPU, not in the file"))]
        if len(ports) > 1:
            card = self._new_device(machine, "card", "pcie")
            self._system.add_link(card, parent, slot.wire)
            inner = ImportedLink(slot.wire.line_rate, slot.wire.efficiency, 0.0, "pcie", "inside the card")
            parent = card
        for name, wire in ports:
            node = self._new_device(machine, "nic", "nic", name)
            self._system.add_link(node, parent, inner)
            self._system.ports.append(NicCable(node, wire))

    def _port_link(self, net: XmlElement, medium: str) -> ImportedLink:
        rate, text = _nic_port_rate(net), net.get("latency") or "0"
        try:
            seconds = float(text) / 1e6
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1:
            raise net.error(f"latency is {text[:40]!r}; a number of microseconds is expected")
        latency = NIC_LATENCY + seconds / 2  # NCCL adds it once per ring step, which passes two NICs
        return self._wires.nic_cable(rate, medium, f"{rate / 1.25e8:g} Gbit/s in NCCL's dump", latency=latency)

    def _new_device(self, machine: int, prefix: str, kind: str, name: str = "") -> DeviceKey:
        """Add a device under a unique name, by default ``prefix`` and a number."""
        if not name:
            name = f"{prefix}{self._count[machine, prefix]}"
            self._count[machine, prefix] += 1
        names = (name if i == 1 else f"{name}:{i}" for i in itertools.count(1))
        node = next((machine, text) for text in names if (machine, text) not in self._system.nodes)
        self._system.nodes[node] = kind
        return node

    def _add_nvlinks(self) -> None:
        links: dict[tuple[DeviceKey, DeviceKey], tuple[int, XmlElement]] = {}
        for (machine, bus), (node, gpu, cpu) in self._gpus.items():
            for nvlink in gpu.children_named("nvlink"):
                far = self._find_nvlink_end(nvlink, machine, bus, cpu)
                if far is not None:
                    have = links[node, far][0] if (node, far) in links else 0
                    links[node, far] = (have + _positive_attribute(nvlink, "count"), nvlink)
            for c2c in gpu.children_named("c2c"):
                rate = _positive_attribute(c2c, "bw") * _positive_attribute(c2c, "count") * 1e6
                wire = ImportedLink(rate, 1.0, PCIE_LATENCY, "c2c", "C2C rate of NCCL's dump")
                self._system.add_link(node, cpu, wire)
        if links and self._spec.nvlinks_per_gpu is not None:
            raise InputError("nvlinks_per_gpu: the dump lists the NVLinks; remove the parameter")
        sm_of = {
            node: gpu.whole_number_attribute("sm")
            for node, gpu, _ in self._gpus.values()
            if next(gpu.children_named("nvlink"), None)
        }
        for (a, b), (count, nvlink) in links.items():
            wire = self._wires.single_nvlink(sm_of[a]).multiply(count)
            if b[1] == "nvswitch":
                self._system.nodes.setdefault(b, "nvswitch")
                self._system.add_link(a, b, self._wires.links_to_nvswitch(wire))
                continue
            back = links.get((b, a), (0, nvlink))[0]
            if self._system.nodes[b] == "gpu" and back != count:
                raise nvlink.error(f"{count} NVLinks from {a[1]} to {b[1]} but {back} back; make the counts equal")
            self._system.add_link(a, b, wire)
        stated = any(gpu.tag == "gpu" for _, gpu, _ in self._gpus.values())
        if not stated or (not links and self._spec.nvlinks_per_gpu):
            self._add_default_nvlinks()

    def _find_nvlink_end(self, nvlink: XmlElement, machine: int, bus: str, cpu: DeviceKey) -> DeviceKey | None:
        """Return the device at the far end of an NVLink, or None if that device is a GPU missing from the file."""
        kind, target = nvlink.require_attribute("tclass").lower().removeprefix("0x"), nvlink.get("target").lower()
        if kind.startswith("068001"):
            return cpu
        if kind.startswith("0680"):  # the nodes of a dump share their NVSwitches
            return (machine if self._system.node_count == 1 else -1, "nvswitch")
        if not kind.startswith("03"):
            raise nvlink.error(f"tclass is {kind[:40]!r}; write 0x068000 (NVSwitch), 0x030200 (GPU) or 0x068001 (CPU)")
        if target == bus:
            raise nvlink.error(f"leads from {bus} to itself; remove it")
        if (machine, target) not in self._element_by_bus_id:
            return None
        if (machine, target) not in self._gpus:
            raise nvlink.error(f"target {target} is not a GPU; see {self._element_by_bus_id[machine, target].location}")
        return self._gpus[machine, target][0]

    def _add_default_nvlinks(self) -> None:
        """Link every GPU to an NVSwitch, with the default NVLinks of the GPU generation."""
        count, generation = self._spec.nvlinks_per_gpu, self._wires.generation
        if count == 0 or len(self._gpus) == 1:
            return
        if generation is None:
            raise InputError(
                "the file does not list NVLinks, and the device is of no known generation; give "
                "nvlinks_per_gpu (0 for none) and a device such as h100"
            )
        single = self._wires.single_nvlink(generation.sm)
        wire = self._wires.links_to_nvswitch(single.multiply(generation.nvlinks if count is None else count))
        for (machine, _), (node, _, _) in self._gpus.items():
            self._system.nodes.setdefault((machine, "nvswitch"), "nvswitch")
            self._system.add_link(node, (machine, "nvswitch"), wire)


# --- single elements, by NCCL's rules ---------------------------------------------------------------------------------


def _find_gpu_model(root: XmlElement) -> str:
    """Return the catalogue name of the GPUs, found by PCI device id, or else by compute capability."""
    found: dict[str, XmlElement] = {}
    for pci in root.descendants("pci"):
        gpus = list(pci.children_named("gpu"))
        if not gpus and not _pci_class(pci).startswith("03"):
            continue
        sm = gpus[0].whole_number_attribute("sm", -1) if gpus else -1
        name = TABLES["pci_ids"].get(pci.get("device").lower()) or TABLES["devices_of_sm"].get(str(sm))
        if name is None:
            raise (gpus or [pci])[0].error(
                f"a GPU of device {pci.get('device') or '(not given)'}, sm {sm if sm > 0 else '(not given)'} is not in "
                "the catalogue; name it in the import, as in device: h100"
            )
        found.setdefault(name, pci)
    if len(found) > 1:
        last = next(reversed(found.values()))
        raise last.error(f"the GPUs differ ({', '.join(found)}); a cluster has one GPU model: set device")
    if not found:
        raise root.error(_NO_GPU)
    return next(iter(found))


def _pcie_rate_and_lanes(pci: XmlElement) -> tuple[float, int, str]:
    """Return a PCIe link's rate per lane (B/s), number of lanes and description, from the device's pci element.

    NCCL's rule: an unknown speed is Gen3, width 0 is 16 lanes.
    """
    text, width = pci.get("link_speed"), pci.whole_number_attribute("link_width", 0)
    match = _SPEED.fullmatch(text)
    known = _LANE.get(match[1].removesuffix(".0"), 0.0) if match else 0.0
    if not known and text.lower() not in _UNKNOWN_SPEED:
        raise pci.error(f"link_speed is {text[:40]!r}; it must be one of {', '.join(_LANE)} GT/s")
    if not 0 <= width <= 32:
        raise pci.error(f"link_width is {width}; it must be the number of lanes, 1 to 32")
    speed = text.removesuffix(" PCIe") if known else "of unknown speed, assumed 8 GT/s,"
    return known or 1e9, width or 16, f"PCIe {speed} x{width or 16}"


def _pci_class(pci: XmlElement) -> str:
    return pci.get("class").lower().removeprefix("0x")


def _positive_attribute(element: XmlElement, name: str) -> int:
    number = element.whole_number_attribute(name)
    if number < 1:
        raise element.error(f"{name} is {number}; it must be 1 or more")
    return number


def _nic_port_rate(net: XmlElement) -> float:
    """Return a NIC port's rate (B/s); 10 Gbit/s if the file states none, as NCCL assumes."""
    megabits = net.whole_number_attribute("speed", 0)
    return (megabits if megabits > 0 else 10_000) * 125e3


def _numa_link_rate(cpu: XmlElement, spec: ImportSpec) -> tuple[float, str]:
    """Return the rate between NUMA nodes (B/s) that NCCL assumes for a CPU, and a description of the CPU."""
    arch, vendor = cpu.get("arch"), cpu.get("vendor")
    family_6 = vendor == "GenuineIntel" and cpu.whole_number_attribute("familyid", 0) == 6
    model = cpu.whole_number_attribute("modelid", 0) if family_6 else 0
    for known in TABLES["cpus"]:
        if arch == known.get("arch", arch) and vendor == known.get("vendor", vendor) and model >= known.get("model", 0):
            return known["rate"], known["what"]
    if spec.socket.line_rate is None:
        raise cpu.error(
            f"arch {arch[:20]!r} and vendor {vendor[:20]!r} do not determine the rate between NUMA nodes; add "
            "socket: {line_rate: ...} to the import, or arch, vendor, familyid and modelid here"
        )
    return spec.socket.line_rate, "between NUMA nodes"
