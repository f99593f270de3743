"""The states of a cluster that a run meets, each played once by the step simulator on the same topology graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

from pydantic import TypeAdapter

from simcluster.base.errors import InputError
from simcluster.base.telling import phase
from simcluster.faults import Fault, FaultSpec, placed
from simcluster.longrun.studies.parts_of import Parts, StandIn
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import Weight, weight_of
from simcluster.scenario.loading import without_loader
from simcluster.scenario.run_section import CheckpointSpec, ValidationSpec
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import plan
from simcluster.step.simulate import replay
from simcluster.studies.whatif.extra_steps import outer_seconds, played_apart
from simcluster.studies.whatif.mitigations import fewer_of, step_of


def validation_pass(scenario: Scenario) -> Result:
    """The scenario's batch, forward only, as a validation goes through it: a program of F alone, with its own bubble,
    its faults, and no gradients, optimizer, loader or checkpoint."""
    alone = without_loader(scenario).model_copy(update={"steps": 1, "checkpoint": None})
    return replay(alone, planned=plan(alone, trains=False))


MOST = 50
"""Steps that a run may ask for."""
_HEALTHY = "healthy"

_FAULT: TypeAdapter[FaultSpec] = TypeAdapter(Fault)


@dataclass
class StepStates:
    """Seconds of a step of a scenario in every state that was ``asked`` for, by its words; each is played once.

    ``took`` are the seconds that playing it took; ``used`` are those of the run that is made of them now, ``notes``
    what is to be said of its making.  InputError for more than 50 states of one.
    """

    scenario: Scenario
    asked: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    weights: dict[CheckpointSpec, Weight] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.scenario = self.scenario.model_copy(update={"checkpoint": None})  # steps between checkpoints

    def begin(self) -> None:
        """Another run is made of them from here on."""
        self.used, self.notes = {}, []

    def _timed(self, words: str, play: Callable[[], float]) -> float:
        self._room_for(words)
        if words not in self.asked:
            begun = perf_counter()
            with phase("" if words == _HEALTHY else f"state {len(self.asked) + 1} of the cluster ({words})"):
                self.asked[words] = play()
            self.took[words] = perf_counter() - begun
        self.used[words] = self.asked[words]
        return self.asked[words]

    def _room_for(self, words: str) -> None:
        if words not in self.used and len(self.used) >= MOST:
            raise InputError(
                f"run: more than {MOST} states of the cluster: {words} would be the next; "
                "give fewer levels (failures.by, failures.left)"
            )

    @cached_property
    def parts(self) -> Parts:
        """The job's devices by name."""
        return Parts(self.scenario)

    @cached_property
    def result(self) -> Result:
        """The healthy step, whole."""
        with phase(f"state 1 of the cluster ({_HEALTHY})"):
            return replay(self.scenario)

    def weight(self, spec: CheckpointSpec) -> Weight:
        """What a checkpoint weighs, however often one is written; InputError where nothing says how long one takes."""
        of_each = spec.model_copy(update={"every": "auto"})
        if of_each not in self.weights:
            self.weights[of_each] = weight_of(self.scenario, of_each)
        return self.weights[of_each]

    @property
    def healthy(self) -> float:
        """With all as planned (the scenario's own faults are part of that)."""
        return self._timed(_HEALTHY, lambda: self.result.step_time) + self.outer

    @cached_property
    def outer(self) -> float:
        """What outer steps of workers that train apart add to each step, in every state alike."""
        section = self.scenario.training.outer
        if section is None or not played_apart(self.scenario):
            return 0.0
        return outer_seconds(self.scenario, self.result.step_time) / section.every

    def with_faults(self, words: str, faults: Iterable[Mapping[str, Any]]) -> float:
        """With faults more, as documents; the scenario's own draw what they draw without."""

        def step() -> float:
            more = [_FAULT.validate_python(dict(fault)) for fault in faults]
            changed = self.scenario.model_copy(update={"faults": placed((*self.scenario.faults, *more))})
            return replay(changed).step_time

        return self._timed(words, step) + self.outer

    def slow(self, device: StandIn, level: float) -> float:
        """With a GPU or machine that takes so many times as long (1 and above), or a link with that share left."""
        how = f"{level:g} x slower" if level >= 1 else f"at {level:.3g} of its bandwidth"
        return self.with_faults(f"{device.words} {how}", device.slow(level))

    def writing(self, words: str, shares: Mapping[int, float]) -> float:
        """With a share of the cables of every machine's NICs taken by what it writes, all through the step.

        The step of a ``background_load`` of that share on the uplinks of each, to the bit, without a graph.
        """
        most = max(shares.values(), default=0.0)
        if not most:
            return self.healthy
        return self.with_faults(f"{words} in flight (up to {most:.2%} of NICs)", self._taken(shares))

    def _taken(self, shares: Mapping[int, float]) -> Iterator[Mapping[str, Any]]:
        fabric, hosts = self.parts.fabric, self.scenario.cluster.built.hosts
        for cable in fabric.edges:
            share = shares.get(int(hosts[fabric.ports[cable[0]]]), 0.0)
            if share:
                yield {"kind": "slow_link", "between": cable, "speed": 1 - share}

    def validating(self, spec: ValidationSpec) -> float:
        """What validations take, in seconds a step: forward passes on the healthy cluster, each with its own bubble."""
        if spec.seconds is not None:
            return spec.seconds / spec.every
        one = self._timed("a batch of validation", lambda: validation_pass(self.scenario).step_time)
        return spec.batches * one / spec.every

    def short_of(self, machines: int) -> tuple[float, float]:
        """With so many machines too few: (seconds of a step, samples of it over those of a whole step).

        InputError where no replica is left.
        """
        job = fewer_of(self.scenario, machines)
        if job is None:
            raise InputError(
                f"run.short: shrink: the job has {self.scenario.dp} replicas; {machines} machines cannot be missing"
            )
        missing = self.scenario.dp - job.scenario.dp
        words = f"{missing} replica{'s' * (missing > 1)} fewer"
        share = job.scenario.training.global_batch / self.scenario.training.global_batch
        return self._timed(words, lambda: step_of(job)), share

    def told(self) -> str:
        """All of them, each a line: the step, how much slower than healthy, and what it took to play it."""
        rows = [
            f"  {words}: step {seconds:.4g} s ({seconds / self.healthy - 1:+.2%}), played in {self.took[words]:.2f} s"
            for words, seconds in ((words, played + self.outer) for words, played in self.asked.items())
        ]
        return "\n".join([f"{len(rows)} states of the cluster, each played once:", *rows])
