"""The report of runs as a file, from Python: what ``simcluster report`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.show.report import entry_of_result, page
from simcluster.studies.variations import Variants, named_results


def report(
    *runs: Variants,
    to: str | Path = "report.html",
    title: str = "",
    ranks: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
) -> Path:
    """Write one self-contained page about runs, the first of which the others are compared with; where it lies.

    Runs are as in ``compare``: results and scenarios, one or several, or labels with one each.  ``ranks`` are those
    whose timeline is shown (left out: the simulated ones), of all runs or by label.  InputError for no run, more than
    12, a rank that a job does not have, and a path that cannot be written.
    """
    path = Path(to)
    if path.suffix not in (".html", ".htm") or not path.parent.is_dir():
        raise InputError(f"report: cannot write {path}: name a page in a folder that is there, as in report.html")
    results, names = named_results(runs, None, "report")
    entries = [
        entry_of_result(result, name=name, ranks=ranks.get(name) if isinstance(ranks, Mapping) else ranks)
        for name, result in zip(names, results, strict=True)
    ]
    text = page(entries, title=title)
    beside = path.with_name(f".{path.name}.writing")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as problem:
        raise InputError(f"report: cannot write {path}: {problem.strerror}") from None
    return path
