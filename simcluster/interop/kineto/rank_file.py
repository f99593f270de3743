"""A profile of one rank besides its events: its head, its calls' arguments, and the folder of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.interop.kineto.comm import Comm

RANKS_WRITTEN = 30
"""Of longer groups, calls have the first ranks and "..." (as PyTorch writes them); the file's head has them all."""


def make_folder(folder: Path, own: Sequence[Path]) -> None:
    """A folder for these profiles and no others, which a reader would take for more ranks of the job."""
    try:
        folder.mkdir(exist_ok=True)
        others = sorted(path.name for path in folder.glob("*.json*") if path not in own)
    except OSError as problem:
        raise InputError(f"cannot write profiles to {folder}: {problem.strerror}") from None
    if others:
        raise InputError(f"cannot write profiles to {folder}: it holds {others[0]}; name an empty folder")


def head_of(rank: int, world: int, groups: Mapping[str, Comm], *, backend: str, host: str) -> dict[str, Any]:
    """What a profile says of its rank, of the job and of the rank's process groups (by name)."""
    config = [
        {"pg_name": name, "pg_desc": comm.what, "pg_size": comm.size, "ranks": list(comm.ranks)}
        for name, comm in sorted(groups.items())
        if rank in comm.ranks
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": config},
        "host_name": host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
    }


def comm_arguments(comm: Comm, elements: tuple[int, int] | None, dtype: str) -> dict[str, Any]:
    """A collective's arguments as PyTorch writes them; ``elements`` are those it takes in and gives out."""
    shown = [*map(str, comm.ranks[:RANKS_WRITTEN]), *["..."] * (len(comm.ranks) > RANKS_WRITTEN)]
    args: dict[str, Any] = {
        "Collective name": comm.kind, "Group size": comm.size, "Process Group Name": comm.group,
        "Process Group Description": comm.what,
        "Process Group Ranks": f"[{', '.join(shown)}]",
    }  # fmt: skip
    if elements is not None:
        args |= {"In msg nelems": elements[0], "Out msg nelems": elements[1], "dtype": dtype}
    if comm.sequence >= 0:
        args["Seq"] = comm.sequence
    if comm.peer:
        args |= {"Src Rank": comm.peer[0], "Dst Rank": comm.peer[1]}
    return args
