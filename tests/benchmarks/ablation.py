"""What every accelerator buys: rows of the table of benchmarks with one of them switched off alone.

``python tests/benchmarks/ablation.py [ROW [SWITCH ...]]`` prints factors of processor time over the row with all on
(cluster, planning, simulation); "wrong" if the answer is another.  ``--table FILE`` before these writes them into FILE,
row by row as they are found, between its lines ``<!-- factors -->`` and ``<!-- end of factors -->``; other rows there
stay.  What buys less than 1.5 on every row is one to delete.
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

RUNS = 3  # looks, at the most
SHORTEST = 1e-3  # s; the clock does not resolve less
SAME, CLEAR, MOST = 1.15, 2.5, 8.0  # factors: nothing is said; no need to look a third time; given up
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
    from simcluster.symmetry.quotient import NotSymmetricError

    raise NotSymmetricError


def _one_by_one(self: Any, src: Any, dst: Any, number: Any) -> Any:
    from simcluster.topology.wiring import Wiring

    return Wiring.route_rows(self, src, dst, number)


def _graphs(name: str, device: Any, draft: Any, routing: Any, nccl: Any = None) -> Any:
    from simcluster.topology.cluster import make_cluster

    return make_cluster(name, device, draft.graph(), routing, nccl)


def _not_quick(*_: Any) -> Any:
    from simcluster.studies.sweep.stage_network import NeedsFullRunError

    raise NeedsFullRunError("switched off")


def _no_bound(*_: Any) -> float:
    return 0.0


SWITCHES: dict[str, Switch] = {
    "all on": nullcontext,
    "symmetry: fold": _patched("symmetry.folding:SymmetryFinder", "fold_job", _unfolded),
    "symmetry: quotient": _patched("symmetry.folding:SymmetryFinder", "_usable_windows", lambda _: iter(())),
    "symmetry: cells": _patched("symmetry.folding", "divide_into_cells", _not_alike),
    "symmetry: barriers": _patched("symmetry.communicators", "never_shares_links", lambda programs, axis: False),
    "bulk: regular clusters": _all(
        *(
            _patched(f"topology.{where}", "make_cluster_from_draft", _graphs)
            for where in ("fabrics", "machines", "textbook_networks")
        )
    ),
    "bulk: routes": _patched("topology.regular_wiring:RegularWiring", "route_rows", _one_by_one),
    "bulk: hop columns": _patched("symmetry.communicators", "batch_link_usage", _nothing),
    "bulk: chained trees": _patched("traffic.link_usage", "find_double_tree_loads", _nothing),
    "quick step": _patched("studies.sweep.quick_rows", "quick_step_time", _not_quick),
    "replicas: sweep": _patched(
        "studies.whatif.monte_carlo_study", "REPLICAS", SimpleNamespace(obstacle=lambda _: "off")
    ),
    "search: bounds": _all(
        *(
            _patched("studies.search.step_time_bounds:StepTimeBounds", name, _no_bound)
            for name in ("outline_bound", "bound_with_ends", "bound_with_schedule")
        ),
    ),
    "search: bounds of schedules": _patched(
        "studies.search.step_time_bounds:StepTimeBounds", "bound_with_schedule", _no_bound
    ),
    "collector off": _patched("base.gc_pause", "gc", SimpleNamespace(isenabled=lambda: False, disable=lambda: None)),
}


def searched() -> Any:
    """Layouts on leaves that replicas do not fill, as a search plays them."""
    from simcluster import simulate
    from simcluster.scenario.scenario import load
    from simcluster.studies.search.plan import make_searchable_scenario

    found = []
    for tp in (8, 4):
        layout = {"gpus": 1024, "cluster.nodes": 128, "parallel.tp": tp, "parallel.pp": 16, "parallel.dp": 64 // tp,
                  "training.global_batch": 1536, "pipeline.schedule": "1f1b", "pipeline.chunks": 1}  # fmt: skip
        found.append(simulate(make_searchable_scenario(load("gpt3_175b_64xa100", layout))).step_time)
    return found


def planned() -> Any:
    """Return the best step of a search for layouts of 64 GPUs, to the end."""
    from simcluster.scenario.scenario import load
    from simcluster.studies.search.plan import plan

    return plan(load("gpt3_175b_64xa100")).best[0].step_time


def scenario_case(name: str) -> Callable[[], Any]:
    """A shipped scenario's step."""

    def case() -> Any:
        from simcluster import simulate
        from simcluster.scenario.scenario import load

        return simulate(load(name)).step_time

    return case


ROWS: dict[str, Callable[[], Any]] = {
    **{name: (lambda name=name: CASES[name]().more.partition("step")[2]) for name in (  # type: ignore[misc]
        "16,384 GPUs", "131,072 GPUs", "1,048,576 GPUs", "one slow GPU", "16 slow GPUs", "one slow link",
        "512 ranks unfolded", "fast path, P=16, M=16", "P=64, M=512, v=4", "1,000 configurations",
        "ring of 1,024 in flow", "ring of 1,024 in steps",
    )},
    # sweep and events draw from other streams, and the sweep freezes links: two samples of one law, no equal answers
    "2 replicas of 1,024 GPUs": lambda: CASES["2 replicas of 1,024 GPUs"]() and "",
    "plan of 64 GPUs": planned,
    "2 layouts of 1,024 GPUs": searched,
    **{path.stem: scenario_case(path.stem) for path in sorted(Path("scenarios").glob("*.yaml"))},
}  # fmt: skip


Found = tuple[float, str]
"""Processor seconds and the answer; infinitely many for what takes too long."""


def run(row: str, switch: str, limit: float = 0.0) -> Found:
    """A row with this switched off, given up after so many processor seconds (0: never)."""

    def late(*_: Any) -> None:
        raise TimeoutError

    from simcluster.scenario import scenario_fields

    scenario_fields._build_cluster.cache_clear()  # else clusters and all that is drawn on them stay from the run before
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        with SWITCHES[switch]():
            begun = time.process_time()
            answer = ROWS[row]()
            return time.process_time() - begun, repr(answer)
    except TimeoutError:
        return float("inf"), ""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def factors(row: str, switches: list[str]) -> Iterator[tuple[str, str]]:
    """By switch what a row takes times as long with that off as with all on; last, the seconds with all on.

    The two take turns, so that who else shares the machine slows both, and each stands for the least of its looks.
    """
    run(row, "all on")  # what is imported and kept
    every = float("inf")
    for switch in switches:
        plain, without, answers = [], [], set()
        while len(plain) < 2 or (len(plain) < RUNS and SAME < min(without) / min(plain) < CLEAR):
            seconds, answer = run(row, "all on")
            found, other = run(row, switch, max(1.0, MOST * seconds))
            plain.append(max(seconds, SHORTEST))
            without.append(max(found, SHORTEST))
            answers |= {answer, other or answer}
            if found == float("inf"):
                break
        every = min(every, *plain)
        factor = min(without) / min(plain)
        yield switch, (f"> {MOST:.0f}" if factor > MOST else f"{factor:.2f}") + (" wrong" if len(answers) > 1 else "")
    yield "all on", f"{every:.3g} s"


def table(found: dict[str, dict[str, str]]) -> str:
    """Rows as columns, by letters, and a line for every switch."""
    letters = {row: chr(ord("A") + place) for place, row in enumerate(found)}
    legend = "; ".join(f"{letter}: {row}, {found[row]['all on']}" for row, letter in letters.items())
    lines = [f"{legend}.", "", f"| switched off | {' | '.join(letters.values())} |", "|---" * (len(found) + 1) + "|"]
    for switch in list(SWITCHES)[1:]:
        told = [found[row].get(switch, "") for row in found]
        shown = ["" if each and each[0] in "01" and float(each.split()[0]) < SAME else each for each in told]
        lines.append(f"| {switch} | {' | '.join(shown)} |")
    return "\n".join(lines)


def written(text: str) -> dict[str, dict[str, str]]:
    """What a table says, by row and switch: ``table`` read back."""
    lines = [line for line in text.splitlines() if line]
    if not lines:
        return {}
    legend = [part.split(": ", 1)[1].rsplit(", ", 1) for part in lines[0].rstrip(".").split("; ")]
    found = {row: {"all on": seconds} for row, seconds in legend}
    for line in lines[3:]:
        switch, *factors = (cell.strip() for cell in line.strip("|").split("|"))
        for row, factor in zip(found, factors, strict=True):
            found[row][switch] = factor
    return found


def main(rows: list[str], switches: list[str], file: Path | None) -> None:
    """Print row by row the seconds with all on and the factors of what is switched off; into the ``file``, too."""
    begin, end = "<!-- factors -->\n", "\n<!-- end of factors -->"
    scenario_case("tiny_dp")()
    for row in rows:
        looked_at = {}
        for switch, factor in factors(row, switches):
            looked_at[switch] = factor
            print(f"| {row} | {switch} | {factor} |", flush=True)
        if file:
            before, _, rest = file.read_text().partition(begin)
            known, _, after = rest.partition(end)
            every = written(known)
            every[row] = {**every.get(row, {}), **looked_at}
            file.write_text(f"{before}{begin}{table(every)}{end}{after}")


if __name__ == "__main__":
    asked = sys.argv[1:]
    into = Path(asked[1]) if asked[:1] == ["--table"] else None
    asked = asked[2:] if into else asked
    main(asked[:1] or list(ROWS), asked[1:] or list(SWITCHES)[1:], into)
