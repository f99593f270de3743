"""Layer kinds of one recorded layer, one per reduction over tp: kind documents with numbers in place of formulas.

A compiler's fusion is assumed: between two operations that are not fused (matmuls, attention, sorts, ...) all others
are one kernel, which reads its inputs and writes its outputs once; each is done as late as its readers allow. What
autograd keeps inside such a kernel is computed again in backward where keeping the kernel's inputs takes less memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils._pytree import tree_map_only

from simcluster.base.errors import InputError
from simcluster.importers.torch_modules.recorder import Operation, Recorder, TensorUse, fuse, made_by, reads_of

Amount = Counter[tuple[str, str]]
"""Number by unit ("e": of activation elements, "g": of weights' gradients) and divisor ("tp", "edge" tokens or "")."""
Shapes = Mapping[str, tuple[int, ...]]
Styles = Mapping[str, str]
"""How the tensor-parallel plan splits each parameter: "colwise", "rowwise" or ""."""
_SMALL = 16  # factor by which a small tensor, such as a norm's statistics, is smaller than the largest of its kernel
_PLAIN = ("to_copy", "add", "mul", "cat", "neg", "clone", "sum", "div", "sub", "pow", "mean", "slice")
_RUN = 0.25  # by which the place of a fused kernel follows that of the operation before it
_TILE = 128  # a custom operation's FLOP are those of a matmul in tiles of this size
_BY_PLAN = "the tensor-parallel plan does not divide the module by {value}; use another tp, or add a plan (TP_PLAN)"
_RULES = {
    "software.kernels": {"values": ["fused", "compiled", None], "reason": "its kernels are as a compiler fuses them"},
    "parallel.ep": {"values": [1], "reason": "experts of a traced module are not divided; use ep 1"},
}


class _Layer:
    """A recorded layer.

    ``ends``: places of the residual add after each reduction over tp; ``whole``: tp is not modelled. ``sharded``:
    storages that tp divides. ``kept``: tensors that are kept; ``again``: tensors from which others are computed again.
    """

    def __init__(self, recorder: Recorder, path: str, shapes: Shapes, styles: Styles) -> None:
        own = [each for each in recorder.operations if each.layer == path]
        self.recorder, self.path, self.shapes, self.styles = recorder, path, shapes, styles
        self.input, self.output = recorder.ends[path]
        self.tokens = self.input.elements // self.input.shape[-1]
        self.forward, self.backward = ([each for each in own if each.backward == phase] for phase in (False, True))
        self.linear = _place_forward(self)
        self.ends, self.whole = _find_reductions(self)
        self.sharded = _find_sharded(self)
        _place_backward(self)
        self.kept, self.again = _find_kept(self)

    def count(self, uses: Iterable[TensorUse]) -> Amount:
        """Return the bytes of tensors."""
        found = Amount()
        for use in uses:
            unit = "g" if use.storage in self.recorder.gradients else "e" if use.floating else ""
            found[unit, self.divisor(use)] += use.elements * (1 if unit else use.element_bytes)
        return found

    def divisor(self, use: TensorUse) -> str:
        """Return "tp" if tp divides a tensor."""
        return "tp" if use.storage in self.sharded else ""


def build_kinds(recorder: Recorder, path: str, shapes: Shapes, styles: Styles) -> list[dict[str, Any]]:
    """Return the kind documents of a layer in forward order, given its parameters' shapes and styles."""
    layer = _Layer(recorder, path, shapes, styles)
    begins = [0.0, *(end + _RUN for end in layer.ends[:-1]), math.inf]
    parts = [_LayerPart(layer, *places) for places in zip(begins, begins[1:], layer.ends, strict=False)]
    parts[0].parameters |= shapes.keys() - set[str]().union(*(each.parameters for each in parts))
    return [_describe_kind(each) for each in parts]


def _place_forward(layer: _Layer) -> list[Operation]:
    """Set places of the forward, from 1; return the matmuls of all tokens by weights."""
    barrier = 0
    for each in layer.forward:
        barrier += each.kind != "fused"
        each.place = barrier + _RUN * (each.kind == "fused")
    uses = [each for each in layer.forward if each.name in ("mm", "addmm") and each.sizes[0] == layer.tokens]
    linear = list({each.weight: each for each in reversed(uses) if each.weight}.values())[::-1]
    for each in linear:
        each.linear = True
    inside = set(layer.forward)
    for each in reversed(layer.forward):
        new = {use.storage for use in each.outputs} - {use.storage for use in each.inputs}
        places = [op.place for key in new for op in layer.recorder.readers[key] if op in inside]
        if each.kind == "fused" and places and layer.output.storage not in new:
            each.place = min(place if place % 1 else place - 1 + _RUN for place in places)
    return linear


def _find_reductions(layer: _Layer) -> tuple[list[float], bool]:
    """Return the places of the residual adds, before which tp ranks reduce, and whether tp is not modelled."""
    weights = [each for each in layer.forward if each.weight]
    if not weights or not weights[0].linear:
        what = f"{layer.path or 'the module'} does not begin"
        raise InputError(f"{what} with a matmul of its tokens by a weight; use other layers, or write a layer kind")
    rows = [each.place for each in weights if layer.styles[each.weight] == "rowwise"]
    last, ends = weights[-1].place, list[float]()
    for place, following in zip(rows, (*rows[1:], math.inf), strict=False):
        residual = _find_residual_add(layer, ends[-1] if ends else 0.0, place)
        if residual is not None and residual.place < following:  # others are reduced with the next one
            ends.append(residual.place)
    if len(ends) in (1, 2) and ends[-1] > last:
        return ends, False
    return [residual.place if (residual := _find_residual_add(layer, 0.0, last)) else last + _RUN], True


def _find_residual_add(layer: _Layer, begin: float, end: float) -> Operation | None:
    """Return what first reads, after place ``end``, a tensor from before the first weight after ``begin``."""
    first = min((each.place for each in layer.linear if each.place > begin), default=begin)
    before = [each for each in layer.forward if each.place < first]
    known = {layer.input.storage, *(use.storage for each in before for use in each.outputs)}
    after = (each for each in layer.forward if each.kind == "fused" and each.place > end)
    return next((each for each in after if known & {use.storage for use in each.inputs}), None)


def _find_sharded(layer: _Layer) -> set[int]:
    """Return the storages that tensor parallelism divides: from column-parallel to row-parallel matmuls."""
    found = {key for key, name in layer.recorder.parameters.items() if layer.styles.get(name)}
    for each in (*layer.forward, *layer.backward):
        divided = [use.storage in found for use in each.inputs]
        if each.weight and any(divided) and not layer.styles[each.weight]:
            what = f"{each.weight} multiplies a tensor that the tensor-parallel plan divides"
            raise InputError(f"{what}, but the plan does not name it; add it to the plan, or give no plan")
        if divided[0] != divided[1] if each.weight else any(divided):
            found |= {use.storage for use in each.outputs}
    return found


def _place_backward(layer: _Layer) -> None:
    """Set places of the backward: of the operation with the same autograd node, else of what it reads."""
    of_order = {each.order: each for each in reversed(layer.forward)}
    first = {each.inputs[0].storage: each.place for each in reversed(layer.linear)}  # of those with one input
    places = {each.order: first[each.inputs[0].storage] for each in layer.linear}
    summed: dict[int, float] = {}  # gradients of an input, and their sums
    made: dict[int, float] = {}
    for each in layer.backward:
        inputs = [use.storage for use in each.inputs if use.storage not in layer.recorder.parameters]
        each.linear = each.kind == "matmul" and each.order in places
        if each.linear and each.weight:
            summed |= {use.storage: places[each.order] for use in each.outputs}
        if each.name == "add" and all(storage in summed for storage in inputs):
            place = min(summed[storage] for storage in inputs)
            summed |= {use.storage: place for use in each.outputs}
        elif each.order in of_order:
            place = of_order[each.order].place
        else:
            before = [op.place for op in layer.forward if op.order <= each.order] or [0.0]
            place = min([made[storage] for storage in inputs if storage in made] or before[-1:])
        each.place = place + _RUN if each.kind == "fused" and place % 1 == 0 else place
        made |= {use.storage: place if place % 1 else place + _RUN - 1 for use in each.outputs}


def _writes(layer: _Layer, run: list[Operation]) -> list[TensorUse]:
    """Return the tensors that a fused kernel writes: those that others read, and those that it changes."""
    backward, made = run[0].backward, made_by(run)
    changed = {use.storage: use for each in run for use in each.outputs if use.storage not in made}
    return [*changed.values(), *(
        use for key, use in made.items()
        if key in layer.recorder.gradients or key == layer.output.storage or (not backward and key in layer.kept)
        or any(op not in run and (backward or not op.backward) for op in layer.recorder.readers[key])
    )]  # fmt: skip


def _find_kept(layer: _Layer) -> tuple[dict[int, TensorUse], dict[int, list[TensorUse]]]:
    """Return the tensors that autograd keeps after fusion, and those from which others are computed again."""
    outputs = {use.storage: use for each in layer.forward for use in each.outputs} | {layer.input.storage: layer.input}
    read = {use.storage for each in layer.backward for use in each.inputs}
    saved = {key: outputs[key] for key in outputs if key in layer.recorder.saved and key in read}
    unfused = [each for each in layer.forward if each.kind != "fused"]
    fixed = {layer.input.storage, *(use.storage for each in unfused for use in (*each.inputs, *each.outputs))}
    kept, again = {key: use for key, use in saved.items() if key in fixed}, dict[int, list[TensorUse]]()
    for run in fuse(layer.forward):
        inner = [saved[key] for key in made_by(run) if key in saved and key not in fixed]
        largest = max(use.elements for each in run for use in each.outputs)
        small = [use for use in inner if _SMALL * use.elements <= largest]
        sources = [*(use for use in reads_of(run) if use.storage in outputs), *small]
        more = [use for use in sources if use.storage not in kept]
        costs = [sum(use.elements * use.element_bytes for use in uses) for uses in (more, inner)]
        if costs[0] > costs[1]:
            kept |= {use.storage: use for use in inner}
        elif inner:
            kept |= {use.storage: outputs[use.storage] for use in more}
            again |= {use.storage: sources for use in inner if use not in small}
    return kept, {key: uses for key, uses in again.items() if key not in kept}


def _list_kernels(layer: _Layer) -> Iterator[tuple[Operation, str, Any, Amount]]:
    """Yield (operation, name, kernel, FLOP as MFU counts them) of all kernels but those of linear layers."""
    for run in (*fuse(layer.forward), *fuse(layer.backward)):
        names = dict.fromkeys(each.name.removesuffix("_backward") for each in run)
        joined = "_".join([name for name in names if name not in _PLAIN][:3])
        reads = {use.storage: use for use in reads_of(run)}
        for key in [key for key in reads if key in layer.again and run[0].backward]:
            del reads[key]
            reads |= {use.storage: use for use in layer.again[key]}
        yield run[0], joined or "elementwise", layer.count((*reads.values(), *_writes(layer, run))), Amount()
    for each in (*layer.forward, *layer.backward):
        if each.kind == "attention":
            yield from _list_attention_kernels(layer, each)
        elif each.kind != "fused" and not each.linear:
            yield each, each.name, *_describe_separate(layer, each)


def _list_attention_kernels(layer: _Layer, each: Operation) -> Iterator[tuple[Operation, str, Any, Amount]]:
    """Yield the kernels of attention: flash-attn's backward sums rows of O dO and casts an fp32 gradient of queries."""
    by_tp, window, query = layer.divisor(each.inputs[0]), each.window, each.inputs[0]
    seen = str(0.5 if each.causal else 1.0)
    if window:
        seen = f"0.5 if sequence <= {window} else {window} / sequence * (1 - {window} / sequence / 2)"
    work = math.prod(each.sizes) * (1 if window else float(seen))
    forward = Amount({(f"({seen})" if window else "", by_tp): 4 * work})
    flops = Amount({key: value * 2.5 if each.backward else value for key, value in forward.items()})
    sizes = zip(("m", "n", "k", "batch"), each.sizes, ("", "", "", by_tp), strict=True)
    kernel = {"kind": "attention", "flops": flops, "bytes": layer.count((*each.inputs, *each.outputs)), "seen": seen}
    kernel |= {name: Amount({("", divisor): size}) for name, size, divisor in sizes}
    if each.backward:
        wide, rows = Amount({("", by_tp): 4 * query.elements}), layer.count((query, each.inputs[3]))
        yield each, "attention_row_sums", rows + rows + wide + layer.count((each.inputs[4],)), Amount()
        yield each, "attention_query_grad", rows + wide, forward  # recomputation of scores does not count
    yield each, each.name, kernel, forward


def _describe_separate(layer: _Layer, each: Operation) -> tuple[Any, Amount]:
    """Return the kernel of an operation that is not fused, and its FLOP."""
    total = layer.count((*{use.storage: use for use in each.inputs}.values(), *each.outputs))
    divisors = [layer.divisor(use) for use in (*each.inputs, *each.outputs)]
    if each.kind == "matmul":
        left, right, out = (bool(by_tp) for by_tp in (*divisors[:2], divisors[-1]))
        batch = left and right and out
        by_tp = (left and out and not batch, right and out and not batch, left and right and not batch, batch)
        sizes = [Amount({("", "tp" if on else ""): size}) for on, size in zip(by_tp, each.sizes, strict=True)]
        return [*sizes, total], Amount({("", "tp" if any(by_tp) else ""): 2 * math.prod(each.sizes)})
    if each.cost is None:
        return total, Amount()
    flops, size = (Amount({("", max(divisors)): value}) for value in each.cost)
    if not each.cost[0]:
        return size, Amount()
    rows = Amount({key: value / (2 * _TILE * _TILE) for key, value in flops.items()})
    return {"kind": "matmul", "flops": flops, "m": rows, "n": _TILE, "k": _TILE, "bytes": size}, flops


def _at_edge(amount: Amount) -> Amount:
    return Amount({(unit, by or "edge"): size for (unit, by), size in amount.items()})


class _LayerPart:
    """A part of a layer that becomes a kind: places from ``begin`` to before ``until``, the residual add at ``end``."""

    def __init__(self, layer: _Layer, begin: float, until: float, end: float) -> None:
        self.layer, self.begin, self.until, self.end = layer, begin, until, end
        self.forward = [each for each in layer.forward if self.has(each.place)]
        self.linear = [each for each in self.forward if each.linear]
        if not self.linear:
            raise InputError(f"{layer.path} has a reduction over tp without a linear layer before it; give no plan")
        self.first, known = self.linear[0].place, layer.recorder.parameters
        self.parameters = {known[use.storage] for each in self.forward for use in each.inputs if use.storage in known}
        names = ((each, each.weight.removeprefix(f"{layer.path}.").removesuffix(".weight")) for each in layer.linear)
        self.names = {each: name.replace(".", "_") for each, name in names}

    def has(self, place: float) -> bool:
        """Return whether a place is in the part."""
        return self.begin <= place < self.until


def _describe_kind(part: _LayerPart) -> dict[str, Any]:
    layer, weights, degrees = part.layer, dict[str, Any](), _find_degrees(part)
    saved, inputs = _describe_saved(part)
    sections: dict[Any, dict[str, Any]] = {"entry": {}, "exit": {}}
    flops = {"forward": Amount(), "backward": Amount()}
    for each, name, kernel, work in _list_kernels(layer):
        if part.has(each.place):
            section = "entry" if each.place < part.first else "exit" if each.place >= part.end else each.place
            gradient = each.kind == "matmul" and all(use.storage in layer.recorder.gradients for use in each.outputs)
            phase = "weight_grad" if gradient else "backward" if each.backward else "forward"
            known = sections.setdefault(section, {}).setdefault(phase, {})
            known[name if name not in known else f"{name}_{len(known)}"] = kernel
            flops["backward" if each.backward else "forward"] += work
    for each in part.linear:
        style, (_, n, k, _) = layer.styles[each.weight], each.sizes
        rows, columns = (Amount({("", "tp" * (style == on)): size}) for on, size in (("colwise", n), ("rowwise", k)))
        split = {"colwise": "rows", "rowwise": "columns", "": "none"}[style]
        weights[part.names[each]] = {"rows": rows, "columns": columns, "split": split}
        sections[each.place] = {"matmul": part.names[each], **inputs.get(each, {})}
    vectors, idle = Amount(), Amount()
    for name in part.parameters - {each.weight for each in part.linear}:
        vectors["", "tp" if layer.styles[name] else ""] += math.prod(layer.shapes[name])
    for each in (each for each in part.forward if each.weight and each.sizes[3] > 1):
        idle["", ""] += round(math.prod(layer.shapes[each.weight]) * (1 - each.sizes[0] / layer.tokens))
    edges = {name: tree_map_only(Counter, _at_edge, sections.pop(name)) for name in ("entry", "exit")}
    return {
        "supports": {"parallel.tp": {"values": degrees, "reason": _BY_PLAN}, **_RULES},
        "weights": weights, "vectors": vectors, **({"idle": idle} if idle else {}), **edges,
        "body": [sections[place] for place in sorted(sections)], "saved": saved,
        "working": {"backward": _find_working(part)}, **({"model_flops": flops} if any(flops.values()) else {}),
    }  # fmt: skip


def _find_degrees(part: _LayerPart) -> list[int]:
    """Return the values of tp that divide what the plan divides."""
    divided = [1] if part.layer.whole else [0]
    for each in part.forward:
        if each.weight and (style := part.layer.styles[each.weight]):
            divided.append(int(each.sizes[1 if style == "colwise" else 2]))
        if each.kind == "attention" and part.layer.divisor(each.inputs[0]):
            divided += [use.shape[-3] for use in each.inputs[:2]]
    return [tp for tp in range(1, 65) if math.gcd(*divided) % tp == 0]


def _describe_saved(part: _LayerPart) -> tuple[dict[str, Any], dict[Operation, dict[str, str]]]:
    """Return the saved tensors that no matmul implies, by name, and the saved inputs of matmuls."""
    layer, saved, names = part.layer, dict[str, Any](), dict[int, str]()
    makers = {use.storage: each for each in reversed(layer.forward) for use in each.outputs}
    inputs = Counter(each.inputs[0].storage for each in part.linear)
    shared = part.linear[0].inputs[0].storage
    for storage, use in layer.kept.items():
        again = {key for key, sources in layer.again.items() if storage in {each.storage for each in sources}}
        readers = [op for key in (storage, *again) for op in layer.recorder.readers[key] if op.backward]
        begin = max((op.place for op in readers if op.place >= 0), default=0.0)  # of the backward that reads it first
        direct = [op for op in layer.recorder.readers[storage] if op.backward and op.kind != "matmul"]
        if not part.has(begin) or storage == shared or (inputs[storage] == 1 and not direct):
            continue
        maker = makers.get(storage)
        place = maker.place if maker else -1.0
        name = maker.name if maker and place >= part.begin else "hidden_input"
        name = f"{part.names[maker]}_output" if maker in part.linear else name
        fields: dict[str, Any] = {"keep": "input"} if storage == layer.input.storage else {}
        fields |= {"read": "W", "in_fp8": "copied"} if inputs[storage] else {}
        size = layer.count((use,))
        fields["bytes"] = size if part.first <= place < math.floor(part.end) else _at_edge(size)
        names[storage] = name if name not in saved else f"{name}_{len(saved)}"
        saved[names[storage]] = fields
    names[shared] = "input"
    given = {each: each.inputs[0].storage for each in part.linear[1:]}
    return saved, {each: {"input": names[storage]} for each, storage in given.items() if storage in names}


def _find_working(part: _LayerPart) -> Amount:
    """Return the bytes of the most temporary gradients that one kernel in the body reads."""
    inside = [each for each in part.layer.backward if part.first <= each.place < part.end]
    made = {use.storage for each in part.layer.backward for use in each.outputs}
    made -= {each.inputs[0].storage for each in part.layer.backward if each.linear}
    uses = (each for run in fuse(inside) for each in (reads_of(run), _writes(part.layer, run)))
    sizes = [part.layer.count(use for use in each if use.storage in made) for each in uses]
    return max(sizes, key=Amount.total, default=Amount())
