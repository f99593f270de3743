"""Parts of a layer kind's document: sizes, weights, kernels, saved tensors and context parallelism, as formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.table_formulas import FormulaText, check_numeric

RANK_NAMES = ("hidden", "tokens", "edge_tokens", "sequence", "micro_batch", "tp", "cp", "parts", "e", "g")
"""Names in every formula, on one rank: width of the hidden state; tokens of a microbatch between norm and residual add,
and at these (fewer under sequence parallelism); tokens of one sequence; sequences of a microbatch; tensor-parallel and
context-parallel ranks; pieces of a sequence that pass states on, over all cp ranks (1: none do); bytes of an
activation's element, and to add a weight's gradient to the main one."""

Formula = Annotated[FormulaText, PlainValidator(check_numeric)]
ZERO, ONE = FormulaText("0"), FormulaText("1")
_SHAPE = ("m", "n", "k", "batch")
_KERNEL_FIELDS = {"memory": ("passes", "rows"), "matmul": _SHAPE, "attention": (*_SHAPE, "seen")}
"""Fields of a kernel of each kind, in addition to bytes, flops and launches."""


class SizeRule(Spec):
    """A size that a model gives to a layer kind, at ``least`` 0 or 1.

    ``default`` is a formula over earlier sizes, None if required.
    """

    help: str
    default: Formula | None = None
    least: Literal[0, 1] = 1


class WeightRule(Spec):
    """A weight matrix on one rank, [rows, columns], the way in which tp splits it, and whether it has a bias.

    ``tokens``: number that it multiplies, if not those of the layer, such as a text's. ``groups``: number of blocks on
    the diagonal: equal parts of the rows, each of which multiplies another part of the input, ``columns`` wide.
    """

    rows: Formula
    columns: Formula
    split: Literal["rows", "columns", "none"] = "none"
    bias: StrictBool = False
    tokens: Formula | None = None
    groups: Formula = ONE


class KernelRule(Spec):
    """A kernel: bytes alone, a list [m, n, k, batch, bytes] of a matmul, or the fields of ``kernels.Kernel``."""

    kind: Literal["memory", "matmul", "attention"] = "memory"
    bytes: Formula
    flops: Formula | None = None
    m: Formula = ZERO
    n: Formula = ZERO
    k: Formula = ZERO
    batch: Formula = ONE
    launches: Formula = ONE
    passes: Formula = ZERO
    rows: Formula = ZERO
    seen: Formula = FormulaText("0.5")

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            if len(value) != 5:
                raise InputError(f"a matmul has 5 numbers, [m, n, k, batch, bytes], not {len(value)}")
            return {"kind": "matmul", **dict(zip(("m", "n", "k", "batch", "bytes"), value, strict=True))}
        return value if isinstance(value, Mapping) else {"bytes": value}

    @model_validator(mode="after")
    def _check_fields(self) -> KernelRule:
        if idle := self.model_fields_set - {"kind", "bytes", "flops", "launches", *_KERNEL_FIELDS[self.kind]}:
            raise InputError(f"{min(idle)} has no effect on a kernel of kind {self.kind}; remove it")
        needed = _SHAPE[:3] if self.kind != "memory" else _KERNEL_FIELDS["memory"] if self.passes != self.rows else ()
        if missing := {*needed} - self.model_fields_set:
            raise InputError(f"{min(missing)} is missing in a kernel of kind {self.kind}; set {', '.join(needed)}")
        return self


class SectionRule(Spec):
    """A part of a layer: a matmul by a weight matrix, or kernels by phase and name.

    The matmul's saved input has its own tensor, or is that of ``input``; ``wide``: it runs in 16 bits where others are
    in fp8; ``detached``: its input gets no gradient. ``whole``: context-parallel ranks trade tokens for heads around
    it, so that it runs on whole sequences; such sections follow each other. Kernels of zero bytes and zero FLOP are
    omitted.
    """

    matmul: str | None = None
    input: str | None = None
    wide: StrictBool = False
    detached: StrictBool = False
    whole: StrictBool = False
    forward: Mapping[str, KernelRule] = {}
    backward: Mapping[str, KernelRule] = {}
    weight_grad: Mapping[str, KernelRule] = {}

    @model_validator(mode="after")
    def _check_fields(self) -> SectionRule:
        if self.matmul and (self.forward or self.backward or self.weight_grad):
            raise InputError("a section has either a matmul or kernels; remove one of them")
        if idle := self.model_fields_set & ({"whole"} if self.matmul else {"input", "wide", "detached"}):
            raise InputError(f"{min(idle)} has no effect on a {'matmul' if self.matmul else 'kernel'}; remove it")
        return self


class SavedRule(Spec):
    """A tensor that the backward reads: its bytes alone, or fields of ``saved_tensors.SavedTensor``."""

    bytes: Formula
    keep: Literal["input", "core", "kept", "other"] = "other"
    read: Literal["I", "W"] = "I"
    in_fp8: Literal["no", "cast", "copied", "input"] = "no"

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return value if isinstance(value, Mapping) else {"bytes": value}


class PhaseRule(Spec):
    """FLOP or bytes of the forward and of the backward."""

    forward: Formula = ZERO
    backward: Formula = ZERO


class ContextRule(Spec):
    """Context parallelism by all-to-alls of heads around the sections that are whole, by all-gathers, or by either.

    ``before``, ``after``: widths that each all-to-all sends per token. ``split``: sizes that cp divides, after tp.
    ``states``: kernels that an all-gather over cp precedes, and the bytes that each rank contributes.
    """

    before: tuple[Formula, ...] = ()
    after: tuple[Formula, ...] = ()
    split: tuple[str, ...] = ()
    states: Mapping[str, Formula] = {}


class SupportRule(Spec):
    """Values of a scenario field that the kind is modelled with, and the message for others."""

    values: tuple[Any, ...]
    reason: str = ""
