"""RL steps: engines against a simulation token by token, closed forms of steps, weights on links, bad input."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcluster import InputError
from simcluster.cli import main
from simcluster.devices.device import load_device
from simcluster.longrun.studies.cluster_states import simulate_validation
from simcluster.model.layers import parameters
from simcluster.rl.pipeline import RlPipeline, RlStages
from simcluster.rl.rollouts import EngineCost, Sample, engine_cost, sum_step_times
from simcluster.rl.spec import RlDocument, load_rl
from simcluster.rl.step import RlResult, simulate_rl, sweep_splits
from simcluster.scenario.scenario import load

ROOT = Path(__file__).parent.parent
TRAINER: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 8},
    "model": {"layers": 2, "hidden_size": 512, "heads": 8, "kv_heads": 4, "vocab_size": 4096, "sequence_length": 1024,
              "gated_mlp": True, "ffn_hidden_size": 1024},
    "training": {"global_batch": 8, "micro_batch": 1},
}  # fmt: skip
ROLLOUT: dict[str, Any] = {
    "gpus": 4, "prompts": 8, "samples": 4, "prompt_tokens": 100, "response": 200, "concurrency": 4,
    "decode": {"kind": "rates", "tokens_per_s": [[1, 100], [4, 200]], "prefill_tokens_per_s": 10_000},
}  # fmt: skip


def make(tmp_path: Path, scenario: dict[str, Any] | None = None, **changes: Any) -> RlDocument:
    (tmp_path / "trainer.yaml").write_text(json.dumps(TRAINER | (scenario or {})))
    rollout = ROLLOUT | changes.pop("rollout", {})
    document = {"trainer": "trainer.yaml", "rollout": rollout, "steps": 6} | changes
    (tmp_path / "rl.yaml").write_text(json.dumps(document))
    return load_rl(tmp_path / "rl.yaml")


def simulated(tmp_path: Path, scenario: dict[str, Any] | None = None, **changes: Any) -> RlResult:
    return simulate_rl(make(tmp_path, scenario, **changes))


# --- engines ----------------------------------------------------------------------------------------------------------


def token_by_token(cost: EngineCost, engines: int, slots: int, samples: Sequence[Sample]) -> list[float]:
    """Return when each sample ends: every decode step of every engine one by one, samples from one queue."""
    queue, ends = list(samples), {}
    running: list[list[list[Any]]] = [[] for _ in range(engines)]
    clock, known = [0.0] * engines, [set[int]() for _ in range(engines)]

    def take(place: int) -> None:
        sample = queue.pop(0)
        running[place].append([sample, 0])
        if sample.prompt not in known[place]:
            known[place].add(sample.prompt)
            clock[place] += cost.prefill_seconds * sample.prompt_tokens

    while queue and any(len(each) < slots for each in running):
        take(min(range(engines), key=lambda place: (len(running[place]), place)))
    while any(running):
        place = min(
            (place for place in range(engines) if running[place]), key=lambda each: step_end(cost, clock, running, each)
        )
        clock[place] = step_end(cost, clock, running, place)
        for entry in running[place]:
            entry[1] += 1
        for entry in [entry for entry in running[place] if entry[1] == entry[0].tokens]:
            running[place].remove(entry)
            ends[id(entry[0])] = clock[place]
        while queue and len(running[place]) < slots:
            take(place)
    return [ends[id(sample)] for sample in samples]


def step_end(cost: EngineCost, clock: list[float], running: list[list[list[Any]]], place: int) -> float:
    held: float = sum(each * min(window, sample.prompt_tokens + made) for window, each in cost.cache_bytes.items()
               for sample, made in running[place])  # fmt: skip
    count = len(running[place])
    return clock[place] + max(cost.fixed_seconds(count) + cost.byte_seconds * held, cost.sequence_seconds * count)


@pytest.mark.parametrize("seed", range(20))
def test_engines_equal_a_simulation_token_by_token(seed: int) -> None:
    draw = np.random.default_rng(seed)
    engines, slots, window = (int(draw.integers(1, most)) for most in (4, 6, 60))
    cost = EngineCost(lambda n: 1e-3 + 1e-4 * n, float(draw.choice([0.0, 8e-4])), 1e-6, 1e-4,
                      {math.inf: 7.0, float(window): 11.0}, 0.0, "")  # fmt: skip
    samples = [Sample(0, int(place // 3), int(draw.integers(1, 50)), int(draw.integers(1, 70))) for place in range(24)]
    samples = [Sample(0, each.prompt, samples[3 * each.prompt].prompt_tokens, each.tokens) for each in samples]
    line = RlPipeline(RlStages(cost, engines, slots, {"training": 1.0}, 0.0), [samples]).run()
    ends = token_by_token(cost, engines, slots, samples)
    assert line.generated[0] == pytest.approx(max(ends), rel=1e-12)
    busy = sorted(each.history[-1][0] for each in line.engines if each.history)
    assert busy[-1] == pytest.approx(max(ends), rel=1e-12)
    running = sum((after - begin) * count for each in line.engines
                  for (begin, count), (after, _) in zip(each.history, each.history[1:], strict=False))  # fmt: skip
    assert running >= sum(each.tokens for each in samples) * 1e-3  # each token takes 1 ms at least


@pytest.mark.parametrize(("first", "growth", "least"), [(1, 0, 2), (3, 0, 2), (1, 0.3, 2), (3, 0.1, 2), (1, 1e-9, 2)])
def test_sum_of_step_times_is_the_sum(first: float, growth: float, least: float) -> None:
    for steps in (1, 2, 7, 50):
        found = sum(max(first + growth * place, least) for place in range(steps))
        assert sum_step_times(steps, first, growth, least) == pytest.approx(found, rel=1e-12)


def test_roofline_of_one_sequence_reads_weights_and_cache_for_each_token(tmp_path: Path) -> None:
    spec = make(tmp_path, rollout={"decode": {"kind": "roofline", "level": 0.5}}).spec
    scenario = load(tmp_path / "trainer.yaml")
    device, model = scenario.cluster.device, scenario.model
    cost, count = engine_cost(spec, model, device), parameters(model)
    weights = 2 * (count.total - count.token_embedding)  # rows of the table are looked up
    per_token = 2 * 2 * model.layers * model.kv_size  # keys and values in 16 bits
    line = RlPipeline(RlStages(cost, 1, 1, {"training": 1.0}, 0.0), [[Sample(0, 0, 100, 50)]]).run()
    held = sum(per_token * (100 + made) for made in range(50))
    prefill = 100 * 2 * (count.active - count.token_embedding) / (0.5 * device.peak_flops("bf16"))
    assert line.generated[0] == pytest.approx((50 * weights + held) / (0.5 * device.reached_bandwidth) + prefill)


def test_experts_are_read_as_often_as_tokens_visit_them(tmp_path: Path) -> None:
    spec, device = make(tmp_path, rollout={"decode": {"kind": "roofline"}}).spec, load_device("h100")
    moe = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}
    model = load(TRAINER | {"model": TRAINER["model"] | {"moe": moe}}).model
    count, cost = parameters(model), engine_cost(spec, model, device)
    read = [cost.fixed_seconds(n) * device.reached_bandwidth / 2 for n in (1, 2, 10_000)]
    experts = (count.total - count.active) / 0.75
    assert read[0] == pytest.approx(count.active - count.token_embedding)
    assert read[1] == pytest.approx(count.total - count.token_embedding - experts * 0.75**2)
    assert read[2] == pytest.approx(count.total - count.token_embedding)


# --- steps ------------------------------------------------------------------------------------------------------------


def test_equal_lengths_take_waves_and_a_step_is_the_sum_of_its_phases(tmp_path: Path) -> None:
    """32 samples in 16 slots are two waves of 200 tokens at 50 tokens/s each.

    The first wave deals each engine a sample of 4 prompts, the second gives it the 4 samples of one.
    """
    found = simulated(tmp_path, reward={"seconds": "500 ms"})
    phases = found.phases
    assert phases["rollouts"] == pytest.approx(2 * 200 * 4 / 200 + (4 + 1) * 100 / 10_000)
    assert phases["reward"] == pytest.approx(0.5)
    assert found.step_time == pytest.approx(sum(phases.values()), rel=1e-9)
    assert found.rollouts["tail"] == pytest.approx(0, abs=1e-9)
    assert found.trainer["rollouts"] == pytest.approx(phases["rollouts"])
    assert found.trainer["reward"] == found.rollouts["reward"] == pytest.approx(0.5)
    assert found.tokens == 32 * 200


@pytest.mark.parametrize("steps_off", [1, 2, 3])
@pytest.mark.parametrize("updates", [1, 8000])
def test_steps_off_policy_take_as_long_as_the_slower_pool(tmp_path: Path, steps_off: int, updates: int) -> None:
    found = simulated(tmp_path, steps_off=steps_off, updates=updates)
    rollouts = 2 * 200 * 4 / 200 + 5 * 100 / 10_000
    training = sum(found.pipeline.stages.phases.values())
    assert (training > rollouts) is (updates > 1)
    assert found.step_time == pytest.approx(max(rollouts, training) + found.phases["weights"], rel=1e-9)
    idle = found.trainer["rollouts"] if updates == 1 else found.rollouts["trainer"]
    assert idle == pytest.approx(abs(rollouts - training), rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{}, {"steps_off": 1}, {"steps_off": 2, "in_flight": True}, {"reward": {"seconds": "30 ms", "workers": 3}},
     {"placement": "colocated", "rollout": {"gpus": None}},
     {"placement": "colocated", "rollout": {"gpus": None}, "weights": {"offload": True}}],
)  # fmt: skip
def test_pools_account_for_all_of_a_step(tmp_path: Path, changes: dict[str, Any]) -> None:
    rollout = {"response": {"kind": "lognormal", "median": 120, "sigma": 0.7}} | changes.pop("rollout", {})
    found = simulated(tmp_path, rollout=rollout, **changes)
    for pool in (found.rollouts, found.trainer):
        assert sum(pool.values()) == pytest.approx(found.step_time, rel=1e-9)
        assert min(pool.values()) >= 0
    assert found.trainer["training"] == pytest.approx(sum(found.pipeline.stages.phases.values()), rel=0.2)
    again = simulate_rl(make(tmp_path, rollout=rollout, **changes))
    assert again.pipeline.trained == found.pipeline.trained
    other = simulate_rl(make(tmp_path, rollout=rollout, **changes, seed=1))
    assert other.pipeline.trained != found.pipeline.trained


def test_weights_in_flight_spare_the_tail(tmp_path: Path) -> None:
    rollout = {"response": {"kind": "histogram", "values": [50, 900], "weights": [9, 1]}}
    drained, flying = (
        simulated(tmp_path, rollout=rollout, steps_off=2, in_flight=each, steps=30) for each in (False, True)
    )
    assert flying.rollouts["tail"] < 0.2 * drained.rollouts["tail"]
    assert flying.step_time < drained.step_time
    for found in (drained, flying):  # no batch begins before the weights of batch - 2 training steps are there
        for batch, begun in enumerate(found.pipeline.begun):
            assert batch <= 2 or begun >= found.pipeline.updates[batch - 3][1]


def test_one_long_sample_leaves_all_other_engines_in_its_tail(tmp_path: Path) -> None:
    cost = EngineCost(lambda n: 0.01, 0.0, 0.0, 0.0, {}, 0.0, "")
    lengths = [400, 100, 100, 100]
    batches = [[Sample(step, place, 1, tokens) for place, tokens in enumerate(lengths)] for step in range(3)]
    line = RlPipeline(RlStages(cost, 4, 1, {"training": 1.0}, 0.5), batches).run()
    rollouts, trainer = line.account(line.trained[0], line.trained[-1])
    assert rollouts == pytest.approx(
        {"generating": 2 * 1.75, "tail": 2 * 2.25, "weights": 1.0, "reward": 0.0, "trainer": 2.0}
    )
    assert trainer == pytest.approx({"training": 2.0, "rollouts": 8.0, "reward": 0.0, "weights": 1.0})


@pytest.mark.parametrize("seed", range(40))
def test_steps_keep_their_order_whatever_the_stages_take(seed: int) -> None:
    draw = np.random.default_rng(seed)
    engines, slots, steps_off, count = (int(draw.integers(*each)) for each in ((1, 5), (1, 6), (0, 4), (1, 20)))
    flying = bool(steps_off and draw.integers(2))
    cost = EngineCost(lambda n: 0.01 + 0.001 * n, 0.0, 1e-4, 0.01, {math.inf: 1.0, 9.0: 2.0}, 0.0, "")
    lengths = np.rint(draw.lognormal(2.5, 0.8, (6 + steps_off, count))).astype(int) + 1
    batches = [[Sample(step, place // 2, 3, tokens) for place, tokens in enumerate(row)]
               for step, row in enumerate(lengths.tolist())]  # fmt: skip
    times = draw.exponential([0.3, 0.5, 0.1, 0.02])
    stages = RlStages(cost, engines, slots, {"old log-probs": times[0], "training": times[1]}, times[2],
                      times[3], int(draw.integers(1, 4)), steps_off, flying)  # fmt: skip
    line = RlPipeline(stages, batches).run()
    assert len(line.trained) == 6
    training = [(line.phases[place][1], line.phases[place + 1][2]) for place in range(0, 12, 2)]
    for batch, (begin, end) in enumerate(training):
        assert line.begun[batch] < line.generated[batch] < line.scored[batch] <= begin
        assert end == line.trained[batch] == pytest.approx(begin + times[0] + times[1])
        if batch:
            assert line.updates[batch - 1][0] >= training[batch - 1][1]
            assert begin >= line.updates[batch - 1][1]
        if batch > steps_off:
            assert line.begun[batch] >= line.updates[batch - steps_off - 1][1]
    made = sum(len(batch) for batch in batches[: len(line.begun)])
    for engine in line.engines:
        assert 0 <= min(n for _, n in engine.history) <= max(n for _, n in engine.history) <= slots
        assert [time for time, _ in engine.history] == sorted(time for time, _ in engine.history)
        for begin, end in line.updates:
            during = [n for (at, n), (until, _) in zip(engine.history, engine.history[1:], strict=False)
                      if at < end and until > begin and until > at]  # fmt: skip
            assert not any(during)
    assert sum(max(engine.history[-1][1], 0) for engine in line.engines) <= made
    for pool in line.account(line.trained[steps_off], line.trained[-1]):
        assert sum(pool.values()) == pytest.approx(line.trained[-1] - line.trained[steps_off])
        assert min(pool.values()) >= -1e-12
    with_more = RlPipeline(stages, [*batches, [Sample(len(batches), 0, 3, 5)]]).run()
    assert with_more.trained[:6] == line.trained  # what comes later changes nothing


@pytest.mark.parametrize("seed", range(5))
def test_order_of_samples_does_not_matter_if_all_run_at_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    cost = EngineCost(lambda n: 1e-3 * n, 0.0, 1e-7, 0.0, {math.inf: 5.0, 20.0: 3.0}, 0.0, "")
    lengths = draw.integers(1, 100, 12)
    ends = {RlPipeline(RlStages(cost, 1, 12, {"training": 1.0}, 0.0),
                     [[Sample(0, place, 10, int(tokens)) for place, tokens in enumerate(draw.permutation(lengths))]])
            .run().generated[0] for _ in range(4)}  # fmt: skip
    assert max(ends) == pytest.approx(min(ends), rel=1e-12)


def test_scores_wait_for_a_free_worker(tmp_path: Path) -> None:
    cost = EngineCost(lambda n: 0.01, 0.0, 0.0, 0.0, {}, 0.0, "")
    batch = [Sample(0, place, 1, 100) for place in range(5)]
    stages = RlStages(cost, 1, 5, {"training": 1.0}, 0.0, reward=2.0, workers=2)
    assert RlPipeline(stages, [batch]).run().scored[0] == pytest.approx(1.0 + 3 * 2.0)


# --- trainer and weights ----------------------------------------------------------------------------------------------


def test_trainer_is_the_simulated_scenario_with_the_samples_as_its_batch(tmp_path: Path) -> None:
    """32 samples of 300 tokens fill 11 sequences of 1,024: 12 on 4 ranks; padded, 32."""
    packed, padded = simulated(tmp_path), simulated(tmp_path, packing="pad", log_probs=["reference"])
    halves = simulated(tmp_path, packing="pad", updates=2, log_probs=[])
    assert [each.scenario.training.global_batch for each in (packed, padded, halves)] == [12, 32, 16]
    assert packed.scenario.gpus == 4
    for found in (packed, padded):
        (forward,) = (seconds for name, seconds in found.phases.items() if "log-probs" in name)
        assert forward == simulate_validation(found.scenario).step_time
        assert found.phases["training"] == found.training.step_time > 2 * forward
    assert halves.phases["training"] == 2 * halves.training.step_time
    assert not [name for name in halves.phases if "log-probs" in name]


def test_weights_travel_over_the_links(tmp_path: Path) -> None:
    size, rate = 2.0 * parameters(load(TRAINER).model).total, float(load(TRAINER).cluster.built.capacity[0])
    send, broadcast = (simulated(tmp_path, weights={"method": name}) for name in ("send", "broadcast"))
    assert send.phases["weights"] == pytest.approx(size / rate, rel=0.15)  # each of 4 ranks feeds one engine
    assert size / rate <= broadcast.phases["weights"] <= 1.5 * size / rate
    half = simulated(tmp_path, weights={"method": "send", "precision": "fp8"}, rollout={"gpus_per_engine": 2})
    assert half.phases["weights"] == pytest.approx(size / 2 / 2 / rate, rel=0.15)
    crowd = simulated(tmp_path, weights={"method": "send"}, rollout={"gpus": 6})  # two ranks feed six engines
    assert crowd.phases["weights"] == pytest.approx(3 * size / rate, rel=0.15)


def test_colocated_weights_travel_only_where_ranks_do_not_hold_them(tmp_path: Path) -> None:
    def update(trainer: dict[str, Any], gpus_per_engine: int, method: str) -> float:
        rollout = {"gpus": None, "gpus_per_engine": gpus_per_engine}
        return simulated(tmp_path, trainer, placement="colocated", rollout=rollout, weights={"method": method}).phases[
            "weights"
        ]

    assert update({}, 2, "send") == update({}, 2, "broadcast") == 0  # replicas hold all
    assert update({"parallel": {"tp": 2}}, 2, "send") == 0  # the same shards
    assert 0 < update({"parallel": {"tp": 2}}, 1, "send") <= update({"parallel": {"tp": 4}}, 1, "send")
    assert 0 < update({"parallel": {"tp": 2}}, 1, "broadcast") <= update({"parallel": {"zero": 3}}, 1, "broadcast")


def test_offloaded_state_is_copied_before_and_after_training(tmp_path: Path) -> None:
    plain, copied = (simulated(tmp_path, placement="colocated", rollout={"gpus": None}, weights={"offload": each})
                     for each in (False, True))  # fmt: skip
    assert copied.phases["onload"] == copied.phases["offload"] > 0
    assert copied.step_time == pytest.approx(plain.step_time + 2 * copied.phases["onload"], rel=1e-6)


def test_too_large_a_cache_is_named(tmp_path: Path) -> None:
    trainer = {
        "model": TRAINER["model"] | {"sequence_length": 400_000},
        "training": {"global_batch": 8, "micro_batch": 1},
    }
    rollout = {"concurrency": 128, "response": 390_000, "samples": 64, "prompts": 4, "gpus": 2}
    found = simulated(tmp_path, trainer, rollout=rollout, log_probs=[], steps=2)
    assert any("an engine needs" in each for each in found.warnings)


def test_kinds_whose_cache_is_not_counted_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"model": {"preset": "nemotron-h-8b", "sequence_length": 1024}}, steps=2)
    assert main(["rl", str(tmp_path / "rl.yaml")]) == 0
    assert "the cache of mamba2 layers" in capsys.readouterr().out
    make(tmp_path, steps=2)
    assert main(["rl", str(tmp_path / "rl.yaml")]) == 0
    assert "the cache of" not in capsys.readouterr().out


def test_sweep_finds_the_fastest_split(tmp_path: Path) -> None:
    splits = sweep_splits(make(tmp_path, steps_off=1))
    assert list(splits) == [1, 2, 3, 4, 5, 6, 7]
    results = {count: each for count, each in splits.items() if isinstance(each, RlResult)}
    assert all(each.gpus == 8 and each.rollout_gpus == count for count, each in results.items())
    assert results[4].pipeline.trained == simulated(tmp_path, steps_off=1).pipeline.trained
    uneven = sweep_splits(make(tmp_path, {"parallel": {"tp": 2}}, steps_off=1))
    assert [count for count, each in uneven.items() if isinstance(each, InputError)] == [1, 3, 5, 7]


# --- files and commands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": "colocated"}, "rollout.gpus: rollouts use the trainer's GPUs"),
        ({"rollout": {"prompts": 10**9}}, "rollout.prompts: prompts 1,000,000,000 x samples 4 is more than 1,000,000"),
        ({"placement": "colocated", "steps_off": 1, "rollout": {"gpus": None}}, "steps_off: GPUs that take turns"),
        ({"rollout": {"gpus": None}}, "rollout: gpus is missing"),
        ({"rollout": {"gpus": 8}}, "rollout.gpus: 8 GPUs of rollouts and some of the trainer do not fit"),
        ({"rollout": {"gpus_per_engine": 3}}, "rollout.gpus: 4 is not divisible by gpus_per_engine 3"),
        ({"in_flight": True}, "in_flight: no sequence runs"),
        ({"weights": {"offload": True}}, "weights.offload: engines do not share GPUs"),
        ({"steps_off": 5}, "steps: no step is left to report after the first 6"),
        ({"log_probs": ["old", "old"]}, "names a policy twice"),
        ({"rollout": {"max_response": 1000}}, "longer than model.sequence_length 1024"),
        ({"rollout": {"response": 0}}, "rollout.response"),
        ({"rollout": {"decode": {"kind": "rates", "tokens_per_s": [[4, 1], [1, 1]], "prefill_tokens_per_s": 1}}},
         "list them in increasing order"),
        ({"rollout": {"decode": {"kind": "rates", "tokens_per_s": [[4, 0]], "prefill_tokens_per_s": 1}}}, "rate 0"),
        ({"set": {"data": {"documents": {"kind": "lognormal", "median": 40, "sigma": 1}}}}, "exclude the samples"),
        ({"set": {"parallel": {"tp": 8}}}, "its 4 GPUs are not a multiple of tp x pp x cp = 8"),
        ({"set": {"model.causal": False}}, "cannot generate"),
        ({"trainer": "nothing.yaml"}, "nothing.yaml"),
        ({"colour": 1}, "colour"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_message(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        simulated(tmp_path, **changes)
    assert message in str(error.value)


def test_nested_changes_leave_other_keys_of_the_section(tmp_path: Path) -> None:
    found = simulated(tmp_path, {"parallel": {"tp": 4, "zero": 1}}, set={"parallel": {"tp": 2}})
    assert (found.scenario.parallel.tp, found.scenario.parallel.zero, found.scenario.parallel.dp) == (2, 1, 2)


def test_lengths_from_a_file_are_those_of_the_histogram(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("tokens,count\n100,3\n500,1\n")
    read = make(tmp_path, rollout={"response": {"kind": "histogram", "file": "lengths.csv"}})
    told = make(tmp_path, rollout={"response": {"kind": "histogram", "values": [100, 500], "weights": [3, 1]}})
    assert simulate_rl(read).pipeline.trained == simulate_rl(told).pipeline.trained


def test_the_example_answers_with_numbers_tables_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = str(ROOT / "examples" / "rl.yaml")
    assert main(["rl", example, "--json", "-", "--gantt", str(tmp_path / "rl.png"), "--set", "steps=4"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert sum(numbers["rollouts_s"].values()) == pytest.approx(numbers["step_time_s"])
    assert "not measured" in numbers["decode"]
    assert (tmp_path / "rl.png").stat().st_size > 10_000
    assert main(["rl", example, "--sweep", "--set", "steps=4"]) == 0
    text = capsys.readouterr().out
    assert text.count("best") == 1
    for word in ("generating", "idle: waiting for rollouts", "roofline of h100", "weights"):
        assert word in text
