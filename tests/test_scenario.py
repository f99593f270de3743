"""Scenarios: what a file says in full, rules between its sections, and that any file is a scenario or an InputError."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import nearest_divisors, nearest_multiples
from simcluster.faults import SlowGpu, SlowLink
from simcluster.model.transformer import Model
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario import scenario_fields
from simcluster.scenario.scenario import Scenario, from_document, load, load_text
from simcluster.scenario.sections import LONG_NAMES
from simcluster.step.simulate import simulate
from simcluster.topology.machines import DgxSpec
from simcluster.topology.textbook_networks import FlatSpec

# the scenario of the contract
EXAMPLE = """
name: GPT-3 175B, 64 A100, selective recompute
cluster: {topology: dgx_a100, nodes: 8}
gpus: 64
model:
  preset: gpt3-175b
  layers: 96
  hidden_size: 12288
  heads: 96
  kv_heads: 96
  ffn_hidden_size: 49152
  vocab_size: 51200
  sequence_length: 2048
  gated_mlp: false
  tied_embeddings: true
parallel: {tp: 8, pp: 8, dp: 1, cp: 1, ep: 1, sequence_parallel: true, zero: 0, order: [tp, cp, dp, pp]}
pipeline: {schedule: interleaved, chunks: 3}
training: {global_batch: 64, micro_batch: 1, precision: fp16-mixed, recompute: selective, optimizer: adam}
overlap: {grad_reduce: false, param_gather: false, tensor: false, pipeline: true}
collectives: {all_reduce: ring}
faults: [{kind: slow_gpu, rank: 5, factor: 1.2}, {kind: slow_link, between: [node0.gpu0, node0.nic0], factor: 0.5}]
steps: 1
seed: 0
measured: {step_time: "13.75 s", source: "arXiv:2205.05198 table 5"}
"""

SMALL = """
cluster: {topology: dgx_a100, nodes: 2}
model: {layers: 8, hidden_size: 1024, heads: 16, vocab_size: 50304, sequence_length: 1024}
training: {global_batch: 48}
"""


def test_the_example_of_the_contract() -> None:
    scenario = load_text(EXAMPLE)
    assert (scenario.gpus, scenario.dp, scenario.microbatches) == (64, 1, 64)
    assert scenario.tokens_per_step == 64 * 2048
    assert isinstance(scenario.cluster.topology, DgxSpec)
    assert scenario.cluster.topology.nodes == 8
    assert len(scenario.cluster.built.gpus) == 64
    assert scenario.model.name == "gpt3-175b"
    assert scenario.measured is not None
    assert scenario.measured.step_time == 13.75
    assert scenario.faults == (
        SlowGpu(kind="slow_gpu", rank=5, factor=1.2),
        SlowLink(kind="slow_link", between=("node0.gpu0", "node0.nic0"), factor=0.5),
    )


def test_defaults_are_filled_in() -> None:
    scenario = load_text(SMALL)
    assert (scenario.gpus, scenario.dp, scenario.microbatches) == (16, 16, 3)
    assert scenario.document()["gpus"] == 16
    assert scenario.document()["parallel"]["dp"] == 16
    assert (scenario.pipeline.schedule, scenario.pipeline.chunks) == ("1f1b", 1)


# --- invariants -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [EXAMPLE, SMALL], ids=["example", "small"])
def test_the_document_reads_back_as_the_same_scenario(text: str) -> None:
    scenario = load_text(text)
    dumped = json.dumps(scenario.document())
    again = load_text(dumped)  # JSON is YAML
    assert again == scenario
    assert json.dumps(again.document()) == dumped
    assert from_document(scenario.document()) == scenario


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    chunks=st.sampled_from([1, 2]),
    per_replica=st.integers(1, 16),
    order=st.permutations(["tp", "cp", "dp", "pp"]),
)
@settings(deadline=None, max_examples=40)
def test_what_is_accepted_can_be_planned(tp: int, pp: int, chunks: int, per_replica: int, order: list[str]) -> None:
    changes: dict[str, Any] = {"parallel": {"tp": tp, "pp": pp, "order": order}, "cluster.nodes": 4}
    changes["training.global_batch"] = 32 // (tp * pp) * per_replica if 32 % (tp * pp) == 0 else per_replica
    if chunks > 1:
        changes["pipeline"] = {"schedule": "interleaved", "chunks": chunks}
    try:
        scenario = load_text(SMALL, changes)
    except InputError as error:
        assert chunks > 1  # the only rule that these numbers can break
        assert "pp" in str(error)  # noqa: PT017
        return
    parallel = scenario.parallel
    plan = ParallelPlan(tp=parallel.tp, cp=parallel.cp, dp=parallel.dp, pp=parallel.pp, order=parallel.order)
    assert plan.num_ranks == scenario.gpus == 32
    assert scenario.microbatches * scenario.dp * scenario.training.micro_batch == scenario.training.global_batch
    assert scenario.microbatches == per_replica


JUNK = st.sampled_from(
    [None, True, -1, 0, 3, 1.5, float("nan"), 10**30, "", "8", "ring", "3 GB", [], [1, "a"], {}, {"kind": 1}]
)
PATHS = st.sampled_from(
    [
        "name", "cluster", "cluster.topology", "cluster.nodes", "cluster.nic", "cluster.nic.line_rate",
        "cluster.fabric", "cluster.device", "cluster.gpus_per_node", "gpus", "model", "model.preset",
        "model.layers", "model.heads", "model.moe", "parallel", "parallel.tp", "parallel.dp", "parallel.order",
        "parallel.zero", "pipeline",
        "pipeline.schedule", "pipeline.chunks", "training", "training.global_batch", "training.precision", "overlap",
        "overlap.bucket_size", "collectives", "collectives.detail", "faults", "faults.0", "faults.0.kind",
        "faults.0.rank", "faults.0.factor", "faults.1.between", "steps", "seed", "measured",
        "measured.step_time", "x.y",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(PATHS, JUNK), min_size=1, max_size=3))
@settings(deadline=None, max_examples=300)
def test_junk_anywhere_is_a_scenario_or_an_input_error(changes: list[tuple[str, Any]]) -> None:
    try:
        scenario = load_text(EXAMPLE, changes)
    except InputError as error:
        assert len(str(error)) > 20  # noqa: PT017
    else:
        assert from_document(scenario.document()) == scenario


# --- references -----------------------------------------------------------------------------------------------------


def test_topology_by_path_is_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.yaml").write_text(
        'kind: flat\ndevice: h100\ngpus: 4\nlink: {line_rate: "50 GB/s"}\npath_latency: "5 us"\n'
    )
    path = tmp_path / "run.yaml"
    path.write_text(SMALL.replace("dgx_a100, nodes: 2", "clusters/mine.yaml, link: {efficiency: 0.5}, gpus: 8"))
    scenario = load(path)
    assert scenario.name == "run"  # the file's, if it says none
    assert scenario.gpus == 8
    assert set(scenario.cluster.built.capacity) == {25e9}  # parameters beside the path win, key by key
    with pytest.raises(InputError, match=r"cluster\.link\.line_rates: unknown key.*did you mean 'line_rate'"):
        load(path, ["cluster.link.line_rates=3 GB/s"])


def test_preset_with_fields_beside_it() -> None:
    scenario = load_text(SMALL, {"model": {"preset": "llama3-8b", "sequence_length": 4096}, "parallel.tp": 8})
    assert (scenario.model.layers, scenario.model.sequence_length) == (32, 4096)


def test_hugging_face_config(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = json.dumps({"preset": "./config.json", "sequence_length": 512})
    (tmp_path / "run.yaml").write_text(SMALL.replace(SMALL.splitlines()[2], f"model: {text}"))
    model = load(tmp_path / "run.yaml").model
    assert isinstance(model, Model)
    assert (model.layers, model.kv_heads, model.ffn_hidden_size, model.sequence_length) == (8, 4, 2816, 512)


@pytest.mark.parametrize(("long", "short"), list(LONG_NAMES.items()))
def test_long_names_of_the_axes(long: str, short: str) -> None:
    size = 1 if short in ("cp", "ep", "etp") else 2
    changes: dict[str, object] = {"parallel.tp": 2, "parallel.pp": 4} if short == "dp" else {}
    if short == "etp":
        changes = {"model.moe": {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 256}}
    assert getattr(load_text(SMALL, {**changes, f"parallel.{long}": size}).parallel, short) == size
    text = SMALL + f"parallel: {{{long}: wrong}}\n"
    with pytest.raises(InputError, match=rf":5:12: parallel\.{long}: must be an integer"):
        load_text(text)


def test_a_schedule_set_alone_leaves_chunks_to_those_that_use_them() -> None:
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 3)):
        assert load_text(EXAMPLE, {"pipeline.schedule": schedule}).pipeline.chunks == chunks
    with pytest.raises(InputError, match=r"2 chunks need schedule interleaved, .* but the schedule is gpipe"):
        load_text(EXAMPLE, ["pipeline.schedule=gpipe", "pipeline.chunks=2"])


def test_inline_topology_and_python_objects() -> None:
    scenario = load_text(EXAMPLE)
    direct = Scenario.model_validate(scenario.document())
    assert direct == scenario
    with pytest.raises(ValidationError, match="they must be equal"):
        Scenario.model_validate({**scenario.document(), "gpus": 32})
    scenario_fields = {name: getattr(scenario, name) for name in Scenario.model_fields}
    assert Scenario(**scenario_fields) == scenario
    with pytest.raises(InputError, match="they must be equal"):
        Scenario(**{**scenario_fields, "gpus": 32})


@pytest.mark.parametrize("overrides", [{}, {"cluster.scale.network": 2}])
def test_a_cluster_is_built_once(overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, simulating and telling of a scenario need one; copies, other factors on its links, and the next scenario
    of its topology share it."""
    scenario_fields._build_cluster.cache_clear()
    built: list[object] = []
    build = FlatSpec.build

    def counted(topology: FlatSpec) -> object:
        built.append(topology)
        return build(topology)

    monkeypatch.setattr(FlatSpec, "build", counted)
    scenario = load("tiny_dp", overrides)
    result = simulate(scenario)
    assert str(result)
    assert result.warnings() == result.to_dict()["warnings"]
    assert scenario.without_faults().cluster.built is scenario.cluster.built
    assert load("tiny_dp", {**overrides, "training.micro_batch": 2}).cluster.unscaled is scenario.cluster.unscaled
    assert len(built) == 1
    assert load("tiny_dp", {**overrides, "cluster.gpus": 8}).cluster.unscaled is not scenario.cluster.unscaled


# --- fixes that are offered, work -----------------------------------------------------------------------------------


@given(number=st.integers(1, 10_000), wanted=st.integers(1, 10_000))
def test_near_divisors_and_multiples(number: int, wanted: int) -> None:
    if number % wanted:
        found = nearest_divisors(number, wanted)
        assert found
        assert all(number % divisor == 0 for divisor in found)
        assert not any(number % other == 0 for other in range(min(found) + 1, wanted))
    if wanted % number:
        multiples = nearest_multiples(number, wanted)
        assert multiples
        assert all(multiple % number == 0 and abs(multiple - wanted) < number for multiple in multiples)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"parallel.tp": 6, "parallel.dp": None, "gpus": 48}, {"parallel.tp": 4, "gpus": 32}),
        ({"gpus": 60, "parallel.dp": None}, {"gpus": 64}),
        ({"parallel.dp": 2}, {"parallel.dp": 1}),
        ({"training.global_batch": 63}, {"training.global_batch": 56}),
        ({"pipeline.chunks": 5}, {"pipeline.chunks": 4}),
        ({"parallel.zero": 0, "overlap.param_gather": True}, {"parallel.zero": 1}),
    ],
)
def test_the_offered_fix_is_accepted(changes: dict[str, Any], fix: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        load_text(EXAMPLE, changes)
    assert str(next(iter(fix.values()))) in re.findall(r"\d+", str(caught.value))
    load_text(EXAMPLE, {**changes, **fix})


def test_rules_are_all_reported_with_their_places() -> None:
    with pytest.raises(InputError) as caught:
        load_text(EXAMPLE, {"pipeline.schedule": "gpip", "training.precision": "fp16-mixed", "faults.0.rank": 64})
    lines = str(caught.value).splitlines()
    assert lines[0] == "<text>: 2 problems"
    assert lines[1].startswith("  override: pipeline.schedule: unknown schedule 'gpip'; did you mean 'gpipe'?")
    assert lines[2].startswith("  override: faults.0.rank: there is no rank 64")


def test_precision_that_the_device_lacks() -> None:
    device = {"base": "a100-80gb", "peak": {"bf16": None}}
    assert load_text(EXAMPLE, {"cluster.device": device}).training.precision == "fp16-mixed"
    with pytest.raises(InputError, match=r"override: training\.precision: .*no peak for precision 'bf16'"):
        load_text(EXAMPLE, {"cluster.device": device, "training.precision": "bf16-mixed"})
