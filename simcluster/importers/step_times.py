"""The measured time of a step from a training log, whichever framework wrote it.

The forms are those of the functions that print them: ``training_log`` of megatron/training/training.py (which
Megatron-Bridge and Megatron-DeepSpeed have too) and of Megatron-Bridge's train_utils.py; NeMo's progress_printer.py
and its progress bar; ``MetricsProcessor.log`` of torchtitan/components/metrics.py, whose tps are per GPU;
``train_batch`` of deepspeed/runtime/pipe/engine.py and ``ThroughputTimer`` of deepspeed/utils/timer.py;
``speed_metrics`` of transformers' trainer_utils.py and the bar of tqdm that its trainer draws.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import model_document

_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
_FORMS = {
    "Megatron-LM": rf"iteration +(?P<step>\d+) */[^|\n]*\|[^\n]*?elapsed time per iteration \(ms\): *(?P<ms>{_NUMBER})"
    r"(?:[^\n]*?global batch size: *(?P<batch>\d{1,9}))?",
    "Megatron-Bridge": rf"Step Time : (?P<s>{_NUMBER})s",
    "NeMo": r"iteration (?P<step>\d+)/\d+ \|(?:[^\n]*?global_batch_size: (?P<batch>\d{1,9}))?"
    rf"[^\n]*?train_step_timing in s: (?P<s>{_NUMBER})",
    "NeMo's bar": rf"global_step=(?P<step>\d+)[^\n\r]*?train_step_timing in s=(?P<s>{_NUMBER})",
    "torchtitan": r"step: *(?P<step>\d+) +loss:[^\n]*? tps: *(?P<tokens>[\d,]{1,15})",
    "DeepSpeed's pipeline": rf"steps: (?P<step>\d+) loss:[^\n]*?iter time \(s\): (?P<s>{_NUMBER})",
    "DeepSpeed": rf"(?:global_step=|\d+/)(?P<step>\d+), RunningAvgSamplesPerSec=[^,\n]*, "
    rf"CurrSamplesPerSec=(?P<samples>{_NUMBER})",
    "tqdm": rf"\b(?P<step>\d+)/\d+ \[\d[^\]\n<]*<[^\]\n,]*, *(?:(?P<s>{_NUMBER})s/it|(?P<rate>{_NUMBER})it/s)",
    "Hugging Face's Trainer": rf"'train_samples_per_second': '?(?P<samples>{_NUMBER})",
}
"""Lines with the time of a step, by who writes them; of a log with several, the first form counts."""
_MOST_SKIPPED = 10  # iterations in which libraries choose kernels, buffers grow and data come up


def has_step_times(text: str) -> bool:
    """Return whether a text has a line with the time of a step."""
    return any(re.search(form, text, re.IGNORECASE) for form in _FORMS.values())


def measured_of_log(text: str, source: str, document: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the section ``measured`` for a scenario, and a sentence that says which iterations it is of.

    It is the median (a line may have the mean of a logging interval) without those at the start: a tenth of the lines
    and at least one, but no more than reach to iteration 10.  Iterations of another batch, as while it is ramped up, do
    not count.  Raises InputError for a log without such lines.
    """
    batch = document["training"]["global_batch"]
    found = next((rows for form in _FORMS.values() if (rows := _rows(form, text, document))), [])
    if not found:
        raise InputError(
            f'{source}: has no line with the time of a step, such as "elapsed time per iteration (ms): ..."; known are '
            f"those of {', '.join(_FORMS)}"
        )
    whole = [(step, seconds) for step, seconds, size in found if size in (None, batch)]
    if not whole:
        sizes = ", ".join(sorted({str(size) for _, _, size in found})[:5])
        raise InputError(f"{source}: its iterations have a global batch of {sizes}, and the scenario has {batch}")
    early = sum(step < whole[0][0] + _MOST_SKIPPED for step, _ in whole)
    skipped = min(early, max(1, len(whole) // 10)) if len(whole) > 1 else 0
    kept = [seconds for _, seconds in whole[skipped:] if seconds > 0]
    if not kept:
        raise InputError(
            f"{source}: all its iterations take 0 ms, which no step does; give the log of a run that was timed"
        )
    median, others = statistics.median(kept), len(found) - len(whole)
    ramped = f", {others} of another batch left out" if others else ""
    words = f"median of {len(kept)} logged iterations behind the first {skipped}{ramped}"
    spread = f"{min(kept):.6g} to {max(kept):.6g} s"
    section = {"step_time": f"{median:.6g} s", "source": f"{source}: {words}"}
    return section, f"measured {median:.6g} s: {words} ({spread})"


def _rows(form: str, text: str, document: Mapping[str, Any]) -> list[tuple[int, float, int | None]]:
    """Return the iteration, its seconds and its batch (None: not printed) of every line of a form."""
    rows = []
    for number, match in enumerate(re.finditer(form, text, re.IGNORECASE)):
        said = {name: value for name, value in match.groupdict().items() if value}
        size = int(said["batch"]) if "batch" in said else None
        seconds = _seconds({name: float(value.replace(",", "")) for name, value in said.items()}, document)
        rows.append((int(said.get("step", number)), seconds, size))
    return rows


def _seconds(said: Mapping[str, float], document: Mapping[str, Any]) -> float:
    """Return the time of a step from what a line says: a time, or a rate of steps, sequences or tokens per GPU."""
    if "ms" in said:
        return said["ms"] / 1e3
    if "s" in said:
        return said["s"]
    work = 1.0 if "rate" in said else float(document["training"]["global_batch"])
    rate = said.get("rate", said.get("samples", 0.0))
    if "tokens" in said:
        rate = said["tokens"] * document["gpus"]
        model = document["model"]
        work *= model.get("sequence_length") or model_document(model["preset"])["sequence_length"]
    return work / rate if rate else 0.0
