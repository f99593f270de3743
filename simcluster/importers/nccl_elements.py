"""What single elements of NCCL's topology XML say, by the rules of NCCL v2.30.7 (src/graph/topo.cc, topo.h)."""

from __future__ import annotations

import re

from simcluster.importers.generations import TABLES
from simcluster.importers.import_parameters import ImportSpec
from simcluster.importers.xml_tree import Element

_LANE = {"2.5": 0.25e9, "5": 0.5e9, "8": 1e9, "16": 2e9, "32": 4e9, "64": 8e9}  # GT/s: B/s of payload slots, each way
_SPEED = re.compile(r"(\d+(?:\.\d+)?) *GT/s(?: PCIe)?")
_UNKNOWN_SPEED = ("", "unknown", "unknown speed")  # NCCL takes these as Gen3
BUS_ID = re.compile(r"[0-9a-f]{1,8}:[0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-9a-f]{1,2}")


def nccl_device(root: Element) -> str:
    """The catalogue's name of the GPUs of a dump: by PCI id, else by compute capability; InputError if unknown."""
    found: dict[str, Element] = {}
    for pci in root.below("pci"):
        gpus = list(pci.named("gpu"))
        if not gpus and not pci_class(pci).startswith("03"):
            continue
        sm = gpus[0].whole("sm", -1) if gpus else -1
        name = TABLES["pci_ids"].get(pci.get("device").lower()) or TABLES["devices_of_sm"].get(str(sm))
        if name is None:
            raise (gpus or [pci])[0].error(
                f"a GPU of device {pci.get('device') or '(not given)'}, sm {sm if sm > 0 else '(not given)'} is not in "
                "the catalogue; name it beside the file, as in device: h100"
            )
        found.setdefault(name, pci)
    if len(found) > 1:
        raise next(reversed(found.values())).error(
            f"the GPUs differ ({', '.join(found)}); a cluster has one: give device"
        )
    if not found:
        raise root.error("has no GPU: no gpu element and no pci element of class 0x03....")
    return next(iter(found))


def pcie_lanes(pci: Element) -> tuple[float, int, str]:
    """B/s of a lane of a device's link upwards, how many it has, and what it is.

    NCCL's rule: an unknown speed is Gen3, width 0 is 16 lanes.
    """
    text = pci.get("link_speed")
    match = _SPEED.fullmatch(text)
    known = _LANE.get(match[1].removesuffix(".0"), 0.0) if match else 0.0
    if not known and text.lower() not in _UNKNOWN_SPEED:
        raise pci.error(f"link_speed is {text[:40]!r}; it is one of {', '.join(_LANE)} GT/s")
    width = pci.whole("link_width", 0)
    if not 0 <= width <= 32:
        raise pci.error(f"link_width is {width}; it is the number of lanes, 1 to 32")
    lanes = width or 16
    speed = text.removesuffix(" PCIe") if known else "of unknown speed, taken as 8 GT/s,"
    return known or 1e9, lanes, f"PCIe {speed} x{lanes}"


def pci_class(pci: Element) -> str:
    return pci.get("class").lower().removeprefix("0x")


def positive(element: Element, name: str) -> int:
    number = element.whole(name)
    if number < 1:
        raise element.error(f"{name} is {number}; it is 1 or more")
    return number


def net_rate(net: Element) -> float:
    """B/s of a port; NCCL takes 10 Gbit/s where the driver does not know."""
    megabits = net.whole("speed", 0)
    return (megabits if megabits > 0 else 10_000) * 125e3


def net_latency(net: Element) -> float:
    text = net.get("latency") or "0"
    try:
        seconds = float(text) / 1e6
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1:
        raise net.error(f"latency is {text[:40]!r}; it is a number of microseconds")
    return seconds


def between_cpus(cpu: Element, spec: ImportSpec) -> tuple[float, str]:
    """B/s between this NUMA node and another one: NCCL's ncclTopoGetInterCpuBw."""
    arch, vendor = cpu.get("arch"), cpu.get("vendor")
    model = cpu.whole("modelid", 0) if vendor == "GenuineIntel" and cpu.whole("familyid", 0) == 6 else 0
    for known in TABLES["cpus"]:
        if arch == known.get("arch", arch) and vendor == known.get("vendor", vendor) and model >= known.get("model", 0):
            return known["rate"], known["what"]
    if spec.socket.line_rate is None:
        raise cpu.error(
            f"arch {arch[:20]!r} and vendor {vendor[:20]!r} do not tell how fast NUMA nodes are joined; give "
            "socket: {line_rate: ...} beside the file, or arch, vendor, familyid and modelid here"
        )
    return spec.socket.line_rate, "between NUMA nodes"
