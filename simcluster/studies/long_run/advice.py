"""Advice on a run of weeks: questions by name, each a function of a scenario that gives an ``Advice``."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.scenario.scenario import Scenario
from simcluster.studies.long_run.advice_checkpoints import behind, interval
from simcluster.studies.long_run.advice_lemons import lemons
from simcluster.studies.long_run.advice_memory import memory
from simcluster.studies.long_run.advice_parts import nine, spares
from simcluster.studies.long_run.advice_restarts import restart, straggler
from simcluster.studies.long_run.advised import Advice
from simcluster.studies.long_run.chunks import RunPlayer, Workers, player_of
from simcluster.studies.long_run.states import StepStates


class Advisor(Protocol):
    """What answers a question: a function of a scenario with a ``run:`` section, or its name or file."""

    def __call__(
        self,
        scenario: Scenario | str,
        *,
        states: StepStates | None = None,
        played: int | None = None,
        player: RunPlayer | None = None,
    ) -> Advice: ...


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


_GIVEN = ("scenario", "states", "player")  # not what a person says


def advise(
    question: str,
    scenario: Scenario | str,
    *,
    states: StepStates | None = None,
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    **options: Any,
) -> Advice:
    """The answer to a question of ``ADVICE``; ``states`` may be shared by several about one scenario.  ``workers`` and
    ``store`` are as in ``train``.

    InputError for a question that there is not, or an option that is another's.
    """
    if question not in ADVICE:
        raise InputError(
            f"advice: no question {question!r}{did_you_mean(question, ADVICE)}; there are {', '.join(ADVICE)}"
        )
    known = signature(ADVICE[question]).parameters
    for option in options:
        if option not in known:
            others = [name for name, other in ADVICE.items() if option in signature(other).parameters]
            whose = (
                f"it belongs to {', '.join(others)}"
                if others
                else f"it takes {', '.join(name for name in known if name not in _GIVEN)}"
            )
            raise InputError(f"advice: {question} takes no {option}; {whose}")
    with player_of(workers, store) as player:
        return ADVICE[question](scenario, states=states, played=played, player=player, **options)
