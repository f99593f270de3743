"""The explanation of a winner, in words: against the second, and against the best with another tp or pp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.base.units import format_seconds
from simcluster.results.account import Account
from simcluster.studies.search.plan import Found, Ranked
from simcluster.studies.search.space import Layout
from simcluster.studies.whatif.difference import Difference


def name_of(ranked: Ranked) -> str:
    """A layout in a few words: tp 8, pp 8, dp 16, micro batch 1, interleaved x 3, ..."""
    return name_of_layout(ranked.layout, ranked.same)


def name_of_layout(layout: Layout, same: Sequence[Layout] = ()) -> str:
    """The same of a layout, whose program those are that are the ``same`` but for the order of ranks."""
    parts = [f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}, micro batch {layout.micro_batch}"]
    parts += [f"cp {layout.cp} ({layout.cp_comm.replace('_', ' ')})"] if layout.cp > 1 else []
    parts += [f"ep {layout.ep}"] if layout.ep > 1 else []
    parts += [f"etp {layout.etp}"] if layout.etp else []
    if layout.pp > 1:
        parts.append(layout.schedule + (f" x {layout.chunks}" if layout.chunks > 1 else ""))
    parts.append(f"recompute {layout.recompute}")
    parts += ["sp"] if layout.sequence_parallel else []
    parts += [f"ZeRO {layout.zero}"] if layout.zero else []
    parts += _order((layout, *same)) if layout.pp > 1 and layout.dp > 1 else []
    return ", ".join(parts)


def _order(layouts: Sequence[Layout]) -> list[str]:
    """Which of dp and pp has the nearer ranks, where it says anything; that of equal programs, too."""
    slow = {tuple(axis for axis in each.order if axis in ("dp", "pp")) for each in layouts}
    if len(slow) > 1:
        return ["dp and pp in either order"]
    return ["pp before dp"] if slow == {("pp", "dp")} else []


def name_of_first(found: Found) -> str:
    """What the first is: the winner, once it is proven to be the best."""
    return "the winner" if found.gap == 0 else "the best so far"


def why(found: Found) -> list[str]:
    """Paragraphs: the winner against others that were played, and what those that were not can reach at most."""
    winner, everyone = found.best[0], (*found.best[1:], *found.others)
    next_played = [each for each in found.others if each.layout not in winner.same] if len(found.best) == 1 else []
    rivals = [("the second", each) for each in found.best[1:2]]
    rivals += [("the next that was played", each) for each in next_played[:1]]
    for axis in ("tp", "pp"):
        size = getattr(winner.layout, axis)
        others = [each for each in everyone if getattr(each.layout, axis) != size]
        rivals += [(f"the best with another {axis}", each) for each in others[:1]]
    roles: dict[int, list[str]] = {}
    for role, other in rivals:
        roles.setdefault(everyone.index(other), []).append(role)
    told = [
        f"Against {' and '.join(names)} ({name_of(everyone[place])}): {_difference(found, everyone[place])}"
        for place, names in roles.items()
    ]
    return told + list(_elsewhere(found))


def _difference(found: Found, other: Ranked) -> str:
    winner = found.best[0]
    if "account" not in other.row or "account" not in winner.row:
        longer = other.step_time - winner.step_time
        return f"it takes {format_seconds(other.step_time)} a step, {format_seconds(longer)} longer."
    first, second = (Account.from_result(each.row) for each in (winner, other))
    return Difference((name_of_first(found), "it"), first, second, ()).in_words()


def _elsewhere(found: Found) -> Iterator[str]:
    """What can be reached with sizes of which no layout had to be played."""
    best = found.best[0].score
    parts = [
        f"{axis} {size} at least {bound / best - 1:.1%} more" for (axis, size), bound in sorted(found.elsewhere.items())
    ]
    if parts:
        whose = ", of those that leave the headroom" if found.tight else ""
        yield f"By their bounds alone{whose}: {', '.join(parts)}."
