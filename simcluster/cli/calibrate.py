"""simcluster calibrate: measure a GPU with PyTorch, and write a device file that scenarios can name."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.cli.terminal import progress

if TYPE_CHECKING:
    from simcluster.evidence.calibration.fit import DeviceFit
    from simcluster.evidence.calibration.table import Measurement

HELP = "measure a GPU with PyTorch and write a device file"
DESCRIPTION = "Measure how fast a GPU runs the kernels of training, and write a device that scenarios can name."
EXAMPLES = """examples:
  simcluster calibrate -o my_gpu.yaml                     # measure, fit, write my_gpu.yaml and my_gpu.jsonl
  simcluster calibrate -o my_gpu.yaml --measure-only      # where only PyTorch is installed ...
  simcluster calibrate -o my_gpu.yaml --from my_gpu.jsonl # ... and the fit elsewhere
  simcluster run gpt3_175b_64xa100 --cluster.device my_gpu.yaml

Measured are matrix products over shapes and layouts, attention (each backend of scaled_dot_product_attention), kernels
that memory limits, launches, copies, and work beside copies.  Every case is on the disk as soon as it is measured, in
the raw table beside the output; a run that was stopped goes on there.  The device model's constants are then fitted to
the table by least squares.  Peaks and memory come from the catalogue, where it knows the GPU, or from --base.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE.yaml", help="the device file; its raw table "
                        "lies beside it as FILE.jsonl")  # fmt: skip
    parser.add_argument("--device", default="cuda", help="what is measured: cuda, cuda:1 or cpu (default: cuda)")
    parser.add_argument(
        "--dtype", default="bf16", help="bf16 (default), fp16 or fp32; fp8 products come with the first two"
    )
    parser.add_argument("--quick", action="store_true", help="a third of the cases, each timed for a shorter while")
    parser.add_argument("--base", metavar="NAME", help="the device of the catalogue (or a device file) that gives what "
                        "is not measured; default: the one with the GPU's name, if there is one")  # fmt: skip
    parser.add_argument("--name", help="what the device is called (default: the output's name)")
    parser.add_argument("--date", metavar="DAY", help="what the head of the file says (default: today)")
    parser.add_argument("--measure-only", action="store_true", help="write the raw table only")
    parser.add_argument("--from", dest="table", metavar="FILE.jsonl", help="fit this raw table; nothing is measured")
    parser.add_argument("--restart", action="store_true", help="measure everything again, over an old raw table")
    parser.add_argument("--json", metavar="FILE", help='constants and rows as JSON; "-" prints it alone')


def run(args: argparse.Namespace) -> int:
    """Measure, or read; then fit and write."""
    output = common.output_path(args.output)
    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"-o {args.output}: a device file ends in .yaml, as in my_gpu.yaml")
    if args.table and (args.measure_only or args.restart):
        raise InputError("--from fits a table without measuring; leave out --measure-only and --restart")
    path = Path(args.table) if args.table else output.with_suffix(".jsonl")
    if not args.table:
        _check_fits(args)
        measured = _measure(args, path)
        if args.measure_only:
            if args.json:
                common.write_json(args.json, {"table": str(path), "measured": measured})
            return 0
    fit = _fitted(args, path, args.name or output.stem)
    from simcluster.evidence.calibration.written import device_text

    common.write_text(output, device_text(fit, path.name))
    if args.json != "-":
        print("\n".join(_told(fit, output)))
    if args.json:
        common.write_json(args.json, _as_json(fit))
    return 0


def _check_fits(args: argparse.Namespace) -> None:
    """What the fit needs, before minutes are spent on measuring."""
    from importlib.util import find_spec

    if args.measure_only:
        return
    missing = [name for name in ("scipy", "pydantic") if not find_spec(name)]
    if missing:
        raise InputError(
            f"fitting needs {' and '.join(missing)}; pip install 'simcluster[calibrate]', or --measure-only here and "
            "--from elsewhere"
        )
    if args.base:
        from simcluster.devices.device import load_device

        load_device(args.base)


def _measure(args: argparse.Namespace, path: Path) -> int:
    """Measure what is missing; how many cases the table now has."""
    from datetime import date

    from simcluster.evidence.calibration.cases import cases_for
    from simcluster.evidence.calibration.table import TableFile
    from simcluster.evidence.calibration.torch_measure import Bench

    cases_for(args.dtype, on_gpu=True, quick=True)  # complains about the dtype before PyTorch is imported
    bench = Bench(args.device, quick=args.quick, date=args.date or date.today().isoformat())
    table = TableFile(path, bench.machine, restart=args.restart)
    cases = cases_for(args.dtype, on_gpu=bench.on_gpu, quick=args.quick)
    left = sum(case not in table.done for case in cases)
    print(f"{bench.machine.device}: {left} of {len(cases)} cases to measure; {path} has the rest", file=sys.stderr)
    bench.measure_all(cases, table, _progress)
    return len(cases)


def _progress(done: int, cases: int, last: Measurement) -> None:
    progress(f"{done} of {cases}: {last.case.label}" if done < cases else "")


def _fitted(args: argparse.Namespace, path: Path, name: str) -> DeviceFit:
    from simcluster.devices.device import load_device
    from simcluster.evidence.calibration.fit import base_of, fit_device
    from simcluster.evidence.calibration.table import read_table

    table = read_table(path)
    base = args.base or base_of(table.machine)
    return fit_device(table, base=load_device(base) if base else None, name=name)


# --- for people, and for programs -------------------------------------------------------------------------------------


def _told(fit: DeviceFit, output: Path) -> list[str]:
    from statistics import median

    from simcluster.evidence.calibration.fit import root_mean_square
    from simcluster.evidence.calibration.written import observations

    machine = fit.table.machine
    rows = [
        [each.path, f"{each.start:.4g}", f"{each.value:.4g}",
         "at its bound" if each.at_bound else "not determined" if each.error is None else f"{each.error:.2g}"]
        for each in fit.constants
    ]  # fmt: skip
    kinds = [
        [kind, str(len(found)), f"{root_mean_square(found):.1%}", f"{median(abs(row.error) for row in found):.1%}",
         f"{max(abs(row.error) for row in found):.0%}"]
        for kind, found in fit.kinds().items()
    ]  # fmt: skip
    worst = sorted(fit.rows, key=lambda row: -abs(row.error))[:5]
    return [
        f"{machine.device}{f', {machine.date}' if machine.date else ''}, PyTorch {machine.torch}; what is not measured "
        f"is {f'from {fit.base}' if fit.base else 'the best that was measured, without a data sheet'}",
        "",
        format_table(
            [f"{len(fit.constants)} constants on {len(fit.rows)} rows", "start", "fitted", "std. error"], rows
        ),
        "",
        format_table(["model against its rows", "rows", "rms", "median", "worst"], kinds),
        "",
        "furthest off: " + "; ".join(f"{row.measurement.case.label} {row.error:+.0%}" for row in worst),
        *observations(fit.table),
        "",
        f"written: {output}; name it where a device goes, as in --cluster.device {output}",
    ]


def _as_json(fit: DeviceFit) -> dict[str, Any]:
    from simcluster.evidence.calibration.written import observations

    return {
        "machine": asdict(fit.table.machine),
        "base": fit.base,
        "device": fit.device.model_dump(mode="json", exclude_none=True),
        "constants": [asdict(each) for each in fit.constants],
        "rows": [
            {
                "case": row.measurement.case.to_dict(),
                "measured_s": row.measurement.seconds,
                "modelled_s": row.modelled,
                "error": row.error,
            }
            for row in fit.rows
        ],
        "observations": observations(fit.table),
    }
