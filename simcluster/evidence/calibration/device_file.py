"""Text of the device file that a calibration writes: comments on the measurements, then the device."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from simcluster.base.units import format_bytes_per_second, format_seconds
from simcluster.evidence.calibration.device_fit import DeviceFit, rms_log_error
from simcluster.evidence.calibration.raw_table import MeasuredTable, Measurement


def device_file_text(fit: DeviceFit, table_name: str) -> str:
    """Return the YAML text of the calibrated device, with a comment that names the raw table file."""
    lines = [f"# {line}".rstrip() for line in _header_lines(fit, table_name)]
    notes = {constant.path: _constant_note(constant.error, constant.at_bound) for constant in fit.constants}
    data = fit.device.model_dump(mode="json", exclude_none=True)
    return "\n".join([*lines, "", *_yaml_lines(data, notes)]) + "\n"


def _constant_note(error: float | None, at_bound: bool) -> str:
    if at_bound:
        return "fitted, at its bound"
    return f"fitted, standard error {error:.2g}" if error is not None else "fitted, not determined by the measured rows"


def _header_lines(fit: DeviceFit, table_name: str) -> Iterator[str]:
    machine = fit.table.machine
    yield f"{fit.device.name}: measured by simcluster calibrate{f' on {machine.date}' if machine.date else ''}"
    yield f"device: {machine.device}, {machine.multiprocessors} multiprocessors"
    software = [("PyTorch", machine.torch), ("CUDA", machine.cuda), ("driver", machine.driver)]
    yield "with: " + ", ".join(f"{name} {version}" for name, version in software if version)
    if machine.power_limit:
        yield f"limits: {machine.power_limit:g} W, {machine.clock_limit / 1e6:g} MHz"
    yield f"raw table: {table_name}; use this file as a device (cluster: {{device: ./my_gpu.yaml}})"
    if fit.base:
        yield f"not measured, from the built-in {fit.base}: peaks, memory, bandwidth, interference"
    yield ""
    yield "Errors of the device model on the fitted rows (rms of ln model / measured):"
    for kind, rows in fit.rows_by_kind().items():
        yield f"  {kind}: {len(rows)} rows, {rms_log_error(rows):.1%}"
    yield ""
    yield from list_calibration_remarks(fit.table)


def list_calibration_remarks(table: MeasuredTable) -> list[str]:
    """Return remarks about a calibration: host times, copies, overlap, GPU clocks, and failed cases."""
    of_kind: dict[str, list[Measurement]] = {}
    for each in table.timed_measurements:
        of_kind.setdefault(each.case.kind, []).append(each)
    lines = []
    host = [each for each in of_kind.get("launch", ()) if each.case.op.startswith("host ")]
    if host:
        times = ", ".join(f"{each.case.op[5:]} {format_seconds(each.seconds)}" for each in host)
        lines.append(f"Host time per launch: {times} (a value for software: {{kernel: ...}} of a scenario)")
    best: dict[str, float] = {}
    for each in of_kind.get("host_copy", ()):
        best[each.case.op] = max(best.get(each.case.op, 0.0), each.case.size / each.seconds)
    if best:
        rates = ", ".join(f"{op} {format_bytes_per_second(rate)}" for op, rate in best.items())
        lines.append(f"Fastest copies: {rates}")
    overlapped = (each for each in of_kind.get("beside", ()) if each.alone)
    lines += [f"{each.case.op}: {each.seconds / each.alone - 1:+.1%}" for each in overlapped]
    for kind in ("matmul", "attention", "memory"):
        clocked = [each for each in of_kind.get(kind, ()) if each.clock]
        if clocked:
            clocks, powers = [each.clock / 1e6 for each in clocked], [each.power for each in clocked]
            lines.append(
                f"While {kind} cases ran: clock {median(clocks):.0f} MHz (median), lowest {min(clocks):.0f}; "
                f"{median(powers):.0f} W (median), highest {max(powers):.0f}"
            )
    failed = (each for each in table.measurements if each.failed)
    reasons = Counter(f"{each.case.kind} {each.case.op}: {each.failed[:120]}" for each in failed)
    return [*lines, *(f"Not measured: {count} cases of {reason}" for reason, count in reasons.items())]


def _yaml_lines(data: Mapping[str, Any], notes: Mapping[str, str], parent: str = "") -> Iterator[str]:
    indent = "  " * (parent.count(".") if parent else 0)
    for key, value in data.items():
        path = f"{parent}{key}"
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml_lines(value, notes, f"{path}.")
            continue
        comment = f"  # {notes[path]}" if path in notes else ""
        yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}{comment}"  # JSON literals are valid YAML
