"""The measured time of a step from a log of Megatron-LM: its lines with "elapsed time per iteration (ms)"."""

from __future__ import annotations

import re
import statistics
from typing import Any

from simcluster.base.errors import InputError

_LINE = re.compile(
    r"iteration\s+(\d{1,12})\s*/[^|\n]*\|[^\n]*?elapsed time per iteration \(ms\):\s*(\d{1,12}(?:\.\d{1,12})?)[^\n]*",
    re.IGNORECASE,
)
_BATCH = re.compile(r"global batch size:\s*(\d{1,9})")
_MOST_SKIPPED = 10  # iterations in which libraries choose kernels, buffers grow and data come up


def measured_of_log(text: str, source: str, global_batch: int) -> tuple[dict[str, Any], str]:
    """The section ``measured``, and a sentence about which iterations it is of.

    It is the median (Megatron-LM writes the mean of ``--log-interval`` iterations in a line) behind those at the start,
    of a tenth of the lines and at least one, but no more than reach to iteration 10; iterations of another batch, as
    while it is ramped up, do not count.  Raises InputError for a log without such lines.
    """
    found = [(int(match[1]), float(match[2]) / 1e3, _BATCH.search(match[0])) for match in _LINE.finditer(text)]
    if not found:
        raise InputError(f'{source}: has no line with "elapsed time per iteration (ms): ...", as Megatron-LM logs it')
    whole = [(number, seconds) for number, seconds, batch in found if batch is None or int(batch[1]) == global_batch]
    if not whole:
        sizes = ", ".join(sorted({batch[1] for _, _, batch in found if batch})[:5])
        raise InputError(
            f"{source}: its iterations have a global batch of {sizes}, and the scenario has {global_batch}"
        )
    begin = whole[0][0]
    early = sum(number < begin + _MOST_SKIPPED for number, _ in whole)
    skipped = min(early, max(1, len(whole) // 10)) if len(whole) > 1 else 0
    kept = [seconds for _, seconds in whole[skipped:] if seconds > 0]
    if not kept:
        raise InputError(
            f"{source}: all its iterations take 0 ms, which no step does; give the log of a run that was timed"
        )
    median = statistics.median(kept)
    others = len(found) - len(whole)
    ramped = f", {others} of another batch left out" if others else ""
    words = f"median of {len(kept)} logged iterations behind the first {skipped}{ramped}"
    spread = f"{min(kept):.6g} to {max(kept):.6g} s"
    return {
        "step_time": f"{median:.6g} s",
        "source": f"{source}: {words}",
    }, f"measured {median:.6g} s: {words} ({spread})"
