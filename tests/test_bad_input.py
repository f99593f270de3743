"""Malformed files: each is one clear message on stderr, exit status 2, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from four_points import missing_points

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.scenario.scenario import load

BAD = Path(__file__).parent / "bad"

# file: words that the message must contain (where, what, and what would work)
SCENARIOS = {
    "binary": ["binary file"],
    "latin1": ["byte 9", "UTF-8"],
    "empty": ["empty"],
    "only_comments": ["only comments"],
    "only_text": ["'just some words'", "mapping"],
    "list_at_top": ["a list", "mapping"],
    "two_documents": [":2:1:", "another document"],
    "tab_indentation": [":5:1:", "spaces, never tabs"],
    "unclosed_bracket": [":8:1:", "not valid YAML"],
    "duplicate_key": [":4:26:", "parallel.tp", ":4:12", "keep one"],
    "python_tag": [":1:7:", "tags", "not supported"],
    "alias_bomb": [":1:4:", "anchors and aliases"],
    "too_deep": ["50 levels"],
    "far_too_deep": ["50 levels"],
    "huge_number": [":6:26:", "not a usable number"],
    "longer_than_anything": ["run.checkpoint.every", "'1e308 s'", "software.gap", "'1e305 h'", "at most 1e+99"],
    "wrong_type": [":4:12:", "parallel.tp", "an integer", "'two'"],
    "yes_is_text": ["overlap.grad_reduce", "true or false", "'yes'"],
    "unknown_key": [":4:19:", "parallel.ppp", "did you mean 'pp'", "known keys: tp, pp"],
    "misspelt_section": [":6:1:", "trainig", "did you mean 'training'"],
    "missing_section": ["model", "required"],
    "no_cluster": ["cluster", "required", "dgx_a100"],
    "unknown_parameter": [":2:31:", "cluster.nods", "did you mean 'nodes'"],
    "missing_unit": [":7:12:", "measured.step_time", "13.75 has no unit", '"13.75 s"'],
    "wrong_unit": ["'13.75 GB'", "seconds"],
    "negative_seed": ["seed", "-1"],
    "no_steps": ["steps", "greater than or equal to 1", "0"],
    "not_a_number": ["faults.0.factor", "finite", "nan"],
    "infinite_factor": ["faults.0.factor", "finite", "inf"],
    "unknown_topology": ["cluster.topology", "'dgx_a1000'", "did you mean 'dgx_a100'"],
    "missing_topology_file": ["cluster.topology", "nowhere", "does not exist"],
    "broken_topology_file": ["zero_bandwidth.yaml:4:8:", "link.line_rate", "greater than zero"],
    "unknown_device": ["cluster.device", "'b3000'", "b200"],
    "huge_cluster": ["8,000,000,000 GPUs", "at most"],
    "too_many_gpus": ["gpus", "16", "the cluster has 8", "cluster.nodes: 2"],
    "gpus_not_a_multiple": ["tp 2 x pp 2 x cp 1 = 4", "7 GPUs", "gpus to 4 or 8"],
    "impossible_product": ["tp 2 x pp 2 x cp 1 x dp 3 = 12", "8 GPUs", "dp to 2"],
    "two_names_of_one_axis": ["tensor_model_parallel_size", "an alias of tp"],
    "order_twice": ["parallel.order", "[tp, tp, dp, pp]", "once"],
    "zero_four": ["parallel.zero", "0 (off)", "3 (also parameters", "got 4"],
    "context_parallel": ["parallel.cp", "sequence_length 1024", "2 x cp = 6", "use cp 2 or 4"],
    "sequence_parallel_alone": ["parallel.sequence_parallel", "tp is 1", "2 or more"],
    "unknown_preset": ["model.preset", "gpt3-175b"],
    "missing_config": ["model.preset", "config.json", "no such file"],
    "negative_layers": ["model.layers", "-8"],
    "indivisible_hidden": ["hidden_size 1000", "heads 16", "1008"],
    "indivisible_heads": ["parallel.tp", "tp 8", "heads 4", "use tp 4"],
    "indivisible_layers": ["parallel.pp", "pp 2", "layers 9", "pp 1 or 3"],
    "unknown_schedule": ["pipeline.schedule", "'gpip'", "did you mean 'gpipe'"],
    "chunks_without_interleaving": ["pipeline.chunks", "interleaved", "1f1b"],
    "interleaved_on_one_stage": ["pipeline.schedule", "parallel.pp is 1"],
    "interleaved_odd_microbatches": ["training.global_batch", "3 microbatches", "pp 2", "8 or 16"],
    "indivisible_batch": ["training.global_batch", "17", "dp 2 x micro_batch 2 = 4", "16 or 20"],
    "unknown_precision": [
        "training.precision",
        "'fp8'",
        "bf16-mixed, fp16-mixed, fp8-mixed, mxfp8-mixed",
    ],
    "gather_without_zero": ["overlap.param_gather", "zero to 1"],
    "unknown_fault": ["faults.0", "'slow_gup'", "did you mean 'slow_gpu'"],
    "fault_rank_out_of_range": [":7:27:", "faults.0.rank", "no rank 8", "0 to 7"],
    "faster_gpu": ["faults.0.factor", "must be at least 1", "0.5"],
    "link_to_itself": ["faults.0", "two different ends"],
}

TOPOLOGIES = {
    "zero_bandwidth": [":4:8:", "link.line_rate", "'0 GB/s'", "greater than zero"],
    "negative_bandwidth": ["link.line_rate", "'-50 GB/s'"],
    "bandwidth_without_unit": ["link.line_rate", "50 has no unit", "GB/s"],
    "bandwidth_in_bytes": ["link.line_rate", "'50 GB'", "GB/s"],
    "impossible_efficiency": ["link.efficiency", "1.5"],
    "negative_latency": [":5:1:", "path_latency", "'-5 us'"],
    "half_a_gpu": ["gpus", "an integer", "0.5"],
    "unknown_kind": ["'flatt'", "did you mean 'flat'", "dgx"],
    "no_kind": ["needs a kind, as in {kind: ...}"],
    "no_gpus": ["no_gpus.yaml", "no GPU"],
    "duplicate_node": ["'gpu0'", "change one"],
    "edge_to_nowhere": ["'leef'", "did you mean leaf"],
    "edge_to_itself": ["'gpu1'", "two different nodes"],
    "disconnected_gpu": ["gpu0", "gpu1", "reach"],
}

GUILTY = {"broken_topology_file": "zero_bandwidth"}  # the file to repair, where it is another one


def test_every_malformed_file_is_expected() -> None:
    assert sorted(path.stem for path in BAD.glob("*.yaml")) == sorted([*SCENARIOS, *TOPOLOGIES])


@pytest.mark.parametrize("name", [*SCENARIOS, *TOPOLOGIES])
def test_a_command_says_what_is_wrong(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, words = ("run", SCENARIOS[name]) if name in SCENARIOS else ("topology", TOPOLOGIES[name])
    assert cli.main([command, str(BAD / f"{name}.yaml")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("simcluster: error: ")
    assert captured.err.count("simcluster: error:") == 1
    message = captured.err.removeprefix("simcluster: error: ")
    assert f"{GUILTY.get(name, name)}.yaml" in message
    assert [word for word in words if word not in message] == [], message
    assert missing_points(message) == [], message
    assert len(message.splitlines()) <= 7  # at most 5 problems, a heading, and how many more
    assert max(len(line) for line in message.splitlines()) < 500


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("x.yaml:3:1: training.micro_batch: must be at least 1, got 0; write 1 or more", []),
        ("x.yaml:3:1: training.micro_batch: must be at least 1, got 0", ["what would work"]),
        ("x.yaml:3:1: training.micro_batch: is set twice, and cannot take what others use", ["what would work"]),
        ("x.yaml:3:1: training.micro_batch: must be at least 1, got 0, whose name is not known", ["what would work"]),
        ("must be at least 1, got 0; write 1 or more", ["where"]),
        ("x.yaml: something odd; write it again", ["what", "rule"]),
        (
            "x.yaml:3:1: not valid YAML, got 'b': while parsing a key; write a: b",
            ["words of another program: while parsing"],
        ),
    ],
)
def test_the_rule_of_four_points_fails_where_one_is_left_out(message: str, lacks: list[str]) -> None:
    assert missing_points(message) == lacks


# --- paths that are no files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (BAD / "wrong_units.yaml", r"no such file; near it: wrong_unit\.yaml"),
        (BAD / "nowhere" / "x.yaml", r"the folder .*nowhere does not exist either"),
        (BAD, r"is a folder; name a YAML file in it; YAML files there: "),
        ("x\0y.yaml", "cannot be read"),
        ("no_such_scenario", "no such file, and no built-in scenario"),
    ],
)
def test_a_path_that_is_no_file(path: str | Path, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(path)


def test_too_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("# " + "x" * 1_000_000)
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        load(path)


def test_unreadable_number_in_override() -> None:
    with pytest.raises(InputError, match="not a usable number"):
        load(BAD / "wrong_unit.yaml", ["seed=" + "9" * 5000])


def test_the_seventh_problem_is_counted_not_shown() -> None:
    with pytest.raises(InputError) as caught:
        load(BAD / "missing_unit.yaml", [f"parallel.x{i}=1" for i in range(7)])
    assert str(caught.value).splitlines()[0].endswith("8 problems")
    assert str(caught.value).splitlines()[-1] == "  and 3 more"
