"""Command ``simcluster studio``: a local web page with controls over a scenario."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.cli.terminal import stop_progress_timer
from simcluster.documents.builtin_documents import builtin_names
from simcluster.interactive.controls.settings import check_setting, sort_settings
from simcluster.interactive.page.server import serve_studio
from simcluster.interactive.page.studio_state import StudioFolder, StudioState, load_state_scenario


def run(args: argparse.Namespace) -> None:
    """Check the arguments of ``simcluster studio`` and serve the page until Ctrl-C."""
    folder, first = _read_initial_state(args.scenario, args.folder)
    given = read_overrides(args)
    if given and first is None:
        raise InputError(f"{given[0][0]}: overrides need a scenario to change; name a scenario")
    if first is not None:
        first = StudioState(first.base, sort_settings({key: check_setting(key, value) for key, value in given}))
        load_state_scenario(first, folder)
    if not 0 <= args.port < 65536:
        raise InputError(f"--port {args.port} must be from 1 to 65535; omit it for a free port")

    if args.minutes is not None and not 0 <= args.minutes < 1e6:
        raise InputError(f"--minutes {args.minutes:g} must be 0 or more; omit it to serve until Ctrl-C")
    seconds = None if args.minutes is None else 60 * args.minutes

    def announce_address(address: str) -> None:
        stop_progress_timer()
        common.print_answer(
            args,
            lambda: f"the studio runs at {address} (scenario files in {folder.path}; stop it with Ctrl-C)",
            lambda: {
                "address": address,
                "folder": str(folder.path),
                "scenario": first and first.base,
                "settings": first.to_json()["settings"] if first else {},
            },
        )
        sys.stdout.flush()
        if args.open:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # the way it ends
        serve_studio(folder.path, first, announce_address, port=args.port, seconds=seconds)


def _read_initial_state(scenario: str | None, folder: str | None) -> tuple[StudioFolder, StudioState | None]:
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"--folder {folder}: the folder does not exist; name an existing folder, or create it")
    if scenario is None:
        return StudioFolder(Path(folder or ".").resolve()), None
    if scenario in builtin_names("scenarios") and not Path(scenario).is_file():
        return StudioFolder(Path(folder or ".").resolve()), StudioState(scenario)
    path = Path(scenario)
    found = StudioFolder(Path(folder).resolve() if folder else path.resolve().parent)
    if not path.is_file():
        return found, StudioState(scenario)  # refused with what there is
    if path.resolve().parent != found.path:
        raise InputError(f"{scenario} is not in --folder {folder}; omit --folder, or name a file in that folder")
    return found, StudioState(path.name)
