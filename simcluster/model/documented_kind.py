"""Layer kind whose document says all: weights, kernels, saved tensors (``kind_documents.KindDocument``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.field_annotations import AllowedValues
from simcluster.documents.table_formulas import evaluate
from simcluster.model.encoder import ENCODER
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.kind_documents import KindDocument, find_kind_document, find_kind_sizes, list_formulas
from simcluster.model.kind_rules import KernelRule, SectionRule, WeightRule
from simcluster.model.layer_block import layer_block
from simcluster.model.layer_kind import AttentionBackward, Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import batch_matmuls, join_sections, linear_section
from simcluster.model.quantization import cast_matmul_pair
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.transformer import Model

Names = Mapping[str, float]
_COUNTS = ("m", "n", "k", "batch", "launches", "passes", "rows")


@dataclass(frozen=True, slots=True)
class HeadExchange:
    """Names of a block's kernels that run on whole sequences, and bytes of each all-to-all before and after them."""

    kernels: frozenset[str]
    before: tuple[float, ...]
    after: tuple[float, ...]


StateGathers = Mapping[str, float]
"""Bytes of the all-gathers of context parallelism by the name of the kernel that follows."""


class DocumentedKind(LayerKind):
    """Layer kind made from a document, built in or a model's own; ops and tensors carry its name."""

    def __init__(self, name: str, own: Mapping[str, Any] | None = None) -> None:
        self.name = name  # type: ignore[misc]  # each document is an instance, not a class
        self._own = {name: own} if own is not None else None

    @property
    def document(self) -> KindDocument:
        """Return the kind's document, which is read when it is first needed."""
        found = find_kind_document(self.name, self._own)
        assert found is not None
        return found

    @property
    def mixes(self) -> bool:
        return self.document.mixes

    @property
    def modelled_with(self) -> Mapping[str, AllowedValues]:
        inner = [section for section in self.document.body[1:-1] if section.matmul and not section.wide]
        own = {path: AllowedValues(rule.values, rule.reason) for path, rule in self.document.supports.items()}
        first, *others = self.document.body
        alone = not others and (self.document.entry is None or not first.wide)
        if inner or self.document.body[-1].matmul is None or alone:
            own["training.precision"] = AllowedValues(("fp32", "fp16-mixed", "bf16-mixed"))
        if self.document.entry is not None:
            own["model.residual_streams"] = AllowedValues((None, 1))
        rules = (rule for section in self.document.body for rule in section.forward.values())
        if not self.name.startswith(ENCODER) and any(rule.kind == "attention" for rule in rules):
            own["data"] = AllowedValues((None,))
        known = {
            path: each for path, each in self.MODELLED_WITH.items() if path != "parallel.cp" or not self.document.cp
        }
        return {**known, **own}

    def check(self, model: Model, shape: RankShape) -> None:
        """Raise InputError for formulas that have no value on a rank, and for matrices and kernels without a size."""
        names = self._names(model, shape)
        for _, text in list_formulas(self.document.model_copy(update={"sizes": {}})):
            evaluate(text, names)
        for name, rule in self.document.weights.items():
            for side in (rule.rows, rule.columns, rule.groups):
                if (found := evaluate(side, names)) < 1 or found != int(found):
                    raise InputError(f"weights.{name}: {side!r} gives {found}, not a positive whole number; change it")
            if evaluate(rule.rows, names) % evaluate(rule.groups, names):
                raise InputError(
                    f"weights.{name}: {rule.groups!r} groups do not divide {rule.rows!r} rows; change them"
                )
        pairs = list(zip(self.document.weights, self.matrices(model), self.matrices(model, shape.tp), strict=True))
        for name, whole, own in pairs:
            if whole.elements != own.elements * (1 if own.split == "none" else shape.tp):
                what = f"{own.rows} x {own.columns} of {whole.rows} x {whole.columns} on each of {shape.tp} tp ranks"
                raise InputError(f"weights.{name} has {what}, unlike its split ({own.split}); list its sizes in split")
        ends = {pairs[0][1].columns, pairs[-1][1].rows} if self.document.entry is None else set()
        if ends - {model.hidden_size}:
            raise InputError("the first of weights has hidden columns, the last one hidden rows; change them")
        self.block(model, shape)

    # --- weights --------------------------------------------------------------------------------------------------

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        names = self._names(model, RankShape(1, tp=tp))
        for rule in self.document.weights.values():
            rows, columns = (int(evaluate(side, names)) for side in (rule.rows, rule.columns))
            yield WeightMatrix(rows, columns, rule.split if names.get("shards", 1) else "none")

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        names = self._names(model, RankShape(1, tp=tp))
        biases = sum(evaluate(rule.rows, names) for rule in self.document.weights.values() if rule.bias)
        return int(biases + evaluate(self.document.vectors, names))

    def count_parameters_per_token(self, model: Model) -> int:
        """Return the number of parameters that one token uses: all but the document's idle ones."""
        return self.count_parameters(model) - int(evaluate(self.document.idle, self._names(model, RankShape(1))))

    # --- kernels and FLOPs ----------------------------------------------------------------------------------------

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return the document's kernels on one rank, between the model's norm and a residual add or its own."""
        local, names = local_sizes(model, shape), self._names(model, shape)
        body = tuple(
            [self._sum_matmuls(self._section(section, shape, names), shape, names) for section in self.document.body]
        )
        gathered = int(evaluate(self.document.gathered, names))
        gathered = 0 if gathered == local.hidden else gathered
        if self.document.entry is None or self.document.exit is None:
            return replace(layer_block(self.name, model, shape, local, body), gathered_width=gathered)
        entry, end = (self._section(section, shape, names) for section in (self.document.entry, self.document.exit))
        if shape.quantization and len(body) > 1:  # a single matmul is in 16 bits
            size = local.edge_tokens * local.hidden
            casts, body = cast_matmul_pair(self.name, shape, body, rows=local.tokens, outer_size=size)
            entry = join_sections((entry, Section(casts.forward)), "none")
            end = join_sections((Section(input_grad=casts.input_grad), end), "none")
        first, middle, last = (join_sections(each, shape.recompute) for each in ([entry], body, [end]))
        return Block(self.name, first, middle, last, gathered_width=gathered)

    def _sum_matmuls(self, section: Section, shape: RankShape, names: Names) -> Section:
        """Return a section of a split encoder with the sums over tp that follow its matmuls."""
        if shape.tp == 1 or not names.get("shards"):
            return section
        ends = {"rows": "_input_grad", "columns": "", "none": "_none"}
        summed = {f"{self.name}_{name}{ends[rule.split]}" for name, rule in self.document.weights.items()}

        def add_sum(one: Kernel) -> Kernel:
            size = shape.element_bytes * one.m * one.n
            return replace(one, then=("all_reduce", self.name, size)) if one.name in summed else one

        return section.map_kernels(add_sum)

    def context_exchange(self, model: Model, shape: RankShape) -> StateGathers | HeadExchange | None:
        """Return the all-gathers of states, or the all-to-alls of heads, of context parallelism; None without it."""
        rule = self.document.cp
        if rule is None or shape.cp == 1:
            return None
        names, whole = self._names(model, shape), [section for section in self.document.body if section.whole]
        if shape.cp_states:
            return {f"{self.name}_{each}": shape.cp * evaluate(size, names) for each, size in rule.states.items()}
        kernels = frozenset(f"{self.name}_{each}" for part in whole for each in (*part.forward, *part.backward))
        unit = shape.element_bytes * names["tokens"]
        return HeadExchange(
            kernels, *(tuple([unit * evaluate(w, names) for w in ws]) for ws in (rule.before, rule.after))
        )

    def count_weights_per_token(self, model: Model) -> float:
        """Return the number of weights that multiply one token, on average where some multiply other tokens."""
        names, rules = self._names(model, RankShape(1)), self.document.weights.values()
        shares = (1.0 if each.tokens is None else _matmul_tokens(each, names) / names["tokens"] for each in rules)
        return sum(each.elements * share for each, share in zip(self.matrices(model), shares, strict=True))

    def core_flops(self, model: Model, tokens: int, backward: AttentionBackward) -> Flops:
        """Return the FLOPs outside weight matmuls, as the document counts them ("model"), or as executed ("flash")."""
        rule = self.document.model_flops
        names = self._names(model, RankShape(1), tokens)
        if backward == "model" and rule is not None:
            return Flops(float(evaluate(rule.forward, names)), float(evaluate(rule.backward, names)), 0.0)
        parts = [self._section(each, RankShape(1), names) for each in self.document.body if each.matmul is None]
        phases = ("forward", "input_grad", "weight_grad")
        return Flops(*(sum((each.flops for part in parts for each in getattr(part, name)), 0.0) for name in phases))

    def _names(self, model: Model, shape: RankShape, tokens: int | None = None) -> dict[str, float]:
        """Return the values of the document's names on one rank; ``tokens``: of a microbatch, if not the shape's."""
        sizes = find_kind_sizes(self.name, self._own or model.layer_kinds)
        rows = model.sequence_length // shape.cp
        tokens = tokens or shape.micro_batch * rows
        edge = tokens // (shape.tp if shape.sequence_parallel else 1)
        rank = {"hidden": model.hidden_size, "tokens": tokens, "edge_tokens": edge, "sequence": rows, "tp": shape.tp,
                "cp": shape.cp, "parts": shape.state_parts, "micro_batch": shape.micro_batch, "e": shape.element_bytes,
                "g": shape.gradient_write_bytes(1.0)}  # fmt: skip
        return self.document.evaluate_names(sizes, rank)

    def _section(self, section: SectionRule, shape: RankShape, names: Names) -> Section:
        """Return the kernels of one part of the document."""
        if section.matmul is not None:
            rule = self.document.weights[section.matmul]
            rows, columns, groups = (int(evaluate(each, names)) for each in (rule.rows, rule.columns, rule.groups))
            name, tokens = f"{self.name}_{section.matmul}", _matmul_tokens(rule, names)
            made = linear_section(name, shape, tokens, columns, rows // groups, bias=rule.bias, wide=section.wide)
            made = batch_matmuls(made, groups) if groups > 1 else made
            return replace(made, input_grad=()) if section.detached else made
        phases = (section.forward, (), section.backward, section.weight_grad)
        return Section(*(tuple(self._kernels(rules, names)) if rules else () for rules in phases))

    def _kernels(self, rules: Mapping[str, KernelRule], names: Names) -> Iterator[Kernel]:
        for name, rule in rules.items():
            m, n, k, batch, launches, passes, rows = (int(evaluate(getattr(rule, each), names)) for each in _COUNTS)
            size, seen = float(evaluate(rule.bytes, names)), float(evaluate(rule.seen, names))
            flops = 2.0 * batch * m * n * k if rule.flops is None else float(evaluate(rule.flops, names))
            if size or flops:
                if min(launches, batch, *((m, n, k) if rule.kind != "memory" else ())) < 1:
                    what = f"kernel {name} has {m} x {k} x {n}, batch {batch}, launches {launches}"
                    raise InputError(f"{what}; each is at least 1: change it")
                yield Kernel(
                    f"{self.name}_{name}", rule.kind, flops, size, m, n, k, batch,
                    launches=launches, passes=passes, rows=rows, seen=seen,
                    keeps_16_bits=rule.kind == "matmul",  # modules of Transformer Engine alone are quantized
                )  # fmt: skip

    # --- memory ---------------------------------------------------------------------------------------------------

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        local, names = local_sizes(model, shape), self._names(model, shape)
        name, hidden = self.name, shape.element_bytes * local.edge_tokens * local.hidden
        norm = SavedTensor(name, f"{name}_norm_input", hidden)
        saved = [
            SavedTensor(name, f"{name}_{each}", size, rule.keep, read=rule.read, in_fp8=rule.in_fp8)
            for each, rule in self.document.saved.items()
            if (size := float(evaluate(rule.bytes, names)))
        ]
        matmuls = [section for section in self.document.body if section.matmul is not None]
        return [
            *([norm] if self.document.entry is None else []),
            *(matmul_input_tensors(name, f"{name}_input", model, shape) if self.document.body[0].input is None else []),
            *saved,
            *(self._matmul_tensor(each, shape, names) for each in matmuls[1:] if each.input is None),
            *dropout_mask_tensors(name, f"{name}_dropout_mask", model, shape),
            *(self._matmul_tensor(each, shape, names, output_grad=True) for each in reversed(matmuls)),
        ]

    def _matmul_tensor(
        self, section: SectionRule, shape: RankShape, names: Names, *, output_grad: bool = False
    ) -> SavedTensor:
        """Return the saved input of a matmul, or the gradient of its output."""
        weight = self.document.weights[str(section.matmul)]
        width = evaluate(weight.rows if output_grad else weight.columns, names)
        width *= 1 if output_grad else evaluate(weight.groups, names)
        size = shape.element_bytes * _matmul_tokens(weight, names) * width
        tensor = SavedTensor(self.name, f"{self.name}_{section.matmul}_input", size, read="W")
        if output_grad:
            tensor = replace(tensor, name=f"{self.name}_{section.matmul}_output_grad", made="I")
        return tensor if section.wide else replace(tensor, in_fp8="cast")

    def forward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        return float(evaluate(self.document.working.forward, self._names(model, shape))), 0.0

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        return float(evaluate(self.document.working.backward, self._names(model, shape))), 0.0


def _matmul_tokens(weight: WeightRule, names: Names) -> int:
    """Return the number of a rank's tokens that a weight matrix multiplies: its part where ranks have all of it."""
    if weight.tokens is not None:
        return int(evaluate(weight.tokens, names))
    return int(names["edge_tokens" if weight.split == "none" else "tokens"])


def can_pass_states(model: Model) -> bool:
    """Return whether layers of a model have a kind that passes states between context-parallel ranks."""
    kinds = {kind for _, *names in model.count_layer_types() for kind in names}
    documents = [find_kind_document(kind, model.layer_kinds) for kind in kinds]
    return any(each.cp and each.cp.states for each in documents if each)
