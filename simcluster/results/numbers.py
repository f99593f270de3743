"""Metrics of a result, each declared once: its name in the JSON, unit, heading and formula.

To add one: an entry in METRICS, an attribute of ``FlatNumbers``, a line in CONTRACT.md. It is then in the result JSON,
in the rows of ``compare`` and of sweeps, and with a heading in the tables of its ``columns``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, get_overloads, overload

from simcluster.base.shown import Displayable, find_display
from simcluster.documents.argument_types import checked
from simcluster.planning.footprint import Facts, Footprint
from simcluster.results.step_time import StepTime
from simcluster.schedules.comparison import ScheduleBubble

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from simcluster.base.shown import CellPage, Picture

Unit = Literal["s", "1/s", "FLOP", "TFLOP/s", "bytes", "fraction", "factor", "count", "yes or no"]
Table = Literal["compare", "sweep", "plan", "report"]
"""Tables that people read; a column of a table is a metric with a heading."""
ALL_TABLES: frozenset[Table] = frozenset(get_args(Table))
NO_TABLES: frozenset[Table] = frozenset()


class TimedStep(Protocol):
    """A step of which only the duration and the job are known."""

    @property
    def step_time(self) -> float:
        """Step time in seconds."""

    @property
    def facts(self) -> Facts:
        """Token count, FLOP, number of ranks and peak rates of the job."""


class SimulatedStep(TimedStep, Protocol):
    """A fully simulated step, with breakdown and memory (``result.Result``)."""

    @property
    def times(self) -> StepTime:
        """Time breakdown of the step."""

    @property
    def schedule_bubble(self) -> ScheduleBubble:
        """Bubble of the pipeline schedule alone, with equal passes and without communication."""

    @property
    def slowdown(self) -> float:
        """Step time relative to the same step without stragglers."""

    @property
    def memory(self) -> Footprint:
        """Bytes on the GPU that holds most."""

    @property
    def host_memory(self) -> float:
        """Bytes offloaded to the host memory that holds most."""

    @property
    def fits(self) -> bool:
        """Whether the GPU that holds most has enough memory."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a metric of a step: unit, formula, and heading in tables.

    ``of`` takes a SimulatedStep, or a TimedStep where the metric is ``timed``: then it is also known where no step is
    simulated in full. ``heading`` is its heading in the tables of ``columns``.
    """

    unit: Unit
    of: Callable[[Any], float]
    heading: str = ""
    columns: frozenset[Table] = NO_TABLES
    timed: bool = False


def timed(
    unit: Unit, of: Callable[[TimedStep], float], heading: str = "", columns: frozenset[Table] = ALL_TABLES
) -> Metric:  # fmt: skip
    """Return the definition of a metric that follows from the step time and the job alone.

    >>> timed("s", lambda step: step.step_time, "step").timed
    True
    """
    return Metric(unit, of, heading, columns if heading else NO_TABLES, timed=True)


def played(
    unit: Unit, of: Callable[[SimulatedStep], float], heading: str = "", columns: frozenset[Table] = ALL_TABLES
) -> Metric:  # fmt: skip
    """Return the definition of a metric that needs a simulated step.

    With a heading it is in all tables, or in those of ``columns``.

    >>> sorted(played("s", exposed_communication, "exposed").columns)
    ['compare', 'plan', 'report', 'sweep']
    """
    return Metric(unit, of, heading, columns if heading else NO_TABLES)


def mfu(step: TimedStep) -> float:
    """Return the MFU: model FLOP/s over peak, without recompute, causal attention counted as half."""
    return step.facts.model_flops / step.step_time / (step.facts.ranks * step.facts.peak_flops)


def mfu_bf16(step: TimedStep) -> float:
    """Return the MFU of an fp8 or fp4 job over the GPU's bf16 peak, as papers quote it; otherwise the MFU."""
    facts = step.facts
    return mfu(step) * (facts.peak_flops / facts.bf16_flops if facts.low_precision and facts.bf16_flops else 1.0)


def hfu(step: SimulatedStep) -> float:
    """Return the HFU: hardware FLOP/s, recompute included, over peak."""
    return step.facts.hardware_flops / step.step_time / (step.facts.ranks * step.facts.peak_flops)


def exposed_communication(step: SimulatedStep) -> float:
    """Return the seconds per step for which communication of any axis delays the mean rank."""
    return sum(seconds for name, seconds in step.times.breakdown.items() if name.startswith("exposed_"))


_FULL: frozenset[Table] = frozenset(("compare", "report"))

METRICS: dict[str, Metric] = {
    "step_time_s": timed("s", lambda step: step.step_time),
    "tokens_per_s": timed("1/s", lambda step: step.facts.tokens / step.step_time),
    "tokens_per_s_per_gpu": timed("1/s", lambda step: step.facts.tokens / step.step_time / step.facts.ranks),
    "real_token_fraction": timed("fraction", lambda step: step.facts.real),
    "real_tokens_per_s": timed("1/s", lambda step: step.facts.real * step.facts.tokens / step.step_time),
    "real_tokens_per_s_per_gpu": timed(
        "1/s", lambda step: step.facts.real * step.facts.tokens / step.step_time / step.facts.ranks, "tokens/s/GPU"
    ),
    "samples_per_s": timed("1/s", lambda step: step.facts.samples / step.step_time),
    "model_flops_per_step": played("FLOP", lambda step: step.facts.model_flops),
    "model_tflops_per_gpu": timed(
        "TFLOP/s", lambda step: step.facts.model_flops / step.step_time / step.facts.ranks / 1e12
    ),
    "mfu": timed("fraction", mfu, "MFU"),
    "mfu_bf16": timed("fraction", mfu_bf16),
    "mfu_without_padding": timed("fraction", lambda step: mfu(step) * step.facts.real_flops / step.facts.model_flops),
    "hfu": played("fraction", hfu),
    "gpus": timed("count", lambda step: step.facts.ranks),
    "bubble_fraction": played("fraction", lambda step: step.times.bubble_fraction, "bubble", _FULL | {"plan"}),
    "bubble_over_ideal": played("fraction", lambda step: step.times.bubble_over_ideal),
    "schedule_bubble_fraction": played(
        "fraction", lambda step: step.schedule_bubble.fraction, "schedule's", frozenset(("compare",))
    ),
    "exposed_communication_s": played("s", exposed_communication, "exposed comm.", _FULL),
    "communication_s": played("s", lambda step: step.times.communication),
    "overlap_fraction": played("fraction", lambda step: step.times.overlap_fraction),
    "straggler_slowdown": played("factor", lambda step: step.slowdown),
    "peak_memory_bytes": played("bytes", lambda step: step.memory.total, "memory", _FULL),
    "host_memory_bytes": played("bytes", lambda step: step.host_memory),
    "fits": played("yes or no", lambda step: step.fits),
}
"""Metrics by name, in the order of the JSON.  Every table begins with the step time, under its own heading."""


def all_metrics(step: SimulatedStep) -> dict[str, float]:
    """Return all metrics of a simulated step."""
    return {name: metric.of(step) for name, metric in METRICS.items()}


def step_time_metrics(step: TimedStep) -> dict[str, float]:
    """Return the metrics that follow from the step time and the job alone."""
    return {name: metric.of(step) for name, metric in METRICS.items() if metric.timed}


def table_metrics(table: Table) -> dict[str, Metric]:
    """Return the metrics that are columns of a table (compare, sweep, plan or report), in order.

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
        return METRICS[self._name].of(step)


Method = TypeVar("Method", bound=Callable[..., Any])


def list_options(method: Method) -> Method:
    """Give a method the signature of its last overload, which lists all options, for TAB, help() and messages."""
    method.__signature__ = signature(get_overloads(method)[-1])  # type: ignore[attr-defined]
    return method


class TimedNumbers(Displayable):
    """Metrics of any simulated run, with or without a scenario: the parts of its step time."""

    if TYPE_CHECKING:

        @property
        def times(self) -> StepTime:
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
        """Seconds per step of the mean rank by activity (``forward``, ``exposed_tp``, ...); in sum the step time."""
        import pandas as pd

        return pd.Series(self.times.breakdown, name="seconds", dtype=float)

    @overload
    def gantt(self, *, interactive: Literal[True], ranks: Sequence[int] | None = None) -> CellPage: ...
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
    ) -> Picture: ...
    @checked
    @list_options
    def gantt(self, *, interactive: bool = False, **options: Any) -> Picture | CellPage:
        """Return the timeline as a picture (matplotlib Figure), or as an interactive notebook page to zoom into.

        Options as of ``plots.gantt``. ``ranks`` are any ranks of the job. InputError for ranks that it does not have,
        and as ``plots.gantt``.
        """
        found: Picture | CellPage = find_display(self, "gantt", interactive=interactive, **options)
        return found


class FlatNumbers(TimedNumbers):
    """Metrics of a step that was simulated from a scenario: also its tokens, FLOP and memory."""

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
        return int(METRICS["gpus"].of(self))
