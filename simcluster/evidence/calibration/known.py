"""Which device of the catalogue a GPU is, by the name that its driver gives it.  Pure."""

from __future__ import annotations

from simcluster.evidence.calibration.table import Machine

_NAMES = (
    ("gb200", "gb200"),
    ("b200", "b200"),
    ("h200", "h200"),
    ("h100", "h100"),
    ("a100-sxm4-80gb", "a100-80gb"),
    ("a100-sxm4-40gb", "a100-40gb"),
    ("a100 80gb pcie", "a100-80gb-pcie"),
)
"""The first that is in the name counts.  An H100 PCIe or NVL is none of these."""
_OTHERS = ("pcie", "nvl", "gh200")


def base_of(machine: Machine) -> str | None:
    """The catalogue's device that is this GPU; None where none is."""
    name = machine.device.lower()
    for part, device in _NAMES:
        if part in name:
            other = any(word in name for word in _OTHERS if word not in part)
            return None if other else device
    return None
