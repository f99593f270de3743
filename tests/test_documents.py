"""Reading YAML: plain data, places of every key, and nothing but InputError for what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.builtin_documents import builtin_names, builtin_path
from simcluster.documents.overrides import apply_overrides, parse_override, parse_vary_option
from simcluster.documents.yaml_documents import (
    Document,
    KeyLocation,
    parse_document,
    read_document,
    read_json,
    validate_document,
)

keys = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text("ab c:#-'", max_size=8)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)


def refusal(read: Callable[[], Document]) -> str:
    """Where the document that was read comes from, or what the InputError says; anything else is our bug."""
    try:
        return read().source
    except InputError as error:
        return str(error)


# --- invariants -----------------------------------------------------------------------------------------------------


@given(st.dictionaries(keys, trees, min_size=1, max_size=5))
def test_json_is_read_as_it_is_and_every_key_and_item_has_a_place(data: dict[str, Any]) -> None:
    def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [below for key, item in pairs for below in ((*path, key), *paths(item, (*path, key)))]

    document = parse_document(json.dumps(data))  # JSON is YAML 1.2
    assert document.data == data
    assert sorted(document.marks, key=str) == sorted(paths(data), key=str)


@given(st.text(st.characters(), max_size=60) | st.text("[]{}:,-&*!|>#'\"\n\t ab?%@`", max_size=60))
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    assert refusal(lambda: parse_document(text)).startswith("<text>")


@given(st.binary(max_size=200))
def test_any_file_is_a_document_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    assert str(path) in refusal(lambda: read_document(path))


@given(st.lists(keys, min_size=1, max_size=4), trees.filter(lambda value: value is not None))
def test_an_override_sets_what_it_names_and_leaves_the_original(path: list[str], value: Any) -> None:
    document = parse_document("other: {kept: 1}")
    changed = apply_overrides(document, {"x." + ".".join(path): value})
    found: Any = changed.data["x"]
    for key in path:
        found = found[key]
    assert found == value
    assert changed.data["other"] == {"kept": 1}
    assert document.data == {"other": {"kept": 1}}


# --- YAML 1.2 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),  # PyYAML reads text
        ("on", "on"),  # YAML 1.1: true
        ("NO", "NO"),
        ("true", True),
        ("012", 12),  # YAML 1.1: 10
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", 1000),
        ("12:30:45", "12:30:45"),  # YAML 1.1: 45045
        ("2020-01-01", "2020-01-01"),
        ("~", None),
        ('"8"', "8"),
        ("400 Gbit/s", "400 Gbit/s"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    read = parse_document(f"x: {text}").data["x"]
    assert (read, type(read)) == (value, type(value))


def test_places_are_lines_and_columns() -> None:
    document = parse_document("a: 1\nb:\n  - c: 2\n", source="x.yaml")
    assert document.location_of(("b", 0, "c")).position == "x.yaml:3:5"
    assert document.location_of(("b", 0, "missing")) == ("x.yaml:3:5", ("b", 0, "missing"))
    assert str(document.error_at(("b", 0, "c"), "is wrong")) == "x.yaml:3:5: b.0.c: is wrong"


def test_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_document(tmp_path / "x.yaml").data == {"name": "x"}


def test_merge_keys_are_refused() -> None:
    with pytest.raises(InputError, match="or '<<'; write a plain word"):
        parse_document("<<: {a: 1}")


def test_json_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1,}')
    with pytest.raises(InputError, match=r"config.json:1:\d+: not valid JSON"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(InputError, match="a list of 1 item; a JSON object"):
        read_json(path)


# --- overrides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("tp=8", "tp", 8),
        ("parallel.order=[tp, dp]", "parallel.order", ["tp", "dp"]),
        ("name=a=b", "name", "a=b"),
        ("x.link=400 Gbit/s", "x.link", "400 Gbit/s"),
        ("x.y=", "x.y", None),
        ("f=[{kind: slow_gpu}]", "f", [{"kind": "slow_gpu"}]),
    ],
)
def test_parse_override(text: str, path: str, value: object) -> None:
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["tp", "=8", ".tp=8", "a..b=8"])
def test_not_an_override(text: str) -> None:
    with pytest.raises(InputError, match=r"write PATH=VALUE, as in parallel\.tp=8"):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("s=gpipe,1f1b", ["gpipe", "1f1b"]),
        ("s=1, 2,4", [1, 2, 4]),
        ("s=[a, b],[c]", [["a", "b"], ["c"]]),
        ("s={a: 1, b: 2},x", [{"a": 1, "b": 2}, "x"]),
        ("s='a,b',c", ["a,b", "c"]),
    ],
)
def test_expand_vary(text: str, values: list[object]) -> None:
    assert parse_vary_option(text) == ("s", values)


@pytest.mark.parametrize("text", ["s", "s=", "s=a,,b", "=a"])
def test_nothing_varies(text: str) -> None:
    with pytest.raises(InputError, match=r"write (it|values) as in pipeline\.schedule=gpipe,1f1b"):
        parse_vary_option(text)


def test_overrides_reach_into_lists_and_null_removes() -> None:
    document = parse_document("f: [{a: 1}, {a: 2}]\nb: 1")
    assert apply_overrides(document, [("f.1.a", 3), ("b", None)]).data == {"f": [{"a": 1}, {"a": 3}]}
    with pytest.raises(InputError, match="f has no item '2'; use 0 to 1"):
        apply_overrides(document, {"f.2.a": 3})
    with pytest.raises(InputError, match="b is 1, which has no key 'c'"):
        apply_overrides(document, {"b.c": 3})


# --- documents against models ---------------------------------------------------------------------------------------


class Cat(Spec):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1)


class Dog(Spec):
    kind: Literal["dog"]
    name: str


class House(Spec):
    size: int
    guard: Cat | Dog | None = Field(None, discriminator="kind")


def complaint(text: str) -> str:
    with pytest.raises(InputError) as caught:
        validate_document(House, parse_document(text, source="h.yaml"))
    return str(caught.value)


def test_a_plus_adds_to_the_list_that_is_there() -> None:
    data = {"faults": [{"rank": 1}], "a": {"b": [1]}, "c": [{"d": [5]}]}
    document = Document(
        data=data, source="x.yaml", folder=Path(), marks={("faults", 0): KeyLocation("x.yaml:1:1", ("faults", 0))}
    )
    pairs = [parse_override("faults+={rank: 2}"), ("a.b+", [2, 3]), ("new+", "x"), ("c.0.d+", (6,)), ("faults+", [7])]
    changed = apply_overrides(document, pairs)
    assert changed.data == {
        "faults": [{"rank": 1}, {"rank": 2}, 7], "a": {"b": [1, 2, 3]}, "c": [{"d": [5, 6]}], "new": ["x"],
    }  # fmt: skip
    assert document.data == data == {"faults": [{"rank": 1}], "a": {"b": [1]}, "c": [{"d": [5]}]}
    assert changed.location_of(("faults", 0)).position == "x.yaml:1:1"
    assert changed.location_of(("faults", 1, "rank")) == KeyLocation("override", ("faults", 1, "rank"))
    with pytest.raises(InputError, match=r"override a\+: a is a mapping of 1 key, not a list"):
        apply_overrides(document, [("a+", 1)])
    with pytest.raises(InputError, match="is not an override"):
        parse_override("+=3")


def test_union_tags_are_not_part_of_the_path() -> None:
    assert complaint("size: 1\nguard: {kind: cat, lives: 0}") == (
        "h.yaml:2:20: guard.lives: must be greater than or equal to 1, got 0; write 1 or more"
    )


def test_unknown_key_lists_the_keys_of_the_chosen_kind() -> None:
    assert complaint("size: 1\nguard: {kind: cat, lifes: 3}") == (
        "h.yaml:2:20: guard.lifes: unknown key 'lifes'; did you mean 'lives'?; known keys: kind, lives"
    )


def test_unknown_kind_lists_the_kinds() -> None:
    assert complaint("size: 1\nguard: {kind: dig}") == (
        "h.yaml:2:9: guard.kind: unknown kind 'dig'; did you mean 'dog'?; known: cat, dog"
    )


def test_missing_key() -> None:
    assert complaint("guard: {kind: dog, name: x}") == "h.yaml: size: is required and missing; write size: 8"
    told = complaint("size: 1\nguard: {kind: dog}")
    assert told == "h.yaml:2:1: guard.name: is required and missing; write name: NAME"


def test_what_is_right_is_returned() -> None:
    house = validate_document(House, Document(data={"size": 1}, source="x", folder=Path()))
    assert house == House(size=1)


# --- what ships -----------------------------------------------------------------------------------------------------


def test_shipped_topologies_are_found() -> None:
    names = builtin_names("topologies")
    assert "dgx_a100" in names
    assert all(read_document(builtin_path("topologies", name)).data for name in names)
    with pytest.raises(InputError, match="did you mean 'dgx_a100'"):
        builtin_path("topologies", "dgx_a10")


class _Item(Spec):
    """What lists below hold."""

    size: int


class _Lists(Spec):
    """A list that may not be empty, and a key that takes a text or a mapping."""

    items: Annotated[tuple[_Item, ...], Field(min_length=1)] = (_Item(size=1),)
    either: str | _Item = ""


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"items": [3]}, "items.0: must be a mapping"),  # and not: at least 1 item, got a list of 1 item
        ({"either": {"size": "x"}}, "either.size: must be an integer"),  # and not: must be a text
        ({"items": []}, "items: must have at least 1 item, got a list of 0 items; add 1"),
    ],
)
def test_what_is_wrong_inside_is_told_alone(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        validate_document(_Lists, Document(given_, source="x.yaml", folder=Path()))
    assert said in str(refused.value)
    assert "problems" not in str(refused.value)
    assert "must be a text" not in str(refused.value)
