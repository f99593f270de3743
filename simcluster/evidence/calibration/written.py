"""The device file that a calibration writes: what was measured, how and when, then the device.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from simcluster.base.units import (
    format_bytes_per_second,
    format_seconds,
    parse_bytes,
    parse_bytes_per_second,
    parse_flop_per_second,
    parse_seconds,
)
from simcluster.evidence.calibration.fit import DeviceFit, root_mean_square
from simcluster.evidence.calibration.table import MeasuredTable

_QUANTITY = re.compile(r"([0-9.e+-]+) (B|B/s|FLOP/s|s)")
_LARGE = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_SMALL = (("m", 1e-3), ("u", 1e-6), ("n", 1e-9))
_UNITS: Mapping[str, tuple[Callable[[object], float], tuple[tuple[str, float], ...]]] = {
    "B": (parse_bytes, _LARGE),
    "B/s": (parse_bytes_per_second, _LARGE),
    "FLOP/s": (parse_flop_per_second, _LARGE),
    "s": (parse_seconds, _SMALL),
}


def device_text(fit: DeviceFit, table_name: str) -> str:
    """The text of a device file; ``table_name`` is what the raw table beside it is called."""
    lines = [f"# {line}".rstrip() for line in _head(fit, table_name)]
    notes = {constant.path: _note(constant.error, constant.at_bound) for constant in fit.constants}
    data = fit.device.model_dump(mode="json", exclude_none=True)
    return "\n".join([*lines, "", *_yaml(data, notes)]) + "\n"


def _note(error: float | None, at_bound: bool) -> str:
    if at_bound:
        return "fitted; at the edge of what it may be"
    return f"fitted, standard error {error:.2g}" if error is not None else "fitted; these rows do not determine it"


def _head(fit: DeviceFit, table_name: str) -> Iterator[str]:
    machine = fit.table.machine
    yield f"{fit.device.name}: measured by simcluster calibrate{f' on {machine.date}' if machine.date else ''}"
    yield f"device: {machine.device}, {machine.multiprocessors} multiprocessors"
    software = [("PyTorch", machine.torch), ("CUDA", machine.cuda), ("driver", machine.driver)]
    yield "with: " + ", ".join(f"{name} {version}" for name, version in software if version)
    if machine.power_limit:
        yield f"limits: {machine.power_limit:g} W, {machine.clock_limit / 1e6:g} MHz"
    yield f"raw table: {table_name}; this file can be named where a device goes (cluster: {{device: ./my_gpu.yaml}})"
    if fit.base:
        yield f"not measured, from the catalogue's {fit.base}: peaks, memory, bandwidth, interference"
    yield ""
    yield "The device model against the rows that it was fitted on (rms of ln model / measured):"
    for kind, rows in fit.kinds().items():
        yield f"  {kind}: {len(rows)} rows, {root_mean_square(rows):.1%}"
    yield ""
    yield from observations(fit.table)


def observations(table: MeasuredTable) -> list[str]:
    """What the table says that is no constant of a device: host times, copies, work beside copies, clocks; in lines."""
    return [*_host(table), *_copies(table), *_beside(table), *_clocks(table), *_failed(table)]


def _host(table: MeasuredTable) -> Iterator[str]:
    found = [each for each in table.timed if each.case.kind == "launch" and each.case.op.startswith("host ")]
    if found:
        times = ", ".join(f"{each.case.op[5:]} {format_seconds(each.seconds)}" for each in found)
        yield f"The host issues: {times} (software: {{kernel: ...}} of a scenario takes such a time)"


def _copies(table: MeasuredTable) -> Iterator[str]:
    best: dict[str, float] = {}
    for each in table.timed:
        if each.case.kind == "host_copy":
            best[each.case.op] = max(best.get(each.case.op, 0.0), each.case.size / each.seconds)
    if best:
        yield "Copies, the fastest: " + ", ".join(f"{op} {format_bytes_per_second(rate)}" for op, rate in best.items())


def _beside(table: MeasuredTable) -> Iterator[str]:
    for each in table.timed:
        if each.case.kind == "beside" and each.alone:
            yield f"{each.case.op}: {each.seconds / each.alone - 1:+.1%}"


def _clocks(table: MeasuredTable) -> Iterator[str]:
    for kind in ("matmul", "attention", "memory"):
        found = [each for each in table.timed if each.case.kind == kind and each.clock]
        if found:
            clocks = [each.clock / 1e6 for each in found]
            powers = [each.power for each in found]
            yield (
                f"While {kind} cases ran: clock {median(clocks):.0f} MHz (median), lowest {min(clocks):.0f}; "
                f"{median(powers):.0f} W (median), highest {max(powers):.0f}"
            )


def _failed(table: MeasuredTable) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for each in table.measurements:
        if each.failed:
            reasons.setdefault(f"{each.case.kind} {each.case.op}: {each.failed[:120]}", []).append(each.case.label)
    for reason, cases in reasons.items():
        yield f"Not measured: {len(cases)} of {reason}"


def _yaml(data: Mapping[str, Any], notes: Mapping[str, str], above: str = "") -> Iterator[str]:
    """Mappings in blocks, everything else in one line, with a comment behind fitted constants."""
    indent = "  " * (above.count(".") if above else 0)
    for key, value in data.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(value, notes, f"{path}.")
            continue
        comment = f"  # {notes[path]}" if path in notes else ""
        yield f"{indent}{key}: {_scalar(value)}{comment}"


def _scalar(value: object) -> str:
    """JSON is YAML; quantities with the prefix that makes them short, where that is exact."""
    quantity = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if quantity:
        return json.dumps(_short(float(quantity[1]), quantity[2]))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _short(number: float, unit: str) -> str:
    parse, prefixes = _UNITS[unit]
    for prefix, scale in prefixes:
        text = f"{number / scale:.6g} {prefix}{unit}"
        if abs(number) >= scale and parse(text) == number:
            return text
    return f"{number!r} {unit}"
