"""Writing of figures to files, laid out for a requested size."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from simcluster.base.atomic_files import open_atomic
from simcluster.base.errors import InputError
from simcluster.base.texts import escape_controls
from simcluster.documents.argument_types import check_arguments
from simcluster.show.picture_sizes import PictureSize, require_dpi

FORMATS = ("png", "svg", "pdf")
_HAIR = 1 + 1e-9
_SHRUNK = 0.85  # of the inches that a picture is made for: in fewer its texts would meet, so they are made smaller
_COMPRESSED = 3
"""PNG compression level, at most 9: a tenth larger than at 6, but compressing takes a third of the drawing time."""


@check_arguments
def save_figure(figure: Figure, path: str | Path, *, size: PictureSize | None = None, dpi: float | None = None) -> None:
    """Write a figure as PNG, SVG or PDF, chosen by the suffix of `path`; the same figure gives the same bytes.

    With a `size` it is laid out again for that size as far as its texts have room, and scaled beyond that; `dpi` is in
    pixels per inch. InputError for another suffix, a missing folder, and a dpi that no printer has.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        endings = ", ".join(f".{each}" for each in FORMATS)
        raise InputError(f"cannot draw {str(path)!r}: the file name must end in one of {endings}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist; create it first")
    require_dpi(dpi)
    fitted = _layout_options(figure, size, dpi or (size.dpi if size else None))
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    if ending == "png":
        fitted["pil_kwargs"] = {"compress_level": _COMPRESSED}
    for text in figure.findobj(Text):
        text.set_text(escape_controls(text.get_text()))  # XML knows no ESC, fonts have no picture of one
    with rc_context({"svg.hashsalt": "simcluster"}):
        picture = BytesIO()  # Pillow says nothing of why it could not write into a file
        figure.savefig(picture, format=ending, metadata=undated[ending], **fitted)
    with open_atomic(path) as file:
        file.write(picture.getbuffer())


def _layout_options(figure: Figure, size: PictureSize | None, dpi: float | None) -> dict[str, Any]:
    options = {} if dpi is None else {"dpi": dpi}
    if size is None:
        return options
    width, height = figure.get_size_inches().tolist()
    wanted = size.width, size.height or size.width * height / width
    if figure.get_layout_engine() is not None:
        smaller = max(1.0, _SHRUNK * width / wanted[0], _SHRUNK * height / wanted[1])
        figure.set_size_inches(smaller * wanted[0], smaller * wanted[1])
        width, height = smaller * wanted[0], smaller * wanted[1]
    scale = min(wanted[0] / width, wanted[1] / height)
    if abs(scale - 1) < 1e-9 and abs(wanted[1] - height) < 1e-9:
        return options
    # What is laid out in inches of its own stands in the middle of it; a hair more, since matplotlib before 3.11 counts
    # whole pixels only, and 1,919.9999 would be 1,919.
    page = wanted[0] / scale * _HAIR, wanted[1] / scale * _HAIR
    corner = (width - page[0]) / 2, (height - page[1]) / 2
    box = Bbox.from_bounds(*corner, *page)
    return {"dpi": (dpi or figure.dpi) * scale, "bbox_inches": box, "pad_inches": 0.0}
