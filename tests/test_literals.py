"""Chains over the values of a Literal end in ``assert_never``: a new value is rejected, and never taken for another."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fields.bases import BASES
from fields.walk import fields as fields_of_scenarios
from fields.walk import literals_in
from package_trees import syntax_tree

import simcluster
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import simulate

ROOT = Path(simcluster.__file__).parent
BLOCKS = ("body", "orelse", "finalbody")
REVIEWED = {
    "traffic/nccl/tuner.py pipeline_fill_seconds case.algorithm": "other algorithms have no pipeline to fill",
    "importers/nccl_xml.py _add_device slot.kind": "the rest is a switch",
    "importers/shell/script_reader.py _read_statement statement.kind": "a statement of another kind is a command",
    "importers/shell/shell_parser.py _parse_compound result.kind": "the rest is a function",
    "importers/shell/script_reader.py _read_builtin name": "another name is not the shell's own command",
    "importers/nemo.py _translate_value key": "other settings have the same values there",
    "importers/torchtitan_sources.py _section_settings name": "other sections are taken field by field",
    "interactive/controls/offered_values.py _list_values control.offer": "a table in YAML: another raises KeyError",
    "studies/search/stage_outlines.py dp_communication_seconds self.zero": "the rest is ZeRO 3",
    "planning/offload.py plan_activation_offloads action.kind": "a W neither makes nor reads activations",
    "schedules/zb_greedy.py _run_next kind": "a W wakes nobody up",
    "schedules/zb_search.py _state_after_action kind": "the rest is W: zero-bubble rows have no B",
    "evidence/calibration/device_fit.py _device_from_measurements each.case.kind": "only two kinds tell a peak",
    "evidence/calibration/torch_ops.py estimate_case_bytes case.kind": "the rest are matmuls and what goes with them",
    "model/layer_block.py _recomputing_block shape.recompute": "join and is_kept tell the other values apart",
}
"""Chains that do not, by file, function and subject, and why that is right."""


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): syntax_tree(path) for path in sorted(ROOT.rglob("*.py"))}


@cache
def aliases() -> dict[str, frozenset[object]]:
    """Names of the package that stand for Literals, with their values."""
    found: dict[str, frozenset[object]] = {}
    for _ in range(2):  # some are made of others
        for tree in trees().values():
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                    values = literal(node.value, found)
                    found |= {each.id: values for each in node.targets if isinstance(each, ast.Name) and values}
    return found


def literal(annotation: ast.expr | None, known: dict[str, frozenset[object]]) -> frozenset[object]:
    """Values that an annotation allows by a Literal; none where it has none."""
    values: set[object] = set()
    for node in ast.walk(annotation) if annotation else ():
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            values |= {each.value for each in ast.walk(node.slice) if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.Name):
            values |= known.get(node.id, frozenset())
    return frozenset(values) if len(values) > 1 else frozenset()


@cache
def fields() -> dict[str, set[object]]:
    """Values of all fields and properties of classes that are Literals, by name."""
    found: dict[str, set[object]] = defaultdict(set)
    for tree in trees().values():
        for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id] |= literal(node.annotation, aliases())
                elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                    found[node.name] |= literal(node.returns, aliases())
    return found


def subjects(test: ast.expr, arguments: dict[str, frozenset[object]]) -> set[str]:
    """What a condition compares with values of its Literal."""
    found = set()
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.In):
            left, right = node.left, node.comparators[0]
            values = {each.value for each in ast.walk(right) if isinstance(each, ast.Constant)}
            known: set[object] | frozenset[object] = set()
            if isinstance(left, ast.Attribute):
                known = fields().get(left.attr, set())
            elif isinstance(left, ast.Name):
                known = arguments.get(left.id, frozenset())
            if values and values <= known and isinstance(right, ast.Constant | ast.Tuple | ast.Set | ast.List):
                found.add(ast.unparse(left))
    return found


def leaves(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def chained(block: Sequence[ast.stmt], arguments: dict[str, frozenset[object]]) -> Iterator[str]:
    """Subjects of chains of two arms or more: if and elif, and one if after another that leaves the block.  An arm that
    raises is a rule, and none."""
    after: Counter[str] = Counter()
    for node in block:
        if isinstance(node, ast.If):
            arms = [node]
            while is_elif(arms[-1]):
                arms += arms[-1].orelse  # type: ignore[arg-type]
            own = Counter(
                each
                for arm in arms
                if not isinstance(arm.body[-1], ast.Raise)
                for each in subjects(arm.test, arguments)
            )
            yield from (each for each, many in own.items() if many > 1)
            after += own if leaves(arms[-1].body) and not arms[-1].orelse else Counter()
    yield from (each for each, many in after.items() if many > 1)


def is_elif(node: ast.If) -> bool:
    return len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)


def open_chains(function: ast.FunctionDef) -> set[str]:
    """Subjects of chains, and of matches with constants, of which the function says nowhere that no value is left."""
    every = (*function.args.args, *function.args.kwonlyargs)
    arguments = {each.arg: literal(each.annotation, aliases()) for each in every}
    nodes = list(ast.walk(function))
    elifs = {id(node.orelse) for node in nodes if isinstance(node, ast.If) and is_elif(node)}
    found: set[str] = set()
    for node in nodes:
        for block in (getattr(node, name, None) for name in BLOCKS):
            if isinstance(block, list) and block and id(block) not in elifs:
                found |= {*chained(block, arguments)}
        if isinstance(node, ast.Match) and any(isinstance(each.pattern, ast.MatchValue) for each in node.cases):
            found.add(ast.unparse(node.subject))
    calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return found - {ast.unparse(node.args[0]) for node in calls if node.func.id == "assert_never"}  # type: ignore[attr-defined]


def functions_that_compare(path: str, tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods whose text compares with a text or a tuple twice, or matches: walking is slow."""
    lines = (ROOT / path).read_text().splitlines()
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for body in bodies:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if len(re.findall(r'== "|in \("|in \(\d|== \d', text)) > 1 or " match " in text:
                    yield node


def test_every_chain_over_a_literal_ends_in_assert_never() -> None:
    found = {
        f"{path} {function.name} {subject}"
        for path, tree in trees().items()
        for function in functions_that_compare(path, tree)
        for subject in open_chains(function)
    }
    assert sorted(found - REVIEWED.keys()) == [], "end the chain in assert_never, or say why not in REVIEWED"
    assert sorted(REVIEWED.keys() - found) == [], "these are gone: take them from REVIEWED"
    assert len(REVIEWED) < 16


WHERE = ("plain", "moe", "mla", "encoder", "cp", "fsdp", "muon", "packed", "checkpoint", "fp8", "lora")


def literals() -> Iterator[str]:
    for path, info in fields_of_scenarios().items():
        if sum(isinstance(value, str) for value in literals_in(info.annotation)) > 1:
            yield path


def replaced(spec: Any, path: str, value: str) -> Any:
    """The spec with a value that nobody has checked; None where it lacks the section."""
    name, _, rest = path.partition(".")
    inner = spec and replaced(getattr(spec, name), rest, value) if rest else value
    return inner and spec and spec.model_copy(update={name: inner})


@pytest.fixture(scope="module")
def bases() -> list[Scenario]:
    return [from_document(BASES[name]) for name in WHERE]


@pytest.mark.parametrize("path", list(literals()))
def test_a_value_that_is_not_declared_is_never_taken_for_another(path: str, bases: list[Scenario]) -> None:
    """As a Literal that has got a new value and nothing else: some base stops with an error."""
    strange = [found for base in bases if (found := replaced(base, path, "undeclared")) is not None]
    for each in strange:
        try:
            simulate(each)
        except Exception:
            return
    pytest.fail(f"{path}: undeclared is taken for another value")


def test_an_open_chain_is_found() -> None:
    source = """
def f(spec, kind: Literal["a", "b", "c"]):
    if kind == "a":
        return 1
    spec.made()
    if kind == "b":
        return 2
    return 3
def g(kind: Literal["a", "b", "c"]):
    if kind == "a":
        x = 1
    elif kind in ("b",):
        x = 2
    else:
        x = 3
def h(kind: Literal["a", "b"]):
    match kind:
        case "a":
            return 1
        case _:
            return 2
def ends(kind: Literal["a", "b", "c"]):
    if kind == "a":
        return 1
    if kind == "b":
        return 2
    assert_never(kind)
"""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert [open_chains(each) for each in functions] == [{"kind"}, {"kind"}, {"kind"}, set()]
