"""Many runs of a scenario in chunks, here or on processes; a run is the same whatever chunk and process plays it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import lru_cache, reduce
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import Crew
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.replicas import play_replicas
from simcluster.longrun.run import LongRun
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.long_run.build import long_run_of
from simcluster.studies.long_run.states import StepStates

MOST_TOGETHER = 2500
"""Runs of a chunk: more at once are no faster."""


@dataclass(frozen=True)
class Chunk:
    """Runs ``first`` to ``first + count`` of a scenario, as text that any process understands, with the states of its
    cluster as they were played already."""

    document: str
    states: Mapping[str, float]
    seed: int
    first: int
    count: int


def play_chunks(
    scenario: Scenario,
    run: LongRun,
    states: Mapping[str, float],
    count: int,
    workers: int | Executor = 1,
    *,
    first: int = 0,
) -> Outcomes:
    """So many runs from ``first`` on, in order.  ``workers`` is a number of processes or any executor; InputError if it
    is below 1."""
    if isinstance(workers, int) and workers < 1:
        raise InputError(f"{workers} processes cannot play anything; use at least 1")
    if workers == 1:
        return play_replicas(run, scenario.seed, count, first)
    members = workers if isinstance(workers, int) else int(getattr(workers, "_max_workers", 0) or 4)
    text = json.dumps(scenario.document())
    chunks = [Chunk(text, dict(states), scenario.seed, first + begin, many) for begin, many in _parts(count, members)]
    if isinstance(workers, int):
        tables = _on_crew(chunks, min(workers, len(chunks)))
    else:
        tables = list(workers.map(play_chunk, chunks))
    return reduce(Outcomes.joined, (Outcomes(run, **table) for table in tables))


def _parts(count: int, members: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each chunk: as many for every member, none too large."""
    whole = -(-count // members)
    each = -(-whole // -(-whole // MOST_TOGETHER))
    return ((first, min(each, count - first)) for first in range(0, count, each))


def play_chunk(chunk: Chunk) -> dict[str, Any]:
    """The fields of its outcomes but for the run, which holds functions that cannot be sent."""
    outcomes = play_replicas(_run_of(chunk.document, tuple(chunk.states.items())), chunk.seed, chunk.count, chunk.first)
    return {field.name: getattr(outcomes, field.name) for field in fields(outcomes) if field.name != "run"}


@lru_cache(maxsize=4)
def _run_of(document: str, states: tuple[tuple[str, float], ...]) -> LongRun:
    scenario = from_document(json.loads(document))
    return long_run_of(scenario, StepStates(scenario, dict(states)))


def _on_crew(chunks: list[Chunk], members: int) -> list[dict[str, Any]]:
    """On processes of our own; a chunk whose process dies is played again, here."""
    crew = Crew(play_chunk, members)
    found: dict[int, dict[str, Any]] = {}
    under_way: dict[int, int] = {}
    waiting = list(range(len(chunks)))

    def go_on(member: int) -> None:
        if waiting:
            under_way[member] = waiting.pop(0)
            crew.begin(member, chunks[under_way[member]])

    try:
        for member in range(members):
            go_on(member)
        while under_way:
            for member, table in crew.finished(list(under_way)):
                number = under_way.pop(member)
                found[number] = play_chunk(chunks[number]) if table is None else table
                go_on(member)
    except BaseException:
        crew.close(now=True)
        raise
    crew.close()
    return [found[number] for number in range(len(chunks))]
