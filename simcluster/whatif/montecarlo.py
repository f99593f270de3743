"""How long a step takes when chance has a say: its distribution over many replicas, not one number.

Where kernels jitter and documents differ, the step is planned and played once without chance; then all replicas at once
are longest paths through it with other durations (``stage_sweep``).  Links and interference are those of the run
without chance: exact where transfers do not hold each other back, else as good as that is.  Other chance (stalls,
spells of background load) is played replica by replica on the engine.  Imports the door.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from simcluster.errors import InputError
from simcluster.faults import BackgroundLoad, Fault, HostStall, Jitter, SequenceLengths, placed
from simcluster.faults.data import loads
from simcluster.measuring.distribution import Distribution
from simcluster.planning.parallel import Plan
from simcluster.planning.stages import stage_programs
from simcluster.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import plan_job, replay
from simcluster.simulating.frozen import durations
from simcluster.simulating.stage_sweep import StageSweep
from simcluster.whatif.chance import BLOCK, Chance, Documents

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Method = Literal["auto", "sweep", "events"]

_WORTH_A_PROCESS = 20e6  # durations to be drawn; below, starting one takes longer


def monte_carlo(
    scenario: Scenario, *, method: Method = "auto", processes: int = 0, base: Result | None = None
) -> Distribution:
    """The distribution of a scenario's step time over its ``replicas``.

    ``base`` is the result of ``without_chance(scenario)`` if it is there already.
    ``processes`` play them side by side (0: as many as there are cores, where it pays); the numbers do not depend on
    it.  Raises InputError for ``method="sweep"`` where more than kernels is left to chance.
    """
    scenario = scenario.model_copy(update={"faults": placed(scenario.faults)})
    others = [fault for fault in scenario.faults if isinstance(fault, HostStall) or by_chance(fault)]
    others = [fault for fault in others if not isinstance(fault, Jitter | SequenceLengths)]
    if method == "sweep" and others:
        raise InputError(
            f"replicas: method sweep draws what kernels take, and has no {others[0].kind}; use auto, or events, which "
            "plays every replica on the engine"
        )
    if scenario.collectives.detail == "steps" or others or method == "events":
        return _on_the_engine(scenario, base or replay(without_chance(scenario)))
    return _in_one_sweep(scenario, base or replay(without_chance(scenario)), processes)


def by_chance(fault: Fault) -> bool:
    """Does a fault depend on the seed?"""
    if isinstance(fault, HostStall):
        return fault.factor is not None or fault.first == "random" or fault.cause == "garbage_collection"
    if isinstance(fault, BackgroundLoad):
        return fault.on is not None
    return isinstance(fault, Jitter | SequenceLengths)


def without_chance(scenario: Scenario) -> Scenario:
    """The scenario as it would be if nothing were left to chance, played once; documents are spread evenly."""
    placed_faults = scenario.model_copy(update={"faults": placed(scenario.faults), "replicas": 1})
    return placed_faults.without(*(place for place, fault in enumerate(scenario.faults) if by_chance(fault)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- all replicas in one sweep ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """What it takes to play any block of replicas: small enough to be handed to another process."""

    sweep: StageSweep
    planned: list[Floats]  # seconds of a stage's ops, [op, place]
    jitters: list[tuple[Jitter, list[int]]]
    together: int
    seed: int
    data: _Data | None

    def block(self, number: int) -> Floats:
        """Seconds of all steps together, in the replicas of a block."""
        chance = Chance(
            self.jitters, self.sweep.ops, self.sweep.stage_ranks, together=self.together, seed=self.seed,
            block=number, documents=self.data.block(number) if self.data else None,
        )  # fmt: skip

        def seconds(stage: int, op: int) -> Floats:
            return chance.seconds(stage, op, self.planned[stage][op][:, None])

        return self.sweep(seconds, BLOCK)


def _in_one_sweep(scenario: Scenario, base: Result, processes: int) -> Distribution:
    job = _job(scenario, base)
    blocks = list(range(math.ceil(scenario.replicas / BLOCK)))
    work = sum(planned.size for planned in job.planned) * scenario.replicas
    workers = processes or (_cores() if work > _WORTH_A_PROCESS else 1)
    times = np.concatenate(_side_by_side(job, blocks, min(workers, len(blocks))))[: scenario.replicas]
    return Distribution(times / scenario.steps, base.step_time, "sweep")


def _job(scenario: Scenario, base: Result) -> _Job:
    cluster, parallel = scenario.cluster.built, scenario.parallel
    planned, _ = plan_job(without_chance(scenario), scenario.cluster.device)
    programs = stage_programs(planned)
    layout: Plan = planned.plan
    took = durations(base.lowered, programs, base.record)
    sweep = StageSweep(programs, layout)
    of_stages = [np.stack([took[base.simulated_for(int(rank))] for rank in ranks]).T for ranks in sweep.stage_ranks]
    hosts = cluster.host_of[: scenario.gpus]
    jitters = [
        (fault, fault.chosen(hosts)) for fault in scenario.faults if isinstance(fault, Jitter) and not fault.neutral
    ]
    together = parallel.tp * parallel.cp
    return _Job(
        sweep,
        [np.ascontiguousarray(times) for times in of_stages],
        jitters,
        together,
        scenario.seed,
        _Data.of(scenario),
    )


@dataclass(frozen=True, slots=True)
class _Data:
    """Documents, the seeds of replicas (by the scenario's), and what a step deals the documents out to."""

    fault: SequenceLengths
    seed: int
    steps: int
    dp: int
    microbatches: int
    micro_batch: int
    length: int

    @classmethod
    def of(cls, scenario: Scenario) -> _Data | None:
        """None where sequences are whole."""
        chosen = next((fault for fault in scenario.faults if isinstance(fault, SequenceLengths)), None)
        micro_batch, length = scenario.training.micro_batch, scenario.model.sequence_length
        steps, microbatches = scenario.steps, scenario.microbatches
        if chosen is None:
            return None
        return cls(chosen, scenario.seed, steps, scenario.dp, microbatches, micro_batch, length)

    def block(self, number: int) -> Documents:
        """What the microbatches of a block's replicas weigh."""
        seeds = [seed_of(self.seed, replica) for replica in range(number * BLOCK, (number + 1) * BLOCK)]
        replicas = [self._weighed(self.fault, seed) for seed in seeds]
        return Documents(np.stack(replicas, axis=-1), self._weighed(self.fault.without(), self.seed)[:, 0, 0])

    def _weighed(self, fault: SequenceLengths, seed: int) -> Floats:
        return np.stack(
            [
                loads(
                    fault, seed=seed, step=step, dp=self.dp, microbatches=self.microbatches,
                    micro_batch=self.micro_batch, length=self.length,
                )
                for step in range(self.steps)
            ]
        )  # fmt: skip


def _side_by_side(job: _Job, blocks: Sequence[int], workers: int) -> list[Floats]:
    """Blocks dealt out to processes.  Each is a Python of its own (a fork would copy threads that hold locks)."""
    if workers <= 1:
        return [job.block(number) for number in blocks]
    text = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    dealt = [blocks[place::workers] for place in range(workers)]
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_WORKER}"]
    helpers = [
        subprocess.Popen([*command, *map(str, own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for own in dealt[1:]
    ]
    found: dict[int, Floats] = {}
    for helper in helpers:
        assert helper.stdin is not None
        helper.stdin.write(text)
        helper.stdin.close()
    found |= {number: job.block(number) for number in dealt[0]}
    for helper, own in zip(helpers, dealt[1:], strict=True):
        assert helper.stdout is not None
        answer = helper.stdout.read()
        helper.stdout.close()
        if helper.wait():
            raise RuntimeError("a process that played replicas has failed; its message is above")
        found |= dict(zip(own, pickle.loads(answer), strict=True))
    return [found[number] for number in blocks]


_WORKER = """
import pickle
job = pickle.load(sys.stdin.buffer)
answer = [job.block(int(number)) for number in sys.argv[1:]]
sys.stdout.buffer.write(pickle.dumps(answer))
"""


# --- replica by replica -----------------------------------------------------------------------------------------------


def seed_of(seed: int, replica: int) -> int:
    """The seed of a replica that the engine plays."""
    digest = hashlib.blake2b(repr((seed, "replica", replica)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _on_the_engine(scenario: Scenario, base: Result) -> Distribution:
    runs = [
        scenario.model_copy(update={"seed": seed_of(scenario.seed, number), "replicas": 1})
        for number in range(scenario.replicas)
    ]
    times = [replay(run).step_time for run in runs]
    return Distribution(np.array(times), base.step_time, "events")
