"""One-line descriptions of faults, for titles and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simcluster.faults.fault_spec import FaultSpec

_MAX_LISTED = 3  # in a title
_FACTOR = {"slow gpu": "slowdown", "slow link": "speed"}


def describe_fault(fault: FaultSpec | Mapping[str, Any]) -> str:
    """Describe a fault in a few words; a fault may also be a mapping from a scenario file.

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
    shown = {name: each for name, each in fields.items() if each is not None and each is not False}
    parts = [f"{name.replace('_', ' ')} {_format_value(each)}" for name, each in shown.items()]
    return ", ".join([kind, *parts])


def describe_faults(faults: Sequence[FaultSpec | Mapping[str, Any]]) -> str:
    """Describe all faults of a scenario in one line; return "" if there are none.

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
