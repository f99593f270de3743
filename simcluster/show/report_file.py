"""``simcluster.report``: the HTML report of runs, written to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.base.written import write_text
from simcluster.documents.argument_types import checked
from simcluster.scenario.given import base_of
from simcluster.scenario.scenario import Scenario
from simcluster.show.report import make_entry, report_page
from simcluster.studies.variations import Variants, resolve_variants

Ranks = Mapping[str, Sequence[int]] | Sequence[int] | None


@checked
def report(
    *runs: Variants,
    to: str | Path = "report.html",
    title: str = "",
    ranks: Ranks = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    processes: int | None = None,
) -> Path:
    """Write a self-contained HTML report about runs and return its path; the others are compared with the first.

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
        write_text(path, _page_with_controls(runs, title, ranks, vary, processes))
        return path
    results, names = resolve_variants(runs, None, "report")
    entries = [
        make_entry(result, name=name, ranks=ranks.get(name) if isinstance(ranks, Mapping) else ranks)
        for name, result in zip(names, results, strict=True)
    ]
    write_text(path, report_page(entries, title=title))
    return path


def _page_with_controls(
    runs: Sequence[Any], title: str, ranks: Ranks, vary: Mapping[str, Sequence[Any]], processes: int | None
) -> str:
    if len(runs) != 1:
        raise InputError(f"report: vary needs a single scenario, got {len(runs)}; pass one")
    if isinstance(ranks, Mapping):
        raise InputError("report: with vary, ranks must be a list of numbers, used for every variant")
    load_provided("keys of a page")(list(vary))
    shown = partial(_chosen_ranks, None if ranks is None else tuple(ranks))
    varied = load_provided("variants of a page")(
        base_of(runs[0], "report"), dict(vary), ranks=shown, processes=processes
    )
    return str(load_provided("page of variants")(varied, title=title))


def _chosen_ranks(ranks: tuple[int, ...] | None, scenario: Scenario) -> tuple[int, ...] | None:
    return ranks
