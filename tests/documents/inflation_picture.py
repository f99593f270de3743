"""The picture of unequal GPUs: ``examples/inflation.py`` plays 80 rows for it, which takes minutes; and keeps them.

What it shows is held to the rows in examples/inflation.csv, and these to some that are played anew.
"""

from __future__ import annotations

import runpy
from functools import cache
from types import SimpleNamespace

import pandas as pd

from documents.commands import ROOT
from documents.shown import differences, read_shown, shown_by, write_shown

PICTURE = ROOT / "notebooks" / "pictures" / "inflation.png"
COMMAND = "python examples/inflation.py inflation.png"
_AGAIN = (("FSDP", 64), ("1f1b", 64))  # played anew at one sigma
_SIGMA = 0.05


@cache
def _study() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "inflation.py")))


def draw() -> None:
    """Play the study, keep its rows and draw its picture."""
    _study().table().to_csv(_study().KEPT, index=False)
    draw_kept()


def draw_kept() -> None:
    """Draw the rows as they are kept."""
    figure = _study().picture(_study().kept())
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    write_shown(PICTURE, shown_by(figure))


def stale() -> list[str]:
    """What the picture shows otherwise than the rows, and these otherwise than the program."""
    kept = _study().kept()
    found = differences(read_shown(PICTURE), shown_by(_study().picture(kept)))
    for schedule, gpus in _AGAIN:
        was = kept[(kept.schedule == schedule) & (kept.gpus == gpus) & (kept.sigma == _SIGMA)].reset_index(drop=True)
        now = _study().rows(schedule, gpus, [_SIGMA])
        if not was.equals(pd.DataFrame(now)):
            found.append(f"{schedule} on {gpus} GPUs: {was.to_dict('records')} kept, {now.to_dict('records')} now")
    return found
