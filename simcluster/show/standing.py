"""Where one's own layout stands in a search, in words, and what layouts from one GPU up hold."""

from __future__ import annotations

from collections.abc import Iterator

from simcluster.results.account import Account
from simcluster.show.layout import layout
from simcluster.studies.search.own import OwnLayout, Rung
from simcluster.studies.search.plan import Found, Ranked
from simcluster.studies.whatif.difference import Difference


def standing(found: Found) -> list[str]:
    """Where the scenario's own layout stands, and why; and what layouts from one GPU up hold."""
    return [*_own(found), _rungs(found)]


def _own(found: Found) -> Iterator[str]:
    own, winner = found.own, found.best[0]
    if own is None:
        yield f"Yours is on {found.base.gpus:,} GPUs, which were not asked for."
        return
    room = "" if own.memory <= found.capacity else f", which holds {own.memory / 1e9:.1f} GB a GPU, more than the limit"
    if own.score > winner.score:
        yield f"Yours ({layout(found.base)}){room}: {_longer(winner, own)}"
    else:
        less = 1 - own.score / winner.score
        yield f"Yours ({layout(found.base)}) is {f'{less:.1%} less' if less > 0 else 'as fast as the winner'}{room}."


def _longer(winner: Ranked, own: OwnLayout) -> str:
    first, second = Account.from_result(winner.row), Account.from_result(own.row)
    return Difference(("the winner", "it"), first, second, ()).in_words()


def _rungs(found: Found) -> str:
    told = [
        f"{rung.words} {rung.why}" if rung.memory is None else f"{rung.words} {_gb(rung.memory)}{_fits(found, rung)}"
        for rung in found.ladder
    ]
    return f"What the fullest GPU holds, rung by rung (micro batch 1): {'; '.join(told)}."


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.1f} GB"


def _fits(found: Found, rung: Rung) -> str:
    return "" if rung.memory is None or rung.memory > found.capacity else " (fits)"
