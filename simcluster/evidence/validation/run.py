"""Validate studies: everything is checked first, then rows are played, in worker processes if wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import context
from simcluster.evidence.validation.collectives import report_collectives
from simcluster.evidence.validation.reports import Report, StudyPlan
from simcluster.evidence.validation.schedules import plan_schedules
from simcluster.evidence.validation.steps import plan_steps, report_memory
from simcluster.evidence.validation.study import StudyFile
from simcluster.evidence.validation.tables import Missing, read_table

Progress = Callable[[str, int, int], object]
"""Called with a study's name, how many of its rows are done, and how many there are."""
Runner = Callable[[Sequence[Any]], Iterable[Any]]
"""Tasks to their answers, in order."""


def validate_studies(
    files: Sequence[StudyFile],
    *,
    data: Path | None = None,
    workers: int = 1,
    progress: Progress = lambda name, done, rows: None,
) -> list[Report]:
    """The report of every study, in order.

    ``data`` is the directory of measured runs.  Raises InputError, before anything is simulated, for a study whose
    table cannot be read or lacks what the study asks for; a row that cannot be simulated is in its report.
    """
    prepared = [_prepared(file, data) for file in files]
    with in_workers(_play, workers) as runner:
        return [each if isinstance(each, Report) else each.report(_played(each, runner, progress)) for each in prepared]


_PLANS: Mapping[str, Callable[..., Report | StudyPlan]] = {
    "steps": plan_steps,
    "memory": report_memory,
    "schedules": plan_schedules,
    "collectives": report_collectives,
}
"""By kind of study its report, where that takes no simulation, else what is to be simulated."""


def _prepared(file: StudyFile, data: Path | None) -> Report | StudyPlan:
    table = read_table(file, data)
    if isinstance(table, Missing):
        return Report(file, skipped=table.reason)
    return _PLANS[file.study.kind](file, file.study, table)


@contextmanager
def in_workers(call: Callable[[Any], Any], workers: int) -> Iterator[Runner]:
    """A function on one task after the other here, or side by side in processes; answers in the order of the tasks."""
    if workers == 1:
        yield lambda tasks: map(call, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=context()) as pool:
        yield lambda tasks: pool.map(call, tasks, chunksize=max(1, len(tasks) // (64 * workers)))


def _play(task: Any) -> Any:
    """The answer, or the message why there is none."""
    try:
        return task.played()
    except InputError as problem:
        return str(problem)


def _played(plan: StudyPlan, runner: Runner, progress: Progress) -> list[Any]:
    """Every row's answer, or why it has none; runs that were measured more than once are played once."""
    found: list[Any] = list(plan.tasks)
    tasks = {index: task for index, task in enumerate(plan.tasks) if not isinstance(task, str)}
    alike: dict[str, list[int]] = {}
    for index, task in tasks.items():
        alike.setdefault(repr(task), []).append(index)
    done, each = 0, [tasks[indices[0]] for indices in alike.values()]
    for indices, answer in zip(alike.values(), runner(each), strict=True):
        for index in indices:
            found[index] = answer
        done += len(indices)
        progress(plan.name, done, len(tasks))
    return found
