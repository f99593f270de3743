"""Calibration: a synthetic GPU whose constants must come back, tables that survive a kill, files that load."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.devices.device import AttentionKernel, Device, load_device
from simcluster.documents.builtin_documents import builtin_folder
from simcluster.evidence.calibration.cases import CalibrationCase, list_calibration_cases, parse_calibration_case
from simcluster.evidence.calibration.device_file import device_file_text
from simcluster.evidence.calibration.device_fit import (
    DeviceFit,
    device_model_kernel,
    find_builtin_device,
    fit_device,
    modelled_seconds,
)
from simcluster.evidence.calibration.least_squares import (
    FitParameter,
    fit_least_squares,
    replace_value_at,
    value_at_path,
)
from simcluster.evidence.calibration.raw_table import (
    MeasuredMachine,
    MeasuredTable,
    Measurement,
    RawTableFile,
    read_raw_table,
    summarize_batches,
)
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import from_document, load

H100 = MeasuredMachine("NVIDIA H100 80GB HBM3", "cuda", 132, torch="2.13.0", driver="570.1", date="2026-01-02")
TRUE = {
    "launch": 1.7e-6,
    "memory_efficiency": 0.88,
    "memory_half_size": 2.2e6,
    "by_row": 0.66,
    "matmul.power": 0.69,
    "matmul.clock": 0.83,
    "matmul.epilogue": 0.6,
    "matmul.misaligned": 0.4,
    "matmul.power_fp8": 0.6,
    "attention.kernels.sdpa-flash.forward": 0.55,
    "attention.kernels.sdpa-flash.backward": 0.45,
    "attention.kernels.sdpa-cudnn.forward": 0.7,
    "attention.kernels.sdpa-cudnn.backward": 0.52,
}


def true_device() -> Device:
    device = load_device("h100")
    measured = {name: AttentionKernel(forward=0.5, backward=0.5) for name in ("sdpa-flash", "sdpa-cudnn")}
    device = replace_value_at(device, "attention.kernels", {**device.attention.kernels, **measured})
    for path, value in TRUE.items():
        device = replace_value_at(device, path, value)
    return device


def synthetic(noise: float = 0.0, seed: int = 0) -> MeasuredTable:
    """What a GPU of these constants would have been timed at."""
    device, generator, found = true_device(), np.random.default_rng(seed), []
    for case in list_calibration_cases("bf16", on_gpu=True, quick=True):
        if case.kind == "attention" and case.op in ("efficient", "math"):
            found.append(Measurement(case, failed="No viable backend"))
            continue
        kernel = device_model_kernel(case)
        seconds = modelled_seconds(device, [(case, kernel)])[0] if kernel else case.size / 50e9 or 5e-6
        more = 1e-5 if case.kind == "beside" else 0.0
        found.append(summarize_batches(case, [seconds * math.exp(generator.normal(0, noise))] * 2, 1, alone=more))
    return MeasuredTable(H100, tuple(found))


@cache
def fitted() -> DeviceFit:
    return fit_device(synthetic(), base=load_device("h100"), name="my_gpu")


def write(table: MeasuredTable, path: Path) -> Path:
    file = RawTableFile(path, table.machine, restart=True)
    for each in table.measurements:
        file.append(each)
    return path


def test_the_constants_of_a_synthetic_gpu_come_back() -> None:
    found = {each.path: each.value for each in fitted().constants}
    assert found == pytest.approx(TRUE, rel=2e-3)
    assert max(abs(row.relative_error) for row in fitted().rows) < 2e-3
    assert not any(each.at_bound for each in fitted().constants)


def test_noise_widens_errors_and_truth_stays_within_them() -> None:
    noisy = fit_device(synthetic(noise=0.03, seed=5), base=load_device("h100"))
    for exact, each in zip(fitted().constants, noisy.constants, strict=True):
        assert each.error is not None
        assert exact.error is not None
        assert each.error > exact.error, each.path
        assert abs(each.value - TRUE[each.path]) < 4.5 * each.error, each.path


def test_a_row_that_is_far_off_decides_nothing() -> None:
    table = synthetic()
    place = next(number for number, each in enumerate(table.measurements) if each.case.kind == "matmul")
    broken = replace(table.measurements[place], seconds=3 * table.measurements[place].seconds)
    rows = (*table.measurements[:place], broken, *table.measurements[place + 1 :])
    found = fit_device(MeasuredTable(H100, rows), base=load_device("h100"))
    for each in found.constants:
        assert each.value == pytest.approx(TRUE[each.path], rel=0.03), each.path


def test_without_a_base_the_best_that_was_measured_is_the_peak() -> None:
    table = MeasuredTable(replace(H100, device="Unknown accelerator"), synthetic().measurements)
    found = fit_device(table)
    timed = [each for each in table.timed_measurements if each.case.kind == "matmul" and each.case.dtype == "bf16"]
    best = max(2.0 * each.case.batch * each.case.m * each.case.n * each.case.k / each.seconds for each in timed)
    assert found.device.peak_flops("bf16") == pytest.approx(best, rel=1e-4)
    assert found.base == ""


def test_what_the_table_does_not_speak_of_stays_as_it_is() -> None:
    rows = [each for each in synthetic().measurements if each.case.kind in ("matmul", "memory", "launch")]
    kept = [each for each in rows if each.case.dtype != "fp8" and each.case.op not in ("softmax", "dropout")]
    found = fit_device(MeasuredTable(H100, tuple(kept)), base=load_device("h100"))
    paths = [each.path for each in found.constants]
    assert "by_row" not in paths
    assert "matmul.power_fp8" not in paths
    assert not [path for path in paths if path.startswith("attention")]
    assert found.device.by_row == load_device("h100").by_row
    assert found.device.attention == load_device("h100").attention


def test_the_fastest_attention_is_the_one_that_runs() -> None:
    assert fitted().device.attention.kernel == "sdpa-cudnn"


@pytest.mark.parametrize("kind", ["matmul", "memory"])
def test_a_table_without_a_kind_is_refused(kind: str) -> None:
    rows = tuple(each for each in synthetic().measurements if each.case.kind != kind)
    with pytest.raises(InputError, match=f"no timed case of kind {kind}"):
        fit_device(MeasuredTable(H100, rows))


def test_least_squares_finds_a_line_and_its_errors() -> None:
    """Against the textbook's formulas for a straight line."""
    x = np.linspace(1, 5, 40)
    y = 0.5 + 2.0 * x + np.random.default_rng(3).normal(0, 0.1, 40)
    parameters = [FitParameter("a", 1.0, 0.0, 10.0), FitParameter("b", 1.0, 1e-3, 10.0)]
    found = fit_least_squares(parameters, lambda values: values[0] + values[1] * x - y)
    slope, offset = np.polyfit(x, y, 1)
    assert found.values == pytest.approx((offset, slope), rel=1e-4)
    scatter = math.sqrt(float(np.sum((offset + slope * x - y) ** 2)) / 38)
    assert found.errors[1] == pytest.approx(scatter / math.sqrt(float(np.sum((x - x.mean()) ** 2))), rel=0.25)


def test_a_constant_that_no_row_knows_has_no_error() -> None:
    parameters = [FitParameter("a", 1.0, 0.1, 10.0), FitParameter("idle", 2.0, 0.1, 10.0)]
    found = fit_least_squares(parameters, lambda values: np.array([values[0] - 3.0, values[0] - 3.1, 0.0]))
    assert found.values[1] == pytest.approx(2.0)
    assert found.errors[1] is None
    assert found.errors[0] is not None


@pytest.mark.parametrize(("start", "low", "high"), [(1.0, 2.0, 3.0), (1.0, 1.0, 1.0), (1.0, 3.0, 2.0)])
def test_a_start_outside_its_bounds_is_refused(start: float, low: float, high: float) -> None:
    with pytest.raises(InputError, match="must lie within bounds"):
        FitParameter("power", start, low, high)


def test_more_constants_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be fitted to 1 rows"):
        fit_least_squares([FitParameter("a", 1.0, 0.1, 2.0)] * 2, lambda values: np.array([values[0]]))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_every_kind_is_measured_and_no_case_twice(on_gpu: bool, quick: bool) -> None:
    cases = list_calibration_cases("bf16", on_gpu=on_gpu, quick=quick)
    assert len(dict.fromkeys(cases)) == len(cases)
    assert {case.kind for case in cases} == {"matmul", "attention", "memory", "launch", "host_copy", "beside"}
    assert {case.op for case in cases if case.kind == "matmul"} == {"TN", "NN", "NT"}
    assert len(cases) > len(list_calibration_cases("bf16", on_gpu=on_gpu, quick=True)) or quick
    assert all(parse_calibration_case(json.loads(json.dumps(case.to_dict()))) == case for case in cases)


def test_kernels_count_what_planning_counts() -> None:
    product = device_model_kernel(CalibrationCase("matmul", "TN", "bf16", m=64, n=32, k=16, batch=3))
    assert product is not None
    assert product.flops == 2 * 3 * 64 * 32 * 16
    assert product.bytes == 2 * 3 * (64 * 16 + 16 * 32 + 64 * 32)
    forward = device_model_kernel(CalibrationCase("attention", "flash", "bf16", 128, 128, 64, 8))
    backward = device_model_kernel(
        CalibrationCase("attention", "flash", "bf16", 128, 128, 64, 8, causal=True, backward=True)
    )
    assert forward is not None
    assert backward is not None
    assert forward.flops == 4 * 8 * 128 * 128 * 64
    assert backward.flops == forward.flops * 2.5 / 2
    assert device_model_kernel(CalibrationCase("host_copy", "to host", "bf16", size=10)) is None


@pytest.mark.parametrize("wrong", [
    {}, [], {"kind": "matmul", "op": "TN"}, {"kind": "matmul", "op": "TN", "dtype": "int3"},
    {"kind": "magic", "op": "TN", "dtype": "bf16"}, {"kind": "matmul", "op": "TN", "dtype": "bf16", "m": -1},
    {"kind": "matmul", "op": "TN", "dtype": "bf16", "m": 1.5}, {"kind": "matmul", "op": 3, "dtype": "bf16"},
    {"kind": "matmul", "op": "TN", "dtype": "bf16", "causal": 1}, {"kind": "a", "op": "b", "dtype": "bf16", "x": 1},
])  # fmt: skip
def test_what_is_no_case_is_refused(wrong: object) -> None:
    with pytest.raises(InputError):
        parse_calibration_case(wrong)


def test_a_table_reads_back_as_it_was(tmp_path: Path) -> None:
    table = synthetic(noise=0.1)
    assert read_raw_table(write(table, tmp_path / "t.jsonl")) == table


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(min_value=0, max_value=10**6))
def test_a_run_killed_at_any_byte_goes_on_and_ends_the_same(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    table = MeasuredTable(H100, synthetic().measurements[:8])
    whole = write(table, tmp_path_factory.mktemp("whole") / "t.jsonl").read_bytes()
    path = tmp_path_factory.mktemp("cut") / "t.jsonl"
    path.write_bytes(whole[: cut % (len(whole) + 1)])
    again = RawTableFile(path, H100)
    for each in table.measurements:
        if each.case not in again.measured_cases:
            again.append(each)
    assert path.read_bytes() == whole


def test_a_table_of_another_gpu_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write(synthetic(), tmp_path / "t.jsonl")
    with pytest.raises(InputError, match=r"another machine \(torch: 2.13.0; this machine: 2.14.0\).*--restart"):
        RawTableFile(path, replace(H100, torch="2.14.0"))
    assert RawTableFile(path, replace(H100, torch="2.14.0"), restart=True).measured_cases == set()
    assert read_raw_table(path).measurements == ()


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"),
    ("{}\n", "is not the raw table of a calibration"),
    ("[1]\n", "is not a JSON object"),
    ("nonsense\n", "is not a JSON object"),
    ('{"format": "simcluster calibration 1", "device": "x", "kind": "cuda"}\n', "'multiprocessors' is missing"),
    ('{"format": "simcluster calibration 1", "device": 3, "kind": "x", "multiprocessors": 1}\n',
     "device is 3; it must be a text"),
    ("HEAD" + '{"case": {"kind": "matmul"}}\n', "t.jsonl:2: a case needs the keys kind, op, dtype"),
    ("HEAD" + '{"case": {"kind": "matmul", "op": "TN", "dtype": "bf16"}}\n', "call must be 1e-09 to 1e+06 s"),
    ("HEAD" + '{"case": {"kind": "matmul", "op": "TN", "dtype": "bf16"}, "seconds": "1"}\n',
     "seconds is '1'; it must be a finite number"),
    ("HEAD" + '{"case": {"kind": "matmul", "op": "TN", "dtype": "bf16"}, "seconds": NaN}\n',
     "seconds is nan; it must be a finite number"),
    ("HEAD" + '{"case": {"kind": "matmul", "op": "TN", "dtype": "bf16"}, "tokens": 1}\n', "unknown key 'tokens'"),
])  # fmt: skip
def test_a_broken_table_says_where(text: str, message: str, tmp_path: Path) -> None:
    head = '{"format": "simcluster calibration 1", "device": "x", "kind": "cuda", "multiprocessors": 1}\n'
    path = tmp_path / "t.jsonl"
    path.write_text(text.replace("HEAD", head))
    with pytest.raises(InputError, match=r"t\.jsonl") as caught:
        read_raw_table(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (CalibrationCase("matmul", "TN", "bf16", m=1024, n=0, k=4096), "n is 0; m, n, k, batch must be 1 or more"),
        (CalibrationCase("memory", "ADD", "bf16", m=1024, n=1), "there is no kernel 'ADD'; known: copy, add, gelu"),
    ],
)
def test_a_case_that_is_no_kernel_is_refused(case: CalibrationCase, words: str) -> None:
    with pytest.raises(InputError, match=words):
        device_model_kernel(case)


def test_batches_are_summarised_by_median_and_quartiles() -> None:
    found = summarize_batches(CalibrationCase("memory", "add", "bf16", m=1, n=1), [5.0, 1.0, 2.0, 4.0, 3.0], 7)
    assert (found.seconds, found.low, found.high, found.fastest, found.repeats, found.calls) == (3, 2, 4, 1, 5, 7)


def test_the_file_loads_as_the_device_that_was_fitted(tmp_path: Path) -> None:
    path = tmp_path / "my_gpu.yaml"
    path.write_text(device_file_text(fitted(), "my_gpu.jsonl"))
    assert load_device(str(path)) == fitted().device
    head = path.read_text().partition("\n\n")[0]
    for part in ("2026-01-02", "NVIDIA H100 80GB HBM3", "PyTorch 2.13.0", "driver 570.1", "my_gpu.jsonl", "h100"):
        assert part in head
    assert "Not measured: 8 cases of attention efficient: No viable backend" in head


def test_a_device_file_goes_wherever_a_device_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "slow.yaml").write_text("base: h100\nmatmul: {power: 0.5}\n")
    (tmp_path / "gpus" / "slower.yaml").write_text("base: slow.yaml\nname: slower\nmatmul: {clock: 0.6}\n")
    slow = load("tiny_dp", {"cluster.device": str(tmp_path / "gpus" / "slow.yaml")})
    assert slow.cluster.device.name == "slow"
    assert slow.cluster.device == load_device({"base": "h100", "name": "slow", "matmul": {"power": 0.5}})
    monkeypatch.chdir(tmp_path)
    assert load("tiny_dp", {"cluster.device": "gpus/slow.yaml"}) == slow  # an override: from where one is
    slower = load_device("gpus/slower.yaml")
    assert (slower.name, value_at_path(slower, "matmul.power"), value_at_path(slower, "matmul.clock")) == (
        "slower",
        0.5,
        0.6,
    )
    assert load_device({"base": "gpus/slow.yaml", "launch": "9 us"}).launch == 9e-6
    assert load_cluster("dgx_a100", [("device", "gpus/slow.yaml")]).device["name"] == "slow"  # type: ignore[index]
    again = from_document(slow.document())
    assert again.cluster.device == slow.cluster.device  # self-contained: the path is gone
    text = (builtin_folder("topologies") / "flat_8.yaml").read_text()
    (tmp_path / "gpus" / "flat.yaml").write_text(re.sub("(?m)^device: .*$", "device: slow.yaml", text))
    monkeypatch.chdir("/")  # a topology's device lies beside the topology
    assert load_cluster(tmp_path / "gpus" / "flat.yaml").device == slow.cluster.topology.device
    of_file = load("tiny_dp", {"cluster": {"topology": str(tmp_path / "gpus" / "flat.yaml")}, "gpus": 8})
    assert of_file.cluster.device == slow.cluster.device


@pytest.mark.parametrize(("text", "message"), [
    (None, "no such file"),
    ("base: h1000\n", r"bad.yaml:1:1: base: there is no device 'h1000'"),
    ("base: bad.yaml\n", "chain of 'base' files is circular"),
    ("base: h100\nlaunch: fast\n", r"bad.yaml:2:1: launch"),
    ("memory: 80 GB\n", "peak"),
])  # fmt: skip
def test_a_bad_device_file_says_where(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_device(str(path))
    with pytest.raises(InputError, match=message):
        load("tiny_dp", {"cluster.device": str(path)})


@pytest.mark.parametrize(("name", "device"), [
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None), ("NVIDIA H200", "h200"),
    ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA B200", "b200"),
    ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"), ("NVIDIA GB200", "gb200"), ("NVIDIA L4", None), ("x86_64", None),
    ("NVIDIA GH200 480GB", None),
])  # fmt: skip
def test_the_catalogue_knows_gpus_by_their_drivers_names(name: str, device: str | None) -> None:
    assert find_builtin_device(replace(H100, device=name)) == device
    assert device is None or load_device(device)


def test_a_constant_is_found_by_its_path() -> None:
    device = load_device("h100")
    assert value_at_path(replace_value_at(device, "matmul.power", 0.5), "matmul.power") == 0.5
    assert value_at_path(device, "matmul.power") == 0.803
    with pytest.raises(InputError, match="no 'powr' in matmul; did you mean 'power'"):
        replace_value_at(device, "matmul.powr", 0.5)
    with pytest.raises(InputError, match="it is a single value"):
        value_at_path(device, "launch.more")


def test_a_table_is_fitted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, output, answer = write(synthetic(), tmp_path / "raw.jsonl"), tmp_path / "gpu.yaml", tmp_path / "gpu.json"
    assert main(["calibrate", "--from", str(table), "-o", str(output), "--json", str(answer)]) == 0
    told = capsys.readouterr().out
    assert "unmeasured values are from h100" in told
    assert "matmul.power" in told
    found = json.loads(answer.read_text())
    assert {each["path"]: each["value"] for each in found["constants"]} == pytest.approx(TRUE, rel=2e-3)
    assert load_device(str(output)).name == "gpu"
    assert load("tiny_dp", {"cluster.device": str(output)}).cluster.device == load_device(str(output))


@pytest.mark.parametrize(("arguments", "message"), [
    (["-o", "x.txt"], "a device file ends in .yaml"),
    (["-o", "nowhere/x.yaml"], "the folder nowhere does not exist"),
    (["-o", "x.yaml", "--from", "missing.jsonl"], "no such file"),
    (["-o", "x.yaml", "--from", "a.jsonl", "--measure-only"], "remove --measure-only"),
    (["-o", "x.yaml", "--dtype", "int4"], "cannot be measured; use bf16, fp16, fp32"),
    (["-o", "x.yaml", "--base", "h1000"], "there is no device 'h1000'"),
    ([], "-o/--output is required"),
])  # fmt: skip
def test_bad_calls_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.programs
def test_a_processor_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured where only PyTorch is, stopped, gone on with, and fitted here."""
    output = tmp_path / "cpu.yaml"
    command = [sys.executable, "-m", "simcluster", "calibrate", "-o", str(output), "--device", "cpu", "--dtype", "fp32",
               "--quick", "--measure-only", "--date", "2026-01-02"]  # fmt: skip
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, env=environment, cwd=tmp_path)
    table = output.with_suffix(".jsonl")
    while running.poll() is None and (not table.exists() or table.read_bytes().count(b"\n") < 6):
        time.sleep(0.05)
    running.kill()
    running.wait()
    before = read_raw_table(table).measurements
    assert len(before) >= 4
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=300)
    after = read_raw_table(table)
    assert after.measurements[: len(before)] == before
    assert {each.case for each in after.measurements} == set(list_calibration_cases("fp32", on_gpu=False, quick=True))
    timed = {each.case.op for each in after.timed_measurements if each.case.kind == "attention"}
    assert {"flash", "math"} <= timed
    assert all(each.fastest <= each.low <= each.seconds <= each.high for each in after.timed_measurements)
    assert main(["calibrate", "--from", str(table), "-o", str(output)]) == 0
    assert load("tiny_dp", {"cluster.device": str(output), "training.precision": "fp32"}).cluster.device.name == "cpu"
    assert "2026-01-02" in capsys.readouterr().out
