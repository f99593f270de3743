"""Layer kinds as documents: sizes, weights, kernels and saved tensors as formulas, checked when a document is read.

A kind's document is built in (``documents/catalogue/layer_kinds``), or a value of ``model.layer_kinds``. Formulas may
use the document's sizes and names, and those of ``RANK_NAMES``; they are ``documents.table_formulas``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.documents.base_spec import Spec
from simcluster.documents.catalogue import catalogue_path
from simcluster.documents.diagnostics import validate_mapping
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.documents.table_formulas import (
    FUNCTIONS,
    FormulaText,
    evaluate,
    parse_formula,
    whole_float_to_int,
)
from simcluster.documents.yaml_documents import read_document
from simcluster.model.defaults import check_count, check_natural, freeze
from simcluster.model.kind_rules import (
    ONE,
    RANK_NAMES,
    ZERO,
    ContextRule,
    Formula,
    PhaseRule,
    SavedRule,
    SectionRule,
    SizeRule,
    SupportRule,
    WeightRule,
)

BUILTIN_DOCUMENTS = (
    "mamba2", "gated_delta_net", "kda", "lightning", "diffusion_attention", "diffusion_cross_attention",
    "diffusion_mlp", "diffusion_conditioning", "shared_window_attention", "compressed_sparse_attention",
    "heavily_compressed_attention", "vision_patches", "vision_layer", "vision_merger",
)  # fmt: skip
"""Names of the layer kinds that are built in as documents."""
CODED_KINDS = ("attention", "latent_attention", "sparse_attention", "mlp", "mixture")
"""Names of the layer kinds that are built in as code."""


class KindDocument(Spec):
    """A layer kind as a document.

    ``split``: sizes that tp divides. ``multiples``: sizes that are a multiple of another one. ``vectors``: number of
    parameters outside matrices; ``idle``: those of them that a token does not use (of experts). ``entry`` and ``exit``
    replace the model's norm and the residual add. ``gathered``: width of what sequence parallelism gathers. Weights
    with split none multiply a rank's part of the sequence. ``working``: bytes of temporary tensors. ``cp``: its context
    parallelism, without which it has none. If a size ``shards`` is 0, tp splits no weights. ``model_flops``: FLOP
    outside matrices as MFU counts them, by default those that the kernels execute.
    """

    description: str
    source: str
    mixes: StrictBool = True
    sizes: Mapping[str, SizeRule] = {}
    split: tuple[str, ...] = ()
    multiples: Mapping[str, str] = {}
    supports: Mapping[str, SupportRule] = {}
    names: Mapping[str, Formula] = {}
    weights: Mapping[str, WeightRule]
    vectors: Formula = ZERO
    idle: Formula = ZERO
    entry: SectionRule | None = None
    body: tuple[SectionRule, ...]
    exit: SectionRule | None = None
    gathered: Formula = FormulaText("hidden")
    saved: Mapping[str, SavedRule] = {}
    working: PhaseRule = PhaseRule()
    cp: ContextRule | None = None
    model_flops: PhaseRule | None = None

    @model_validator(mode="after")
    def _check_names(self) -> KindDocument:
        used, rule = [section.matmul for section in self.body if section.matmul], self.cp or ContextRule()
        kernels = {name for section in self.body for name in (*section.forward, *section.backward)}
        multiples = (*self.multiples, *self.multiples.values())
        named: tuple[tuple[str, Iterable[str], str, Iterable[str]], ...] = (
            ("body: matmul", used, "weights", self.weights), ("cp.states:", rule.states, "body", kernels),
            ("split:", (*self.split, *rule.split), "sizes", self.sizes), ("multiples:", multiples, "sizes", self.sizes),
        )  # fmt: skip
        for what, names, where, there in named:
            for name in (each for each in names if each not in there):
                raise InputError(f"{what} {name!r} is not in {where}{did_you_mean(name, there)}; add it there")
        if sorted(used) != sorted(self.weights) or not used or self.body[0].matmul is None:
            raise InputError("body must have a matmul by each of weights once, and begin with one")
        for section in self.body:
            if section.input not in (None, "input", *self.saved):
                raise InputError(f"body: the input {section.input!r} of a matmul is not in saved; add it there")
        trades = {any(section.whole for section in self.body), *map(bool, (rule.before, rule.after, rule.split))}
        if len(trades) > 1 or (self.cp and not (any(trades) or rule.states)):
            raise InputError(
                "cp needs states, or before, after and split with sections that are whole; set all of these"
            )
        ends = [each for each in (self.entry, self.exit) if each]
        if len(ends) == 1 or any(each.matmul or each.whole for each in ends):
            raise InputError("entry and exit are set together, and have kernels that are not whole; change them")
        known = set[str]()
        defaults = {name: rule.default or ONE for name, rule in self.sizes.items()}
        for key, formulas in {"sizes": defaults, "names": self.names}.items():
            for name, formula in formulas.items():
                _check_formula(f"{key}.{name}", formula, known)
                if name in {*known, *RANK_NAMES, *FUNCTIONS} or not name.isidentifier():
                    raise InputError(f"{key}.{name}: the name is not a word, or is already defined; use another one")
                known.add(name)
            known |= {*RANK_NAMES}
        for key, part in self:
            if key not in ("names", "sizes"):
                for where, text in list_formulas(part, key):
                    _check_formula(where, text, known)
        return self

    def find_sizes(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return all sizes of a model's layers, given those that it states.

        Raises InputError for unknown, missing and wrong sizes.
        """
        for name in given:
            if name not in self.sizes:
                fix = f"{did_you_mean(name, self.sizes)}; it has {', '.join(self.sizes) or 'no sizes'}"
                raise InputError(f"the layer kind has no size {name!r}{fix}")
        found: dict[str, int] = {}
        for name, rule in self.sizes.items():
            if name not in given and rule.default is None:
                raise InputError(f"{name} is missing ({rule.help}); set it")
            value = given[name] if name in given else whole_float_to_int(evaluate(str(rule.default), found))
            try:
                found[name] = check_count(value) if rule.least else check_natural(value)
            except InputError as problem:
                raise InputError(f"{name} {problem}") from None
        for name, divisor in self.multiples.items():
            if found[name] % found[divisor]:
                raise InputError(f"{name} {found[name]} is not divisible by {divisor} {found[divisor]}; use a divisor")
        return found

    def evaluate_names(self, sizes: Mapping[str, int], rank: Mapping[str, float]) -> dict[str, float]:
        """Return the values of all names on one rank, given the sizes of the whole layer and ``RANK_NAMES``."""
        tp = int(rank["tp"])
        found: dict[str, float] = {**rank, **sizes, **{name: sizes[name] // tp for name in self.split}}
        for name, text in self.names.items():
            found[name] = evaluate(text, found)
        return found


def list_formulas(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, formula) of every formula in a part of a document."""
    if isinstance(value, FormulaText):
        yield where, value
    elif isinstance(value, Spec | Mapping):
        for key, each in value.items() if isinstance(value, Mapping) else value:
            yield from list_formulas(each, f"{where}.{key}" if where else key)
    elif isinstance(value, tuple):
        for each in value:
            yield from list_formulas(each, where)


def _check_formula(where: str, text: str, known: set[str]) -> None:
    for name in parse_formula(text).column_names:
        if name not in known:
            raise InputError(f"{where}: {text!r} uses {name}{did_you_mean(name, known)}, which is not defined before")


@lru_cache(maxsize=128)
def load_kind_document(name: str, own: Mapping[str, Any] | None = None) -> KindDocument:
    """Return the document of a layer kind: a model's ``own``, or the built-in one."""
    fields = read_document(catalogue_path(f"layer_kinds/{name}.yaml")).data if own is None else own
    return validate_mapping(KindDocument, fields, "")


def _schema_of_kinds() -> list[dict[str, Any]]:
    """Return the JSON schema of ``model.layer_kinds``: sizes of built-in kinds, and documents."""
    kinds = {}
    for name in BUILTIN_DOCUMENTS:
        sizes = load_kind_document(name).sizes
        known = {
            size: {"type": "integer", "minimum": rule.least, "description": rule.help}
            | ({"default": int(rule.default)} if rule.default and rule.default.isdigit() else {})
            for size, rule in sizes.items()
        }
        required = [size for size, rule in sizes.items() if rule.default is None]
        kinds[name] = {"type": "object", "properties": known, "required": required, "additionalProperties": False}
    return [{"type": "object", "properties": kinds, "additionalProperties": {"type": "object"}}, {"type": "null"}]


LayerKindFields = Annotated[
    Mapping[str, Mapping[str, Any]] | None, AfterValidator(freeze), SchemaAlternatives(_schema_of_kinds)
]


def find_kind_document(name: str, layer_kinds: Mapping[str, Mapping[str, Any]] | None) -> KindDocument | None:
    """Return the document of a layer kind, built in or a model's own; None if the kind is not a document."""
    if name in BUILTIN_DOCUMENTS:
        return load_kind_document(name)
    own = (layer_kinds or {}).get(name)
    return load_kind_document(name, own) if own is not None else None


def has_own_norm(name: str, layer_kinds: Mapping[str, Mapping[str, Any]] | None) -> bool:
    """Return whether a layer kind's document has the norm and residual add of the kind."""
    document = find_kind_document(name, layer_kinds)
    return document is not None and document.entry is not None


def find_kind_sizes(name: str, layer_kinds: Mapping[str, Mapping[str, Any]] | None) -> dict[str, int]:
    """Return the sizes of a documented layer kind; those of a model's own document are its defaults."""
    document = find_kind_document(name, layer_kinds)
    assert document is not None
    return document.find_sizes((layer_kinds or {}).get(name, {}) if name in BUILTIN_DOCUMENTS else {})


def check_layer_kinds(layer_kinds: Mapping[str, Mapping[str, Any]] | None, used: set[str]) -> None:
    """Raise InputError for sizes or documents that are wrong or that no layer uses, and for missing sizes."""
    for name in layer_kinds or {}:
        if name not in used and used <= {*CODED_KINDS, *BUILTIN_DOCUMENTS, *(layer_kinds or {})}:
            raise InputError(f"layer_kinds.{name} has no effect, since no layer has this kind; remove it")
    for name in sorted(used):
        try:
            if find_kind_document(name, layer_kinds) is not None:
                find_kind_sizes(name, layer_kinds)
        except InputError as error:
            raise InputError(f"layer_kinds.{name}: {str(error).removeprefix(': ')}") from None
