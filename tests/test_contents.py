"""Keys of what is kept: an edited file is played anew, wherever a scenario names it and whoever keeps the numbers."""

from __future__ import annotations

import ast
import inspect
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.yaml_documents import parse_document
from simcluster.scenario import document_resolution, file_digests
from simcluster.scenario.file_digests import FileDigests, VariantCacheKeys
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant, load
from simcluster.studies.search.evaluation import SimulatedLayouts
from simcluster.studies.sweep.quick_rows import simulate_quickly
from simcluster.studies.sweep.sweep import make_sweep, run_sweep
from simcluster.studies.sweep.variant_simulation import Row

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGE = Path(simcluster.__file__).parent
TINY: dict[str, Any] = {
    "name": "tiny", "gpus": 4, "cluster": {"topology": "flat", "gpus": 8}, "parallel": {"pp": 2},
    "model": {"layers": 4, "hidden_size": 256, "heads": 4, "vocab_size": 1000, "sequence_length": 128},
    "pipeline": {"schedule": "1f1b"}, "training": {"global_batch": 8, "micro_batch": 2},
}  # fmt: skip

FLAT = (ROOT / "topologies" / "flat.yaml").read_text()
XML = (HERE / "inputs" / "nccl_dgx_a100.xml").read_text()
ROWS = "{0}F0,{0}F1,{0}B0,{0}B1\n"
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 128,
}  # fmt: skip
HISTOGRAM = {"kind": "histogram", "file": "law.csv"}
FUNCTION = "from orders import rows\ndef made(stages, microbatches, chunks=1):\n    return rows(stages, microbatches)\n"
ORDERS = "def rows(stages, microbatches):\n    {}\n    return [' '.join(order)] * stages\n"
FORWARD_FIRST = "order = [f'{kind}{each}' for kind in 'FB' for each in range(microbatches)]"
ONE_BY_ONE = "order = [f'{kind}{each}' for each in range(microbatches) for kind in 'FB']"

REFERENCES: dict[str, tuple[dict[str, Any], str, dict[str, tuple[str, str]]]] = {
    "topology": ({"cluster.topology": "net.yaml"}, "net.yaml", {"net.yaml": (FLAT, FLAT.replace("GB/s", "MB/s"))}),
    "topology of another tool": (
        {"cluster": {"topology": "dump.xml"}}, "dump.xml", {"dump.xml": (XML, XML.replace('count="2"', 'count="1"'))},
    ),
    "topologies of another tool": (
        {"cluster": {"topology": {"kind": "import", "files": ["dump.xml"]}}}, "dump.xml",
        {"dump.xml": (XML, XML.replace('count="2"', 'count="1"'))},
    ),
    "device": (
        {"cluster.device": "gpu.yaml"}, "gpu.yaml", {"gpu.yaml": ("base: a100-80gb\n", "base: h100\n")},
    ),
    "device under a device under a topology": (
        {"cluster.topology": "net.yaml"}, "base.yaml",
        {"net.yaml": (FLAT.replace("device: ", "device: gpu.yaml  # "), ""), "gpu.yaml": ("base: base.yaml\n", ""),
         "base.yaml": ("base: a100-80gb\n", "base: h100\n")},
    ),
    "configuration of a model": (
        {"model": {"preset": "config.json", "sequence_length": 128}}, "config.json",
        {"config.json": (json.dumps(CONFIG), json.dumps({**CONFIG, "intermediate_size": 1024}))},
    ),
    "schedule in a table": (
        {"pipeline.schedule": "order.csv", "training.global_batch": 8}, "order.csv",
        {"order.csv": (ROWS.format(0) + ROWS.format(1), "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n")},
    ),
    "schedule in Python": (
        {"pipeline.schedule": "order.py:made"}, "orders.py",
        {"order.py": (FUNCTION, ""), "orders.py": (ORDERS.format(FORWARD_FIRST), ORDERS.format(ONE_BY_ONE))},
    ),
    "histogram of a fault": (
        {"faults": [{"kind": "jitter", "factor": HISTOGRAM}]}, "law.csv", {"law.csv": ("1\n1.1\n", "2\n2.1\n")},
    ),
    "speeds of a fault": (
        {"faults": [{"kind": "speeds", "table": "speeds.csv"}]}, "speeds.csv",
        {"speeds.csv": ("rank,speed\n1,0.9\n", "rank,speed\n1,0.8\n")},
    ),
    "histogram of documents of a fault": (
        {"faults": [{"kind": "sequence_lengths", "documents": HISTOGRAM}]}, "law.csv", {"law.csv": ("64\n", "32\n")},
    ),
    "histogram of data": ({"data": {"documents": HISTOGRAM}}, "law.csv", {"law.csv": ("64\n", "32\n")}),
}  # fmt: skip
"""What a scenario may say, the file that is edited, and all files: before, and after where they are edited."""


@pytest.fixture(params=REFERENCES)
def reference(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a scenario changes to name a file, in a folder with the files; ``edit`` is what to write where."""
    changes, edited, written = REFERENCES[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    for name, (before, _) in written.items():
        (tmp_path / name).write_text(before)
    monkeypatch.setitem(_EDIT, tmp_path / edited, written[edited][1])
    return changes


_EDIT: dict[Path, str] = {}


def edit() -> None:
    """The file as it is after somebody has worked on it."""
    ((path, text),) = _EDIT.items()
    assert path.read_text() != text
    path.write_text(text)
    sys.modules.pop("orders", None)


_OPENED: list[str] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _OPENED is not None and event == "open" and isinstance(arguments[0], str) and "r" in (arguments[1] or "r"):
        _OPENED.append(arguments[0])


@contextmanager
def opened() -> Iterator[list[str]]:
    """Files that are opened meanwhile, whoever does."""
    global _OPENED
    if not getattr(opened, "listens", False):
        sys.addaudithook(_listen)  # cannot be taken away again
        opened.listens = True  # type: ignore[attr-defined]
    found: list[str] = []
    _OPENED = found
    yield found
    _OPENED = None


def test_every_file_that_a_scenario_opens_is_in_its_key(reference: dict[str, Any], tmp_path: Path) -> None:
    """Whatever opens it: a reader that is added opens files, too."""
    tuple_of = tuple(reference.items())
    with opened() as found:
        scenario = load(TINY, tuple_of)
    own = {Path(each).resolve() for each in found if Path(each).resolve().is_relative_to(tmp_path.resolve())}
    own = {each for each in own if each.is_file()}
    keys = VariantCacheKeys(BaseScenario(TINY))
    before = keys.cache_key_of_changes(*tuple_of)
    assert own, "nothing was read"
    assert own <= {each.resolve() for each in keys.contents._digests}
    assert VariantCacheKeys(BaseScenario(TINY)).cache_key_of_changes(*tuple_of) == before
    edit()
    assert VariantCacheKeys(BaseScenario(TINY)).cache_key_of_changes(*tuple_of) != before
    assert load(TINY, tuple_of).document() != scenario.document(), "the edit is one that changes the scenario"


def test_every_place_where_a_document_names_a_file_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are where ``document_resolution`` asks what a path is relative to: a new one needs a line in REFERENCES."""
    tree = ast.parse(inspect.getsource(document_resolution))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = {call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_base_folder"}
    reached, folder = set(), document_resolution._base_folder

    def noted(*arguments: Any) -> Path:
        frame = sys._getframe(1)
        reached.add(frame.f_lineno)
        return folder(*arguments)

    monkeypatch.setattr(document_resolution, "_base_folder", noted)
    for changes, _, _ in REFERENCES.values():
        with suppress(InputError):  # the files are not here
            load(TINY, tuple(changes.items()))
    with suppress(InputError):  # reads again what the model was read from
        document_resolution.model_assumptions(parse_document("model: {preset: config.json}"))
    with pytest.raises(InputError, match="no such file"):
        simcluster.load_cluster("flat", {"device": "nowhere.yaml"}.items())
    assert len(asked) > 4
    assert reached == asked


def stub(variant: ScenarioVariant) -> Row:
    return {"status": "ok", "error": "", "step_time_s": 1.0}


@pytest.mark.parametrize(
    "reference", ["device under a device under a topology", "schedule in Python", "histogram of data"], indirect=True
)
def test_sweeps_and_plans_play_anew_what_names_an_edited_file(reference: dict[str, Any]) -> None:
    changes = tuple(reference.items())
    last, value = changes[-1]
    base = BaseScenario(TINY, fixed_changes=changes[:-1])
    over, of = make_sweep(base, {last: [value]}), make_sweep(BaseScenario(TINY, fixed_changes=changes), {"seed": [1]})
    rows = {"swept over": over, "swept": of}

    def played() -> dict[str, int]:
        return {name: run_sweep(made, store=Path("rows"), measure=stub).num_simulated for name, made in rows.items()}

    def planned() -> str:
        return SimulatedLayouts(load(TINY, changes), None)._key_of_layout(None)  # type: ignore[arg-type]

    assert played() == {"swept over": 1, "swept": 1}
    assert played() == {"swept over": 0, "swept": 0}
    plan = planned()
    edit()
    assert played() == {"swept over": 1, "swept": 1}
    assert planned() != plan


def test_a_shipped_topology_that_is_edited_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "builtin_folder", lambda kind: tmp_path / kind)
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "flat.yaml").write_text(FLAT)
    first = FileDigests().digest({"cluster": {"topology": "flat"}})
    (tmp_path / "topologies" / "flat.yaml").write_text(FLAT + "# edited\n")
    assert "" != first != FileDigests().digest({"cluster": {"topology": "flat"}})


def test_an_edited_measure_and_an_edited_simulator_make_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "my_measure.py"
    text = "def mine(variant):\n    return {'status': 'ok', 'error': '', 'step_time_s': 1.0}\n"
    source.write_text(text)
    import my_measure  # type: ignore[import-not-found]

    made = make_sweep(BaseScenario("tiny_dp"), {"seed": [1, 2]})

    def played() -> int:
        return run_sweep(made, store=tmp_path / "rows", measure=my_measure.mine).num_simulated

    assert (played(), played()) == (2, 0)
    source.write_text(text.replace("1.0", "2.0"))
    assert (played(), played()) == (2, 0)
    monkeypatch.setattr(file_digests, "sources_digest", lambda: "another simulator")
    assert played() == 2


def test_a_file_that_is_edited_while_it_is_swept_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.yaml").write_text(FLAT)
    made = make_sweep(BaseScenario(TINY), {"cluster.topology": ["net.yaml"], "seed": [1, 2, 3]})

    def edited(variant: ScenarioVariant) -> Row:
        if dict(variant.changes)["seed"] == 2:
            (tmp_path / "net.yaml").write_text(FLAT + "# edited\n")
        return stub(variant)

    with pytest.raises(InputError, match=r"net\.yaml: changed during the run"):
        run_sweep(made, store=tmp_path / "rows", measure=edited)
    with closing(sqlite3.connect(tmp_path / "rows")) as kept:
        assert kept.execute("SELECT count(*) FROM rows").fetchone() == (1,), "only what was finished before"


def test_rows_by_the_short_way_follow_an_edited_base(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(FLAT)
    text = json.dumps({**TINY, "cluster": {"topology": "net.yaml", "gpus": 8}})
    (tmp_path / "base.yaml").write_text(text)
    variant = ScenarioVariant(BaseScenario(str(tmp_path / "base.yaml")), (("training.micro_batch", 1),))
    first = simulate_quickly(variant)
    assert simulate_quickly(variant) == first
    (tmp_path / "net.yaml").write_text(FLAT.replace("GB/s", "MB/s"))
    second = simulate_quickly(variant)
    assert second["step_time_s"] > first["step_time_s"]
    (tmp_path / "base.yaml").write_text(text.replace('"layers": 4', '"layers": 8'))
    assert simulate_quickly(variant)["step_time_s"] > second["step_time_s"]


@pytest.mark.parametrize("text", ["", "x" * 100_000, "a\0b", ".", "/", "..", "\n", "nowhere.py:f", ":"])
def test_texts_that_lead_to_no_file(text: str) -> None:
    assert FileDigests().digest({"name": text, "more": [text]}) == ""


def test_files_that_name_each_other_or_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "broken.py").write_text("def (")
    found = FileDigests()
    assert found.digest(["a.yaml", "broken.yaml", "broken.py:f"], tmp_path)
    assert len(found._digests) == 4
    (tmp_path / "b.yaml").chmod(0)
    assert FileDigests().digest(["b.yaml"], tmp_path)


def test_a_command_replays_no_edited_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.yaml").write_text(FLAT)
    argv = ["sweep", "tiny_dp", "--vary", f"cluster.topology={tmp_path / 'b.yaml'}", "--executor", "1"]
    told = []
    for text in (FLAT, FLAT, FLAT.replace("GB/s", "MB/s")):
        (tmp_path / "b.yaml").write_text(text)
        assert main([*argv, "-o", str(tmp_path / "out.csv"), "--json", "-"]) == 0
        told.append(json.loads(capsys.readouterr().out)["played_now"])
    assert told == [1, 0, 1]
