"""Verification of folding: a simulation of representative ranks is compared, span by span, with one of all ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.base.progress import report_phase
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import FOLDING

if TYPE_CHECKING:
    import pandas as pd

MOST_RANKS = 512
"""A job of more ranks is verified with fewer replicas of the model."""


@dataclass(frozen=True)
class FoldingVerification:
    """Outcome of comparing a simulation of representative ranks with a simulation of all ranks.

    ``ranks`` are those of the compared job, ``total`` those of the whole one, and ``engine`` simulated both.
    ``difference`` names the first op that differs, "" if none does.
    """

    engine: str
    ranks: int
    total: int
    representatives: int
    spans: int
    difference: str

    def to_dict(self) -> dict[str, int | str]:
        """Return the verification as JSON-ready values."""
        return asdict(self)

    def summary(self) -> str:
        """Return the outcome as one line of text."""
        part = f"{self.ranks:,} ranks" + (f" instead of {self.total:,} (fewer replicas)" * (self.ranks < self.total))
        outcome = f"differ: {self.difference}" if self.difference else f"all {self.spans:,} spans are equal"
        by = "SimPy" if self.engine == "simpy" else "the compiled engine"
        return f"  compared {self.representatives:,} representatives with all of {part}, both by {by}: {outcome}"


def verify_folding(scenario: Scenario) -> FoldingVerification:
    """Compare each span of a simulation of representative ranks with a simulation of every rank.

    A job of many ranks is compared with fewer replicas. Raises InputError where no number of replicas is small enough
    and valid, and for a scenario whose ranks are never folded.
    """
    obstacle = "engine: reference" if scenario.engine == "reference" else FOLDING.find_obstacle(scenario)
    if obstacle:
        raise InputError(f"--verify: every rank of this job is simulated already ({obstacle}); omit --verify")
    part = reduce_replicas(scenario)
    folded, full = simulate_scenario(part), simulate_scenario(part, folded=False)
    with report_phase("verifying"):
        each = (_first_difference(folded.timeline_of(rank), full.timeline_of(rank)) for rank in range(part.gpus))
        what = next(filter(None, each), "")
    return FoldingVerification(full.record.engine, part.gpus, scenario.gpus, len(folded.weights), len(full.spans), what)


def reduce_replicas(scenario: Scenario) -> Scenario:
    """Return the scenario with fewer replicas, at most ``MOST_RANKS`` ranks, and the same batch per replica."""
    if scenario.gpus <= MOST_RANKS:
        return scenario
    dp, ranks = scenario.dp, scenario.gpus // scenario.dp  # per replica
    problem = f"one replica has {ranks:,} ranks"
    for fewer in range(min(dp, MOST_RANKS // ranks), 0, -1):
        if dp % fewer:
            continue
        batch = scenario.training.global_batch // dp * fewer
        try:
            return scenario.with_({"gpus": ranks * fewer, "parallel.dp": fewer, "training.global_batch": batch})
        except InputError as error:
            problem = str(error)
    raise InputError(
        f"--verify simulates at most {MOST_RANKS} ranks one by one; this job has {scenario.gpus:,} ranks, and no "
        f"smaller job with whole replicas is possible: {problem}"
    )


def _first_difference(folded: pd.DataFrame, whole: pd.DataFrame) -> str:
    if folded.equals(whole):
        return ""
    if len(folded) != len(whole):
        return f"rank {whole['rank'][0]} has {len(folded)} spans when folded, {len(whole)} when simulated"
    row = int((folded != whole).any(axis=1).argmax())
    one, other = folded.iloc[row], whole.iloc[row]
    column = next(name for name in whole.columns if one[name] != other[name])
    return (
        f"rank {other['rank']}, {other['kind']} {other['name']} of layer {other['layer']}, microbatch "
        f"{other['microbatch']}: {column} {one[column]!r} when folded, {other[column]!r} when simulated"
    )
