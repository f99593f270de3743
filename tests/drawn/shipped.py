"""Comparison of every built-in scenario, in every way, with the reference if that simulates it within a limit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from drawn.comparison import WAYS, Answer, answered, meaning
from drawn.records import record_difference
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.engine_run import count_ops
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import plan_step

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SECONDS, OPS = 90, 3_000_000
"""Limits of a scenario for the reference: its processor time, and the ops on all ranks that surely take longer."""


def compare_shipped(out: Callable[[str], object]) -> int:
    """Compare the built-in scenarios, small ones first; write a line for each and return 1 if one differs."""
    different = 0
    scenarios = [load(str(path)) for path in sorted(SCENARIOS.glob("*.yaml"))]
    for ops, scenario in sorted(((_ops(each), each) for each in scenarios), key=lambda pair: pair[0]):
        took, answers = _answers(scenario) if ops < OPS else (0.0, _on_folded_ranks(scenario))
        verdicts = ", ".join(f"{each.way} {each.verdict}{each.why and f' ({each.why})'}" for each in answers)
        seconds = f"{took:.0f} s" if took else f"more than {SECONDS} s or 4 GB"
        out(f"{scenario.name}: {scenario.gpus:,} ranks, {ops:,} ops, reference {seconds}: {verdicts}")
        different += sum(each.verdict == "differs" for each in answers)
    return 1 if different else 0


def _ops(scenario: Scenario) -> int:
    """Return the number of ops on all ranks."""
    planned = plan_step(scenario)
    ranks = [len(ranks) for ranks in planned.job.plan.stage_ranks()]
    return count_ops(planned.programs, np.repeat(np.arange(len(ranks)), ranks))


def _answers(scenario: Scenario) -> tuple[float, list[Answer]]:
    """Return the seconds of the reference (0 if it takes too long) and the answer of every way."""
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        meant = meaning(scenario)
        took = time.process_time() - begun
    except (TimeoutError, MemoryError):
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return 0.0, _on_folded_ranks(scenario)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return took, [answered(name, way, scenario, meant) for name, way in WAYS.items()]


def _on_folded_ranks(scenario: Scenario) -> list[Answer]:
    """Compare the whole record of the compiled engine with that of SimPy on the same ranks."""
    one, other = (
        simulate_scenario(scenario.model_copy(update={"engine": engine})).record for engine in ("compiled", "simpy")
    )
    where = record_difference(one, other)
    return [Answer("folded ranks by SimPy", "differs" if where else "equal", where)]
