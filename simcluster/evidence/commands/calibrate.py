"""Command ``simcluster calibrate``: measure a GPU with PyTorch, and write a device file for scenarios."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.cli import common, outputs
from simcluster.cli.terminal import show_progress_text, write_json

if TYPE_CHECKING:
    from simcluster.evidence.calibration.device_fit import DeviceFit
    from simcluster.evidence.calibration.raw_table import Measurement
    from simcluster.show.output_blocks import OutputBlock


def run(args: argparse.Namespace) -> None:
    """Measure a device or read a raw table; then fit the device's constants and write the device file."""
    output = args.output
    if args.table and (args.measure_only or args.restart):
        raise InputError("--from fits a table without measuring; remove --measure-only and --restart")
    path = Path(args.table) if args.table else output.with_suffix(".jsonl")
    _check_arguments(args)
    if not args.table:
        measured = _measure_cases(args, path)
        if args.measure_only:
            if args.json:
                write_json(args.json, {"table": str(path), "measured": measured})
            return
    from simcluster.devices.device import load_device
    from simcluster.evidence.calibration.device_file import device_file_text
    from simcluster.evidence.calibration.device_fit import find_builtin_device, fit_device
    from simcluster.evidence.calibration.raw_table import read_raw_table

    found = read_raw_table(path)
    base = args.base or find_builtin_device(found.machine)
    fit = fit_device(found, base=load_device(base) if base else None, name=args.name or output.stem)
    common.write_text_atomic(output, device_file_text(fit, path.name))
    common.print_answer(args, lambda: _report_blocks(fit, output), lambda: _calibration_document(fit))


def _check_arguments(args: argparse.Namespace) -> None:
    if not args.table:
        from simcluster.evidence.calibration.cases import list_calibration_cases

        list_calibration_cases(args.dtype, on_gpu=True, quick=True)
    if args.base and not args.table and not args.measure_only and outputs.is_installed("pydantic"):
        from simcluster.devices.device import load_device

        load_device(args.base)
    outputs.require_modules(_list_libraries(args))


def _list_libraries(args: argparse.Namespace) -> Iterator[outputs.OptionalLibrary]:
    if not args.table:
        elsewhere = "fit a table measured elsewhere with --from"
        yield outputs.OptionalLibrary("measuring", "torch", "PyTorch", "calibrate", elsewhere)
    if not args.measure_only:
        for name in ("scipy", "pydantic"):
            yield outputs.OptionalLibrary(
                "fitting", name, name, "calibrate", "--measure-only here and --from elsewhere"
            )


def _measure_cases(args: argparse.Namespace, path: Path) -> int:
    from datetime import date

    from simcluster.evidence.calibration.cases import list_calibration_cases
    from simcluster.evidence.calibration.raw_table import RawTableFile
    from simcluster.evidence.calibration.torch_measure import KernelBenchmark

    bench = KernelBenchmark(args.device, quick=args.quick, date=args.date or date.today().isoformat())
    table = RawTableFile(path, bench.machine, restart=args.restart)
    cases = list_calibration_cases(args.dtype, on_gpu=bench.on_gpu, quick=args.quick)
    left = sum(case not in table.measured_cases for case in cases)
    print(f"{bench.machine.device}: {left} of {len(cases)} cases to measure; {path} has the rest", file=sys.stderr)

    def show_progress(done: int, cases: int, last: Measurement) -> None:
        show_progress_text(f"{done} of {cases}: {last.case.label}" if done < cases else "")

    bench.measure_cases(cases, table, show_progress)
    return len(cases)


def _report_blocks(fit: DeviceFit, output: Path) -> list[OutputBlock]:
    from statistics import median

    from simcluster.evidence.calibration.device_file import list_calibration_remarks
    from simcluster.evidence.calibration.device_fit import rms_log_error
    from simcluster.show.output_blocks import TableBlock, TextLines

    machine = fit.table.machine
    rows = [
        [each.path, f"{each.start:.4g}", f"{each.value:.4g}",
         "at its bound" if each.at_bound else "not determined" if each.error is None else f"{each.error:.2g}"]
        for each in fit.constants
    ]  # fmt: skip
    kinds = [
        [kind, str(len(part)), f"{rms_log_error(part):.1%}", f"{median(abs(row.relative_error) for row in part):.1%}",
         f"{max(abs(row.relative_error) for row in part):.0%}"]
        for kind, part in fit.rows_by_kind().items()
    ]  # fmt: skip
    worst = sorted(fit.rows, key=lambda row: -abs(row.relative_error))[:5]
    base = f"from {fit.base}" if fit.base else "the best measured values, without a data sheet"
    head = f"{machine.device}{f', {machine.date}' if machine.date else ''}, PyTorch {machine.torch}"
    furthest = "; ".join(f"{row.measurement.case.label} {row.relative_error:+.0%}" for row in worst)
    constants = [f"{len(fit.constants)} constants on {len(fit.rows)} rows", "start", "fitted", "std. error"]
    return [
        TextLines([f"{head}; unmeasured values are {base}"]),
        TableBlock(constants, rows),
        TableBlock(["errors of the model", "rows", "rms", "median", "worst"], kinds),
        TextLines([f"largest errors: {furthest}", *list_calibration_remarks(fit.table)]),
        TextLines([f"written: {output}; use it as a device, as in --cluster.device {output}"]),
    ]


def _calibration_document(fit: DeviceFit) -> dict[str, Any]:
    from simcluster.evidence.calibration.device_file import list_calibration_remarks

    return {
        "machine": asdict(fit.table.machine),
        "base": fit.base,
        "device": fit.device.model_dump(mode="json", exclude_none=True),
        "constants": [asdict(each) for each in fit.constants],
        "rows": [
            {"case": row.measurement.case.to_dict(), "measured_s": row.measurement.seconds, "modelled_s": row.modelled,
             "error": row.relative_error}
            for row in fit.rows
        ],
        "observations": list_calibration_remarks(fit.table),
    }  # fmt: skip
