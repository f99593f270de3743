"""Effects of unevenly chosen experts on ranks: compute, memory, and tokens received."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.collectives.token_relay import RELAYED, ExpertRouting, RelayLinkTimes, experts_of_positions
from simcluster.faults.fault_spec import Blocks, FaultSpec, JobContext, RoutedTokens
from simcluster.model.encoder import ENCODER
from simcluster.planning.ops import EXPERTS, MemoryChange, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan, Ranks
from simcluster.planning.work_kinds import Collective

ROUTING = ("dispatch", "combine", "dispatch_grad", "combine_grad")
"""Names of the collectives that bring tokens to experts and back."""
_MOST_KNOWN = 1 << 14
_GLOBAL = ("all_gather", "reduce_scatter")  # of the tokens of all ranks, whatever they choose


class _RelayGroup(NamedTuple):
    """Expert-parallel group whose tokens are relayed by node: links, and experts of each rank and node."""

    number: int
    links: RelayLinkTimes
    rank_experts: Blocks
    node_experts: Blocks


class ExpertLoads:
    """Loads of all ranks' experts under faults that make tokens choose experts unevenly.

    Each ep group shares a layer's experts, which ``routes`` describes; an expert takes at most ``capacity`` even
    shares. ``by_pass``: they are drawn anew for every pass of a microbatch and for each group. Tokens in transit need
    the ``setting``, work and memory of experts do not.
    """

    of_encoder: ClassVar = False

    def __init__(
        self,
        faults: Sequence[FaultSpec],
        plan: ParallelPlan,
        seed: int,
        routes: ExpertRouting,
        capacity: float = math.inf,
        setting: JobContext | None = None,
    ) -> None:
        self._faults = faults
        self._ep = plan.ep
        self._seed = seed
        self._routes = routes
        self._capacity = capacity
        self._setting = setting if setting and setting.relays else None
        self._place = np.zeros((plan.num_ranks, 2), dtype=np.int64)  # number of the group in its stage, rank in it
        stages = plan.grid.reshape(plan.pp, -1, plan.ep, plan.expert_tp)
        for (_, group, place, _), rank in np.ndenumerate(stages):
            self._place[rank] = group, place
        self._relays: dict[int, _RelayGroup] = {}  # of the ep group of each rank
        if self._setting:
            self._add_relays(np.moveaxis(stages, 2, 3).reshape(-1, plan.ep), self._setting)
        self._copies: dict[Hashable, float] = {}
        self.by_pass = any(fault.draws_per_pass for fault in faults)
        self._groups = stages.shape[1] if self.by_pass else 1  # others have what the first has
        self._routed: dict[Hashable, Segment] = {}
        self._known: dict[Hashable, tuple[list[float], float]] = {}

    def symmetry_key(self, rank: int) -> Hashable:
        """Return a key that ranks of a stage share if their expert loads are equal."""
        group, place = self._place[rank].tolist()
        return (group if self.by_pass else -1, place, self._relays[rank].number if self._setting else -1)

    def stage_loads(self, layer: int, step: int, microbatch: int) -> Floats:
        """Return the load of each expert rank of a stage relative to an even share, ordered by ep group.

        One group represents all where they are equal, one rank those that an expert is split over.
        """
        return np.concatenate([self._group_loads(layer, step, microbatch, group) for group in range(self._groups)])

    def change_program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a rank's program, copied from its stage's program and scaled to its experts' tokens."""
        return program.with_replaced_items(lambda item: self._change_item(rank, item))

    def _change_item(self, rank: int, item: WorkItem) -> WorkItem:
        """Return a work item with compute and memory scaled to the tokens of the rank's experts.

        Its experts' matmuls, the rows gathered before them over tp, and the rows in its memory scale with the rank's
        load; an all-to-all ends when the fullest rank of the group does, and relaying, which sends one copy of a token
        to each node and rank, when the links of the fullest of these do.
        """
        moment = (item.step, item.microbatch) if self.by_pass else ()
        name = (item.segment, self.symmetry_key(rank), *moment)
        if name not in self._routed:
            ops = [self._change_op(rank, item, op) for op in item.segment.ops]
            same = all(new is old for new, old in zip(ops, item.segment.ops, strict=True))
            self._routed[name] = item.segment if same else Segment(tuple(ops))
        return item._replace(segment=self._routed[name])

    def _change_op(self, rank: int, item: WorkItem, op: Op) -> Op:
        work = op.work
        if op.routed and not op.name.startswith(ENCODER):
            op = replace(op, memory=scale_memory(op.memory, op.routed, self._rank_load(rank, item, op.layer)[0]))
        if op.name == EXPERTS:
            return replace(op, work=work.with_slowdown(self._rank_load(rank, item, op.layer)[0]))
        if isinstance(work, Collective) and op.name in ROUTING and not (work.axis == "ep" and work.kind in _GLOBAL):
            own, fullest = self._rank_load(rank, item, op.layer)
            if work.axis == "ep":
                own = self._token_copy_load(rank, item, op.layer) if work.kind in RELAYED else fullest
            return replace(op, work=replace(work, load=own))
        return op

    def _rank_load(self, rank: int, item: WorkItem, layer: int) -> tuple[float, float]:
        group, place = self._place[rank].tolist()
        moment = (layer, item.step, item.microbatch, group) if self.by_pass else (layer,)
        known = self._known.get(moment)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:  # ranks come one after the other, each with all its passes
                self._known.clear()
            loads = self._group_loads(layer, item.step, item.microbatch, group)
            known = self._known[moment] = loads.tolist(), float(loads.max())
        return known[0][place], known[1]

    def _group_loads(self, layer: int, step: int, microbatch: int, group: int) -> Floats:
        tokens = RoutedTokens(self._routes, self._seed, layer, step, microbatch, group, self._capacity)
        return np.asarray(math.prod(fault.expert_loads(tokens, self._ep) for fault in self._faults))

    def _token_copy_load(self, rank: int, item: WorkItem, layer: int) -> float:
        relay, group = self._relays[rank], int(self._place[rank, 0])
        moment = (item.step, item.microbatch, group) if self.by_pass else (0, 0, 0)
        name = relay.number, layer, *moment
        if name not in self._copies:
            tokens = RoutedTokens(self._routes, self._seed, layer, *moment, self._capacity)
            fullest = (self._max_token_copies(blocks, tokens) for blocks in (relay.node_experts, relay.rank_experts))
            self._copies[name] = relay.links.slowdown_factor(*fullest)
        return self._copies[name]

    def _max_token_copies(self, blocks: Blocks, tokens: RoutedTokens) -> float:
        copies = math.prod(fault.token_copy_factors(tokens, blocks) for fault in self._faults)
        even = np.array([self._routes.visit_fraction(block) for block in blocks])
        return float(np.minimum(copies, 1.0 / even).max())

    def _add_relays(self, groups: Ranks, setting: JobContext) -> None:
        assert setting.relays
        known: dict[tuple[int, ...], _RelayGroup] = {}
        for members in groups.tolist():
            hosts = [setting.host_of[member] for member in members]
            numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
            form = tuple(numbers[host] for host in hosts)
            if form not in known:
                links = setting.relays(members)
                ranks, machines = (
                    tuple(tuple(experts_of_positions(each, self._routes, self._ep)) for each in some)
                    for some in ([(place,) for place in range(self._ep)], links.machines)
                )
                known[form] = _RelayGroup(len(known), links, ranks, machines)
            self._relays.update(dict.fromkeys(members, known[form]))


def scale_memory(
    memory: Sequence[MemoryChange], routed: Sequence[MemoryChange], load: float
) -> tuple[MemoryChange, ...]:
    """Return memory changes in which the bytes of ``routed`` rows are multiplied by ``load``."""
    found = list(memory)
    for part in routed:
        place = next(
            place for place, each in enumerate(found) if each.pool == part.pool and bool(each.end) == bool(part.end)
        )
        more = load - 1.0
        whole = found[place]
        found[place] = MemoryChange(whole.pool, whole.start + more * part.start, whole.end + more * part.end)
    return tuple(found)
