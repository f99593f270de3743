"""What several test files share: a scenario that plays in milliseconds, and a run's table in one form."""

from __future__ import annotations

import gc
import inspect
import os
import runpy
import sys
import threading
from pathlib import Path

# pytest rewrites every file of tests as it reads it, and the suite starts many Pythons. Containers often tell Python to
# keep no byte code; the tests keep theirs, as they do elsewhere: reading them takes less than half of the time then.
# It stands above the other imports since each process would compile 300 files anew: those of Hypothesis and ours.
sys.dont_write_bytecode = False

gc.disable()  # until all tests are collected: hardly anything of that is garbage, and looking for it took a third

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers find what the first process has compiled
    try:
        runpy.run_path(str(Path(__file__).parents[1] / "hatch_build.py"))["rebuild"]()
    except (Exception, SystemExit) as problem:  # the package runs as plain Python then
        print(
            f"not compiled, so tests are slow: python hatch_build.py shows the {type(problem).__name__}",
            file=sys.stderr,
        )

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import wraps
from typing import Any

import chromium
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from simcluster.base.errors import InputError
from simcluster.base.link_columns import LinkValues
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate_job
from simcluster.planning.ops import StageProgram
from simcluster.planning.rank_grid import RankLayout
from simcluster.results.simulated_run import Run
from simcluster.scenario import scenario_fields
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.step import engine_run, step_plan
from simcluster.symmetry.folding import SymmetryFinder
from simcluster.topology import Cluster
from simcluster.topology.spec import TopologySpec
from simcluster.traffic.collective_methods import MethodChooser

# The same examples in every run, and no clock in the verdict: few, since the suite draws the same facts in many ways.
# `pytest --hypothesis-profile=default` looks further, and `python tests/drawn --count 5000` as far as one likes.
settings.register_profile("simcluster", max_examples=40, derandomize=True, deadline=None)
settings.load_profile("simcluster")
# Newer versions of Hypothesis also draw constants of the modules imported so far, which depend on the tests that a
# process has run before.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish() -> None:
    """Seldom go through what lives as long as the session: the garbage collector took 7 % of the time to do so."""
    gc.freeze()
    gc.unfreeze()  # all that is there is in the oldest generation
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collect what is garbage, once: pytest does it twice more, and Python when it ends."""
    gc.collect()
    gc.freeze()


def for_each(
    argument: str, values: Iterable[Any], named: Callable[[Any], str] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test with every value of an argument, as one test, and names the value that fails.

    It is for tests of about a millisecond: each test takes another 4 ms of pytest's, in all of its processes.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def tested(*given: Any, **others: Any) -> None:
            for value in values:
                try:
                    test(*given, **others, **{argument: value})
                except BaseException as problem:
                    problem.add_note(f"{argument}: {named(value)}")
                    raise

        takes = inspect.signature(test)
        rest = [each for name, each in takes.parameters.items() if name != argument]
        tested.__signature__ = takes.replace(parameters=rest)  # type: ignore[attr-defined]
        return tested

    return decorate


Tiny = Callable[..., Scenario]
Table = Callable[[Run, int], pd.DataFrame]

_TINY: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 1},
    "model": {
        "layers": 4,
        "hidden_size": 256,
        "heads": 8,
        "kv_heads": 8,
        "ffn_hidden_size": 1024,
        "vocab_size": 1000,
        "sequence_length": 128,
        "gated_mlp": False,
        "tied_embeddings": False,
    },
    "parallel": {},
    "pipeline": {"schedule": "1f1b"},
    "training": {"global_batch": 4},
    "overlap": {"interference": "none"},  # times are what the formulas say
}


def tiny_scenario(
    *, faults: list[dict[str, Any]] | None = None, steps: int = 1, **sections: Mapping[str, Any]
) -> Scenario:
    """A small GPT on one flat switch, with fields of its sections changed; ``cluster`` is replaced whole."""
    document = {
        name: {**scenario_fields, **sections.pop(name, {})}
        for name, scenario_fields in _TINY.items()
        if name != "cluster"
    }
    document["cluster"] = sections.pop("cluster", _TINY["cluster"])
    document.update(sections)
    return from_document({**document, "faults": faults or [], "steps": steps})


def counts_of(schedule: str, stages: int, microbatches: int = 0) -> tuple[int, int]:
    """Chunks and microbatches of a registered schedule: so many where it can be made of them, else two a stage."""
    chunks = 2 if SCHEDULES[schedule].takes_chunks else 1
    try:
        make_schedule(schedule, stages, microbatches, chunks)
    except InputError:
        microbatches = 2 * stages
    return chunks, microbatches


def table_of(run: Run, rank: int) -> pd.DataFrame:
    """All columns of a rank's timeline, in an order that does not depend on how it was played."""
    spans = run.spans.of_rank(run.representative_of(rank))
    place = np.argsort(np.argsort(spans.words))  # of a word by its letters: codes are a run's own
    texts = [place[column] for column in (spans.stream, spans.kind, spans.name)]
    keys = spans.start, spans.end, *texts, spans.ready, spans.microbatch, spans.chunk, spans.step, spans.layer
    return run.timeline_of(rank).take(np.lexsort(keys[::-1])).reset_index(drop=True)


def run_programs(
    programs: Sequence[StageProgram], plan: RankLayout, fabric: Any, *, folded: bool = True, steps: int = 1
) -> Run:
    """Return the run of stages' programs on a cluster at full speed, by the compiled engine."""
    capacity = getattr(fabric, "link_capacity", LinkValues(np.zeros(0)))
    symmetry, slowness = SymmetryFinder(programs, plan, fabric, MethodChooser({})), [1.0] * plan.num_ranks
    folding = symmetry.fold_job(capacity, slowness) if folded else symmetry.trivial_folding(len(capacity))
    job = tabulate_job(programs, plan, fabric, capacity, folding, slowness=slowness)
    return Run(
        record=simulate_job(job), folding=folding, capacity=job.tables.capacity.tolist(), hop_by_hop=False, steps=steps,
        ranks=range(plan.num_ranks),
    )  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Set what makes the suite quick.

    Hundreds of tests build the same clusters and plans, and so do some files of tests as they are imported.
    """
    scenario_fields._build_cluster = _KeptByText(scenario_fields._build_cluster.__wrapped__)
    step_plan.plan_step = _once(step_plan.plan_step)
    _note_patches()
    # Of steps that simulate() is given SimPy takes those of up to 166 ops, the compiled engine the others, as it does
    # of all larger ones; both give the same bits (tests/drawn).  SimPy took a fifth of the processor time of all tests.
    engine_run.SIMPY_SECONDS = 0.01


SIMPY_SECONDS = engine_run.SIMPY_SECONDS
"""The package's own limit, above which it takes the compiled engine."""


@pytest.fixture
def usual_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose engines as users have them: for tests that compare their names, or with another process."""
    monkeypatch.setattr(engine_run, "SIMPY_SECONDS", SIMPY_SECONDS)


class _KeptByText:
    """Clusters kept by what their topologies say: those with a device written inline have no hash.

    It is used as ``lru_cache``, which it replaces.
    """

    def __init__(self, build: Callable[[TopologySpec], Cluster]) -> None:
        self.__wrapped__ = build
        self._known: dict[str, Cluster] = {}

    def __call__(self, topology: TopologySpec) -> Cluster:
        name = repr(topology)
        if name not in self._known:
            while len(self._known) > 63:
                self._known.pop(next(iter(self._known)))
            self._known[name] = self.__wrapped__(topology)
        return self._known[name]

    def cache_clear(self) -> None:
        self._known.clear()


PLANNED: dict[Hashable, step_plan.PlannedStep] = {}
"""The last plans, for any faults; cleared where something is put in place of a part of the package."""
_KEPT_PLANS = 12
_patched = False


def pytest_runtest_setup() -> None:
    """No test sees what another has planned with something else in place of a part of the package."""
    global _patched
    if _patched:
        PLANNED.clear()
    _patched = False


def _note_patches() -> None:
    """Forget plans at the first patch of the package in a test, and before the test that comes after it.

    Modules, classes and functions of the package count, by name or by themselves, and entries of any registry.
    """

    def noting(patch: Callable[..., None]) -> Callable[..., None]:
        @wraps(patch)
        def noted(self: pytest.MonkeyPatch, target: Any, *given: Any, **others: Any) -> None:
            global _patched
            owner = target if isinstance(target, str) else getattr(target, "__module__", "") or ""
            owner = owner if owner or isinstance(target, dict) else getattr(target, "__name__", "")
            if not _patched and (isinstance(target, dict) or owner.startswith("simcluster")):
                PLANNED.clear()
                _patched = True
            patch(self, target, *given, **others)

        return noted

    for name in "setattr", "delattr", "setitem", "delitem":
        setattr(pytest.MonkeyPatch, name, noting(getattr(pytest.MonkeyPatch, name)))


def _once(plan: Callable[..., step_plan.PlannedStep]) -> Callable[..., step_plan.PlannedStep]:
    """Planning is pure, and tests simulate the same scenario in several ways and with several faults.

    It, and the search for equal ranks that a plan keeps, took a fifth of all time.
    """

    @wraps(plan)
    def found(scenario: Scenario, change: Any = list, *, trains: bool = True) -> step_plan.PlannedStep:
        if change is not list or not trains:
            return plan(scenario, change, trains=trains)
        said = tuple(getattr(scenario, name) for name in Scenario.model_fields if name not in ("engine", "faults"))
        key = step_plan.collective_options, said
        try:
            hash(key)
        except TypeError:  # a device written inline has no hash
            return plan(scenario)
        known = PLANNED.pop(key, None)
        while len(PLANNED) >= _KEPT_PLANS:
            PLANNED.pop(next(iter(PLANNED)))
        PLANNED[key] = known = known or plan(scenario)
        return known

    return found


class AtOnce(Executor):
    """Somebody's own executor: in this thread."""

    def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task(*args, **kwargs))
        return future


@pytest.fixture
def dask_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Dask cluster of two processes, which leaves no thread behind.

    Dask keeps one for its pickling for as long as the process lives.  After it every process of every later test would
    be a fresh Python instead of a copy (``base.processes.process_context``), at a second each.
    """
    import distributed

    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pickling:
        monkeypatch.setattr(distributed.utils, "_offload_executor", pickling)
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
            yield cluster.scheduler_address.replace("tcp://", "dask://")
    ending = [thread for thread in threading.enumerate() if thread not in before]
    for thread in ending:  # those that watch a process may end a little after the cluster
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in ending), "a thread is left behind"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """A browser for all tests of pages, which takes longer to start than most of them."""
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sweep plays on processes of its own is played here: for tests of something else, at a second a process."""
    from simcluster.studies.sweep.variant_simulation import simulate_serially

    monkeypatch.setattr(
        "simcluster.studies.sweep.sweep_executor.simulate_in_processes",
        lambda variants, keys, workers, measure: simulate_serially(variants, measure),
    )


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return tiny_scenario


@pytest.fixture(scope="session")
def table() -> Table:
    return table_of
