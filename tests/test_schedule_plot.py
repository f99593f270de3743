"""Pictures of schedules: every action is drawn once, where and as long as it runs, and the words are right."""

from __future__ import annotations

from fractions import Fraction

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simcluster.base.errors import InputError
from simcluster.schedules import SCHEDULES, chimera, dualpipe, dualpipe_v, gpipe, interleaved, one_f_one_b, zb_h2
from simcluster.schedules.comparison import StageTimes, TimedSchedule, time_schedule
from simcluster.show.palette import op_colour
from simcluster.show.schedule_plot import schedules

TIMES = StageTimes(Fraction(1), Fraction(2), Fraction(1), Fraction(1))


def area(figure: Figure, panel: int) -> float:
    """Of all boxes of a panel, in time x rows."""
    total = 0.0
    for collection in figure.axes[panel].collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            extent = path.get_extents()
            total += extent.width * extent.height
    return total


def drawn(played: TimedSchedule) -> Figure:
    figure = schedules([played])
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize("make", [one_f_one_b, zb_h2, interleaved, dualpipe, dualpipe_v, chimera])
def test_the_boxes_cover_the_busy_time(make) -> None:
    played = time_schedule(make(4, 8), TIMES)
    figure = schedules([played])
    assert area(figure, 0) == pytest.approx(float(sum(played.timing.busy)) * 0.86)
    assert figure.axes[0].get_xlim() == (0, float(played.timing.makespan))


def test_numbers_are_the_microbatches_and_fit() -> None:
    played = time_schedule(one_f_one_b(3, 5), TIMES)
    figure = drawn(played)
    numbers = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(numbers) == sorted(str(action.microbatch) for row in played.schedule.rows for action in row)
    crowded = drawn(time_schedule(gpipe(2, 400), TIMES))
    assert len(crowded.axes[0].texts) == 0  # there is no room for any


def test_panels_share_the_axis_and_say_bubble_and_peak() -> None:
    shown = [time_schedule(make(4, 8), TIMES) for make in (one_f_one_b, zb_h2, dualpipe)]
    figure = schedules(shown)
    assert [axes.get_title("left") for axes in figure.axes] == ["1f1b", "zb-h2", "dualpipe"]
    assert [axes.get_title("right") for axes in figure.axes] == [
        "time 33 · bubble 27.3 % (of span: 27.3 %) · 4 in flight",
        "time 27 · bubble 11.1 % (of span: 0.0 %) · 7 in flight",
        "time 26 · bubble 7.7 % (of span: 7.7 %) · 5 in flight · weights 2x",
    ]
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 33.0)}


def test_the_legend_has_what_is_there_and_nothing_else() -> None:
    def entries(make) -> list[str]:
        figure = schedules([time_schedule(make(4, 8), TIMES)])
        return [text.get_text().split(",")[0].split(":")[0] for text in figure.legends[0].get_texts()]

    assert entries(one_f_one_b) == ["F", "B", "idle", "M (F + B)"]
    assert entries(zb_h2) == ["F", "I", "W", "idle", "M (F + B)"]
    assert entries(dualpipe_v) == ["F", "B", "I", "W", "lighter", "idle", "M (F + B)"]
    assert entries(dualpipe) == ["F", "B", "I", "W", "hatched", "idle", "M (F + B)"]


def test_colours_are_kinds_and_shades_chunks() -> None:
    figure = schedules([time_schedule(interleaved(2, 4, 2), TIMES)])
    seen = {tuple(round(float(part), 6) for part in each.get_facecolor()[0][:3]) for each in figure.axes[0].collections}
    wanted = [op_colour("compute", kind, chunk) for kind in ("forward", "backward") for chunk in (0, 1)]
    assert seen == {tuple(round(part, 6) for part in colour) for colour in wanted}


def test_a_gallery_has_a_panel_for_each() -> None:
    shown = [time_schedule(make(2, 4), TIMES) for make in SCHEDULES.values()]
    figure = schedules(shown, columns=2)
    assert [axes.get_title("left") for axes in figure.axes[: len(shown)]] == list(SCHEDULES)
    assert [axes.get_visible() for axes in figure.axes] == [True] * len(shown) + [False] * (len(shown) % 2)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to draw: give at least one"):
        schedules([])
    with pytest.raises(InputError, match=r"51,200 passes on 64 stages are too many to draw"):
        schedules([time_schedule(gpipe(64, 400), TIMES)])
    with pytest.raises(InputError, match="all times are zero"):
        schedules([time_schedule(gpipe(2, 2), StageTimes(*[Fraction(0)] * 4))])


def test_compared_schedules_do_the_same_work() -> None:
    for name, make in SCHEDULES.items():
        played = time_schedule(make(4, 8), TIMES)
        assert set(played.timing.busy) == {played.ideal_time} == {24}, name
    assert time_schedule(dualpipe(4, 8), TIMES).weight_copies == time_schedule(chimera(4, 8), TIMES).weight_copies == 2
    assert time_schedule(dualpipe_v(4, 8), TIMES).peak_activations == (Fraction(9, 2),) * 4
