"""Numbers that a course on distributed training works out, of runs, memory and steps; those of one package stand there.

Each to as many digits as it was printed with.  Notebooks 02 and 08 show them with the calls that give them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import simcluster
from simcluster.longrun import closed_forms as known
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.failure_catalogue import published_failures
from simcluster.longrun.long_run import FailureMode, LongRun, RestartPhase
from simcluster.longrun.simulation import simulate_runs
from simcluster.model.layers import parameters
from simcluster.model.recipes import recipe_named, state_bytes
from simcluster.scenario.run_times import FixedTime
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective_loads import busiest_links_of_collective
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs
from simcluster.topology import parse_topology

HOUR, DAY = 3600.0, 86400.0
LLAMA3 = next(each for each in published_failures() if each.name == "llama3")


def mu(gpus: int) -> float:
    """Seconds between failures of so many GPUs, as often as Llama 3's."""
    return 1 / LLAMA3.job_failure_rate(gpus)


def goodput(work: float, checkpoint: float, restart: float, between: float) -> float:
    """(T/M) e^(-R/M) / (e^((T+C)/M) - 1): it may fail in restarts, too."""
    return known.kept_share(work, checkpoint, restart, 0.0, 1 / between)


# --- checkpoints and failures -----------------------------------------------------------------------------------------

ONE_LEVEL = [
    # checkpoint, between failures, restart (s); Young, Daly, exact; goodput at the exact one, at Young's
    (60, 10800, 600, (1138.4, 1098.8, 1098.8), (0.84972, 0.84966)),
    (30, 11135, 300, (817.4, 797.5, 797.5), (0.90370, 0.90368)),
    (300, 3600, 600, (1469.7, 1276.5, 1276.9), (0.54624, 0.54430)),
]


@pytest.mark.parametrize(("checkpoint", "between", "restart", "intervals", "kept"), ONE_LEVEL)
def test_best_intervals(
    checkpoint: float, between: float, restart: float, intervals: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    forms = known.young_interval, known.daly_interval, known.best_interval
    assert [form(checkpoint, between) for form in forms] == pytest.approx(intervals, abs=0.051)
    at = known.best_interval(checkpoint, between), known.young_interval(checkpoint, between)
    assert [goodput(work, checkpoint, restart, between) for work in at] == pytest.approx(kept, abs=5.1e-6)


@pytest.mark.parametrize(("checkpoint", "between", "restart", "played"), [(*row[:3], row[4][0]) for row in ONE_LEVEL])
def test_best_intervals_as_played(checkpoint: float, between: float, restart: float, played: float) -> None:
    """50 runs of 100 days: the goodput to 4 standard errors, and the share of checkpoints that goes with it."""
    work = known.best_interval(checkpoint, between)
    takes = FixedTime(seconds=f"{restart} s")
    run = LongRun(
        CheckpointPattern(work / 64, 64, SnapshotCost(float(checkpoint))),
        (FailureMode("gpu", "stop", 1 / between),),
        until=100 * DAY,
        restart=(RestartPhase("restart", takes, takes, exposed=True),),
    )
    outcomes = simulate_runs(run, 1, 50)
    kept = outcomes.steps * run.pattern.step / outcomes.wall
    error = float(kept.std(ddof=1)) / math.sqrt(len(kept))
    assert abs(kept.mean() - played) < 4 * error < 0.005 * played
    saved = outcomes.seconds_by_category()["checkpoint"] / outcomes.wall
    assert float(np.mean(saved)) == pytest.approx(played * checkpoint / work, rel=0.005)  # 4.640 % in the first case


def test_lost_by_steps_between_checkpoints() -> None:
    """60 s after every K steps of 13.71 s, a failure in 3 h: least at K = 83."""
    lost = [1 - known.first_order_efficiency(13.71 * k, 60.0, 0.0, 3 * HOUR) for k in (10, 50, 83, 100, 200)]
    assert lost == pytest.approx([0.4440, 0.1193, 0.1054, 0.1072, 0.1488], abs=5.1e-5)
    assert known.young_interval(60.0, 3 * HOUR) / 13.71 == pytest.approx(83.04, abs=5.1e-3)


def test_failures_of_jobs_of_many_sizes() -> None:
    """419 failures of 16,384 GPUs in 54 days: one in 50,677 GPU-hours."""
    assert mu(1) / HOUR == pytest.approx(50_677, abs=0.5)
    found = [mu(gpus) / HOUR for gpus in (64, 1024, 8192, 16384, 131072)]
    assert found == pytest.approx([791.8, 49.49, 6.186, 3.093, 0.3866], rel=2e-4)
    assert DAY / mu(16384) == pytest.approx(7.76, abs=5e-3)


@pytest.mark.parametrize(
    ("checkpoint", "gpus", "interval", "kept"),
    [
        (17.5, 256, 4982.6, 0.99259),  # 175B, 1.75 TB to 100 GB/s
        (0.285, 256, 637.0, 0.99869),  # to the hosts: 6.836 GB a GPU over PCIe
        (5.67 / 2, 16384, 249.4, 0.95162),  # 405B, 5.67 TB to 2 TB/s
        (56.7, 16384, 1086.0, 0.87846),  # to 100 GB/s
        (5.67 / 2, 131072, None, 0.75575),
    ],
)
def test_checkpoints_of_large_models(checkpoint: float, gpus: int, interval: float | None, kept: float) -> None:
    """With restarts of 300 s."""
    best = known.best_interval(checkpoint, mu(gpus))
    assert interval is None or best == pytest.approx(interval, rel=5e-4)
    assert goodput(best, checkpoint, 300.0, mu(gpus)) == pytest.approx(kept, abs=5.1e-6)


def test_more_machines_down_than_spares() -> None:
    """At 7.76 failures a day, repaired in 4 h or in 24 h."""
    short = [known.shortage_probability(spares, 7.76 * 4 / 24) for spares in (0, 1, 2, 4)]
    assert short == pytest.approx([0.7256, 0.3708, 0.1414, 0.0104], abs=5.1e-5)
    long = [known.shortage_probability(spares, 7.76) for spares in (8, 16)]
    assert long == pytest.approx([0.3740, 0.0028], abs=5.1e-5)


@pytest.mark.parametrize(("recipe", "saved"), [("bf16-12", (70, 700, 1750, 4050)), ("mixed-16", (98, 980, 2450, 5670))])
def test_gigabytes_of_a_checkpoint(recipe: str, saved: tuple[float, ...]) -> None:
    """Weights and the optimizer's state of 7, 70, 175 and 405B: 10 B a parameter, 14 B with a master copy."""
    held = [state_bytes(billions * 1e9, recipe_named(recipe)) for billions in (7, 70, 175, 405)]
    assert [(each.parameters + each.optimizer) / 1e9 for each in held] == pytest.approx(saved)


def test_gpt3_on_64_a100_for_a_year() -> None:
    """300 B tokens: 2,288,819 steps, 362.7 days of them; 174.6 B parameters of 10 B are saved in 17.46 s.

    Of 175 B it would be 17.5 s, and 9,977 s the best interval; 11 failures are expected, and 99.64 % is productive.
    """
    run: dict[str, Any] = {
        "tokens": "300B", "failures": "llama3", "price": 2, "achievable_mfu": "50%", "played": 10,
        "checkpoint": {"every": "auto", "to": "100 GB/s", "bytes_per_parameter": 10},
        "restart": [{"part": "restart", "takes": "3 min"}],
    }  # fmt: skip
    found = simcluster.train(simcluster.scenario("gpt3_175b_64xa100", {"run": run}))
    assert found.scenario.tokens_per_step == 131_072
    assert found.run.goal == 2_288_819
    assert found.run.goal * found.step.step_time / DAY == pytest.approx(362.7, abs=0.05)
    forms = found.expected.set_index("closed_form")["value"]
    assert forms["best interval, exact"] == pytest.approx(9977 * math.sqrt(17.46 / 17.5), rel=5e-4)
    assert forms["failures, rate x wall"] == pytest.approx(364.4 * 24 / 791.8, rel=2e-3)
    assert forms["goodput, exact"] == pytest.approx(0.9964, abs=2e-4)
    assert found.days == pytest.approx(363.9, abs=0.4)
    assert found.dollars == pytest.approx(1.120e6, rel=2e-3)
    assert found.effective_mfu == pytest.approx(0.507, abs=1e-3)
    assert found.price_of_mfu is not None
    assert found.price_of_mfu.lost == 0


# --- steps ------------------------------------------------------------------------------------------------------------


def test_tokens_of_a_step() -> None:
    assert [simcluster.scenario(name).tokens_per_step for name in ("gpt3_175b_64xa100", "tiny_dp")] == [131_072, 32_768]


def test_stalls_for_data_and_a_checkpoint() -> None:
    """5 ms and 20 ms in each step of the tiny job: 40.946 ms."""
    causes = {"data_loading": "5 ms", "checkpoint": "20 ms"}
    stalls = [{"kind": "host_stall", "cause": cause, "seconds": time} for cause, time in causes.items()]
    assert simulate(simcluster.scenario("tiny_dp", {"faults": stalls})).step_time == pytest.approx(
        40.946e-3, abs=5.1e-7
    )


def test_what_a_pipeline_is_worth() -> None:
    """Two stages of 340 ms a microbatch, eight of them: 3.10 s against 5.44 s of one stage that has all layers."""
    half = Costs(forward=0.1, backward=0.2, tensor_parallel=0.01, collectives=2, send=0.005)
    whole = Costs(forward=0.2, backward=0.4, tensor_parallel=0.01, collectives=4)
    two, one = (simulate_costs(costs, stages=stages, microbatches=8, tp=4) for costs, stages in ((half, 2), (whole, 1)))
    assert two.step_time == pytest.approx(3.10)
    assert one.step_time / two.step_time == pytest.approx(1.755, abs=5e-4)


@pytest.mark.parametrize(("microbatches", "bubble"), [(32, 7 / 39), (133, 0.05), (134, 7 / 141)])
def test_a_bubble_of_eight_stages(microbatches: int, bubble: float) -> None:
    """Below 5 % needs 134: 133 is 5 % exactly."""
    run = simulate_costs(Costs(forward=1.0, backward=2.0), stages=8, microbatches=microbatches)
    assert run.times.bubble_fraction == pytest.approx(bubble, rel=1e-9)


def test_zero_3_sends_half_as_much_again() -> None:
    """10 B parameters in fp16 on 64 GPUs: 59.06 GB a GPU by two gathers and a reduce-scatter, 39.375 GB by one
    all-reduce."""
    link = {"line_rate": "50 GB/s", "source": "ideal"}
    document = {"kind": "flat", "device": "h100", "gpus": 64, "link": link, "path_latency": "0 s"}
    network = parse_topology(document).build()
    gathered, reduced, both = (
        busiest_links_of_collective(network, [range(64)], kind, 20e9).load / 1e9
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    )
    assert both == pytest.approx(39.375) == pytest.approx(gathered + reduced)
    assert 2 * gathered + reduced == pytest.approx(59.0625)


def test_gpus_hold_as_many_models_as_there_are_replicas() -> None:
    """A GPU stores 1/(tp pp) of the model, not 1/(tp dp)."""
    found = simulate(simcluster.scenario("slow_gpu", {"faults": []}))
    grid = found.scenario.parallel
    held = sum(found.memory_of(rank).parameters for rank in range(found.scenario.gpus)) / 2
    assert (grid.tp, grid.pp, found.scenario.dp) == (4, 4, 2)
    assert held / parameters(found.scenario.model).total == pytest.approx(2, rel=1e-3)
