"""Players of many tasks: this process, processes of our own, any executor, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

from simcluster.base.processes import require_processes
from simcluster.documents.diagnostics import refuse
from simcluster.studies.sweep.dask_cluster import on_dask
from simcluster.studies.sweep.dealing import Key, play_dealt
from simcluster.studies.sweep.playing import Finished, Lookout, Measure, Numbered, play_on, play_serially


@dataclass(frozen=True)
class Players:
    """So many ``processes`` of our own, or an ``executor`` that works on ``at_once`` tasks at a time, after which
    ``lookout`` looks; neither: here."""

    processes: int | None = None
    executor: Executor | None = None
    at_once: int = 1
    lookout: Lookout | None = None

    def play(self, tasks: Iterable[Numbered], keys: Sequence[Key], measure: Measure) -> Iterator[list[Finished]]:
        """What is finished, as it is finished; ``keys`` say what neighbours share (``dealing``)."""
        if self.executor is not None:
            return play_on(self.executor, self.at_once, tasks, measure, self.lookout)
        if self.processes is not None:
            return play_dealt(list(tasks), keys, self.processes, measure)
        return play_serially(tasks, measure)


@contextmanager
def players_of(executor: Executor | int | str | None) -> Iterator[Players]:
    """For a number of processes, any concurrent.futures.Executor, "dask://HOST:PORT" (connected meanwhile), or None.

    InputError if no scheduler answers there, it has no workers, or one of them has another simulator.
    """
    if executor is None:
        yield Players()
    elif isinstance(executor, Integral) and not isinstance(executor, bool):
        require_processes(int(executor))
        yield Players(int(executor), at_once=int(executor))
    elif isinstance(executor, str):
        with on_dask(executor) as (cluster, workers, lookout):
            yield Players(executor=cluster, at_once=workers, lookout=lookout)
    elif not callable(getattr(executor, "submit", None)):
        takes = 'a number of processes, an executor of concurrent.futures, or "dask://HOST:PORT"'
        refuse(executor, "who plays", takes)
    else:
        assert not isinstance(executor, int)
        yield Players(executor=executor, at_once=int(getattr(executor, "_max_workers", 0) or 4))
