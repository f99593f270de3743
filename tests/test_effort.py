"""What a scenario costs is estimated before it begins: a slip of the finger is refused at once, real ones never are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.base.progress import (
    DEFAULT_ESTIMATE_LIMIT,
    MIN_ANNOUNCED_SECONDS,
    format_rough_duration,
    set_estimate_limit,
)
from simcluster.planning.optimizer import OuterOptimizerStep
from simcluster.scenario.effort_estimate import count_affordable_steps, estimate_simulation_seconds
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.packing_comparison import compare_packing
from simcluster.studies.whatif.free_ops import count_free_steps, what_if_free


def test_no_scenario_that_ships_is_near_the_limit() -> None:
    found = {
        name: estimate_simulation_seconds(load(name)) for name in ("tiny_3d", "llama3_405b_16384xh100", "jitter_8")
    }
    assert all(seconds < MIN_ANNOUNCED_SECONDS for seconds in found.values()), found


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.layers=1000000000", r"model.layers: 1,000,000,000 layers would take about .* days"),
        ("overlap.tensor_pieces=1000000000", r"overlap.tensor_pieces: 1,000,000,000 pieces would take about .* days"),
        ("training.global_batch=16000000", r"training.global_batch: 8,000,000 microbatches would take about .* min"),
        ("steps=100000 training.global_batch=80", r"steps: 100,000 steps would take about .* min"),
        ("model.mtp_layers=1000000000", r"model.mtp_layers: 1,000,000,000 layers of multi-token .* about .* days"),
        (
            "memory.offload.optimizer=stream memory.offload.bucket=1 model.layers=100",
            r"memory.offload.bucket: .* buckets of the offloaded optimizer would take about .* h",
        ),
        (
            "memory.offload.optimizer=host memory.offload.host_update=100GB/s memory.offload.bucket=1 model.layers=100",
            r"memory.offload.bucket: .* buckets of the offloaded optimizer would take about .* h",
        ),
    ],
)
def test_a_slip_of_the_finger_is_refused_at_once(override: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.process_time()
    assert cli.main(["run", "tiny_3d", *override.split()]) == 2
    assert time.process_time() - begun < 2.0
    with pytest.raises(InputError, match=says + r" .*10 min .*: use fewer, or add --yes"):
        load("tiny_3d", override.split())
    assert "use fewer, or add --yes" in capsys.readouterr().err


def test_who_says_so_gets_it() -> None:
    changes = {"steps": 100_000, "training.global_batch": 800}
    with simcluster.no_time_limit():
        scenario = load("tiny_3d", changes)
    assert estimate_simulation_seconds(scenario) > DEFAULT_ESTIMATE_LIMIT
    with pytest.raises(InputError, match="steps"):
        load("tiny_3d", changes)


def test_documents_that_every_rank_has_of_its_own_count_pass_by_pass() -> None:
    """Of 16 ranks: they take 3.0 s, two groups with the same documents 0.9 and one without any 0.2 (measured)."""
    speeds = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.3}}
    lengths = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}}
    alike, shared, apart = (
        estimate_simulation_seconds(load("llama3_70b_16xh100_offload", {"faults": faults}))
        for faults in ([], [lengths], [lengths, speeds])
    )
    assert shared > 10 * alike
    assert apart - alike > 3 * (shared - alike)  # tp 8: the ranks of a group have the same documents


def test_the_estimate_grows_with_every_count(tiny: Tiny) -> None:
    least = estimate_simulation_seconds(tiny(gpus=4, cluster={"topology": "flat", "gpus": 4}, parallel={"dp": 4}))
    jitter = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
    more: list[Scenario] = [
        tiny(gpus=4, cluster={"topology": "flat", "gpus": 4}, parallel={"dp": 4}, **each)
        for each in (
            {"model": {"layers": 64}}, {"steps": 9}, {"engine": "reference"}, {"training": {"global_batch": 64}},
            {"overlap": {"tensor_pieces": 8}}, {"faults": [jitter]},
        )
    ]  # fmt: skip
    assert all(estimate_simulation_seconds(each) > least for each in more)
    told = [format_rough_duration(seconds) for seconds in (2.1, 60.0, 600.0, 9000.0, 1e6)]
    assert told == ["2 s", "1 min", "10 min", "2 h", "12 days"]


def test_what_takes_minutes_says_so_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.cli.terminal.MIN_ANNOUNCED_SECONDS", 1e-9)
    assert cli.main(["run", "tiny_3d"]) == 0
    assert "note: tiny model, tp 2, pp 2, dp 2: this will take about 0 s\n" in capsys.readouterr().err


def test_ranks_that_the_network_makes_different_ask_before_they_begin(tiny: Tiny) -> None:
    """Ranks under two oversubscribed leaves differ: known once lowered, and counted then."""
    fabric = {"nodes_per_unit": 3, "oversubscription": 4.0}
    uneven = {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 2, "fabric": fabric}
    scenario = tiny(gpus=8, cluster=uneven, parallel={"pp": 2, "dp": 4})
    result = simcluster.simulate(scenario)
    unlike = len(result.weights)
    assert unlike > scenario.parallel.pp
    alike, seconds = estimate_simulation_seconds(scenario), estimate_simulation_seconds(scenario, sim_ranks=unlike)
    assert seconds > alike
    with set_estimate_limit((seconds + alike) / 2):
        with pytest.raises(InputError, match=rf"cluster: {unlike} of 8 ranks differ .* use fewer ranks, .* add --yes"):
            simcluster.simulate(scenario)
        with simcluster.no_time_limit():
            assert simcluster.simulate(scenario).step_time == result.step_time


def test_a_report_reads_what_it_compares_with_before_it_plays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "simcluster.interactive.report.command.simulate_variants", lambda _: pytest.fail("it was played")
    )
    assert cli.main(["report", "tiny_3d", "--against", "nothing", "-o", "x.html"]) == 2
    assert "cannot read nothing: there is no such file or folder" in capsys.readouterr().err
    assert cli.main(["report", "tiny_3d", "tiny_dp", "--against", ".", "-o", "x.html"]) == 2
    assert "name only one" in capsys.readouterr().err


def test_faults_that_come_and_go_count_how_often_they_do() -> None:
    """Two links that flap or are loaded every 100 us in a step of 60 s take 4.9 s where one without takes 0.2
    (measured)."""
    name = "llama3_70b_16xh100_offload"
    plain = estimate_simulation_seconds(load(name))
    flap = {"kind": "link_flap", "nic_of": 0, "down": "30 us", "period": "100 us"}
    load_of_others = {"kind": "background_load", "nic_of": 0, "share": 0.5, "period": "100 us", "duty": 0.5}
    spells = {"kind": "background_load", "nic_of": 0, "share": 0.5, "on": "50 us", "off": "50 us"}
    for fault in (flap, load_of_others, spells):
        assert 1.0 < estimate_simulation_seconds(load(name, {"faults": [fault]})) - plain < 25.0
    assert estimate_simulation_seconds(load(name, {"faults": [{**load_of_others, "end": "1 ms"}]})) < plain + 0.01
    with pytest.raises(InputError, match=r"faults that start and end about [\d,]+ times would take about"):
        load(name, {"faults": [{**flap, "down": "1 us", "period": "1.2 us"}], "steps": 20})
    with pytest.raises(InputError, match="must exceed 1 us; set a longer period"):
        load(name, {"faults": [{**flap, "down": "1 ns", "period": "2 ns"}]})


def test_packing_counts_the_sequences_that_it_makes() -> None:
    """A document of 10^9 tokens in sequences of 2,048 takes more than 10 s."""
    with set_estimate_limit(1.0), pytest.raises(InputError, match=r"packing 1 documents takes about"):
        compare_packing([10**9], 2048)


@pytest.mark.parametrize("name", ["tiny_3d", "tiny_dp", "gpt3_175b_64xa100"])
def test_what_is_played_with_parts_free_is_counted_before_it_is_played(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = simcluster.scenario(name)
    played = len(what_if_free(scenario))
    assert abs(count_free_steps(scenario) - played) <= 1
    with set_estimate_limit(4 * estimate_simulation_seconds(scenario)):
        assert cli.main(["run", name]) == 0
        capsys.readouterr()
        assert cli.main(["run", name, "--explain"]) == 2
    assert f"--explain simulates about {count_free_steps(scenario)} more steps" in capsys.readouterr().err
    with (
        set_estimate_limit(4 * estimate_simulation_seconds(scenario)),
        pytest.raises(InputError, match="what_if_free simulates about"),
    ):
        what_if_free(scenario)


def test_what_each_cause_costs_is_counted_before_it_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With four faults `stragglers` simulates about nine steps more; the report does without them and says why."""
    faults = [{"kind": "slow_gpu", "ranks": [rank], "factor": 2} for rank in range(4)]
    scenario = simcluster.scenario("tiny_dp", faults=faults)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(scenario.document()), encoding="utf-8")
    with set_estimate_limit(5 * estimate_simulation_seconds(scenario)):
        assert cli.main(["stragglers", str(file)]) == 2
        assert f"stragglers simulates about {2 * len(faults) + 1} more steps" in capsys.readouterr().err
        with pytest.raises(InputError, match="stragglers simulates about"):
            simcluster.stragglers(scenario)
        page = tmp_path / "r.html"
        assert cli.main(["report", str(file), "-o", str(page)]) == 0
    assert "stragglers simulates about" in page.read_text(encoding="utf-8")


def test_no_more_changes_are_tried_than_may_take_long() -> None:
    """`check` tries fewer changes where each takes long, and `sensitivity` refuses to begin."""
    scenario = simcluster.scenario("tiny_3d")
    each = estimate_simulation_seconds(scenario)
    assert count_affordable_steps(scenario, 24) == 24
    for limit, tried in ((1.5, 0), (4.5, 3)):
        with set_estimate_limit(limit * each):
            assert count_affordable_steps(scenario, 24) == tried
            found = simcluster.check(scenario)
            assert len(found.fastest) <= tried
            with pytest.raises(InputError, match="sensitivity simulates about 4 more steps"):
                simcluster.sensitivity(scenario, ["nvlink", "network"])


def test_steps_of_given_times_are_counted_before_they_are_planned() -> None:
    costs = simcluster.Costs(forward=1.0, backward=2.0)
    with pytest.raises(InputError, match=r"^steps: 100,000,000 steps of 4 microbatches on 2 stages .* --yes"):
        simcluster.simulate_costs(costs, stages=2, microbatches=4, steps=100_000_000)
    with set_estimate_limit(1.0):
        with pytest.raises(InputError, match="with 64 differing ranks each would take about 2 s"):
            simcluster.simulate_costs(costs, stages=8, microbatches=64, steps=3, dp=64, folded=False)
        simcluster.simulate_costs(costs, stages=2, microbatches=4, steps=1000)


def test_prefetch_beyond_the_last_use_costs_no_time() -> None:
    changes = {"parallel": {"dp": 4, "zero": 3}, "overlap": {"grad_reduce": True, "param_gather": True}}
    begun = time.process_time()
    enough, most = (
        simcluster.simulate(load("tiny_dp", {**changes, "fsdp.prefetch": units})) for units in (1000, 10**9)
    )
    assert time.process_time() - begun < 5.0
    assert enough.step_time == most.step_time
    assert enough.simulated_ops == most.simulated_ops
    assert enough.memory_peak == most.memory_peak


def test_muon_takes_no_more_iterations_than_anyone_uses() -> None:
    muon = {"training.optimizer": "muon", "training.muon.iterations": 10**9}
    with pytest.raises(InputError, match=r"training.muon.iterations: must be less than or equal to 100"):
        load("tiny_dp", muon)
    assert load("tiny_dp", {**muon, "training.muon.iterations": 100}).training.muon.iterations == 100


@given(every=st.integers(1, 60), parts=st.integers(1, 60), step=st.integers(0, 200))
def test_parts_of_an_outer_step_are_counted_without_going_through_them(every: int, parts: int, step: int) -> None:
    outer = OuterOptimizerStep(every, 4.0, parts, 0, lambda _: 0.0)
    assert outer.count_due_parts(step) == sum((step + 1 - part * every // parts) % every == 0 for part in range(parts))


def test_an_outer_step_of_many_parts_costs_no_time() -> None:
    outer = {"every": 10**9, "parts": 10**9, "workers": 2}
    begun = time.process_time()
    simcluster.simulate(load("tiny_dp", {"training.outer": outer}))
    assert time.process_time() - begun < 5.0
