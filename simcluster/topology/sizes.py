"""How large a cluster may be, so that a slip in a document is a message and not a full memory."""

from __future__ import annotations

from simcluster.base.effort import in_words, require_begun
from simcluster.base.errors import InputError

MAX_GPUS = 2_000_000
"""Largest cluster: of a million GPUs, where it is regular, the links alone are half a gigabyte and two seconds."""
MAX_DRAWN_GPUS = 200_000
"""Largest one whose graph has to be built."""
MAX_LINKS = 4_000_000
"""Most full-duplex links of one kind (GPU to NIC, leaf to spine, ...)."""
_DRAWN_BYTES, _DRAWN_SECONDS = 7e3, 90e-6  # for each GPU, with names of links and routes: DGX H100, 131,072 of them
_DRAWN_BESIDE = 2.5e-6
"""Seconds for each GPU and each in its machine, among whose nodes it looks for its NICs: 3,200 of them, 800 in each of
four machines, 3.3 s."""


def check_gpus(gpus: int) -> None:
    """InputError for more GPUs than can be simulated."""
    if gpus > MAX_GPUS:
        raise InputError(f"has {gpus:,} GPUs; at most {MAX_GPUS:,} can be simulated: use fewer nodes")


def check_drawn(gpus: int, together: int = 1) -> None:
    """InputError for more GPUs, so many ``together`` in a machine, than a graph is built of, or is begun unasked."""
    if gpus > MAX_DRAWN_GPUS:
        raise InputError(
            f"has {gpus:,} GPUs, and has to be drawn link by link (about {gpus * _DRAWN_BYTES / 1e9:.2g} GB and "
            f"{gpus * _DRAWN_SECONDS:.2g} s): at most {MAX_DRAWN_GPUS:,} are, and {MAX_GPUS:,} where all machines are "
            "alike on a tree of switches, each GPU with one way out, and nothing is asked of single nodes: use fewer "
            "nodes"
        )
    seconds = gpus * (_DRAWN_SECONDS + together * _DRAWN_BESIDE)
    require_begun(
        seconds,
        f"has {gpus:,} GPUs, {together:,} in a machine, which would take about {in_words(seconds)} to draw link by "
        "link",
        "use fewer of them in a machine, or fewer machines",
    )


def check_links(links: int, of: str) -> None:
    """InputError for more links ``of`` one kind ("leaf - spine") than can be simulated."""
    if links > MAX_LINKS:
        raise InputError(
            f"has {links:,} links {of}; at most {MAX_LINKS:,} of a kind can be simulated: use fewer nodes, or fewer "
            "and faster links"
        )
