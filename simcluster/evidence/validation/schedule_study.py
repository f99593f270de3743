"""The study file of a table whose runs give the time of every pass: pipelines played from these times."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.spec import Spec
from simcluster.evidence.validation.study_head import FormulaText, Fraction, StudyHead
from simcluster.schedules import schedule_function

Passes = Literal["forward", "input_grad", "weight_grad"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Constant(Spec):
    """A number of the study's own, and where it is from: a source, or the rows that it was fitted on."""

    value: float
    source: Annotated[str, Field(min_length=1)]


class ScheduleOf(Spec):
    """A schedule and its parameters: ``memory_limit`` and ``weight_memory`` of zb-auto, ``group_size`` of interleaved.

    zb-auto is made for the times of the mean slice, before ``slices`` and ``slowdown``: those that a program can have
    known when it planned.
    """

    name: str
    memory_limit: FormulaText | None = None
    weight_memory: FormulaText | None = None
    group_size: FormulaText | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        schedule_function(self.name)
        if self.name != "zb-auto" and (self.memory_limit or self.weight_memory):
            raise InputError(f"memory_limit and weight_memory are parameters of zb-auto, not of {self.name}")
        if self.name != "interleaved" and self.group_size:
            raise InputError(f"group_size is a parameter of interleaved, not of {self.name}")
        return self


class ScheduleColumn(Spec):
    """The column that names the schedule, and what its words mean."""

    column: str
    values: dict[str, ScheduleOf]


class PassTimes(Spec):
    """Seconds, by formulas: F, I and W of one microbatch on the mean stage, one message, what the host adds to a pass
    and to one with a message, and the optimizer.

    ``send`` may name the boundary that the message crosses, by ``from_stage`` and ``to_stage``: messages between
    machines take longer than those inside, as in ``near if from_stage // 8 == to_stage // 8 else far``.
    """

    forward: FormulaText
    input_grad: FormulaText
    weight_grad: FormulaText
    send: FormulaText = "0"
    launch: FormulaText = "0"
    send_launch: FormulaText = "0"
    optimizer: FormulaText = "0"


class Sizes(Spec):
    """How much work the first slice of the model has, any inner one, and the last, in one unit."""

    first: FormulaText
    inner: FormulaText
    last: FormulaText


class Schedules(StudyHead):
    """Pipelines of given times.

    All formulas know the columns, the ``constants``, and what ``derive`` has computed before, in order.  ``costs`` are
    of the mean stage; ``slices`` says, for each kind of pass, how unlike the slices are; ``slowdown`` is by how much
    passes take longer than the table says.  ``blocking_sends``, ``rendezvous`` and ``optimizer_sync`` as in
    ``simulate_costs``.
    ``measured`` is the time from step to step in seconds; ``against`` says whether it was measured or is what the
    source calculated itself.  ``by`` names columns whose values are scored apart.  ``fitted`` and ``aim`` as in a study
    of steps.
    """

    kind: Literal["schedules"]
    against: Literal["measured", "calculated"] = "measured"
    constants: dict[Name, Constant] = Field(default_factory=dict)
    derive: dict[Name, FormulaText] = Field(default_factory=dict)
    stages: FormulaText
    microbatches: FormulaText
    chunks: FormulaText = "1"
    schedule: ScheduleColumn
    costs: PassTimes
    slices: dict[Passes, Sizes] = Field(default_factory=dict)
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
