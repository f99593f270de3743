"""Import of a PyTorch module, or of a config.json by transformers' own code, by tracing it on meta tensors.

Code runs only because the user named it: FILE.py:FUNCTION, or transformers' class of the config's model_type.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simcluster.base.errors import InputError
from simcluster.importers.hugging_face import parse_config_json
from simcluster.importers.import_result import ImportResult
from simcluster.importers.torch_modules.kind_builder import TracedKind, build_kinds
from simcluster.importers.torch_modules.kind_writer import LENGTHS, KindWriter, structure_of
from simcluster.importers.torch_modules.recorder import Recorder, Trace, attend
from simcluster.importers.torch_modules.traced_layer import TracedLayer
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model

_LENGTH = 8192  # default sequence length (tokens)
_SOURCE = "simcluster import torch ({}, PyTorch {}): forward and backward on meta tensors, fused as by torch.compile"
Inputs = Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass
class TracedModule:
    """A module to trace, its inputs by (micro batch, sequence length), tensor-parallel plan and costs."""

    module: torch.nn.Module
    inputs: Inputs
    plan: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    recorders: list[Recorder] = field(default_factory=list)


def import_module(file: str, function: str, text: str, sequence_length: int | None) -> ImportResult:
    """Return the model of the module that FILE.py:FUNCTION returns, or that transformers makes of a config.json."""
    if file.endswith(".json"):
        return _import_config(parse_config_json(text, file), sequence_length)
    if function:
        return _import_function(file, function, text, sequence_length)
    what = "torch takes FILE.py:FUNCTION or a config.json; name a function that returns a torch.nn.Module"
    raise InputError(f"{file}: {what}, as in {file}:build")


def _import_function(path: str, function: str, text: str, sequence_length: int | None) -> ImportResult:
    file = types.ModuleType(Path(path).stem)
    file.__file__ = path
    with _explain_failures(path, "running the file"):
        exec(compile(text, path, "exec"), file.__dict__)  # the user named it on the command line
    make = getattr(file, function, None)
    if not callable(make):
        raise InputError(f"{path} has no function {function}; name a function that returns a torch.nn.Module")
    with _building(), _explain_failures(path, f"calling {function}"):
        found = make()
    module, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        what = "it must return a torch.nn.Module, or a pair of one and its example inputs (a tuple or a dict)"
        raise InputError(f"{function} returned a {type(found).__name__}; {what}")
    plan = getattr(file, "TP_PLAN", None) or getattr(module, "_tp_plan", None) or {}
    traced = TracedModule(module, _example_inputs(example), plan, getattr(file, "COSTS", {}))
    return _import_module(traced, f"{Path(path).name}:{function}", sequence_length)


def _import_config(config: Mapping[str, Any], sequence_length: int | None) -> ImportResult:
    try:
        import transformers
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError:
        raise InputError("a config.json needs transformers; pip install 'simcluster[torch]'") from None

    recorders: list[Recorder] = []

    def attention(module: Any, query: Any, key: Any, value: Any, *args: Any, **more: Any) -> Any:
        causal = bool(more.get("is_causal", getattr(module, "is_causal", True)))
        window = more.get("sliding_window") or 0
        return attend(recorders[-1], query, key, value, causal=causal, window=window).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("simcluster", attention)
    settings = {**config, "use_cache": False}
    with _building(), _explain_failures(f"transformers {transformers.__version__}", "making the module"):
        module = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**settings), attn_implementation="simcluster", dtype=torch.bfloat16
        )
    for each in module.modules():
        if "Experts" in type(each).__name__ and hasattr(each, "config"):
            each.config._experts_implementation = "grouped_mm"  # others read values, or gather weights of every token
    plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None) or {}
    traced = TracedModule(module, _example_inputs(None), plan, recorders=recorders)
    name = f"transformers {transformers.__version__}, {type(module).__name__}"
    return _import_module(traced, name, sequence_length, getattr(module.config, "max_position_embeddings", _LENGTH))


@contextmanager
def _explain_failures(source: str, what: str) -> Iterator[None]:
    """Turn any failure of the user's code into one message with the line where it happened."""
    try:
        yield
    except InputError:
        raise
    except Exception as problem:
        inner = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
        at = [each for each in traceback.extract_tb(problem.__traceback__) if not each.filename.startswith(inner)]
        where = f" ({Path(at[-1].filename).name}, line {at[-1].lineno})" if at else ""
        told = f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
        raise InputError(f"{source}: {what} failed{where}: {told}") from None


@contextmanager
def _building() -> Iterator[None]:
    """Build modules on the meta device, in bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def _example_inputs(example: Any) -> Inputs:
    """Return a function that makes inputs of another micro batch and sequence length from an example."""
    positional = example if isinstance(example, tuple) else ()
    named = example if isinstance(example, dict) else {}
    tensors = [each for each in (*positional, *named.values()) if isinstance(each, torch.Tensor)]
    known = next((tuple(each.shape[:2]) for each in tensors if each.dim() > 1), (0, 0))

    def resize(value: Any, batch: int, length: int) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = [batch if not at and size == known[0] else length if size == known[1] else size
                 for at, size in enumerate(value.shape)]  # fmt: skip
        made = torch.empty(shape, dtype=value.dtype, device="meta", requires_grad=value.is_floating_point())
        return made * 1 if made.requires_grad else made  # as if another layer came before

    def inputs(batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if example is None:
            return (torch.zeros(batch, length, dtype=torch.long, device="meta"),), {}
        by_name = {name: resize(each, batch, length) for name, each in named.items()}
        return tuple(resize(each, batch, length) for each in positional), by_name

    return inputs


def _import_module(
    traced: TracedModule, name: str, sequence_length: int | None, longest: int = _LENGTH
) -> ImportResult:
    """Trace a module, by default at sequences of ``longest`` tokens, and return its model section."""
    length = sequence_length or min(longest, _LENGTH)
    layers, notes = find_layers(traced.module), traced.notes
    if sequence_length is None:
        notes.append(f"sequences of {length} tokens (--sequence-length changes it)")
    if length % LENGTHS[-1]:
        raise InputError(f"--sequence-length {length} is not a multiple of {LENGTHS[-1]}, at which parts it is traced")
    found = next((each for batch in (1, 2) if (each := _describe_layers(traced, layers, name, batch, length))), None)
    if found is None:
        what = "the operations of its layers depend on the sequence length or micro batch"
        raise InputError(f"{what}; only layers whose operations stay the same are modelled")
    words, blocks, documents, trace = found
    hidden = trace.layer_inputs[next(iter(layers))].shape[-1]
    fields: dict[str, Any] = {"name": name, "layers": len(layers), "hidden_size": hidden, **_attention_sizes(trace)}
    fields |= {"sequence_length": length, "bias": False, **_end_fields(traced, layers, notes)}
    if len(blocks) == 1:
        fields["blocks"] = blocks[words[0]]
    else:
        fields |= {"pattern": "".join(words) if len(blocks) <= 26 else words,
                   "layer_types": {word: {"blocks": each} for word, each in blocks.items()}}  # fmt: skip
    fields["layer_kinds"] = documents
    if any(each.name == "attention with a mask" for each in trace.operations):
        notes.append("attention with a mask tensor is simulated as causal")
    total = sum(p.numel() for p in traced.module.parameters())
    if more := parameters(Model.model_validate(fields)).total - total:
        notes.append(f"the document counts {more:+,} parameters, compared with the module")
    mapped = tuple(f"{kind} ({document['description']})" for kind, document in documents.items())
    return ImportResult({"model": fields}, mapped, assumed=tuple(notes), facts=(f"{total:,} parameters",))


def _describe_layers(
    traced: TracedModule, layers: Mapping[str, torch.nn.Module], name: str, batch: int, length: int
) -> tuple[list[str], dict[str, list[str]], dict[str, Any], Trace] | None:
    """Return each layer's type, the kinds of each type, their documents, and a trace; None if operations differ.

    Traced at micro batches of ``batch`` and one more, each at parts of the sequence length. (One sequence alone may
    need fewer copies.)
    """
    points = [(each, length // part) for each in (batch, batch + 1) for part in reversed(LENGTHS)]
    traces = [_trace(traced, layers, *points[0])]
    shapes = {key: tuple(p.shape) for key, p in traced.module.named_parameters()}

    def analyze(trace: Trace, path: str) -> list[TracedKind]:
        own = {key: shape for key, shape in shapes.items() if key.startswith(f"{path}.") or not path}
        return build_kinds(TracedLayer(trace, path, own, traced.plan))

    known: list[tuple[list[TracedKind], str]] = []  # of layers with equal numbers, and the first layer
    words = []
    for path in layers:
        kinds = analyze(traces[0], path)
        number = next((number for number, (other, _) in enumerate(known) if other == kinds), len(known))
        if number == len(known):
            known.append((kinds, path))
        words.append(chr(ord("A") + number) if number < 26 else f"T{number}")
    first = {path for _, path in known}
    with _pass_through([layers[path] for path in layers if path not in first and path in traces[0].plain]):
        traces += [_trace(traced, layers, *point) for point in points[1:]]
    writer = KindWriter(points, _SOURCE.format(name, torch.__version__))
    documents, blocks = dict[str, Any](), dict[str, list[str]]()
    written: list[tuple[TracedKind, str]] = []
    for word, (kinds, path) in zip(dict.fromkeys(words), known, strict=True):
        at_points = [analyze(trace, path) for trace in traces]
        if any(structure_of(each) != structure_of(kinds) for each in at_points):
            return None
        for number, one in enumerate(kinds):
            kind = next((name for other, name in written if other == one), f"traced_{word.lower()}{number + 1}")
            if kind not in documents:
                told = f"{path or 'module'} ({type(layers[path]).__name__}), part {number + 1} of {len(kinds)}"
                documents[kind] = writer.write([each[number] for each in at_points], told)
                written.append((one, kind))
            blocks.setdefault(word, []).append(kind)
    return words, blocks, documents, traces[0]


@contextmanager
def _pass_through(layers: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Let layers return their input: equal ones were traced already."""
    layers = list(layers)
    for layer in layers:
        layer.forward = lambda *args, **more: next(
            each for each in tree_leaves((args, more)) if isinstance(each, torch.Tensor) and each.is_floating_point()
        )
    yield
    for layer in layers:
        del layer.forward


def _trace(traced: TracedModule, layers: Mapping[str, torch.nn.Module], batch: int, length: int) -> Trace:
    """Run forward and backward of the module on meta tensors and return what was recorded."""
    recorder = Recorder(traced.module, layers, traced.costs)
    traced.recorders[:] = [recorder]
    args, kwargs = traced.inputs(batch, length)
    traced.module.train()
    explained = _explain_failures(type(traced.module).__name__, "the trace without data")
    with explained, recorder.watch(), torch.device("meta"):
        found = traced.module(*args, **kwargs)
        tensors = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor) and each.requires_grad]
        if not tensors:
            raise InputError("the module returns no tensor with a gradient; return one")
        recorder.backward = True
        tensors[0].backward(torch.empty_like(tensors[0]))
    for path in layers:
        if path not in recorder.trace.layer_outputs:
            raise InputError(f"the forward does not run {path}; only layers that run once are modelled")
    return recorder.trace


def find_layers(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the repeated blocks by path: children of the list of modules with the most parameters."""
    kinds = torch.nn.ModuleList | torch.nn.Sequential
    lists = {path: each for path, each in module.named_modules() if isinstance(each, kinds)}
    lists = {path: each for path, each in lists.items() if len({type(child) for child in each}) < len(each)}
    if not lists:
        return {"": module}
    best = max(lists, key=lambda path: sum(p.numel() for p in lists[path].parameters()))
    return {f"{best}.{name}" if best else name: child for name, child in lists[best].named_children()}


def _attention_sizes(trace: Trace) -> dict[str, Any]:
    """Return heads, kv_heads and head_dim of the first attention; one head if there is none."""
    first = next((each for each in trace.operations if each.kind == "attention"), None)
    if first is None:
        return {"heads": 1}
    query, key = first.inputs[:2]
    return {"heads": query.shape[-3], "kv_heads": key.shape[-3], "head_dim": query.shape[-1]}


def _end_fields(traced: TracedModule, layers: Mapping[str, torch.nn.Module], notes: list[str]) -> dict[str, Any]:
    """Return the fields of embedding, final norm and LM head, from the modules outside the layers."""
    inside = {id(p) for layer in layers.values() for p in layer.parameters()}
    outside = {path: [p for p in each.parameters(recurse=False) if id(p) not in inside]
               for path, each in traced.module.named_modules()}  # fmt: skip
    ends = {path: each for path, each in traced.module.named_modules() if outside[path]}
    linear = [each for each in ends.values() if isinstance(each, torch.nn.Linear)]
    tables = [each for each in ends.values() if isinstance(each, torch.nn.Embedding)]
    wide = {each.out_features for each in linear}
    tables.sort(key=lambda each: (each.num_embeddings not in wide, -each.num_embeddings))
    vocab = tables[0].num_embeddings if tables else 1
    heads = [each for each in linear if each.out_features == vocab]
    norms = [list(each.parameters()) for each in ends.values() if "norm" in type(each).__name__.lower()]
    tied = not heads or (bool(tables) and heads[0].weight is tables[0].weight)
    if lacks := [name for name, found in (("token embedding", tables), ("LM head", heads)) if not found]:
        instead = f"simulated with a vocabulary of {vocab} and tied embeddings in its place"
        notes.append(f"the module has no {' and no '.join(lacks)}: {instead}")
    fields = {"vocab_size": vocab, "tied_embeddings": tied, "position": "learned" if len(tables) > 1 else "none",
              "norm": "layernorm" if norms and len(norms[-1]) == 2 else "rmsnorm"}  # fmt: skip
    if len(tables) > 1:
        fields["position_rows"] = tables[1].num_embeddings
    parts = [*(each.parameters() for each in (*tables[:2], *heads[:1])), *norms[-1:]]
    known = {id(p) for part in parts for p in part}
    rest = {path: sum(p.numel() for p in each if id(p) not in known) for path, each in outside.items()}
    if left := [f"{path} ({count:,})" for path, count in rest.items() if count]:
        notes.append(f"parameters outside the layers that are omitted: {', '.join(left)}")
    return fields
