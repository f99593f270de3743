"""Communication that a scenario leaves beside no computation though a switch would put it there.

The switches are off unless a scenario turns them on, as Megatron-LM's own are (``--overlap-grad-reduce`` and
``--overlap-param-gather`` are flags to be given); PyTorch's FSDP has both on, and gathers one unit ahead
(docs.pytorch.org, "FSDP Notes": implicit forward prefetching is always enabled; backward prefetching by default).
DualPipe is made for pairs whose halves run beside each other (arXiv:2412.19437 section 3.2.1).  So that nobody takes
a step with all of it exposed for what such a program does, a run says what is off.  Planning: nothing is played.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcluster.scenario.schedule_plan import schedule_of

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Off:
    """Something that could run beside computation and does not: ``values`` turn it on, ``axes`` are whose exposed
    communication it is about, ``what`` says what happens instead and ``as_in`` who has it on."""

    what: str
    axes: tuple[str, ...]
    values: Mapping[str, Any]
    as_in: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What is off in a run, with ``exposed``, the part of the step in which its axes hold computation up."""

    off: Off
    exposed: float

    @property
    def text(self) -> str:
        """One line with the switches."""
        switches = " ".join(f"--{path} {str(value).lower()}" for path, value in self.off.values.items())
        as_in = f", on in {self.off.as_in}" if self.off.as_in else ""
        axes = " and ".join(self.off.axes)
        return f"{self.off.what}: exposed {axes} is {self.exposed:.1%} of the step; {switches} (off here{as_in})"

    def to_dict(self) -> dict[str, Any]:
        """As in the result JSON."""
        return {"text": self.text, "set": dict(self.off.values), "exposed_fraction": self.exposed}


def overlaps_off(scenario: Scenario) -> Iterator[Off]:
    """What is off in a scenario that has it to hide."""
    replicas = scenario.dp * scenario.parallel.cp
    if replicas > 1:
        yield from _of_replicas(scenario)
    experts = scenario.model.moe is not None and scenario.parallel.ep > 1
    axes = (*(("tp",) if scenario.parallel.tp > 1 else ()), *(("ep",) if experts else ()))
    if axes and not scenario.overlap.pairs and scenario.parallel.zero < 3 and any(schedule_of(scenario).fused):
        yield Off("the halves of pairs [F|B] run one after the other", axes, {"overlap.pairs": True})


def _of_replicas(scenario: Scenario) -> Iterator[Off]:
    """Reductions and gathers of parameters, over dp."""
    overlap, zero = scenario.overlap, scenario.parallel.zero
    values: dict[str, Any] = {}
    parts = []
    if not overlap.grad_reduce:
        parts.append("gradients are reduced")
        values["overlap.grad_reduce"] = True
    late = zero == 3 and not scenario.fsdp.prefetch
    if (zero and not overlap.param_gather) or late:
        parts.append("parameters gathered" if parts else "parameters are gathered")
        values |= {} if overlap.param_gather else {"overlap.param_gather": True}
        values |= {"fsdp.prefetch": 1} if late else {}
    if parts:
        what = f"{' and '.join(parts)} beside no computation"
        yield Off(what, ("dp",), values, "PyTorch's FSDP" if zero == 3 else "")
