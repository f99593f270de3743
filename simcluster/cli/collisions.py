"""Where the flows of a collective meet: for simcluster collective, in text, in JSON, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError

if TYPE_CHECKING:
    from simcluster.bench.collective_loads import CollectiveLoads, LevelLoad, LinkLoad
    from simcluster.topology import Cluster
    from simcluster.traffic.traffic import Traffic

_MOST_LEVELS = 4
_MOST_HOTTEST = 3
_MOST_ROWS = 20
_MOST_DRAWN = 4096  # links that are looked at for the picture
_JUST_ABOVE = 1 + 1e-9

LINK_COLUMNS = ("link_from", "link_to", "medium", "capacity", "bytes", "busy_s", "flows", "collisions")


def hottest_lines(loads: CollectiveLoads) -> list[str]:
    """The levels with a link above the mean, and the hottest of those links; one line if there is none."""
    from simcluster.base.units import format_bytes, format_bytes_per_second

    uneven = [level for level in loads.levels if level.collisions > _JUST_ABOVE]
    if not uneven:
        return ["links    no link carries more flows than an even share of its level's"]
    lines = [
        f"{level.ends} ({format_bytes_per_second(level.capacity)}): most {level.most:.4g} flows, mean "
        f"{level.mean:.3g}: {level.collisions:.2f} x an even share; {level.used:,} of {level.links:,} links used"
        for level in uneven[:_MOST_LEVELS]
    ]
    if len(uneven) > _MOST_LEVELS:
        lines.append(f"and {len(uneven) - _MOST_LEVELS} more levels; --links FILE.csv has all links")
    hot = [
        f"{load.link[0]} -> {load.link[1]}: {format_bytes(load.bytes)} in {load.flows:.4g} flows, "
        f"{load.collisions:.2f} x an even share"
        for load in _hottest(loads, uneven)
    ]
    return _labelled("levels", lines) + _labelled("hottest", hot)


def levels_document(loads: CollectiveLoads) -> dict[str, object]:
    """Levels and hottest links for --json, in B, s and B/s."""
    return {
        "levels": [{**asdict(level), "collisions": level.collisions} for level in loads.levels],
        "hottest": [{**asdict(load), "busy": load.busy} for load in loads.links[:10]],
    }


def write_links(
    path: Path, cluster: Cluster, loads: CollectiveLoads, traffics: Sequence[Sequence[Traffic]], title: str
) -> None:
    """Every link that carries anything as a table, or the hottest ones over time as a picture, by the ending."""
    if path.suffix == ".csv":
        from simcluster.cli.common import write_text

        rows = [_cells(load) for load in loads.links]
        write_text(path, "".join(",".join(map(str, row)) + "\n" for row in (LINK_COLUMNS, *rows)))
        return
    from simcluster.bench.collective_loads import utilisation_over_time
    from simcluster.show.gantt import save_figure
    from simcluster.show.links_plot import LinkRow, plot_rows
    from simcluster.topology.levels import label

    links = loads.links[:_MOST_DRAWN]
    edges, matrix = utilisation_over_time(cluster, traffics, [load.link for load in links])
    alike: dict[object, list[int]] = {}
    for number, load in enumerate(links):  # the same kind of ends, and alike at any time
        kind = tuple(label(cluster.graph, end) for end in load.link)
        alike.setdefault((kind, load.capacity, matrix[number].round(6).tobytes()), []).append(number)
    shown = list(alike.values())[:_MOST_ROWS]
    rows_drawn = [
        LinkRow(
            links[same[0]].link,
            links[same[0]].capacity,
            len(same),
            float(matrix[same[0]].mean()),
            min(1.0, float(matrix[same[0]].max())),
        )
        for same in shown
    ]
    matrix = matrix[[same[0] for same in shown]]
    save_figure(plot_rows(rows_drawn, edges, matrix, title=f"{title}: hottest links"), path)


def _cells(load: LinkLoad) -> tuple[Any, ...]:
    if any("," in name for name in load.link):
        raise InputError(f"link {load.link[0]} - {load.link[1]}: a name with a comma in it does not fit a CSV")
    return (*load.link, load.medium, load.capacity, load.bytes, load.busy, load.flows, load.collisions)


def _hottest(loads: CollectiveLoads, uneven: Sequence[LevelLoad]) -> list[LinkLoad]:
    """The links furthest above their level's mean, the longest busy first among equals; a few."""
    above = [load for load in loads.links if load.collisions > _JUST_ABOVE]
    return sorted(above, key=lambda load: -load.busy)[:_MOST_HOTTEST] if uneven else []


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not place else '':9}{line}" for place, line in enumerate(lines)]
