"""Change one field of a scenario at a time, and ask what comes of it: an effect, a rejection, a note, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fields.bases import BASES
from fields.software import NEEDS
from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.field_annotations import ModelFromRegistry
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import simulate_scenario

Outcome = Literal["effective", "rejected", "noted", "silent"]

TRIED: tuple[Any, ...] = (True, False, 2, 1, 3, 0.5, "3 ms", "1 GB/s", "333 GB/s", "1 MB", "10 GB")
"""Values of which those are tried that a field allows, beside all of a Literal's."""

WRITTEN: Mapping[str, tuple[Any, ...]] = {
    "collectives.all_reduce": ("ring", "tree", "halving_doubling", "hierarchical", "nvls"),
    "collectives.reduce_scatter": ("ring", "halving_doubling", "hierarchical", "nvls", "pat"),
    "collectives.all_gather": ("ring", "halving_doubling", "hierarchical", "nvls", "pat"),
    "collectives.nccl": ("none", "dgx-a100"),
    "pipeline.schedule": ("gpipe", "1f1b", "zb-h1", "dualpipe-v", {"name": "interleaved"}),
    "pipeline.layers_per_stage": ("auto", "even"),
    "training.recompute_modules": (["layernorm"], ["mlp"], ["moe_act"], ["core_attn"]),
    "memory.offload.bucket": (1_000_000, 10**9),
    "memory.offload.modules": (["core_attn"], ["qkv_linear"]),
    "parallel.order": (["dp", "tp", "cp", "pp"], ["tp", "cp", "pp", "dp"]),
    "overlap.interference": ("none", {"kind": "factor", "compute": 0.2}, {"kind": "sms", "channels": 24}),
    "software": ({}, {"kernels": "eager"}),
}
"""Values of fields whose type does not list them."""

SKIPPED = (
    "name", "run", "measured", "faults", "cluster.topology", "model.name", "memory.offload.source", "software.name",
    "software.source",
)  # fmt: skip
"""Names and sources, which say who made a thing; sections of weeks (``train`` reads them); faults and topologies, which
are kinds of things with tests of their own."""


AS_IT_IS = "the base has this value"


@dataclass(frozen=True)
class Change:
    """One field of a base with another value, and what came of it."""

    base: str
    path: str
    value: Any
    outcome: Outcome
    said: str = ""
    answer: int = 0


@cache
def fields() -> Mapping[str, FieldInfo]:
    """All fields of a scenario by dotted path; a field of a section that may be left out is one, too."""
    return dict(_walked(Scenario, ""))


def _walked(spec: type[Spec], before: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in spec.model_fields.items():
        path = f"{before}{name}"
        if path in SKIPPED:
            continue
        parts = get_args(info.annotation) if get_origin(info.annotation) in (Union, UnionType) else (info.annotation,)
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, Spec)]
        if path in WRITTEN:
            yield path, info
        if len(sections) == 1 and not any(isinstance(each, ModelFromRegistry) for each in info.metadata):
            yield from _walked(sections[0], f"{path}.")
        elif path not in WRITTEN:
            yield path, info


def literals_in(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for each in get_args(annotation):
            yield from literals_in(each)


@cache
def values(path: str) -> tuple[Any, ...]:
    """What is tried of a field: all values of its Literals, and some of its numbers."""
    if path in WRITTEN:
        return WRITTEN[path]
    info = fields()[path]
    adapter = TypeAdapter(Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation)
    found = list(dict.fromkeys(literals_in(info.annotation)))
    for value in TRIED:
        try:
            adapter.validate_python(value)
        except (ValidationError, InputError, TypeError, ValueError):
            continue
        found.append(value)
    kinds = [each for each in found if each is not None]
    return tuple(value for number, value in enumerate(kinds) if not any(_same(value, one) for one in kinds[:number]))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def changed(base: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with another value."""
    document = copy.deepcopy(dict(base))
    *sections, name = path.split(".")
    inner = document
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[name] = value
    return document


NO_ANSWER = ("scenario", "version", "engine", "notes", "warnings")
"""Keys of a result that are no number of it."""


def answer(scenario: Scenario) -> tuple[dict[str, Any], list[str]]:
    """The numbers of a step, and what is said about it."""
    found = simulate_scenario(scenario).to_dict()
    said = [*found["warnings"], *(note["text"] for note in found["notes"])]
    return {key: value for key, value in found.items() if key not in NO_ANSWER}, said


def outcomes(
    name: str, base: Mapping[str, Any], *, below: Sequence[str] = (), but: Sequence[str] = ()
) -> Iterator[Change]:
    """What comes of every value of every field of a base; of those ``below`` some sections alone, if any are given,
    and of none in others (``but``)."""
    before = from_document(base)
    numbers, told = answer(before)
    for path in fields():
        if (below and not _is_in(path, below)) or _is_in(path, but):
            continue
        for value in values(path):
            try:
                scenario = from_document(changed(base, path, value))
                if scenario == before:
                    yield Change(name, path, value, "effective", AS_IT_IS, hash(str(numbers)))
                    continue
                after, said = answer(scenario)
            except InputError as error:
                yield Change(name, path, value, "rejected", str(error))
                continue
            outcome: Outcome = "effective" if after != numbers else "noted" if said != told else "silent"
            yield Change(name, path, value, outcome, "; ".join(set(said) - {*told}), hash(str(after)))


def _is_in(path: str, sections: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{each}.") for each in sections)


def is_literal(path: str) -> bool:
    """Does the field list its values?"""
    return len([*literals_in(fields()[path].annotation)]) > 1


def alike(changes: Sequence[Change]) -> set[str]:
    """Fields with two values of a Literal that give the same answer in every base that takes both, as "path: a b"."""
    answers: dict[str, dict[Any, dict[str, int]]] = {}
    for each in changes:
        if each.answer and is_literal(each.path) and each.value in [*literals_in(fields()[each.path].annotation)]:
            answers.setdefault(each.path, {}).setdefault(each.value, {})[each.base] = each.answer
    found = set()
    for path, of_values in answers.items():
        for one, other in combinations(of_values, 2):
            both = of_values[one].keys() & of_values[other].keys()
            if both and not reviewed(path) and all(of_values[one][base] == of_values[other][base] for base in both):
                found.add(f"{path}: {one} {other}")
    return found


REVIEWED: Mapping[str, str] = {
    "cluster": "what a cluster is; links and parts that no transfer is held up by change nothing",
    "model.ffn_hidden_size": "a fact about the model; where every layer has experts none has this width",
    "model.layer_norms": "2 is what a model without the field has",
    "model.residual_streams": "1 is what a model without the field has",
    "model.vocab_multiple": "the vocabulary may be a multiple of it already",
    "model.moe.shared_experts": "shared_ffn_hidden_size says their width together",
    "model.moe.groups": "a limit on the nodes that a token visits, on none where it has them all",
    "model.moe.top_groups": "the same",
    "model.moe.offset": "which layers have experts, of all",
    "parallel.etp": "left out, it is tp",
    "parallel.order": "it may exchange axes whose links are alike",
    "pipeline.layers_per_stage": "auto may find even stages the best",
    "overlap.bucket_size": "larger than all gradients, it is as large as these",
    "collectives.all_reduce": "the algorithm that NCCL picks anyhow",
    "collectives.reduce_scatter": "the same",
    "collectives.all_gather": "the same",
    "collectives.nccl": "the platform of the cluster",
    "collectives.detail": "a ring whose links nothing else uses takes as long in steps",
    "training.muon.distribute": "left out, it is layers with zero 1",
    "training.recompute_every": "as many layers of a stage divide by it",
    "memory.backward_temporaries": "less than what is held at the peak",
    "memory.workspace": "the same",
    "memory.offload.buffers": "more than there are buckets",
    "checkpoint.mode": "left out, it is that of run.checkpoint",
    "steps": "a step like the one before",
    "seed": "read where something is drawn",
    "replicas": "simulate plays one; run and monte_carlo read it",
    "engine": "times are the same to the bit, by design",
}
"""Fields of which some values may change no number of a step without a note, and why."""


def reviewed(path: str) -> bool:
    """Is the field, or what it is in, one of ``REVIEWED``?"""
    return _is_in(path, [*REVIEWED])


def lacks(base: str, path: str) -> bool:
    """Is it a field of ``software`` for which the job of the base has no use?"""
    return path in NEEDS and not NEEDS[path].met(_scenario(base))


@cache
def _scenario(base: str) -> Scenario:
    return from_document(BASES[base])


def unexplained(changes: Sequence[Change]) -> list[Change]:
    """Changes that nothing comes of, of fields that are not reviewed and of whose use the base has all."""
    silent = [each for each in changes if each.outcome == "silent"]
    return [each for each in silent if not reviewed(each.path) and not lacks(each.base, each.path)]
