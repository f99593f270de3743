"""Collective algorithms as data: phases of hops between the ranks of a group.

To add one: a function ``(group) -> phases`` in a file, and an entry in ALGORITHMS.

The entry states which groups the algorithm cannot serve, and its time in closed form, if there is one. Reading order:
``description`` (hops and phases), ``group`` (what an algorithm knows of the cluster), ``entry``, ``ring``,
``hierarchical``, then any.
"""

from __future__ import annotations

from simcluster.collectives import (
    all_to_all,
    chain,
    halving_doubling,
    hierarchical,
    nvls,
    nvls_tree,
    pat,
    ring,
    sharp,
    tree,
)
from simcluster.collectives.description import SWITCH, Hop, Phase
from simcluster.collectives.entry import CollectiveEntry, double_closed_form, one_message_seconds, rounds_seconds
from simcluster.collectives.group import Group, Ring

# ALGORITHMS[collective][algorithm]; the root of broadcast and reduce is position 0
ALGORITHMS: dict[str, dict[str, CollectiveEntry]] = {
    "all_reduce": {
        "ring": CollectiveEntry(ring.all_reduce, double_closed_form(rounds_seconds), fewest_bytes=True),
        "tree": CollectiveEntry(tree.all_reduce, tree.seconds),
        "halving_doubling": CollectiveEntry(
            halving_doubling.all_reduce,
            double_closed_form(halving_doubling.seconds),
            halving_doubling.requires,
            fewest_bytes=True,
        ),
        "hierarchical": CollectiveEntry(
            hierarchical.all_reduce, double_closed_form(rounds_seconds), hierarchical.requires, fewest_bytes=True
        ),
        "nvls": CollectiveEntry(nvls.all_reduce, requires=nvls.requires),
        "nvls_tree": CollectiveEntry(nvls_tree.all_reduce, requires=nvls_tree.requires),
        "sharp": CollectiveEntry(sharp.all_reduce, one_message_seconds, sharp.requires),
    },
    "reduce_scatter": {
        "ring": CollectiveEntry(ring.reduce_scatter, rounds_seconds, fewest_bytes=True),
        "halving_doubling": CollectiveEntry(
            halving_doubling.reduce_scatter, halving_doubling.seconds, halving_doubling.requires, fewest_bytes=True
        ),
        "hierarchical": CollectiveEntry(
            hierarchical.reduce_scatter, rounds_seconds, hierarchical.requires, fewest_bytes=True
        ),
        "nvls": CollectiveEntry(nvls.reduce_scatter, requires=nvls.requires),
        "pat": CollectiveEntry(pat.reduce_scatter, pat.seconds, fewest_bytes=True),
    },
    "all_gather": {
        "ring": CollectiveEntry(ring.all_gather, rounds_seconds, fewest_bytes=True),
        "halving_doubling": CollectiveEntry(
            halving_doubling.all_gather, halving_doubling.seconds, halving_doubling.requires, fewest_bytes=True
        ),
        "hierarchical": CollectiveEntry(
            hierarchical.all_gather, rounds_seconds, hierarchical.requires, fewest_bytes=True
        ),
        "nvls": CollectiveEntry(nvls.all_gather, requires=nvls.requires),
        "pat": CollectiveEntry(pat.all_gather, pat.seconds, fewest_bytes=True),
    },
    "broadcast": {
        "chain": CollectiveEntry(chain.broadcast, chain.chain_seconds),
        "binomial": CollectiveEntry(chain.binomial_broadcast, chain.binomial_seconds),
    },
    "reduce": {
        "chain": CollectiveEntry(chain.reduce, chain.chain_seconds),
        "binomial": CollectiveEntry(chain.binomial_reduce, chain.binomial_seconds),
    },
    "all_to_all": {
        "direct": CollectiveEntry(
            all_to_all.direct, all_to_all.direct_seconds, uneven=all_to_all.direct, fewest_bytes=True
        ),
        "pairwise": CollectiveEntry(all_to_all.pairwise, rounds_seconds, uneven=all_to_all.pairwise, fewest_bytes=True),
        "hierarchical": CollectiveEntry(
            all_to_all.hierarchical, rounds_seconds, hierarchical.requires, all_to_all.hierarchical
        ),
    },
    "send_recv": {"direct": CollectiveEntry(ring.send_recv, one_message_seconds, fewest_bytes=True)},
    "send": {"direct": CollectiveEntry(ring.send, one_message_seconds)},
}

__all__ = ["ALGORITHMS", "SWITCH", "CollectiveEntry", "Group", "Hop", "Phase", "Ring"]
