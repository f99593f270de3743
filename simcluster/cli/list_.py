"""simcluster list: built-in names by kind, one line each."""

from __future__ import annotations

import argparse

from simcluster.cli import common
from simcluster.show.registry.kinds import KINDS, BuiltinEntry, list_entries, list_names, normalize_kind_name

_WHAT, _SOURCE = 110, 60  # characters in a line; show and --json have everything


def run(args: argparse.Namespace) -> None:
    """Print one list of built-in names, or an overview of all lists if no kind is named."""
    if args.kind:
        kind = normalize_kind_name(" ".join(args.kind))
        entries = list_entries(kind)
        common.print_answer(args, lambda: _list_entries(kind, entries), lambda: _entries_to_json(kind))
        return
    common.print_answer(args, _list_kinds, lambda: {kind: _entries_to_json(kind) for kind in KINDS})


def _entries_to_json(kind: str) -> list[dict[str, str]]:
    return [{"name": each.name, "what": each.description, "source": each.source} for each in list_entries(kind)]


def _list_kinds() -> str:
    rows = [[kind, str(len(list_names(kind))), f"  {_shorten(', '.join(list_names(kind)), 90)}"] for kind in KINDS]
    width = max(len(kind) for kind in KINDS)
    lines = [f"{kind.ljust(width)}  {count.rjust(3)}{some}" for kind, count, some in rows]
    return "\n".join([*lines, "", "simcluster list KIND describes them; simcluster show NAME prints one"])


def _list_entries(kind: str, entries: tuple[BuiltinEntry, ...]) -> str:
    width = max(len(entry.name) for entry in entries)
    lines = [f"{kind}: {KINDS[kind].description}; named in {KINDS[kind].used_by}", ""]
    for entry in entries:
        source = f"  [{_shorten(entry.source, _SOURCE)}]" if entry.source else ""
        lines.append(f"{entry.name.ljust(width)}  {_shorten(entry.description, _WHAT)}{source}")
    return "\n".join(lines)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."
