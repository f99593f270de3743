"""The examples in docstrings of what one adds to, run: schedules, collectives, topologies, metrics, faults."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import simcluster

PACKAGES = ("schedules", "collectives", "topology", "results", "faults", "show")
MODULES = [
    name
    for package in PACKAGES
    for module in [importlib.import_module(f"{simcluster.__name__}.{package}")]
    for name in [module.__name__, *(f"{module.__name__}.{each.name}" for each in pkgutil.iter_modules(module.__path__))]
]
EXAMPLES = [
    found
    for name in MODULES
    for found in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    if found.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_are_so(example: doctest.DocTest) -> None:
    told: list[str] = []
    doctest.DocTestRunner().run(example, out=told.append)
    assert not told, "".join(told)


def test_every_package_that_one_adds_to_has_examples() -> None:
    assert {example.name.split(".")[1] for example in EXAMPLES} == {*PACKAGES}
    assert len(EXAMPLES) >= 40
