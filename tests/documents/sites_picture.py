"""The picture of two sites: ``examples/two_sites.py`` plays 18 steps for it, which takes a minute; and keeps them.

What it shows is held to its table, and the table to steps that are played anew: a mode's slowest and quickest link.
"""

from __future__ import annotations

import runpy
from functools import cache
from types import SimpleNamespace

import pandas as pd

from documents.commands import ROOT
from documents.shown import differences, read_shown, shown_by, write_shown

PICTURE = ROOT / "notebooks" / "pictures" / "two_sites.png"
COMMAND = "python examples/two_sites.py two_sites.png"
_AGAIN = (("all in step", 100), ("all in step", 3_200), ("outer step every 100", 800))  # mode, Gbit/s


@cache
def _study() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "two_sites.py")))


def draw() -> None:
    """Play the study, draw its picture and keep its tables in it."""
    rates, distances = _study().tables()
    figure = _study().picture(rates, distances)
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    write_shown(PICTURE, {**shown_by(figure), "tables": [rates.to_dict("split"), distances.to_dict("split")]})


def stale() -> list[str]:
    """What the picture shows otherwise than its tables, and these otherwise than the program."""
    kept = read_shown(PICTURE)
    if kept is None or "tables" not in kept:
        return ["it does not keep its tables"]
    rates, distances = (pd.DataFrame(**{**table, "dtype": float}) for table in kept["tables"])
    drawn = {name: value for name, value in kept.items() if name != "tables"}
    found = differences(drawn, shown_by(_study().picture(rates, distances)))
    for mode, rate in _AGAIN:
        was, now = rates[mode][rate], _study().step(mode, rate, 1_000)
        if was != now:
            found.append(f"{mode}, {rate} Gbit/s: {was} s when it was drawn, {now} s now")
    return found
