"""A scenario for one machine: the same code paths, to be run for some steps and held against what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.composing import to_yaml
from simcluster.documents.shipped import shipped_names
from simcluster.faults import SequenceLengths
from simcluster.longrun.launch.layouts import (
    SmallLayout,
    layers_a_slice,
    layout_on,
    microbatches_of,
    model_changes,
)
from simcluster.model.transformer import Model
from simcluster.results.result import Result
from simcluster.scenario.files import load_topology
from simcluster.scenario.fits import held
from simcluster.scenario.headroom import usable
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.schedules.specs import Rows
from simcluster.step.simulate import replay

STEPS = 100
"""That it is to be run for."""
_SAVED = 50
"""Steps between its checkpoints."""
_KEPT_OF_CHECKPOINT = ("mode", "to", "read", "bytes_per_parameter")


Changed = tuple[str, Any, Any, str]
"""Path, before, now, why."""


@dataclass(frozen=True)
class SmallVersion:
    """A scenario for one machine, made of ``whole`` by ``changes``; ``layout`` are its axes."""

    whole: Scenario = field(repr=False)
    scenario: Scenario = field(repr=False)
    layout: SmallLayout
    changes: tuple[Changed, ...] = field(repr=False)

    @cached_property
    def result(self) -> Result:
        """Its step, as simulated."""
        return replay(self.scenario)

    def summary(self) -> str:
        """What it is and what to expect of it, in a line."""
        small, model = self.layout, self.scenario.model
        axes = f"tp {small.tp}, pp {small.pp}, dp {small.dp}" + (
            f", cp {small.cp}" if self.whole.parallel.cp > 1 else ""
        )
        layers = f"{model.layers} of {self.whole.model.layers} layers"
        return f"{self.scenario.gpus} GPUs of one machine ({axes}), {layers}: {self._expected()}"

    def _expected(self) -> str:
        result = self.result
        size = f"{result.memory.total / 1e9:.1f} GB on the fullest GPU"
        return f"expect {format_seconds(result.step_time)} a step, {size}, MFU {result.mfu:.1%}"

    def text(self) -> str:
        """A scenario file, with what was changed and why, and what to expect, as comments at its head."""
        lines = [
            f"{self.whole.name}, on one machine: the same code paths, for {STEPS} steps.",
            f"As simulated: {self._expected()}.",
            "Run the job's own launch script with the values below, take the median of the steps behind the first 10,",
            'and write it below, as in measured: {step_time: "3.4 s"}: simcluster run then says both.',
            "Not tried: the network between machines, and all that grows with the number of ranks.",
            *self._rows(),
            "Changed:",
            *(f"  {path}: {_shown(before)} -> {_shown(now)}: {why}" for path, before, now, why in self.changes),
        ]
        head = "\n".join(f"# {line}".rstrip() for line in lines)
        return f"{head}\n{to_yaml(document_of(self.scenario))}"

    def _rows(self) -> Iterator[str]:
        less = self.whole.parallel.tp // self.layout.tp
        if less > 1 and self.whole.parallel.sequence_parallel:
            yield f"Matrices of a rank have their shapes; norms and residuals have {less} x the rows (tp shards them)."

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "A launch checklist"."""
        return {
            "step_time_s": self.result.step_time,
            "peak_memory_bytes": self.result.memory.total,
            "mfu": self.result.mfu,
            "steps": STEPS,
            "changed": [
                {"path": path, "before": before, "now": now, "why": why} for path, before, now, why in self.changes
            ],
            "scenario": self.scenario.document(),
        }


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "left out"
    if isinstance(value, Mapping):
        return "as below"
    if isinstance(value, list):
        return ", ".join(str(each["kind"] if isinstance(each, Mapping) else each) for each in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def small_version(scenario: Scenario) -> SmallVersion:
    """The scenario for one machine of its cluster; InputError where none can be made."""
    topology = scenario.cluster.topology
    nodes = getattr(topology, "nodes", None)
    hosts = scenario.cluster.built.host_of
    if not isinstance(nodes, int) and len(set(hosts)) > 1:
        raise InputError(
            f"{scenario.name}: its cluster is a graph without a number of nodes, so there is none of one machine; "
            "name the machine, as in --cluster.topology dgx_h100"
        )
    machine = sum(host == hosts[0] for host in hosts[: scenario.gpus])
    layout = layout_on(scenario, machine)
    changes = list(_changes(scenario, layout, nodes if isinstance(nodes, int) else None))
    small = _fitting(scenario, layout, changes)
    layers, each = small.model.layers, layers_a_slice(small)
    why = "as many a chunk as before" if each == layers_a_slice(scenario) else "as many as fit with 10 % of memory left"
    own = [] if layers == scenario.model.layers else [("model.layers", scenario.model.layers, layers, why)]
    return SmallVersion(scenario, small, layout, (*changes, *own))


def _changes(scenario: Scenario, layout: SmallLayout, nodes: int | None) -> Iterator[Changed]:
    """(path, before, now, why) of all but the layers."""
    parallel = scenario.parallel
    if nodes is not None and nodes > 1:
        yield "cluster.nodes", nodes, 1, "one machine"
    if layout.gpus != scenario.gpus:
        yield "gpus", scenario.gpus, layout.gpus, "of that machine"
    before = {"tp": parallel.tp, "pp": parallel.pp, "dp": scenario.dp, "cp": parallel.cp, "ep": parallel.ep}
    for axis, size in before.items():
        now = getattr(layout, axis)
        if now != size:
            why = "kept above 1" if now > 1 else "no room for it on one machine: its code path is not tried"
            yield f"parallel.{axis}", size, now, why
    for name, value in model_changes(scenario, layout).items():
        yield f"model.{name}", attrgetter(name)(scenario.model), value, _WHY.get(name, "with tp: a rank's part stays")
    batch = microbatches_of(scenario, layout) * layout.dp * scenario.training.micro_batch
    if batch != scenario.training.global_batch:
        yield "training.global_batch", scenario.training.global_batch, batch, "as many microbatches for each stage"
    yield from _pipeline(scenario, layout)
    yield from _sharding(scenario, layout)
    yield from _apart(scenario)


_WHY = {
    "heads": "with tp: as many a rank, as wide as they were (head_dim)",
    "sequence_length": "with cp: as many tokens a rank",
    "moe.experts": "with ep: as many experts a rank",
    "vocab_size": "with tp, padding included: take tokens modulo it, or a mock data set",
}


def _pipeline(scenario: Scenario, layout: SmallLayout) -> Iterator[Changed]:
    pipeline = scenario.pipeline
    if isinstance(pipeline.schedule, Rows) and layout.pp != scenario.parallel.pp:
        yield "pipeline.schedule", pipeline.schedule_name, "1f1b", "its rows are for other stages"
        yield "pipeline.chunks", pipeline.chunks, 1, "with it"
    elif layout.pp == 1 and pipeline.chunks > 1:
        yield "pipeline.schedule", pipeline.schedule_name, "1f1b", "there is one stage"
        yield "pipeline.chunks", pipeline.chunks, 1, "with it"
    if pipeline.layout is not None:
        yield "pipeline.layout", pipeline.layout, None, "it is for other stages"
    if isinstance(pipeline.layers_per_stage, tuple):
        yield "pipeline.layers_per_stage", list(pipeline.layers_per_stage), "even", "the list is for other stages"


def _sharding(scenario: Scenario, layout: SmallLayout) -> Iterator[Changed]:
    group, ranks = scenario.fsdp.shard_group, layout.dp * layout.cp
    if group and group < scenario.dp * scenario.parallel.cp and ranks % (2 * group):
        yield "fsdp.shard_group", group, max(1, ranks // 2), "two groups"
    parallel = scenario.parallel
    if layout.tp == 1 and parallel.sequence_parallel:
        yield "parallel.sequence_parallel", True, False, "tp is 1"
    if layout.cp == 1 and parallel.cp_comm != "ring":
        yield "parallel.cp_comm", parallel.cp_comm, "ring", "cp is 1"
    if parallel.etp is not None and (layout.ep == 1 or layout.split(parallel) != parallel.etp):
        yield "parallel.etp", parallel.etp, None, "ep is 1" if layout.ep == 1 else "a stage has no such groups"


def _apart(scenario: Scenario) -> Iterator[Changed]:
    kept = [fault for fault in scenario.given_faults if isinstance(fault, SequenceLengths)]
    if len(kept) < len(scenario.given_faults):
        kinds = [fault.kind for fault in scenario.given_faults]
        yield (
            "faults",
            kinds,
            [fault.model_dump(mode="json", exclude_none=True) for fault in kept],
            "those of the whole cluster are left out",
        )
    if scenario.replicas > 1:
        yield "replicas", scenario.replicas, 1, "one step"
    if scenario.steps > 1:
        yield "steps", scenario.steps, 1, f"one is simulated; run {STEPS}"
    for name in ("checkpoint", "measured"):
        if getattr(scenario, name) is not None:
            yield name, "of the whole job", None, "is not of this one"
    if scenario.run is not None:
        yield "run", "of the whole job", _run_of(scenario), f"{STEPS} steps and {STEPS // _SAVED} checkpoints"


def _run_of(scenario: Scenario) -> dict[str, Any]:
    assert scenario.run is not None
    given = scenario.run.checkpoint.model_dump(mode="json", exclude_defaults=True)
    names = (*_KEPT_OF_CHECKPOINT, *(() if "to" in given else ("stall",)))  # a time that was the whole job's
    kept = {name: given[name] for name in names if name in given}
    found = {"steps": STEPS, "checkpoint": {"every": f"{_SAVED} steps", **kept}}
    validation = scenario.run.validation
    return found if validation is None else found | {"validation": {"every": f"{_SAVED} steps", "batches": 1}}


# --- layers, and the document -----------------------------------------------------------------------------------------


def _fitting(scenario: Scenario, layout: SmallLayout, changes: list[Changed]) -> Scenario:
    where = {"cluster.nodes": "cluster.topology.nodes"}  # in a whole document
    given: dict[str, Any] = {where.get(path, path): now for path, _, now, _ in changes}
    given |= {"name": f"{scenario.name}, one machine", "parallel.dp": layout.dp}
    chunks = given.get("pipeline.chunks", scenario.pipeline.chunks)
    document, smallest = scenario.document(), ""
    for each in range(layers_a_slice(scenario), 0, -1):
        try:
            small = from_document(document, given | {"model.layers": each * layout.pp * chunks})
        except InputError as problem:
            smallest = " ".join(str(problem).split())
            continue
        if held(small) <= usable(small.cluster.device.memory):
            return small
        smallest = f"{each} layers a slice hold {held(small) / 1e9:.1f} GB of {small.cluster.device.memory / 1e9:.1f}"
    raise InputError(f"{scenario.name}: no version for one machine: {smallest}")


def document_of(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a short file says it: without what is as by default; reading it gives an equal one.

    The cluster is named where it is a shipped one with another number of nodes.
    """
    document = scenario.model_dump(mode="json", exclude_defaults=True)
    document["model"] = _model(scenario.model)
    if scenario.given_faults:
        document["faults"] = [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.given_faults]
    else:
        document.pop("faults", None)
    del document["cluster"]["topology"]
    document["cluster"] = {**_cluster(scenario), **document["cluster"]}
    return document if from_document(document) == scenario else scenario.document()


def _model(model: Model) -> dict[str, Any]:
    found = model.model_dump(mode="json", exclude_none=True)
    for name in list(found):
        less = {key: value for key, value in found.items() if key != name}
        try:
            found = less if Model.model_validate(less) == model else found
        except ValueError:
            continue
    return found


def _cluster(scenario: Scenario) -> dict[str, Any]:
    topology = scenario.cluster.topology
    for name in shipped_names("topologies"):
        shipped = load_topology(name)
        if type(shipped) is not type(topology) or shipped.name != topology.name:
            continue
        own, other = (each.model_dump(mode="json", exclude_none=True) for each in (topology, shipped))
        apart = {key: value for key, value in own.items() if value != other.get(key)}
        return {"topology": name, **apart}  # ``document_of`` sees to it that it is the same
    return {"topology": topology.model_dump(mode="json", exclude_none=True)}
