"""Import of a PyTorch module, or of a config.json by transformers' own code, by tracing it on meta tensors.

Code runs only because the user named it: FILE.py:FUNCTION, or transformers' class of the config's model_type.
"""

from __future__ import annotations

import inspect
import traceback
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from simcluster.base.errors import InputError
from simcluster.importers.hugging_face import parse_config_json
from simcluster.importers.import_result import ImportResult
from simcluster.importers.torch_modules.recorder import ATTENTION, Costs, Recorder, loop_error
from simcluster.importers.torch_modules.traced_kinds import Amount, build_kinds
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model

_LENGTH = 8192  # default sequence length (tokens)
_TOKENS = (torch.zeros(2, 8, dtype=torch.long, device="meta"),)  # example input
_PARTS = (4, 2, 1)  # of the sequence length that are traced
_NOISE = 1e-9  # share of a number that rounding may add
_SOURCE = "simcluster import torch ({}, PyTorch {}): forward and backward on meta tensors, fused as by torch.compile"
_OTHER_WIDTH = "the module was traced with another width; trace it again with this one"
_REFERENCES = {
    "mamba2_chunk_scan": "mamba2", "chunk_kimi_delta_attention": "kda",
    "torch_chunk_gated_delta_rule": "gated_delta_net",
}  # fmt: skip
"""Functions of transformers' reference code, which run where a fused kernel cannot, and the built-in kinds of those."""
Layers = Mapping[str, torch.nn.Module]


class _Source(NamedTuple):
    """A module to trace, its arguments, positional and named, its tensor-parallel plan, and costs of operations."""

    name: str
    module: torch.nn.Module
    example: tuple[tuple[Any, ...], dict[str, Any]]
    plan: Mapping[str, str]
    costs: Costs


def import_module(file: str, function: str, text: str, sequence_length: int | None) -> ImportResult:
    """Return the model of the module that FILE.py:FUNCTION returns, or that transformers makes of a config.json."""
    if file.endswith(".json"):
        return _import_config(_build_from_config(parse_config_json(text, file)), sequence_length)
    if function:
        return _import_source(_build_from_function(file, function, text), sequence_length)
    what = "torch takes FILE.py:FUNCTION or a config.json; name a function that returns a torch.nn.Module"
    raise InputError(f"{file}: {what}, as in {file}:build")


def _import_config(source: _Source, sequence_length: int | None) -> ImportResult:
    """Return the model of a module of transformers, without its tensor-parallel plan if the trace cannot follow it."""
    try:
        return _import_source(source, sequence_length)
    except InputError as problem:
        if not source.plan:
            raise InputError("; ".join((str(problem), *_note_references(source.module)))) from None
        found = _import_config(source._replace(plan={}), sequence_length)
        return replace(found, assumed=(*found.assumed, f"tp 1, without the plan of the class: {problem}"))


def _build_from_function(path: str, function: str, text: str) -> _Source:
    file = types.ModuleType(Path(path).stem)
    file.__file__ = path
    with _explain_failures(path, "running the file"):
        exec(compile(text, path, "exec"), file.__dict__)  # the user named it on the command line
    make = getattr(file, function, None)
    if not callable(make):
        raise InputError(f"{path} has no function {function}; name a function that returns a torch.nn.Module")
    with torch.device("meta"), _explain_failures(path, f"calling {function}"):
        found = make()
    module, example = found if isinstance(found, tuple) and len(found) == 2 else (found, _TOKENS)
    if not isinstance(module, torch.nn.Module) or not isinstance(example, tuple | dict):
        what = "it must return a torch.nn.Module, or a pair of one and its example inputs (a tuple or a dict)"
        raise InputError(f"{function} returned a {type(found).__name__}; {what}")
    arguments = ((), example) if isinstance(example, dict) else (example, {})
    own_plan = getattr(file, "TP_PLAN", None) or {}
    names = [name for key, _ in module.named_parameters() for name in (key, key.rpartition(".")[0])]
    for key, style in own_plan.items():
        if not any(fnmatchcase(name, key) for name in names):
            raise InputError(f"TP_PLAN: {key!r} matches no module; change or remove it")
        if not any(each in str(style) for each in ("colwise", "rowwise")):
            raise InputError(f"TP_PLAN: {key!r} is {style!r}, which is not a known split; use colwise or rowwise")
    plan = own_plan or getattr(module, "_tp_plan", None) or {}
    return _Source(f"{Path(path).name}:{function}", module.bfloat16(), arguments, plan, getattr(file, "COSTS", {}))


def _build_from_config(config: Mapping[str, Any]) -> _Source:
    try:
        import transformers
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError:
        raise InputError("a config.json needs transformers; pip install 'simcluster[torch]'") from None

    transformers.logging.set_verbosity_error()  # it advises to install kernels, which do not run without data

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any = None, **more: Any) -> Any:
        causal = bool(more.get("is_causal", getattr(module, "is_causal", True))) and mask is None
        out = ATTENTION(query, key, value, mask, causal, 0 if mask is not None else more.get("sliding_window") or 0)[0]
        return out.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("simcluster", attention)
    with torch.device("meta"), _explain_failures(f"transformers {transformers.__version__}", "making the module"):
        module = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**{**config, "use_cache": False}),
            attn_implementation="simcluster", dtype=torch.bfloat16,
        )  # fmt: skip
    for each in module.modules():
        if "Experts" in type(each).__name__ and hasattr(each, "config"):
            each.config._experts_implementation = "grouped_mm"  # others read values, or gather weights of every token
    plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None) or {}
    return _Source(f"transformers {transformers.__version__}, {type(module).__name__}", module, (_TOKENS, {}), plan, {})


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
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
        raise InputError(f"{source}: {what} failed{where}: {reason}") from None


# --- the model --------------------------------------------------------------------------------------------------------


def _import_source(source: _Source, sequence_length: int | None) -> ImportResult:
    """Trace a module, by default at its longest sequences, and return its model section."""
    longest = getattr(getattr(source.module, "config", None), "max_position_embeddings", _LENGTH)
    length = sequence_length or min(longest, _LENGTH)
    notes = [] if sequence_length else [f"sequences of {length} tokens (--sequence-length changes it)"]
    if length % _PARTS[0]:
        raise InputError(f"--sequence-length {length} is not a multiple of {_PARTS[0]}, at which parts it is traced")
    layers = _find_layers(source.module)
    # One sequence alone may need fewer copies.
    found = next((each for batch in (1, 2) if (each := _describe_layers(source, layers, batch, length))), None)
    if found is None:
        what = "the operations of its layers depend on the sequence length or micro batch"
        raise InputError(f"{what}; only layers whose operations stay the same are modelled")
    words, blocks, documents, recording = found
    hidden = recording.ends[next(iter(layers))][0].shape[-1]
    fields: dict[str, Any] = {"name": source.name, "layers": len(layers), "hidden_size": hidden, "heads": 1}
    for attention in [each for each in recording.operations if each.kind == "attention"][:1]:
        query, key = (use.shape for use in attention.inputs[:2])
        fields |= {"heads": query[-3], "kv_heads": key[-3], "head_dim": query[-1]}
    fields |= {"sequence_length": length, "bias": False, **_describe_ends(source.module, layers, notes)}
    if (rows := fields.get("position_rows", length)) < length:
        raise InputError(f"--sequence-length {length} is more than the {rows} positions of the module; lower it")
    types = {word: {"blocks": each} for word, each in blocks.items()}
    fields |= types[words[0]] if len(types) == 1 else {"pattern": "".join(words), "layer_types": types}
    fields["layer_kinds"] = documents
    total = sum(each.numel() for each in source.module.parameters())
    if more := parameters(Model.model_validate(fields)).total - total:
        notes.append(f"the document counts {more:+,} parameters, compared with the module")
    notes += [*_note_references(source.module), *_note_attention(recording, length // _PARTS[0])]
    mapped = tuple(f"{kind} ({document['description']})" for kind, document in documents.items())
    return ImportResult({"model": fields}, mapped, assumed=tuple(notes), facts=(f"{total:,} parameters",))


def _note_references(module: torch.nn.Module) -> list[str]:
    """Return notes on modules that run transformers' reference code, since fused kernels need data."""
    types = {type(each) for each in module.modules() if type(each).__module__.startswith("transformers.models.")}
    text = "".join(map(inspect.getsource, types))
    names = [name for name in _REFERENCES if f" {name}(" in text]
    what = "of transformers is reference code, slower than a fused kernel, which the built-in layer kind"
    return [f"{name} {what} {_REFERENCES[name]} models (simcluster show {_REFERENCES[name]})" for name in names]


def _note_attention(recording: Recorder, length: int) -> list[str]:
    """Return notes on attention with a mask, and on attention as a softmax of a square matrix of scores."""
    masked = "has a mask tensor: simulated as one kernel over all pairs of tokens (is_causal=True: causal attention)"
    unfused = "is traced as unfused matmul, softmax, matmul (scaled_dot_product_attention gives a fused kernel)"
    found = dict[str, str]()
    for each in (each for each in recording.operations if each.layer in recording.ends and not each.backward):
        scores = each.name.endswith("softmax") and each.outputs[0].shape[-2:] == (length, length)
        if scores or (each.kind == "attention" and len(each.inputs) > 3):
            found.setdefault(unfused if scores else masked, each.layer or "the module")
    return [f"attention of {layer} {what}" for what, layer in found.items()]


def _find_layers(module: torch.nn.Module) -> Layers:
    """Return the repeated blocks by path: children of the list of modules with the most parameters."""
    known = set(module.modules())
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if {leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.nn.Module)} - known:
                what = "holds modules that PyTorch does not see, nor their parameters; make it a torch.nn.ModuleList"
                raise InputError(f"{path}.{name}".lstrip(".") + f" {what}")
    kinds = torch.nn.ModuleList | torch.nn.Sequential
    lists = {path: each for path, each in module.named_modules() if isinstance(each, kinds)}
    lists = {path: each for path, each in lists.items() if len({type(child) for child in each}) < len(each)}
    if not lists:
        return {"": module}
    best = max(lists, key=lambda path: sum(each.numel() for each in lists[path].parameters()))
    return {f"{best}.{name}".lstrip("."): child for name, child in lists[best].named_children()}


def _describe_ends(module: torch.nn.Module, layers: Layers, notes: list[str]) -> dict[str, Any]:
    """Return the fields of embedding, final norm and LM head, from the modules outside the layers."""
    inside = {id(each) for layer in layers.values() for each in layer.parameters()}
    ends = [each for each in module.modules() if {id(p) for p in each.parameters(recurse=False)} - inside]
    linear = [each for each in ends if isinstance(each, torch.nn.Linear)]
    tables = [each for each in ends if isinstance(each, torch.nn.Embedding)]
    wide = {each.out_features for each in linear}
    tables.sort(key=lambda each: (each.num_embeddings not in wide, -each.num_embeddings))
    vocab = tables[0].num_embeddings if tables else linear[-1].out_features if linear else 1  # as of an output layer
    heads = [each for each in linear if each.out_features == vocab]
    norms = [list(each.parameters()) for each in ends if "norm" in type(each).__name__.lower()]
    tied = not heads or not tables or heads[0].weight is tables[0].weight
    if lacks := [name for name, found in (("token embedding", tables), ("LM head", heads)) if not found]:
        instead = f"simulated with a vocabulary of {vocab} and tied embeddings in its place"
        notes.append(f"the module has no {' and no '.join(lacks)}: {instead}")
    rows = {"position": "learned", "position_rows": tables[1].num_embeddings} if tables[1:] else {"position": "none"}
    norm = "layernorm" if norms and len(norms[-1]) == 2 else "rmsnorm"
    return {"vocab_size": vocab, "tied_embeddings": tied, **rows, "norm": norm}


def _describe_layers(
    source: _Source, layers: Layers, batch: int, length: int
) -> tuple[list[str], dict[str, list[str]], dict[str, Any], Recorder] | None:
    """Return each layer's type, the kinds of each type, their documents, and a trace; None if operations differ.

    Traced at micro batches of ``batch`` and one more, each at parts of the sequence length.
    """
    points = [(each, length // part) for each in (batch, batch + 1) for part in _PARTS]
    shapes = {key: tuple(each.shape) for key, each in source.module.named_parameters()}
    recorders = [_record(source, layers, *point) for point in points[:2]]
    counts = [Counter(each.layer for each in one.operations) for one in recorders]
    for path in [path for path in layers if counts[0][path] < counts[1][path]][:1]:
        numbers = [f"{counts[at][path]:,} operations at {points[at][1]} tokens" for at in range(2)]
        raise loop_error(path, f"runs {' and '.join(numbers)}")
    recorders += [_record(source, layers, *point) for point in points[2:]]
    words, blocks, documents = list[str](), dict[str, list[str]](), dict[str, Any]()
    for path, layer in layers.items():
        own = {key: shape for key, shape in shapes.items() if key.startswith(f"{path}.") or not path}
        styles = {key: _find_style(key, source.plan) for key in own}
        traced = list(zip(*(build_kinds(each, path, own, styles) for each in recorders), strict=False))
        word, kinds = chr(ord("A") + len(blocks)), list[str]()
        for number, each in enumerate(traced, 1):
            fitted = _fit_document(points, each)
            if fitted is None:
                return None
            width = {"values": [recorders[0].ends[path][0].shape[-1]], "reason": _OTHER_WIDTH}
            fitted["supports"]["model.hidden_size"] = width
            description = f"{path or 'module'} ({type(layer).__name__}), part {number} of {len(traced)}"
            same = (name for name, known in documents.items() if known.items() >= fitted.items())
            kinds.append(next(same, f"traced_{word.lower()}{number}"))
            source_text = _SOURCE.format(source.name, torch.__version__)
            documents.setdefault(kinds[-1], {"description": description, "source": source_text, **fitted})
        words.append(next((known for known, each in blocks.items() if each == kinds), word))
        blocks.setdefault(words[-1], kinds)
    return words, blocks, documents, recorders[0]


def _record(source: _Source, layers: Layers, batch: int, length: int) -> Recorder:
    """Run forward and backward of the module on meta tensors and return what was recorded."""
    recorder = Recorder(source.module, layers, source.costs)
    tensors = [each for each in tree_leaves(source.example) if isinstance(each, torch.Tensor)]
    known = next((tuple(each.shape[:2]) for each in tensors if each.dim() > 1), (0, 0))

    def resize(value: torch.Tensor) -> torch.Tensor:
        shape = [batch if not at and size == known[0] else length if size == known[1] else size
                 for at, size in enumerate(value.shape)]  # fmt: skip
        if not value.is_floating_point():
            return torch.empty(shape, dtype=value.dtype, device="meta")
        return torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True) * 1  # as of another layer

    args, kwargs = tree_map_only(torch.Tensor, resize, source.example)
    source.module.train()
    what = f"the trace without data, of {batch} x {length} tokens (the first two sizes of the example input),"
    explained = _explain_failures(type(source.module).__name__, what)
    with explained, recorder.watch(), torch.device("meta"):
        found = source.module(*args, **kwargs)
        results = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor) and each.requires_grad]
        if not results:
            raise InputError("the module returns no tensor with a gradient; return one")
        recorder.backward = True
        results[0].backward(torch.empty_like(results[0]))
    if lacks := [path for path in layers if path not in recorder.ends]:
        raise InputError(f"the forward does not run {lacks[0]}; only layers that run once are modelled")
    return recorder


def _find_style(name: str, plan: Mapping[str, str]) -> str:
    module = name.rpartition(".")[0]
    found = next((style for key, style in plan.items() if fnmatchcase(name, key) or fnmatchcase(module, key)), "")
    whole = name.endswith("bias") and "rowwise" in found
    return next((each for each in ("colwise", "rowwise") if each in found and not whole), "")


# --- formulas ---------------------------------------------------------------------------------------------------------


def _fit_document(points: Sequence[tuple[int, int]], traced: Sequence[Any]) -> Any:
    """Return a document traced at every (micro batch, sequence length), with formulas; None if it differs in more."""
    flat = [tree_flatten(each) for each in traced]
    found = []
    for values in zip(*(leaves for leaves, _ in flat), strict=False):
        if type(values[0]) is not Counter and any(each != values[0] for each in values):
            return None
        found.append(_fit_formula(points, values) if type(values[0]) is Counter else values[0])
    return tree_unflatten(found, flat[0][1]) if all(spec == flat[0][1] for _, spec in flat) else None


def _fit_formula(points: Sequence[tuple[int, int]], amounts: Sequence[Amount]) -> str:
    """Return the formula of a number: by unit and divisor, linear in the micro batch, quadratic in the sequence."""
    basis = np.array([[batch, batch * s, batch * s * s, 1, s, s * s] for batch, s in points], float)
    scale, terms = basis.max(0), []
    for unit, divisor in sorted({key for each in amounts for key in each}):
        tokens, part = "edge_tokens" if divisor == "edge" else "tokens", ""
        words = ("micro_batch", tokens, f"{tokens} * sequence", "", "sequence", "sequence * sequence")
        values = np.array([each[unit, divisor] for each in amounts], float)
        shares = np.linalg.solve(basis / scale, values)
        for share, word, most in zip(shares, words, scale, strict=True):
            exact = share if abs(share) > _NOISE * values.max() else 0.0
            number = Fraction(exact / most).limit_denominator(1024)
            factors = ("" if abs(number.numerator) == 1 and word else str(abs(number.numerator)), word)
            text = (" - " if number < 0 else " + ") + " * ".join(filter(None, factors))
            part += text + f" / {number.denominator}" * (number.denominator > 1) if number else ""
        part = part.removeprefix(" + ")
        if part:
            several = (" + " in part or " - " in part) and (unit or divisor == "tp")
            terms.append(f"{unit} * " * bool(unit) + (f"({part})" if several else part) + " / tp" * (divisor == "tp"))
    return " + ".join(terms) or "0"
