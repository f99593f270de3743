"""What a rank's part in mixtures of experts takes when tokens choose unevenly: its experts, and what travels to them.

Pure; imports the fault's law, ops and the plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from simcluster.faults.draws import Floats
from simcluster.faults.experts import EXPERTS, ExpertImbalance, dispatch_load, expert_loads
from simcluster.planning.ops import Collective, Compute, Item, Op, Segment
from simcluster.planning.parallel import Plan

TRAVELS = ("dispatch", "combine", "dispatch_grad", "combine_grad")
"""Names of the collectives that bring tokens to experts and back."""


class ExpertLoads:
    """Of all ranks of a plan: ``experts`` are those of a layer, shared by each ep group."""

    def __init__(self, faults: Sequence[ExpertImbalance], plan: Plan, seed: int, experts: int) -> None:
        self._faults, self._ep, self._seed, self._experts = faults, plan.ep, seed, experts
        self._place = np.zeros((plan.num_ranks, 2), dtype=np.int64)  # number of the group in its stage, rank in it
        stages = plan.grid.reshape(plan.pp, -1, plan.ep, plan.expert_tp)
        for (_, group, place, _), rank in np.ndenumerate(stages):
            self._place[rank] = group, place
        self._loads: dict[Hashable, Floats] = {}
        self._routed: dict[Hashable, Segment] = {}

    def colour(self, rank: int) -> Hashable:
        """What makes the rank different from others of its stage."""
        group, place = self._place[rank].tolist()
        return (group if any(fault.per == "pass" for fault in self._faults) else -1, place)

    def routed(self, rank: int, item: Item) -> Item:
        """An item with the tokens that the experts of this rank get.

        Its experts' products, and what is gathered in front of them over tp, take its own load; an all-to-all is over
        when the fullest rank of the group is.
        """
        moment = (item.step, item.microbatch) if any(fault.per == "pass" for fault in self._faults) else ()
        name = (id(item.segment), self.colour(rank), *moment)  # segments live as long as their programs
        if name not in self._routed:
            self._routed[name] = self._segment(rank, item)
        return item._replace(segment=self._routed[name])

    def _segment(self, rank: int, item: Item) -> Segment:
        ops = [self._op(rank, item, op) for op in item.segment.ops]
        same = all(new is old for new, old in zip(ops, item.segment.ops, strict=True))
        return item.segment if same else Segment(tuple(ops))

    def _op(self, rank: int, item: Item, op: Op) -> Op:
        work = op.work
        if isinstance(work, Compute) and op.name == EXPERTS:
            load, _ = self._of(rank, item, op.layer)
            return replace(op, work=work._replace(seconds=work.seconds * load))
        if isinstance(work, Collective) and op.name in TRAVELS:
            own, fullest = self._of(rank, item, op.layer)
            return replace(op, work=work._replace(load=fullest if work.axis == "ep" else own))
        return op

    def _of(self, rank: int, item: Item, layer: int) -> tuple[float, float]:
        """The load of the rank, and that of the fullest of its group."""
        group, place = self._place[rank].tolist()
        own = fullest = 1.0
        for number, fault in enumerate(self._faults):
            name = (number, layer, *((item.step, item.microbatch, group) if fault.per == "pass" else ()))
            if name not in self._loads:
                self._loads[name] = expert_loads(
                    fault, seed=self._seed, experts=self._experts, ep=self._ep, layer=layer, step=item.step,
                    microbatch=item.microbatch, replica=group,
                )  # fmt: skip
            own *= float(self._loads[name][place])
            fullest *= dispatch_load(self._loads[name])
        return own, fullest
