"""Where one's own layout stands in a search, in words, and what layouts from one GPU up hold."""

from __future__ import annotations

from collections.abc import Iterator

from simcluster.base.units import format_seconds, format_seconds_round
from simcluster.results.account import Account
from simcluster.show.layout import layout
from simcluster.studies.search.own import OwnLayout, Rung
from simcluster.studies.search.plan import Found
from simcluster.studies.search.space import own_layout, same_program
from simcluster.studies.search.words import name_of_first
from simcluster.studies.whatif.difference import Difference


def standing(found: Found) -> list[str]:
    """Where the scenario's own layout stands, and why."""
    return list(_own(found))


def held_from_one_gpu_up(found: Found) -> list[str]:
    """What layouts hold on their fullest GPU, each split further than the one before it, a line each."""
    words = max(len(rung.words) for rung in found.ladder)
    told = [(rung.words, rung.why if rung.memory is None else f"{_gb(rung.memory):>7}{_fits(found, rung)}")
            for rung in found.ladder]  # fmt: skip
    head = "What the fullest GPU holds, the more the job is split (micro batch 1):"
    return [head, *(f"  {name:{words}}  {holds}" for name, holds in told)]


def not_proven(found: Found) -> list[str]:
    """Of a search that was stopped: what is proven of it all the same."""
    if not found.stopped:
        return []
    after = f"stopped {_BY[found.stopped]} after {format_seconds_round(found.seconds)}"
    if found.proven:
        return [f"Proven, but {after}: where the time of the best goes is not known of all."]
    if found.gap is None:
        return [f"Not proven ({after}): no bound is known yet of what was not played."]
    if found.gap:
        left = f"; {found.left:,} have not had their turn" if found.left else ""
        return [f"Not proven: gap {found.gap:.1%} ({after}): none can be more than that better than the first{left}."]
    if found.left:
        return [f"Only the first is proven ({after}): {found.left:,} others may still be among the best."]
    return [
        f"The best are proven, but ({after}) those in less memory, or that leave less free, were not all looked at."
    ]


_BY = {"time limit": "by the time limit", "interrupt": "by an interrupt"}


def _own(found: Found) -> Iterator[str]:
    own, winner = found.own, found.best[0]
    if own is None and not found.proven and any(each.layout.gpus == found.base.gpus for each in found.best):
        yield "Yours was not played before the search was stopped."
        return
    if own is None:
        yield f"Yours is on {found.base.gpus:,} GPUs, which were not asked for."
        return
    room = "" if own.memory <= found.capacity else f", which holds {own.memory / 1e9:.1f} GB a GPU, more than the limit"
    if same_program(own_layout(found.base), winner.layout):
        yield f"Yours ({layout(found.base)}), {format_seconds(own.step_time)} per step, is {name_of_first(found)}."
    elif own.score > winner.score:
        yield f"Yours ({layout(found.base)}){room}: {_longer(found, own)}"
    else:
        less = 1 - own.score / winner.score
        beside = f"{less:.1%} less" if less > 0 else f"as fast as {name_of_first(found)}"
        yield f"Yours ({layout(found.base)}) is {beside}{room}."


def _longer(found: Found, own: OwnLayout) -> str:
    winner = found.best[0]
    if "account" not in winner.row or "account" not in own.row:
        longer = own.step_time - winner.step_time
        more = f"{format_seconds(longer)} ({longer / winner.step_time:.1%}) longer"
        return f"it takes {format_seconds(own.step_time)} a step, {more} than the first."
    first, second = Account.from_result(winner.row), Account.from_result(own.row)
    return Difference((name_of_first(found), "it"), first, second, ()).in_words()


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e11 else f"{size / 1e9:.1f} GB"


def _fits(found: Found, rung: Rung) -> str:
    return "" if rung.memory is None or rung.memory > found.capacity else "  fits"
