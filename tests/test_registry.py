"""What ships, by name: every list, every name printed and read back, a first scenario of every model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.devices.device import load_device
from simcluster.devices.software import Software, load_software
from simcluster.documents.builtin_documents import builtin_folder
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.yaml_documents import parse_document, read_document
from simcluster.faults import FAULTS
from simcluster.longrun.launch.first_scenario import first_scenario
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model
from simcluster.scenario.document_resolution import load_topology
from simcluster.scenario.scenario import from_document, load, load_text
from simcluster.scenario.scenario_keys import list_scenario_keys
from simcluster.show.registry.entry_texts import entry_text, find_kind_of_entry
from simcluster.show.registry.kinds import KINDS, first_sentence, list_entries, list_names
from simcluster.step.simulate import simulate

EVERY = [(kind, name) for kind in KINDS for name in list_names(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_has_a_line_for_each(kind: str) -> None:
    entries = list_entries(kind)
    assert [entry.name for entry in entries] == list_names(kind) == list(dict.fromkeys(list_names(kind)))
    for entry in entries:
        assert entry.description, entry.name
        assert not any(mark in entry.description for mark in ("\n", "``", ">>>", "{"))
        assert "\n" not in entry.source
    assert list_names(kind.upper().replace("-", " ")) == list_names(kind)


@pytest.mark.parametrize("kind", ["models", "devices", "links", "failures", "laws", "platforms"])
def test_what_is_published_has_its_source(kind: str) -> None:
    assert all(entry.source for entry in list_entries(kind) if not entry.name.startswith("calculon"))


def test_every_name_is_printed() -> None:
    folders = {"scenarios": "scenarios", "topologies": "topologies", "studies": "scenarios/validation"}
    for kind, name in EVERY:
        text = entry_text(name, kind)
        assert text.endswith("\n"), name
        if kind in folders:
            assert text == (builtin_folder(folders[kind]) / f"{name}.yaml").read_text(encoding="utf-8")
        elif name in list_names(kind)[-3:] and any(line and not line.startswith("#") for line in text.splitlines()):
            assert parse_document(text).data, name


@pytest.mark.parametrize("name", list_names("scenarios"))
def test_a_scenario_is_printed_and_read_back(name: str) -> None:
    scenario = load(name)
    if scenario.gpus < 1024:  # of more it takes longer, and says no more
        assert load_text(entry_text(name, "scenarios", full=True)) == scenario


def test_catalogues_are_printed_and_read_back() -> None:
    for name in list_names("models")[::5]:
        section = parse_document(entry_text(name, "models")).data["model"]
        assert Model.model_validate({"name": name, **section}) == Model.model_validate(load_model_entry(name))
    for name in list_names("devices"):
        assert load_device({"name": name, **parse_document(entry_text(name, "devices")).data}) == load_device(name)
    for name in ("flat", "dgx_h100", "mixed_nics"):
        assert parse_document(entry_text(name, "topologies", full=True)).data["kind"] == load_topology(name).kind  # type: ignore[attr-defined]
    for name in load_presets("software.yaml"):
        section = parse_document(entry_text(name, "software")).data["software"]
        assert Software.model_validate({"name": name, **section}) == load_software(name)
    for name in FAULTS:
        assert parse_document(entry_text(name, "faults")).data["faults"][0]["kind"] == name


def test_changes_are_printed_too() -> None:
    text = entry_text("tiny_dp", full=True, changes={"training.micro_batch": 2})
    assert load_text(text) == load("tiny_dp", {"training.micro_batch": 2})
    assert load_text(entry_text("tiny_dp", changes=["seed=3"])).seed == 3


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("llama3", None, "choose one: --kind failures or --kind laws"),
        ("lama3-8b", None, "did you mean 'llama3-8b'"),
        ("llama3-8b", "devices", "'llama3-8b' is not in this list; write --kind models"),
        ("llama3-8b", "modls", "did you mean 'models'"),
    ],
)
def test_a_name_that_is_not_there(name: str, kind: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_kind_of_entry(name, kind)


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*argv: str) -> str:
        assert cli.main([*argv]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert "schedules  " in said("list")
    assert "zb-v" in said("list", "schedules")
    assert [each["name"] for each in json.loads(said("list", "packing rules", "--json", "-"))] == list_names(
        "packing-rules"
    )
    assert (
        json.loads(said("show", "tiny_dp", "--json", "-"))
        == read_document(builtin_folder("scenarios") / "tiny_dp.yaml").data
    )
    assert json.loads(said("schema"))["title"] == "simcluster scenario"
    assert cli.main(["list", "llama3-8b"]) == 2
    assert "it is one of the models: simcluster show llama3-8b" in capsys.readouterr().err


def test_a_first_sentence_ends_where_one_does() -> None:
    assert first_sentence("8 A100 at 0.5 TB/s (arXiv:1.2).  ``More``.") == "8 A100 at 0.5 TB/s (arXiv:1.2)."
    assert first_sentence("What n GPUs\n    do.\n\n    n of them.") == "What n GPUs do."


# --- a first scenario -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", list_names("models"))
def test_a_first_scenario_of_every_model_fits(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.longrun.launch.first_layout._seconds_per_sequence", lambda scenario: 0.0)
    gpus = 1024 if parameters(Model.model_validate(load_model_entry(model))).total > 80e9 else 64
    found = first_scenario(model, "dgx_h100", gpus)
    written = load_text(found.text())
    assert (written.gpus, written.model.name) == (gpus, model)
    assert found.layout.peak_bytes <= 0.9 * written.cluster.device.memory
    assert written.dp == found.layout.values["parallel.dp"]
    least = max(4 * 2**20, 30_720 * gpus if written.model.moe else 0)
    assert least <= written.tokens_per_step < 2 * least


def test_a_first_layout_of_deepseek_v3_reaches_a_fifth_of_the_peak() -> None:
    """On 512 GPUs, where it is the layout of 2048 with fewer replicas: 0.23 of the peak on both."""
    result = simulate(first_scenario("deepseek-v3", "hgx_h800", 512).scenario)
    assert result.scenario.parallel.ep >= 8
    assert result.mfu >= 0.2
    assert result.fits


def test_a_first_layout_is_the_fastest_of_the_promising_ones() -> None:
    """Sharded parameters hide their gathers here, and stages would leave a bubble."""
    found = first_scenario("llama3-8b", "dgx_h100", 64).scenario
    staged = found.with_({"parallel.zero": 1, "parallel.tp": 2, "overlap.tensor": True})
    assert (found.parallel.pp, found.parallel.zero) == (1, 3)
    assert simulate(found).step_time < simulate(staged).step_time


@pytest.mark.parametrize(("model", "gpus"), [("qwen3-30b-a3b", 64), ("mixtral-8x7b", 64), ("deepseek-v2-lite", 16)])
def test_a_first_layout_of_a_mixture_shares_its_experts(model: str, gpus: int) -> None:
    """It is faster than the same with all experts on each rank, or that does not fit."""
    found = first_scenario(model, "dgx_h100", gpus).scenario
    assert found.parallel.ep > 1
    alone = found.with_({"parallel.ep": 1, "training.global_batch": 2 * found.dp})
    shared = found.with_({"training.global_batch": 2 * found.dp})
    assert not simulate(alone).fits or simulate(shared).step_time < simulate(alone).step_time


def test_every_key_of_a_first_scenario_is_explained() -> None:
    lines = first_scenario("mixtral-8x7b", "dgx_h100", 24).text().splitlines()
    body = lines[lines.index("") :]
    keys = [place for place, line in enumerate(body) if line and not line.lstrip().startswith("#")]
    assert len(keys) > 15
    assert all("# " in body[place] or body[place - 1].lstrip().startswith("# ") for place in keys)
    assert max(map(len, lines)) <= 120


def test_examples_of_a_first_scenario_work_when_the_mark_is_taken_away() -> None:
    text = first_scenario("llama3-8b", "dgx_h100", 16).text()
    head, _, examples = text.partition("remove the first # to use one:\n")
    taken = "".join(f"{line.removeprefix('#') if line[1:2] != ' ' or line[1:5] == '  - ' else line}\n"
                    for line in examples.splitlines())  # fmt: skip
    whole = load_text(head.rpartition("\n")[0] + "\n" + taken)
    assert whole.run is not None
    assert whole.faults
    assert whole.measured is not None
    assert whole.software is not None


def test_a_first_scenario_of_a_batch_of_ones_own() -> None:
    found = first_scenario("llama3-8b", "aws_p5", 16, batch=24, sequence_length=4096).scenario
    assert (found.training.global_batch, found.model.sequence_length, found.cluster.topology.name) == (
        24,
        4096,
        "AWS p5.48xlarge",
    )


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "words"),
    [
        ("llama3-70b", "dgx_h100", 8, "the closest uses .* GB of 80.0 GB: use more GPUs"),
        ("llama3-8", "dgx_h100", 8, "did you mean 'llama3-8b'"),
        ("llama3-8b", "dgx_h10", 8, "did you mean 'dgx_h100'"),
        ("llama3-8b", "two_nodes_explicit", 8, "a fixed number of nodes"),
    ],
)
def test_a_first_scenario_that_cannot_be(model: str, cluster: str, gpus: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        first_scenario(model, cluster, gpus)


def test_new_writes_a_file_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    job = ["--model", "llama3-8b", "--cluster", "dgx_h100", "--gpus", "8", "--batch", "16"]
    assert cli.main(["new", *job, "-o", str(path)]) == 0
    told = capsys.readouterr().out
    assert f"wrote {path}" in told
    assert "scenario.schema.json" in told
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=scenario.schema.json\n")
    assert "properties" in json.loads((tmp_path / "scenario.schema.json").read_text(encoding="utf-8"))
    assert cli.main(["run", str(path)]) == 0
    assert "step time" in capsys.readouterr().out
    assert cli.main(["new", *job]) == 0
    assert load_text(capsys.readouterr().out) == load(path)


def test_keys_are_all_of_a_scenario() -> None:
    keys = {key.path: key for key in list_scenario_keys()}
    assert keys["parallel.tp"].default_text == "1"
    assert keys["software.launch"].default_text == "0 s"
    assert keys["faults.*[slow_gpu].start"].unit == "seconds"
    assert keys["training.recompute"].choices == ("none", "selective", "operators", "full")
    assert keys["cluster[dgx].nodes"].required
    assert from_document(load("tiny_3d").document()) == load("tiny_3d")


def test_paths_of_a_first_scenario_are_relative_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
             "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}  # fmt: skip
    (tmp_path / "jobs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    (tmp_path / "mine.yaml").write_text(entry_text("dgx_h100", "topologies"))
    monkeypatch.chdir(tmp_path)
    found = first_scenario("config.json", "mine.yaml", 16)
    (tmp_path / "jobs" / "job.yaml").write_text(found.text(folder="jobs"))
    written = load("jobs/job.yaml")
    assert (written.model.layers, written.gpus) == (32, 16)
    assert written.model_copy(update={"model": found.scenario.model}) == found.scenario


def test_show_prints_the_scenario_where_a_fault_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "slow_gpu"]) == 0
    printed = capsys.readouterr()
    assert load_text(printed.out) == load("slow_gpu")
    assert "--kind faults" in printed.err


@pytest.mark.parametrize(
    ("kind", "name"), [("devices", "mi350x"), ("devices", "rubin"), ("topologies", "vera_rubin_nvl72")]
)
def test_what_nobody_has_measured_says_so(capsys: pytest.CaptureFixture[str], kind: str, name: str) -> None:
    assert cli.main(["list", kind]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
    assert "not measured" in line
    assert cli.main(["show", name]) == 0
    assert "not measured" in capsys.readouterr().out
