"""How large pictures are in files, and what their scales and colours are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from test_gantt import Made, lab

from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.cli import COMMANDS, main, make_parser
from simcluster.show import link_plots, palette
from simcluster.show.figure_files import save_figure
from simcluster.show.heatmaps import straggler_heatmap
from simcluster.show.link_plots import plot_link_rows
from simcluster.show.picture_sizes import SIZES, PictureSize, parse_picture_size
from simcluster.show.topology_parts import NODES


def pixels(figure: Figure, path: Path, size: PictureSize | None, dpi: float | None = None) -> tuple[int, int]:
    save_figure(figure, path, size=size, dpi=dpi)
    high, wide = imread(path).shape[:2]
    return wide, high


def constrained(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def test_a_slide_has_the_pixels_of_a_screen_whatever_the_picture(tmp_path: Path) -> None:
    timeline = Made(2, 4).timeline()
    size = SIZES["slide"]
    drawn = [constrained(13.0, 6.0), constrained(4.0, 9.0), plots.gantt(timeline)]
    drawn += [plots.gantt(timeline, width=size.width, height=size.height)]
    assert {pixels(figure, tmp_path / "slide.png", size) for figure in drawn} == {(1920, 1080)}


def test_a_width_alone_leaves_the_height_to_the_picture(tmp_path: Path) -> None:
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", parse_picture_size("5"), dpi=100) == (500, 200)
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", SIZES["paper"]) == (2100, 840)
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", None, dpi=50) == (500, 200)


@pytest.mark.parametrize(
    ("text", "width", "height"),
    [("12x6", 12, 6), ("12 x 6 in", 12, 6), ("25.4x12.7cm", 10, 5), ("9", 9, None), ("30.48cm", 12, None)],
)
def test_sizes_are_inches_or_centimetres(text: str, width: float, height: float | None) -> None:
    assert (parse_picture_size(text).width, parse_picture_size(text).height) == (
        pytest.approx(width),
        height and pytest.approx(height),
    )


@pytest.mark.parametrize("text", ["", "big", "12x", "x6", "12*6", "-3", "1x1", "100", "12x0.5", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="size"):
        parse_picture_size(text)


def test_lanes_are_as_high_as_a_picture_lets_them_be() -> None:
    timeline = Made(4, 8).timeline()
    low, high = (plots.gantt(timeline, height=inches) for inches in (3.0, 6.0))
    assert [figure.get_figheight() for figure in (low, high)] == [3.0, 6.0]
    shares = [figure.axes[0].get_position().height * figure.get_figheight() for figure in (low, high)]
    assert shares[1] - shares[0] == pytest.approx(3.0, abs=0.2)
    with pytest.raises(InputError, match="do not fit into 2 inches; make the height at least"):
        plots.gantt(Made(8, 4, tp=4).timeline(), ranks=range(32), height=2.0)


def test_every_command_that_draws_takes_a_size() -> None:
    for command in COMMANDS:
        parser = make_parser(command)
        draws = bool({"figure", "links", "memory"} & {*parser.files.values()})
        assert ("--picture-size" in parser.options) == ("--dpi" in parser.options) == draws, command


def test_a_size_without_a_picture_or_of_no_picture_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(tmp_path / "step.png")
    for options, message in (
        (["--size", "slide"], "name a picture file"),
        (["--size", "huge", "--gantt", picture], "write slide, paper or inches"),
        (["--dpi", "1", "--gantt", picture], "pixels per inch must be between 30 and 1200"),
    ):
        assert main(["run", "tiny_dp", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_command_draws_in_the_size_that_is_asked_for(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"{name}.png") for name in ("gantt", "levels")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert main(["run", "tiny_dp", "-q", *options, "--size", "8x4", "--dpi", "50"]) == 0
    assert {imread(path).shape[:2] for path in files.values()} == {(200, 400)}


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
    figure = plot_link_rows(rows, np.linspace(0, 1, 11), matrix, title="")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[0] == f"{first}  ×8   48 GB/s"
    assert len(names) == (2 if "↔" in first else 3)


def test_links_of_a_few_percent_are_far_from_idle_and_the_scale_says_where_it_ends() -> None:
    rows, matrix = made_links(0.01)
    figure = plot_link_rows(rows, np.linspace(0, 1, 11), matrix, title="")
    heat = figure.axes[0].collections[0]
    idle, little = (lab(to_rgb(heat.to_rgba(value)), np.eye(3)) for value in (0.0, 0.01))
    assert np.linalg.norm(idle - little) > 30
    ends = [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]
    assert "5 %" in ends
    assert heat.norm.vmax == 0.05


def test_no_load_has_the_colour_of_a_kind_of_node() -> None:
    boxes = {
        kind: palette.tint_colour(look.colour, link_plots._BOX_TINT)
        for kind, look in NODES.items()
        if kind != "machine"
    }
    for load in (0.01, 0.05, 0.2, 0.5, 1.0):
        colour = lab(link_plots._LEVEL_FILL(link_plots._NORM(load))[:3], np.eye(3))
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
