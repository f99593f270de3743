"""Validation of studies: all are checked first, then rows are simulated, in worker processes if wanted, and stored."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from simcluster.base.errors import InputError
from simcluster.base.processes import context
from simcluster.base.store import Store
from simcluster.base.version import VERSION
from simcluster.evidence.validation.collectives import report_collectives
from simcluster.evidence.validation.reports import Report, StudyPlan
from simcluster.evidence.validation.schedules import plan_schedules
from simcluster.evidence.validation.steps import Missing, PlayedRow, RowTask, plan_steps, read_table, report_memory
from simcluster.evidence.validation.study import StudyFile
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.contents import Contents, VariantKeys
from simcluster.scenario.likely import RunKind
from simcluster.scenario.scenario import Base


class StoredRows:
    """The answers of rows of studies of steps; without a ``path`` nothing is kept.

    A row is found again by what the simulator is, what its scenario says (files that it names by their content), and
    what is measured of it.
    """

    def __init__(self, path: Path | None) -> None:
        self._store = None if path is None else Store(path, VERSION, "--store")
        self._contents = Contents()
        self._keys: dict[tuple[str, str], VariantKeys] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._store:
            self._store.close()

    def find(self, task: object) -> PlayedRow | str | None:
        """Return the answer of a row, or why it has none; None if it was not simulated yet."""
        row = self._store.row(self._key(task)) if self._store and isinstance(task, RowTask) else None
        if row is None:
            return None
        if "refused" in row:
            return str(row["refused"])
        kind = RunKind(**{**row["kind"], "traits": tuple(row["kind"]["traits"])})
        return PlayedRow(row["step_time"], row["breakdown"], StepCounts(**row["facts"]), tuple(row["warnings"]), kind)

    def add(self, task: object, answer: PlayedRow | str) -> None:
        """Keep the answer of a row."""
        if self._store is not None and isinstance(task, RowTask):
            self._contents.require_unchanged()
            row = {"refused": answer} if isinstance(answer, str) else asdict(answer)
            self._store.add([(self._key(task), row)])

    def _key(self, task: RowTask) -> str:
        base = json.dumps(task.base, sort_keys=True, default=str), str(task.folder)
        if base not in self._keys:
            self._keys[base] = VariantKeys(Base(json.loads(base[0]), base[1]), contents=self._contents)
        return self._keys[base].of(*task.changes, ("less", task.less), ("parts", task.parts))


Progress = Callable[[str, int, int, float | None], object]
"""Called with a study's name, how many of its runs are done, how many there are, and the seconds that those of all
studies may still take, as soon as that can be said."""


Runner = Callable[[Sequence[Any]], Iterable[Any]]
"""Tasks to their answers."""


class _StudyRuns:
    """The runs of a study by their text: runs that were measured more than once are simulated once."""

    def __init__(self, plan: StudyPlan, stored: StoredRows) -> None:
        self.plan, self.seconds = plan, list[float]()
        self.runs = {repr(task): task for task in plan.tasks if not isinstance(task, str)}
        found = {run: stored.find(task) for run, task in self.runs.items()}
        self.answers: dict[str, Any] = {run: answer for run, answer in found.items() if answer is not None}

    def todo(self) -> list[tuple[_StudyRuns, str]]:
        return [(self, run) for run in self.runs if run not in self.answers]

    def left(self) -> float:
        """Return seconds of the runs that are left, at the pace of the others; nan without any."""
        many = len(self.runs) - len(self.answers)
        pace = sum(self.seconds) / len(self.seconds) if self.seconds else float("nan")
        return many * pace if many else 0.0


class PlayedRows:
    """The answers of all rows of studies, as one stream of runs: no process waits for the end of a study, and what is
    done is stored, however long a run before it takes.

    One run of each of several studies is simulated first, to estimate how long the others take.
    """

    def __init__(
        self,
        plans: Sequence[StudyPlan],
        stored: StoredRows,
        runner: Callable[[Sequence[tuple[int, Any]]], Iterable[tuple[int, Any, float]]],
        workers: int,
    ) -> None:
        self._workers = workers
        self._studies = [_StudyRuns(plan, stored) for plan in plans]
        several = len(plans) > 1
        self._first = [todo[len(todo) // 2] for study in self._studies if several and (todo := study.todo())]
        self._stream = self._played(stored, runner)

    def of(self, plan: StudyPlan, progress: Progress) -> list[Any]:
        """Return every row's answer of a study, or why it has none; studies are asked for in their order."""
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
            left = sum(each.left() for each in self._studies) / self._workers
            progress(plan.name, len(study.answers), len(study.runs), left)
        return [task if isinstance(task, str) else study.answers[repr(task)] for task in plan.tasks]

    def _played(self, stored: StoredRows, runner: Runner) -> Iterator[None]:
        """Simulate every run that is not stored: the first ones, then study by study."""
        todo = dict.fromkeys([*self._first, *(each for study in self._studies for each in study.todo())])
        order = list(todo)
        tasks = [study.runs[run] for study, run in order]
        for number, answer, seconds in runner(list(enumerate(tasks))):
            study, run = order[number]
            study.answers[run] = answer
            study.seconds.append(seconds)
            stored.add(tasks[number], answer)
            yield


def validate_studies(
    files: Sequence[StudyFile],
    *,
    data: Path | None = None,
    workers: int = 1,
    store: Path | None = None,
    progress: Progress = lambda name, done, rows, left: None,
    ended: Callable[[Report], object] = lambda report: None,
) -> list[Report]:
    """Return the report of every study, in order, each given to ``ended`` when it is there.

    ``data`` is the directory of measured runs; in ``store``, a file, rows are kept that were played, and are not played
    again.  Raises InputError, before anything is simulated, for a study whose table cannot be read or lacks what the
    study asks for; a row that cannot be simulated is in its report.
    """
    prepared: list[Report | StudyPlan] = []
    for file in files:
        table = read_table(file, data)
        if isinstance(table, Missing):
            prepared.append(Report(file, skipped=table.reason))
        else:
            prepared.append(_PLANS[file.study.kind](file, file.study, table))
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


@contextmanager
def in_workers(call: Callable[[Any], Any], workers: int, *, as_done: bool = False) -> Iterator[Runner]:
    """Call a function on one task after the other here, or in processes; answers come in the order of the tasks.

    A 64th of what a process has travels as one; or, ``as_done``, each task alone, and answers come when they are there.
    """
    if workers == 1:
        yield lambda tasks: map(call, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=context(), initializer=_without_interrupts) as pool:

        def answers(tasks: Sequence[Any]) -> Iterator[Any]:
            if as_done:
                return (each.result() for each in as_completed([pool.submit(call, task) for task in tasks]))
            return pool.map(call, tasks, chunksize=max(1, len(tasks) // (64 * workers)))

        try:
            yield answers
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what nobody waits for is not begun
            raise


def _without_interrupts() -> None:
    """Ignore interrupts: a terminal interrupts all of its processes, and the one that began these ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _timed(run: tuple[int, Any]) -> tuple[int, Any, float]:
    """Return the answer of a numbered task, or the message why there is none; and the seconds that it took."""
    number, task = run
    begun = time.perf_counter()
    try:
        return number, task.played(), time.perf_counter() - begun
    except InputError as problem:
        return number, str(problem), time.perf_counter() - begun
