"""Layer kinds as documents: a document equals the code of the same kind, and wrong documents are rejected by name.

``python tests/test_kind_documents.py`` writes the table of kinds in docs/modelled.md.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from test_layer_patterns import scenario

import simcluster
from simcluster.base.errors import InputError
from simcluster.model.kind_documents import BUILTIN_DOCUMENTS, load_kind_document
from simcluster.model.layers import LAYER_KINDS, RankShape, find_layer_kind, layer_parameters_per_tp_rank
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model
from simcluster.show.registry.kinds import list_entries

PAGE = Path(__file__).parents[1] / "docs" / "modelled.md"
TABLE = re.compile(r"(<!-- kinds -->\n).*?(<!-- end of kinds -->)", re.DOTALL)

MODEL: dict[str, Any] = {
    "layers": 4, "hidden_size": 512, "heads": 8, "kv_heads": 2, "ffn_hidden_size": 1024, "vocab_size": 3200,
    "sequence_length": 1024, "norm": "rmsnorm", "position": "none", "bias": False, "tied_embeddings": False,
}  # fmt: skip
MLP: dict[str, Any] = {
    "description": "MLP with GELU",
    "source": "model/mlp.py",
    "mixes": False,
    "names": {"ffn": "2 * hidden // tp", "inner": "e * tokens * ffn"},
    "weights": {
        "up": {"rows": "ffn", "columns": "hidden", "split": "rows"},
        "down": {"rows": "hidden", "columns": "ffn", "split": "columns"},
    },
    "body": [
        {"matmul": "up"},
        {"forward": {"gelu": "2 * inner"}, "backward": {"gelu_grad": "3 * inner"}},
        {"matmul": "down"},
    ],
    "saved": {"activation_input": "inner"},
    "working": {"backward": "inner"},
}
"""An MLP of width 2 x hidden_size, as ``model.mlp`` codes it."""


def document(**changes: Any) -> dict[str, Any]:
    """``MODEL`` whose MLPs are those of a document, with changed keys."""
    return {**MODEL, "blocks": ["attention", "own_mlp"], "layer_kinds": {"own_mlp": {**MLP, **changes}}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__recompute": "full"},
        {"pipeline__schedule": "zb-h1"},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
        {"parallel__tp": 1, "parallel__dp": 4, "parallel__sequence_parallel": False},
        {"training__precision": "fp8-mixed"},
        {"training__dropout": True},
    ],
)
def test_a_document_equals_the_code_of_the_same_kind(changes: dict[str, Any]) -> None:
    coded, written = (
        simcluster.simulate(scenario(each, **{"parallel__sequence_parallel": True, **changes}))
        for each in (MODEL, document())
    )
    assert written.step_time == coded.step_time
    assert written.memory.total == coded.memory.total
    assert written.scenario.model.layer_norm_parameters == coded.scenario.model.layer_norm_parameters
    assert layer_parameters_per_tp_rank(written.scenario.model, 2) == layer_parameters_per_tp_rank(
        coded.scenario.model, 2
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body": [{"matmul": "up"}]}, "body must have a matmul by each of weights once"),
        ({"body": [{"matmul": "up"}, {"matmul": "dwn"}]}, "matmul 'dwn' is not in weights; did you mean 'down'"),
        ({"body": MLP["body"][1:]}, "body must have a matmul by each of weights once"),
        ({"vectors": "width"}, "vectors: 'width' uses width, which is not defined"),
        ({"names": {"ffn": "2 * inner", "inner": "e"}}, "names.ffn: '2 \\* inner' uses inner"),
        ({"vectors": "__import__('os')"}, "layer_kinds.own_mlp: vectors: .*is not allowed in a formula"),
        ({"vectors": "'9' * 9"}, "has a quoted word"),
        ({"names": {"ffn": "1 - hidden", "inner": "e"}}, "gives -511, not"),
        ({"names": {"ffn": "1 // (hidden - 512)", "inner": "e"}}, "has no value: .*zero"),
        ({"saved": {"x": {"bytes": 1, "kept": True}}}, "layer_kinds.own_mlp: saved.x.kept: unknown key"),
        ({"body": [{"matmul": "up"}, {"matmul": "down", "input": "y"}]}, "the input 'y' of a matmul is not in saved"),
        ({"body": [{"matmul": "up"}, {"forward": {"z": [1, 2]}}, {"matmul": "down"}]}, "a matmul has 5 numbers"),
        ({"weights": {}}, "matmul 'up' is not in weights; add it there"),
        ({"split": ["heads"]}, "split: 'heads' is not in sizes"),
        ({"cp": {"before": ["ffn"], "after": ["ffn"]}}, "cp needs states, or before, after and split with sections"),
        ({"cp": {}}, "cp needs states, or before, after and split with sections that are whole; set all of these"),
        ({"cp": {"states": {"gat": 1}}}, "cp.states: 'gat' is not in body; add it there"),
        ({"weights": {"up": {"rows": 1}}}, "layer_kinds.own_mlp: weights.up.columns: is required and missing"),
        ({"weights": {"up": 3}}, "layer_kinds.own_mlp: weights.up: must be a mapping"),
        ({"vectors": "(1, 2)"}, "vectors: .* has .* a list"),
        ({"vectors": None}, "vectors: .* or None"),
        ({"vectors": "[0] * 9999999999"}, "a list or None"),
        ({"vectors": "ceil(0 * 1e999)"}, "layer_kinds.own_mlp: the formula .* has no value: cannot convert"),
        ({"vectors": "9" * 400}, "has no value: int too large"),
        ({"vectors": "1e999"}, "gives inf, not a finite number"),
        ({"sizes": {"a": {"help": "a", "default": "b"}, "b": {"help": "b", "default": 2}}}, "sizes.a: 'b' uses b"),
        ({"sizes": {"a": {"help": "a", "default": 2.5}}}, "a 2.5 is not a whole number"),
        ({"sizes": {"hidden": {"help": "a", "default": 2}}}, "sizes.hidden: the name .* is already defined"),
        ({"names": {**MLP["names"], "tokens": "1"}}, "names.tokens: the name .* is already defined"),
        ({"multiples": {"a": "b"}}, "multiples: 'a' is not in sizes"),
        ({"supports": {"foo.bar": {"values": [1]}}}, "name values of 'foo.bar', which is not a field"),
        ({"supports": {"training.recompute": {"values": ["full"], "reason": "{x}"}}}, "training.recompute: {x}"),
        ({"body": [{"matmul": "up", "forward": {"z": 1}}, {"matmul": "down"}]}, "either a matmul or kernels"),
        ({"body": [{"matmul": "up"}, {"wide": True, "forward": {"z": 1}}, {"matmul": "down"}]}, "wide has no effect"),
        ({"body": [{"matmul": "up"}, {"forward": {"z": {"bytes": 1, "m": 1}}}, {"matmul": "down"}]}, "m has no effect"),
        ({"body": [{"matmul": "up"}, {"forward": {"z": [0, 1, 1, 1, 9]}}, {"matmul": "down"}]}, "kernel z has 0 x 1"),
        (
            {"body": [{"matmul": "up"}, {"forward": {"z": {"bytes": 1, "kind": "attention"}}}, {"matmul": "down"}]},
            "is missing in a kernel of kind attention",
        ),
        ({"entry": {"forward": {"z": 1}}}, "entry and exit are set together"),
        ({"body": [{"matmul": "up"}, {"detached": True, "forward": {"z": 1}}, {"matmul": "down"}]}, "detached has no"),
        (
            {"weights": {**MLP["weights"], "up": {**MLP["weights"]["up"], "groups": 3}}},
            "weights.up: '3' groups do not divide 'ffn' rows",
        ),
        ({"weights": {**MLP["weights"], "up": {**MLP["weights"]["up"], "groups": 0}}}, "'0' gives 0, not a positive"),
        (
            {"names": {"ffn": "2 * hidden", "inner": "e"}},
            "weights.up has 1024 x 512 of 1024 x 512 on each of 2 tp ranks",
        ),
        (
            {"names": {"ffn": "hidden / 3", "inner": "e"}},
            "weights.up: 'ffn' gives 170.6.*, not a positive whole number",
        ),
        (
            {"weights": {**MLP["weights"], "down": {"rows": "ffn", "columns": "ffn // tp", "split": "columns"}}},
            "weights.down has",
        ),
    ],
)
def test_a_wrong_document_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simcluster.simulate(scenario(document(**changes)))


@pytest.mark.parametrize("name", ["mlp", "attention", "lm_head", "two words"])
def test_a_document_cannot_have_the_name_of_a_built_in_block(name: str) -> None:
    with pytest.raises(InputError, match=f"model.layer_kinds.{name}: is the name of a built-in block, or not a word"):
        scenario({**MODEL, "blocks": ["attention", name], "layer_kinds": {name: MLP}})


def test_sizes_are_checked() -> None:
    base = {**MODEL, "layers": "M*M*"}
    for kinds, message in (
        ({"mamba2": {"heads": 16, "head": 3}}, "layer_kinds.mamba2: the layer kind has no size 'head'; did you mean"),
        ({"mamba2": {"heads": 16.0}}, "layer_kinds.mamba2: heads 16.0 is not a whole number"),
        ({"mamba2": {"heads": 12}}, "heads 12 is not divisible by groups 8"),
        ({"mamba2": {"heads": 16}, "kda": {"heads": 2}}, "layer_kinds.kda has no effect, since no layer"),
        (None, "layer_kinds.mamba2: heads is missing"),
    ):
        with pytest.raises(InputError, match=message):
            scenario({**base, "layer_kinds": kinds})


def test_an_unknown_kind_may_be_described() -> None:
    model = Model(**{**MODEL, "mixer": "attention"})
    with pytest.raises(InputError, match=r"there is no layer kind 'mamba3'.*or describe it in layer_kinds"):
        find_layer_kind(model, "mamba3")


@pytest.mark.parametrize("name", BUILTIN_DOCUMENTS)
def test_builtin_documents_say_what_they_are(name: str) -> None:
    document = load_kind_document(name)
    assert LAYER_KINDS[name].name == name
    assert document.description
    assert document.source
    assert all(rule.help for rule in document.sizes.values())


def test_a_layer_of_one_kind_keeps_its_input_under_full_recompute() -> None:
    model = Model(**{**MODEL, "layers": "*-"})
    shape = RankShape(micro_batch=1, recompute="full")
    kept = [activation_bytes(model.layer_model(layer), shape) for layer in range(2)]
    assert kept == [{"attention_norm_input": 2 * 1024 * 512}, {"mlp_norm_input": 2 * 1024 * 512}]


def test_documents_of_unused_kinds_are_not_read() -> None:
    load_kind_document.cache_clear()
    simcluster.simulate(scenario({**MODEL, "vocab_size": 3328}))
    assert load_kind_document.cache_info().misses == 0


# --- the table of docs/modelled.md ----------------------------------------------------------------------------------


def table() -> str:
    """Every layer kind with its file and the lines of that file."""
    package = Path(simcluster.__file__).parent
    rows = ["| layer kind | what | file | lines |", "|---|---|---|---|"]
    for entry in list_entries("layer-kinds"):
        code = Path(inspect.getfile(type(LAYER_KINDS[entry.name])))
        written = package / "documents" / "catalogue" / "layer_kinds" / f"{entry.name}.yaml"
        path = written if entry.name in BUILTIN_DOCUMENTS else code
        lines = len(path.read_text(encoding="utf-8").splitlines())
        what = entry.description.removeprefix("Layer kind of ").rstrip(".")
        rows.append(f"| `{entry.name}` | {what} | `{path.relative_to(package)}` | {lines} |")
    return "\n".join(rows) + "\n"


def test_the_table_of_kinds_is_what_it_says() -> None:
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    rows = found[0].split("\n\n")[1].splitlines()
    assert rows == table().splitlines(), "python tests/test_kind_documents.py writes it anew"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", PAGE.read_text(encoding="utf-8")))
