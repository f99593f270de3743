"""What a run says of communication that could be hidden and is not, and of layouts that few frameworks launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.evidence.validation.step_studies import StepTask
from simcluster.results.result import Result
from simcluster.scenario.cost_advice import OverlapNote, describe_zero_support
from simcluster.scenario.scenario import Scenario

PIPELINE = {"parallel": {"pp": 2, "dp": 4}}
FLAT = {"gpus": 4, "parallel": {"dp": 4}, "pipeline": {}}
BUCKETS = {"bucket_size": "4 MB"}  # in one bucket a model as small as this hides nothing
DUALPIPE = {"pipeline": {"schedule": "dualpipe"}, "parallel": {"tp": 4, "pp": 2, "dp": 1}}


def job(**changes: Any) -> Scenario:
    """tiny_3d with changes of dotted paths."""
    return simcluster.scenario("tiny_3d", {"training.global_batch": 16, "training.micro_batch": 1, **changes})


def played(**changes: Any) -> Result:
    return simcluster.simulate(job(**changes))


OFF: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero 0": ({**FLAT, "overlap": BUCKETS}, {"overlap.grad_reduce": True}),
    "zero 1": (
        {**FLAT, "parallel.zero": 1, "overlap": BUCKETS},
        {"overlap.grad_reduce": True, "overlap.param_gather": True},
    ),
    "zero 3 alone": (
        {**FLAT, "parallel.zero": 3, "overlap": {}},
        {"overlap.grad_reduce": True, "overlap.param_gather": True},
    ),
    "zero 3, gathers off": (
        {**FLAT, "parallel.zero": 3, "overlap": {"grad_reduce": True}},
        {"overlap.param_gather": True},
    ),
    "zero 3, no prefetch": (
        {**FLAT, "parallel.zero": 3, "overlap": {"grad_reduce": True, "param_gather": True}, "fsdp": {"prefetch": 0}},
        {"fsdp.prefetch": 1},
    ),
    "dualpipe": ({**DUALPIPE, "overlap": {}}, {"overlap.pairs": True}),
}


@pytest.mark.parametrize("case", OFF)
def test_what_is_off_is_said_and_turning_it_on_helps(case: str) -> None:
    changes, switches = OFF[case]
    before = played(**changes)
    (note,) = (each for each in before.notes() if isinstance(each, OverlapNote))
    assert dict(note.missing_overlap.enabling_keys) == switches
    written = [each for each in before.to_dict()["notes"] if not each["text"].startswith("without effect: ")]
    assert written == [{"text": note.text, "set": switches, "exposed_fraction": note.exposed_fraction}]
    after = played(**changes, **switches)
    assert not after.notes()
    assert after.step_time < before.step_time
    assert note.exposed_fraction > 0.01


def test_the_run_prints_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["gpus=4", "parallel={dp: 4, zero: 3}", "pipeline={}", "overlap={}"]
    assert cli.main(["run", "tiny_3d", *(word for option in options for word in ("--set", option))]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("note: ")]
    assert "gradient reduction and parameter gathering do not overlap with compute" in line
    assert line.endswith("set overlap.grad_reduce: true, overlap.param_gather: true (the default of PyTorch's FSDP)")
    assert len(line) < 230


def test_the_page_has_it_too(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", "tiny_3d", "--set", "overlap={}", "-o", str(page)]) == 0
    assert "Note: </strong>gradient reduction and parameter gathering do not overlap with compute" in page.read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 1, "parallel": {}, "pipeline": {}, "overlap": {}},  # nothing to reduce
        {**FLAT, "overlap": {"grad_reduce": True}},
        {
            "pipeline": {"schedule": "dualpipe"},
            "parallel": {"pp": 4},
            "gpus": 4,
            "overlap": {},
        },  # no collectives to hide
        {**DUALPIPE, "overlap": {"pairs": True}},
    ],
)
def test_nothing_is_said_where_nothing_is_off(changes: dict[str, Any]) -> None:
    assert played(**changes).notes() == []


# --- who can launch it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("pp", [1, 2])
def test_zero_2_and_3_under_a_pipeline_say_who_launches_them(zero: int, pp: int) -> None:
    result = played(parallel={"pp": pp, "dp": 8 // pp, "zero": zero})
    said = [text for text in result.to_dict()["warnings"] if "with pipeline parallelism" in text]
    assert said == ([describe_zero_support(zero, pp, 8 // pp)] if zero > 1 and pp > 1 else [])
    for text in said:
        assert text.startswith(f"ZeRO-{zero} with pipeline parallelism: torchtitan supports it")
        assert "DeepSpeed rejects it" in text
        assert f"reshard_after_forward {'always' if zero == 3 else 'never'}" in text


def test_a_software_that_cannot_is_named_first() -> None:
    named = {**PIPELINE, "parallel.zero": 2}
    said = played(**named, software="megatron-core").warnings()
    assert any(text.startswith("software megatron-core cannot launch this: ZeRO-2") for text in said)
    assert any(
        text.startswith("ZeRO-2 with pipeline parallelism")
        for text in played(**named, software="torchtitan").warnings()
    )
    kept = played(**named | {"parallel.zero": 3, "fsdp.reshard_after_forward": False}).warnings()
    assert any("reshard_after_forward never" in text for text in kept)
    assert describe_zero_support(3, 4, 1) == ""


def test_a_run_that_was_measured_was_launched() -> None:
    """A row of a study keeps its other warnings: the program that it measured could."""
    base = simcluster.scenario("tiny_3d").document() | {"parallel": {"pp": 2, "dp": 4, "zero": 2}}
    row = StepTask(base, Path(), ()).simulate()
    assert [warning for warning in row.warnings if "DeepSpeed rejects" in warning] == []
