"""The numbers of a step as attributes: what METRICS names is ``result.tokens_per_s``, with its name in the JSON.

To add one: its line here, beside its entry in METRICS (a test holds the two together).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from simcluster.base.shown import Shown, look
from simcluster.documents.argument_types import checked
from simcluster.results.numbers import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    import pandas as pd

    from simcluster.base.shown import CellPage, Picture
    from simcluster.results.step_time import StepTime


class MetricValue:
    """The metric of an attribute's name, of whatever step has the attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, step: object, owner: type | None = None) -> float:
        if step is None:
            return self  # type: ignore[return-value]  # of the class itself: what documents read
        return METRICS[self._name].of(step)


class TimedNumbers(Shown):
    """What is known of any played program: where its step's time went."""

    if TYPE_CHECKING:

        @property
        def times(self) -> StepTime: ...

    step_time_s = MetricValue()
    """Seconds per step: ``step_time``."""
    bubble_fraction = MetricValue()
    """The part of the step that the mean rank waits for other stages."""
    bubble_over_ideal = MetricValue()
    """The bubble over the step without it."""
    exposed_communication_s = MetricValue()
    """Seconds that communication holds the mean rank up."""
    communication_s = MetricValue()
    """Seconds with something on the wire, mean over ranks."""
    overlap_fraction = MetricValue()
    """The part of those beside computation."""

    @property
    def breakdown(self) -> pd.Series[float]:
        """Seconds of the mean rank's step by what it does (``forward``, ``exposed_tp``, ``bubble``, ...); they sum to
        the step time."""
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
        max_rows: int = 24,
        rows: Literal["rank", "stage"] = "rank",
    ) -> Picture: ...
    @checked
    def gantt(self, *, interactive: bool = False, **options: Any) -> Picture | CellPage:
        """The timeline as a picture (a matplotlib Figure; options as of ``plots.gantt``), or as a part of a notebook to
        zoom into.

        ``ranks`` are any ranks of the job.  InputError for ranks that it does not have, and as ``plots.gantt``.
        """
        found: Picture | CellPage = look(self, "gantt", interactive=interactive, **options)
        return found


class FlatNumbers(TimedNumbers):
    """What is known besides of a step of a job: its tokens, FLOP and memory."""

    tokens_per_s = MetricValue()
    """Tokens of all sequences, padding too."""
    tokens_per_s_per_gpu = MetricValue()
    """The same for each GPU."""
    real_token_fraction = MetricValue()
    """The part of the tokens that is no padding."""
    real_tokens_per_s = MetricValue()
    """Tokens without padding."""
    real_tokens_per_s_per_gpu = MetricValue()
    """The same for each GPU."""
    samples_per_s = MetricValue()
    """Sequences."""
    model_flops_per_step = MetricValue()
    """FLOP of the model, without recomputation."""
    model_tflops_per_gpu = MetricValue()
    """Model TFLOP/s of each GPU."""
    mfu_bf16 = MetricValue()
    """MFU over the peak in bf16, where matmuls are in fp8 or fp4."""
    real_mfu = MetricValue()
    """MFU, of what is done for real tokens."""
    schedule_bubble_fraction = MetricValue()
    """The bubble that the schedule has by itself."""
    straggler_slowdown = MetricValue()
    """How many times as long the step takes as without faults that can make stragglers."""
    peak_memory_bytes = MetricValue()
    """Bytes on the fullest GPU when it holds most."""
    host_memory_bytes = MetricValue()
    """Bytes of what is offloaded in the fullest host memory."""

    @property
    def gpus(self) -> int:
        """Of the job."""
        return int(METRICS["gpus"].of(self))
