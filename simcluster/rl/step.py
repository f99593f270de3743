"""RL step of a scenario: its trainer simulated, its weights resharded over the cluster's links, and the pipeline.

The trainer's steps, and its forward passes for log-probabilities, are simulated steps of the scenario, with a global
batch of as many sequences as the samples fill. Weights travel as slime sends them (THUDM/slime@02a644a7:slime/backends/
megatron_utils/update_weight/update_weight_from_distributed.py: gathered over TP and EP, one broadcast per pipeline
stage), or as shards from the ranks that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.faults.random_factors import random_stream
from simcluster.model.layers import parameters
from simcluster.model.packing import PACKING
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.results.result import Result
from simcluster.rl.pipeline import RlPipeline, RlStages
from simcluster.rl.rollouts import Sample, engine_cost
from simcluster.rl.spec import PARAMETER_BYTES, RlDocument, RlSpec, list_changes
from simcluster.scenario.checkpoint_plan import snapshot_seconds
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import plan_step
from simcluster.studies.bench.collective import collective_times, collective_transfers, simulate_transfers
from simcluster.topology import Cluster


@dataclass(frozen=True)
class RlResult(Displayable):
    """Result of simulated RL steps: time per step (s), the simulated pipeline, and the trainer's simulated step.

    ``rollouts`` and ``trainer`` are seconds per step by activity and cause of idle time; ``tokens`` are generated per
    step.
    """

    spec: RlSpec
    scenario: Scenario
    pipeline: RlPipeline
    training: Result
    step_time: float
    rollouts: Mapping[str, float]
    trainer: Mapping[str, float]
    tokens: float
    rollout_gpus: int
    warnings: tuple[str, ...]

    @property
    def window(self) -> tuple[float, float]:
        """Start and end (s) of the reported steps."""
        return self.pipeline.trained[self.spec.steps_off], self.pipeline.trained[-1]

    @property
    def gpus(self) -> int:
        """Number of GPUs of trainer and rollouts together."""
        return self.scenario.gpus + (self.rollout_gpus if self.spec.placement == "separate" else 0)

    @property
    def phases(self) -> dict[str, float]:
        """Mean duration (s) of each phase in the reported steps; phases may overlap with those of other steps."""
        line = self.pipeline
        steps = range(self.spec.steps_off + 1, self.spec.steps)
        found = {"rollouts": math.fsum(line.generated[step] - line.begun[step] for step in steps) / len(steps)}
        if self.spec.reward:
            found["reward"] = math.fsum(line.scored[step] - line.generated[step] for step in steps) / len(steps)
        return found | dict(line.stages.phases) | {"weights": line.stages.weights}


def simulate_rl(rl: RlDocument, rollout_gpus: int | None = None) -> RlResult:
    """Simulate the RL steps of a file; ``rollout_gpus`` moves GPUs between trainer and rollouts, for a sweep."""
    spec, (scenario, trainer_gpus, count) = rl.spec, _split_gpus(rl, rollout_gpus)
    with rl.document.locate_errors_at(("trainer",)):
        if not scenario.model.causal:
            raise InputError(
                "model.causal is false: tokens attend to later ones, so it cannot generate; set it to true"
            )
        lengths = draw_lengths(spec, scenario.model.sequence_length)
        training, forward = _simulate_trainer(spec, scenario, trainer_gpus, lengths)
    used, cost, reward = training.scenario, engine_cost(spec, scenario.model, scenario.cluster.device), spec.reward
    copies = _offload_seconds(training) if spec.weights.offload else 0.0
    phases = {"onload": copies, **dict.fromkeys((f"{name} log-probs" for name in spec.log_probs), forward),
              "training": spec.updates * training.step_time, "offload": copies}  # fmt: skip
    stages = RlStages(
        cost=cost, engines=count // spec.rollout.gpus_per_engine, concurrency=spec.rollout.concurrency,
        phases={name: seconds for name, seconds in phases.items() if seconds},
        weights=weight_update_seconds(spec, used, training.job.plan, count),
        reward=reward.seconds if reward else 0.0, workers=reward.workers if reward else None,
        steps_off=spec.steps_off, in_flight=spec.in_flight,
    )  # fmt: skip
    line = RlPipeline(stages, _list_samples(spec, lengths)).run()
    start, end = line.trained[spec.steps_off], line.trained[-1]
    steps = spec.steps - 1 - spec.steps_off
    rollouts, trainer = ({name: seconds / steps for name, seconds in pool.items()} for pool in line.account(start, end))
    return RlResult(
        spec=spec, scenario=used, pipeline=line, training=training, step_time=(end - start) / steps,
        rollouts=rollouts, trainer=trainer, tokens=float(lengths[1 + spec.steps_off : spec.steps].sum()) / steps,
        rollout_gpus=count, warnings=tuple(_list_warnings(spec, line, training)),
    )  # fmt: skip


def sweep_splits(rl: RlDocument) -> dict[int, RlResult | InputError]:
    """Simulate every split of the GPUs between trainer and rollouts; return results, or errors, by rollout GPUs.

    Splits are whole engines, with more than two nodes whole nodes. Raises InputError if no split is possible.
    """
    scenario, trainer, rollouts = _split_gpus(rl, None)
    if rl.spec.placement != "separate":
        raise rl.document.error_at(("placement",), "colocated GPUs are not split; use separate to sweep the split")
    nodes = scenario.cluster.built.node_of_gpu[: trainer + rollouts].tolist()
    each = rl.spec.rollout.gpus_per_engine
    each = math.lcm(each, nodes.count(nodes[0])) if len(set(nodes)) > 2 else each
    found: dict[int, RlResult | InputError] = {}
    for count in range(each, trainer + rollouts, each):
        try:
            found[count] = simulate_rl(rl, count)
        except InputError as problem:
            found[count] = problem
    if not any(isinstance(result, RlResult) for result in found.values()):
        first = next(iter(found.values()), f"{trainer + rollouts} GPUs cannot be divided in units of {each}")
        raise InputError(f"no split of {trainer + rollouts} GPUs can be simulated; the first: {first}")
    return found


# --- samples and trainer ----------------------------------------------------------------------------------------------


def _split_gpus(rl: RlDocument, rollout_gpus: int | None) -> tuple[Scenario, int, int]:
    """Return the trainer's scenario as written, and the numbers of GPUs for training and for rollouts."""
    spec, relative = rl.spec, rl.document.folder / rl.spec.trainer
    with rl.document.locate_errors_at(("trainer",)):
        base = BaseScenario(str(relative) if relative.exists() else spec.trainer)
        scenario = base.with_changes((*list_changes(spec.set),))
    have, want = scenario.cluster.built.num_gpus, spec.rollout.gpus
    if scenario.data is not None or any(fault.kind == "sequence_lengths" for fault in scenario.faults):
        what = "the scenario's 'data' or sequence_lengths exclude the samples, which fill its sequences; remove those"
        raise rl.document.error_at(("trainer",), what)
    if want is None:  # colocated
        if scenario.gpus % spec.rollout.gpus_per_engine:
            what = f"does not divide the trainer's {scenario.gpus} GPUs; use a divisor"
            raise rl.document.error_at(("rollout", "gpus_per_engine"), what)
        return scenario, scenario.gpus, scenario.gpus
    stated = "gpus" in scenario.origin.written_document.data
    trainer = scenario.gpus if stated else have - want
    if trainer < 1 or trainer + want > have:
        what = f"{want} GPUs of rollouts and {trainer if stated else 'some'} of the trainer do not fit"
        raise rl.document.error_at(("rollout", "gpus"), f"{what} in the cluster's {have}; use fewer, or more nodes")
    count = rollout_gpus or want
    return scenario, trainer + want - count, count


def draw_lengths(spec: RlSpec, sequence_length: int) -> Ints:
    """Return the response lengths in tokens of every sample, by step; also of those that are begun in advance."""
    prompt, most = spec.rollout.prompt_tokens, spec.rollout.max_response
    room = sequence_length - prompt
    if (most or 1) > room:
        raise InputError(
            f"a sample of rollout.prompt_tokens {prompt} + {most or 1} response tokens is longer than "
            f"model.sequence_length {sequence_length}; raise that, or lower the sample's lengths"
        )
    count = spec.rollout.prompts * spec.rollout.samples
    drawn = (spec.rollout.response.draw(random_stream(spec.seed, "responses", step), count)
             for step in range(spec.steps + spec.steps_off))  # fmt: skip
    return np.stack([np.minimum(each, most or room) for each in drawn]).astype(np.int64)


def _list_samples(spec: RlSpec, lengths: Ints) -> list[list[Sample]]:
    rollout = spec.rollout
    return [
        [Sample(step, step * rollout.prompts + place // rollout.samples, rollout.prompt_tokens, tokens)
         for place, tokens in enumerate(row)] for step, row in enumerate(lengths.tolist())
    ]  # fmt: skip


def _simulate_trainer(spec: RlSpec, scenario: Scenario, gpus: int, lengths: Ints) -> tuple[Result, float]:
    """Return the simulated optimizer step, and the time (s) of a forward pass over all samples of an RL step.

    Both are those of the mean batch; attention stays within samples, and microbatches have equal attention work.
    """
    layout, length = scenario.parallel, scenario.model.sequence_length
    split, documents = layout.tp * layout.pp * layout.cp, lengths + spec.rollout.prompt_tokens
    if gpus % split:
        raise InputError(
            f"its {gpus} GPUs are not a multiple of tp x pp x cp = {split}; change rollout.gpus, or the layout"
        )
    counts = [len(PACKING[spec.packing](row.astype(np.float64), length, row.size)) for row in documents]
    values, weights = np.unique(documents, return_counts=True)
    law = {"kind": "histogram", "values": values.astype(float).tolist(), "weights": weights.astype(float).tolist()}
    packed = {"kind": "sequence_lengths", "documents": law, "packing": spec.packing, "even": True}
    unit = gpus // split * scenario.training.micro_batch

    def with_sequences(number: float) -> Scenario:
        units = math.ceil(number / unit)
        for factor in dict.fromkeys((1, layout.pp)):  # an interleaved schedule needs multiples of pp microbatches
            batch = unit * factor * math.ceil(units / factor)
            try:
                return scenario.with_([("gpus", gpus), ("training.global_batch", batch), ("faults+", [packed])])
            except InputError:
                if factor == layout.pp:
                    raise
        raise AssertionError

    mean = sum(counts) / len(counts)
    training = simulate_scenario(with_sequences(mean / spec.updates))
    if not spec.log_probs:
        return training, 0.0
    alone = with_sequences(mean).model_copy(update={"steps": 1, "checkpoint": None})
    return training, simulate_scenario(alone, planned=plan_step(alone, trains=False)).step_time


# --- weights ----------------------------------------------------------------------------------------------------------


def weight_update_seconds(spec: RlSpec, scenario: Scenario, plan: ParallelPlan, rollout_gpus: int) -> float:
    """Return the time (s) in which the trainer's weights reach all engines over the cluster's links."""
    cluster, zero = scenario.cluster.built, scenario.parallel.zero
    size = PARAMETER_BYTES[spec.weights.precision] * parameters(scenario.model).total
    shared = plan.shard_size * plan.tp if zero == 3 else max(plan.tp, plan.ep * plan.expert_tp)
    shared = min(shared, plan.tp * plan.cp * plan.dp)  # a model held twice is sharded over two stages
    replicas = np.stack([ranks.reshape(-1, shared) for ranks in plan.stage_ranks()], axis=1)  # [replica, stage, rank]
    colocated = spec.placement == "colocated"
    if spec.weights.method == "send":
        first = 0 if colocated else plan.num_ranks
        targets = range(first, first + rollout_gpus)
        return _send_seconds(cluster, replicas, targets, spec.rollout.gpus_per_engine, size, home=colocated)
    if colocated:  # every rank needs parts of all stages
        groups = replicas.reshape(len(replicas), -1).tolist()
        gathers = collective_transfers(cluster, groups, "all_gather", size) if len(groups[0]) > 1 else []
        return max((end for _, _, end in simulate_transfers(cluster, gathers)), default=0.0)
    engines, part, chains = range(plan.num_ranks, plan.num_ranks + rollout_gpus), size / plan.pp, []
    for ranks in replicas[0].tolist():
        gather = collective_transfers(cluster, [ranks], "all_gather", part)[0] if shared > 1 else ()
        (sent,) = collective_transfers(cluster, [[ranks[0], *engines]], "broadcast", part)
        chains.append((*gather, *sent))
    return max(end for _, _, end in simulate_transfers(cluster, chains))


def _send_seconds(
    cluster: Cluster, replicas: Ints, targets: Sequence[int], shards: int, size: float, *, home: bool
) -> float:
    """Return the time (s) in which every target receives its shard, all at once, from replicas in turn.

    With ``home`` a target takes it from its replica, and keeps what it already holds.
    """
    holders = replicas.reshape(len(replicas), -1)
    own = {rank: row for row, ranks in enumerate(holders.tolist()) for rank in ranks}
    gpus = sorted({*targets, *own})
    place, parts = {gpu: number for number, gpu in enumerate(gpus)}, np.zeros((len(gpus), len(gpus)))
    count = holders.shape[1]
    for number, target in enumerate(targets):
        shard, row = number % shards, own[target] if home else number % len(holders)
        for position in range(shard * count // shards, -(-(shard + 1) * count // shards)):
            overlap = min((position + 1) / count, (shard + 1) / shards) - max(position / count, shard / shards)
            source = int(holders[row, position])
            parts[place[source], place[target]] += size * overlap * (source != target)
    if not parts.any():
        return 0.0
    return collective_times(cluster, gpus, "all_to_all", parts.tolist(), algorithm="direct").duration


def _offload_seconds(training: Result) -> float:
    """Return the time (s) to copy every rank's model state between GPU and host memory."""
    state = np.array([each.parameters + each.gradients + each.optimizer for each in training.facts.footprints])
    return snapshot_seconds(training.scenario, state[training.job.plan.stage_of_every_rank()])[0]


def _list_warnings(spec: RlSpec, line: RlPipeline, training: Result) -> Iterator[str]:
    have, cost = training.facts.memory, line.stages.cost
    state = max(each.total - each.activations - each.other for each in training.facts.footprints)
    cache, stays = max(engine.peak_bytes for engine in line.engines), spec.placement == "colocated"
    need = cost.weight_bytes + cache + (state if stays and not spec.weights.offload else 0.0)
    if need > have:
        yield (f"out of memory: an engine needs {need / 1e9:.1f} of {have / 1e9:.1f} GB per GPU (KV cache "
               f"{cache / 1e9:.1f} GB); lower rollout.concurrency, or raise gpus_per_engine")  # fmt: skip
    if not training.fits:
        needs = f"{training.memory.total / 1e9:.1f} of {have / 1e9:.1f} GB per GPU"
        yield f"out of memory: the trainer needs {needs}; see simcluster run for remedies"
