"""Context manager that turns off Python's garbage collector during planning and simulation.

These make hundreds of thousands of objects that stay and form no cycles, which the collector would scan again and
again: with Llama 3 405B on 16,384 GPUs 2.9 s became 1.8 s (processor time, 2 cores). Nor does it scan them once
afterwards (0.05 s of 0.75 s): they are moved to the oldest generation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """Turn off Python's garbage collector while the block, or a decorated function, runs."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if not _frozen_by_others and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            else:
                _frozen_by_others.append(True)
            gc.enable()


_frozen_by_others: list[bool] = []
"""Not empty once the caller has frozen objects (remembered, since counting many frozen objects takes 14 ms)."""
