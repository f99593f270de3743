"""Advice on a run of weeks: questions by name, each a function of a bench of policies that gives an ``Advice``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.studies.advice_checkpoints import behind, interval, memory
from simcluster.longrun.studies.advice_lemons import lemons
from simcluster.longrun.studies.advice_parts import nine, spares
from simcluster.longrun.studies.advice_restarts import restart, straggler
from simcluster.longrun.studies.advised import Advice
from simcluster.longrun.studies.assumptions import assumptions_of
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.chunks import Workers, player_of
from simcluster.longrun.studies.policies import PolicyBench, bench_of
from simcluster.longrun.studies.states import StepStates
from simcluster.scenario.scenario import Scenario
from simcluster.studies.sweep.sweep import Progress


class Advisor(Protocol):
    """What answers a question of a bench; what else it takes are options by name."""

    def __call__(self, bench: PolicyBench) -> Advice: ...


ADVICE: Mapping[str, Advisor] = {
    "interval": interval,
    "spares": spares,
    "restart": restart,
    "straggler": straggler,
    "behind": behind,
    "memory": memory,
    "nine": nine,
    "lemons": lemons,
}
"""Questions by name: a function and a line here."""


def advise(
    question: str,
    scenario: Scenario | str,
    *,
    states: StepStates | None = None,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    progress: Progress = lambda done, total, wrong: None,
    **options: Any,
) -> Advice:
    """The answer to a question of ``ADVICE``; ``states`` may be shared by several about one scenario.  ``workers``,
    ``store`` and ``progress`` are as in ``train``.

    InputError for a question that there is not, or an option that is another's.
    """
    if question not in ADVICE:
        raise InputError(
            f"advice: no question {question!r}{did_you_mean(question, ADVICE)}; there are {', '.join(ADVICE)}"
        )
    known = _options(question)
    for option in options:
        if option not in known:
            others = [name for name in ADVICE if option in _options(name)]
            whose = f"it belongs to {', '.join(others)}" if others else f"it takes {', '.join([*known, 'played'])}"
            raise InputError(f"advice: {question} takes no {option}; {whose}")
    with player_of(workers, store, progress) as player:
        bench = bench_of(scenario, states, played, player)
        found = ADVICE[question](bench, **options)
        return replace(found, assumed=_assumed(bench))


def _assumed(bench: PolicyBench) -> tuple[str, ...]:
    """Return what an answer assumes; where the scenario's own interval is invalid, with the best one."""
    try:
        run = bench.with_section()
    except InputError:
        spec = section_of(bench.scenario).checkpoint
        run = bench.with_section(checkpoint=spec.model_copy(update={"every": "auto", "memory": None}))
    return assumptions_of(bench.scenario, run)


def _options(question: str) -> list[str]:
    """What a question takes beside its bench."""
    return [name for name in signature(ADVICE[question]).parameters if name != "bench"]
