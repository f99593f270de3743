"""``simcluster calibrate``: measure a GPU with PyTorch, and write a device file that scenarios can use."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.cli import common, outputs
from simcluster.cli.terminal import set_progress, write_json

if TYPE_CHECKING:
    from simcluster.evidence.calibration.device_fit import DeviceFit
    from simcluster.evidence.calibration.raw_table import Measurement
    from simcluster.show.blocks import Block


def run(args: argparse.Namespace) -> None:
    """Measure a device, or read its raw table, then fit its constants and write the device file."""
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
    from simcluster.evidence.calibration.device_fit import catalogue_device, fit_device
    from simcluster.evidence.calibration.raw_table import read_raw_table

    found = read_raw_table(path)
    base = args.base or catalogue_device(found.machine)
    fit = fit_device(found, base=load_device(base) if base else None, name=args.name or output.stem)
    common.write_text(output, device_file_text(fit, path.name))
    common.print_answer(args, lambda: _report_blocks(fit, output), lambda: _calibration_document(fit))


def _check_arguments(args: argparse.Namespace) -> None:
    if not args.table:
        from simcluster.evidence.calibration.cases import list_cases

        list_cases(args.dtype, on_gpu=True, quick=True)
    if args.base and not args.table and not args.measure_only and outputs.is_installed("pydantic"):
        from simcluster.devices.device import load_device

        load_device(args.base)
    outputs.require_modules(outputs.list_calibration_needs(args))


def _measure_cases(args: argparse.Namespace, path: Path) -> int:
    from datetime import date

    from simcluster.evidence.calibration.cases import list_cases
    from simcluster.evidence.calibration.raw_table import TableFile
    from simcluster.evidence.calibration.torch_measure import KernelBench

    bench = KernelBench(args.device, quick=args.quick, date=args.date or date.today().isoformat())
    table = TableFile(path, bench.machine, restart=args.restart)
    cases = list_cases(args.dtype, on_gpu=bench.on_gpu, quick=args.quick)
    left = sum(case not in table.measured_cases for case in cases)
    print(f"{bench.machine.device}: {left} of {len(cases)} cases to measure; {path} has the rest", file=sys.stderr)

    def show_progress(done: int, cases: int, last: Measurement) -> None:
        set_progress(f"{done} of {cases}: {last.case.label}" if done < cases else "")

    bench.measure_all(cases, table, show_progress)
    return len(cases)


def _report_blocks(fit: DeviceFit, output: Path) -> list[Block]:
    from statistics import median

    from simcluster.evidence.calibration.device_file import calibration_remarks
    from simcluster.evidence.calibration.device_fit import rms_error
    from simcluster.show.blocks import Lines, TableBlock

    machine = fit.table.machine
    rows = [
        [each.path, f"{each.start:.4g}", f"{each.value:.4g}",
         "at its bound" if each.at_bound else "not determined" if each.error is None else f"{each.error:.2g}"]
        for each in fit.constants
    ]  # fmt: skip
    kinds = [
        [kind, str(len(found)), f"{rms_error(found):.1%}", f"{median(abs(row.error) for row in found):.1%}",
         f"{max(abs(row.error) for row in found):.0%}"]
        for kind, found in fit.rows_by_kind().items()
    ]  # fmt: skip
    worst = sorted(fit.rows, key=lambda row: -abs(row.error))[:5]
    base = f"from {fit.base}" if fit.base else "the best measured values, without a data sheet"
    head = f"{machine.device}{f', {machine.date}' if machine.date else ''}, PyTorch {machine.torch}"
    furthest = "; ".join(f"{row.measurement.case.label} {row.error:+.0%}" for row in worst)
    constants = [f"{len(fit.constants)} constants on {len(fit.rows)} rows", "start", "fitted", "std. error"]
    return [
        Lines([f"{head}; unmeasured values are {base}"]),
        TableBlock(constants, rows),
        TableBlock(["errors of the model", "rows", "rms", "median", "worst"], kinds),
        Lines([f"largest errors: {furthest}", *calibration_remarks(fit.table)]),
        Lines([f"written: {output}; use it as a device, as in --cluster.device {output}"]),
    ]


def _calibration_document(fit: DeviceFit) -> dict[str, Any]:
    from simcluster.evidence.calibration.device_file import calibration_remarks

    return {
        "machine": asdict(fit.table.machine),
        "base": fit.base,
        "device": fit.device.model_dump(mode="json", exclude_none=True),
        "constants": [asdict(each) for each in fit.constants],
        "rows": [
            {"case": row.measurement.case.to_dict(), "measured_s": row.measurement.seconds, "modelled_s": row.modelled,
             "error": row.error}
            for row in fit.rows
        ],
        "observations": calibration_remarks(fit.table),
    }  # fmt: skip
