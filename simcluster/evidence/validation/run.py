"""Validate studies: everything is checked first, then rows are played, in worker processes if wanted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import context
from simcluster.evidence.validation.collectives import report_collectives
from simcluster.evidence.validation.played_rows import PlayedRows, Progress
from simcluster.evidence.validation.reports import Report, StudyPlan
from simcluster.evidence.validation.schedules import plan_schedules
from simcluster.evidence.validation.steps import plan_steps, report_memory
from simcluster.evidence.validation.stored import StoredRows
from simcluster.evidence.validation.study import StudyFile
from simcluster.evidence.validation.tables import Missing, read_table

Runner = Callable[[Sequence[Any]], Iterable[Any]]
"""Tasks to their answers."""


def validate_studies(
    files: Sequence[StudyFile],
    *,
    data: Path | None = None,
    workers: int = 1,
    store: Path | None = None,
    progress: Progress = lambda name, done, rows, left: None,
    ended: Callable[[Report], object] = lambda report: None,
) -> list[Report]:
    """The report of every study, in order, each given to ``ended`` when it is there.

    ``data`` is the directory of measured runs; in ``store``, a file, rows are kept that were played, and are not played
    again.  Raises InputError, before anything is simulated, for a study whose table cannot be read or lacks what the
    study asks for; a row that cannot be simulated is in its report.
    """
    prepared = [_prepared(file, data) for file in files]
    reports = []
    with StoredRows(store) as stored, in_workers(_timed, workers, as_done=True) as runner:
        rows = PlayedRows([each for each in prepared if isinstance(each, StudyPlan)], stored, runner, workers)
        for each in prepared:
            reports.append(each if isinstance(each, Report) else each.report(rows.of(each, progress)))
            ended(reports[-1])
    return reports


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
def in_workers(call: Callable[[Any], Any], workers: int, *, as_done: bool = False) -> Iterator[Runner]:
    """A function on one task after the other here, or side by side in processes; answers in the order of the tasks.

    A 64th of what a process has travels as one; or, ``as_done``, each task by itself, and answers come when they are
    there.
    """
    if workers == 1:
        yield lambda tasks: map(call, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=context(), initializer=_without_interrupts) as pool:

        def done(tasks: Sequence[Any]) -> Iterator[Any]:
            return (each.result() for each in as_completed([pool.submit(call, task) for task in tasks]))

        def in_order(tasks: Sequence[Any]) -> Iterator[Any]:
            return pool.map(call, tasks, chunksize=max(1, len(tasks) // (64 * workers)))

        try:
            yield done if as_done else in_order
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what nobody waits for is not begun
            raise


def _without_interrupts() -> None:
    """A terminal interrupts all of its processes; the one that began these ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _timed(run: tuple[int, Any]) -> tuple[int, Any, float]:
    """Of a numbered task the answer, or the message why there is none; and the seconds that it took."""
    number, task = run
    begun = time.perf_counter()
    try:
        return number, task.played(), time.perf_counter() - begun
    except InputError as problem:
        return number, str(problem), time.perf_counter() - begun
