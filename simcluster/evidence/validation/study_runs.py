"""Validation of studies: checks all studies first, then simulates their rows, optionally in worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import multiprocessing_context
from simcluster.documents.argument_types import check_arguments
from simcluster.evidence.validation.collective_studies import report_collectives
from simcluster.evidence.validation.reports import Report, StudyPlan
from simcluster.evidence.validation.schedule_studies import plan_schedules
from simcluster.evidence.validation.step_studies import MissingTable, plan_steps, read_study_table, report_memory
from simcluster.evidence.validation.study import StudyFile, load_study

Progress = Callable[[str, int, int], object]
"""Called with a study's name, the number of completed runs, and their total."""

_PLANNERS: Mapping[str, Callable[..., Report | StudyPlan]] = {
    "steps": plan_steps, "memory": report_memory, "schedules": plan_schedules, "collectives": report_collectives,
}  # fmt: skip
"""Functions by kind of study: its report if that needs no simulation, else the plan of its runs."""


@check_arguments
def validate_studies(
    studies: Sequence[StudyFile | str | Path], *, data: Path | None = None, workers: int = 1,
    progress: Progress = lambda name, done, runs: None, ended: Callable[[Report], object] = lambda report: None,
) -> list[Report]:  # fmt: skip
    """Compare simulations with the measured runs of studies; return one report per study, in the same order.

    A study is a built-in name, a file or a StudyFile. ``ended`` is called with each report as soon as it is complete.
    ``data`` is the directory of measured runs. Equal runs of a study are simulated once; no process waits for the end
    of a study. Raises InputError, before any simulation, for a study whose table cannot be read or lacks a column; a
    row that cannot be simulated is in its report.
    """
    prepared: list[Report | StudyPlan] = []
    for study in studies:
        file = study if isinstance(study, StudyFile) else load_study(study)
        table = read_study_table(file, data)
        if isinstance(table, MissingTable):
            prepared.append(Report(file, skipped=table.reason))
        else:
            prepared.append(_PLANNERS[file.study.kind](file, file.study, table))
    plans = [each for each in prepared if isinstance(each, StudyPlan)]
    runs = {id(plan): {repr(task): task for task in plan.tasks if not isinstance(task, str)} for plan in plans}
    reports = []
    with worker_pool(_simulate_task, workers, chunk_size=1) as runner:
        stream = iter(runner([task for own in runs.values() for task in own.values()]))
        for each in prepared:
            if isinstance(each, StudyPlan):
                own, answers = runs[id(each)], dict[str, Any]()
                for done, run in enumerate(own, 1):
                    answers[run] = next(stream)
                    progress(each.name, done, len(own))
                each = each.report([answers.get(repr(task), task) for task in each.tasks])
            reports.append(each)
            ended(each)
    return reports


def _simulate_task(task: Any) -> Any:
    try:
        return task.simulate()
    except InputError as problem:
        return str(problem)


@contextmanager
def worker_pool(
    call: Callable[[Any], Any], workers: int, *, chunk_size: int = 0
) -> Iterator[Callable[[Sequence[Any]], Iterable[Any]]]:
    """Yield a function that maps ``call`` over tasks in order, in this process or in worker processes.

    ``chunk_size`` tasks are sent together (default: a 64th of a process's share).
    """
    if workers == 1:
        yield lambda tasks: map(call, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing_context(), initializer=_ignore_interrupts) as pool:
        try:
            yield lambda tasks: pool.map(call, tasks, chunksize=chunk_size or max(1, len(tasks) // (64 * workers)))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # do not start tasks without a consumer
            raise


def _ignore_interrupts() -> None:
    """Ignore interrupts in a worker process, because the parent process ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
