"""How large pictures are in files: by name, in inches, and where a picture has texts that must not meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from test_gantt import Made

from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.cli import COMMANDS, main, parser_of
from simcluster.show.saving import SIZES, PictureSize, save_figure, size_of


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
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", size_of("5"), dpi=100) == (500, 200)
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", SIZES["paper"]) == (2100, 840)
    assert pixels(constrained(10.0, 4.0), tmp_path / "a.png", None, dpi=50) == (500, 200)


@pytest.mark.parametrize(
    ("text", "width", "height"),
    [("12x6", 12, 6), ("12 x 6 in", 12, 6), ("25.4x12.7cm", 10, 5), ("9", 9, None), ("30.48cm", 12, None)],
)
def test_sizes_are_inches_or_centimetres(text: str, width: float, height: float | None) -> None:
    assert (size_of(text).width, size_of(text).height) == (pytest.approx(width), height and pytest.approx(height))


@pytest.mark.parametrize("text", ["", "big", "12x", "x6", "12*6", "-3", "1x1", "100", "12x0.5", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="size"):
        size_of(text)


def test_lanes_are_as_high_as_a_picture_lets_them_be() -> None:
    timeline = Made(4, 8).timeline()
    low, high = (plots.gantt(timeline, height=inches) for inches in (3.0, 6.0))
    assert [figure.get_figheight() for figure in (low, high)] == [3.0, 6.0]
    shares = [figure.axes[0].get_position().height * figure.get_figheight() for figure in (low, high)]
    assert shares[1] - shares[0] == pytest.approx(3.0, abs=0.2)
    with pytest.raises(InputError, match="do not fit into 2 inches; give it at least"):
        plots.gantt(Made(8, 4, tp=4).timeline(), ranks=range(32), height=2.0)


def test_every_command_that_draws_takes_a_size() -> None:
    for command in COMMANDS:
        parser = parser_of(command)[1][command]
        draws = bool({"figure", "links", "memory"} & {*parser.files.values()})
        assert ("--picture-size" in parser.options) == ("--dpi" in parser.options) == draws, command


def test_a_size_without_a_picture_or_of_no_picture_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(tmp_path / "step.png")
    for options, message in (
        (["--size", "slide"], "name the file of one"),
        (["--size", "huge", "--gantt", picture], "a size is slide, paper or inches"),
        (["--dpi", "1", "--gantt", picture], "pixels an inch are between 30 and 1200"),
    ):
        assert main(["run", "tiny_dp", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_command_draws_in_the_size_that_is_asked_for(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"{name}.png") for name in ("gantt", "levels")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert main(["run", "tiny_dp", "-q", *options, "--size", "8x4", "--dpi", "50"]) == 0
    assert {imread(path).shape[:2] for path in files.values()} == {(200, 400)}
