"""What the parts of a step take on the representative of each stage: passes, sends, and the end of the step.

The same segments, collectives and links as in a full run, and each asked for once.  Of a pass without anything beside
it that lasts longer than a layer, every further layer takes what the last one took, which spares most of the work.
Imports the door, the network of alike ranks and the skeleton.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from simcluster.devices.sensitivity import interference_on
from simcluster.errors import InputError
from simcluster.planning.lanes import Lanes
from simcluster.planning.ops import MAIN, Collective, Op, Segment, Transfer
from simcluster.planning.replicas import Replicas
from simcluster.planning.segments import Pass, Passes
from simcluster.planning.step_plan import Job
from simcluster.scenario.memory_plan import plan_of, shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import choices_of, job_of, passes_of
from simcluster.sweeps.alike import Call, Network, NotQuickError
from simcluster.sweeps.skeleton import Costed, Last, Sent, Work
from simcluster.sweeps.stepping import Crossings

Known = TypeVar("Known")

_SHARED = "collectives over tp share links with other traffic"


class Kept(OrderedDict[Hashable, Any]):
    """What was made, the least recently used given up."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def once(self, name: Hashable, make: Callable[[], Known]) -> Known:
        """What is kept under this name, made when it is first asked for."""
        if name in self:
            self.move_to_end(name)
        else:
            self[name] = make()
            if len(self) > self._most:
                self.popitem(last=False)
        found: Known = self[name]
        return found


class StepCosts:
    """The costs of a scenario's step, whatever the number of its microbatches; NotQuickError where there are none."""

    def __init__(self, scenario: Scenario, networks: Kept, passes: Kept) -> None:
        cluster, overlap = scenario.cluster, scenario.overlap
        pass_name = (
            id(cluster), scenario.model, scenario.software, overlap.interference, overlap.tensor,
            overlap.tensor_pieces, shape_of(scenario), scenario.training.precision,
        )  # fmt: skip
        self._passes: _PassCosts = passes.once(pass_name, lambda: _PassCosts(scenario))
        self._job = _small_job(scenario, self._passes.passes)
        network_name = (
            id(cluster), scenario.gpus, scenario.parallel.model_copy(update={"zero": 0, "sequence_parallel": False}),
            scenario.collectives, overlap.interference, self._hops(),
        )  # fmt: skip
        self.network: Network = networks.once(network_name, lambda: _network(scenario))
        ends = self._ends(self._job)
        calls = list(self._calls(ends))
        if not self.network.ranks:  # with what other variants will ask it, so that it need not be drawn again
            data = replace(self._job.data_parallel, zero=1 - self._job.data_parallel.zero)
            calls += self._calls(self._ends(replace(self._job, data_parallel=data)))
        self.network.learn(calls)
        self._known: dict[Work | Sent, Costed] = {}
        self._crossings: Crossings | None = None
        self._tp = [self._passes.signature(self.network, stage) for stage in range(self._job.plan.pp)]
        self.last = [[self._last(stage, *each) for each in own] for stage, own in enumerate(ends)]

    def of(self, work: Work | Sent) -> Costed:
        """What an action or a send takes."""
        found = self._known.get(work)
        if found is None:
            found = self._known[work] = self._send(work) if isinstance(work, Sent) else self._act(work)
        return found

    def crossings(self, works: Sequence[Work | Sent]) -> Crossings:
        """Where transfers of the step may meet on links, if it has these actions and sends."""
        if self._crossings is None:
            named = [(each.name, each.costed.meeting) for own in self.last for each in own]
            sends = [(work, self.of(work).meeting) for work in works]
            meetings = {name: meeting for name, meeting in (*sends, *named) if meeting is not None}
            self._crossings = Crossings(meetings, self.network.capacity)
        return self._crossings

    def _act(self, work: Work) -> Costed:
        whole = self._job.whole(work.stage, work.chunk)
        part = replace(whole, boundary=work.arrives and self._job.gather_boundary)
        return self._passes.of(work.kind, part, self.network, work.stage, self._tp[work.stage])

    def _send(self, work: Sent) -> Costed:
        return Costed(-1.0, meeting=self.network.meeting(work.stage, self._transfer(work))[1])

    def _transfer(self, work: Sent) -> Op:
        lane = f"send {work.kind}" if self._job.overlap_sends else MAIN
        return Op(Transfer(work.target, self._job.send_bytes), "pp", "send", work.kind, lane=lane)

    def _hops(self) -> tuple[Sent, ...]:
        """Who sends to whom, now or in a variant whose chunks go round."""
        found: dict[Sent, None] = {}
        stages = self._job.plan.pp
        for one, other in [*pairwise(range(stages)), (stages - 1, 0)] if stages > 1 else ():
            found[Sent("F", one, other)] = None
            found[Sent("B", other, one)] = None
        for route in self._job.schedule.routes:
            for (one, _), (other, _) in pairwise(route):
                if one != other:
                    found[Sent("F", one, other)] = None
                    found[Sent("B", other, one)] = None
        return tuple(found)

    def _calls(self, ends: list[list[tuple[Hashable, Op]]]) -> Iterator[Call]:
        """All that the step asks of the network."""
        for stage in range(self._job.plan.pp):
            yield from (Call(stage, "tp", work.kind, work.size) for work in self._passes.collectives)
            for _, op in ends[stage]:
                if isinstance(op.work, Collective):
                    yield Call(stage, op.work.axis, op.work.kind, op.work.size)
        for hop in self._hops():
            yield Call(hop.stage, hop.target, "send", self._job.send_bytes, self._transfer(hop).lane)

    def _ends(self, job: Job) -> list[list[tuple[Hashable, Op]]]:
        """The ops behind every stage's last action, with the names under which they meet."""
        found: list[list[tuple[Hashable, Op]]] = []
        known: dict[Hashable, int] = {}  # stages that hold as much end alike
        for stage in range(job.plan.pp):
            held = [job.whole(stage, chunk) for chunk in range(job.schedule.num_chunks)]
            like = known.setdefault(tuple((len(each.layers), each.embedding, each.lm_head) for each in held), stage)
            if like < stage:
                found.append(found[like])
                continue
            lanes = Lanes(stage, pipelined=job.plan.pp > 1)
            Replicas(job, lanes).finish(0)
            found.append([(item.key, op) for item in lanes.program().lanes[MAIN] for op in item.segment.ops])
        return found

    def _last(self, stage: int, key: Hashable, op: Op) -> Last:
        (piece,) = self.network.pieces(stage, Segment((op,)))
        if piece.seconds is not None:
            return Last(Costed(piece.seconds, piece.rows))
        group, meeting = self.network.meeting(stage, op)
        return Last(Costed(-1.0, piece.rows, meeting), (group, key))


class _PassCosts:
    """What passes take, for one way of splitting a model and one microbatch."""

    def __init__(self, scenario: Scenario) -> None:
        device = scenario.cluster.device
        self.passes: Passes = passes_of(scenario, device)
        every = scenario.training.recompute_every
        self._undisturbed = interference_on(device, scenario.overlap.interference) is None
        self._repeats = self._undisturbed and scenario.software is None and every == 1
        everything = Pass((0,), embedding=True, lm_head=True, boundary=scenario.parallel.tp > 1)
        works = [op.work for kind in "FBIW" for op in self._segment(kind, everything).ops]
        self.collectives: list[Collective] = list(dict.fromkeys(work for work in works if isinstance(work, Collective)))
        self._known: dict[Hashable, Costed] = {}

    def signature(self, network: Network, stage: int) -> Hashable:
        """Equal for stages, also of other networks, on which the collectives take and do the same."""
        ops = (Op(work, "tp", work.kind, "", lane=lane) for work in self.collectives for lane in (MAIN, "tp"))
        return tuple([network.alone(stage, op) for op in ops])

    def of(self, kind: str, part: Pass, network: Network, stage: int, signature: Hashable) -> Costed:
        """A pass on a stage of a network with this signature."""
        layers = len(part.layers)
        form = layers if self._repeats else part.layers
        name = kind, form, part.embedding, part.lm_head, part.boundary, signature
        found = self._known.get(name)
        if found is None:
            if self._repeats and layers > 2:
                one, two = (replace(part, layers=part.layers[:count]) for count in (1, 2))
                first, second = (self.of(kind, each, network, stage, signature).seconds for each in (one, two))
                found = Costed(second + (layers - 2) * (second - first))
            else:
                found = self._measured(kind, part, network, stage)
            self._known[name] = found
        return found

    def _measured(self, kind: str, part: Pass, network: Network, stage: int) -> Costed:
        played = network.pieces(stage, self._segment(kind, part))
        (piece, *rest) = played
        if rest or piece.seconds is None:
            raise NotQuickError(_SHARED)
        return Costed(piece.seconds, () if self._undisturbed else piece.rows)

    def _segment(self, kind: str, part: Pass) -> Segment:
        make = {"F": self.passes.forward, "B": self.passes.backward}
        make |= {"I": self.passes.input_grad, "W": self.passes.weight_grad}
        return make[kind](part)


def _small_job(scenario: Scenario, passes: Passes) -> Job:
    """The scenario's job with few microbatches: all but the order of actions."""
    training = scenario.training
    batch = scenario.dp * training.micro_batch * scenario.parallel.pp
    if batch < training.global_batch:
        small = scenario.model_copy(update={"training": training.model_copy(update={"global_batch": batch})})
        try:
            return job_of(small, scenario.cluster.device, passes)
        except InputError:  # the schedule needs more of them
            pass
    return job_of(scenario, scenario.cluster.device, passes)


def _network(scenario: Scenario) -> Network:
    choices = choices_of(scenario, folded=True)
    return Network(plan_of(scenario), scenario.cluster.built, choices.methods, choices.interference)
