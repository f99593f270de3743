"""Lookup of built-in topologies and scenarios by name."""

from __future__ import annotations

from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean


def builtin_folder(kind: str) -> Path:
    """Return the folder of the built-in "topologies" or "scenarios" (in an installation or a source tree)."""
    package = Path(__file__).parent.parent
    inside = package / "shipped" / kind
    return inside if inside.is_dir() else package.parent / kind


def builtin_names(kind: str) -> list[str]:
    """Return the sorted names of the built-in "topologies" or "scenarios"."""
    return sorted(path.stem for path in builtin_folder(kind).glob("*.yaml"))


def builtin_path(kind: str, name: str) -> Path:
    """Return the path of a built-in topology or scenario; raise InputError for an unknown name."""
    known = builtin_names(kind)
    if name not in known:
        hint = did_you_mean(name, known)
        every = f"simcluster list {kind} shows all {len(known)}"
        raise InputError(f"{name!r} is not one of the built-in {kind}{hint}; {every}: use one of those")
    return builtin_folder(kind) / f"{name}.yaml"


def reject_path_of_builtin(kind: str, path: Path) -> None:
    """Raise InputError if a path does not exist but its file name is a built-in document's, to be used alone."""
    is_ours = path.suffix in ("", ".yaml", ".yml") and path.stem in builtin_names(kind)
    if is_ours and not path.exists():
        raise InputError(
            f"{path}: no such file; one of the built-in {kind} has that name: write {path.stem}, without a folder and "
            f"ending (simcluster show {path.stem} prints it)"
        )
