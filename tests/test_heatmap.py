"""A heatmap of a table: which number each cell has, which is the best, and which are not there."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import simcluster
from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.base.tables import Records

TABLE = pd.DataFrame(
    {
        "parallel.tp": [1, 1, 2, 2, 4],
        "parallel.pp": [1, 2, 1, 2, 1],
        "step_time_s": [9.0, 3.0, 4.0, 2.0, np.nan],
        "mfu": [0.1, 0.3, 0.25, 0.4, np.nan],
        "fits": [True, True, True, False, None],
        "error": ["", "", "", "", "tp 4 does not divide"],
    }
)


def cells(figure: Figure) -> dict[tuple[float, float], str]:
    """The text of each cell by column and row."""
    return {text.get_position(): text.get_text() for text in figure.axes[0].texts}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def framed(figure: Figure) -> list[tuple[float, float]]:
    return [(each.get_x() + 0.5, each.get_y() + 0.5) for each in figure.axes[0].patches if not each.get_fill()]


def test_every_cell_has_its_number_with_its_unit() -> None:
    figure = plots.heatmap(TABLE, "parallel.tp", "parallel.pp")
    assert cells(figure) == {(0, 0): "9.000 s", (0, 1): "3.000 s", (1, 0): "4.000 s", (1, 1): "2.000 s"}
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("parallel.tp", "parallel.pp")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    assert set(cells(plots.heatmap(TABLE, "parallel.tp", "parallel.pp", "mfu")).values()) == {
        "10.0%", "30.0%", "25.0%", "40.0%"
    }  # fmt: skip


def test_the_best_cell_fits_in_memory_and_is_the_lowest_time_or_the_highest_utilisation() -> None:
    figure = plots.heatmap(TABLE, "parallel.tp", "parallel.pp")
    assert framed(figure) == [(0, 1)]
    assert figure.axes[0].get_title(loc="left") == "step_time_s: lowest 3.000 s at tp 1, pp 2"
    assert framed(plots.heatmap(TABLE, "parallel.tp", "parallel.pp", "mfu")) == [(0, 1)]
    assert framed(plots.heatmap(TABLE, "parallel.tp", "parallel.pp", best="highest")) == [(0, 0)]


def test_what_is_invalid_does_not_fit_or_is_not_there_is_named() -> None:
    figure = plots.heatmap(TABLE, "parallel.tp", "parallel.pp")
    assert legend(figure) == [
        "best", "darker: larger", "does not fit in memory", "invalid", "blank: not in the table"
    ]  # fmt: skip
    hatched = [patch.get_hatch() for patch in figure.axes[0].patches if patch.get_hatch()]
    assert hatched == ["////"]
    assert legend(plots.heatmap(TABLE.iloc[:2], "parallel.tp", "parallel.pp")) == ["best", "darker: larger"]


def test_the_best_of_several_rows_is_drawn() -> None:
    more = pd.concat([TABLE, TABLE.iloc[:1].assign(step_time_s=1.5)])
    figure = plots.heatmap(more, "parallel.tp", "parallel.pp")
    assert cells(figure)[0, 0] == "1.500 s"
    assert figure.axes[0].get_title(loc="left").endswith("\n(a cell with several rows shows the best one)")


def test_it_takes_what_a_sweep_and_what_records_hold() -> None:
    swept = simcluster.sweep("tiny_3d", {"parallel.tp": [1, 2, 3], "pipeline.schedule": ["1f1b", "gpipe"]})
    figure = plots.heatmap(swept, x="parallel.tp", y="pipeline.schedule", value="step_time_s")
    assert len(cells(figure)) == int(swept["step_time_s"].notna().sum()) > 0
    assert "invalid" in legend(figure)

    class Row:
        def to_dict(self) -> dict[str, Any]:
            return {"a": 1, "b": "x", "bytes_s": 2.0}

    assert cells(plots.heatmap(Records([Row()]), "a", "b", "bytes_s")) == {(0, 0): "2.000 s"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("parallel.tp", "parallel.p"), "no column 'parallel.p'; did you mean 'parallel.tp'?; it has parallel.tp, "),
        (("parallel.tp", "parallel.pp", "error"), "column 'error' has no numbers; give a table with at least one"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        plots.heatmap(TABLE, *arguments)


def test_too_many_cells_are_refused() -> None:
    many = pd.DataFrame({"a": range(41), "b": 1, "step_time_s": 1.0})
    with pytest.raises(InputError, match="an axis has 41 values; a heatmap has at most 40"):
        plots.heatmap(many, "a", "b")


def test_signatures_list_every_option() -> None:
    for draw in (simcluster.Result.gantt, *(getattr(plots, name) for name in plots.__all__)):
        kinds = {one.kind for one in inspect.signature(draw).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, draw
    options = inspect.signature(simcluster.Result.gantt).parameters
    shown = inspect.signature(plots.gantt).parameters
    assert {*options} - {"self", "interactive"} == {*shown} - {"timeline", "num_ranks"}
    assert all(options[name].default == shown[name].default for name in options if name in shown)
