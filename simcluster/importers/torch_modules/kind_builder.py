"""Layer kinds of a traced layer, each with one reduction over tp: sections, weights, saved tensors, parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.torch_modules.recorder import Operation
from simcluster.importers.torch_modules.traced_layer import ENTRY, RUN, Amount, TracedLayer, add


@dataclass(slots=True)
class TracedKind:
    """A layer kind of a traced layer: sections as lists of parts, each a weight's name or kernels by phase."""

    entry: dict[str, Any] = field(default_factory=dict)
    body: list[dict[str, Any]] = field(default_factory=list)
    exit: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    saved: dict[str, dict[str, Any]] = field(default_factory=dict)
    vectors: Amount = field(default_factory=dict)
    idle: Amount = field(default_factory=dict)
    working: Amount = field(default_factory=dict)
    divided: list[int] = field(default_factory=list)
    mixes: bool = False
    experts: bool = False


def build_kinds(layer: TracedLayer) -> list[TracedKind]:
    """Return a layer's kinds in forward order, each with one reduction."""
    found, begin = [], 0.0
    for end in layer.ends:
        last = math.floor(end) + RUN if end != layer.ends[-1] else math.inf
        found.append(_KindBuilder(layer, begin, last, end))
        begin = math.floor(end) + ENTRY
    owners = {key: _find_owner(layer, key, found) for key in layer.kept[0]}
    unused = set(layer.shapes)
    for builder in found:
        unused -= builder.add_parts(owners)
    for name in sorted(unused):
        found[0].add_vector(name)
    return [builder.kind for builder in found]


def _find_owner(layer: TracedLayer, storage: int, kinds: list[_KindBuilder]) -> _KindBuilder:
    """Return the kind whose backward reads a kept tensor first."""
    again = layer.kept[1]
    names = {storage, *(key for key, sources in again.items() if storage in {use.storage for use in sources})}
    places = [op.place for key in names for op in layer.readers[key] if op.backward and op.place >= 0]
    return next(kind for kind in reversed(kinds) if kind.begin <= max(places, default=0.0))


class _KindBuilder:
    """Builder of one kind of a layer, from what lies at places ``begin`` to ``last``, its body's last matmul at end."""

    def __init__(self, layer: TracedLayer, begin: float, last: float, end: float) -> None:
        self.layer, self.begin, self.last, self.end, self.kind = layer, begin, last, end, TracedKind()
        self.linear = [each for each in layer.forward if each.linear and self._has(each.place)]
        if not self.linear:
            raise InputError(f"{layer.path} has a reduction over tp without a linear layer before it; give no plan")
        self.first = self.linear[0].place

    def _has(self, place: float) -> bool:
        return self.begin <= place <= self.last

    def add_parts(self, owners: Mapping[int, _KindBuilder]) -> set[str]:
        """Add kernels, weights, saved tensors and vectors to the kind; return the names of its parameters."""
        layer, kind, parts = self.layer, self.kind, dict[float, dict[str, Any]]()
        for place, phase, name, kernel in layer.all_kernels():
            if self._has(place):
                there = parts.setdefault(place, {}).setdefault(phase, {})
                there[name if name not in there else f"{name}_{len(there)}"] = kernel
        self._add_saved(owners)
        known = layer.trace.parameters
        for each in self.linear:
            name, style, (_, n, k, _) = self._name_of(each), layer.styles[each.weight], each.sizes
            rows, columns = style == "colwise", style == "rowwise"
            bias = {"bias": True} if any(use.storage in known for use in each.inputs[2:]) else {}
            sides: dict[str, Any] = {"rows": {("1", rows): float(n)}, "columns": {("1", columns): float(k)}}
            kind.weights[name] = {**sides, "split": "rows" if rows else "columns" if columns else "none", **bias}
            parts[each.place] = {"matmul": name, **self._input_of(each)}
            kind.divided += [n] * rows + [k] * columns
        placed = sorted(parts.items())
        kind.entry = _join(part for place, part in placed if place < self.first)
        kind.body = [part for place, part in placed if self.first <= place <= self.end]
        kind.exit = _join(part for place, part in placed if place > self.end)
        kind.divided += [1] if layer.whole else []
        own = [each for each in layer.forward if self._has(each.place)]
        for each in own:
            attends = each.kind == "attention"
            between = each.kind == "matmul" and not each.weight
            kind.mixes |= attends or between or each.name in ("convolution", "cumsum") or each.cost is not None
            if each.weight and each.sizes[3] > 1:
                kind.experts, share = True, 1 - each.sizes[0] / layer.tokens
                kind.idle = add(kind.idle, {("1", False): math.prod(layer.shapes[each.weight]) * share})
            if each.weight and not each.linear and (style := layer.styles[each.weight]):
                kind.divided.append(each.sizes[1 if style == "colwise" else 2])
            if attends and each.inputs[0].storage in layer.sharded:
                kind.divided += [use.shape[-3] for use in each.inputs[:2]]
        names = {known[use.storage] for each in own for use in each.inputs if use.storage in known}
        for name in sorted(names - {known.get(use.storage) for each in self.linear for use in each.inputs}):
            self.add_vector(name)
        kind.working = self._find_working()
        return names

    def add_vector(self, name: str) -> None:
        """Count a parameter outside the weights of linear layers."""
        count: Amount = {("1", bool(self.layer.styles[name])): float(math.prod(self.layer.shapes[name]))}
        self.kind.vectors = add(self.kind.vectors, count)

    def _name_of(self, each: Operation) -> str:
        return each.weight.removeprefix(f"{self.layer.path}.").removesuffix(".weight").replace(".", "_")

    def _input_of(self, each: Operation) -> dict[str, str]:
        storage = each.inputs[0].storage
        if each is self.linear[0]:
            return {}
        name = "input" if storage == self.linear[0].inputs[0].storage else self._saved_names.get(storage)
        return {"input": name} if name else {}

    def _add_saved(self, owners: Mapping[int, _KindBuilder]) -> None:
        layer, kept = self.layer, self.layer.kept[0]
        makers = {use.storage: each for each in reversed(layer.forward) for use in each.outputs}
        inputs = Counter(each.inputs[0].storage for each in self.linear)
        self._saved_names: dict[int, str] = {}
        for storage, use in kept.items():
            readers = [op for op in layer.readers[storage] if op.backward and op.kind != "matmul"]
            implied = storage == self.linear[0].inputs[0].storage or (inputs[storage] == 1 and not readers)
            if owners[storage] is not self or implied:
                continue
            name = base = self._describe(storage, makers.get(storage))
            while name in self.kind.saved:
                name = f"{base}_{len(self.kind.saved)}"
            self._saved_names[storage] = name
            place = makers[storage].place if storage in makers else -1.0
            fields: dict[str, Any] = {"keep": "input"} if storage == layer.input.storage else {}
            fields |= {"read": "W", "in_fp8": "copied"} if inputs[storage] else {}
            edge = not self.first <= place < self.end
            self.kind.saved[name] = {"bytes": layer.total((use,)), "edge": edge, **fields}

    def _describe(self, storage: int, maker: Operation | None) -> str:
        for each in self.layer.forward:
            if each.kind == "attention":
                uses = (*each.inputs[:3], *each.outputs)
                for name, use in zip(("query", "key", "value", "attended", "log_sum_exp"), uses, strict=True):
                    if use.storage == storage:
                        return name
        if maker is None or maker.place < self.begin:
            return "hidden_input"
        return f"{self._name_of(maker)}_output" if maker.linear else maker.name.strip("_")

    def _find_working(self) -> Amount:
        """Return the bytes of the largest temporary gradients of one kernel in the body."""
        layer, found = self.layer, [Amount()]
        made = {use.storage for each in layer.backward for use in each.outputs}
        kept = {each.inputs[0].storage for each, _ in layer.input_gradients()}
        inside = [each for each in layer.backward if self.first <= each.place <= self.end]
        groups = [*layer.runs(inside), *([each] for each in inside if each.kind == "attention")]
        for run in groups:
            writes = layer.writes(run) if run[0].kind == "fused" else run[0].outputs
            both = [use for use, _ in layer.reads(run)], writes
            found += [layer.total(use for use in uses if use.storage in made - kept) for uses in both]
        return max(found, key=lambda amount: sum(amount.values()))


def _join(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return parts as one: the kernels of all, by phase and name."""
    found: dict[str, Any] = {}
    for part in parts:
        for phase, kernels in part.items():
            for name, kernel in kernels.items():
                known = found.setdefault(phase, {})
                known[name if name not in known else f"{name}_{len(known)}"] = kernel
    return found
