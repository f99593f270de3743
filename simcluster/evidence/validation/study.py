"""Format of a study file: measured runs, the scenario settings in each column, and how predictions are scored.

A study contains a short table of a paper, as facts with their source; a long table stays where it is published, and the
study names its CSV file. Kinds: ``steps`` are training steps on a base scenario, ``memory`` what scenarios hold per
GPU, ``schedules`` pipelines whose passes were timed one by one, ``collectives`` single collectives as nccl-tests times
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import Bytes
from simcluster.documents.base_spec import ONE_OR_MORE, Spec
from simcluster.documents.builtin_documents import builtin_names, builtin_path
from simcluster.documents.diagnostics import KeyPath, did_you_mean, join_or
from simcluster.documents.yaml_documents import Document, DocumentUnion, KeyLocation, read_document, validate_document
from simcluster.evidence.validation.measured_columns import (
    FormulaText,
    Fraction,
    MeasuredCollectiveColumn,
    MeasuredMemoryColumn,
    MeasuredStepColumn,
    StudyBase,
)
from simcluster.scenario.key_paths import ScenarioPath
from simcluster.schedules import schedule_entry
from simcluster.traffic.nccl.constants import TABLES, Algorithm, Collective
from simcluster.traffic.nccl.platforms import load_platform

PassKind = Literal["forward", "input_grad", "weight_grad"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class StudyConstant(Spec):
    """Constant of a study, with its source: a reference, or the rows to which the constant was fitted."""

    value: float
    source: Annotated[str, Field(min_length=1)]


class ScheduleChoice(Spec):
    """Pipeline schedule that a study uses, with the schedule's parameters.

    ``memory_limit`` and ``weight_memory`` are of zb-auto, ``group_size`` of interleaved.

    zb-auto is planned for the times of the mean slice, before ``slices`` and ``slowdown``: those known in advance.
    """

    name: str
    memory_limit: FormulaText | None = None
    weight_memory: FormulaText | None = None
    group_size: FormulaText | None = None

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        schedule_entry(self.name)
        if self.name != "zb-auto" and (self.memory_limit or self.weight_memory):
            raise InputError(f"memory_limit and weight_memory apply only to zb-auto, not to {self.name}")
        if self.name != "interleaved" and self.group_size:
            raise InputError(f"group_size applies only to interleaved, not to {self.name}; remove it")
        return self


class ScheduleColumn(Spec):
    """Column of a study's table that names a pipeline schedule, and the schedule that each name means."""

    column: str
    values: dict[str, ScheduleChoice]


class PassTimeFormulas(Spec):
    """Formulas for times (s): a microbatch's passes on the mean stage, messages, launches, and the optimizer.

    ``launch`` is added to a pass, ``send_launch`` to one with a message. ``send`` may depend on the boundary that the
    message crosses, by ``from_stage`` and ``to_stage``: messages between nodes take longer than those inside, as in
    ``near if from_stage // 8 == to_stage // 8 else far``.
    """

    forward: FormulaText
    input_grad: FormulaText
    weight_grad: FormulaText
    send: FormulaText = "0"
    launch: FormulaText = "0"
    send_launch: FormulaText = "0"
    optimizer: FormulaText = "0"


class RelativeSliceSizes(Spec):
    """Relative amounts of work in a model's first slice, an inner slice, and the last slice."""

    first: FormulaText
    inner: FormulaText
    last: FormulaText


class ScheduleStudy(StudyBase):
    """Validation study of pipeline schedules: simulates step times from known pass times.

    All formulas know the columns, the ``constants``, and what ``derive`` has computed before, in order. ``costs`` are
    of the mean stage; ``slices`` gives relative sizes of slices for each kind of pass; ``slowdown`` is by how much
    passes take longer than in the table. ``blocking_sends``, ``rendezvous`` and ``optimizer_sync`` are as in
    ``simulate_costs``. ``measured`` is the time from step to step (s); ``against`` states whether it was measured or
    calculated by the source. ``by`` names columns whose values get separate scores. ``fitted`` and ``aim`` are as in a
    step study.
    """

    kind: Literal["schedules"]
    against: Literal["measured", "calculated"] = "measured"
    constants: dict[Name, StudyConstant] = Field(default_factory=dict)
    derive: dict[Name, FormulaText] = Field(default_factory=dict)
    stages: FormulaText
    microbatches: FormulaText
    chunks: FormulaText = "1"
    schedule: ScheduleColumn
    costs: PassTimeFormulas
    slices: dict[PassKind, RelativeSliceSizes] = Field(default_factory=dict)
    slowdown: FormulaText = "0"
    blocking_sends: FormulaText = "False"
    rendezvous: FormulaText = "False"
    optimizer_sync: FormulaText = "'all_reduce'"
    sync: FormulaText = "0"
    measured: FormulaText
    label: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    fitted: str = ""
    aim: Fraction | None = None


class DerivedValue(Spec):
    """Scenario value computed by a formula from a row's cells."""

    formula: FormulaText


def _parse_derived(value: object) -> object:
    return DerivedValue.model_validate(value) if isinstance(value, dict) and set(value) == {"formula"} else value


class StudyColumn(Spec):
    """Mapping from the cells of a table column to the scenario values that they set.

    Its value is written to ``path`` (to each of them), translated by ``values`` if given, followed by ``unit`` if the
    scenario needs one; or, with ``sets``, every value represents several paths with their values, of which ``{formula:
    gpus / 8}`` depends on the row's other cells. An empty cell leaves the base scenario unchanged.
    """

    path: Annotated[tuple[ScenarioPath, ...], ONE_OR_MORE] = ()
    values: dict[str, Any] | None = None
    unit: str | None = None
    sets: dict[str, dict[ScenarioPath, Annotated[Any, BeforeValidator(_parse_derived)]]] | None = None

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        if bool(self.path) == (self.sets is not None):
            raise InputError("needs either 'path' (for all values) or 'sets' (paths for each value)")
        if self.sets is not None and (self.values is not None or self.unit is not None):
            raise InputError("'values' and 'unit' need 'path'; remove them, or use 'path' instead of 'sets'")
        return self


def _parse_column(value: object) -> object:
    return {"path": value} if isinstance(value, str | list) else value


class ScenarioStudy(StudyBase):
    """Common fields of studies whose rows are scenarios: base scenario, column mapping, labels, and aim.

    ``scenario`` is the base: a scenario file relative to the study, a built-in name, or the document itself. ``set``
    changes it for all rows, ``columns`` by row, then ``derive`` by formulas over the row. ``label`` names the columns
    that identify a row. ``fitted`` states which constants were fitted on these rows; empty: none. ``aim`` is the mean
    absolute error that the study should stay below.
    """

    scenario: dict[str, Any] | str
    set: dict[ScenarioPath, Any] = Field(default_factory=dict)
    columns: dict[str, Annotated[StudyColumn, BeforeValidator(_parse_column)]] = Field(default_factory=dict)
    derive: dict[ScenarioPath, FormulaText] = Field(default_factory=dict)
    label: tuple[str, ...] = ()
    fitted: str = ""
    aim: Fraction | None = None


class StepStudy(ScenarioStudy):
    """Validation study of measured training steps; every row is simulated as a scenario."""

    kind: Literal["steps"]
    measured: MeasuredStepColumn


class MemoryStudy(ScenarioStudy):
    """Validation study of measured memory per GPU; memory is computed without a simulation."""

    kind: Literal["memory"]
    measured: tuple[MeasuredMemoryColumn, ...]


def _check_platform(value: object) -> object:
    if isinstance(value, str):
        load_platform(value)
    return value


def _check_version(name: object) -> str:
    if not isinstance(name, str) or name not in TABLES:
        raise InputError(f"there are no tables of NCCL version {name!r}; use {join_or(TABLES)}")
    return name


PlatformName = Annotated[str, BeforeValidator(_check_platform)]
Version = Annotated[str, BeforeValidator(_check_version)]


class MeasuredCollectiveSet(Spec):
    """Properties of one set of measured collectives in a study: platform, algorithm, aim, and exclusions.

    ``fitted`` are the collectives on which the platform's constants were fitted; all others are held out. ``algorithm``
    is one of NCCL's, or "column" for the row's value (default: NCCL chooses). ``degraded`` states why the runs are too
    slow, ``left_out`` why they are excluded.
    """

    platform: PlatformName | None = None
    fitted: tuple[Collective, ...] = ()
    algorithm: Literal["column"] | Algorithm | None = None
    aim: Fraction | None = None
    degraded: str = ""
    left_out: str = ""

    @model_validator(mode="after")
    def _check_state(self) -> Self:
        if self.degraded and self.left_out:
            raise InputError("has both 'degraded' and 'left_out'; remove one of them")
        return self


class CollectiveColumns(Spec):
    """Columns of a table that identify a collective; ``size`` is the full buffer in B, as in nccl-tests."""

    set: str
    gpu: str
    nodes: str
    gpus: str
    collective: str
    size: str
    algorithm: str | None = None
    version: str | None = None


class CollectiveStudy(StudyBase):
    """Validation study of measured collectives.

    ``predictor``: the ``formula`` of NCCL's effective model, or a simulation on the ``network`` of the platform's
    topology; they agree where the links are idle and as fast as NCCL assumes. The platform of a row is its set's, else
    its GPU's in ``platforms``. Sizes below ``small`` are scored separately, since the host limits them. ``algorithms``
    translates the source's names of algorithms, ``versions`` NCCL versions to those with tables; a row without one has
    the platform's.
    """

    kind: Literal["collectives"]
    predictor: Literal["formula", "network"] = "formula"
    columns: CollectiveColumns
    measured: tuple[MeasuredCollectiveColumn, ...]
    algorithms: dict[str, Algorithm] = Field(default_factory=dict)
    versions: dict[str, Version] = Field(default_factory=dict)
    platforms: dict[str, PlatformName] = Field(default_factory=dict)
    sets: dict[str, MeasuredCollectiveSet] = Field(default_factory=dict)
    small: Bytes = 2.0**20


AnyStudy = StepStudy | MemoryStudy | ScheduleStudy | CollectiveStudy
Study = Annotated[AnyStudy, Field(discriminator="kind")]
_STUDY: DocumentUnion[AnyStudy] = DocumentUnion(Study)


@dataclass(frozen=True, slots=True)
class StudyFile:
    """Loaded study file: the study, and the parsed document with the line number of every key."""

    study: AnyStudy
    document: Document

    def key_error(self, path: Iterable[str | int], message: object) -> InputError:
        """Return an InputError about one key of the study file, with the key's line number."""
        return self.document.error_at(tuple(path), str(message))


def load_study(path: str | Path, overrides: Sequence[tuple[str, Any]] = ()) -> StudyFile:
    """Load a study from a file, or a built-in study by name, and override settings of its scenario.

    Raises InputError, naming file, line, key and a fix, also for an override of a value that rows set.
    """
    document = read_document(_study_path(Path(path)))
    if "kind" not in document.data:
        known = "steps, memory, schedules, collectives"
        raise document.error_at((), f"the study has no 'kind'; add it, as in 'kind: steps'; kinds: {known}")
    study = validate_document(_STUDY, document)
    if not overrides:
        return StudyFile(study, document)
    if not isinstance(study, ScenarioStudy):
        raise InputError(f"{document.source}: a study of {study.kind} has no scenario; remove {overrides[0][0]}")
    columns = {
        path: name
        for name, column in study.columns.items()
        for path in (*column.path, *(path for paths in (column.sets or {}).values() for path in paths))
    }
    for path, _ in overrides:
        if path in columns or path in study.derive:
            by = f"column {columns[path]!r}" if path in columns else "derive"
            raise InputError(f"{document.source}: {path} is set for each row by {by}; remove the override")
    data = {**document.data, "set": {**document.data.get("set", {}), **dict(overrides)}}
    marks: dict[KeyPath, KeyLocation] = {("set", path): KeyLocation("override", (path,)) for path, _ in overrides}
    changed = replace(document, data=data, marks={**document.marks, **marks})
    return StudyFile(validate_document(_STUDY, changed), changed)


def _study_path(path: Path) -> Path:
    names = builtin_names("scenarios/validation")
    if not path.exists() and path.suffix and (path.stem in names or "*" in path.name):
        what = path.stem if path.stem in names else f"{names[0]} {names[1]} ..."
        raise InputError(f"{path}: no such file; built-in studies are found by name: simcluster validate {what}")
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    if path.name in names:
        return builtin_path("scenarios/validation", path.name)
    near = did_you_mean(path.name, names)
    raise InputError(f"{path}: no such file, and no built-in study{near}; there are {join_or(names)}")
