"""The rows of several studies, played study by study, and how long those that are left may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simcluster.evidence.validation.reports import StudyPlan
from simcluster.evidence.validation.stored import StoredRows

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
