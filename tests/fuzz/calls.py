"""What is asked of simcluster otherwise than by a command line: requests of the studio, texts of a notebook."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from fuzz.case import BEGUN, Case


def _refused(problem: Exception) -> int:
    sys.stderr.write(f"simcluster: error: {problem}\n")
    return 2


def studio_message(case: Case) -> int:
    """A message of the studio's page, and what is answered for each part of it."""
    from simcluster.base.errors import InputError
    from simcluster.interactive.page.page_parts import PageQuery, compute_page_part
    from simcluster.interactive.page.server import _parse_message
    from simcluster.interactive.page.studio_state import parse_state

    try:
        told = _parse_message(case.files["message.json"].decode("utf-8", "surrogateescape"))
        live = parse_state(told.get("live"))
        pinned = None if told.get("pinned") is None else parse_state(told["pinned"])
        changed = told.get("changed", "")
        asked = PageQuery(live, pinned, Path.cwd(), changed if isinstance(changed, str) else "")
        json.dumps(compute_page_part(asked, "answer"), allow_nan=False)
    except InputError as problem:
        return _refused(problem)
    return 0


def studio_link(case: Case) -> int:
    """A link of the studio, and the scenario that it stands for."""
    from simcluster.base.errors import InputError
    from simcluster.interactive.page.page_parts import scenario_text
    from simcluster.interactive.page.studio_state import parse_link

    try:
        sys.stdout.write(scenario_text(parse_link(case.files["link.txt"].decode("utf-8", "replace")), Path.cwd()))
    except InputError as problem:
        return _refused(problem)
    return 0


def notebook_text(case: Case) -> int:
    """A scenario as text, as a notebook has it, played and shown."""
    from simcluster.base.errors import InputError
    from simcluster.base.progress import set_estimate_limit
    from simcluster.scenario.scenario import load_text
    from simcluster.step.simulate import simulate

    try:
        with set_estimate_limit(BEGUN):
            result = simulate(load_text(case.files["cell.txt"].decode("utf-8", "replace")))
        repr(result)
        result._repr_html_()  # type: ignore[attr-defined]
    except InputError as problem:
        return _refused(problem)
    return 0


def studio_request(case: Case) -> int:
    """A part of the studio's page that is asked for, or a state that is saved."""
    from simcluster.base.errors import InputError
    from simcluster.interactive.page.page_parts import PageQuery, compute_page_part
    from simcluster.interactive.page.studio_state import StudioFolder, parse_state
    from simcluster.interactive.page.worker_pool import PagePart

    asked = json.loads(case.files["request.json"].decode("utf-8", "surrogateescape"))
    told = asked["message"] if isinstance(asked["message"], dict) else {}
    try:
        live = parse_state(told.get("live"))
        pinned = None if told.get("pinned") is None else parse_state(told["pinned"])
        if isinstance(told.get("save"), str):
            StudioFolder(Path.cwd()).path_to_write(told["save"])
        PagePart.from_content(compute_page_part(PageQuery(live, pinned, Path.cwd(), "parallel.tp"), asked["part"]))
    except InputError as problem:
        return _refused(problem)
    return 0


def python_call(case: Case) -> int:
    """A public function, called with one argument changed, and its answer shown."""
    import simcluster
    from fuzz.arguments import FUNCTIONS, VALUES
    from simcluster.base.progress import set_estimate_limit

    asked = json.loads(case.files["call.json"])
    value = asked["given"] if "given" in asked else VALUES[asked["value"]]()
    given = {**FUNCTIONS[asked["function"]], asked["argument"]: value}
    try:
        with set_estimate_limit(BEGUN):
            repr(getattr(simcluster, asked["function"])(**given))
    except simcluster.InputError as problem:
        return _refused(problem)
    return 0


CALLS: dict[str, Callable[[Case], int]] = {
    "studio message": studio_message,
    "studio link": studio_link,
    "notebook text": notebook_text,
    "studio request": studio_request,
    "Python call": python_call,
}
