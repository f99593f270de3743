"""A plan's winner takes as long when it is simulated alone, or the answer names what the search left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.scenario.scenario import from_document
from simcluster.studies.search.layout import layout_changes

VARY: dict[str, Any] = {
    "parallel.tp": (1, 2),
    "parallel.pp": (1, 2),
    "parallel.ep": (1, 2),
    "training.micro_batch": (1,),
    "training.recompute": ("none",),
    "parallel.zero": (1, 3),
    "pipeline.schedule": ("1f1b",),
    "parallel.sequence_parallel": (True, False),
}
MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 128}
IMBALANCE = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0.5}}
DOCUMENTS = {"documents": {"kind": "lognormal", "median": 100, "sigma": 1.2}}
FAULTS: list[dict[str, Any]] = [
    {"kind": "slow_gpu", "rank": 1, "speed": 0.5},
    {"kind": "slow_link", "nic_of": 0, "speed": 0.5},
    {"kind": "jitter", "rank": 2, "factor": {"kind": "lognormal", "sigma": 0.1}},
]


def drawn(seed: int) -> dict[str, Any]:
    """Return a small scenario on 8 GPUs of two nodes; of odd seeds with something that a search leaves out."""
    draw = random.Random(seed)
    model: dict[str, Any] = {"layers": 4, "hidden_size": 256, "heads": 4, "vocab_size": 1024, "sequence_length": 256}
    moe = draw.random() < 0.5
    document = {
        "cluster": {"topology": "dgx_h100", "nodes": 2},
        "gpus": 8,
        "seed": seed,
        "model": {**model, "gated_mlp": moe, **({"moe": MOE} if moe else {})},
        "parallel": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
        "training": {"global_batch": 16, "micro_batch": 1},
        "overlap": {name: draw.random() < 0.5 for name in ("grad_reduce", "pipeline", "tensor")},
    }
    faults = [*draw.sample(FAULTS, draw.choice([0, 1, 2])), *([IMBALANCE] if moe else [])]
    left_out = {"faults": faults, "data": DOCUMENTS, "steps": 2, "collectives": {"detail": "steps"}}
    chosen = draw.sample(sorted(left_out), draw.choice([1, 1, 2])) if seed % 2 else []
    return {**document, **{key: left_out[key] for key in chosen}}


@pytest.mark.parametrize("seed", range(10))
def test_a_winner_simulated_again_is_equal_or_the_answer_names_what_is_left_out(seed: int) -> None:
    given = from_document(drawn(seed))
    found = simcluster.plan(given, vary=VARY)
    said = found.to_dict()
    kinds = {fault.kind for fault in given.faults}
    assert set(said["faults_left_out"]) == kinds
    keys = {"steps": given.steps > 1, "collectives.detail": given.collectives.detail != "flow"}
    assert set(said["keys_left_out"]) == {key for key, named in keys.items() if named}
    again = simcluster.simulate(given.with_(layout_changes(found.base, found.best[0].layout)))
    if seed % 2 == 0:
        assert not said["faults_left_out"] + said["keys_left_out"]
        assert again.step_time == found.best[0].step_time


def test_documents_and_faults_that_are_left_out_are_named_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents of different lengths make the winner 2 % slower, experts of different popularity 36 %."""
    path = tmp_path / "packed.yaml"
    document = {**drawn(0), "data": DOCUMENTS}
    path.write_text(json.dumps(document))
    options = [f"--vary={name}={','.join(map(str, values)).lower()}" for name, values in VARY.items()]
    assert cli.main(["plan", str(path), "--executor", "1", *options]) == 0
    assert "faults (documents of different lengths (sequence_lengths)); run the winner" in capsys.readouterr().out
    assert cli.main(["plan", str(path), "--executor", "1", *options, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["faults_left_out"] == ["sequence_lengths"]
    again = from_document(document)
    assert simcluster.plan(again, vary=VARY).ignored_parts.faults == ("sequence_lengths",)
