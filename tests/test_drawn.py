"""Drawn scenarios: every way to simulate a step gives the step and the spans of the reference, or refuses by name.

``python tests/drawn --count 5000 --seed 0`` draws as many as one likes, ``--within quick`` those for which the scope of
a fast path vouches.
"""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import Any, Literal, get_args, get_origin

import pytest
from conftest import for_each, tiny_scenario
from drawn.comparison import compared
from drawn.scenarios import ASIDE, BY_HAND, drawn_here, sections, value
from drawn.scopes import SCOPES
from drawn.values import NothingDrawnError

from simcluster.documents.field_annotations import NameFromSet, models_in_annotation
from simcluster.scenario.fast_path import STEP_FIELDS


@pytest.mark.parametrize("seed", range(10))
def test_every_way_gives_what_the_reference_gives(seed: int) -> None:
    assert [each for each in compared(tiny_scenario(**sections(seed))) if each.verdict == "differs"] == []


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("within", SCOPES)
def test_what_a_fast_path_vouches_for_is_what_the_reference_gives(within: str, seed: int) -> None:
    scenario = tiny_scenario(**sections(seed, SCOPES[within]))
    assert SCOPES[within].find_obstacle(scenario) == ""
    assert [each for each in compared(scenario) if each.verdict == "differs"] == []


def words(annotation: Any, metadata: Any = ()) -> set[Any]:
    """The words that an annotation allows, and the kinds of models, at any depth."""
    if models := models_in_annotation(annotation, metadata):
        return {word for model in models if "kind" in model.model_fields
                for word in words(model.model_fields["kind"].annotation)}  # fmt: skip
    if listed := [word for each in metadata if isinstance(each, NameFromSet) for word in each.allowed_names]:
        return {*listed}
    if annotation is bool:
        return {False, True}
    if get_origin(annotation) is Literal:
        return {*get_args(annotation)}
    return set(chain.from_iterable(words(part) for part in get_args(annotation)))


@for_each("path", [path for path in STEP_FIELDS if drawn_here(path)])
def test_every_word_of_a_field_is_drawn(path: str) -> None:
    """A new literal, or a new kind of a thing, needs no line here."""
    dice, field = Random(path), STEP_FIELDS[path]
    try:
        found = [value(dice, path) for _ in range(120)]
    except NothingDrawnError:
        assert field.annotation in (str, bool) or field.annotation == str | None, path
        return
    inside = chain.from_iterable(each if isinstance(each, list) else [each] for each in found)
    drawn = {each["kind"] if isinstance(each, dict) else each for each in inside}
    assert drawn >= {word for word in words(field.annotation, field.metadata) if word is not None}


def test_fields_that_are_not_drawn_are_fields() -> None:
    """Each stands in a list, with the reason or in what draws it."""
    assert not [path for path in (*BY_HAND, *ASIDE) if not [each for each in STEP_FIELDS if each.startswith(path)]]
