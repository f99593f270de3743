"""Fits of declared constants: true ones come back, today's are compared, what is left out is predicted, bad input."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.builtin_documents import builtin_folder, builtin_path
from simcluster.evidence.validation.fitting import load_fits
from simcluster.evidence.validation.fitting_run import FitOutcome, run_fits
from simcluster.evidence.validation.study import load_study
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate

POWER, LAUNCH = 0.61, 4e-6
SIZES = [(256, 1), (512, 2), (4096, 1), (4096, 4)]


@cache
def measured(hidden: int, micro_batch: int, slower: float = 1.0) -> float:
    """Seconds of a step on a GPU of the true constants."""
    true = {"base": "h100", "matmul": {"power": POWER}, "launch": f"{LAUNCH} s"}
    changes = {"cluster.device": true, "model.hidden_size": hidden, "training.micro_batch": micro_batch}
    return slower * simulate(load("tiny_dp", changes)).step_time


def study(path: Path, *, slower: float = 1.0, sizes: list[tuple[int, int]] = SIZES) -> Path:
    """A study of such steps, on a scenario that does not know the constants."""
    rows = "".join(f"    - [{h}, {b}, {measured(h, b, slower)!r}]\n" for h, b in sizes)
    path.write_text(
        f"kind: steps\nname: {path.stem}\nsource: made\noriginal: nowhere\n"
        f"table:\n  header: [hidden, micro, seconds]\n  rows:\n{rows}"
        "scenario: tiny_dp\nset: {cluster.device: h100}\n"
        "columns: {hidden: model.hidden_size, micro: training.micro_batch}\nlabel: [hidden, micro]\n"
        "measured: {column: seconds, quantity: step_time, unit: s}\n"
    )
    return path


CONSTANTS = """    constants:
      power: {path: cluster.device.matmul.power, bounds: [0.2, 1.0], unfitted: 0.9, source: made}
      launch: {path: cluster.device.launch, bounds: [0.1 us, 50 us], unfitted: 1 us, source: made}
"""


def fits(tmp_path: Path, rows: str, constants: str = CONSTANTS, more: str = "") -> Path:
    path = tmp_path / "fits.yaml"
    path.write_text(f"fits:\n  made:\n{constants}    rows: {rows}\n{more}")
    return path


def run(path: Path, **settings: Any) -> FitOutcome:
    (outcome,) = run_fits(load_fits(path), ["made"], **settings)
    return outcome


def test_the_constants_that_made_the_rows_come_back(tmp_path: Path) -> None:
    one = study(tmp_path / "one.yaml")
    found = run(fits(tmp_path, f"[{{study: {one}, model: hidden, scale: micro}}]"))
    power, launch = found.constants
    assert power.value == pytest.approx(POWER, rel=1e-3)
    assert launch.value == pytest.approx(LAUNCH, rel=1e-3)
    assert (power.declared.unfitted, power.current, launch.current) == (0.9, 0.803, 1e-6)
    assert found.mean_error() < 1e-4 < found.mean_error("today") < found.mean_error("unfitted")
    assert [row.measured for row in found.rows] == [measured(h, b) for h, b in SIZES]
    by = {each.group_key: each for each in found.cross_validation}
    assert by["model"].skipped.startswith("without '4096', 2 rows are too few")
    assert by["scale"].skipped.startswith("without '1', 2 rows are too few")
    assert by["study"].error == pytest.approx(found.mean_error("unfitted"))  # no other study decides anything


def test_a_study_that_is_left_out_is_predicted_by_the_others(tmp_path: Path) -> None:
    """Two studies of the same GPU, one measured 2 % slower: each says of the other what it says of itself, and 2 %."""
    constants = "".join(CONSTANTS.splitlines(keepends=True)[:2])
    sizes = SIZES[1:]
    one, two = (study(tmp_path / f"{name}.yaml", slower=s, sizes=sizes) for name, s in (("one", 1.0), ("two", 1.02)))
    found = run(fits(tmp_path, f"[{{study: {one}, scale: micro}}, {{study: {two}, scale: micro}}]", constants))
    by = {each.group_key: each for each in found.cross_validation}
    assert by["study"].groups == 2
    alone = run(fits(tmp_path, f"[{{study: {one}}}]", constants), cross_validate=False)
    assert dict(by["study"].values)["two"] == pytest.approx([alone.constants[0].value], rel=1e-3)
    assert by["study"].error_ratio > 1
    assert by["scale"].groups == 3
    assert by["scale"].rows == 6
    assert by["model"].skipped == "no formula defines the groups"


def test_rows_can_be_chosen_by_their_number(tmp_path: Path) -> None:
    one = study(tmp_path / "one.yaml")
    rows = f'[{{study: {one}, where: "row % 2 == 0 or hidden == 256"}}]'
    found = run(fits(tmp_path, rows), cross_validate=False)
    assert [row.sample.label for row in found.rows] == ["256, 1", "512, 2", "4096, 4"]
    assert found.cross_validation == ()


def test_followers_go_with_their_constant(tmp_path: Path) -> None:
    """fp8 products at the declared multiple of the power, whatever that is."""
    constants = (
        "    constants:\n      power: {path: cluster.device.matmul.power, follow: {cluster.device.matmul.clock: 1.1}, "
        "bounds: [0.2, 0.9], unfitted: 0.5, source: made}\n"
    )
    found = run(fits(tmp_path, f"[{{study: {study(tmp_path / 'one.yaml')}}}]", constants), cross_validate=False)
    (power,) = found.constants
    row = found.rows[0].sample.run
    pairs = (("cluster.device.matmul.power", power.value), ("cluster.device.matmul.clock", 1.1 * power.value))
    assert row.simulate(pairs)[0] == found.rows[0].fitted


def test_software_and_scenario_paths_can_be_fitted(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    true = {"kernel": "30 us", "collective": "50 us"}
    seconds = [
        simulate(load("tiny_dp", {"software": true, "training.micro_batch": batch})).step_time for batch in (1, 2, 4)
    ]
    rows = "".join(f"    - [{batch}, {each!r}]\n" for batch, each in zip((1, 2, 4), seconds, strict=True))
    path.write_text(
        f"kind: steps\nname: host\nsource: made\noriginal: nowhere\ntable:\n  header: [micro, seconds]\n  rows:\n{rows}"
        "scenario: tiny_dp\nset: {software: {kernel: 10 us, collective: 50 us}}\n"
        "columns: {micro: training.micro_batch}\nmeasured: {column: seconds, quantity: step_time, unit: s}\n"
    )
    constants = (
        "    constants:\n      kernel: {path: software.kernel, bounds: [1 us, 1 ms], unfitted: 5 us, source: made}\n"
    )
    found = run(fits(tmp_path, f"[{{study: {path}}}]", constants), cross_validate=False)
    assert found.constants[0].value == pytest.approx(30e-6, rel=2e-3)
    assert found.constants[0].current == 10e-6


def test_workers_find_the_same(tmp_path: Path) -> None:
    constants = "".join(CONSTANTS.splitlines(keepends=True)[:2])
    path = fits(tmp_path, f"[{{study: {study(tmp_path / 'one.yaml', sizes=SIZES[2:])}}}]", constants)
    alone, together = (run(path, cross_validate=False, workers=workers) for workers in (1, 2))
    assert [each.value for each in alone.constants] == [each.value for each in together.constants]


def test_what_ships_is_declared_with_sources_and_names_studies_that_ship() -> None:
    file = load_fits()
    assert file.document.source == str(builtin_path("scenarios/fits", "constants"))
    for fit in file.fits.fits.values():
        for rows in fit.rows:
            if rows.__class__.__name__ == "FitStudyRows":
                assert load_study(rows.study).study  # type: ignore[union-attr]


def test_without_the_tables_fits_are_skipped_with_their_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SIMCLUSTER_DATA", raising=False)
    assert main(["fit", "--only", "products", "host-times"]) == 2
    told, error = capsys.readouterr()
    assert "nothing was fitted: products needs simumax_measured_op_efficiency.csv" in error
    assert "skipped: needs simumax_measured_op_efficiency.csv" in told
    assert "https://github.com/MooreThreads/SimuMax" in told


def write_products(folder: Path) -> None:
    """A table of products in the format of its own, made from known constants."""
    from simcluster.devices.device import kernel_seconds, load_device
    from simcluster.evidence.calibration.least_squares import replace_value_at
    from simcluster.model.kernels import Kernel

    device = load_device("a100-80gb-pcie")
    for path, value in (("matmul.power", 0.7), ("matmul.clock", 0.8), ("matmul.epilogue", 0.5)):
        device = replace_value_at(device, path, value)
    lines = ["gpu,op,shape,peak_tflops,efficiency"]
    for m, n, k in [(4096, 4096, 4096), (4096, 512, 4096), (512, 512, 512), (8192, 4096, 256), (1024, 1024, 8192)]:
        for accumulate, result in (("False", 2), ("True", 8)):
            size = 2.0 * (m * k + k * n) + result * m * n
            product = Kernel("product", "matmul", 2.0 * m * n * k, size, m=m, n=n, k=k)
            rate = product.flops / kernel_seconds(device, product, precision="bf16") / 312e12
            dtype = "fp32" if accumulate == "True" else "bf16"
            shape = f"b=1, m={m}, k={k}, n={n}, layout=TN, accumulate={accumulate}, out_dtype={dtype}"
            lines.append(f'A100,matmul,"{shape}",312,{rate!r}')
    (folder / "simumax_measured_op_efficiency.csv").write_text("\n".join(lines) + "\n")


def test_measured_products_of_a_table_are_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_products(tmp_path)
    answer = tmp_path / "answer.json"
    assert main(["fit", "--only", "products", "--data", str(tmp_path), "--json", str(answer)]) == 0
    (found,) = json.loads(answer.read_text())["fits"]
    values = {each["name"]: each["fitted"] for each in found["constants"]}
    assert values == pytest.approx({"power": 0.7, "clock": 0.8, "epilogue": 0.5}, rel=2e-3)
    assert "3 constants on 10 rows" in capsys.readouterr().out


BAD_CONSTANT = "fits: {a: {constants: {x: {path: PATH, bounds: BOUNDS, unfitted: 1, source: y}}, rows: []}}\n"


@pytest.mark.parametrize(("text", "message"), [
    ("fits: {}\n", "fits"),
    ("fits: {a: {constants: {}, rows: []}}\n", "constants"),
    (BAD_CONSTANT.replace("PATH", "training.tokns").replace("BOUNDS", "[0, 1]"), "tokns"),
    (BAD_CONSTANT.replace("PATH", "software.kernel").replace("BOUNDS", "[2, 3]"), "within"),
    (BAD_CONSTANT.replace("PATH", "software.kernel").replace("BOUNDS", "[0, fast]"), "not a quantity"),
    (BAD_CONSTANT.replace("source: y", "about: y"), "source"),
])  # fmt: skip
def test_a_bad_fit_file_says_where(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "fits.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"fits\.yaml") as caught:
        load_fits(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(("constant", "rows", "message"), [
    ("cluster.device.matmul.powr", "", "no 'powr' in cluster.device.matmul"),
    ("cluster.device.name", "", "a constant to fit must be a number"),
    ("software.kernel", "", "no software.kernel"),
    ("constants.slowdown", "", "slowdown"),
    ("cluster.device.launch", ", where: tokens > 1", "no column 'tokens'"),
    ("cluster.device.launch", ", where: hidden > 10000", "none of the 4 rows"),
])  # fmt: skip
def test_rows_without_a_constants_place_say_so(constant: str, rows: str, message: str, tmp_path: Path) -> None:
    constants = f"    constants:\n      x: {{path: {constant}, bounds: [0.1, 0.9], unfitted: 0.5, source: made}}\n"
    path = fits(tmp_path, f"[{{study: {study(tmp_path / 'one.yaml')}{rows}}}]", constants)
    with pytest.raises(InputError) as caught:
        run(path)
    assert message in str(caught.value)


def test_rows_that_do_not_share_a_constant_are_refused(tmp_path: Path) -> None:
    one, two = study(tmp_path / "one.yaml"), study(tmp_path / "two.yaml")
    two.write_text(two.read_text().replace("cluster.device: h100", "cluster.device: h200"))
    constants = "    constants:\n      x: {path: cluster.device.memory_half_size, bounds: [1 MB, 9 MB], unfitted: 2 MB"
    path = fits(tmp_path, f"[{{study: {one}}}, {{study: {two}}}]", f"{constants}, source: made}}\n")
    with pytest.raises(InputError, match="; use one value"):
        run(path)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--only", "product"], "has no fit 'product'; did you mean 'products'"),
    (["--file", "missing.yaml"], "no such file"),
    (["--workers", "0"], "give 1 or more"),
    (["--data", "missing"], "is not a folder"),
])  # fmt: skip
def test_bad_calls_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_shipped_file_lies_where_studies_are_not_looked_for() -> None:
    """``simcluster validate scenarios/validation/*.yaml`` takes every file there for a study."""
    assert Path(load_fits().document.source).parent != builtin_folder("scenarios") / "validation"
