"""What every accelerator buys: rows of the table of benchmarks with one of them switched off alone.

``python tests/benchmarks/ablation.py [ROW [SWITCH ...]]`` prints factors of processor time over the row with all on
(cluster, planning, simulation), the least of several runs that take turns; "wrong" if the answer is another.  A switch
that says nothing of any row (1.0) is one to delete.
"""
# ruff: noqa: T201

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from table_cases import CASES

RUNS, LIMIT, LONG = 3, 100, 4.0  # the least of so many; wall seconds of one; processor seconds of what runs once
Switch = Callable[[], AbstractContextManager[None]]


def _patched(where: str, name: str, value: Any) -> Switch:
    """Puts something else in the place of ``where.name``: a module's, or a class's of a module."""

    @contextmanager
    def patch() -> Iterator[None]:
        module, _, inside = where.partition(":")
        owner = __import__(f"simcluster.{module}", fromlist=["_"])
        owner = getattr(owner, inside) if inside else owner
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return patch


def _all(*patches: Switch) -> Switch:
    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unfolded(self: Any, capacity: Any, *_: Any) -> Any:
    return self.unfolded(len(capacity))


def _not_alike(*_: Any, **__: Any) -> None:
    from simcluster.symmetry.quotient import NotAlikeError

    raise NotAlikeError


def _form(form: str) -> Switch:
    """Events of this form at the most."""
    return _patched("engine.lower", "form_of", lambda collapsed, **_: form if collapsed else "ops")


def _all_tight(bindings: Any, *_: Any) -> Any:
    import numpy as np

    return np.ones(len(bindings.link), dtype=bool)


def _one_by_one(self: Any, src: Any, dst: Any, number: Any) -> Any:
    from simcluster.topology.wiring import Wiring

    return Wiring.rows(self, src, dst, number)


def _graphs(name: str, device: Any, draft: Any, routing: Any, nccl: Any = None) -> Any:
    from simcluster.topology.cluster import make_cluster

    return make_cluster(name, device, draft.graph(), routing, nccl)


def _followed(number: int, members: Any, over: Any, now: float, courses: Any) -> Any:
    from simcluster.engine.varying_speed import Followed

    return Followed(number, members, over, now, courses.chain)


def _after(self: Any, changes: Any) -> Any:
    playing = self._playing.copy()
    playing.press_steadily(changes)
    return type(self)(playing, slowed=True)


def _each(fabric: Any, members: Any, phases: Any, *, timed: bool = True) -> Any:
    from simcluster.traffic.link_usage import _each

    return _each(fabric, members, phases)


def _plainly(scenario: Any) -> Any:
    from simcluster.simulate import replay

    return replay(scenario)


SWITCHES: dict[str, Switch] = {
    "all on": nullcontext,
    "symmetry: fold": _patched("symmetry.folding:Symmetry", "folding", _unfolded),
    "symmetry: quotient": _patched("symmetry.folding:Symmetry", "_through", lambda _: iter(())),
    "symmetry: cells": _patched("symmetry.folding", "cells_of", _not_alike),
    "symmetry: tight links": _patched("symmetry.communicators", "tight_rows", _all_tight),
    "symmetry: barriers": _patched("symmetry.communicators", "lone_axes", lambda programs, axes: ()),
    "symmetry: felt links": _patched("engine.communication", "felt", lambda *_: {}),
    "chains": _form("ops"),
    "chains: lockstep": _form("chains"),
    "chains: courses shared": _patched("engine.trajectories:Course", "after", _after),
    "chains: lead to lockstep": _form("lockstep"),
    "chains: looked at late": _all(_form("lockstep"), _patched("engine.interference", "LateTask", _followed)),
    "bulk: regular clusters": _all(
        *(_patched(f"topology.{where}", "drafted_cluster", _graphs) for where in ("fabrics", "machines", "uniform"))
    ),
    "bulk: routes": _patched("topology.regular:Regular", "rows", _one_by_one),
    "bulk: hop columns": _all(
        _patched("symmetry.usage_patterns", "drawn_at_once", _nothing),
        _patched("symmetry.usage_patterns", "drawn", _each),
    ),
    "bulk: chained trees": _patched("traffic.link_usage", "chained_trees", _nothing),
    "rates: progressive filling": _all(
        _patched("traffic.fairness", "_MANY", 1 << 60), _patched("traffic.fairness", "_PATIENCE", 1 << 60)
    ),
    "rates: free links": _patched("traffic.fairness:Shares", "join_free", lambda *_: False),
    "search: optimistic fold": _patched("studies.search.playing", "replay_on_trust", _plainly),
    "collector off": _patched("base.gc_paused", "gc", SimpleNamespace(isenabled=lambda: False, disable=lambda: None)),
}


def some_configurations() -> Any:
    """Fifty of the 1,000 of the table."""
    from table_cases import configurations

    from simcluster.scenario.scenario import Base, Variant
    from simcluster.studies.sweep.quick_rows import quickly

    document, grid = configurations()
    base = Base(document)
    return [quickly(Variant(base, tuple(changes.items())))["step_time_s"] for changes in grid[::20]]


def searched() -> Any:
    """Layouts on leaves that replicas do not fill, as a search plays them."""
    from simcluster import load
    from simcluster.studies.search.plan import alone
    from simcluster.studies.search.playing import replay_on_trust

    found = []
    for tp in (8, 4):
        layout = {"gpus": 1024, "cluster.nodes": 128, "parallel.tp": tp, "parallel.pp": 16, "parallel.dp": 64 // tp,
                  "training.global_batch": 1536, "pipeline.schedule": "1f1b", "pipeline.chunks": 1}  # fmt: skip
        found.append(replay_on_trust(alone(load("gpt3_175b_64xa100", layout))).step_time)
    return found


def scenario_case(name: str) -> Callable[[], Any]:
    """A shipped scenario's step."""

    def case() -> Any:
        from simcluster import load, simulate

        return simulate(load(name)).step_time

    return case


ROWS: dict[str, Callable[[], Any]] = {
    **{name: (lambda name=name: CASES[name]().more.partition("step")[2]) for name in (  # type: ignore[misc]
        "16,384 GPUs", "131,072 GPUs", "one slow GPU", "one slow link", "16 slow GPUs", "512 ranks unfolded",
        "fast path, P=16, M=16", "P=64, M=512, v=4", "ring of 1,024 in flow", "ring of 1,024 in steps",
    )},
    "50 configurations": some_configurations,
    "2 layouts of 1,024 GPUs": searched,
    **{name: scenario_case(name) for name in (
        "gpt3_175b_64xa100", "mixtral_8x7b_128xh100", "hsdp_7b_128xa100", "slow_gpu", "tiny_3d"
    )},
}  # fmt: skip


Found = tuple[float, str]
"""Processor seconds and the answer; infinitely many for what takes too long."""


def run(row: str, switch: str) -> Found:
    """A row with this switched off."""

    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        with SWITCHES[switch]():
            begun = time.process_time()
            answer = ROWS[row]()
            return time.process_time() - begun, repr(answer)
    except TimeoutError:
        return float("inf"), ""
    finally:
        signal.alarm(0)


def measured(row: str, switches: list[str]) -> dict[str, Found]:
    """The least of several runs of each; one after the other, so that all suffer alike from who shares the machine."""
    found: dict[str, Found] = {}
    for number in range(RUNS):
        for switch in switches:
            if not number or found[switch][0] < LONG:
                found[switch] = min(run(row, switch), found.get(switch, (float("inf"), "")))
    return found


def main(rows: list[str], switches: list[str]) -> None:
    """Print row by row the seconds with all on, and the factors of what is switched off."""
    scenario_case("tiny_dp")()  # what is imported
    for row in rows:
        found = measured(row, ["all on", *switches])
        seconds, answer = found["all on"]
        print(f"\n{row}: {seconds:.3g} s\n", flush=True)
        for switch in switches:
            factor = f"> {LIMIT} s" if found[switch][0] == float("inf") else f"{found[switch][0] / seconds:.2f}"
            print(f"| {switch} | {factor}{'' if found[switch][1] in ('', answer) else ' wrong'} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:2] or list(ROWS), sys.argv[2:] or list(SWITCHES)[1:])
