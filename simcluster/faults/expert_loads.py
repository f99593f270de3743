"""What a rank's part in mixtures of experts takes when tokens choose unevenly: its experts, and what travels to them.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.faults.spec import FaultSpec, acting, with_items
from simcluster.planning.ops import EXPERTS, Item, MemoryChange, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective

TRAVELS = ("dispatch", "combine", "dispatch_grad", "combine_grad")
"""Names of the collectives that bring tokens to experts and back."""
_MOST_KNOWN = 1 << 14
_OF_ALL = ("all_gather", "reduce_scatter")  # of the tokens of all ranks, whatever they choose


class ExpertLoads:
    """Of all ranks of a plan: ``experts`` are those of a layer, shared by each ep group.

    ``by_pass``: they are drawn anew for every pass of a microbatch, and each group has its own.
    """

    def __init__(
        self, faults: Sequence[FaultSpec], plan: Plan, seed: int, experts: int, capacity: float = math.inf
    ) -> None:
        self._faults, self._ep, self._seed, self._experts = faults, plan.ep, seed, experts
        self._capacity = capacity
        self._place = np.zeros((plan.num_ranks, 2), dtype=np.int64)  # number of the group in its stage, rank in it
        stages = plan.grid.reshape(plan.pp, -1, plan.ep, plan.expert_tp)
        for (_, group, place, _), rank in np.ndenumerate(stages):
            self._place[rank] = group, place
        self.by_pass = any(fault.by_pass for fault in faults)
        self._groups = stages.shape[1] if self.by_pass else 1  # others have what the first has
        self._routed: dict[Hashable, Segment] = {}
        self._known: dict[Hashable, tuple[list[float], float]] = {}

    @classmethod
    def of(
        cls, faults: Sequence[FaultSpec], plan: Plan, seed: int, experts: int, capacity: float = math.inf
    ) -> ExpertLoads | None:
        """None where all experts get as much; ``capacity`` is the most that one takes, in even shares."""
        uneven = acting(faults, "expert_loads")
        return cls(uneven, plan, seed, experts, capacity) if uneven else None

    def colour(self, rank: int) -> Hashable:
        """What makes the rank different from others of its stage."""
        group, place = self._place[rank].tolist()
        return (group if self.by_pass else -1, place)

    def of_stage(self, layer: int, step: int, microbatch: int) -> Floats:
        """What the experts of every rank of a stage get, as a multiple of an even share: [group x place in it].

        One group stands for all where they have the same, one rank for those that an expert is split over.
        """
        return np.concatenate([self._loads(layer, step, microbatch, group) for group in range(self._groups)])

    def program(self, rank: int, program: StageProgram) -> StageProgram:
        """With the tokens that the experts of this rank get."""
        return with_items(program, lambda item: self._routed_item(rank, item))

    def _routed_item(self, rank: int, item: Item) -> Item:
        """An item with the tokens that the experts of this rank get.

        Its experts' products, what is gathered in front of them over tp, and the rows in its memory are as many as its
        own load says; an all-to-all is over when the fullest rank of the group is.
        """
        moment = (item.step, item.microbatch) if self.by_pass else ()
        name = (item.segment, self.colour(rank), *moment)
        if name not in self._routed:
            self._routed[name] = self._segment(rank, item)
        return item._replace(segment=self._routed[name])

    def _segment(self, rank: int, item: Item) -> Segment:
        ops = [self._op(rank, item, op) for op in item.segment.ops]
        same = all(new is old for new, old in zip(ops, item.segment.ops, strict=True))
        return item.segment if same else Segment(tuple(ops))

    def _op(self, rank: int, item: Item, op: Op) -> Op:
        work = op.work
        if op.routed:
            op = replace(op, memory=grown(op.memory, op.routed, self._of(rank, item, op.layer)[0]))
        if op.name == EXPERTS:
            return replace(op, work=work.slowed(self._of(rank, item, op.layer)[0]))
        if isinstance(work, Collective) and op.name in TRAVELS and not (work.axis == "ep" and work.kind in _OF_ALL):
            own, fullest = self._of(rank, item, op.layer)
            return replace(op, work=replace(work, load=fullest if work.axis == "ep" else own))
        return op

    def _of(self, rank: int, item: Item, layer: int) -> tuple[float, float]:
        """The load of the rank, and that of the fullest of its group."""
        group, place = self._place[rank].tolist()
        moment = (layer, item.step, item.microbatch, group) if self.by_pass else (layer,)
        known = self._known.get(moment)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:  # a rank is asked for all its passes, and then the next of its group
                self._known.clear()
            loads = self._loads(layer, item.step, item.microbatch, group)
            known = self._known[moment] = loads.tolist(), float(loads.max())
        return known[0][place], known[1]

    def _loads(self, layer: int, step: int, microbatch: int, group: int) -> Floats:
        """What multiplies the tokens of a group's ranks by all faults together, [place in it]."""
        moment: dict[str, int] = {"layer": layer, "step": step, "microbatch": microbatch, "replica": group}
        loads = [
            fault.expert_loads(seed=self._seed, experts=self._experts, ep=self._ep, capacity=self._capacity, **moment)
            for fault in self._faults
        ]
        return np.asarray(math.prod(loads))


def grown(memory: Sequence[MemoryChange], routed: Sequence[MemoryChange], load: float) -> tuple[MemoryChange, ...]:
    """Changes of memory whose ``routed`` part is ``load`` times as large; each of them begins or ends, not both."""
    found = list(memory)
    for part in routed:
        place = next(
            place for place, each in enumerate(found) if each.pool == part.pool and bool(each.end) == bool(part.end)
        )
        more = load - 1.0
        whole = found[place]
        found[place] = MemoryChange(whole.pool, whole.start + more * part.start, whole.end + more * part.end)
    return tuple(found)
