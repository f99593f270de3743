"""Table of collective algorithms, each a function that returns phases of hops between a group's ranks.

To add one: a function ``(group) -> phases`` in a file, and an entry in ALGORITHMS.

The entry states which groups the algorithm does not support, and its time in closed form, if known. Reading order:
``description`` (hops and phases), ``group`` (what an algorithm knows of the cluster), ``entry``, ``ring``,
``hierarchical_phases``, then any.
"""

from __future__ import annotations

from simcluster.collectives import chain, entry, halving_doubling, hierarchical, nvls, nvls_tree, pat, ring, sharp, tree
from simcluster.collectives.all_to_all import direct_phases, direct_seconds, hierarchical_phases, pairwise_phases
from simcluster.collectives.description import SWITCH, Hop, Phase
from simcluster.collectives.entry import CollectiveEntry, n_minus_1_rounds_seconds, one_message_seconds
from simcluster.collectives.group import Group, Ring

_HALVING_RULES = halving_doubling.reduce_scatter_seconds, halving_doubling.unsupported_reason
_TWO_LEVEL_RULES = n_minus_1_rounds_seconds, hierarchical.unsupported_reason
_REDUCE_SCATTER = {
    "ring": CollectiveEntry(ring.reduce_scatter, n_minus_1_rounds_seconds, fewest_bytes=True),
    "halving_doubling": CollectiveEntry(halving_doubling.reduce_scatter, *_HALVING_RULES, fewest_bytes=True),
    "hierarchical": CollectiveEntry(hierarchical.reduce_scatter, *_TWO_LEVEL_RULES, fewest_bytes=True),
    "nvls": CollectiveEntry(nvls.reduce_scatter, requires=nvls.unsupported_reason),
    "pat": CollectiveEntry(pat.reduce_scatter, pat.pat_seconds, fewest_bytes=True),
}
_ALL_GATHER = {
    "ring": CollectiveEntry(ring.all_gather, n_minus_1_rounds_seconds, fewest_bytes=True),
    "halving_doubling": CollectiveEntry(halving_doubling.all_gather, *_HALVING_RULES, fewest_bytes=True),
    "hierarchical": CollectiveEntry(hierarchical.all_gather, *_TWO_LEVEL_RULES, fewest_bytes=True),
    "nvls": CollectiveEntry(nvls.all_gather, requires=nvls.unsupported_reason),
    "pat": CollectiveEntry(pat.all_gather, pat.pat_seconds, fewest_bytes=True),
}


def _all_reduce(algorithm: str) -> CollectiveEntry:
    return entry.reduce_then_gather(_REDUCE_SCATTER[algorithm], _ALL_GATHER[algorithm])


# ALGORITHMS[collective][algorithm]; the root of broadcast and reduce is position 0
ALGORITHMS: dict[str, dict[str, CollectiveEntry]] = {
    "all_reduce": {
        "ring": _all_reduce("ring"),
        "tree": CollectiveEntry(tree.all_reduce, tree.tree_seconds),
        "halving_doubling": _all_reduce("halving_doubling"),
        "hierarchical": _all_reduce("hierarchical"),
        "nvls": _all_reduce("nvls"),
        "nvls_tree": CollectiveEntry(nvls_tree.all_reduce, requires=nvls_tree.unsupported_reason),
        "sharp": CollectiveEntry(sharp.all_reduce, one_message_seconds, sharp.unsupported_reason),
    },
    "reduce_scatter": _REDUCE_SCATTER,
    "all_gather": _ALL_GATHER,
    "broadcast": {
        "chain": CollectiveEntry(chain.broadcast, chain.chain_seconds),
        "binomial": CollectiveEntry(chain.binomial_broadcast, chain.binomial_seconds),
    },
    "reduce": {
        "chain": CollectiveEntry(chain.reduce, chain.chain_seconds),
        "binomial": CollectiveEntry(chain.binomial_reduce, chain.binomial_seconds),
    },
    "all_to_all": {
        "direct": CollectiveEntry(direct_phases, direct_seconds, uneven=direct_phases, fewest_bytes=True),
        "pairwise": CollectiveEntry(
            pairwise_phases, n_minus_1_rounds_seconds, uneven=pairwise_phases, fewest_bytes=True
        ),
        "hierarchical": CollectiveEntry(hierarchical_phases, *_TWO_LEVEL_RULES, uneven=hierarchical_phases),
    },
    "send_recv": {"direct": CollectiveEntry(ring.send_recv_phases, one_message_seconds, fewest_bytes=True)},
    "send": {"direct": CollectiveEntry(ring.send_phases, one_message_seconds)},
}

__all__ = ["ALGORITHMS", "SWITCH", "CollectiveEntry", "Group", "Hop", "Phase", "Ring"]
