"""Libraries of extras that a command line needs: all that are missing are named at once, before any work is done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from simcluster.base.errors import InputError

_OVERRIDES = ("overrides", "set", "vary")


class ExtraNeed(NamedTuple):
    """Something on a command line that needs a module, what it is called, the extra that has it, and what else would
    do."""

    what: str
    module: str
    named: str
    extra: str
    instead: str = ""


def refuse_missing(args: argparse.Namespace) -> None:
    """InputError that names every library which this command line needs and that is not there."""
    refuse(_needs(args))


def refuse(needs: Iterable[ExtraNeed]) -> None:
    """The same of these needs."""
    missing = [need for need in dict.fromkeys(needs) if not there(need.module)]
    if not missing:
        return
    of_what: dict[str, list[str]] = {}
    for need in missing:
        of_what.setdefault(need.what, []).append(need.named)
    told = "; ".join(f"{what} needs {_and(named)}" for what, named in of_what.items())
    extras = ",".join(sorted({need.extra for need in missing}))
    instead = "; or ".join(dict.fromkeys(need.instead for need in missing if need.instead))
    raise InputError(f"{told}; pip install 'simcluster[{extras}]'" + (f", or {instead}" if instead else ""))


def _and(names: list[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _needs(args: argparse.Namespace) -> Iterator[ExtraNeed]:
    for name, value in vars(args).items():
        several = value if isinstance(value, list) and name not in _OVERRIDES else [value]
        for path in several:
            if isinstance(path, str | Path) and str(path).endswith(".parquet"):
                yield ExtraNeed(f"{path}: Parquet", "pyarrow", "pyarrow", "parquet", "use .csv")
    address = getattr(args, "executor", None)
    if isinstance(address, str) and address.startswith("dask://"):
        yield ExtraNeed(f"--executor {address}", "distributed", "Dask", "dask", "give a number of processes")
    if args.command == "studio":
        for module, named in (("starlette", "Starlette"), ("uvicorn", "uvicorn"), ("websockets", "websockets")):
            yield ExtraNeed("the studio", module, named, "studio", "write a page with simcluster report")
    if args.command == "chakra":
        yield ExtraNeed("an execution trace", "google.protobuf", "protobuf", "chakra")


def of_calibration(args: argparse.Namespace) -> Iterator[ExtraNeed]:
    """What ``calibrate`` needs, which asks when it has looked at its arguments: PyTorch to measure (and then nothing
    else), the rest to fit."""
    if not args.table:
        elsewhere = "fit a table that was measured elsewhere with --from"
        yield ExtraNeed("measuring", "torch", "PyTorch", "calibrate", elsewhere)
    if not args.measure_only:
        for name in ("scipy", "pydantic"):
            yield ExtraNeed("fitting", name, name, "calibrate", "--measure-only here and --from elsewhere")


def there(module: str) -> bool:
    """Can it be imported?  Without importing it, which may take seconds."""
    if sys.modules.get(module.partition(".")[0], sys) is None or sys.modules.get(module, sys) is None:
        return False
    try:
        return module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):
        return False
