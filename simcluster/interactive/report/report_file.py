"""``simcluster.report``: the HTML report of runs, written to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.atomic_files import write_text_atomic
from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.documents.argument_types import check_arguments
from simcluster.interactive.report import make_entry, report_page
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_arguments import to_base_scenario
from simcluster.studies.variations import Variants, resolve_variants

Ranks = Mapping[str, Sequence[int]] | Sequence[int] | None


@check_arguments
def report(
    *runs: Variants,
    to: str | Path = "report.html",
    title: str = "",
    ranks: Ranks = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    processes: int | None = None,
) -> Path:
    """Write an HTML report about runs to a file, comparing each run with the first, and return the path.

    Runs are as in ``compare``: results and scenarios, one or several, or labels with one each. ``ranks`` are those
    whose timeline is shown (default: the simulated ones), for all runs or by label. With ``vary``, as in
    ``{"parallel.tp": [1, 2, 4]}``, the only run is a scenario, every combination is simulated beforehand on
    ``processes`` processes (default: one per core), and the page has a control for each key. InputError for no run,
    more than 12 (200 combinations), a rank that a job does not have, and a path that cannot be written.
    """
    path = Path(to)
    if path.suffix not in (".html", ".htm") or not path.parent.is_dir():
        raise InputError(f"report: cannot write {path}: name an .html file in an existing folder, as in report.html")
    if vary:
        write_text_atomic(path, _page_with_controls(runs, title, ranks, vary, processes))
        return path
    results, names = resolve_variants(runs, None, "report")
    entries = [
        make_entry(result, name=name, ranks=ranks.get(name) if isinstance(ranks, Mapping) else ranks)
        for name, result in zip(names, results, strict=True)
    ]
    write_text_atomic(path, report_page(entries, title=title))
    return path


def _page_with_controls(
    runs: Sequence[Any], title: str, ranks: Ranks, vary: Mapping[str, Sequence[Any]], processes: int | None
) -> str:
    if len(runs) != 1:
        raise InputError(f"report: vary needs exactly one scenario, got {len(runs)}; pass one")
    if isinstance(ranks, Mapping):
        raise InputError("report: with vary, ranks must be a list of numbers, used for every variant")
    load_satellite_object("keys of a page")(list(vary))
    shown = partial(_chosen_ranks, None if ranks is None else tuple(ranks))
    varied = load_satellite_object("variants of a page")(
        to_base_scenario(runs[0], "report"), dict(vary), ranks=shown, processes=processes
    )
    return str(load_satellite_object("page of variants")(varied, title=title))


def _chosen_ranks(ranks: tuple[int, ...] | None, scenario: Scenario) -> tuple[int, ...] | None:
    return ranks
