"""Picture sizes: for a slide, for paper, or in inches, with a resolution in pixels per inch."""

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
    """Width and height of a picture in inches, and its resolution in pixels per inch; None means the default."""

    width: float
    height: float | None = None
    dpi: float | None = None


SIZES = {"slide": PictureSize(10.0, 5.625, 192.0), "paper": PictureSize(7.0, None, 300.0)}
"""Sizes by name: a 16:9 slide of 1,920 x 1,080 pixels, on which 9 point text is readable, and the width of a page."""


def parse_picture_size(text: str) -> PictureSize:
    """Parse a picture size: a name ("slide", "paper"), inches ("16x9", "12") or centimetres ("24 x 12 cm")."""
    if text in SIZES:
        return SIZES[text]
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InputError(
            f"{text!r} is not a picture size; write {', '.join(SIZES)} or inches, as in 12x6 (12 leaves the height "
            "to the picture), or 24x12cm"
        )
    inch = _INCH[found[3] or "in"]
    width, height = float(found[1]) / inch, float(found[2]) / inch if found[2] else None
    for name, inches, (least, most) in (("wide", width, _INCHES), ("high", height, _HEIGHTS)):
        if inches is not None and not least <= inches <= most:
            raise InputError(f"size {text!r}: a picture must be {least:g} to {most:g} inches {name}")
    return PictureSize(width, height)


def require_dpi(dpi: float | None) -> None:
    """Raise InputError if the pixels per inch (``dpi``) are outside the supported range."""
    if dpi is not None and not _DPI[0] <= dpi <= _DPI[1]:
        raise InputError(f"dpi {dpi:g}: pixels per inch must be between {_DPI[0]:g} and {_DPI[1]:g}")
