"""Measured rows of a fit (steps, pipelines, kernels), each simulated with trial values of the constants."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.devices.device import Device, kernel_seconds, load_device
from simcluster.documents.csv_tables import CsvRow, read_csv
from simcluster.documents.table_formulas import Cell, parse_formula
from simcluster.evidence.calibration.least_squares import replace_value_at, value_at_path
from simcluster.evidence.validation.fitting import (
    CONSTANT_PREFIX,
    DEVICE_PREFIX,
    SOFTWARE_PREFIX,
    FitFile,
    FitKernelRows,
    FitStudyRows,
)
from simcluster.evidence.validation.schedule_studies import plan_schedules
from simcluster.evidence.validation.step_studies import (
    MissingTable,
    StepTask,
    check_formulas,
    plan_steps,
    read_study_table,
    select_rows,
)
from simcluster.evidence.validation.study import ScheduleStudy, StepStudy, StudyConstant, StudyFile, load_study
from simcluster.model.kernels import Kernel
from simcluster.planning.footprint import StepCounts
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_fields import ClusterSpec

ConstantValues = tuple[tuple[str, float], ...]
"""Values at the paths of constants."""


RowResult = tuple[float, StepCounts | None]
"""Simulated seconds of a row, and the counts of its job, if it has one."""

_SCENARIOS: dict[str, Scenario] = {}  # per process: a row is simulated at a dozen points


@dataclass(frozen=True, slots=True)
class MeasuredStepRow:
    """Measured training step, or measured part of a step, to which constants are fitted."""

    run_key: str
    task: StepTask

    def build_scenario(self, changes: Sequence[tuple[str, Any]] = ()) -> Scenario:
        """Build the measured step's scenario with changed settings; without changes, cache the scenario."""
        if changes:
            return self.task.build_scenario(changes)
        if self.run_key not in _SCENARIOS:
            _SCENARIOS[self.run_key] = self.task.build_scenario()
        return _SCENARIOS[self.run_key]

    def simulate(self, settings: ConstantValues) -> RowResult:
        """Simulate the step with trial values of the constants; return the step time (s) and counts."""
        inside = [pair for pair in settings if pair[0].startswith((DEVICE_PREFIX, SOFTWARE_PREFIX))]
        outside = [pair for pair in settings if pair not in inside]
        found = self.task.simulate(lambda more: _apply_constants(self.build_scenario((*outside, *more)), inside))
        return found.step_time, found.facts

    def current_value(self, path: str) -> float:
        """Return the built-in value of the constant at ``path``."""
        scenario = self.build_scenario()
        if path.startswith(DEVICE_PREFIX):
            return _numeric_value_at(
                load_device(scenario.cluster.topology.device), path.removeprefix(DEVICE_PREFIX), path
            )
        return _numeric_value_at(scenario, path, path)


def _apply_constants(scenario: Scenario, settings: Sequence[tuple[str, float]]) -> Scenario:
    topology, software = scenario.cluster.topology, scenario.software
    device = before = load_device(topology.device)
    for path, value in settings:
        if path.startswith(DEVICE_PREFIX):
            device = replace_value_at(device, path.removeprefix(DEVICE_PREFIX), value)
        else:
            software = replace_value_at(software, path.removeprefix(SOFTWARE_PREFIX), value)
    update: dict[str, Any] = {"software": software}
    if device is not before:
        described = device.model_dump(mode="json", exclude_none=True)
        cluster = {name: getattr(scenario.cluster, name) for name in ClusterSpec.model_fields}
        cluster["topology"] = topology.model_copy(update={"device": described})
        update["cluster"] = ClusterSpec(**cluster)  # a copy would keep the built cluster
    return scenario.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class MeasuredPipelineRow:
    """Measured pipeline of a schedule study, simulated from known pass times; the study holds the constants."""

    run_key: str
    file: StudyFile
    study: ScheduleStudy
    row: CsvRow

    def simulate(self, settings: ConstantValues) -> RowResult:
        """Simulate the pipeline with trial values of the study's constants; return the step time (s)."""
        constants = dict(self.study.constants)
        for path, value in settings:
            constants[path.removeprefix(CONSTANT_PREFIX)] = StudyConstant(value=value, source="being fitted")
        study = self.study.model_copy(update={"constants": constants})
        (task,) = plan_schedules(self.file, study, (self.row,)).tasks
        if isinstance(task, str):
            raise InputError(task)
        return task.simulate().step_time, None

    def current_value(self, path: str) -> float:
        """Return the study's current value of the constant at ``path``."""
        return _numeric_value_at({"constants": self.study.constants}, f"{path}.value", path)


@dataclass(frozen=True, slots=True)
class MeasuredKernelRow:
    """Measured time of an isolated kernel, to which constants are fitted."""

    run_key: str
    device: Device
    kernel: Kernel
    precision: str

    def simulate(self, settings: ConstantValues) -> RowResult:
        """Compute the kernel's modelled time (s) with trial values of the device's constants."""
        device = self.device
        for path, value in settings:
            device = replace_value_at(device, path.removeprefix(DEVICE_PREFIX), value)
        return kernel_seconds(device, self.kernel, precision=self.precision), None

    def current_value(self, path: str) -> float:
        """Return the device's current value of the constant at ``path``."""
        return _numeric_value_at(self.device, path.removeprefix(DEVICE_PREFIX), path)


MeasuredRow = MeasuredStepRow | MeasuredPipelineRow | MeasuredKernelRow
"""Row that can be simulated; ``run_key`` is equal for equal runs, such as a configuration measured several times."""


@dataclass(frozen=True, slots=True)
class FitSample:
    """Measured row of a fit: label, study, the row's simulation, and its groups for cross-validation.

    ``measured`` returns its seconds from the counts of the simulated job.
    """

    label: str
    study: str
    run: MeasuredRow
    measured: Callable[[Any], float]
    model: str = ""
    scale: str = ""

    def predicted_and_measured(self, answer: RowResult) -> tuple[float, float]:
        """Return (predicted, measured) time (s) of the row; raise InputError if the prediction is not positive."""
        seconds, facts = answer
        if not seconds > 0:
            raise InputError(f"{self.label}: the simulated time is {seconds:g} s; it must be above zero")
        return seconds, self.measured(facts)


def _numeric_value_at(model: object, path: str, name: str) -> float:
    value = value_at_path(model, path)
    if not is_number(value):
        raise InputError(f"{name} is {value!r}; a constant to fit must be a number")
    return float(value)


def load_fit_samples(file: FitFile, fit: str, data: Path | None) -> list[FitSample] | MissingTable:
    """Load the measured rows of a fit, in order; return the missing table instead if a table is not available.

    Raises InputError, naming the fit, if a study or a table lacks what the fit needs.
    """
    found: list[FitSample] = []
    for rows in file.fits.fits[fit].rows:
        try:
            samples = (
                _load_kernel_samples(rows, data) if isinstance(rows, FitKernelRows) else load_study_samples(rows, data)
            )
        except InputError as problem:
            raise file.fit_error(fit, problem) from None
        if isinstance(samples, MissingTable):
            return samples
        found += samples
    return found


def load_study_samples(rows: FitStudyRows, data: Path | None) -> list[FitSample] | MissingTable:
    """Load the rows that a fit takes from a study, in order; raise InputError if no row is selected."""
    file = load_study(rows.study)
    study = file.study
    if not isinstance(study, StepStudy | ScheduleStudy):
        raise InputError(f"{rows.study}: a fit needs a study of kind steps or schedules, not {study.kind}")
    table = read_study_table(file, data)
    if isinstance(table, MissingTable):
        return table
    for name in ("where", "model", "scale"):
        check_formulas(file, table, [((name,), getattr(rows, name))], ["row"])
    taken, _ = select_rows(file, table)
    kept = [row for row in taken if rows.where is None or parse_formula(rows.where).evaluate(_formula_cells(row))]
    if not kept:
        raise InputError(f"none of the {len(taken)} rows of {rows.study} satisfies {rows.where!r}")
    plan = (
        plan_steps(file, study, tuple(kept))
        if isinstance(study, StepStudy)
        else plan_schedules(file, study, tuple(kept))
    )
    found = []
    for row, task in zip(kept, plan.tasks, strict=True):
        label = row.label(study.label)
        if isinstance(task, str):
            raise InputError(f"{rows.study}, {label}: {task}")
        run: MeasuredRow
        if isinstance(study, StepStudy):
            run_key = json.dumps([task.base, str(task.folder), task.changes, task.parts, task.less], default=str)
            run, measured = MeasuredStepRow(run_key, task), partial(study.measured.seconds, row.cells)
        else:
            run = MeasuredPipelineRow(f"{file.document.source}, row {row.number}", file, study, row)
            measured = partial(_return_seconds, task.measured)
        model, scale = _evaluate_group_name(rows.model, row), _evaluate_group_name(rows.scale, row)
        found.append(FitSample(label, study.name, run, measured, model, scale))
    return found


def _return_seconds(seconds: float, _: object) -> float:
    return seconds


def _formula_cells(row: CsvRow) -> dict[str, Cell]:
    return {**row.cells_by_formula_name(), "row": row.number}


def _evaluate_group_name(formula: str | None, row: CsvRow) -> str:
    return "" if formula is None else str(parse_formula(formula).evaluate(_formula_cells(row)))


_SHAPE = re.compile(r"(\w+)=(\w+)")
_ELEMENT = {"bf16": 2, "fp16": 2, "fp32": 4}


def _load_kernel_samples(rows: FitKernelRows, data: Path | None) -> list[FitSample] | MissingTable:
    path = data / rows.kernels if data is not None else None
    if path is None or not path.is_file():
        return MissingTable(f"needs {rows.kernels}: name its folder with --data (public original: {rows.original})")
    device = load_device(rows.device)
    return [_parse_matmul_sample(row, device, path) for row in read_csv(path)]


def _parse_matmul_sample(row: CsvRow, device: Device, path: Path) -> FitSample:
    """Parse a row of SimuMax's matmul tables, whose efficiency is relative to the peak in the same row."""
    try:
        shape = dict(_SHAPE.findall(row.texts["shape"]))
        batch, m, n, k = (int(shape[side]) for side in "bmnk")
        rate = float(row.texts["efficiency"]) * float(row.texts["peak_tflops"]) * 1e12
        result = _ELEMENT[shape["out_dtype"]] * (2 if shape["accumulate"] == "True" else 1)
    except (KeyError, ValueError) as problem:
        raise InputError(f"{path}: row {row.number} lacks the columns of SimuMax's matmul tables ({problem})") from None
    flops, size = 2.0 * batch * m * n * k, batch * (2.0 * (m * k + k * n) + result * m * n)
    if not rate > 0 or not math.isfinite(rate):
        raise InputError(f"{path}: row {row.number} has a rate of {rate:g} FLOP/s; it must be above 0")
    kernel = Kernel("product", "matmul", flops, size, m=m, n=n, k=k, batch=batch)
    label, decade = f"{m} x {k} x {n} {shape['layout']}", f"1e{math.floor(math.log10(flops))} FLOP"
    run = MeasuredKernelRow(f"{path}, row {row.number}", device, kernel, "bf16")
    return FitSample(label, path.name, run, partial(_return_seconds, flops / rate), shape["layout"], decade)
