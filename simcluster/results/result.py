"""Result of a simulated scenario: step time, memory, warnings, and the result JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, assert_never

from simcluster.base.old_names import renamed_member
from simcluster.base.satellites import load_object
from simcluster.base.version import VERSION as VERSION
from simcluster.documents.argument_types import checked
from simcluster.planning.footprint import Facts, Footprint
from simcluster.planning.job import Job
from simcluster.planning.offload_layers import moves_activations
from simcluster.results.host_copies import StepCheckpoint, host_activations, measure_checkpoint, measure_copies
from simcluster.results.memory_timeline import MemoryPeak
from simcluster.results.numbers import FlatNumbers, all_metrics, hfu, mfu
from simcluster.results.played import Run
from simcluster.results.raised import explain_scale_limit, explain_topology_limit
from simcluster.results.waits import WaitMatrix, wait_matrix
from simcluster.scenario.advice import OverlapNote, PlainNote, cost_warnings, find_missing_overlaps, launch_note
from simcluster.scenario.checkpoint_plan import checkpoint_spec, describe_host_memory
from simcluster.scenario.effects import idle_field_notes
from simcluster.scenario.files import model_assumptions
from simcluster.scenario.fits import Remedies, find_memory_remedies
from simcluster.scenario.likely import LikelyInterval, predict_interval
from simcluster.scenario.memory_plan import HEADROOM, Fit, judge_fit, recipe_document
from simcluster.scenario.rules import warn_uneven_racks
from simcluster.scenario.sections import HostMemory
from simcluster.schedules.comparison import ScheduleBubble, schedule_bubble

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.scenario.loading import Loading
    from simcluster.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step of the job: seconds per step, tokens/s, MFU and HFU, defined as for simulated steps.

    ``gap`` is measured minus simulated seconds (below zero: the real run was faster).
    """

    step_time: float
    tokens_per_s: float
    mfu: float
    hfu: float
    gap: float
    source: str = ""

    @classmethod
    def of(cls, step_time: float, facts: Facts, simulated: float, source: str = "") -> MeasuredStep:
        """Return the measured step with its metrics, from measured and simulated seconds per step."""
        rate = step_time * facts.ranks * facts.peak_flops
        return cls(
            step_time,
            facts.tokens / step_time,
            facts.model_flops / rate,
            facts.hardware_flops / rate,
            step_time - simulated,
            source,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the measured step's entry for the result JSON."""
        values = asdict(self)
        return {"step_time_s": values.pop("step_time"), "gap_s": values.pop("gap"), **values}


AUTOMATIC = ("all_reduce", "reduce_scatter", "all_gather")
_WORTH_A_NOTE = 0.01  # of the step


@dataclass(frozen=True, kw_only=True)
class Result(Run, FlatNumbers):
    """Result of one simulated scenario: step time, metrics, timeline and memory.

    ``clean`` simulates the ``job`` without faults that can make stragglers; ``loading`` is its exposed data loading.
    """

    scenario: Scenario
    job: Job = field(repr=False)
    facts: Facts
    clean: Callable[[], float] | None = field(default=None, repr=False)
    loading: Loading | None = field(default=None, repr=False)

    @cached_property
    def without_faults(self) -> float | None:
        """Seconds per step without the faults that can make stragglers; None if there are none."""
        return self.clean() if self.clean else None

    @property
    def slowdown(self) -> float:
        """Step time relative to the step without faults that can make stragglers."""
        return self.step_time / self.without_faults if self.without_faults else 1.0

    @property
    def simulated_ops(self) -> int:
        """Number of simulated ops."""
        return len(self.record.ops)

    @cached_property
    def memory_peak(self) -> MemoryPeak:
        """Peak of memory over all ranks: its time, rank, and the last op that allocated."""
        return max(self.peaks, key=lambda peak: self.facts.footprints[peak.stage].with_pools(peak.pools).total)

    def __getattr__(self, name: str) -> Any:
        return renamed_member(self, name)

    @property
    def link_table(self) -> pd.DataFrame:
        """Traffic and utilisation of each link that carried traffic, one row per link."""
        table: pd.DataFrame = load_object("results.loads:link_table")(self)  # whose module needs this one
        return table

    @checked
    def memory_table(self, ranks: Sequence[int] | None = None) -> pd.DataFrame:
        """Return a table with one row per memory change on some ranks (default: every simulated rank)."""
        table = self.memory_timeline.frame()
        if ranks is None:
            return table
        import pandas as pd

        parts = [table[table["rank"] == self.simulated_for(rank)].assign(rank=rank) for rank in ranks]
        return pd.concat(parts, ignore_index=True)

    @property
    def memory(self) -> Footprint:
        """Bytes on the rank with the highest memory peak, at that peak."""
        return self.facts.footprints[self.memory_peak.stage].with_pools(self.memory_peak.pools)

    @checked
    def memory_of(self, rank: int) -> Footprint:
        """Return the bytes on any rank of the job at its memory peak."""
        peak = self.peak_of(self.simulated_for(rank))
        return self.facts.footprints[peak.stage].with_pools(peak.pools)

    @cached_property
    def wait_matrix(self) -> WaitMatrix:
        """Matrix of the waits between ranks, or between larger units of the job."""
        classes, ranks = self.folding.classes.of_rank, slice(self.ranks.start, self.ranks.stop)
        hosts = self.scenario.cluster.built.host_of
        return wait_matrix(self.waits, self.job.plan, class_of=classes[ranks], host_of=hosts, steps=self.steps)

    @cached_property
    def host_memory(self) -> float:
        """Peak bytes of offloaded state and activations in the fullest host memory, with every rank at its peak."""
        if self.scenario.memory.offload == HostMemory():
            return 0.0
        stages, box_of = self._stage_of_rank, self.scenario.cluster.built.box_of
        held = {
            rank: host_activations(self.spans, rank) + self.facts.footprints[stages[rank]].host for rank in self.weights
        }
        of_box: dict[tuple[int, int], float] = {}
        for rank in range(self.facts.ranks):
            of_box[box_of(rank)] = of_box.get(box_of(rank), 0.0) + held[self.simulated_for(rank)]
        return max(of_box.values(), default=0.0)

    @cached_property
    def checkpoint(self) -> StepCheckpoint | None:
        """Checkpoint that is taken during the simulated steps; None without one."""
        chosen = self.scenario.checkpoint
        if chosen is None:
            return None
        return measure_checkpoint(self.spans, self.weights, after=chosen.after, steps=self.steps, place=chosen.place)

    @property
    def host_copies(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds of copies to the host (d2h) and back (h2d), per step of the mean rank."""
        if self.scenario.memory.offload == HostMemory():
            return {}
        found = {way: measure_copies(self.spans, self.weights, way, steps=self.steps) for way in ("d2h", "h2d")}
        return {way: copies for way, copies in found.items() if copies["bytes"]}

    @property
    def fits(self) -> bool:
        """Return whether the fullest GPU has enough memory."""
        return self.memory.total <= self.facts.memory

    @property
    def fit(self) -> Fit:
        """Whether the job fits in memory with ``headroom`` to spare (yes), only without it (tight), or not (no)."""
        return judge_fit(self.memory.total, self.facts.memory)

    @cached_property
    def remedies(self) -> Remedies | None:
        """Changes that would make the job fit in memory; None if it fits."""
        return None if self.fits else find_memory_remedies(self.scenario)

    @cached_property
    def schedule_bubble(self) -> ScheduleBubble:
        """Bubble of the pipeline schedule alone; zero without a pipeline."""
        return ScheduleBubble(0.0, "") if self.job.plan.pp == 1 else schedule_bubble(self.job.schedule)

    @property
    def likely(self) -> LikelyInterval:
        """Interval that a measured step time likely lies in, from the prediction errors of similar validated runs."""
        return predict_interval(self.scenario, self.facts.model_flops, self.step_time)

    @property
    def mfu(self) -> float:
        """Model FLOP/s over peak (MFU), as ``mfu_convention`` describes."""
        return mfu(self)

    @property
    def mfu_convention(self) -> str:
        """Description of what counts as model FLOP, and over which peak."""
        within = " and within documents (the sum of squares of their lengths)" if self.facts.attention != 1 else ""
        flops = f"model FLOPs: 3 x forward, no recompute, causal attention at one half{within}, LM head included"
        return f"{flops}; over the peak in {self.facts.precision}, {self.facts.peak_flops / 1e12:,.4g} TFLOP/s per GPU"

    @property
    def hfu(self) -> float:
        """Hardware FLOP/s over peak (HFU), which counts recomputation."""
        return hfu(self)

    @cached_property
    def measured(self) -> MeasuredStep | None:
        """Measured step time of a real run of the scenario, if the scenario names one."""
        seconds, told = self.scenario.measured_step_time, self.scenario.measured
        if seconds is None or told is None:
            return None
        return MeasuredStep.of(seconds, self.facts, self.step_time, told.source)

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Distinct collective calls of the job: axis, kind, size, and algorithm.

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
            for (axis, (kind, size)), method in self.folding.communicators.calls(self.ranks).items()
        ]

    def warnings(self) -> list[str]:
        """Return warnings about the simulation and the job, to read before launching it."""
        found = []
        memory, capacity = self.memory.total, self.facts.memory
        if self.fit == "no":
            found.append(f"out of memory: needs {memory / 1e9:.1f} of {capacity / 1e9:.1f} GB per GPU")
        elif self.fit == "tight":
            counted = self.scenario.memory != type(self.scenario.memory)()
            more = "" if counted else ", before fragmentation and buffers"
            found.append(
                f"tight: needs {memory / capacity:.0%} of a GPU's memory{more}; keep {HEADROOM:.0%} free for what is "
                "not counted (CUDA context, fragmentation)"
            )
        elif self.fit != "yes":
            assert_never(self.fit)
        spec = checkpoint_spec(self.scenario) if self.scenario.checkpoint else None
        if spec or self.scenario.memory.offload != HostMemory():
            told, bad = describe_host_memory(self.scenario, self.host_memory, spec)
            found += [told] if bad else []
        if self.job.offload.activations and not moves_activations(self.job):
            found.append(
                f"memory.offload.activations {self.job.offload.activations:g} moves nothing: a stage has one layer, or "
                "a single action between the forward and the backward of a microbatch"
            )
        plan = self.scenario.parallel
        hosts = self.scenario.cluster.built.hosts
        if self.folding.communicators.span("tp", hosts):
            found.append(f"tp {plan.tp} crosses nodes: its collectives leave the NVLink domain")
        found += filter(None, (warn_uneven_racks(self.scenario), launch_note(self.scenario)))
        found += filter(None, (explain_scale_limit(self.scenario, self), explain_topology_limit(self.scenario, self)))
        again = self.times.breakdown["recompute"]
        return found + list(cost_warnings(self.scenario, self.facts.footprints, again, self.job.schedule))

    @cached_property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions of the step that neither the scenario nor its model's config.json states."""
        return model_assumptions(self.scenario.origin.written_document)

    def notes(self) -> list[OverlapNote | PlainNote]:
        """Return notes on disabled overlap that costs a notable part of the step, and on fields without effect."""
        found: list[OverlapNote | PlainNote] = []
        for off in find_missing_overlaps(self.scenario):
            exposed = sum(self.times.breakdown[f"exposed_{axis}"] for axis in off.axes) / self.step_time
            if exposed >= _WORTH_A_NOTE:
                found.append(OverlapNote(off, exposed))
        return found + [PlainNote(text) for text in self.without_effect()]

    def without_effect(self) -> Iterator[str]:
        """Yield a sentence for each scenario field that has no effect on the step, with the reason."""
        yield from idle_field_notes(self.scenario)
        chosen, called = self.scenario.collectives, {each["kind"] for each in self.collectives}
        idle = [f"collectives.{kind}" for kind in AUTOMATIC if getattr(chosen, kind) != "auto" and kind not in called]
        if idle and self.scenario.gpus > 1:
            yield f"without effect: {', '.join(idle)}, since the step makes no such call"

    def to_dict(self) -> dict[str, Any]:
        """Return the result JSON (CONTRACT.md); nothing in it depends on the clock or the computer."""
        memory = self.memory
        return {
            "step_time_s": self.step_time,  # first, and what measured ones should be next to it
            "step_time_likely": self.likely.to_dict(),
            **all_metrics(self),
            "measured": self.measured and self.measured.to_dict(),
            "fit": {"answer": self.fit, "used": self.memory.total / self.facts.memory, "headroom": HEADROOM},
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


def flat_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result JSON as a flat dictionary, breakdown included, for tables."""
    flat = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**flat, **{f"breakdown_s.{name}": value for name, value in result["breakdown_s"].items()}}
