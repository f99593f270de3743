"""Recorder of the operations of a module's forward and backward on PyTorch's meta tensors, and of what autograd keeps.

Imports PyTorch, so only ``torch_import`` may import it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcluster.base.errors import InputError

OpKind = Literal["fused", "separate", "matmul", "attention"]
Costs = Mapping[str, Callable[..., tuple[float, float]]]
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
_SEPARATE = (
    "sort", "topk", "scatter", "scatter_add", "index_add", "index_put", "embedding_dense_backward", "cumsum", "histc",
    "convolution", "convolution_backward", "native_layer_norm_backward", "_fused_rms_norm_backward",
)  # fmt: skip
"""Operations that a compiler does not fuse with others."""
_FREE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh")


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor of an operation: its storage (of ``whole`` elements), shape and place there, and element size.

    ``floating``: its elements have the size of activations, so that they change with the training's precision.
    """

    storage: int
    whole: int
    shape: tuple[int, ...]
    offset: int
    element_bytes: int
    floating: bool

    @property
    def elements(self) -> int:
        """Number of elements that a kernel moves; an expanded tensor has no more than its storage."""
        return min(math.prod(self.shape), self.whole)

    @property
    def bytes(self) -> int:
        """Number of bytes that a kernel moves."""
        return self.elements * self.element_bytes


@dataclass(slots=True)
class Operation:
    """One recorded operation; a matmul's inputs begin with its operands, ``weight`` is the one that is a parameter.

    ``sizes``: m, n, k and batch of a matmul or of attention. ``place`` and ``linear`` are set by ``traced_layer``.

    ``order``: sequence number of its autograd node, by which operations of the backward find those of the forward.
    ``layer`` is the path of the layer whose forward runs (forward only).
    """

    name: str
    kind: OpKind
    backward: bool
    order: int
    layer: str
    inputs: tuple[TensorUse, ...]
    outputs: tuple[TensorUse, ...]
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    weight: str = ""
    causal: bool = False
    window: int = 0
    cost: tuple[float, float] | None = None
    place: float = -1.0
    linear: bool = False


@dataclass
class Trace:
    """All operations of one forward and backward, and per layer its inputs, outputs and saved storages."""

    operations: list[Operation] = field(default_factory=list)
    saved: dict[int, TensorUse] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    layer_inputs: dict[str, TensorUse] = field(default_factory=dict)
    layer_outputs: dict[str, TensorUse] = field(default_factory=dict)
    layer_orders: dict[str, tuple[int, int]] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)  # layers that return one tensor

    @cached_property
    def readers(self) -> Mapping[int, list[Operation]]:
        """Operations that read a storage, by storage."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for each in self.operations:
            for use in each.inputs:
                found[use.storage].append(each)
        return found

    @cached_property
    def layer_operations(self) -> Mapping[str, list[Operation]]:
        """Operations of a layer's forward and backward, by the layer's path."""
        found: dict[str, list[Operation]] = {path: [] for path in self.layer_orders}
        orders = sorted((last, first, path) for path, (first, last) in self.layer_orders.items())
        for each in self.operations:
            at = bisect_left(orders, (each.order,))
            if each.layer or (at < len(orders) and orders[at][1] <= each.order):
                found[each.layer or orders[at][2]].append(each)
        return found


def use_of(tensor: torch.Tensor) -> TensorUse:
    """Return the record of a tensor."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    floating = tensor.dtype in (torch.bfloat16, torch.float16)
    return TensorUse(
        storage._cdata, storage.nbytes() // size, tuple(tensor.shape), tensor.storage_offset(), size, floating
    )


def _uses(values: object) -> tuple[TensorUse, ...]:
    return tuple(use_of(each) for each in tree_leaves(values) if isinstance(each, torch.Tensor))


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # PyTorch may be absent where types are checked
    """Dispatch mode that records every operation which moves data; ``costs`` prices those of other libraries."""

    def __init__(self, module: torch.nn.Module, layers: Mapping[str, torch.nn.Module], costs: Costs) -> None:
        super().__init__()
        self.trace = Trace(parameters={use_of(p).storage: name for name, p in module.named_parameters()})
        self.backward, self._costs, self._layers, self._layer = False, costs, layers, ""
        self._alive: list[Any] = []  # storages keep their identity while they live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero") and self._layer:
            what = f"the forward of {self._layer} reads the value of a tensor, which a trace without data does not have"
            raise InputError(f"{what}; rewrite that part, or give the layer a path without it")
        found = func(*args, **(kwargs or {}))
        self._alive.append(found)
        node = torch._C._current_autograd_node() if self.backward else None
        if node is not None and "AccumulateGrad" in node.name():
            self.trace.gradients.update(each.storage for each in _uses((args, found)))
            return found
        inputs, outputs = _uses((args, kwargs or {})), _uses(found)
        changed = name.endswith("_") and not name.startswith("_")
        new = {each.storage for each in outputs} - {each.storage for each in inputs}
        if name in _FREE or not outputs or not (new or changed):
            return found  # a view
        order = node._sequence_nr() if node is not None else _next_order() - 1
        one = Operation(name, "fused", self.backward, order, self._layer, inputs, outputs)
        self._classify(one, func, args, kwargs or {}, found)
        self.trace.operations.append(one)
        return found

    def _classify(self, one: Operation, func: Any, args: Any, kwargs: Any, found: Any) -> None:
        if func.namespace not in ("aten", "prims"):
            cost = self._costs.get(f"{func.namespace}::{one.name}")
            if cost is None:
                give = f'COSTS = {{"{func.namespace}::{one.name}": lambda *shapes: (FLOP, bytes)}}'
                what = f"the cost of the operation {func.namespace}::{one.name} is not known"
                raise InputError(f"{what}; give it in FILE.py, as in {give}")
            one.kind, one.cost = "separate", cost(*(each.shape for each in one.inputs))
        elif one.name in _MATMULS:
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            grouped = one.name == "_grouped_mm"  # its third tensor has the experts' offsets
            self._set_matmul(one, tensors[:2] if grouped else tensors[-2:], found, grouped=grouped)
        elif one.name.startswith("convolution") and args[-2 if one.backward else -1] == 1:
            self._set_convolution(one, args)
        elif one.name.removesuffix("_") in _SEPARATE or one.name.startswith("_scaled_dot_product"):
            one.kind = "separate"

    def _set_matmul(self, one: Operation, operands: Any, found: Any, *, grouped: bool) -> None:
        left, right = operands
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        batch = left.shape[0] if left.dim() == 3 else 1
        if grouped and left.dim() == 2 and right.dim() == 3:  # rows of all experts
            batch, m = right.shape[0], m // right.shape[0]
        elif grouped:  # gradient of the experts' weights
            batch, k = found.shape[0], k // found.shape[0]
        one.kind, one.sizes = "matmul", (m, n, k, batch)
        uses, known = _uses(operands), self.trace.parameters
        one.inputs = (*uses, *(use for use in one.inputs if use not in uses))
        one.weight = next((known[use.storage] for use in uses if use.storage in known), "")

    def _set_convolution(self, one: Operation, args: Any) -> None:
        """Make an ungrouped convolution a matmul of its positions; its backward is two, of input and of weights."""
        result, weight = (args[0], args[2]) if one.backward else (one.outputs[0], args[1])
        positions, window = result.shape[0] * math.prod(result.shape[2:]), math.prod(weight.shape[1:])
        one.kind, outputs = "matmul", weight.shape[0]
        one.sizes = (positions, window, outputs, 2) if one.backward else (positions, outputs, window, 1)
        one.weight = "" if one.backward else self.trace.parameters.get(use_of(weight).storage, "")

    def record_attention(self, name: str, inputs: Any, outputs: Any, order: int, *, causal: bool, window: int) -> None:
        """Record fused attention; ``inputs`` begin with queries, keys and values."""
        query, key, value = inputs[:3]
        sizes = query.shape[-2], key.shape[-2], (key.shape[-1] + value.shape[-1]) // 2, query.shape[:-2].numel()
        one = Operation(name, "attention", self.backward, order, self._layer, _uses(inputs), _uses(outputs), sizes)
        one.causal, one.window = causal, window
        self.trace.operations.append(one)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record everything that runs inside, with the layer in force and the tensors that autograd keeps."""
        with ExitStack() as stack:
            for path, layer in self._layers.items():
                for hook in (layer.register_forward_pre_hook(self._enter(path), with_kwargs=True),
                             layer.register_forward_hook(self._leave(path))):  # fmt: skip
                    stack.callback(hook.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor))
            stack.enter_context(_KeepAttention(self))
            stack.enter_context(self)
            yield

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            self.trace.layer_inputs[path] = use_of(next(each for each in tensors if each.is_floating_point()))
            self.trace.layer_orders[path] = (_next_order(), 0)
            self._layer = path

        return hook

    def _leave(self, path: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, found: Any) -> None:
            if isinstance(found, torch.Tensor):
                self.trace.plain.add(path)
            self.trace.layer_outputs[path] = next(iter(_uses(found)))
            self.trace.layer_orders[path] = (self.trace.layer_orders[path][0], _next_order() - 1)
            self._layer = ""

        return hook

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._alive.append(tensor)
        self.trace.saved.setdefault(use_of(tensor).storage, use_of(tensor))
        return tensor


def _next_order() -> int:
    return int(torch.autograd._get_sequence_nr())


class _KeptAttention(torch.autograd.Function):  # type: ignore[misc]
    """Attention that only records itself, as one operation forward and one backward."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, causal: bool, window: int, query: Any, key: Any, value: Any) -> Any:
        shape = query.shape
        out = query.new_empty(*shape[:-3], shape[-2], shape[-3], value.shape[-1]).transpose(-3, -2)
        statistics = query.new_empty(shape[:-1], dtype=torch.float32)
        ctx.recorder, ctx.settings, ctx.order = recorder, {"causal": causal, "window": window}, _next_order() - 1
        ctx.save_for_backward(query, key, value, out, statistics)
        recorder.record_attention("attention", (query, key, value), (out, statistics), ctx.order, **ctx.settings)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        found = [torch.empty_like(each) for each in ctx.saved_tensors[:3]]
        inputs = (*ctx.saved_tensors, gradient)
        ctx.recorder.record_attention("attention", inputs, found, ctx.order, **ctx.settings)
        return None, None, None, *found


class _KeepAttention(TorchFunctionMode):  # type: ignore[misc]
    """Function mode that keeps scaled_dot_product_attention whole, which PyTorch would decompose on meta tensors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **named)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **named}
        masked = given.get("attn_mask") is not None
        query, key, value = (given[name] for name in names[:3])
        found = attend(self._recorder, query, key, value, causal=masked or bool(given.get("is_causal")))
        if masked:
            self._recorder.trace.operations[-1].name = "attention with a mask"
        return found


def attend(recorder: Recorder, query: Any, key: Any, value: Any, *, causal: bool, window: int = 0) -> Any:
    """Return the output of attention, recorded as one operation."""
    return _KeptAttention.apply(recorder, causal, window, query, key, value)
