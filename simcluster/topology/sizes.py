"""How large a cluster may be, so that a slip in a document is a message and not a full memory."""

from __future__ import annotations

from simcluster.base.errors import InputError

MAX_GPUS = 200_000
"""Largest cluster: its graph, where it has to be built, is a gigabyte or so, and some ten seconds."""
MAX_LINKS = 1_000_000
"""Most full-duplex links of one kind (GPU to NIC, leaf to spine, ...)."""


def check_gpus(gpus: int) -> None:
    """InputError for more GPUs than can be simulated."""
    if gpus > MAX_GPUS:
        raise InputError(f"has {gpus:,} GPUs; at most {MAX_GPUS:,} can be simulated: use fewer nodes")


def check_links(links: int, of: str) -> None:
    """InputError for more links ``of`` one kind ("leaf - spine") than can be simulated."""
    if links > MAX_LINKS:
        raise InputError(
            f"has {links:,} links {of}; at most {MAX_LINKS:,} of a kind can be simulated: use fewer nodes, or fewer "
            "and faster links"
        )
