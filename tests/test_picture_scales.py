"""What colours and rows of pictures of links and of stragglers say, of made numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from test_gantt import lab

from simcluster.show import link_pictures, palette
from simcluster.show.heatmaps import straggler_heatmap
from simcluster.show.link_pictures import plot_rows
from simcluster.show.topology_parts import NODES


def made_links(back: float) -> tuple[pd.DataFrame, np.ndarray]:
    """One link both ways, 4 % full there and `back` on the way back, and one that is used in one direction."""
    mean = [0.04, back, 0.03]
    rows = pd.DataFrame(
        {
            "link_from": ["gpu0", "nic0", "nic1"], "link_to": ["nic0", "gpu0", "leaf"], "links": [8, 8, 1],
            "capacity": [48e9, 48e9, 50e9], "utilisation": mean, "peak_utilisation": mean,
        }
    )  # fmt: skip
    return rows, np.repeat(np.array(mean)[:, None], 10, axis=1)


@pytest.mark.parametrize(("back", "first"), [(0.04, "gpu0 ↔ nic0"), (0.02, "gpu0 → nic0")])
def test_both_directions_of_links_are_one_row_if_they_carry_the_same(back: float, first: str) -> None:
    rows, matrix = made_links(back)
    figure = plot_rows(rows, np.linspace(0, 1, 11), matrix, title="")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[0] == f"{first}  ×8   48 GB/s"
    assert len(names) == (2 if "↔" in first else 3)


def test_links_of_a_few_percent_are_far_from_idle_and_the_scale_says_where_it_ends() -> None:
    rows, matrix = made_links(0.01)
    figure = plot_rows(rows, np.linspace(0, 1, 11), matrix, title="")
    heat = figure.axes[0].collections[0]
    idle, little = (lab(to_rgb(heat.to_rgba(value)), np.eye(3)) for value in (0.0, 0.01))
    assert np.linalg.norm(idle - little) > 30
    ends = [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]
    assert "5 %" in ends
    assert heat.norm.vmax == 0.05


def test_no_load_has_the_colour_of_a_kind_of_node() -> None:
    boxes = {
        kind: palette.tinted(look.colour, link_pictures._BOX_TINT) for kind, look in NODES.items() if kind != "machine"
    }
    for load in (0.01, 0.05, 0.2, 0.5, 1.0):
        colour = lab(link_pictures._LEVEL_FILL(link_pictures._NORM(load))[:3], np.eye(3))
        for kind, box in boxes.items():
            assert np.linalg.norm(colour - lab(box, np.eye(3))) > 15, (load, kind)


@pytest.mark.parametrize(("least", "begins"), [(1.12, 0.12), (1.01, 0.0)])
def test_a_heatmap_of_stragglers_begins_where_its_data_do(least: float, begins: float) -> None:
    slowdown = np.array([[least, 1.14], [1.16, 1.2]])
    figure = straggler_heatmap(slowdown, by_replica=[1.1, 1.2], by_stage=[1.1, 1.2], title="", worst=[(1, 1)])
    heat = next(axes.collections[0] for axes in figure.axes if axes.get_xlabel().startswith("dp rank"))
    assert heat.norm.vmin == pytest.approx(begins)
    said = " ".join(axes.get_ylabel() for axes in figure.axes)
    assert ("scale from +12 %" in said) == (begins > 0)
    assert any("framed: the slowest 3 % of workers" in axes.get_xlabel() for axes in figure.axes)
    shades = [heat.to_rgba(value) for value in sorted((slowdown - 1).ravel().tolist())]
    for one, other in itertools.pairwise(shades):
        assert np.linalg.norm(lab(one[:3], np.eye(3)) - lab(other[:3], np.eye(3))) > 5
