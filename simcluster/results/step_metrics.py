"""Metrics of a step, each defined once: JSON name, unit, formula and table heading.

To add one: an entry in METRICS, an attribute of ``ScenarioMetrics``, a line in CONTRACT.md. It is then in the result
JSON, in the rows of ``compare`` and of sweeps, and with a heading in the tables of its ``columns``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, get_overloads, overload

from simcluster.base.display import Displayable, render_object
from simcluster.documents.argument_types import check_arguments
from simcluster.planning.footprint import Footprint, JobFacts
from simcluster.results.step_time import StepBreakdown
from simcluster.schedules.comparison import ScheduleBubble

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from simcluster.base.display import NotebookPage, SavableFigure

MetricUnit = Literal["s", "1/s", "FLOP", "TFLOP/s", "bytes", "fraction", "factor", "count", "yes or no"]
TableName = Literal["compare", "sweep", "plan", "report"]
"""Printed tables; their columns are metrics with a heading."""
ALL_TABLES: frozenset[TableName] = frozenset(get_args(TableName))
NO_TABLES: frozenset[TableName] = frozenset()


class TimedStep(Protocol):
    """A step with known duration and job, but without a timeline."""

    @property
    def step_time(self) -> float:
        """Step time in seconds."""

    @property
    def facts(self) -> JobFacts:
        """Token count, FLOP, number of ranks and peak rates of the job."""


class SimulatedStep(TimedStep, Protocol):
    """A fully simulated step with time breakdown and memory, such as ``result.Result``."""

    @property
    def times(self) -> StepBreakdown:
        """Time breakdown of the step."""

    @property
    def schedule_bubble(self) -> ScheduleBubble:
        """Bubble that the pipeline schedule alone would have, with equal passes and no communication."""

    @property
    def slowdown(self) -> float:
        """Step time divided by the step time without stragglers."""

    @property
    def memory(self) -> Footprint:
        """Memory of the fullest GPU at its peak, in bytes by category."""

    @property
    def host_memory(self) -> float:
        """Most bytes offloaded to one host's memory."""

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has enough memory."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a metric of a step: unit, formula, and heading in tables.

    ``formula`` takes a SimulatedStep, or a TimedStep where the metric is ``timed``: then it is also known where no step
    is simulated in full. ``heading`` is its heading in the tables of ``columns``.
    """

    unit: MetricUnit
    formula: Callable[[Any], float]
    heading: str = ""
    columns: frozenset[TableName] = NO_TABLES
    timed: bool = False


def timed_metric(unit: MetricUnit, formula: Callable[[TimedStep], float], heading: str = "") -> Metric:
    """Define a metric that needs only the step time and the job; with a heading it is in all tables.

    >>> timed_metric("s", lambda step: step.step_time, "step").timed
    True
    """
    return Metric(unit, formula, heading, ALL_TABLES if heading else NO_TABLES, timed=True)


def simulated_metric(unit: MetricUnit, formula: Callable[[SimulatedStep], float], heading: str = "",
                     columns: frozenset[TableName] = ALL_TABLES) -> Metric:  # fmt: skip
    """Define a metric that needs a fully simulated step.

    With a heading it is in all tables, or in those of ``columns``.

    >>> sorted(simulated_metric("s", exposed_communication, "exposed").columns)
    ['compare', 'plan', 'report', 'sweep']
    """
    return Metric(unit, formula, heading, columns if heading else NO_TABLES)


def mfu(step: TimedStep) -> float:
    """Return the model FLOP/s over peak (MFU), without recompute and with causal attention counted as half."""
    return step.facts.model_flops / step.step_time / (step.facts.ranks * step.facts.peak_flops)


def mfu_bf16(step: TimedStep) -> float:
    """Return the MFU relative to the bf16 peak, which papers quote even for jobs in fp8 or fp4."""
    facts = step.facts
    return mfu(step) * (facts.peak_flops / facts.bf16_flops if facts.uses_low_precision and facts.bf16_flops else 1.0)


def hfu(step: SimulatedStep) -> float:
    """Return the hardware FLOP/s over peak (HFU), including recompute."""
    return step.facts.hardware_flops / step.step_time / (step.facts.ranks * step.facts.peak_flops)


def exposed_communication(step: SimulatedStep) -> float:
    """Return how many seconds per step a rank communicates without computing, averaged over ranks."""
    return sum(seconds for name, seconds in step.times.breakdown.items() if name.startswith("exposed_"))


_FULL: frozenset[TableName] = frozenset(("compare", "report"))

METRICS: dict[str, Metric] = {
    "step_time_s": timed_metric("s", lambda step: step.step_time),
    "tokens_per_s": timed_metric("1/s", lambda step: step.facts.tokens / step.step_time),
    "tokens_per_s_per_gpu": timed_metric("1/s", lambda step: step.facts.tokens / step.step_time / step.facts.ranks),
    "real_token_fraction": timed_metric("fraction", lambda step: step.facts.real),
    "real_tokens_per_s": timed_metric("1/s", lambda step: step.facts.real * step.facts.tokens / step.step_time),
    "real_tokens_per_s_per_gpu": timed_metric(
        "1/s", lambda step: step.facts.real * step.facts.tokens / step.step_time / step.facts.ranks, "tokens/s/GPU"
    ),
    "samples_per_s": timed_metric("1/s", lambda step: step.facts.samples / step.step_time),
    "model_flops_per_step": simulated_metric("FLOP", lambda step: step.facts.model_flops),
    "model_tflops_per_gpu": timed_metric(
        "TFLOP/s", lambda step: step.facts.model_flops / step.step_time / step.facts.ranks / 1e12
    ),
    "mfu": timed_metric("fraction", mfu, "MFU"),
    "mfu_bf16": timed_metric("fraction", mfu_bf16),
    "mfu_without_padding": timed_metric(
        "fraction", lambda step: mfu(step) * step.facts.real_flops / step.facts.model_flops
    ),
    "hfu": simulated_metric("fraction", hfu),
    "gpus": timed_metric("count", lambda step: step.facts.ranks),
    "bubble_fraction": simulated_metric("fraction", lambda one: one.times.bubble_fraction, "bubble", _FULL | {"plan"}),
    "bubble_over_ideal": simulated_metric("fraction", lambda step: step.times.bubble_over_ideal),
    "schedule_bubble_fraction": simulated_metric(
        "fraction", lambda step: step.schedule_bubble.fraction, "schedule's", frozenset(("compare",))
    ),
    "exposed_communication_s": simulated_metric("s", exposed_communication, "exposed comm.", _FULL),
    "communication_s": simulated_metric("s", lambda step: step.times.communication),
    "overlap_fraction": simulated_metric("fraction", lambda step: step.times.overlap_fraction),
    "straggler_slowdown": simulated_metric("factor", lambda step: step.slowdown),
    "peak_memory_bytes": simulated_metric("bytes", lambda step: step.memory.total, "memory", _FULL),
    "host_memory_bytes": simulated_metric("bytes", lambda step: step.host_memory),
    "fits": simulated_metric("yes or no", lambda step: step.fits),
}
"""Metrics by name, in the order of the JSON.  Every table begins with the step time, under its own heading."""


def all_metrics(step: SimulatedStep) -> dict[str, float]:
    """Return all metrics of a simulated step."""
    return {name: metric.formula(step) for name, metric in METRICS.items()}


def step_time_metrics(step: TimedStep) -> dict[str, float]:
    """Return the metrics that can be computed from the step time and the job alone."""
    return {name: metric.formula(step) for name, metric in METRICS.items() if metric.timed}


def table_metrics(table: TableName) -> dict[str, Metric]:
    """Return the metrics that a table ("compare", "sweep", "plan" or "report") shows, in column order.

    >>> list(table_metrics("plan"))
    ['real_tokens_per_s_per_gpu', 'mfu', 'bubble_fraction']
    """
    return {name: metric for name, metric in METRICS.items() if table in metric.columns}


class MetricValue:
    """Descriptor that computes the metric with the attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, step: object, owner: type | None = None) -> float:
        if step is None:
            return self  # type: ignore[return-value]  # of the class itself: what documents read
        return METRICS[self._name].formula(step)


Method = TypeVar("Method", bound=Callable[..., Any])


def show_all_options(method: Method) -> Method:
    """Give a method the signature of its last overload, so that TAB and help() list all its options."""
    method.__signature__ = signature(get_overloads(method)[-1])  # type: ignore[attr-defined]
    return method


class RunMetrics(Displayable):
    """Base class with the time metrics of any simulated run, with or without a scenario."""

    if TYPE_CHECKING:

        @property
        def times(self) -> StepBreakdown:
            """Time breakdown of the step."""

    step_time_s = MetricValue()
    """Seconds per step: ``step_time``."""
    bubble_fraction = MetricValue()
    """Share of the step for which the mean rank waits for other stages."""
    bubble_over_ideal = MetricValue()
    """The bubble over the step without it."""
    exposed_communication_s = MetricValue()
    """Seconds for which communication delays the mean rank."""
    communication_s = MetricValue()
    """Seconds with something on the wire, mean over ranks."""
    overlap_fraction = MetricValue()
    """Share of the communication time that overlaps with computation."""

    @property
    def breakdown(self) -> pd.Series[float]:
        """Seconds per step of each activity (``forward``, ``exposed_tp``, ...), averaged over ranks."""
        import pandas as pd

        return pd.Series(self.times.breakdown, name="seconds", dtype=float)

    @overload
    def gantt(self, *, interactive: Literal[True], ranks: Sequence[int] | None = None) -> NotebookPage: ...
    @overload
    def gantt(
        self,
        *,
        interactive: Literal[False] = False,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
        title: str | None = None,
        labels: bool = True,
        width: float = 14.0,
        height: float | None = None,
        max_rows: int = 24,
        rows: Literal["rank", "stage"] = "rank",
        breaks: bool = True,
    ) -> SavableFigure: ...
    @check_arguments
    @show_all_options
    def gantt(self, *, interactive: bool = False, **options: Any) -> SavableFigure | NotebookPage:
        """Return the timeline as a picture (matplotlib Figure), or as an interactive notebook page to zoom into.

        Options as of ``plots.gantt``. ``ranks`` are any ranks of the job. InputError for ranks that it does not have,
        and as ``plots.gantt``.
        """
        found: SavableFigure | NotebookPage = render_object(self, "gantt", interactive=interactive, **options)
        return found


class ScenarioMetrics(RunMetrics):
    """Base class with all metrics of a step that was simulated from a scenario, including FLOPs and memory."""

    tokens_per_s = MetricValue()
    """Tokens of all sequences per second, padding included."""
    tokens_per_s_per_gpu = MetricValue()
    """Tokens per second per GPU, padding included."""
    real_token_fraction = MetricValue()
    """Share of the tokens that are not padding."""
    real_tokens_per_s = MetricValue()
    """Tokens per second without padding."""
    real_tokens_per_s_per_gpu = MetricValue()
    """Tokens per second per GPU without padding."""
    samples_per_s = MetricValue()
    """Sequences per second."""
    model_flops_per_step = MetricValue()
    """FLOP of the model per step, without recomputation."""
    model_tflops_per_gpu = MetricValue()
    """Model TFLOP/s per GPU."""
    mfu = MetricValue()
    """Model FLOPs utilization (MFU): achieved model FLOP/s, divided by peak FLOP/s."""
    hfu = MetricValue()
    """Hardware FLOPs utilization (HFU): achieved FLOP/s including recompute, divided by peak FLOP/s."""
    mfu_bf16 = MetricValue()
    """MFU over the peak in bf16, where matmuls are in fp8 or fp4."""
    mfu_without_padding = MetricValue()
    """MFU counting only FLOPs of real tokens."""
    schedule_bubble_fraction = MetricValue()
    """Bubble fraction of the schedule alone."""
    straggler_slowdown = MetricValue()
    """Step time relative to that without faults that can make stragglers."""
    peak_memory_bytes = MetricValue()
    """Peak bytes on the fullest GPU."""
    host_memory_bytes = MetricValue()
    """Peak bytes offloaded to the fullest host memory."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the job."""
        return int(METRICS["gpus"].formula(self))
