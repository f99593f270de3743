"""Sizes of pictures in files: for a slide, for paper, or in inches, and pixels per inch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcluster.base.errors import InputError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*[x×]\s*(\d+(?:\.\d+)?))?\s*(in|cm)?")
_INCH = {"in": 1.0, "cm": 2.54}
_INCHES = 5.0, 60.0
_HEIGHTS = 2.0, 60.0
_DPI = 30.0, 1200.0


@dataclass(frozen=True, slots=True)
class PictureSize:
    """Width in inches, optional height, and pixels per inch if they are not the picture's default."""

    width: float
    height: float | None = None
    dpi: float | None = None


SIZES = {"slide": PictureSize(10.0, 5.625, 192.0), "paper": PictureSize(7.0, None, 300.0)}
"""By name: a slide of 16 to 9, 1,920 x 1,080 pixels in which 9 points can be read from the last row; a page's width."""


def size_of(text: str) -> PictureSize:
    """Return a size from its name, "16x9" or "12" in inches, or "24 x 12 cm"; InputError for any other text."""
    if text in SIZES:
        return SIZES[text]
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InputError(
            f"{text!r} is none: a size is {', '.join(SIZES)} or inches, as in 12x6 (12 leaves the height to the "
            "picture), or 24x12cm; give one of them"
        )
    inch = _INCH[found[3] or "in"]
    width, height = float(found[1]) / inch, float(found[2]) / inch if found[2] else None
    for name, inches, (least, most) in (("wide", width, _INCHES), ("high", height, _HEIGHTS)):
        if inches is not None and not least <= inches <= most:
            raise InputError(f"size {text!r}: a picture is {least:g} to {most:g} inches {name}")
    return PictureSize(width, height)


def require_dpi(dpi: float | None) -> None:
    """Raise InputError for a number of pixels per inch that cannot be drawn."""
    if dpi is not None and not _DPI[0] <= dpi <= _DPI[1]:
        raise InputError(f"dpi {dpi:g}: pixels an inch are between {_DPI[0]:g} and {_DPI[1]:g}")
