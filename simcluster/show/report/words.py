"""How the page writes numbers and calls things."""

from __future__ import annotations

from simcluster.base.units import format_change
from simcluster.results.numbers import Unit
from simcluster.show.cells import written

MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "other": "other, buffers included",
}


def signed_seconds(seconds: float) -> str:
    """ "+12.3 ms", "−4 us"; "0 s" of nothing."""
    return "0 s" if abs(seconds) < 1e-12 else format_change(seconds, "−")


def signed_percent(part: float) -> str:
    """ "+1.2 %"."""
    return f"{'−' if part < 0 else '+'}{abs(100 * part):.1f} %"


def percent(part: float) -> str:
    """ "12.3 %"."""
    return f"{100 * part:.1f} %"


def number(unit: Unit, value: float) -> str:
    """A metric in its unit, as the page writes it."""
    page = {"fraction": percent, "bytes": gigabytes}
    return page[unit](value) if unit in page else written(unit, value)


def gigabytes(size: float) -> str:
    """ "12.3 GB"."""
    return f"{size / 1e9:,.1f} GB"
