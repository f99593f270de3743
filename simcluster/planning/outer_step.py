"""The outer step of workers that train apart: every so many steps they sum what each has changed in its parameters.

A worker is a part of the replicas with gradients and optimizer of its own.  With the inner optimizer's last step of
``every`` each rank takes what its part of the parameters has moved since they were last equal (a pseudo-gradient),
the workers' are summed over the axis "outer", and an outer optimizer with momentum (SGD, Nesterov's) makes the
parameters from which all go on (DiLoCo, arXiv:2311.08105).  In ``parts``, one at a time, and ``beside`` the next steps:
Streaming DiLoCo (arXiv:2501.18512).  Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcluster.planning.ops import MAIN, Item, Need, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Compute

LANE = "outer"


@dataclass(frozen=True, slots=True)
class OuterUpdate:
    """When and how much: after step s part p of ``parts`` is summed if s + 1 is p x every / parts, modulo ``every``.

    A parameter has ``bytes`` on the wire; ``seconds`` are what the passes take over so many parameters.  The update is
    waited for at the end of the step that comes ``beside`` steps later; with 0 at once.
    """

    every: int
    bytes: float
    parts: int
    beside: int
    seconds: Callable[[float], float]

    def due(self, step: int) -> int:
        """Count the parts that are summed after this step: part p is due at p * every // parts, modulo every."""
        due = (step + 1) % self.every
        return -due * self.parts // self.every - -(due + 1) * self.parts // self.every

    def put(self, lanes: ProgramBuilder, step: int, parameters: float, gathered: float) -> None:
        """What a rank with ``parameters`` of its worker's does at the end of a step; of replicas that hold all of them
        whole each then gathers ``gathered`` bytes of what the others updated."""
        share = self.due(step) / self.parts
        if share:
            lane = LANE if self.beside else MAIN
            calls = [("outer", parameters * self.bytes * share)]
            summed = lanes.collectives("all_reduce", "pseudo_gradients", calls, lane)
            lanes.put(lane, Item(summed, ("outer", step), lanes.reached() if self.beside else (), step))
        late = step - self.beside
        share = self.due(late) / self.parts if late >= 0 else 0.0
        if share:
            needs = (Need(lanes.stage, ("outer", late)),) if self.beside else ()
            ops = (Op(Compute(self.seconds(parameters * share)), "compute", "optimizer", "outer_optimizer"),)
            lanes.put(MAIN, Item(Segment(ops), ("outer_optimizer", step), needs, step))
            if gathered:
                calls = [("dp", gathered * share)]
                gather = lanes.collectives("all_gather", "outer_parameters", calls)
                lanes.put(MAIN, Item(gather, ("outer_parameters", step), (), step))
