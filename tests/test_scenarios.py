"""Every scenario and study that ships runs, and two small ones give the timelines that are kept in tests/golden.

After a change of the model that is meant:  python tests/test_scenarios.py --regenerate
"""

import json
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import played

import simcluster

ROOT = Path(__file__).parent.parent
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
STUDIES = sorted((ROOT / "scenarios").glob("*.py"))
GOLDEN = Path(__file__).parent / "golden"
GOLDEN_SCENARIOS = ("tiny_3d", "tiny_dp")
DIGITS = 12
FEWER_MICROBATCHES = {
    "llama3_405b_1024xh100": {"training.global_batch": 128},
    "deepseek_v3_2048xh800": {"training.global_batch": 4096},
}


def ids(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module", params=SCENARIOS, ids=ids)
def result(request: pytest.FixtureRequest) -> simcluster.Result:
    """Each scenario played once, for all tests of it, which follow each other; the largest with fewer microbatches."""
    path = request.param
    return simcluster.simulate(simcluster.scenario(path, FEWER_MICROBATCHES.get(path.stem, {})))


def only(*names: str) -> pytest.MarkDecorator:
    """The test is of these scenarios."""
    paths = [path for path in SCENARIOS if path.stem in names]
    assert len(paths) == len(names)
    return pytest.mark.parametrize("result", paths, indirect=True, ids=ids)


def test_result_is_finite_and_sums_to_the_step(result: simcluster.Result) -> None:
    values = result.to_dict()
    json.dumps(values, allow_nan=False)  # raises on NaN and infinity
    step = values["step_time_s"]
    assert step > 0
    assert math.isclose(sum(values["breakdown_s"].values()), step, rel_tol=1e-9)
    assert all(seconds >= 0 for seconds in values["breakdown_s"].values())
    assert math.isclose(sum(values["memory_bytes"].values()), values["peak_memory_bytes"], rel_tol=1e-12)
    assert 0 < values["mfu"] <= values["hfu"] < 1
    assert 0 <= values["overlap_fraction"] <= 1
    assert values["straggler_slowdown"] >= 1
    assert values["fits"], result.warnings()


def test_spans_are_in_order(result: simcluster.Result) -> None:
    spans = result.spans
    assert (spans.ready >= 0).all()
    assert (spans.ready <= spans.start).all()
    assert (spans.start <= spans.end).all()
    assert float(spans.end.max()) == result.step_time * result.steps


@only("gpt3_175b_64xa100", "gpt3_175b_64xa100_full_recompute")
def test_175b_steps_are_near_the_measured_ones(result: simcluster.Result) -> None:
    measured = result.scenario.measured
    assert measured is not None
    assert abs(result.step_time / measured.step_time - 1) < 0.10


@only("slow_gpu")
def test_the_slow_gpu_matters(result: simcluster.Result) -> None:
    values = result.to_dict()
    assert 1.1 < values["straggler_slowdown"] <= 1.2
    assert values["breakdown_s"]["straggler_wait"] > 0


@pytest.mark.parametrize("path", SCENARIOS, ids=ids)
def test_document_of_a_scenario_is_a_scenario(path: Path) -> None:
    from simcluster.scenario.scenario import from_document

    scenario = simcluster.scenario(path)
    assert from_document(json.loads(json.dumps(scenario.document()))) == scenario


@pytest.mark.parametrize("path", SCENARIOS, ids=ids)
def test_measured_steps_have_a_source(path: Path) -> None:
    measured = simcluster.scenario(path).measured
    assert measured is None or any(word in measured.source for word in ("arXiv", "README"))


def test_public_functions_stay_functions_when_their_modules_are_imported() -> None:
    from simcluster.step.simulate import simulate
    from simcluster.studies.variations import compare

    assert simcluster.simulate is simulate
    assert simcluster.simulate is simulate, "the second look found the module"
    assert simcluster.compare is compare


# --- studies --------------------------------------------------------------------------------------------------------


DRAWS = [path for path in STUDIES if "[OUT_FOLDER]" in path.read_text()]
ASKS = [path for path in STUDIES if path not in DRAWS]


@pytest.mark.parametrize("path", DRAWS, ids=ids)
def test_study_runs_and_draws(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), str(out)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert [each.name for each in out.iterdir()] == [f"{path.stem}.png"]
    assert (out / f"{path.stem}.png").stat().st_size > 20_000
    assert str(out / f"{path.stem}.png") in printed.out


@pytest.mark.parametrize("path", ASKS, ids=ids)
def test_study_answers_a_question(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table, and a sentence whose numbers are computed; from any folder, by public names, short enough to copy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert not list(tmp_path.iterdir())
    table, _, sentence = printed.out.strip().rpartition("\n")
    assert len(table.strip().splitlines()) >= 3
    assert sentence.endswith((".", ")."))
    source = path.read_text()
    numbers = re.findall(r"\d+\.\d+", sentence)
    assert numbers
    assert not [number for number in numbers if number in source]
    assert set(re.findall(r"^(?:import|from) (\S+)", source, re.M)) <= {
        "simcluster", "pandas", *sys.stdlib_module_names,
    }  # fmt: skip
    assert set(re.findall(r"\bsimcluster\.(\w+)", source)) <= set(simcluster.__all__)
    assert len(source.splitlines()) < 40
    shown = [block for page in played.PAGES for block in played.blocks_of(page) if block.study == path.stem]
    assert shown, "the cookbook does not have it"
    assert all(played.is_shown(block, printed.out) for block in shown), "python tests/documents --regenerate readme"


# --- golden timelines -----------------------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """Floats to 12 significant digits, so that a golden file survives another processor's last bit."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def golden_of(name: str) -> dict[str, Any]:
    """The result JSON, but for what validation says about it, and the timeline of every simulated rank as rows."""
    left_out = ("version", "scenario", "step_time_likely")
    result = simcluster.simulate(simcluster.scenario(ROOT / "scenarios" / f"{name}.yaml"))
    timeline = result.timeline.astype(object)
    numbers = {key: value for key, value in result.to_dict().items() if key not in left_out}
    return {
        "result": rounded(numbers),
        "columns": list(timeline.columns),
        "timeline": rounded(timeline.values.tolist()),
    }


@pytest.mark.parametrize("name", GOLDEN_SCENARIOS)
def test_timeline_is_the_golden_one(name: str, usual_engines: None) -> None:
    kept = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    now = json.loads(text_of(golden_of(name)))
    assert now["columns"] == kept["columns"]
    for row, kept_row in zip(now["timeline"], kept["timeline"], strict=False):
        assert row == kept_row
    assert len(now["timeline"]) == len(kept["timeline"])
    assert now["result"] == kept["result"]


def text_of(golden: dict[str, Any]) -> str:
    """One row of the timeline a line, so that a change reads well in a diff."""
    rows = ",\n".join(json.dumps(row) for row in golden["timeline"])
    head = json.dumps({"result": golden["result"], "columns": golden["columns"]}, indent=1)
    return f'{head[:-2]},\n "timeline": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    if sys.argv[1:] != ["--regenerate"]:
        sys.exit(__doc__)
    GOLDEN.mkdir(exist_ok=True)
    for each in GOLDEN_SCENARIOS:
        (GOLDEN / f"{each}.json").write_text(text_of(golden_of(each)), encoding="utf-8")
