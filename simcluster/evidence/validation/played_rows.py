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
    """The answers of all rows of studies.

    Before the first of several studies one run of each is played: what the others may take is said by that.
    """

    def __init__(
        self,
        plans: Sequence[StudyPlan],
        stored: StoredRows,
        runner: Callable[[Sequence[Any]], Iterable[tuple[Any, float]]],
        workers: int,
    ) -> None:
        self._stored, self._runner, self._workers = stored, runner, workers
        self._studies = [self._begun(plan) for plan in plans]
        self._probed = len(plans) < 2

    def _begun(self, plan: StudyPlan) -> _StudyRuns:
        runs = {repr(task): task for task in plan.tasks if not isinstance(task, str)}
        found = {run: self._stored.find(task) for run, task in runs.items()}
        return _StudyRuns(plan, runs, {run: answer for run, answer in found.items() if answer is not None})

    def of(self, plan: StudyPlan, progress: Progress) -> list[Any]:
        """Every row's answer of a study, or why it has none."""
        if not self._probed:
            self._probe(progress)
        (study,) = (each for each in self._studies if each.plan is plan)
        for _ in self._played(study.todo()):
            progress(plan.name, len(study.answers), len(study.runs), self._left())
        return [task if isinstance(task, str) else study.answers[repr(task)] for task in plan.tasks]

    def _left(self) -> float:
        return sum(study.left() for study in self._studies) / self._workers

    def _probe(self, progress: Progress) -> None:
        self._probed = True
        middle = [todo[len(todo) // 2] for study in self._studies if (todo := study.todo())]
        for done, _ in enumerate(self._played(middle), 1):
            progress("one row of each study", done, len(middle), None)

    def _played(self, todo: Sequence[tuple[_StudyRuns, str]]) -> Iterator[None]:
        tasks = [study.runs[run] for study, run in todo]
        for (study, run), task, (answer, seconds) in zip(todo, tasks, self._runner(tasks), strict=True):
            study.answers[run] = answer
            study.seconds.append(seconds)
            self._stored.add(task, answer)
            yield
