"""What runs cost and draw: sums that close, prices as inputs, the price of MFU, and power over a step and a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.longrun.power import (
    KWH,
    DevicePower,
    PowerCurve,
    category_watts,
    load_device_power,
    power_curve,
    resolve_power,
    simulated_step_power,
)
from simcluster.longrun.studies.run_costs import STANDING_BY, MfuShortfallCost, RunCost, RunEnergy
from simcluster.longrun.studies.training import TrainingRun, train
from simcluster.longrun.text_formats import format_energy
from simcluster.results.result import Result
from simcluster.scenario.run_section import PowerSpec
from simcluster.scenario.scenario import load
from simcluster.show import plots
from simcluster.step.simulate import simulate_scenario

RUN: dict[str, Any] = {
    "days": "21 d",
    "failures": [
        {"name": "machine", "of": "host", "mtbf": "3 d", "repair": "6 h"},
        {"name": "hot", "effect": "slow", "count": 40, "within": "54 d", "by": [1.2], "lasts": "3 h"},
    ],
    "checkpoint": {"stall": "20 s", "every": "1 h", "price": 23.0, "keep": 4, "bytes_per_parameter": 10},
    "restart": [{"part": "stop", "takes": "1 min", "exposed": False}, {"part": "warm up", "takes": "4 min"}],
    "spares": {"warm": 2, "cold": 1, "price": 0.5},
    "maintenance": {"every": "3 d", "lasts": "30 min"},
    "price": 2.0,
    "power": {"price": 0.1, "pue": 1.2},
}


def trained(run: dict[str, Any], played: int = 20) -> TrainingRun:
    return train(load("tiny_dp", {"run": run}), played=played)


def without(run: dict[str, Any], *paths: str) -> dict[str, Any]:
    """The run without what stands at these paths (a.b)."""
    copy = {name: dict(value) if isinstance(value, dict) else value for name, value in run.items()}
    for path in paths:
        section, _, name = path.rpartition(".")
        del (copy[section] if section else copy)[name]
    return copy


@pytest.fixture(scope="module")
def training() -> TrainingRun:
    return trained(RUN)


@pytest.fixture(scope="module")
def money(training: TrainingRun) -> RunCost:
    assert training.money is not None
    return training.money


@pytest.fixture(scope="module")
def energy(training: TrainingRun) -> RunEnergy:
    assert training.energy is not None
    return training.energy


# --- money ------------------------------------------------------------------------------------------------------------


def test_the_cost_wall() -> None:
    """$10 M at $2 is 5 M GPU-hours; at 35 % MFU they do what 3.5 M would at 50 %: $3 M, or 42.9 % more training."""
    hours, peak = 10e6 / 2, 989e12
    done = hours * 3600 * 0.35 * peak
    assert done == pytest.approx(6.2307e24)
    held = MfuShortfallCost.from_spending(10e6, 0.35, 0.5)
    assert held.dollars == pytest.approx(2 * done / (3600 * 0.5 * peak)) == pytest.approx(7e6)
    assert held.lost == pytest.approx(3e6)
    assert held.more == pytest.approx(3 / 7)
    assert MfuShortfallCost.from_spending(10e6, 0.35, 1.0).lost == pytest.approx(6.5e6)
    assert MfuShortfallCost.from_spending(10e6, 0.4, 1.0).lost == pytest.approx(6e6)
    assert MfuShortfallCost.from_spending(10e6, 0.5, 0.4).lost == 0


def test_dollars_are_hours_bytes_and_kwh_at_their_prices(training: TrainingRun, money: RunCost) -> None:
    days, energy = 21, training.energy
    assert energy is not None
    each = training.run.gpus / training.run.machines
    assert money.parts["gpus"] == pytest.approx(2.0 * training.run.gpus * 24 * days)
    assert money.parts["spares"] == pytest.approx(0.5 * 3 * each * 24 * days)
    size = training.to_dict()["checkpoint"]["size_bytes"]
    assert money.parts["storage"] == pytest.approx(23.0 * 4 * size / 1e12 * days * 12 / 365.25)
    assert money.parts["electricity"] == pytest.approx(0.1 * energy.total.mean())
    assert training.dollars == pytest.approx(sum(money.parts.values()))
    assert training.numbers.loc["dollars", "mean"] == pytest.approx(training.dollars)


def test_fates_causes_and_what_stands_by_are_all_dollars(training: TrainingRun, money: RunCost) -> None:
    standing = 0.1 * float(training.energy.kwh[STANDING_BY].mean()) if training.energy else 0.0
    standing += money.parts["spares"] + money.parts["storage"]
    assert sum(money.by_fate.values()) + standing == pytest.approx(training.dollars)
    by_none = sum(money.by_fate[fate] for fate in ("productive", "checkpoint", "write", "verification"))
    assert sum(money.by_cause.values()) == pytest.approx(sum(money.by_fate.values()) - by_none)
    assert money.failures == pytest.approx(money.by_cause["machine"] + money.by_cause["hot"])
    assert money.by_cause["maintenance"] > 0
    assert training.causes.loc["machine", "dollars"] == money.by_cause["machine"]
    assert training.breakdown.loc["lost", "dollars"] == money.by_fate["lost"]


def test_a_price_changes_its_part_alone(training: TrainingRun, money: RunCost) -> None:
    dear = trained({**RUN, "power": {"price": 0.2, "pue": 1.2}}).money
    assert dear is not None
    before = money.parts
    assert dear.parts == before | {"electricity": pytest.approx(2 * before["electricity"])}
    plain = trained(without(RUN, "spares.price", "checkpoint.price", "power.price"))
    assert plain.money is not None
    assert plain.money.parts == {"gpus": before["gpus"], "spares": pytest.approx(4 * before["spares"])}
    assert "without a price, so not included: run.checkpoint.price, run.power.price" in plain.summary()
    nothing = trained(without(RUN, "spares.price", "checkpoint.price", "power.price", "price"), played=2)
    assert nothing.dollars is None
    assert nothing.breakdown["dollars"].isna().all()


def test_what_is_lost_at_an_mfu_is_the_step_and_what_is_not_productive(training: TrainingRun) -> None:
    assert training.price_of_mfu is None
    high = trained({**RUN, "achievable_mfu": "90%"})
    assert high.price_of_mfu is not None
    assert high.dollars is not None
    assert high.price_of_mfu.lost == pytest.approx(high.dollars * (1 - high.step_mfu * high.goodput / 0.9))
    assert "more training for the money" in high.summary()
    assert "in the step" in high.summary()
    low = trained({**RUN, "achievable_mfu": 0.001}, played=2)
    assert "no money is lost, compared with an MFU of 0%" in low.summary()


# --- energy -----------------------------------------------------------------------------------------------------------


def test_energy_is_power_over_the_wall(training: TrainingRun, energy: RunEnergy) -> None:
    hours = training.outcomes.wall / 3600
    assert np.allclose(sum(energy.kwh.values()), energy.total)
    assert energy.average == pytest.approx(1e3 * energy.total.sum() / hours.sum())
    assert energy.low < energy.average < energy.peak
    each = training.run.gpus / training.run.machines
    assert energy.standing_by == pytest.approx(
        1.2 * 2 * each * (energy.device_power.idle + energy.device_power.node_watts_per_gpu)
    )
    assert energy.kwh["productive"][0] / energy.kwh["lost"][0] == pytest.approx(
        training.outcomes.seconds_by_category()["productive"][0] / training.outcomes.seconds_by_category()["lost"][0]
    )


def test_the_building_draws_pue_times_its_machines(energy: RunEnergy) -> None:
    plain = trained({**RUN, "power": {"price": 0.1}}).energy
    assert plain is not None
    assert np.allclose(energy.total, 1.2 * plain.total)
    assert energy.peak_to_peak(5e-3) == pytest.approx(1.2 * plain.peak_to_peak(5e-3))
    assert energy.peak_to_peak(5e-3) < energy.peak_to_peak(0.0) == pytest.approx(energy.peak - energy.low)


def test_the_curve_around_a_failure_has_every_fate_at_its_power(training: TrainingRun, energy: RunEnergy) -> None:
    log = training.log[training.log["what"] == "detection"]
    first = float(log["begin_s"].iloc[0])
    table = energy.sample_power(training.log, first - 4000.0, first + 900.0, every=0.05)
    mean = table.groupby("what")["watts"].mean()
    for fate in ("checkpoint", "detection", "restart"):
        assert mean[fate] == pytest.approx(energy.mean_watts(fate) + energy.standing_by)
    seconds = 0.05 * table["what"].value_counts()
    assert seconds["checkpoint"] == pytest.approx(20, abs=0.2)
    assert seconds["detection"] == pytest.approx(120, abs=0.2)
    assert mean["productive"] == pytest.approx(energy.mean_watts("productive") + energy.standing_by, rel=0.02)
    assert table["watts"].between(0.999 * min(energy.low, mean.min()), 1.001 * energy.peak).all()


def test_what_nobody_says_is_asked_for() -> None:
    """A PCIe card is in no list of what cards draw; the run may say it."""
    scenario = load("tiny_dp", {"run": without(RUN, "power"), "cluster.device": "a100-80gb-pcie"})
    silent = train(scenario, played=2)
    assert silent.energy is None
    assert "run.power.idle and run.power.full, in W" in silent.summary()
    assert silent.to_dict()["energy"] is None
    with pytest.raises(InputError, match="the power of these GPUs is unknown"):
        plots.power(silent)
    told = train(load("tiny_dp", {"run": RUN, "cluster.device": "a100-80gb-pcie", "run.power.idle": 40,
                                  "run.power.full": 300}), played=2)  # fmt: skip
    assert told.energy is not None
    assert told.energy.device_power.full == 300
    assert "assumed: the rest of a node draws nothing" in told.summary()


def test_what_is_assumed_is_told_until_it_is_said(training: TrainingRun) -> None:
    assert "assumed: communication draws 20% of the range from idle to full power (196 W per GPU)" in training.summary()
    said = trained({**RUN, "power": {"communication": "35%"}}, played=2)
    assert said.energy is not None
    assert list(said.energy.assumed()) == []
    assert "assumed: communication" not in said.summary()
    with pytest.raises(InputError, match="below idle"):
        trained({**RUN, "power": {"full": 10}}, played=2)


def test_energies_are_read_at_a_glance() -> None:
    assert [format_energy(kwh) for kwh in (3.2, 2_500, 25_000, 21_588e3)] == [
        "3.2 kWh",
        "2,500 kWh",
        "25 MWh",
        "21.59 GWh",
    ]


# --- the picture and the command --------------------------------------------------------------------------------------


def test_the_picture_says_what_it_shows(training: TrainingRun, energy: RunEnergy) -> None:
    figure = plots.power(training)
    step, failure, fates = figure.axes
    line = step.get_lines()[0].get_ydata()
    assert line[0] == pytest.approx((1.2 * energy.curve.mean + energy.standing_by) / 1e3)
    assert step.get_ylabel() == failure.get_ylabel() == "power of the job (kW)"
    assert failure.get_xlabel().startswith("the first outage of the first run: time (min)")
    assert "kWh" in fates.get_xlabel()
    widths = [bar.get_width() for bar in fates.patches]
    rest = sorted((float(each.mean()) for fate, each in energy.kwh.items() if fate != "productive"), reverse=True)
    assert widths == pytest.approx(rest[: len(widths)])


def test_the_command_tells_money_and_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "tiny_dp", "--run.days", "7 d", "--set", "run.checkpoint={stall: 5 s, every: 2 h}"]
    argv += ["--run.failures", "rsc-1", "--played", "3", "--run.price", "2", "--run.power.price", "0.1"]
    assert cli.main([*argv, "--power", str(tmp_path / "power.png")]) == 0
    text = capsys.readouterr().out
    for words in ("GPUs $1,344, electricity $", "kW on average", "J per token", "productive 167."):
        assert words in text
    assert (tmp_path / "power.png").stat().st_size > 10_000


H100 = load_device_power("h100")


def test_every_draw_has_a_source() -> None:
    assert all(entry["source"] for entry in load_presets("power.yaml").values())
    with pytest.raises(InputError, match="did you mean 'h100'"):
        load_device_power("h1000")


def test_what_a_run_says_stands_above_the_catalogue() -> None:
    assert resolve_power("h100", PowerSpec(full=650)) == H100.model_copy(update={"full": 650})
    assert resolve_power("h100", PowerSpec(communication="25 %")) == H100.model_copy(update={"communication": 0.25})
    assert resolve_power("my_gpu", PowerSpec(idle=10, full=300)) == DevicePower(idle=10, full=300)
    assert resolve_power("my_gpu", PowerSpec(node=300)) is None
    with pytest.raises(InputError, match="the power of 'my_gpu' is unknown"):
        resolve_power("my_gpu", PowerSpec(full=300))
    with pytest.raises(InputError, match="below idle"):
        resolve_power("h100", PowerSpec(full=50))


def test_llama_3_405b_at_its_limit_takes_21_588_mwh() -> None:
    seconds = 30.84e6 * 3600 / 16384
    assert category_watts("productive", H100, 16384 * H100.full, 16384) * seconds / KWH / 1e3 == pytest.approx(21_588)


def test_all_gpus_between_700_and_200_w_swing_by_8_2_mw() -> None:
    """0.2 of communication is 196 W of an H100; 200 W is 0.2063 of it."""
    waiting = (200 - H100.idle) / (H100.full - H100.idle)
    bare = H100.model_copy(update={"node": None})
    curve = power_curve(
        bare, np.array([0, 0]), np.array([0.0, 2.0]), np.array([2.0, 3.0]), np.array([1.0, waiting]), {0: 16384}
    )
    assert curve.peak_to_peak() == pytest.approx(16384 * 500)
    assert curve.mean == pytest.approx(16384 * (2 * 700 + 200) / 3)
    assert H100.watts(H100.communication) == pytest.approx(196)


def test_a_collective_that_waits_draws_what_hung_jobs_were_seen_to() -> None:
    """100 W and 152 W of H100, 100 % of them "utilized"."""
    assert 100 < H100.watts(H100.waiting) < 152


def test_a_node_at_gpt_3s_mfu_is_nearer_to_the_measured_one_than_its_rating() -> None:
    """54 % of peak in bf16 where 56 % is all that the power limit leaves: 8.2 kW; measured 7.75 on heavy work."""
    node = 8 * (float(H100.watts(0.54 / (0.803 * 0.70))) + H100.node_watts_per_gpu)
    assert node == pytest.approx(8200, abs=10)
    assert abs(node / 7750 - 1) < 0.114 < abs(10_200 / 7750 - 1)  # what arXiv:2506.14551's model by FLOP has


def test_the_curve_is_the_sum_of_its_ranks() -> None:
    rng = np.random.default_rng(0)
    draw = DevicePower(idle=50, full=450, node=1000, gpus=4)
    rank, start = rng.integers(0, 5, 200), rng.integers(0, 90, 200) / 8
    end = start + rng.integers(1, 16, 200) / 8
    share = rng.random(200)
    weights = {0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0, 4: 7.0, 5: 2.0}  # rank 5 does nothing
    curve = power_curve(draw, rank, start, end, share, weights, step=16.0)
    for begin, until, watts in zip(curve.instants[:-1], curve.instants[1:], curve.watts, strict=True):
        on = (start <= begin) & (end >= until)
        busy = [min(1.0, share[on & (rank == each)].sum()) for each in weights]
        total = 16 * 250 + sum(weight * (50 + 400 * u) for weight, u in zip(weights.values(), busy, strict=True))
        assert watts == pytest.approx(total)
    assert curve.instants[0] == 0
    assert curve.instants[-1] == 16
    assert curve.joules == pytest.approx(curve.mean * 16)


def test_what_is_shorter_than_the_window_swings_less() -> None:
    """A square wave of 1 s between 0 and 100 W: a window of half a period has all, of a whole one nothing."""
    wave = PowerCurve(np.arange(0, 5.01, 0.5), np.array([100.0, 0.0] * 5))
    assert [wave.peak_to_peak(window) for window in (0.0, 0.5)] == [100, 100]
    assert wave.peak_to_peak(0.75) == pytest.approx(100 / 3)
    assert wave.peak_to_peak(1.0) == pytest.approx(0, abs=1e-9)
    assert wave.peak_to_peak(99) == 0


@pytest.fixture(scope="module")
def result() -> Result:
    """A small step on H100."""
    return simulate_scenario(load("tiny_dp"))


def test_a_played_step_draws_between_idle_and_full(result: Result) -> None:
    curve = simulated_step_power(result, H100)
    assert curve.instants[-1] == pytest.approx(result.step_time)
    node = 4 * H100.node_watts_per_gpu
    assert curve.watts.min() >= 4 * H100.idle + node
    assert curve.watts.max() <= 4 * H100.full + node
    low = 4 * float(H100.watts(result.hfu / (0.803 * 0.70))) + node  # if only products drew
    assert low <= curve.mean <= low + 4 * float(H100.watts(H100.communication)) - 4 * H100.idle


def test_power_is_by_fate(result: Result) -> None:
    step = simulated_step_power(result, H100).mean
    drawn = {fate: category_watts(fate, H100, step, 4) for fate in ("productive", "lost", "detection", "restart")}
    assert drawn["productive"] == drawn["lost"] == step
    assert drawn["restart"] == pytest.approx(4 * (70 + 350))
    assert drawn["detection"] == pytest.approx(4 * (70 + 0.09 * 630 + 350))
