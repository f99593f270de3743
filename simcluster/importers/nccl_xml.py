"""A machine from NCCL's topology XML: what ``NCCL_TOPO_DUMP_FILE`` writes, or the ``NCCL_TOPO_FILE`` of a cloud.

The elements are ``cpu`` (a NUMA node), ``pci`` (a switch, or by its class a GPU or a NIC), ``gpu`` with its ``nvlink``
and ``c2c``, ``nic`` with its ``net``.  What a link carries follows NCCL v2.30.7, src/graph/topo.cc and topo.h.  Files
of clouds have pci elements only; NVLink is then that of the GPU's generation.  A dump of a multi-node NVLink domain
holds all its machines (told apart by ``host_hash``).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal, assert_never

from simcluster.base.errors import InputError
from simcluster.importers.generations import NIC_LATENCY, PCIE_LATENCY, Wires
from simcluster.importers.graph_document import Wire
from simcluster.importers.import_parameters import ImportSpec, is_kept
from simcluster.importers.machine import NicCable, Node, System
from simcluster.importers.nccl_elements import (
    BUS_ID,
    between_cpus,
    nccl_device,
    net_latency,
    net_rate,
    pci_class,
    pcie_lanes,
    positive,
)
from simcluster.importers.xml_tree import Element

_HOME = {"gpu": "pci", "cpu": "system", "net": "nic", "system": "nothing: it is the root"}
PARAMETERS = ("nodes", "fabric", "nics", "nvlinks_per_gpu", "nvlink", "pcie", "socket", "nic")


@dataclass(frozen=True, slots=True)
class _Slot:
    """What hangs on the PCIe tree: ``kind`` gpu, nic or pcie (a switch), and its link upwards."""

    kind: Literal["gpu", "nic", "pcie"]
    element: Element
    wire: Wire
    below: tuple[_Slot, ...] = ()


def read_nccl(root: Element, spec: ImportSpec) -> System:
    """The machine (or NVLink domain) under ``<system>``.  InputError with the line of what makes no sense."""
    spec.accept("NCCL's topology XML", PARAMETERS)
    device = spec.device or nccl_device(root)
    if root.get("version") != "1":
        raise root.error(f"version is {root.get('version')[:40]!r}; NCCL writes and reads version 1")
    return _Reader(Wires(spec, device), System(device)).read(root)


class _Reader:
    def __init__(self, wires: Wires, system: System) -> None:
        self._wires, self._spec, self._system = wires, wires.spec, system
        self._bus: dict[tuple[int, str], Element] = {}  # (machine, bus id)
        self._gpus: dict[tuple[int, str], tuple[Node, Element, Node]] = {}  # by bus id: node, its element, its CPU
        self._count: Counter[tuple[int, str]] = Counter()

    def read(self, root: Element) -> System:
        if not root.children:
            raise root.error("is empty; a dump has cpu elements in it")
        hosts: dict[str, int] = {}
        slots: dict[tuple[int, int], tuple[Element, list[_Slot]]] = {}
        for cpu in root.children:
            if cpu.tag != "cpu":
                raise cpu.error("is not expected here; <system> holds cpu elements (NUMA nodes)")
            machine = hosts.setdefault(cpu.get("host_hash"), len(hosts))
            key = (machine, cpu.whole("numaid"))
            if key in slots:
                raise cpu.error(f"numaid {key[1]} is already at {slots[key][0].place}; each NUMA node is there once")
            slots[key] = (cpu, self._slots(cpu, machine))
        self._name_gpus(slots)
        for (machine, numa), (_, below) in slots.items():
            if below:
                host = self._add((machine, f"numa{numa}"), "host")
                for slot in below:
                    self._place(slot, machine, host, host)
        if not self._gpus:
            raise root.error("has no GPU: no gpu element and no pci element of class 0x03....")
        self._join_sockets(slots)
        self._add_nvlinks()
        return self._system

    # --- the PCIe tree -----------------------------------------------------------------------------------------------

    def _slots(self, parent: Element, machine: int) -> list[_Slot]:
        """GPUs, NICs and the switches above them; all else (disks, NVSwitch chips, empty switches) is left out."""
        found = []
        for element in parent.children:
            if element.tag == "pci":
                found += self._pci(element, machine)
            elif element.tag == "nic":  # a virtual NIC, right at the CPU: nothing narrower than itself in between
                ports = self._kept(list(element.named("net")))
                speed = sum(net_rate(net) for net in ports)
                if speed:
                    found.append(_Slot("nic", element, Wire(speed, 1.0, 0.0, "pcie", "no PCIe device in the dump")))
            elif element.tag in ("gpu", "cpu", "net", "system"):
                raise element.error(f"is not expected in <{parent.tag}>; it belongs in <{_HOME[element.tag]}>")
        return found

    def _pci(self, element: Element, machine: int) -> list[_Slot]:
        bus = element.require("busid").lower()
        if not BUS_ID.fullmatch(bus):
            raise element.error(f"busid is {bus[:40]!r}; it looks like 0000:07:00.0")
        twin = self._bus.setdefault((machine, bus), element)
        if twin is not element:
            raise element.error(f"busid {bus} is already at {twin.place}; each PCI device is there once")
        kind = pci_class(element)
        gpus, nics = list(element.named("gpu")), list(element.named("nic"))
        if len(gpus) > 1:
            raise gpus[1].error(f"is the second GPU of {bus}; a PCI device is one")
        if gpus or kind.startswith("03"):
            return [_Slot("gpu", element, self._pcie(element))]
        if nics or kind.startswith("02"):
            nets = [net for nic in nics for net in nic.named("net")]
            return [_Slot("nic", element, self._pcie(element))] if not nets or self._kept(nets) else []
        below = tuple(self._slots(element, machine))
        if not kind and not element.children:
            raise element.error("has no class; add class=0x030200 (GPU), 0x020700 (InfiniBand) or 0x060400 (switch)")
        return [_Slot("pcie", element, self._pcie(element), below)] if below else []

    def _pcie(self, element: Element) -> Wire:
        return self._wires.pcie(*pcie_lanes(element))

    def _kept(self, nets: list[Element]) -> list[Element]:
        return [net for net in nets if is_kept(net.get("name"), self._spec.nics)]

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _name_gpus(self, slots: dict[tuple[int, int], tuple[Element, list[_Slot]]]) -> None:
        """GPUs get their places first: by CUDA's number where the dump has it, else by bus id."""
        by_machine: dict[int, list[tuple[_Slot, int]]] = {}
        for (machine, numa), (_, below) in slots.items():
            by_machine.setdefault(machine, []).extend((slot, numa) for slot in _gpus(below))
        for machine in sorted(by_machine):
            gpus = by_machine[machine]
            numbers: dict[int, Element] = {}
            for slot, _ in gpus:
                for gpu in slot.element.named("gpu"):
                    if gpu.get("dev") and numbers.setdefault(gpu.whole("dev"), gpu) is not gpu:
                        raise gpu.error(f"dev {gpu.get('dev')} is already at {numbers[gpu.whole('dev')].place}")
            place = {id(gpu): number for number, gpu in numbers.items()}
            known = len(numbers) == len(gpus)
            gpus.sort(key=lambda pair: (place[id(_gpu(pair[0]))] if known else 0, _bus_numbers(pair[0].element)))
            for index, (slot, numa) in enumerate(gpus):
                node = self._add((machine, f"gpu{index}"), "gpu")
                bus = slot.element.get("busid").lower()
                self._gpus[machine, bus] = (node, _gpu(slot), (machine, f"numa{numa}"))

    def _place(self, slot: _Slot, machine: int, parent: Node, cpu: Node) -> None:
        if slot.kind == "gpu":
            node, _, _ = self._gpus[machine, slot.element.get("busid").lower()]
            self._system.link(node, parent, slot.wire)
        elif slot.kind == "nic":
            self._place_nic(slot, machine, parent)
        elif slot.kind == "pcie":
            node = self._add((machine, self._number(machine, "pcie")), "pcie")
            self._system.link(node, parent, slot.wire)
            for inner in slot.below:
                self._place(inner, machine, node, cpu)
        else:
            assert_never(slot.kind)

    def _place_nic(self, slot: _Slot, machine: int, parent: Node) -> None:
        """A card with one port is a NIC; one with several is a branching point with a NIC for each."""
        medium = "infiniband" if pci_class(slot.element).startswith("0207") else "ethernet"
        nics = [slot.element] if slot.element.tag == "nic" else list(slot.element.named("nic"))
        nets = self._kept([net for nic in nics for net in nic.named("net")])
        ports = [(net.get("name"), self._net(net, medium)) for net in nets] or [("", self._silent_port(slot, medium))]
        if len(ports) > 1:
            card = self._add((machine, self._number(machine, "card")), "pcie")
            self._system.link(card, parent, slot.wire)
            parent, inner = card, Wire(slot.wire.line_rate, slot.wire.efficiency, 0.0, "pcie", "inside the card")
        else:
            inner = slot.wire
        for name, wire in ports:
            node = self._add((machine, self._nic_name(machine, name)), "nic")
            self._system.link(node, parent, inner)
            self._system.ports.append(NicCable(node, wire))

    def _nic_name(self, machine: int, name: str) -> str:
        name = name or self._number(machine, "nic")
        return next(
            text
            for i in itertools.count(1)
            if (machine, text := f"{name}:{i}" if i > 1 else name) not in self._system.nodes
        )

    def _net(self, net: Element, medium: str) -> Wire:
        rate, more = net_rate(net), net_latency(net)
        latency = NIC_LATENCY + more / 2  # NCCL adds it once for a step, which passes two NICs
        return self._wires.port(rate, medium, f"{rate / 1.25e8:g} Gbit/s in NCCL's dump", latency=latency)

    def _silent_port(self, slot: _Slot, medium: str) -> Wire:
        why = f"{slot.element.place}: the file does not say how fast the NICs are"
        return self._wires.port(self._wires.usual("nic", why), medium, "usual for the GPU, the file does not say")

    def _number(self, machine: int, word: str) -> str:
        self._count[machine, word] += 1
        return f"{word}{self._count[machine, word] - 1}"

    def _add(self, node: Node, kind: str) -> Node:
        self._system.nodes[node] = kind
        return node

    # --- between CPUs, and between GPUs ------------------------------------------------------------------------------

    def _join_sockets(self, slots: dict[tuple[int, int], tuple[Element, list[_Slot]]]) -> None:
        """Every NUMA node of a machine with every other, as NCCL does."""
        used = [(key, cpu) for key, (cpu, below) in slots.items() if below]
        for ((machine, a), cpu), ((other, b), _) in itertools.combinations(used, 2):
            if machine == other:
                wire = self._wires.socket(*between_cpus(cpu, self._spec))
                self._system.link((machine, f"numa{a}"), (machine, f"numa{b}"), wire)

    def _add_nvlinks(self) -> None:
        stated = any(gpu.tag == "gpu" for _, gpu, _ in self._gpus.values())
        if not stated:
            return self._usual_nvlinks()
        links: dict[tuple[Node, Node], tuple[int, Element]] = {}
        for (machine, bus), (node, gpu, cpu) in self._gpus.items():
            for nvlink in gpu.named("nvlink"):
                far = self._far_end(nvlink, machine, bus, cpu)
                if far is not None:
                    have = links[node, far][0] if (node, far) in links else 0
                    links[node, far] = (have + positive(nvlink, "count"), nvlink)
            for c2c in gpu.named("c2c"):
                rate = positive(c2c, "bw") * positive(c2c, "count") * 1e6
                self._system.link(node, cpu, Wire(rate, 1.0, PCIE_LATENCY, "c2c", "C2C as NCCL's dump has it"))
        if links and self._spec.nvlinks_per_gpu is not None:
            raise InputError("nvlinks_per_gpu: the dump lists the NVLinks itself; leave the parameter out")
        self._check_and_link(links)
        if not links and self._spec.nvlinks_per_gpu:
            self._usual_nvlinks()
        return None

    def _check_and_link(self, links: dict[tuple[Node, Node], tuple[int, Element]]) -> None:
        sm_of = {node: gpu.whole("sm") for node, gpu, _ in self._gpus.values() if next(gpu.named("nvlink"), None)}
        for (a, b), (count, nvlink) in links.items():
            wire = self._wires.nvlink(sm_of[a]).times(count)
            if b[1] == "nvswitch":
                self._system.nodes.setdefault(b, "nvswitch")
                self._system.link(a, b, self._wires.to_nvswitch(wire))
                continue
            back = links.get((b, a), (0, nvlink))[0]
            if self._system.nodes[b] == "gpu" and back != count:
                raise nvlink.error(f"{count} NVLinks from {a[1]} to {b[1]} but {back} from {b[1]} to {a[1]}")
            self._system.link(a, b, wire)

    def _far_end(self, nvlink: Element, machine: int, bus: str, cpu: Node) -> Node | None:
        """The node at the other end.  None for a GPU not in the dump: a job on some of the GPUs leaves out the rest."""
        kind, target = nvlink.require("tclass").lower().removeprefix("0x"), nvlink.get("target").lower()
        if kind.startswith("068001"):
            return cpu
        if kind.startswith("0680"):
            return (self._domain(machine), "nvswitch")
        if not kind.startswith("03"):
            raise nvlink.error(f"tclass is {kind[:40]!r}; it is 0x068000 (NVSwitch), 0x030200 (GPU) or 0x068001 (CPU)")
        if target == bus:
            raise nvlink.error(f"leads from {bus} to itself")
        if (machine, target) not in self._bus:
            return None
        if (machine, target) not in self._gpus:
            raise nvlink.error(f"target {target} is no GPU; see {self._bus[machine, target].place}")
        return self._gpus[machine, target][0]

    def _domain(self, machine: int) -> int:
        """Machines of one dump share their NVSwitches."""
        return machine if self._system.machines == 1 else -1

    def _usual_nvlinks(self) -> None:
        """A file without NVLinks: those of the GPU's generation, all in NVSwitches."""
        count, generation = self._spec.nvlinks_per_gpu, self._wires.generation
        if count == 0 or len(self._gpus) == 1:
            return
        if generation is None:
            raise InputError(
                "the file leaves NVLink to detection, and the device is of no generation known here; give "
                "nvlinks_per_gpu (0 for none) and a device such as h100"
            )
        single = self._wires.nvlink(generation.sm)
        wire = self._wires.to_nvswitch(single.times(generation.nvlinks if count is None else count))
        for (machine, _), (node, _, _) in self._gpus.items():
            self._system.nodes.setdefault((machine, "nvswitch"), "nvswitch")
            self._system.link(node, (machine, "nvswitch"), wire)


def _gpus(slots: list[_Slot] | tuple[_Slot, ...]) -> list[_Slot]:
    return [gpu for slot in slots for gpu in ([slot] if slot.kind == "gpu" else _gpus(slot.below))]


def _bus_numbers(pci: Element) -> list[int]:
    return [int(part, 16) for part in re.split("[:.]", pci.get("busid"))]


def _gpu(slot: _Slot) -> Element:
    """The gpu element, or the pci element where a cloud's file has no other."""
    return next(slot.element.named("gpu"), slot.element)
