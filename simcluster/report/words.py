"""How the page writes numbers and calls things.  Imports units."""

from __future__ import annotations

from simcluster.units import format_seconds

BREAKDOWN = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "exposed_tp": "tensor parallel, exposed",
    "exposed_pp": "pipeline sends, exposed",
    "exposed_dp": "data parallel, exposed",
    "exposed_cp": "context parallel, exposed",
    "exposed_ep": "expert parallel, exposed",
    "bubble": "bubble",
    "straggler_wait": "waiting for stragglers",
    "optimizer": "optimizer",
    "other": "other",
}
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "other": "other, buffers included",
}
_REASONS = {
    "traffic": "what it sends, on free links",
    "hiding": "how much compute hides",
    "contention": "contention on links",
}
_AXES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}


def cause(name: str) -> str:
    """A cause of the attribution in words."""
    axis, _, reason = name.partition("_")
    if reason in _REASONS and axis in _AXES:
        return f"{_AXES[axis]} parallel: {_REASONS[reason]}"
    return "compute slowed by communication" if name == "interference" else BREAKDOWN.get(name, name)


def signed_seconds(seconds: float) -> str:
    """ "+12.3 ms", "−4 us"; "0 s" of nothing."""
    if abs(seconds) < 1e-12:
        return "0 s"
    return f"{'−' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_percent(part: float) -> str:
    """ "+1.2 %"."""
    return f"{'−' if part < 0 else '+'}{abs(100 * part):.1f} %"


def percent(part: float) -> str:
    """ "12.3 %"."""
    return f"{100 * part:.1f} %"


def gigabytes(size: float) -> str:
    """ "12.3 GB"."""
    return f"{size / 1e9:,.1f} GB"
