"""What is a trace of a job's own kernels, by its file: PyTorch profiles, or Nsight Systems exported to SQLite."""

from __future__ import annotations

from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.given_files import why_missing
from simcluster.interop.kineto.chrome import ENDINGS
from simcluster.interop.kineto.nsight import NSIGHT

REPORTS = (".nsys-rep", ".qdrep")
_HEAD = 1 << 20
"""Bytes in which a profile names its events; a result of a simulation has other keys."""


def is_trace(path: str | Path) -> bool:
    """Is that a trace, or a folder of them?

    Raises InputError for a folder that is not there, and for a report of Nsight Systems that is not exported.
    """
    if str(path).endswith("/") and not Path(path).exists():
        raise InputError(f"cannot read {path}: there is no such file or folder{why_missing(Path(path))}")
    path = Path(path)
    name = path.name
    if name.endswith(REPORTS):
        raise InputError(
            f"{path} is a report of Nsight Systems; write it as SQLite first: nsys export --type sqlite {path}"
        )
    if path.is_dir():
        return any(each.name.endswith((*ENDINGS, *NSIGHT, *REPORTS)) for each in path.iterdir())
    if name.endswith((".json.gz", *NSIGHT)):
        return True
    return name.endswith(".json") and _names_events(path)


def _names_events(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return b'"traceEvents"' in head or (head.lstrip().startswith(b"[") and b'"ph"' in head)
