"""Reference simulation of a step: every op of every rank, with one SimPy process per lane.

The life of an op. A lane is an in-order queue of a rank. Its next op waits until all nodes *before* it are over: then
it is *ready*. A computation or the host's work *starts* at once and *ends* after its seconds. What several ranks do
together waits, too, until all of them have arrived: then it starts for all, moves its activities over the network one
after the other, and ends for all at the same instant. The next op of the lane, and the ops that wait for this one,
continue at that instant.

The life of a communication. While it moves it slows down its ranks: a computation on one of them takes (1 + sensitivity
x pressure) times as long, with the strongest of several pressures (``devices.interference``), times the rank's speed
factor at that time. Where computation drags communication, a round takes (1 + drag) times as long while one of its
ranks computes. After any change, the rest continues at its new rate from the end of the instant on: what happens at one
instant has no order.

The simplest code that is right. Nothing here is fast; what is fast is compared with this, to the bit. One of several
equal ranks may be simulated for all: then ``communication`` answers for classes of ranks and links.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from simcluster.base.clock import STEADY, ClockRangeError, Profile, round_to_tick
from simcluster.base.errors import DeadlockError
from simcluster.reference.collective_rounds import RoundwiseCollective
from simcluster.reference.communication import JobCommunication
from simcluster.reference.dependency_graph import Lanes, OpNode
from simcluster.reference.fluid_network import EndOfInstantAction, FluidNetwork, FluidTransfer, Process, run_events
from simcluster.topology import Cluster


class RemainingWork(NamedTuple):
    """Compute time (s at full speed) that remains of a running computation, and its current slowdown factor."""

    seconds: float
    as_of: float
    factor: float

    @property
    def end_time(self) -> float:
        """Time (s) at which the computation ends if its speed does not change."""
        return self.as_of + (self.seconds if self.factor == 1.0 else round_to_tick(self.seconds * self.factor))

    def advance_to(self, now: float, factor: float) -> RemainingWork:
        """Return the work that remains at time ``now``, with a new slowdown factor from then on."""
        if factor == self.factor:
            return self
        return RemainingWork(max(0.0, self.seconds - round_to_tick((now - self.as_of) / self.factor)), now, factor)


@dataclass(eq=False)
class CommunicationInFlight:
    """A communication in progress, and the mutual slowdown of this communication and its ranks' compute."""

    pressure: float
    drag: float
    ranks: Sequence[SimulatedRank]
    activity: FluidTransfer | None = None
    dragged: bool = False

    def round_time_factor(self) -> float:
        """Return the factor by which concurrent compute currently lengthens a communication round."""
        return 1.0 + self.drag if self.dragged else 1.0


class SimulatedRank:
    """A simulated GPU: communications in progress, running computations, and the slowdown of each by the other."""

    def __init__(self, env: simpy.Environment, network: FluidNetwork, slowness: float, speed: Profile) -> None:
        self._env, self._network, self.slowness, self.speed = env, network, slowness, speed
        self.flights: list[CommunicationInFlight] = []
        self.computing = 0
        self.changed = env.event()
        self.request_factor_update = EndOfInstantAction(env, self._update_factors).run_at_end_of_instant

    def compute_slowdown(self, sensitivity: float) -> float:
        """Return the current slowdown factor of a computation with this sensitivity to communication."""
        pressure = max((flight.pressure for flight in self.flights), default=0.0)
        return (1.0 + sensitivity * pressure) * self.speed.factor_at(self._env.now)

    def _update_factors(self) -> None:
        for flight in self.flights:
            dragged = flight.drag > 0 and any(rank.computing for rank in flight.ranks)
            if dragged != flight.dragged:
                flight.dragged = dragged
                if flight.activity is not None:
                    self._network.set_slowdown(flight.activity, flight.round_time_factor())
        event, self.changed = self.changed, self._env.event()
        event.succeed()


@dataclass
class PendingCommunication:
    """Ops that have arrived at a communication, and the event that marks the end of the communication."""

    finished: simpy.Event
    arrived: list[OpNode] = field(default_factory=list)
    rounds: RoundwiseCollective | None = None


class ReferenceSimulation:
    """Reference simulation of a step: constructing the object runs it and sets the times of every op node.

    ``slowness[rank]`` multiplies the rank's computations always, ``speeds[rank]`` over time; ``capacities[link]``
    multiplies a link's capacity over time. ``in_steps``: collectives are simulated round by round. Raises DeadlockError
    when ops are left that can never begin.
    """

    def __init__(
        self,
        lanes: Lanes,
        cluster: Cluster,
        communication: JobCommunication,
        slowness: Sequence[float],
        speeds: Mapping[int, Profile],
        capacities: Mapping[int, Profile],
        *,
        in_steps: bool,
    ) -> None:
        self._env = env = simpy.Environment()
        self._cluster, self._communication, self._in_steps = cluster, communication, in_steps
        self._network = FluidNetwork(env, communication.link_capacities, capacities)
        self._ranks = {
            rank: SimulatedRank(env, self._network, slowness[rank], speeds.get(rank, STEADY))
            for rank in communication.simulated_ranks
        }
        self._over = {node: env.event() for nodes in lanes.values() for node in nodes}
        self.meetings: dict[Hashable, PendingCommunication] = {}  # in the order of their first arrival
        for nodes in lanes.values():
            env.process(self._run_lane(nodes))
        self.events = run_events(env)
        stuck = [
            next(node for node in nodes if not self._over[node].processed)
            for nodes in lanes.values()
            if not self._over[nodes[-1]].processed
        ]
        if stuck:
            raise DeadlockError(self._deadlock_message(stuck)) if env.peek() == math.inf else ClockRangeError

    def _run_lane(self, nodes: Sequence[OpNode]) -> Process:
        env = self._env
        for node in nodes:
            for other in node.predecessors:
                if not self._over[other].processed:
                    yield self._over[other]
            node.ready = node.start = env.now
            node.last_arrival = node
            work = node.op.work
            if work.group(node.stage) is not None:
                yield from self._join_communication(node)
            elif work.sensitivity is None:
                yield env.timeout(round_to_tick(work.seconds))
            else:
                yield from self._run_computation(node, work.seconds, work.sensitivity)
            node.end = env.now
            self._over[node].succeed()

    def _run_computation(self, node: OpNode, seconds: float, sensitivity: float) -> Process:
        env, rank = self._env, self._ranks[node.rank]
        before = now = RemainingWork(round_to_tick(seconds * rank.slowness), env.now, 1.0)
        settled = env.now  # ``before`` is what was left as of all instants before this one
        rank.computing += 1
        rank.request_factor_update()
        while now.end_time > env.now:
            change = rank.speed.next_change(env.now)
            yield env.timeout(min(now.end_time, change) - env.now) | rank.changed
            if now.end_time == env.now:
                break
            if change == env.now:
                rank.request_factor_update()
                yield rank.changed
            if env.now > settled:
                before, settled = now, env.now
            now = before.advance_to(env.now, rank.compute_slowdown(sensitivity))
        rank.computing -= 1
        rank.request_factor_update()

    def _join_communication(self, node: OpNode) -> Process:
        members = self._communication.group_members(node)
        work, (key, index) = node.op.work, node.key
        if work.joins and isinstance(key, tuple):
            _, key = key  # it names its send
        meeting = self.meetings.setdefault((members, key, index), PendingCommunication(self._env.event()))
        meeting.arrived.append(node)
        if self._in_steps and work.axis and work.traffic_kind and meeting.rounds is None:
            rounds = self._communication.round_plan(work, members)
            meeting.rounds = RoundwiseCollective(self._env, self._network, self._cluster, members, rounds)
        steps = meeting.rounds
        if len(meeting.arrived) == work.arrivals_needed(len(members)):
            now = self._env.now
            last = min((each for each in meeting.arrived if each.ready == now), key=lambda each: each.rank)
            for each in meeting.arrived:
                each.last_arrival = last
                if steps is None:  # in steps each begins at its own arrival
                    each.start = now
            if steps is None:
                self._env.process(self._run_communication(meeting, members))
        if steps is None:
            yield meeting.finished
        else:
            yield from steps.participate(members.index(node.rank))

    def _run_communication(self, pending: PendingCommunication, members: tuple[int, ...]) -> Process:
        op = next(node.op for node in pending.arrived if not node.op.work.joins)
        ranks = [self._ranks[rank] for rank in members]
        slowdowns = self._communication.slowdown_of_compute(op, members), self._communication.slowdown_by_compute(op)
        flight = CommunicationInFlight(*slowdowns, ranks)
        for rank in ranks:
            rank.flights.append(flight)
            rank.request_factor_update()
        for traffic in self._communication.traffic_of_work(op.work, members):
            flight.activity = FluidTransfer(self._env, traffic, flight.round_time_factor())
            yield from self._network.run_transfer(flight.activity)
        for rank in ranks:
            rank.flights.remove(flight)
            rank.request_factor_update()
        pending.finished.succeed()

    def _deadlock_message(self, stuck: Sequence[OpNode]) -> str:
        lines = [
            f"  rank {node.rank} {node.op.lane}: {node.op.kind} {node.op.name} waits for "
            + (", ".join(f"rank {other.rank} {other.op.kind} {other.op.name}" for other in node.predecessors
                         if not self._over[other].processed) or "the other members of its group")
            for node in stuck[:12]
        ]  # fmt: skip
        return "\n".join([f"deadlock: {len(stuck)} lanes (op queues) wait for each other for ever", *lines])
