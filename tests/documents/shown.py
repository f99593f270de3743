"""What a picture shows: its words, and a digest of the numbers that are drawn.

Pixels depend on matplotlib's version and on fonts; what a picture says does not.  It is kept in the picture itself (in
PNG's text chunk "Shows"), so that a picture that is stale is found without comparing pixels.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY = "Shows"
_BITS = 20  # of a drawn number that count: results are the same to the bit, libraries' sums of them need not be
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
Shown = dict[str, Any]  # {"words": [...], "drawn": digest}


def shown_by(figure: Figure) -> Shown:
    """Titles, labels, legends, ticks with names and notes in order, and a digest of lines, boxes, points and images."""
    axes = [each for each in figure.findobj(_is_axes) if each.get_visible()]
    words = [text.get_text() for text in figure.texts]
    title = getattr(figure, "_suptitle", None)
    if title is not None and title not in figure.texts:
        words.append(title.get_text())
    for legend in figure.legends:
        words += [text.get_text() for text in legend.get_texts()]
    for each in axes:
        words += _words_of(each)
    digest = hashlib.sha256()
    words, counts = [word for word in words if not word.isdigit()], [int(word) for word in words if word.isdigit()]
    digest.update(_rounded(counts))  # microbatches in boxes, by the thousand
    for artist in (artist for each in axes for artist in each.get_children() if artist.get_visible()):
        for numbers in _numbers_of(artist):
            digest.update(_rounded(numbers))
    return {"words": [word for word in words if word.strip()], "drawn": digest.hexdigest()[:16]}


def _is_axes(artist: Artist) -> bool:
    from matplotlib.axes import Axes

    return isinstance(artist, Axes)


def _words_of(axes: Axes) -> Iterator[str]:
    for place in ("left", "center", "right"):
        yield axes.get_title(loc=place)
    for axis in (axes.xaxis, axes.yaxis):
        yield axis.get_label_text()
        yield from map(str, getattr(axis.get_major_formatter(), "seq", ()))  # names, not numbers, at the ticks
    legend = axes.get_legend()
    if legend is not None:
        yield legend.get_title().get_text()
        yield from (text.get_text() for text in legend.get_texts())
    yield from (text.get_text() for text in axes.texts)


def _numbers_of(artist: Artist) -> Iterator[Any]:
    """The data that an artist draws, before any scale of the picture."""
    from matplotlib.collections import Collection
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    if isinstance(artist, Line2D):
        yield artist.get_xydata()
    elif isinstance(artist, Rectangle):
        yield artist.get_bbox().get_points()
        yield artist.get_facecolor()
    elif isinstance(artist, AxesImage):
        yield np.ma.filled(artist.get_array(), np.nan)
    elif isinstance(artist, Collection):
        values = artist.get_array()
        yield () if values is None else np.ma.filled(values, np.nan)
        yield artist.get_offsets()
        yield artist.get_facecolor()
        yield from (path.vertices for path in artist.get_paths())


def _rounded(numbers: Any) -> bytes:
    """Numbers to six digits, as bytes; scaling by powers of two is exact, so that every machine gives the same."""
    array = np.asarray(numbers, dtype=np.float64).ravel()
    mantissa, exponent = np.frexp(np.where(np.isfinite(array), array, 0.0))
    return np.rint(np.ldexp(mantissa, _BITS)).astype("<i4").tobytes() + exponent.astype("<i2").tobytes()


def differences(stored: Shown | None, fresh: Shown) -> list[str]:
    """What differs, in words; empty where a picture shows what it should."""
    if stored is None:
        return ["it does not say what it shows"]
    found = [f"no longer: {word!r}" for word in _less(stored["words"], fresh["words"])]
    found += [f"new: {word!r}" for word in _less(fresh["words"], stored["words"])]
    if not found and stored["words"] != fresh["words"]:
        found.append("the same words in another order")
    if stored["drawn"] != fresh["drawn"]:
        found.append("other numbers are drawn")
    return found


def _less(words: Iterable[str], others: Iterable[str]) -> list[str]:
    left = list(others)
    found = []
    for word in words:
        if word in left:
            left.remove(word)
        else:
            found.append(word)
    return found


# --- PNG's text chunk -------------------------------------------------------------------------------------------------


def read_shown(picture: Path) -> Shown | None:
    """What a PNG says that it shows, or None."""
    for kind, body in _chunks(picture.read_bytes()):
        if kind == b"tEXt" and body.startswith(KEY.encode() + b"\0"):
            found: Shown = json.loads(body.split(b"\0", 1)[1])
            return found
    return None


def write_shown(picture: Path, shown: Shown) -> None:
    """Keep in a PNG what it shows, and nothing of whoever drew it."""
    text = KEY.encode() + b"\0" + json.dumps(shown).encode("ascii")
    kept = [(kind, body) for kind, body in _chunks(picture.read_bytes()) if kind not in (b"tEXt", b"iTXt", b"zTXt")]
    kept.insert(1, (b"tEXt", text))  # behind the header
    picture.write_bytes(_SIGNATURE + b"".join(_chunk(kind, body) for kind, body in kept))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not png.startswith(_SIGNATURE):
        raise ValueError("this is no PNG")
    place = len(_SIGNATURE)
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += length + 12


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
