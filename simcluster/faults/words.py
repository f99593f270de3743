"""Descriptions of faults for titles and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcluster.faults.spec import FaultSpec

_MAX_LISTED = 3  # in a title
_FACTOR = {"slow gpu": "slowdown", "slow link": "speed"}


def describe_fault(fault: FaultSpec | Mapping[str, Any]) -> str:
    """Describe a fault, or a document's mapping, in a few words.

    >>> describe_fault({"kind": "slow_gpu", "rank": 37, "slowdown": 1.2})
    'slow gpu, rank 37, slowdown 1.2'
    >>> describe_fault({"kind": "slow_link", "nic_of": 3, "factor": 0.5})  # as files of earlier versions have it
    'slow link, nic of 3, speed 0.5'
    """
    fields = dict(fault) if isinstance(fault, Mapping) else fault.model_dump(mode="json")
    kind = str(fields.pop("kind", "fault")).replace("_", " ")
    fields.pop("seed", None)
    if kind in _FACTOR:
        fields = {_FACTOR[kind] if name == "factor" else name: value for name, value in fields.items()}
    parts = [f"{name.replace('_', ' ')} {_format_value(value)}" for name, value in fields.items() if is_shown(value)]
    return ", ".join([kind, *parts])


def is_shown(value: object) -> bool:
    """Return whether a fault's field is shown: whether its value is set and not off."""
    return value is not None and value is not False


def describe_faults(faults: Sequence[FaultSpec | Mapping[str, Any]]) -> str:
    """Describe the faults of a scenario in one line; "" without any.

    >>> describe_faults([{"kind": "slow_gpu", "rank": rank} for rank in range(5)])
    'slow gpu, rank 0; slow gpu, rank 1; slow gpu, rank 2; and 2 more'
    """
    told = [describe_fault(fault) for fault in faults[:_MAX_LISTED]]
    more = len(faults) - len(told)
    return "; ".join([*told, *([f"and {more} more"] if more else [])])


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        kind = str(value.get("kind", ""))
        rest = [f"{name} {_format_value(each)}" for name, each in value.items() if name != "kind" and each is not None]
        return " ".join([kind, *rest])
    if isinstance(value, tuple | list):
        return " - ".join(map(str, value)) if len(value) < 9 else f"{len(value)} values"
    return str(value)
