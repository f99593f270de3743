"""What the drawing commands share: which part of a timeline to draw, and where to."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds, parse_seconds
from simcluster.cli.common import write_table
from simcluster.faults.words import all_in_words
from simcluster.results.distribution import Distribution
from simcluster.results.loads import link_table
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.show import plots
from simcluster.simulate import simulate
from simcluster.studies.whatif.montecarlo import monte_carlo, without_chance

if TYPE_CHECKING:
    from simcluster.show.plots import Figure


_TITLE_WIDTH = 100  # characters, of the narrowest picture


def window_of(text: str | None) -> tuple[float, float] | None:
    """ "1.2 s:1.3 s" in seconds."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(f'--window {text!r}: give a start and an end, as in "1.2 s:1.3 s"')
    window = parse_seconds(first), parse_seconds(last)
    if not 0 <= window[0] < window[1]:
        raise InputError(f"--window {text!r}: the end must come after the start, and the start not before 0 s")
    return window


def ranks_of(text: str | None, num_ranks: int) -> list[int] | None:
    """ "0,8,16" as numbers of ranks of the job."""
    if text is None:
        return None
    try:
        ranks = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--ranks {text!r}: ranks are whole numbers with commas between them, as in 0,8,16") from None
    wrong = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if wrong:
        raise InputError(f"--ranks: there is no rank {wrong[0]}; this job has ranks 0 to {num_ranks - 1}")
    return list(dict.fromkeys(ranks))


def gantt(result: Result, window: tuple[float, float] | None, ranks: list[int] | None) -> Figure:
    """The Gantt chart of a result."""
    import pandas as pd

    timeline, total = result.timeline, result.facts.ranks
    if ranks is not None:
        timeline = pd.concat([result.timeline_of(rank) for rank in ranks], ignore_index=True)
    title = f"{result.scenario.name}: {format_seconds(result.step_time)} a step"
    title += faults_line(without_chance(result.scenario) if result.scenario.replicas > 1 else result.scenario)
    return plots.gantt(timeline, title=title, window=window, ranks=ranks, num_ranks=total)


def histogram(scenario: Scenario, distribution: Distribution | None) -> Figure:
    """The step times of all replicas, of which there are several."""
    assert distribution is not None
    return plots.replicas(distribution, title=scenario.name + faults_line(scenario))


def faults_line(scenario: Scenario) -> str:
    """Further lines of a title: with which faults it was played; nothing where there are none."""
    return "\n" + textwrap.fill(f"faults: {all_in_words(scenario.faults)}", _TITLE_WIDTH) if scenario.faults else ""


def write_memory(result: Result, path: Path, window: tuple[float, float] | None, ranks: list[int] | None) -> None:
    """Memory over time, as a table of changes or a picture by the file's ending."""
    if path.suffix in (".csv", ".parquet"):
        write_table(path, result.memory_table(ranks))
    else:
        plots.save_figure(plots.memory(result, ranks=ranks, window=window), path)


def write_links(result: Result, path: Path) -> None:
    """What every link carried, as a table or a picture by the file's ending."""
    if path.suffix == ".csv":
        write_table(path, link_table(result))
    else:
        plots.save_figure(plots.links(result), path)


def play_replicas(scenario: Scenario) -> tuple[Result, Distribution]:
    """The step without chance, and all replicas of it with."""
    base = simulate(without_chance(scenario))
    return replace(base, scenario=scenario), monte_carlo(scenario, base=base)
