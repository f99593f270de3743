"""Small version of a scenario for one node: same code paths, to run and to compare with predictions.

Every axis that the job has stays above 1 where the node has room, first tp, then pp, dp, cp; heads, MLP and vocabulary
shrink with tp, experts with ep, and the sequence with cp, so that the matrices of a rank keep their shapes; layers
shrink with pp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.builtin_documents import builtin_names
from simcluster.documents.suggestions import divisors
from simcluster.documents.yaml_syntax import to_yaml
from simcluster.faults import SequenceLengths
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.model.transformer import Model
from simcluster.results.result import Result
from simcluster.scenario.document_resolution import load_topology
from simcluster.scenario.memory_plan import usable_bytes
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.schedules.specs import RowsSpec
from simcluster.step.simulate import simulate_scenario

STEPS = 100
"""Number of steps to run the small version for."""
_SAVED = 50
"""Number of steps between checkpoints of the small version."""
_KEPT_OF_CHECKPOINT = ("mode", "to", "read", "bytes_per_parameter")

FieldChange = tuple[str, Any, Any, str]
"""Change of a scenario: (path, value before, value now, reason)."""


class SmallLayout(NamedTuple):
    """Parallel sizes (tp, pp, dp, ...) of a job on one node."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int


@dataclass(frozen=True)
class SmallVersion:
    """Small version of a scenario for one node: the ``whole`` scenario, changed fields, and reasons for each change."""

    whole: Scenario = field(repr=False)
    scenario: Scenario = field(repr=False)
    layout: SmallLayout
    changes: tuple[FieldChange, ...] = field(repr=False)

    @cached_property
    def result(self) -> Result:
        """Simulated step of the small version."""
        return simulate_scenario(self.scenario)

    def summary(self) -> str:
        """Return one line of text with the small version's layout and expected step time."""
        small, model, cp = self.layout, self.scenario.model, self.whole.parallel.cp
        axes = f"tp {small.tp}, pp {small.pp}, dp {small.dp}{f', cp {small.cp}' * (cp > 1)}"
        layers = f"{model.layers} of {self.whole.model.layers} layers"
        return f"{self.scenario.gpus} GPUs of one node ({axes}), {layers}: {self._describe_expected()}"

    def _describe_expected(self) -> str:
        result = self.result
        size = f"{result.memory.total / 1e9:.1f} GB on the fullest GPU"
        return f"expect {format_seconds(result.step_time)} per step, {size}, MFU {result.mfu:.1%}"

    def text(self) -> str:
        """Return the small version's scenario file, with comments at its head that explain the changes."""
        less = self.whole.parallel.tp // self.layout.tp
        rows = f"A rank's matrices keep their shapes; norms and residuals have {less} x the rows (tp shards them)."
        lines = [
            f"{self.whole.name}, on one node: the same code paths, for {STEPS} steps.",
            f"As simulated: {self._describe_expected()}.",
            "Run the job's launch script with the values below, take the median of the steps after the first 10,",
            'and write it below, as in measured: {step_time: "3.4 s"}: simcluster run then shows both.',
            "Not tested: the network between nodes, and everything that grows with the number of ranks.",
            *([rows] if less > 1 and self.whole.parallel.sequence_parallel else []),
            "Changed:",
            *(
                f"  {path}: {_format_value(before)} -> {_format_value(now)}: {why}"
                for path, before, now, why in self.changes
            ),
        ]
        head = "\n".join(f"# {line}".rstrip() for line in lines)
        return f"{head}\n{to_yaml(minimal_document(self.scenario))}"

    def to_dict(self) -> dict[str, Any]:
        """Return the small version as a JSON document (CONTRACT.md, "A launch checklist")."""
        return {
            "step_time_s": self.result.step_time,
            "peak_memory_bytes": self.result.memory.total,
            "mfu": self.result.mfu,
            "steps": STEPS,
            "changed": [dict(zip(("path", "before", "now", "why"), row, strict=True)) for row in self.changes],
            "scenario": self.scenario.document(),
        }


def _format_value(value: Any) -> str:
    if value is None or value == []:
        return "removed"
    if isinstance(value, Mapping):
        return "as below"
    if isinstance(value, list):
        return ", ".join(str(each["kind"] if isinstance(each, Mapping) else each) for each in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def small_version(scenario: Scenario) -> SmallVersion:
    """Return a scenario's small version for one node of its cluster; InputError if no small version exists."""
    nodes, hosts = getattr(scenario.cluster.topology, "nodes", None), scenario.cluster.built.host_of
    if not isinstance(nodes, int) and len(set(hosts)) > 1:
        raise InputError(
            f"{scenario.name}: a cluster given as a graph has no nodes to reduce, so there is no version for one node; "
            "name a type of node, as in --cluster.topology dgx_h100"
        )
    layout = choose_small_layout(scenario, sum(host == hosts[0] for host in hosts[: scenario.gpus]))
    changes = _scenario_changes(scenario, layout, nodes if isinstance(nodes, int) else 1)
    small, before = _reduce_layers_to_fit(scenario, layout, changes), scenario.model.layers
    same = _layers_per_slice(small) == _layers_per_slice(scenario)
    why = "same number per chunk as before" if same else "as many as fit with 10 % of memory left"
    own = [] if small.model.layers == before else [("model.layers", before, small.model.layers, why)]
    return SmallVersion(scenario, small, layout, (*changes, *own))


def choose_small_layout(scenario: Scenario, gpus: int) -> SmallLayout:
    """Return the layout on ``gpus`` GPUs in which most parallel axes of the scenario stay above 1."""
    parallel = scenario.parallel

    def layout_preference(sizes: tuple[int, ...]) -> tuple[object, ...]:
        kept = tuple(size > 1 for size in sizes)
        return sum(kept), kept, math.prod(sizes), sizes[0], *sizes[2:]

    tried = product(*map(divisors, (parallel.tp, parallel.pp, scenario.dp, parallel.cp)))
    tp, pp, dp, cp = max((each for each in tried if math.prod(each) <= gpus), key=layout_preference)
    ranks, etp = dp * cp * tp, parallel.etp or tp
    shared = ranks // (etp if ranks % etp == 0 else tp)  # else an expert is split over tp
    return SmallLayout(tp, pp, dp, cp, max(each for each in divisors(parallel.ep) if shared % each == 0))


def _layers_per_slice(scenario: Scenario) -> int:
    return max(1, round(scenario.model.layers / (scenario.parallel.pp * scenario.pipeline.chunks)))


def _scenario_changes(scenario: Scenario, small: SmallLayout, nodes: int) -> list[FieldChange]:
    parallel, pipeline, training = scenario.parallel, scenario.pipeline, scenario.training
    group = scenario.fsdp.shard_group
    ranks, sharding, schedule = small.dp * small.cp, scenario.dp * parallel.cp, pipeline.schedule_name
    axes = {"tp": parallel.tp, "pp": parallel.pp, "dp": scenario.dp, "cp": parallel.cp, "ep": parallel.ep}
    count = -(-scenario.microbatches * small.pp // parallel.pp)  # as many for each stage, in whole rounds of them
    batch = -(-count // small.pp) * small.pp * small.dp * training.micro_batch
    others = isinstance(pipeline.schedule, RowsSpec) and small.pp != parallel.pp
    alone = not others and small.pp == 1 and pipeline.chunks > 1
    kept = [fault for fault in scenario.document_faults if isinstance(fault, SequenceLengths)]
    documents = [fault.model_dump(mode="json", exclude_none=True) for fault in kept]
    run = {} if scenario.run is None else _shorten_run(scenario)
    no_room = "no room for it on one node: its code path is not tested"
    rows: tuple[tuple[Any, str, Any, Any, str], ...] = (
        (nodes > 1, "cluster.nodes", nodes, 1, "one node"),
        (ranks * small.tp * small.pp != scenario.gpus, "gpus", scenario.gpus, ranks * small.tp * small.pp,
         "GPUs of that node"),
        *((now != axes[axis], f"parallel.{axis}", axes[axis], now, "kept above 1" if now > 1 else no_room)
          for axis, now in small._asdict().items()),
        *((True, *row) for row in _model_changes(scenario, small)),
        (batch != training.global_batch, "training.global_batch", training.global_batch, batch,
         "same number of microbatches for each stage"),
        (others, "pipeline.schedule", schedule, "1f1b", "its rows are for another number of stages"),
        (alone, "pipeline.schedule", schedule, "1f1b", "there is one stage"),
        (others or alone, "pipeline.chunks", pipeline.chunks, 1, "as the schedule changes"),
        (pipeline.layout is not None, "pipeline.layout", pipeline.layout, None, "it is for another number of stages"),
        (isinstance(pipeline.layers_per_stage, tuple), "pipeline.layers_per_stage", pipeline.layers_per_stage, "even",
         "the list is for another number of stages"),
        (group and group < sharding and ranks % (2 * group), "fsdp.shard_group", group, max(1, ranks // 2),
         "two groups"),
        (scenario.fsdp.regather_group, "fsdp.reshard_after_forward", scenario.fsdp.regather_group, True,
         "one node has no smaller groups"),
        (small.tp == 1 and parallel.sequence_parallel, "parallel.sequence_parallel", True, False, "tp is 1"),
        (small.cp == 1 and parallel.cp_comm != "ring", "parallel.cp_comm", parallel.cp_comm, "ring", "cp is 1"),
        (parallel.cp_inner and small.cp % parallel.cp_inner, "parallel.cp_inner", parallel.cp_inner, small.cp,
         "as many as cp"),
        (parallel.etp is not None and (small.ep == 1 or _expert_tensor_ranks(scenario, small) != parallel.etp),
         "parallel.etp", parallel.etp, None, "ep is 1" if small.ep == 1 else "a stage has no such groups"),
        (len(kept) < len(scenario.document_faults), "faults", [fault.kind for fault in scenario.document_faults],
         documents, "faults of the whole cluster are removed"),
        (scenario.replicas > 1, "replicas", scenario.replicas, 1, "one step"),
        (scenario.steps > 1, "steps", scenario.steps, 1, f"one is simulated; run {STEPS}"),
        *((getattr(scenario, name) is not None, name, "of the whole job", None, "it does not apply to one node")
          for name in ("checkpoint", "measured")),
        (run, "run", "of the whole job", run, f"{STEPS} steps and {STEPS // _SAVED} checkpoints"),
    )  # fmt: skip
    return [(path, list(b) if isinstance(b, tuple) else b, now, why) for holds, path, b, now, why in rows if holds]


def _expert_tensor_ranks(scenario: Scenario, small: SmallLayout) -> int:
    ranks, etp = small.tp * small.dp * small.cp, scenario.parallel.etp
    return etp if etp and small.ep > 1 and ranks % (etp * small.ep) == 0 else small.tp


def _model_changes(scenario: Scenario, small: SmallLayout) -> list[FieldChange]:
    model, moe, parallel = scenario.model, scenario.model.moe, scenario.parallel
    tp, etp, split = parallel.tp, parallel.etp or parallel.tp, _expert_tensor_ranks(scenario, small)
    found: dict[str, int] = {}
    if small.tp < tp and model.layer_types:
        raise InputError("model.layer_types: widths of types are not scaled; there is no smaller version with less tp")
    if small.tp < tp:
        widths = {"heads": model.heads, "kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_hidden_size or 0}
        widths["vocab_size"] = padded_vocab_size(model, tp)
        found |= {name: max(1, width * small.tp // tp) for name, width in widths.items() if width}
    if small.cp < parallel.cp:
        found["sequence_length"] = model.sequence_length * small.cp // parallel.cp
    if moe is not None and small.ep < parallel.ep:
        found["moe.experts"] = max(-(-moe.top_k // small.ep) * small.ep, moe.experts * small.ep // parallel.ep)
    if moe is not None and split < etp:
        found["moe.expert_ffn_hidden_size"] = max(1, moe.expert_ffn_hidden_size * split // etp)
    if moe is not None and small.tp < tp and moe.shared_width:
        found["moe.shared_ffn_hidden_size"] = moe.shared_width * small.tp // tp
    why = {
        "heads": "scaled with tp: same number per rank, of the same head_dim",
        "sequence_length": "scaled with cp: same number of tokens per rank",
        "moe.experts": "scaled with ep: same number of experts per rank",
        "vocab_size": "scaled with tp, including padding: take tokens modulo it, or a mock data set",
    }
    return [
        (f"model.{name}", before, now, why.get(name, "scaled with tp: a rank's share is unchanged"))
        for name, now in found.items()
        if now != (before := attrgetter(name)(model))
    ]


def _shorten_run(scenario: Scenario) -> dict[str, Any]:
    assert scenario.run is not None
    given = scenario.run.checkpoint.model_dump(mode="json", exclude_defaults=True)
    names = (*_KEPT_OF_CHECKPOINT, *(() if "to" in given else ("stall",)))  # a time of the whole job
    kept = {name: given[name] for name in names if name in given}
    found = {"steps": STEPS, "checkpoint": {"every": f"{_SAVED} steps", **kept}}
    validation = scenario.run.validation
    return found if validation is None else found | {"validation": {"every": f"{_SAVED} steps", "batches": 1}}


def _reduce_layers_to_fit(scenario: Scenario, layout: SmallLayout, changes: list[FieldChange]) -> Scenario:
    where = {"cluster.nodes": "cluster.topology.nodes"}  # in a whole document
    given: dict[str, Any] = {where.get(path, path): now for path, _, now, _ in changes}
    given |= {"name": f"{scenario.name}, one node", "parallel.dp": layout.dp}
    chunks = given.get("pipeline.chunks", scenario.pipeline.chunks)
    document, smallest = scenario.document(), ""
    for each in range(_layers_per_slice(scenario), 0, -1):
        try:
            small = from_document(document, given | {"model.layers": each * layout.pp * chunks})
        except InputError as problem:
            smallest = " ".join(str(problem).split())
            continue
        size, memory = peak_memory_bytes(small), small.cluster.device.memory
        if size <= usable_bytes(memory):
            return small
        smallest = f"{each} layers per slice need {size / 1e9:.1f} GB, but a GPU has {memory / 1e9:.1f}"
    raise InputError(f"{scenario.name}: no version for one node: {smallest}")


def minimal_document(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as a short document: default values omitted, and a built-in cluster given by name."""
    document = scenario.model_dump(mode="json", exclude_defaults=True)
    document["model"] = _model_document(scenario.model)
    if scenario.document_faults:
        document["faults"] = [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.document_faults]
    else:
        document.pop("faults", None)
    del document["cluster"]["topology"]
    document["cluster"] = {**_cluster_document(scenario), **document["cluster"]}
    return document if from_document(document) == scenario else scenario.document()


def _model_document(model: Model) -> dict[str, Any]:
    found = model.model_dump(mode="json", exclude_none=True)
    for name in list(found):
        less = {key: value for key, value in found.items() if key != name}
        try:
            found = less if Model.model_validate(less) == model else found
        except ValueError:
            continue
    return found


def _cluster_document(scenario: Scenario) -> dict[str, Any]:
    topology = scenario.cluster.topology
    own = topology.model_dump(mode="json", exclude_none=True)
    for name in builtin_names("topologies"):
        shipped = load_topology(name)
        if type(shipped) is type(topology) and shipped.name == topology.name:
            other = shipped.model_dump(mode="json", exclude_none=True)
            apart = {key: value for key, value in own.items() if value != other.get(key)}
            return {"topology": name, **apart}  # ``minimal_document`` checks that it is the same
    return {"topology": own}
