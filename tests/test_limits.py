"""Roofline, scaling curves, loads on the topology: numbers against closed forms, then that they can be drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from conftest import Tiny

import simcluster
from simcluster import cli, plots
from simcluster.base.errors import InputError
from simcluster.results.link_loads import link_table
from simcluster.show.link_plots import list_link_levels
from simcluster.step.simulate import simulate
from simcluster.studies.roofline import Roofline, compute_roofline
from simcluster.topology.links import node_label

BUSY = ("forward", "backward", "recompute", "input_grad", "weight_grad")
JOBS = {
    "pipeline": {"cluster": {"topology": "flat", "gpus": 4}, "parallel": {"pp": 2}},
    "tensor": {"cluster": {"topology": "flat", "gpus": 2}, "parallel": {"tp": 2}},
    "recomputed": {"cluster": {"topology": "flat", "gpus": 2}, "training": {"global_batch": 4, "recompute": "full"}},
    "half recomputed": {"training": {"global_batch": 4, "recompute": "selective", "recompute_every": 2}},
}


@pytest.mark.parametrize("job", JOBS)
def test_kernels_of_a_step_are_its_compute(job: str, tiny: Tiny) -> None:
    result = simulate(tiny(**JOBS[job]))
    table, weights = result.timeline, result.weights
    spans = table[(table["stream"] == "compute") & table["kind"].isin(BUSY)]
    each = (spans["end"] - spans["start"]).groupby(spans["rank"]).sum()
    busy = sum(each[rank] * count for rank, count in weights.items()) / result.facts.ranks
    kernels = compute_roofline(result).kernels
    assert sum(kernel.step_seconds for kernel in kernels) == pytest.approx(busy, rel=1e-6)
    model, parallel = result.scenario.model, result.scenario.parallel
    (wide,) = [kernel for kernel in kernels if (kernel.name, kernel.phase) == ("mlp_up", "forward")]
    assert wide.flops == 2 * model.sequence_length * model.hidden_size * model.ffn_hidden_size / parallel.tp


@pytest.mark.parametrize("name", ["tiny_dp", "tiny_3d", "gpt3_175b_64xa100"])
def test_nothing_is_above_its_roof(name: str) -> None:
    found = compute_roofline(simcluster.simulate(simcluster.scenario(name)))
    for kernel in found.kernels:
        assert kernel.flops <= kernel.seconds * found.peak_flops
        assert kernel.bytes <= kernel.seconds * found.memory_bandwidth or kernel.flops
    for wire in found.communication:
        assert wire.bytes / wire.seconds <= 1.001 * max(
            found.bandwidth_inside_node, found.bandwidth_out_of_node, found.ring_bandwidth
        )
    assert [point.step_seconds for point in found.kernels] == sorted(
        (point.step_seconds for point in found.kernels), reverse=True
    )


def test_bytes_on_the_wire_are_those_of_the_bus() -> None:
    result = simcluster.simulate(simcluster.scenario("tiny_dp"))
    (wire,) = compute_roofline(result).communication
    gradients = sum(result.timeline.query("kind == 'all_reduce' and rank == 0")["bytes"])
    assert (wire.axis, wire.kind) == ("dp", "all_reduce")
    assert wire.bytes == pytest.approx(gradients * 2 * 3 / 4)


# --- scaling ----------------------------------------------------------------------------------------------------------


def rows(sizes: list[int], times: list[float], tokens: list[float], **more: list[object]) -> pd.DataFrame:
    rates = [token / time / size for size, time, token in zip(sizes, times, tokens, strict=True)]
    return pd.DataFrame({"gpus": sizes, "step_time_s": times, "tokens_per_s_per_gpu": rates, **more})


@pytest.mark.parametrize(
    ("tokens", "said", "ideal"),
    [
        ([100.0, 100.0, 100.0], "strong scaling", [1.0, 0.5, 0.25]),
        ([100.0, 200.0, 400.0], "weak scaling", [1.0, 1.0, 1.0]),
        ([100.0, 200.0, 200.0], "batch and GPUs change", [1.0, 1.0, 0.5]),
    ],
)
def test_scaling_says_which_it_is_and_draws_the_ideal(tokens: list[float], said: str, ideal: list[float]) -> None:
    figure = plots.scaling(rows([1, 2, 4], [1.0, 0.6, 0.4], tokens))
    times, rates = figure.axes
    assert said in times.get_title(loc="left")
    dashed, solid = times.lines[:2]
    assert dashed.get_ydata() == pytest.approx(ideal)
    assert list(solid.get_ydata()) == [1.0, 0.6, 0.4]
    first = 100.0
    expected = [
        f"{token / time / size / first:.0%}" for size, time, token in zip([2, 4], [0.6, 0.4], tokens[1:], strict=True)
    ]
    assert [text.get_text() for text in rates.texts] == expected


def test_scaling_takes_the_fastest_of_a_size_and_a_line_for_each_value() -> None:
    table = rows([4, 1, 4, 1, 4], [0.4, 1.0, 0.3, 2.0, 0.6], [100.0] * 5, schedule=["a", "a", "a", "b", "b"])
    figure = plots.scaling(table, by="schedule")
    lines = [line for line in figure.axes[0].lines if line.get_label() in ("a", "b")]
    assert [list(line.get_ydata()) for line in lines] == [[1.0, 0.3], [2.0, 0.6]]


@pytest.mark.parametrize(
    ("table", "by", "words"),
    [
        (rows([1, 2], [1.0, 0.5], [1.0, 1.0]).drop(columns="gpus"), None, "no column 'gpus'"),
        (rows([1, 2], [1.0, 0.5], [1.0, 1.0]), "tp", "no column 'tp'"),
        (rows([2, 2], [1.0, 0.5], [1.0, 1.0]), None, "same number of GPUs; a scaling curve needs two or more"),
        (rows([1, 2], [math.nan, math.nan], [1.0, 1.0]), None, "no row with a result"),
        (rows([1] * 7, [1.0] * 7, [1.0] * 7, x=list("abcdefg")), "x", "at most 6 lines"),
    ],
)
def test_scaling_refuses(table: pd.DataFrame, by: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plots.scaling(table, by=by)


def test_compare_draws_scaling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "scaling.png"
    sizes = ["compare", "tiny_dp", "--cluster.gpus", "8", "--vary", "gpus=2,4,8"]
    assert cli.main([*sizes, "--scaling", str(picture), "--json", "-"]) == 0
    assert '"gpus": 8' in capsys.readouterr().out
    assert picture.stat().st_size > 10_000
    assert cli.main(["compare", "tiny_dp", "--scaling", str(picture)]) == 2
    assert "different numbers of GPUs" in capsys.readouterr().err


# --- loads on the topology -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_dp", "tiny_3d"])
def test_levels_hold_all_links_and_all_bytes(name: str) -> None:
    result = simcluster.simulate(simcluster.scenario(name))
    cluster, table = result.scenario.cluster.built, link_table(result)
    levels = list_link_levels(result)
    assert sum(level.links for level in levels) == len(cluster.links)
    moved = table.assign(
        ends=[(node_label(cluster.graph, a), node_label(cluster.graph, b))
              for a, b in zip(table["link_from"], table["link_to"], strict=True)]
    ).groupby("ends")["bytes"].sum()  # fmt: skip
    for level in levels:
        bytes_moved = level.mean * level.links * level.capacity * result.step_time
        assert bytes_moved == pytest.approx(moved.get(level.ends, 0.0), rel=1e-9)
        assert 0 <= level.mean <= level.fullest_mean <= 1.000001
        assert level.used <= level.links


def test_a_single_gpu_leaves_its_links_idle(tiny: Tiny) -> None:
    result = simulate(tiny())
    assert [(level.used, level.mean, level.peak) for level in list_link_levels(result)] == [(0, 0.0, 0.0)] * 2
    (axes, _) = plots.link_levels(result).axes
    assert "↑ idle\n↓ idle\n1 × 50 GB/s" in [text.get_text() for text in axes.texts]


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_run_draws_them(tmp_path: Path) -> None:
    """In one run; what a file's ending makes of a figure: tests/test_gantt.py."""
    paths = {"roofline": tmp_path / "roofline.svg", "levels": tmp_path / "levels.png"}
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    assert cli.main(["run", "tiny_3d", *options, "--json", str(tmp_path / "x.json")]) == 0
    assert all(path.stat().st_size > 10_000 for path in paths.values())


@pytest.mark.parametrize("option", ["--roofline", "--levels"])
def test_a_picture_ends_in_one_of_three(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "tiny_dp", option, "x.jpg"]) == 2
    assert "a picture ends in .png, .svg, .pdf" in capsys.readouterr().err


def test_a_step_without_communication_is_drawn(tiny: Tiny) -> None:
    result = simulate(tiny())
    assert not compute_roofline(result).communication
    figure = plots.roofline(result, title="alone")
    assert "no communication above 0.1 % of the step" in [text.get_text() for text in figure.axes[1].texts]


def test_texts_of_a_roofline_stay_inside() -> None:
    figure = plots.roofline(simcluster.simulate(simcluster.scenario("tiny_3d")))
    figure.draw_without_rendering()
    whole = figure.bbox
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert whole.x0 - 1 <= box.x0 <= box.x1 <= whole.x1 + 1, text.get_text()


def test_links_and_errors_are_public() -> None:
    result = simcluster.simulate(simcluster.scenario("tiny_3d"))
    assert len(plots.links(result, n=3).axes) >= 2
    from simcluster.evidence.validation import load_study, validate_studies

    assert plots.validation_errors(validate_studies([load_study("korthikanti_memory")])).axes


def test_roofline_is_of_one_rank() -> None:
    small, large = (
        compute_roofline(
            simcluster.simulate(simcluster.scenario("tiny_dp", {"gpus": gpus, "training.global_batch": 8 * gpus}))
        )
        for gpus in (2, 4)
    )
    assert isinstance(small, Roofline)
    assert small.flops == pytest.approx(large.flops)
    assert [each.name for each in small.kernels] == [each.name for each in large.kernels]
