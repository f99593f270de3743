"""Validate studies: everything is checked first, then rows are played, in worker processes if wanted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import context
from simcluster.evidence.validation.collectives import report_collectives
from simcluster.evidence.validation.reports import Report, StudyPlan
from simcluster.evidence.validation.schedules import plan_schedules
from simcluster.evidence.validation.steps import plan_steps, report_memory
from simcluster.evidence.validation.stored import StoredRows
from simcluster.evidence.validation.study import StudyFile
from simcluster.evidence.validation.tables import Missing, read_table

Progress = Callable[[str, int, int, float | None], object]
"""Called with a study's name, how many of its runs are done, how many there are, and the seconds that those of all
studies may still take, as soon as that can be said."""


@dataclass
class _StudyRuns:
    """The runs of a study, by what they say: runs that were measured more than once are played once."""

    plan: StudyPlan
    runs: dict[str, Any]
    answers: dict[str, Any]
    seconds: list[float] = field(default_factory=list)

    def todo(self) -> list[tuple[_StudyRuns, str]]:
        return [(self, run) for run in self.runs if run not in self.answers]

    def left(self) -> float:
        """Seconds of the runs that are left, at the pace of the others; nan without any."""
        many = len(self.runs) - len(self.answers)
        pace = sum(self.seconds) / len(self.seconds) if self.seconds else float("nan")
        return many * pace if many else 0.0


class PlayedRows:
    """The answers of all rows of studies, which are one stream of runs: no process waits for the end of a study, and
    what is done is stored, however long a run before it goes on.

    Before the first of several studies one run of each is played: what the others may take is said by that.
    """

    def __init__(
        self,
        plans: Sequence[StudyPlan],
        stored: StoredRows,
        runner: Callable[[Sequence[tuple[int, Any]]], Iterable[tuple[int, Any, float]]],
        workers: int,
    ) -> None:
        self._stored, self._runner, self._workers = stored, runner, workers
        self._studies = [self._begun(plan) for plan in plans]
        several = len(plans) > 1
        self._first = [todo[len(todo) // 2] for study in self._studies if several and (todo := study.todo())]
        self._stream = self._played()

    def _begun(self, plan: StudyPlan) -> _StudyRuns:
        runs = {repr(task): task for task in plan.tasks if not isinstance(task, str)}
        found = {run: self._stored.find(task) for run, task in runs.items()}
        return _StudyRuns(plan, runs, {run: answer for run, answer in found.items() if answer is not None})

    def of(self, plan: StudyPlan, progress: Progress) -> list[Any]:
        """Every row's answer of a study, or why it has none; studies are asked for in their order."""
        first, done = self._first, 0
        while done < len(first):
            next(self._stream)
            if (now := sum(run in study.answers for study, run in first)) > done:
                done = now
                progress("one row of each study", done, len(first), None)
        self._first = []
        (study,) = (each for each in self._studies if each.plan is plan)
        while study.todo():
            next(self._stream)
            progress(plan.name, len(study.answers), len(study.runs), self._left())
        return [task if isinstance(task, str) else study.answers[repr(task)] for task in plan.tasks]

    def _left(self) -> float:
        return sum(study.left() for study in self._studies) / self._workers

    def _played(self) -> Iterator[None]:
        """Every run that is not stored, as they are done: begun are the first ones, then study by study."""
        first = {(id(study), run) for study, run in self._first}
        rest = (each for study in self._studies for each in study.todo() if (id(study), each[1]) not in first)
        todo = [*self._first, *rest]
        tasks = [study.runs[run] for study, run in todo]
        for number, answer, seconds in self._runner(list(enumerate(tasks))):
            study, run = todo[number]
            study.answers[run] = answer
            study.seconds.append(seconds)
            self._stored.add(tasks[number], answer)
            yield


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
