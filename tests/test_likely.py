"""How sure a step time is: intervals learned from validated runs, and what is far from all of them."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.cli import main
from simcluster.documents.catalogue import catalogue_path
from simcluster.documents.yaml_documents import read_document
from simcluster.evidence.validation import load_study, validate_studies
from simcluster.evidence.validation.residuals import (
    MAX_STUDY_ROWS,
    Residual,
    are_within_intervals,
    collect_residuals,
    count_coverage,
    interval_file_text,
    interval_table,
)
from simcluster.scenario.prediction_intervals import (
    RunFeatures,
    interval_for_features,
    rank_studies,
    run_features_of,
    similar_studies,
)
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate

A100 = RunFeatures("A100", "Megatron", "long", 64, 4096, 2048)
STUDIES = Path(__file__).parents[1] / "scenarios" / "validation"


def rows(values: list[float], study: str, kind: RunFeatures = A100) -> list[Residual]:
    return [Residual(value, study, kind) for value in values]


# --- learning ---------------------------------------------------------------------------------------------------------


def test_an_interval_by_hand() -> None:
    """19 rows and 1 more that is to come: the 18th of 20 in either order is the 90 % quantile."""
    values = [number / 100 for number in range(-9, 10)]
    studies = [rows(values[place : place + 4], f"study {place}") for place in range(0, 19, 4)]
    group = interval_table([each for study in studies for each in study])["groups"]["A100, Megatron, long kernels"]
    assert (group["low"], group["high"]) == (round(math.exp(-0.08), 3), round(math.exp(0.08), 3))
    assert (group["rows"], group["studies"], group["GPUs"]) == (19, 5, [64, 64])


def test_few_rows_give_all_that_was_seen() -> None:
    group = interval_table([*rows([0.1, 0.0], "one"), *rows([-0.2, 0.05], "two")])["groups"]["any"]
    assert (group["low"], group["high"]) == (round(math.exp(-0.2), 3), round(math.exp(0.1), 3))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**20), st.floats(0.01, 0.3), st.floats(-0.2, 0.2))
def test_the_next_run_falls_inside_as_often_as_promised(seed: int, spread: float, bias: float) -> None:
    """Split conformal prediction on runs that are alike: at least 80 %, up to the noise of 300 draws (4 deviations)."""
    chance = random.Random(seed)
    inside = 0
    for _ in range(300):
        seen = [chance.gauss(bias, spread) for _ in range(30)]
        group = interval_table([*rows(seen[:15], "one"), *rows(seen[15:], "two")])["groups"]["A100, Megatron"]
        inside += group["low"] - 5e-4 <= math.exp(chance.gauss(bias, spread)) <= group["high"] + 5e-4
    assert inside / 300 > 0.8 - 4 * math.sqrt(0.8 * 0.2 / 300)


def test_a_long_study_counts_for_few_rows() -> None:
    """300 equal rows weigh as 4: what 30 others say is still in the interval."""
    many, others = rows([0.0] * 300, "many"), rows([0.5] * 15, "one") + rows([0.5] * 15, "two")
    group = interval_table(many + others)["groups"]["any"]
    assert MAX_STUDY_ROWS == 4
    assert (group["low"], group["high"]) == (1.0, round(math.exp(0.5), 3))


def test_a_group_needs_two_studies() -> None:
    few = rows([0.0] * 50, "one")
    assert set(interval_table(few)["groups"]) == {"any"}
    assert "A100, Megatron" in interval_table(few + rows([0.0], "two"))["groups"]


def test_coverage_leaves_the_own_study_out() -> None:
    residuals = rows([0.0, 0.01, -0.01] * 4, "one") + rows([0.0, 0.01] * 4, "two") + rows([0.3, 0.0], "odd")
    within = are_within_intervals(residuals)
    studies, kinds = [each.study for each in residuals], [each.kind.group_names[1] for each in residuals]
    assert count_coverage(studies, within) == {"one": (8, 12), "two": (8, 8), "odd": (1, 2)}  # nobody else was at -0.01
    assert count_coverage(kinds, within) == {"A100, Megatron": (17, 22)}


def test_what_a_study_says_by_hand() -> None:
    """Measured 1.25, 1 and 0.8 for a prediction of 1: errors of -20 %, 0 and 25 %."""
    odd = replace(A100, length="short", gpus=8)
    values = [math.log(1.25), 0.0, math.log(0.8)]
    first, second = interval_table([*rows(values, "one"), *rows([0.0], "one", odd)])["studies"]
    assert first == {
        "study": "one", "like": "A100, Megatron, long kernels", "rows": 3, "mean": 0.15, "worst": 0.25, "bias": 0.0167,
        "GPUs": [64, 64], "hidden size": [4096, 4096], "sequence length": [2048, 2048],
    }  # fmt: skip
    assert (second["like"], second["rows"], second["GPUs"]) == ("A100, Megatron, short kernels", 1, [8, 8])


# --- using ------------------------------------------------------------------------------------------------------------

TABLE = interval_table(
    rows([0.02, 0.05, 0.0] * 5, "one") + rows([0.03, 0.01] * 5, "two", replace(A100, traits=("latent attention",)))
    + rows([0.1, 0.2] * 5, "three", replace(A100, generation="H100", gpus=768, hidden=12288))
    + rows([0.1, 0.2] * 5, "four", replace(A100, generation="H100", sharding="FSDP"))
)  # fmt: skip


def test_the_narrowest_group_that_there_is() -> None:
    own = interval_for_features(A100, 10.0, TABLE)
    assert (own.like, own.extrapolates_on) == ("A100, Megatron, long kernels", ())
    assert (own.low, own.high) == (pytest.approx(10.0), pytest.approx(10.0 * math.exp(0.05), rel=1e-3))
    assert interval_for_features(replace(A100, length="short"), 10.0, TABLE).like == "A100, Megatron"


def test_the_nearest_study_comes_first() -> None:
    """By GPU, sharding and length of kernels; among equals by the sizes, outside of what was measured only."""
    kinds = {
        "long": A100, "large": replace(A100, gpus=1024), "short": replace(A100, length="short"),
        "H100": replace(A100, generation="H100"), "FSDP": replace(A100, sharding="FSDP"),
    }  # fmt: skip
    table = interval_table([each for name, kind in kinds.items() for each in rows([0.0], name, kind)])

    def order(kind: RunFeatures) -> list[str]:
        return [row.study for row in rank_studies(kind, table)]

    assert order(A100) == ["long", "large", "short", "H100", "FSDP"]
    assert order(replace(A100, gpus=512)) == ["large", "long", "short", "H100", "FSDP"]
    assert order(replace(A100, length="short"))[:2] == ["short", "long"]
    assert order(replace(A100, generation="H100"))[0] == "H100"
    assert order(replace(A100, sharding="FSDP", length="short"))[0] == "FSDP"
    assert order(replace(A100, generation=""))[-1] == "FSDP"


def test_the_shipped_studies_make_up_its_groups() -> None:
    flops = simulate(load("gpt3_175b_64xa100")).facts.model_flops
    found = similar_studies(load("gpt3_175b_64xa100"), flops)
    shipped = read_document(catalogue_path("residuals.yaml")).data["groups"]
    assert found[0].like == "A100, Megatron, long kernels"
    for name in ("any", "A100, Megatron, long kernels", "A100, FSDP"):
        own = [row for row in found if name == "any" or row.like.startswith(name)]
        group = shipped[name]
        assert sum(row.rows for row in own) == group["rows"]
        assert len({row.study for row in own}) == group["studies"]
        assert [min(row.spans[0][0] for row in own), max(row.spans[0][1] for row in own)] == group["GPUs"]
    assert all(abs(row.bias) <= row.mean <= row.worst for row in found)


@pytest.mark.parametrize(
    ("kind", "far"),
    [
        (replace(A100, gpus=128), ()),
        (replace(A100, gpus=129), ("129 GPUs",)),
        (replace(A100, gpus=1), ()),
        (replace(A100, hidden=8193), ("hidden size 8,193",)),
        (replace(A100, hidden=2047), ("hidden size 2,047",)),
        (replace(A100, sequence=1 << 17), ("sequence length 131,072",)),
        (replace(A100, generation=""), ("a GPU of another generation",)),
        (replace(A100, sharding="FSDP"), ("FSDP on A100",)),
        (replace(A100, traits=("faults",)), ("faults",)),
        (replace(A100, traits=("latent attention",)), ()),
    ],
)
def test_far_from_all_that_was_validated(kind: RunFeatures, far: tuple[str, ...]) -> None:
    found = interval_for_features(kind, 1.0, TABLE)
    assert found.extrapolates_on == far
    assert (found.like == "any") == bool(far)


def test_kinds() -> None:
    large = load("gpt3_175b_64xa100")
    flops = simulate(large).facts.model_flops
    assert run_features_of(large, flops) == RunFeatures("A100", "Megatron", "long", 64, 12288, 2048)
    assert run_features_of(large, flops / 1e3).length == "short"
    traits: list[tuple[dict[str, object], str]] = [
        ({"training.precision": "fp32"}, "precision fp32"),
        ({"pipeline.schedule": "gpipe", "pipeline.chunks": 1}, "schedule gpipe"),
        ({"memory.offload": {"activations": 0.5}}, "offload to the host"),
        ({"faults": [{"kind": "slow_gpu", "ranks": [0], "factor": 2.0}]}, "faults"),
    ]
    for changes, what in traits:
        assert run_features_of(load("gpt3_175b_64xa100", changes), flops).traits == (what,)
    assert run_features_of(load("fsdp_7b_64xa100"), 1.0).sharding == "FSDP"
    assert run_features_of(load("llama3_405b_1024xh100"), 1.0).generation == "H100"
    for device, generation in (("gb200", "B200"), ("mi355x", ""), ("rubin", "")):  # mi355x has the peak of a B200
        changed = load("llama3_405b_1024xh100", {"cluster.device": device})
        assert run_features_of(changed, 1.0).generation == generation


# --- what a person sees -----------------------------------------------------------------------------------------------


def test_run_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "gpt3_175b_64xa100"]) == 0
    text = capsys.readouterr().out
    assert "likely " in text
    assert "(80% of " in text
    assert main(["run", "gpt3_175b_64xa100", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["step_time_likely"]
    assert found["low_s"] < document["step_time_s"] * 1.05
    assert found["low_s"] < found["high_s"]
    assert (found["extrapolates_on"], found["level"]) == ([], 0.8)
    assert found["low_s"] < 13.75 < found["high_s"]  # measured: arXiv:2205.05198 table 5


def test_run_says_where_nobody_has_been(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tiny_3d", "--training.precision", "fp32"]) == 0
    assert "likely       unknown: no validated run has precision fp32" in capsys.readouterr().out


def test_the_shipped_table_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its form, from two studies, played once: validate --residuals, and the header that says what it is worth."""
    out = tmp_path / "table.yaml"
    names = [str(STUDIES / f"{name}.yaml") for name in ("fms_fsdp", "bloom_prequel")]
    reports = validate_studies([load_study(name) for name in names])
    monkeypatch.setattr(
        "simcluster.evidence.commands.validate.validate_studies",
        lambda *_, ended, **__: [ended(report) for report in reports],
    )
    assert main(["validate", *names, "--residuals", str(out)]) == 0
    residuals = collect_residuals(reports)
    assert len(residuals) == 7
    written = out.read_text(encoding="utf-8")
    command = f"simcluster validate scenarios/validation/*.yaml --data DIR --residuals {out}"
    assert written == interval_file_text(residuals, command)
    assert "of 7 rows" in written
    del reports[1:]  # one study has none to be left out
    assert main(["validate", names[0], "--residuals", str(tmp_path / "one.yaml")]) == 2
    assert "give studies of steps from two sources or more" in capsys.readouterr().err
    assert not (tmp_path / "one.yaml").exists()


def test_there_must_be_something_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["validate", "korthikanti_memory", "--residuals", str(tmp_path / "t.yaml")])
    assert status == 2
    assert "no training step was simulated" in capsys.readouterr().err
