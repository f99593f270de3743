"""Built-in documents: topologies, scenarios, and tables next to them."""

from __future__ import annotations

from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean


def shipped_folder(kind: str) -> Path:
    """Return the folder of built-in topologies or scenarios: inside a wheel's package, or next to it."""
    package = Path(__file__).parent.parent
    inside = package / "shipped" / kind
    return inside if inside.is_dir() else package.parent / kind


def shipped_names(kind: str) -> list[str]:
    """Return the names of the built-in documents of a kind ("topologies", "scenarios"), sorted."""
    return sorted(path.stem for path in shipped_folder(kind).glob("*.yaml"))


def shipped_path(kind: str, name: str) -> Path:
    """Return the file of a built-in document; raise InputError for an unknown name."""
    known = shipped_names(kind)
    if name not in known:
        hint = did_you_mean(name, known)
        every = f"simcluster list {kind} shows all {len(known)}"
        raise InputError(f"no built-in one of the {kind} is called {name!r}{hint}; {every}: use one of those")
    return shipped_folder(kind) / f"{name}.yaml"


def refuse_shipped(kind: str, path: Path) -> None:
    """Raise InputError for a missing path that has the name of a built-in document."""
    is_ours = path.suffix in ("", ".yaml", ".yml") and path.stem in shipped_names(kind)
    if is_ours and not path.exists():
        raise InputError(
            f"{path}: no such file, but one of the built-in {kind} has that name: write {path.stem} alone, in any "
            f"folder (simcluster show {path.stem} prints it)"
        )
