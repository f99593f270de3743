"""Who plays many tasks: this process, processes of our own, any executor, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.studies.sweep.dealing import Key, play_dealt
from simcluster.studies.sweep.playing import Finished, Measure, Numbered, play_on, play_serially

DASK = "dask://"
_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Players:
    """So many ``processes`` of our own, or an ``executor`` that works on ``at_once`` tasks at a time; neither: here."""

    processes: int | None = None
    executor: Executor | None = None
    at_once: int = 1

    def play(self, tasks: Iterable[Numbered], keys: Sequence[Key], measure: Measure) -> Iterator[list[Finished]]:
        """What is finished, as it is finished; ``keys`` say what neighbours share (``dealing``)."""
        if self.executor is not None:
            return play_on(self.executor, self.at_once, tasks, measure)
        if self.processes is not None:
            return play_dealt(list(tasks), keys, self.processes, measure)
        return play_serially(tasks, measure)


@contextmanager
def players_of(executor: Executor | int | str | None) -> Iterator[Players]:
    """For a number of processes, any concurrent.futures.Executor, "dask://HOST:PORT" (connected meanwhile), or None.

    InputError if no scheduler answers there, or it has no workers.
    """
    if executor is None:
        yield Players()
    elif isinstance(executor, int):
        if executor < 1:
            raise InputError(f"{executor} processes cannot play anything; use at least 1")
        yield Players(executor, at_once=executor)
    elif isinstance(executor, str):
        with _on_dask(executor) as players:
            yield players
    else:
        yield Players(executor=executor, at_once=int(getattr(executor, "_max_workers", 0) or 4))


@contextmanager
def _on_dask(address: str) -> Iterator[Players]:
    """The workers of a Dask cluster, on as many machines as it has."""
    if not address.startswith(DASK) or address == DASK:
        raise InputError(f"executor {address!r}: use a number of processes, or dask://HOST:PORT of a Dask scheduler")
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"executor {address!r} needs Dask; pip install 'simcluster[dask]'") from None
    try:
        client = Client("tcp://" + address.removeprefix(DASK), timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as problem:
        raise InputError(f"executor {address!r}: no Dask scheduler answers there ({problem})") from None
    with client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise InputError(f"executor {address!r}: the scheduler has no workers; start some with dask worker")
        yield Players(executor=client.get_executor(pure=False), at_once=workers)
