"""Layer kinds from a recorded trace: fused kernels, matmuls, saved tensors and parameters of one layer, by number.

A compiler's fusion is assumed: between two operations that are not fused (matmuls, attention, sorts, ...) all others
are one kernel, which reads its inputs and writes its outputs once; each is done as late as its readers allow. What
autograd keeps inside such a kernel is computed again in backward where keeping the kernel's inputs takes less memory.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.torch_modules.recorder import Operation, TensorUse, Trace

Amount = dict[tuple[str, bool], float]
"""Number by unit ("e": of activation elements, "g": of weights' gradients, "1") and by whether tp divides it."""
_SMALL = 16  # factor by which a small tensor, such as a norm's statistics, is smaller than the largest of its kernel
_PLAIN = ("to_copy", "add", "mul", "cat", "neg", "clone", "sum", "div", "sub", "pow", "mean", "slice")
RUN, ENTRY = 0.25, 0.5  # places after barrier number N: of the fused kernel there, and of its part in the next kind
_SUM = 0.125  # by which the sum of a token's rows of experts precedes the residual add


def add(*amounts: Amount) -> Amount:
    """Return the sum of amounts."""
    found: Amount = defaultdict(float)
    for each in amounts:
        for key, value in each.items():
            found[key] += value
    return dict(found)


class TracedLayer:
    """Analysis of one layer of a trace; ``plan`` has the tensor-parallel style of modules or parameters by pattern."""

    def __init__(self, trace: Trace, path: str, shapes: Mapping[str, tuple[int, ...]], plan: Mapping[str, str]) -> None:
        self.trace, self.path, self.shapes = trace, path, shapes
        self.input, self.output = trace.layer_inputs[path], trace.layer_outputs[path]
        self.tokens, self.hidden = self.input.elements // self.input.shape[-1], self.input.shape[-1]
        near = trace.layer_operations[path]
        self.forward = [each for each in near if not each.backward]
        self.backward = [each for each in near if each.backward]
        self.styles = {name: _find_style(name, plan) for name in shapes}
        self.readers = trace.readers
        self._place_forward()
        biased = {each.order for each in self.forward if each.linear}  # whose sums the kind's bias means
        self.backward = [each for each in self.backward if each.name != "sum" or each.order not in biased]
        self.sharded = self._find_sharded()
        self._place_backward()

    # --- places ----------------------------------------------------------------------------------------------------

    def _place_forward(self) -> None:
        barrier, used, inside = 0, set[str](), {id(each) for each in self.forward}
        for each in self.forward:
            barrier += each.kind != "fused"
            each.place = barrier if each.kind != "fused" else barrier + RUN
            m = each.sizes[0]
            if each.name in ("mm", "addmm") and each.weight and m == self.tokens and each.weight not in used:
                used.add(each.weight)
                each.linear = True
        for each in reversed(self.forward):
            new = {use.storage for use in each.outputs} - {use.storage for use in each.inputs}
            readers = [op for use in each.outputs for op in self.readers[use.storage] if id(op) in inside]
            if each.kind == "fused" and new and readers and self.output.storage not in new:
                places = [op.place for op in readers]
                each.place = min(p if p % 1 else p - 1 + RUN for p in places)
        self.ends = self._find_ends()
        self.ends = [self._cut(begin, end) for begin, end in zip((0.0, *self.ends), self.ends, strict=False)]

    def _find_ends(self) -> list[float]:
        """Return the places of the matmuls after which tp ranks reduce; that of the last weight without a plan.

        Row-parallel matmuls with one residual add after them are reduced together. ``whole``: tp is not modelled.
        """
        places = [(each.place, each) for each in self.forward if each.weight]
        if not places or not min(places, key=lambda pair: pair[0])[1].linear:
            raise InputError(f"{self.path} does not begin with a matmul of its tokens by a weight; use other layers")
        rows = [place for place, each in places if "rowwise" in self.styles[each.weight]]
        last, ends = max(place for place, _ in places), list[float]()
        for place, following in zip(rows, (*rows[1:], math.inf), strict=False):
            add = self._find_residual_add(ends[-1] if ends else 0.0, place)
            if add is not None and add.place < following:
                ends.append(place)
        self.whole = len(ends) not in (1, 2) or ends[-1] != last
        return [last] if self.whole else ends

    def _find_residual_add(self, begin: float, end: float) -> Operation | None:
        """Return what first reads, after place ``end``, a tensor from before the first weight after ``begin``."""
        first = min((each.place for each in self.forward if each.linear and each.place > begin), default=begin)
        before = [each for each in self.forward if each.place < first]
        known = {self.input.storage, *(use.storage for each in before for use in each.outputs)}
        after = (each for each in self.forward if each.kind == "fused" and each.place > end)
        return next((each for each in after if known & {use.storage for use in each.inputs}), None)

    def _cut(self, begin: float, end: float) -> float:
        """Move what follows the residual add after a reduction to the next kind's entry; return the body's end.

        Ranks reduce the output of a linear layer at once, that of experts when each token's rows are summed.
        """
        add = self._find_residual_add(begin, end)
        experts = any(each.weight and each.sizes[3] > 1 for each in self.forward if begin < each.place <= end)
        place = add.place if add is not None and experts else end + RUN
        run = [each for each in self.forward if each.kind == "fused" and each.place == place]
        at = next((number for number, each in enumerate(run) if each is add), -1)
        for number, each in enumerate(run):
            if number < at and experts:
                each.place = place - _SUM
            elif number > at and end != self.ends[-1]:
                each.place = place - RUN + ENTRY
        return place - _SUM if experts and add is not None else end

    def _place_backward(self) -> None:
        of_order: dict[int, Operation] = {}
        for each in self.forward:
            of_order.setdefault(each.order, each)
        matmul = {use.storage: place for each, place in self.input_gradients() for use in each.outputs}
        made: dict[int, float] = {}
        sums: list[Operation] = []
        for each in self.backward:
            source = of_order.get(each.order)
            inputs = [use.storage for use in each.inputs if use.storage not in self.trace.parameters]
            if each.name == "add" and all(storage in matmul for storage in inputs):  # of gradients of one input
                place = min(matmul[storage] for storage in inputs)
                matmul |= {use.storage: place for use in each.outputs}
                sums.append(each)
            elif source is not None:
                place = source.place
            else:
                before = [op.place for op in self.forward if op.order <= each.order] or [0]
                place = min([made[storage] for storage in inputs if storage in made] or before[-1:])
            each.place = place + RUN if each.kind == "fused" and place % 1 == 0 else place
            made |= {use.storage: place if place % 1 else place + RUN - 1 for use in each.outputs}
        for each in reversed(sums):  # done with the sum that reads it
            readers = self.readers[each.outputs[0].storage]
            if readers and all(any(op is one for one in sums) for op in readers):
                each.place = min(op.place for op in readers)

    def input_gradients(self) -> Iterator[tuple[Operation, float]]:
        """Yield the matmuls of the backward that multiply by a weight of a linear layer, with the weight's place."""
        places = {(each.order, each.weight): each.place for each in self.forward if each.linear}
        for each in self.backward:
            if each.kind == "matmul" and (each.order, each.weight) in places:
                yield each, places[each.order, each.weight]

    # --- tensor parallelism ----------------------------------------------------------------------------------------

    def _find_sharded(self) -> set[int]:
        """Return the storages that tensor parallelism divides: from column-parallel to row-parallel matmuls."""
        found = {key for key, name in self.trace.parameters.items() if self.styles.get(name)}
        for each in (*self.forward, *self.backward):
            divided = [use.storage in found for use in each.inputs]
            if each.weight and any(divided) and not self.styles[each.weight]:
                what = f"{each.weight} multiplies a tensor that the tensor-parallel plan divides"
                raise InputError(f"{what}, but the plan does not name it; add it to the plan, or give no plan")
            if divided[0] != divided[1] if each.weight else any(divided):
                found |= {use.storage for use in each.outputs}
        return found

    def amount(self, use: TensorUse, elements: float) -> Amount:
        """Return the bytes of a tensor's elements."""
        unit, size = ("e", 1) if use.floating else ("1", use.element_bytes)
        if use.storage in self.trace.gradients:
            unit, size = "g", 1
        return {(unit, use.storage in self.sharded): float(elements * size)}

    def total(self, uses: Iterable[TensorUse]) -> Amount:
        """Return the bytes of tensors."""
        return add(*(self.amount(use, use.elements) for use in uses))

    # --- what autograd keeps ---------------------------------------------------------------------------------------

    @cached_property
    def kept(self) -> tuple[dict[int, TensorUse], dict[int, list[TensorUse]]]:
        """Tensors that are kept, by storage; and for those computed again, the tensors from which they are."""
        outputs = {use.storage: use for each in self.forward for use in each.outputs} | {self.input.storage: self.input}
        read = {use.storage for each in self.backward for use in each.inputs}
        saved = {key: outputs[key] for key in self.trace.saved if key in outputs and key in read}
        fixed = {use.storage for each in self.forward if each.kind != "fused" for use in (*each.inputs, *each.outputs)}
        kept = {key: use for key, use in saved.items() if key in fixed or key == self.input.storage}
        again: dict[int, list[TensorUse]] = {}
        for run in self.runs(self.forward):
            inner = [saved[key] for key in self.made_by(run) if key in saved and key not in fixed]
            largest = max(use.elements for each in run for use in each.outputs)
            small = [use for use in inner if _SMALL * use.elements <= largest]
            sources = [use for use, _ in self.reads(run) if use.storage in outputs]
            more = [use for use in (*sources, *small) if use.storage not in kept]
            if sum(use.bytes for use in more) <= sum(use.bytes for use in inner):
                kept |= {use.storage: outputs[use.storage] for use in more} if inner else {}
                again |= {use.storage: [*sources, *small] for use in inner if use not in small}
            else:
                kept |= {use.storage: use for use in inner}
        return kept, {key: uses for key, uses in again.items() if key not in kept}

    def runs(self, operations: Iterable[Operation]) -> list[list[Operation]]:
        """Return the operations of each fused kernel: those at one place, between others of the backward there."""
        found: dict[tuple[float, int], list[Operation]] = defaultdict(list)
        cuts = Counter[float]()
        for each in operations:
            place = each.place
            if each.kind == "fused":
                found[place, cuts[place]].append(each)
            else:
                cuts[place] += 1
        return [found[key] for key in sorted(found)]

    @staticmethod
    def made_by(run: Iterable[Operation]) -> dict[int, TensorUse]:
        """Return the tensors that a fused kernel makes, by storage."""
        made: dict[int, TensorUse] = {}
        for each in run:
            before = {use.storage for use in each.inputs} - made.keys()
            made |= {use.storage: use for use in each.outputs if use.storage not in before}
        return made

    def reads(self, run: list[Operation]) -> list[tuple[TensorUse, int]]:
        """Return the tensors that a fused kernel reads, with the number of elements."""
        made, found = self.made_by(run), dict[int, dict[Any, TensorUse]]()
        for each in run:
            for use in each.inputs:
                if use.storage not in made:
                    found.setdefault(use.storage, {})[use.shape, use.offset] = use
        return [
            (one := next(iter(uses.values())), min(one.whole, sum(use.elements for use in uses.values())))
            for uses in found.values()
        ]

    # --- kernels ---------------------------------------------------------------------------------------------------

    def _fused_kernel(self, run: list[Operation]) -> Amount:
        backward, again = run[0].backward, self.kept[1]
        reads: dict[int, Amount] = {}
        for use, elements in self.reads(run):
            sources = again.get(use.storage) if backward else None
            for each, size in [(each, each.elements) for each in sources] if sources else [(use, elements)]:
                reads[each.storage] = self.amount(each, size)
        return add(*reads.values(), self.total(self.writes(run)))

    def writes(self, run: list[Operation]) -> list[TensorUse]:
        """Return the tensors that a fused kernel writes: those that others read, and those that it changes."""
        backward, own, made = run[0].backward, {id(each) for each in run}, self.made_by(run)
        changed = {use.storage: use for each in run for use in each.outputs if use.storage not in made}
        return [*changed.values(), *(
            use for key, use in made.items()
            if key in self.trace.gradients or key == self.output.storage or (not backward and key in self.kept[0])
            or any(id(op) not in own and (backward or not op.backward) for op in self.readers[key])
        )]  # fmt: skip

    def _kernels_of(self, each: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the kernels of an operation that is not fused, by name."""
        total = self.total([*{use.storage: use for use in each.inputs}.values(), *each.outputs])
        divided = [use.storage in self.sharded for use in (*each.inputs, *each.outputs)]
        if each.kind == "attention":
            yield from self._attention_kernels(each, total)
        elif each.kind == "matmul":
            left, right, out = *divided[:2], divided[-1]
            by_tp = {"m": left and out, "n": right and out, "k": left and right, "batch": left and right and out}
            by_tp = {name: on and (name == "batch" or not by_tp["batch"]) for name, on in by_tp.items()}
            sizes = zip(("m", "n", "k", "batch"), each.sizes, strict=True)
            kernel = {name: {("1", by_tp[name]): float(value)} for name, value in sizes}
            yield each.name.strip("_"), {"kind": "matmul", **kernel, "bytes": total}
        elif each.cost is not None:
            flops, size = ({("1", any(divided)): float(value)} for value in each.cost)
            yield each.name, {"cost": flops, "bytes": size}
        else:
            yield each.name.strip("_"), {"bytes": total}

    def _attention_kernels(self, each: Operation, total: Amount) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the kernels of flash attention (flash-attn: row sums of O dO, cast of an fp32 gradient of queries)."""
        query, out = each.inputs[0], each.inputs[3 if each.backward else 0]
        statistics = each.inputs[4] if each.backward else each.outputs[1]
        by_tp = query.storage in self.sharded
        sizes = zip(("m", "n", "k", "batch"), each.sizes, strict=True)
        kernel: dict[str, Any] = {name: {("1", by_tp and name == "batch"): float(value)} for name, value in sizes}
        settings = {"kind": "attention", "backward": each.backward, "causal": each.causal, "window": each.window}
        if not each.backward:
            yield "attention", {**settings, **kernel, "bytes": total}
            return
        wide: Amount = {("1", by_tp): 4.0 * query.elements}
        rows = self.total((query, out))
        yield "attention_row_sums", {"bytes": add(rows, rows, wide, self.total((statistics,)))}
        yield "attention_grad", {**settings, **kernel, "bytes": total}
        yield "attention_query_grad", {"bytes": add(rows, wide)}

    # --- all kernels --------------------------------------------------------------------------------------------------

    def all_kernels(self) -> Iterator[tuple[float, str, str, dict[str, Any]]]:
        """Yield (place, phase, name, numbers) of all kernels but those of linear layers."""
        for operations, phase in ((self.forward, "forward"), (self.backward, "backward")):
            for run in self.runs(operations):
                yield run[0].place, phase, _name_run(run), {"bytes": self._fused_kernel(run)}
        linear = {(each.order, each.sizes[3]) for each in self.forward if each.linear}
        for each in (*self.forward, *self.backward):
            if each.kind != "fused" and not (each.kind == "matmul" and (each.order, each.sizes[3]) in linear):
                gradient = each.backward and all(use.storage in self.trace.gradients for use in each.outputs)
                phase = "weight_grad" if gradient else "backward" if each.backward else "forward"
                for name, kernel in self._kernels_of(each):
                    yield each.place, phase, name, kernel


def _name_run(run: Iterable[Operation]) -> str:
    """Return a name for a fused kernel: up to three of its operations."""
    names = dict.fromkeys(each.name.strip("_").removesuffix("_backward") for each in run)
    told = [name for name in names if name not in _PLAIN][:3]
    return "_".join(told or ["elementwise"])


def _find_style(name: str, plan: Mapping[str, str]) -> str:
    """Return how a plan splits a parameter: "colwise", "rowwise" or ""."""
    module = name.rpartition(".")[0]
    found = next((style for key, style in plan.items() if fnmatchcase(name, key) or fnmatchcase(module, key)), "")
    return next((each for each in ("colwise", "rowwise") if each in found), "")
