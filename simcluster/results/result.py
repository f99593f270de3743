"""Result of a simulated scenario: step time, memory, warnings, and the result JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, assert_never

from simcluster.base.old_names import current_name
from simcluster.base.satellites import load_object
from simcluster.base.version import VERSION as VERSION
from simcluster.documents.argument_types import check_arguments
from simcluster.planning.footprint import Footprint, JobFacts
from simcluster.planning.job import Job
from simcluster.planning.offload_layers import offloads_activations
from simcluster.results.host_copies import StepCheckpoint, measure_checkpoint, measure_copies, peak_host_activations
from simcluster.results.link_upgrade import explain_scale_limit, explain_topology_limit
from simcluster.results.memory_timeline import MemoryPeak
from simcluster.results.simulated_run import Run
from simcluster.results.step_metrics import ScenarioMetrics, all_metrics
from simcluster.results.waits import WaitMatrix, wait_matrix
from simcluster.scenario import cost_advice
from simcluster.scenario.checkpoint_plan import describe_host_memory, step_checkpoint_spec
from simcluster.scenario.cost_advice import OverlapNote, PlainNote, find_cost_warnings, find_missing_overlaps
from simcluster.scenario.document_resolution import model_assumptions
from simcluster.scenario.field_effects import describe_idle_fields
from simcluster.scenario.memory_plan import HEADROOM, Fit, judge_fit, recipe_document
from simcluster.scenario.memory_remedies import MemoryRemedies, find_memory_remedies
from simcluster.scenario.prediction_intervals import PredictionInterval, predict_interval
from simcluster.scenario.rules import warn_uneven_racks
from simcluster.scenario.sections import HostOffload
from simcluster.schedules.comparison import ScheduleBubble, compute_schedule_bubble

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.scenario.data_wait import LoaderEffect
    from simcluster.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Metrics of a real, measured step of the job: step time, tokens/s, MFU and HFU.

    ``gap`` is measured minus simulated seconds (below zero: the real run was faster).
    """

    step_time: float
    tokens_per_s: float
    mfu: float
    hfu: float
    gap: float
    source: str = ""

    @classmethod
    def from_step_time(cls, step_time: float, facts: JobFacts, simulated: float, source: str = "") -> MeasuredStep:
        """Compute the metrics of a measured step time, and by how much (s) it exceeds the simulated step time."""
        rate, gap = step_time * facts.ranks * facts.peak_flops, step_time - simulated
        return cls(
            step_time, facts.tokens / step_time, facts.model_flops / rate, facts.hardware_flops / rate, gap, source
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the measured step's section of the result JSON."""
        values = asdict(self)
        return {"step_time_s": values.pop("step_time"), "gap_s": values.pop("gap"), **values}


AUTOMATIC = ("all_reduce", "reduce_scatter", "all_gather")
_WORTH_A_NOTE = 0.01  # of the step


@dataclass(frozen=True, kw_only=True)
class Result(Run, ScenarioMetrics):
    """Result of one simulated scenario: step time, metrics, timeline and memory.

    ``clean`` simulates the ``job`` without faults that can make stragglers; ``loading`` is its exposed data loading.
    """

    scenario: Scenario
    job: Job = field(repr=False)
    facts: JobFacts
    clean: Callable[[], float] | None = field(default=None, repr=False)
    loading: LoaderEffect | None = field(default=None, repr=False)

    @cached_property
    def without_faults(self) -> float | None:
        """Step time (s) without the faults that cause stragglers; None if there are no such faults."""
        return self.clean() if self.clean else None

    @property
    def slowdown(self) -> float:
        """Step time divided by the step time without the faults that cause stragglers."""
        return self.step_time / self.without_faults if self.without_faults else 1.0

    @property
    def simulated_ops(self) -> int:
        """Number of simulated ops."""
        return len(self.record.ops)

    @cached_property
    def memory_peak(self) -> MemoryPeak:
        """Highest memory peak of all ranks: time, rank, and the op that allocated last before the peak."""
        return max(self.peaks, key=lambda peak: self.facts.footprints[peak.stage].with_pool_bytes(peak.pools).total)

    def __getattr__(self, name: str) -> Any:
        return getattr(self, current_name("Result", name))

    @property
    def link_table(self) -> pd.DataFrame:
        """Traffic and utilisation of each link that carried traffic, one row per link."""
        table: pd.DataFrame = load_object("results.link_loads:link_table")(self)  # whose module needs this one
        return table

    @check_arguments
    def memory_table(self, ranks: Sequence[int] | None = None) -> pd.DataFrame:
        """Return a table of allocations and frees by some ranks (default: by every simulated rank)."""
        table = self.memory_timeline.frame()
        if ranks is None:
            return table
        import pandas as pd

        parts = [table[table["rank"] == self.representative_of(rank)].assign(rank=rank) for rank in ranks]
        return pd.concat(parts, ignore_index=True)

    @property
    def memory(self) -> Footprint:
        """Memory of the fullest GPU at its peak, in bytes by category (parameters, activations, ...)."""
        return self.facts.footprints[self.memory_peak.stage].with_pool_bytes(self.memory_peak.pools)

    @check_arguments
    def memory_of(self, rank: int) -> Footprint:
        """Return a rank's memory at the rank's peak, in bytes by category; any rank of the job is allowed."""
        peak = self.memory_peak_of(self.representative_of(rank))
        return self.facts.footprints[peak.stage].with_pool_bytes(peak.pools)

    @cached_property
    def wait_matrix(self) -> WaitMatrix:
        """Matrix of how long ranks wait for each other; in large jobs, of workers, nodes or pipeline stages."""
        classes, ranks = self.folding.classes.of_rank, slice(self.ranks.start, self.ranks.stop)
        hosts = self.scenario.cluster.built.host_of
        return wait_matrix(self.waits, self.job.plan, class_of=classes[ranks], host_of=hosts, steps=self.steps)

    @cached_property
    def host_memory(self) -> float:
        """Most bytes of offloaded state and activations in one host's memory, if its ranks peak at the same time."""
        if self.scenario.memory.offload == HostOffload():
            return 0.0
        facts, stages, box_of = self.facts, self._stage_of_rank, self.scenario.cluster.built.node_and_tray
        held = {
            rank: peak_host_activations(self.spans, rank) + facts.footprints[stages[rank]].host for rank in self.weights
        }
        of_box: dict[tuple[int, int], float] = {}
        for rank in range(facts.ranks):
            of_box[box_of(rank)] = of_box.get(box_of(rank), 0.0) + held[self.representative_of(rank)]
        return max(of_box.values(), default=0.0)

    @cached_property
    def checkpoint(self) -> StepCheckpoint | None:
        """Measurements of the checkpoint among the simulated steps; None without a checkpoint."""
        chosen = self.scenario.checkpoint
        if chosen is None:
            return None
        return measure_checkpoint(self.spans, self.weights, after=chosen.after, steps=self.steps, target=chosen.place)

    @property
    def host_copies(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds of copies to the host (d2h) and from the host (h2d), per step and averaged over ranks."""
        if self.scenario.memory.offload == HostOffload():
            return {}
        found = {way: measure_copies(self.spans, self.weights, way, steps=self.steps) for way in ("d2h", "h2d")}
        return {way: copies for way, copies in found.items() if copies["bytes"]}

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has enough memory."""
        return self.memory.total <= self.facts.memory

    @property
    def fit_verdict(self) -> Fit:
        """Whether the job fits in GPU memory: "yes", "tight" (too little memory stays free) or "no"."""
        return judge_fit(self.memory.total, self.facts.memory)

    @cached_property
    def remedies(self) -> MemoryRemedies | None:
        """Changes that would make the job fit in memory; None if it fits."""
        return None if self.fits else find_memory_remedies(self.scenario)

    @cached_property
    def schedule_bubble(self) -> ScheduleBubble:
        """Bubble that the pipeline schedule alone would have; zero without a pipeline."""
        return ScheduleBubble(0.0, "") if self.job.plan.pp == 1 else compute_schedule_bubble(self.job.schedule)

    @property
    def likely_interval(self) -> PredictionInterval:
        """Interval in which a measured step time probably lies, based on prediction errors of similar measured runs."""
        return predict_interval(self.scenario, self.facts.model_flops, self.step_time)

    @property
    def mfu_convention(self) -> str:
        """Sentence that states how MFU counts model FLOPs, and which peak FLOP/s it divides by."""
        within = " and within documents (the sum of squares of their lengths)" if self.facts.attention != 1 else ""
        flops = f"model FLOPs: 3 x forward, no recompute, causal attention counted as half{within}, LM head included"
        return f"{flops}; over the peak in {self.facts.precision}, {self.facts.peak_flops / 1e12:,.4g} TFLOP/s per GPU"

    @cached_property
    def measured(self) -> MeasuredStep | None:
        """Measured step of a real run, from the scenario key ``measured``; None if the key is not set."""
        seconds, told = self.scenario.measured_step_time, self.scenario.measured
        if seconds is None or told is None:
            return None
        return MeasuredStep.from_step_time(seconds, self.facts, self.step_time, told.source)

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Distinct collective calls of the job: axis, kind, size, and algorithm of each.

        ``free_links_s`` is NCCL's time for it alone; None where the links alone decide the time.
        """
        return [
            {
                "axis": axis,
                "kind": kind,
                "size_bytes": size,
                "algorithm": method.algorithm,
                "protocol": method.protocol,
                "free_links_s": method.pace and method.pace.latency + size / method.pace.bandwidth,
            }
            for (axis, (kind, size)), method in self.folding.communicators.methods_by_call(self.ranks).items()
        ]

    def warnings(self) -> list[str]:
        """Return warnings that a user should read before launching the job."""
        found = []
        memory, capacity = self.memory.total, self.facts.memory
        if self.fit_verdict == "no":
            found.append(f"out of memory: needs {memory / 1e9:.1f} of {capacity / 1e9:.1f} GB per GPU")
        elif self.fit_verdict == "tight":
            counted = self.scenario.memory != type(self.scenario.memory)()
            more = "" if counted else ", before fragmentation and buffers"
            found.append(
                f"tight: needs {memory / capacity:.0%} of a GPU's memory{more}; keep {HEADROOM:.0%} free for what is "
                "not counted (CUDA context, fragmentation)"
            )
        elif self.fit_verdict != "yes":
            assert_never(self.fit_verdict)
        spec = step_checkpoint_spec(self.scenario) if self.scenario.checkpoint else None
        if spec or self.scenario.memory.offload != HostOffload():
            told, bad = describe_host_memory(self.scenario, self.host_memory, spec)
            found += [told] if bad else []
        if self.job.offload.activations and not offloads_activations(self.job):
            found.append(
                f"memory.offload.activations {self.job.offload.activations:g} has no effect: a stage has one layer, "
                "or only one action between a microbatch's forward and backward; remove the key"
            )
        plan = self.scenario.parallel
        hosts = self.scenario.cluster.built.node_of_gpu
        if self.folding.communicators.spans_nodes("tp", hosts):
            found.append(f"tp {plan.tp} crosses nodes: its collectives leave the NVLink domain")
        found += filter(None, (warn_uneven_racks(self.scenario), cost_advice.describe_framework_support(self.scenario)))
        found += filter(None, (explain_scale_limit(self.scenario, self), explain_topology_limit(self.scenario, self)))
        again = self.times.breakdown["recompute"]
        return found + list(find_cost_warnings(self.scenario, self.facts.footprints, again, self.job.schedule))

    @cached_property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about the model where neither the scenario nor the model's config.json gives a value."""
        return model_assumptions(self.scenario.origin.written_document)

    def notes(self) -> list[OverlapNote | PlainNote]:
        """Return notes about disabled overlap that costs time, and about scenario keys that have no effect."""
        found: list[OverlapNote | PlainNote] = []
        for off in find_missing_overlaps(self.scenario):
            exposed = sum(self.times.breakdown[f"exposed_{axis}"] for axis in off.axes) / self.step_time
            if exposed >= _WORTH_A_NOTE:
                found.append(OverlapNote(off, exposed))
        return found + [PlainNote(text) for text in self.list_idle_fields()]

    def list_idle_fields(self) -> Iterator[str]:
        """Yield a sentence for each scenario key without effect on the step, with the reason."""
        yield from describe_idle_fields(self.scenario)
        chosen, called = self.scenario.collectives, {each["kind"] for each in self.collectives}
        idle = [f"collectives.{kind}" for kind in AUTOMATIC if getattr(chosen, kind) != "auto" and kind not in called]
        if idle and self.scenario.gpus > 1:
            yield f"without effect: {', '.join(idle)}, since the step makes no such call"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON (CONTRACT.md), which depends on neither clock nor computer."""
        memory = self.memory
        return {
            "step_time_s": self.step_time,  # first, and what measured ones should be next to it
            "step_time_likely": self.likely_interval.to_dict(),
            **all_metrics(self),
            "measured": self.measured and self.measured.to_dict(),
            "fit": {"answer": self.fit_verdict, "used": self.memory.total / self.facts.memory, "headroom": HEADROOM},
            "schedule_bubble_formula": self.schedule_bubble.formula,
            "fits_with": None if self.remedies is None else self.remedies.to_dict(),
            "breakdown_s": dict(self.times.breakdown),
            "account": self.account.to_dict(),
            "overlap": self.overlap.rows(),
            "traffic": [each.to_dict() for each in self.traffic],
            "critical_path_s": self.critical_path.by_kind(),
            "memory_bytes": {
                "parameters": memory.parameters,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "other": memory.other + memory.buffers,
            },
            "bytes_per_parameter": recipe_document(self.scenario),
            "memory_peak": self.memory_peak.to_dict(),
            "host_copies": self.host_copies,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_dict(),
            "loader": None if self.loading is None else self.loading.to_dict(),
            "collectives": self.collectives,
            "engine": {
                "kind": self.record.engine,
                "why": self.record.why,
                "events": self.record.events,
                "ranks_simulated": len(self.weights),
                "ranks_total": self.facts.ranks,
            },
            "mfu_convention": self.mfu_convention,
            "assumed": list(self.assumed),
            "warnings": self.warnings(),
            "notes": [note.to_dict() for note in self.notes()],
            "scenario": self.scenario.document(),
            "version": VERSION,
        }


def flatten_result(result: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of a result JSON, including the time breakdown, as a dictionary without nesting."""
    flat = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**flat, **{f"breakdown_s.{name}": value for name, value in result["breakdown_s"].items()}}
