"""Colours of all figures: one hue per kind of work, distinguishable by colour-blind readers.

Hues are those of Okabe and Ito, "Color Universal Design" (2008), completed by four of Paul Tol's muted scheme
(SRON/EPS/TN/09-002); a test holds them apart for readers who lack a cone.
"""

from __future__ import annotations

from collections.abc import Mapping

Colour = tuple[float, float, float]

COMPUTE_KINDS: Mapping[str, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "input_grad": "#F0E442",
    "weight_grad": "#009E73",
    "recompute": "#CC79A7",
    "optimizer": "#4D4D4D",
    "checkpoint": "#56B4E9",
    "data": "#996600",
    "validation": "#E6CC80",
    "offload": "#1A4CE6",
    "other": "#7B5B3A",
}
"""Fill of each kind of work on the compute stream, chunk 0."""

STREAMS: Mapping[str, str] = {"tp": "#D55E00", "cp": "#882255", "ep": "#AA4499", "pp": "#117733", "dp": "#332288"}
"""Fill of each communication stream, from the most frequent traffic to the rarest: also the order of lanes."""

MEMORY: Mapping[str, str] = {
    "parameters": "#6E7276",
    "gradients": "#9CA0A4",
    "optimizer": "#C9CCCF",
    "buffers": "#E3E5E8",
    "activations": "#0072B2",
    "gathered": "#332288",
    "unsharded": "#009E73",
    "other": "#D55E00",
    "lost": "#E69F00",
}
"""Fill of each category of memory: grey for constant model state, colours for what is allocated and freed."""

HEAT = ("#FFFFFF", "#F3C9A5", "#D55E00", "#5A2400")
"""Colour scale of heatmap cells and arrows, from zero to the maximum."""

WAITING = "#D9D9D9"
STRAGGLING = "#969696"
"""Time in which a rank waits for a slower one; WAITING is that of a pipeline's bubble, and of waits in general."""
WAITING_HATCH = "#8C8C8C"
IDLE = "#FFFFFF"
LANE_SURROUND = "#ECEEF0"
TEXT = "#1A1A1A"
QUIET_TEXT = "#5A5A5A"

# A chunk is lighter than the one before it, as in Narayanan et al. (arXiv:2104.04473) figure 4; a fifth starts again.
_CHUNK_TINTS = (0.0, 0.32, 0.55, 0.72)
# Kinds of one stream: what gathers, or receives, is lighter than what scatters, or sends; below 0 it is darker.
_KIND_TINTS = {"all_reduce": -0.42, "several": 0.18, "all_gather": 0.45, "recv": 0.45, "broadcast": 0.7}
# A snapshot, the lighter write after it, and other stops of training.
_CHECKPOINT_TINTS = {"storage": 0.4, "host": 0.7}
# What comes back is the lighter one.
_COPY_TINTS = {"h2d": 0.45}


def op_colour(stream: str, kind: str, chunk: int = 0) -> Colour:
    """Return the RGB colour (0 to 1) for ops of a kind on a stream; compute has a shade per model chunk.

    The kind "waiting" has one colour on all streams, "several" is mixed communication; an unknown kind or stream has
    the colour of "other".
    """
    if kind == "waiting":
        return parse_rgb(WAITING)
    if kind == "checkpoint":
        return tint_colour(parse_rgb(COMPUTE_KINDS[kind]), _CHECKPOINT_TINTS.get(stream, 0.0))
    if kind == "copy":
        return tint_colour(parse_rgb(COMPUTE_KINDS["offload"]), _COPY_TINTS.get(stream, 0.0))
    if stream in ("compute", "host"):
        tint = _CHUNK_TINTS[chunk % len(_CHUNK_TINTS)] if chunk > 0 else 0.0
        return tint_colour(parse_rgb(COMPUTE_KINDS.get(kind, COMPUTE_KINDS["other"])), tint)
    return tint_colour(parse_rgb(STREAMS.get(stream, COMPUTE_KINDS["other"])), _KIND_TINTS.get(kind, 0.0))


def text_colour_on(colour: Colour) -> str:
    """Return black or white, whichever contrasts more with the background `colour`."""
    return TEXT if luminance(colour) > 0.19 else "#FFFFFF"


def luminance(colour: Colour) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


def tint_colour(colour: Colour, tint: float) -> Colour:
    """Make a colour lighter (``tint`` from 0 to 1) or darker (``tint`` from 0 to -1)."""
    red, green, blue = (part + (1.0 - part) * tint if tint > 0 else part * (1.0 + tint) for part in colour)
    return red, green, blue


def parse_rgb(code: str) -> Colour:
    """Parse "#RRGGBB" into an RGB colour (0 to 1)."""
    red, green, blue = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
