"""Chunks of simulated runs for parallel workers, saved in a store so that a killed command can resume.

A run is the same to the bit in whatever chunk, process and host it is simulated. A stored chunk is found by everything
it was made from: the run in numbers, its seed, which of its runs, and the simulator's own sources.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from simcluster.base.errors import InputError
from simcluster.base.progress import report_phase
from simcluster.base.store import RowStore
from simcluster.base.version import sources_digest
from simcluster.longrun.long_run import LongRun, OutcomeCollector, RunOutcomes
from simcluster.longrun.run_feasibility import check_simulation_size
from simcluster.longrun.simulation import simulate_runs
from simcluster.results.result import VERSION
from simcluster.studies.sweep.sweep import Progress
from simcluster.studies.sweep.sweep_executor import SweepExecutor, open_executor
from simcluster.studies.sweep.variant_simulation import Row


def remove_labels(run: LongRun) -> LongRun:
    """Return a copy of the run for other processes, with device names and unused device classes removed."""
    columns = [None if cause.paces is None else cause.device_class for cause in run.causes]
    causes = zip(run.causes, columns, strict=True)
    return replace(run, causes=tuple(replace(cause, label=str, device_class=column) for cause, column in causes))


def run_digest(run: LongRun) -> str:
    """Return a hash of a run's numbers and distributions, to recognise equal runs."""
    return hashlib.sha256(json.dumps(_content_for_digest(remove_labels(run)), sort_keys=True).encode()).hexdigest()


def _content_for_digest(value: Any) -> Any:
    if value is None or value is str or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, tuple | list):
        return [_content_for_digest(each) for each in value]
    if isinstance(value, Mapping):
        return {repr(key): _content_for_digest(each) for key, each in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, BaseModel):
        return [kind, {name: _content_for_digest(getattr(value, name)) for name in type(value).model_fields}]
    if is_dataclass(value):
        return [kind, {field.name: _content_for_digest(getattr(value, field.name)) for field in fields(value)}]
    raise TypeError(f"internal error: the digest of a run does not support {kind}")


MOST_PER_CHUNK = 4000
"""Most runs in a chunk: more at once are hardly faster, and take more memory."""

Workers = int | str | Executor
"""Workers: a number of processes, "dask://HOST:PORT", or any concurrent.futures.Executor."""
Name = TypeVar("Name")


@dataclass(frozen=True)
class RunChunk:
    """Chunk of ``count`` runs simulated together, numbered from ``first``; ``packed``: outcomes encoded as text."""

    run: LongRun
    seed: int
    first: int
    count: int
    packed: bool

    def store_key(self, digest: str) -> str:
        """Return the key under which the store saves the chunk; ``digest`` identifies the run."""
        text = json.dumps([sources_digest(), digest, self.seed, self.first, self.count])
        return hashlib.sha256(text.encode()).hexdigest()


Place = tuple[str, int]
"""Position of a chunk: digest of its run, and its first run's number."""
Chunks = dict[Place, RunChunk]


def _split_chunks(count: int, members: int) -> list[tuple[int, int]]:
    """Split ``count`` runs into chunks, equal in size for each worker; return (first run, number of runs) of each."""
    each = MOST_PER_CHUNK
    if members:
        whole = -(-count // members)
        each = -(-whole // -(-whole // MOST_PER_CHUNK))
    return [(first, min(each, count - first)) for first in range(0, count, each)]


def simulate_chunk(chunk: RunChunk) -> Row:
    """Simulate a chunk of runs; return the outcomes, with arrays encoded as text if ``packed``."""
    columns: Any = simulate_runs(chunk.run, chunk.seed, chunk.count, chunk.first).arrays_by_name()
    if chunk.packed:
        file = BytesIO()
        np.savez_compressed(file, allow_pickle=False, **columns)
        columns = base64.b64encode(file.getvalue()).decode()
    return {"status": "ok", "error": "", "runs": columns}


@dataclass(frozen=True)
class RunSimulator:
    """Simulator of long runs on parallel workers or in this process (default), with an optional ``store``."""

    executor: SweepExecutor = field(default_factory=SweepExecutor)
    store: RowStore | None = None
    progress: Progress = lambda done, total, failed: None

    def simulate_named_runs(
        self, runs: Mapping[Name, LongRun], seed: int, count: int, first: int = 0
    ) -> dict[Name, RunOutcomes]:
        """Simulate ``count`` runs of each named run, numbered from ``first``; InputError if that takes too long."""
        for run in runs.values():
            check_simulation_size(run, count)
        digests = {name: run_digest(run) for name, run in runs.items()}
        unique = {digests[name]: run for name, run in runs.items()}
        members = -(-self.executor.num_concurrent // len(unique)) if self.store is None else 0
        chunks: Chunks = {
            (digest, begin): RunChunk(sent, seed, first + begin, many, packed=self.store is not None)
            for digest, sent in ((digest, remove_labels(run)) for digest, run in unique.items())
            for begin, many in _split_chunks(count, members)
        }
        gathered = {digest: OutcomeCollector(run, count) for digest, run in unique.items()}
        left = Counter(digest for digest, _ in chunks)
        with report_phase(lambda: f"{[*left.values()].count(0)} of {len(left)} points" if len(left) > 1 else ""):
            for (digest, begin), columns in self._chunk_outcomes(chunks):
                gathered[digest].add_chunk(begin, columns)
                left[digest] -= 1
        found = {digest: each.outcomes() for digest, each in gathered.items()}
        return {name: replace(found[digests[name]], run=run) for name, run in runs.items()}

    def _chunk_outcomes(self, chunks: Chunks) -> Iterator[tuple[Place, Mapping[str, Any]]]:
        """Yield each chunk's outcomes: first chunks found in the store, then simulated chunks, which are saved."""
        store = self.store
        keys = {} if store is None else {place: chunk.store_key(place[0]) for place, chunk in chunks.items()}
        done = set() if store is None else store.find_stored_keys(keys.values())
        places = [place for place in chunks if keys.get(place) not in done]
        total = sum(chunk.count for chunk in chunks.values())
        there = total - sum(chunks[place].count for place in places)
        self.progress(there, total, 0)
        for place, key in keys.items():
            if store is not None and key in done:
                (row,) = store.read_rows([key])
                yield place, _unpack_arrays(row["runs"])
        tasks = [(number, chunks[place]) for number, place in enumerate(places)]
        for rows in self.executor.simulate(tasks, [place[:1] for place in places], simulate_chunk) if places else ():
            for number, row in rows:
                place, chunk = places[number], chunks[places[number]]
                if row["status"] != "ok":
                    raise InputError(
                        f"runs {chunk.first:,} to {chunk.first + chunk.count:,}: {row['error']}; finished runs "
                        "are kept in the store, if one is used: resume with fewer processes"
                    )
                if store is not None:
                    store.add_rows([(keys[place], {"status": "ok", "error": "", "runs": row["runs"]})])
                yield place, _unpack_arrays(row["runs"]) if chunk.packed else row["runs"]
                there += chunk.count
            self.progress(there, total, 0)


def _unpack_arrays(text: str) -> dict[str, Any]:
    with np.load(BytesIO(base64.b64decode(text)), allow_pickle=False) as file:
        return dict(file)


@contextmanager
def open_run_simulator(
    workers: Workers = 1, store: str | Path | None = None, progress: Progress = lambda done, total, failed: None
) -> Iterator[RunSimulator]:
    """Yield a simulator of long runs on parallel workers; raise InputError if ``workers`` or ``store`` is invalid."""
    with open_executor(None if isinstance(workers, int) and workers == 1 else workers) as players:
        if store is None:
            yield RunSimulator(players, None, progress)
            return
        with RowStore(Path(store), VERSION, "store") as kept:
            yield RunSimulator(players, kept, progress)
