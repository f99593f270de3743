"""Recording of a module's forward and backward on PyTorch's meta tensors: a list of operations and what autograd keeps.

Imports PyTorch, so only ``torch_import`` may import it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcluster.base.errors import InputError

Costs = Mapping[str, Callable[..., tuple[float, float]]]
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
_SEPARATE = (
    "sort", "topk", "scatter", "scatter_add", "index_add", "index_put", "embedding_dense_backward", "cumsum", "histc",
    "convolution", "convolution_backward", "native_layer_norm_backward", "_fused_rms_norm_backward",
)  # fmt: skip
"""Operations that a compiler does not fuse with others."""
_MOST = 10_000  # operations of one layer
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


@dataclass(slots=True, eq=False)
class Operation:
    """One recorded operation; a matmul's inputs begin with its operands, ``weight`` is the one that is a parameter.

    ``order``: sequence number of its autograd node, by which operations of the backward find those of the forward.
    ``layer``: path of the layer that it is of. ``sizes``: m, n, k and batch of a matmul or of attention. ``cost``: FLOP
    and bytes that the user gave. ``place`` and ``linear`` (multiplies all tokens) are set by ``traced_kinds``.
    """

    name: str
    backward: bool
    order: int
    layer: str
    inputs: tuple[TensorUse, ...]
    outputs: tuple[TensorUse, ...]
    kind: Literal["fused", "separate", "matmul", "attention"] = "fused"
    sizes: tuple[float, float, float, float] = (0, 0, 0, 0)
    weight: str = ""
    causal: bool = False
    window: int = 0
    cost: tuple[float, float] | None = None
    place: float = -1.0
    linear: bool = False


def fuse(operations: Iterable[Operation]) -> list[list[Operation]]:
    """Return the operations of each fused kernel: those at one place."""
    found: dict[float, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.kind == "fused":
            found[each.place].append(each)
    return [found[place] for place in sorted(found)]


def made_by(run: Iterable[Operation]) -> dict[int, TensorUse]:
    """Return the tensors that a fused kernel makes, by storage."""
    made: dict[int, TensorUse] = {}
    for each in run:
        before = {use.storage for use in each.inputs} - made.keys()
        made |= {use.storage: use for use in each.outputs if use.storage not in before}
    return made


def reads_of(run: list[Operation]) -> list[TensorUse]:
    """Return the tensors that a fused kernel reads, each as one with the elements of all its parts that are read."""
    made, found = made_by(run), dict[int, dict[Any, TensorUse]]()
    for use in (use for each in run for use in each.inputs if use.storage not in made):
        found.setdefault(use.storage, {})[use.shape, use.offset] = use
    parts = [list(uses.values()) for uses in found.values()]
    return [replace(uses[0], shape=(sum(use.elements for use in uses),)) for uses in parts]


def loop_error(layer: str, what: str) -> InputError:
    """Return the error of a layer whose number of operations grows with the sequence."""
    remedy = "make it one torch.library.custom_op and give its cost in COSTS, or use a built-in layer kind"
    return InputError(f"{layer or 'the module'} {what}, as a loop over tokens does; {remedy} (simcluster show mamba2)")


def _first_float(values: object, path: str) -> Any:
    """Return the first floating-point tensor in nested values, such as a layer's hidden states."""
    for each in tree_leaves(values):
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            return each
    what = f"{path or 'the module, which has no ModuleList of equal layers,'} has no floating-point input and output"
    raise InputError(f"{what}; put the layers that repeat in a torch.nn.ModuleList")


def _use_of(tensor: torch.Tensor) -> TensorUse:
    storage, size = tensor.untyped_storage(), tensor.element_size()
    floating = tensor.dtype in (torch.bfloat16, torch.float16)
    whole = storage.nbytes() // size
    return TensorUse(storage._cdata, whole, tuple(tensor.shape), tensor.storage_offset(), size, floating)


def _uses(values: object) -> tuple[TensorUse, ...]:
    return tuple(_use_of(each) for each in tree_leaves(values) if isinstance(each, torch.Tensor))


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # PyTorch may be absent where types are checked
    """Dispatch mode that records every operation which moves data; ``costs`` prices those that are not known.

    ``parameters``: names by storage. ``readers``: operations that read a storage. ``saved``: storages that autograd
    keeps; ``gradients``: those of parameters' gradients. ``ends``: input and output of each layer.
    """

    def __init__(self, module: torch.nn.Module, layers: Mapping[str, torch.nn.Module], costs: Costs) -> None:
        super().__init__()
        self.parameters = {_use_of(each).storage: name for name, each in module.named_parameters()}
        self.operations, self.readers = list[Operation](), defaultdict[int, list[Operation]](list)
        self.saved, self.gradients, self.ends = set[int](), set[int](), dict[str, tuple[TensorUse, TensorUse]]()
        self.backward, self._costs, self._layers = False, costs, layers
        self._begins: list[tuple[int, str]] = [(-1, "")]  # first autograd node of each layer, and after it
        self._before = 0  # operations before this layer
        self._alive: list[Any] = []  # storages keep their identity while they live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, layer = func.overloadpacket.__name__, self._begins[-1][1]
        if name in ("_local_scalar_dense", "is_nonzero"):
            what = "reads the value of a tensor, which a trace without data does not have"
            what = f"the forward of {layer or 'the module'} {what}"
            raise InputError(f"{what}; rewrite that part, or give the layer a path without it")
        found = func(*args, **(kwargs or {}))
        self._alive.append(found)
        inputs, outputs = _uses((args, kwargs or {})), _uses(found)
        node = torch._C._current_autograd_node() if self.backward else None
        if node is not None and torch.is_grad_enabled():
            what = "the module computes its forward again (torch.utils.checkpoint)"
            raise InputError(f"{what}; switch that off for the trace, and set training.recompute in the scenario")
        if node is not None and "AccumulateGrad" in node.name():
            self.gradients.update(each.storage for each in (*inputs, *outputs))
            return found
        changed = name.endswith("_") and not name.startswith("_")
        new = {each.storage for each in outputs} - {each.storage for each in inputs}
        if name in _FREE or not outputs or not (new or changed):
            return found  # a view
        order = node._sequence_nr() if node is not None else torch.autograd._get_sequence_nr() - 1
        if self.backward:
            layer = self._begins[bisect_right(self._begins, order, key=lambda pair: pair[0]) - 1][1]
        one = Operation(name.strip("_"), self.backward, order, layer, inputs, outputs)
        self._classify(one, func, name, args, found)
        self.operations.append(one)
        if len(self.operations) - self._before > _MOST and (layer or "" in self._layers) and not self.backward:
            raise loop_error(layer, f"runs more than {_MOST:,} operations")
        for storage in dict.fromkeys(each.storage for each in one.inputs):
            self.readers[storage].append(one)
            owner = self.parameters.get(storage, f"{one.layer}.")
            if one.layer and not owner.startswith(f"{one.layer}."):
                raise InputError(f"{one.layer} uses {owner}; layers that share parameters are not modelled")
        return found

    def _classify(self, one: Operation, func: Any, name: str, args: Any, found: Any) -> None:
        full, dense = f"{func.namespace}::{name}", name.startswith("convolution") and args[-1 - one.backward] == 1
        dense = dense and one.layer in self._layers  # others, such as a patch embedding, are not simulated
        if func.namespace == "simcluster":
            query, key, value = one.inputs[:3]
            batch, wide = math.prod(query.shape[:-2]), (key.shape[-1] + value.shape[-1]) // 2
            one.kind, one.sizes = "attention", (query.shape[-2], key.shape[-2], wide, batch)
            one.causal, one.window = args[-2:]
        elif func.namespace not in ("aten", "prims") or dense:
            if full not in self._costs:
                give = f'COSTS = {{"{full}": lambda *shapes: (FLOP, bytes)}}'
                what = f"the cost of the operation {full} is not known"
                raise InputError(f"{what}; give it in FILE.py, as in {give}")
            one.kind, one.cost = "separate", self._costs[full](*(each.shape for each in one.inputs))
        elif name in _MATMULS:
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            grouped = name == "_grouped_mm"  # its third tensor has the experts' offsets
            self._set_matmul(one, tensors[:2] if grouped else tensors[-2:], found, grouped=grouped)
        elif name.removesuffix("_") in _SEPARATE:
            one.kind = "separate"

    def _set_matmul(self, one: Operation, operands: Any, found: Any, *, grouped: bool) -> None:
        uses, known, (left, right) = _uses(operands), self.parameters, operands
        (m, k), n, batch = left.shape[-2:], right.shape[-1], left.shape[0] if left.dim() == 3 else 1
        if grouped:  # rows of all experts, or the gradient of their weights
            batch = (found if found.dim() == 3 else right).shape[0]
            m, k = (m, k / batch) if found.dim() == 3 else (m / batch, k)  # fractions on average
        one.kind, one.sizes = "matmul", (m, n, k, batch)
        one.inputs = (*uses, *(use for use in one.inputs if use not in uses))
        one.weight = next((known[use.storage] for use in uses if use.storage in known), "")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record everything that runs inside, with the layer in force and the tensors that autograd keeps."""
        with ExitStack() as stack:
            for path, layer in self._layers.items():
                enter, leave = partial(self._enter, path), partial(self._leave, path)
                stack.callback(layer.register_forward_pre_hook(enter).remove)
                stack.callback(layer.register_forward_hook(leave, with_kwargs=True).remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor))
            library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
            library.impl("scaled_dot_product_attention", _keep_whole, "AutogradMeta")  # else it is decomposed
            yield stack.enter_context(self)

    def _enter(self, path: str, *_: Any) -> None:
        self._begins.append((torch.autograd._get_sequence_nr(), path))
        self._before = len(self.operations)

    def _leave(self, path: str, module: Any, args: Any, kwargs: Any, found: Any) -> None:
        self.ends[path] = _use_of(_first_float((args, kwargs), path)), _use_of(_first_float(found, path))
        self._begins.append((torch.autograd._get_sequence_nr(), ""))

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._alive.append(tensor)
        self.saved.add(_use_of(tensor).storage)
        return tensor


def _attend(query: Any, key: Any, value: Any, mask: Any, causal: bool, window: int) -> Any:
    """Return the output of attention and the logarithms of the softmax's sums, without data."""
    out = query.new_empty(*query.shape[:-3], query.shape[-2], query.shape[-3], value.shape[-1]).transpose(-3, -2)
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output, inputs[3])
    ctx.set_materialize_grads(False)
    ctx.settings = inputs[4:]


def _differentiate(ctx: Any, gradient: Any, _: Any) -> Any:
    *tensors, mask = ctx.saved_tensors
    return *_GRADIENT(*tensors, gradient, mask, *ctx.settings), None, None, None


def _define(name: str, function: Any, tensors: str, results: str) -> Any:
    schema = f"({tensors}, Tensor? mask, bool causal, int window) -> ({results})"
    found = torch.library.custom_op(f"simcluster::{name}", function, mutates_args=(), schema=schema)
    found.register_fake(function)
    return found


_QKV = "Tensor query, Tensor key, Tensor value"
ATTENTION = _define("attention", _attend, _QKV, "Tensor, Tensor")
"""Attention as one operation forward and one backward: (query, key, value, mask, causal, window) -> (output, sums)."""
_GRADIENT = _define(
    "attention_grad", lambda *tensors: tuple(torch.empty_like(each) for each in tensors[:3]),
    f"{_QKV}, Tensor out, Tensor sums, Tensor grad", "Tensor, Tensor, Tensor",
)  # fmt: skip
ATTENTION.register_autograd(_differentiate, setup_context=_save)


def _keep_whole(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **_: Any
) -> Any:
    """Record scaled_dot_product_attention as one operation; with a mask, as one over all pairs of tokens."""
    return ATTENTION(query, key, value, attn_mask, is_causal, 0)[0]
