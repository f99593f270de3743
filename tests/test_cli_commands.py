"""What holds for every command, by the registry: help with an example, --json - alone, --quiet, overrides, bad input.

A new command gets a row in WORKING, and one in FILES if it reads a kind of file of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simcluster import cli

HERE = Path(__file__).parent
ROOT = HERE.parent

# --- an example of each that works, in a folder with these files ---------------------------------------------------

RUN = [
    "--run.days", "7 d", "--run.failures", "rsc-1", "--run.checkpoint.stall", "5 s", "--run.checkpoint.every", "2 h",
]  # fmt: skip
ADVISED = "run={days: 5 d, failures: [{name: gpu, mtbf: 5 d}], checkpoint: {stall: 5 s}}"
WORKING = {
    "run": ["run", "tiny_dp"],
    "new": ["new", "--model", "llama3-8b", "--cluster", "dgx_h100", "--gpus", "8"],
    "list": ["list", "packing-rules"],
    "show": ["show", "zb-v"],
    "schema": ["schema"],
    "compare": ["compare", "tiny_dp", "--vary", "overlap.grad_reduce=true,false"],
    "schedule": ["schedule", "1f1b", "--stages", "2", "--microbatches", "4"],
    "topology": ["topology", "flat"],
    "collective": ["collective", "all_reduce", "--size", "1MiB:4MiB", "--gpus", "4", "--cluster", "flat"],
    "share": ["share", "jobs.yaml"],
    "rl": ["rl", "rl.yaml"],
    "validate": ["validate", "study.yaml"],
    "replay": ["replay", "kineto"],
    "stragglers": ["stragglers", "slow.yaml"],
    "train": ["train", "tiny_dp", *RUN, "--played", "3"],
    "diff": ["diff", "tiny_dp", "--set", "overlap.grad_reduce=false"],
    "report": ["report", "tiny_dp", "-o", "out.html"],
    "studio": ["studio", "tiny_dp", "--minutes", "0", "--set", "price=2.5"],
    "sensitivity": ["sensitivity", "tiny_dp", "--resources", "flops"],
    "advise": ["advise", "reliability", "tiny_dp", "--set", ADVISED, "--played", "4"],
    "scaling": ["scaling", "tiny_dp", "--loss", "5"],
    "check": ["check", "tiny_dp"],
    "sweep": ["sweep", "tiny_dp", "--vary", "training.micro_batch=2,4", "-o", "out.csv", "--executor", "1"],
    "plan": shlex.split("plan tiny_dp --vary training.micro_batch=2,4 --vary parallel.tp=1 --executor 1 --top 2"),
    "walls": ["walls", "--parameters", "7B", "--tokens", "2T", "--mfu", "50%", "--price", "2"],
    "memory": ["memory", "tiny_dp"],
    "kernels": ["kernels", "tiny_3d", "--stage", "1"],
    "calibrate": ["calibrate", "--from", "raw.jsonl", "-o", "gpu.yaml"],
    "fit": ["fit", "--file", "fits.yaml", "--no-cross-validation", "--data", "."],
    "packing": ["packing", "--documents", "1200,700,300", "--length", "2048"],
    "failures": ["failures", "failures.csv", "--gpus", "16", "--days", "9"],
    "import": ["import", "megatron", "args.txt", "--cluster", "dgx_h100", "--gpus", "8"],
    "chakra": ["chakra", "write", "tiny_dp", "-o", "traces"],
    "completion": ["completion", "bash"],
}
READ_A_SCENARIO = [
    "run", "compare", "share", "rl", "validate", "stragglers", "train", "diff", "report", "sensitivity", "check",
    "sweep", "plan", "import", "chakra", "advise", "kernels", "memory", "scaling",
]  # fmt: skip

STUDY = """kind: steps
name: mine
source: me
original: https://example.org
table:
  header: [batch, seconds]
  rows: [[4, 0.02], [8, 0.02]]
scenario: tiny_dp
columns: {batch: training.micro_batch}
measured: {column: seconds, quantity: step_time, unit: s}
"""
FITS = """about: mine
fits:
  products:
    about: one constant of the shapes of products
    constants:
      clock: {path: cluster.device.matmul.clock, bounds: [0.6, 1.0], unfitted: 0.9, source: mine}
    rows:
      - {kernels: simumax_measured_op_efficiency.csv, format: simumax, device: a100-80gb-pcie, original: mine}
"""
ARGUMENTS = (
    "--tensor-model-parallel-size 2 --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000 --max-position-embeddings 1024"
)
RL = """trainer: tiny_dp
rollout: {gpus: 2, prompts: 8, prompt_tokens: 100, response: 50}
"""
TORCHTITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
LOG = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    40.00   26.21   45.87      0    40.00   26.21   45.87      0
     8388608       2097152     float     sum      -1    90.00   93.21  163.11      0    90.00   93.21  163.11      0
"""


REFUSED = "training.micro_batch=3,7"
NOTHING = {
    "run": (["run", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "new": (["new", "--model", "llama3-8b", "--cluster", "dgx_h100", "--gpus", "0"], "--gpus"),
    "list": (["list", "nothing"], "nothing"),
    "show": (["show", "nothing"], "nothing"),
    "schema": (["schema", "nothing"], "nothing"),
    "compare": (["compare", "tiny_dp", "--vary", REFUSED], "not a multiple"),
    "schedule": (["schedule", "dualpipe", "--stages", "3", "--microbatches", "4"], "dualpipe"),
    "topology": (["topology", "dgx_h100", "--set", "device=h1000"], "device: there is no device 'h1000'"),
    "collective": ([*WORKING["collective"], "device=h1000"], "there is no device"),
    "share": (["share", "no_jobs.yaml"], "at least 1"),
    "rl": (["rl", "rl.yaml", "--set", "rollout.gpus=4"], "do not fit in the cluster's 4"),
    "validate": (["validate", "refused_rows.yaml"], "no row could be compared; first reason"),
    "replay": (["replay", "empty"], "no profiles"),
    "stragglers": (["stragglers", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "train": (["train", "tiny_dp", *RUN, "--vary", REFUSED], "fewer than two valid policies"),
    "diff": (["diff", "empty", "empty"], "is a folder"),
    "report": (["report", "tiny_dp", "--vary", REFUSED, "-o", "none.html"], "not a multiple"),
    "studio": (["studio", "nothing"], "nothing"),
    "sensitivity": (["sensitivity", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "advise": (["advise", "nine", "tiny_dp", "--set", ADVISED, "--training.micro_batch", "3"], "not a multiple"),
    "scaling": (["scaling", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "check": (["check", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "sweep": (
        ["sweep", "tiny_dp", "--vary", REFUSED, "-o", "none.csv"], "none of 2 variants has a result; first reason",
    ),
    "plan": (["plan", "tiny_dp", "--vary", "training.micro_batch=3", "--executor", "1"], "no valid layout"),
    "walls": (["walls", "--parameters", "0", "--tokens", "2T"], "above zero"),
    "memory": (["memory", "tiny_dp", "--training.micro_batch", "3"], "not a multiple"),
    "kernels": (["kernels", "tiny_3d", "--stage", "9"], "stage: 9 does not exist"),
    "calibrate": (["calibrate", "--from", "no_rows.csv", "-o", "none.yaml"], "no_rows.csv"),
    "fit": (["fit", "--file", "fits.yaml", "--data", "empty"], "nothing was fitted: products needs"),
    "packing": (["packing", "--documents", "no_rows.csv", "--length", "2048"], "no_rows.csv"),
    "failures": (["failures", "no_rows.csv", "--gpus", "16", "--days", "9"], "has no rows"),
    "import": (["import", "megatron", "no_rows.csv", "--cluster", "dgx_h100", "--gpus", "8"], "missing"),
    "chakra": (["chakra", "simulate", "empty", "--cluster", "flat"], "empty"),
    "completion": (["completion", "nosh"], "nosh"),
}  # fmt: skip
"""An example of each that comes to nothing, and what is said of it."""
EMPTY = {
    "no_rows.csv": "cause,count\n",
    "no_jobs.yaml": "cluster: {topology: flat, gpus: 8}\njobs: []\n",
    "refused_rows.yaml": STUDY.replace("[[4, 0.02], [8, 0.02]]", "[[3, 0.02], [7, 0.02]]"),
}


def write_files(folder: Path) -> None:
    """The files that WORKING and FILES name."""
    import shutil

    from test_calibration import synthetic, write
    from test_calibration_fit import write_products

    tiny = (ROOT / "scenarios" / "tiny_dp.yaml").read_text()
    (folder / "scenario.yaml").write_text(tiny)
    (folder / "slow.yaml").write_text(f"{tiny}faults: [{{kind: slow_gpu, rank: 1, factor: 1.5}}]\n")
    (folder / "rl.yaml").write_text(RL)
    (folder / "jobs.yaml").write_text(
        "cluster: {topology: flat, gpus: 8}\njobs:\n  - {scenario: tiny_dp, set: {gpus: 4}}\n"
        "  - {scenario: tiny_dp, set: {gpus: 4}}\n"
    )
    (folder / "study.yaml").write_text(STUDY)
    (folder / "swept.yaml").write_text("scenario: tiny_dp\nvary: {training.micro_batch: [2, 4]}\n")
    (folder / "topology.yaml").write_text((ROOT / "topologies" / "flat.yaml").read_text())
    shutil.copytree(HERE / "inputs" / "kineto", folder / "kineto")
    (folder / "failures.csv").write_text("cause,count\nNIC,3\n")
    losses = [f"{n},{d},{1.8 + 480 / n**0.35 + 2000 / d**0.37}" for n in (1e8, 1e9) for d in (1e9, 1e10, 1e11)]
    (folder / "losses.csv").write_text("\n".join(["parameters,tokens,loss", *losses]) + "\n")
    (folder / "args.txt").write_text(ARGUMENTS)
    (folder / "titan.toml").write_text(TORCHTITAN)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "network.yml").write_text("topology: [Ring]\nnpus_count: [4]\nbandwidth: [50]\nlatency: [500]\n")
    (folder / "nccl.log").write_text(LOG)
    (folder / "sizes.csv").write_text("0,1000,2000,10\n1000,0,10,10\n10,10,0,500\n10,10,10,0\n")
    (folder / "fits.yaml").write_text(FITS)
    write(synthetic(), folder / "raw.jsonl")
    write_products(folder)
    for name, text in EMPTY.items():
        (folder / name).write_text(text)
    (folder / "empty").mkdir()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("commands")
    write_files(found)
    return found


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> None:
    monkeypatch.chdir(folder)


def test_every_command_has_an_example_here() -> None:
    assert set(WORKING) == set(cli.COMMANDS)
    assert all(argv[0] == command for command, argv in WORKING.items())


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_has_an_example_that_parses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    parser = cli.make_parser(command)
    examples = [line.split("   ")[0].strip() for line in text.splitlines() if line.startswith(f"  {parser.prog} ")]
    assert examples, f"the help of {command} shows no example"
    for example in examples:
        argv = [
            word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", example.split(" > ")[0].split(" #")[0])
        ]
        argv = argv[len(parser.prog.split()) :]
        if parser.accepts_overrides:
            argv, _ = parser.split_overrides(argv)
        parser.refuse_unknown_options(argv)
        parser.parse_args([word for word in argv if not word.startswith("(")])


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_says_what_every_argument_is(command: str) -> None:
    parser = cli.make_parser(command)
    assert parser.description
    assert [action.dest for action in parser._actions if not action.help] == []
    assert {"--json", "--quiet", "-q", "--help"} <= set(parser.options)


# --- what is printed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", WORKING)
def test_json_is_alone_on_stdout_and_quiet_is_quiet(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert cli.main([*WORKING[command], "--json", "-", "--quiet"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err == ""
    assert "\x1b" not in captured.out


@pytest.mark.parametrize("command", WORKING)
def test_no_colours_but_on_a_terminal(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(WORKING[command]) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert "\x1b[" not in captured.out.replace("\\x1b[", "")


def test_colours_on_a_terminal_unless_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(WORKING["compare"]) == 0
    assert "\x1b[1mvariant" in capsys.readouterr().out
    assert cli.main(["run", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("\x1b[31;1msimcluster: error:\x1b[0m nothing: no such file")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        assert cli.main(WORKING["compare"]) == 0
        assert "\x1b" not in capsys.readouterr().out
        monkeypatch.delenv(name)


def test_quiet_keeps_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "nothing", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("simcluster: error: nothing: no such file")


# --- nothing is no success ------------------------------------------------------------------------------------------


def test_every_command_has_an_example_that_comes_to_nothing() -> None:
    assert set(NOTHING) == set(cli.COMMANDS)


@pytest.mark.parametrize("command", NOTHING)
def test_what_comes_to_nothing_is_no_success(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv, words = NOTHING[command]
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("simcluster: error:") == 1
    assert words in error


@pytest.mark.parametrize("command", ["sweep", "validate", "fit"])
def test_what_came_to_nothing_is_told_in_full_all_the_same(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv, _ = NOTHING[command]
    assert cli.main([*argv, "--json", "-"]) == 2
    assert json.loads(capsys.readouterr().out)


def test_one_row_or_variant_is_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "refused_rows.yaml", "study.yaml"]) == 0
    assert cli.main(["sweep", "tiny_dp", "--vary", "training.micro_batch=3,4", "-o", "one.csv"]) == 0
    assert "not a multiple" in capsys.readouterr().out


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READ_A_SCENARIO)
def test_three_spellings_of_an_override(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    argv = [each for each in WORKING[command] if each not in ("--set", "overlap.grad_reduce=false")]
    path = {"share": "jobs.0.set.training.nothing", "rl": "rollout.nothing"}.get(command, "training.nothing")
    for spelling in ([f"--{path}", "8"], [f"--{path}=8"], [f"{path}=8"], ["--set", f"{path}=8"]):
        assert cli.main([*argv, *spelling]) == 2
        said.append(capsys.readouterr().err)
    assert "'nothing'" in said[0]
    assert len(set(said)) == 1


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_misspelt_option_gets_the_right_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--jsn", "-"]) == 2
    error = capsys.readouterr().err
    assert f"unknown option '--jsn'; did you mean '--json'?; see {cli.make_parser(command).prog} --help" in error


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "tiny_dq"], "did you mean 'tiny_dp'"),
        (["run", "scenari.yaml"], "near it: scenario.yaml"),
        (["run", "tiny_dp", "--parallel.tpp", "2"], "did you mean 'tp'"),
        (["run", "tiny_dp", "--paralel.tp", "2"], "did you mean 'parallel'"),
        (["run", "tiny_dp", "--pipeline.schedule", "1f1bb"], "did you mean '1f1b'"),
        (["run", "tiny_dp", "--training.recompute", "ful"], "did you mean 'full'"),
        (["run", "tiny_dp", "--cluster.topology", "dgx_h10"], "did you mean 'dgx_h100'"),
        (["run", "tiny_dp", "--trace", "x.json", "--trace-begins", "wir"], "did you mean 'wire'"),
        (["sweep", "tiny_dp", "--ouput", "x.csv"], "did you mean '--output'"),
        (["topology", "flt"], "did you mean 'flat'"),
        (["topology", "flat", "gpu=8"], "did you mean 'gpus'"),
        (["validate", "korthikanti_tabel5"], "did you mean 'korthikanti_table5'"),
        (["import", "megatrn", "args.txt"], "did you mean 'megatron'"),
        (["sensitivity", "tiny_dp", "--resources", "netwrk"], "did you mean 'network'"),
        (["chakra", "simulat", "traces"], "did you mean 'simulate'"),
        (["collective", "all_reduc", "--size", "1MB", "--gpus", "4", "--cluster", "flat"], "did you mean 'all_reduce'"),
        (["completion", "bsh"], "did you mean 'bash'"),
    ],
)
def test_did_you_mean(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err


# name: content, the command that reads it, and what the message has: file:line:column where there is one
WHERE: dict[str, tuple[str, list[str], str]] = {
    "a job's scenario": ("cluster: {topology: flat, gpus: 8}\njobs:\n  - {scenario: tiny_dq}\n", ["share", "bad.yaml"],
                         "bad.yaml:3:5: jobs.0: tiny_dq: no such file"),
    "a job's setting": ("cluster: {topology: flat}\njobs:\n- {scenario: tiny_dp, set: {steps: 0}}\n",
        ["share", "bad.yaml"],
                        "bad.yaml:3:3: jobs.0: override: steps: must be"),
    "a jobs file": ("cluster: {topology: flat}\njobs: 3\n",
        ["share", "bad.yaml"], "bad.yaml:2:1: jobs: must be a list"),
    "a study's path": (STUDY.replace("micro_batch", "micro_btch"),
        ["validate", "bad.yaml"], "bad.yaml:9:11: columns.batch"),
    "a study's column": (STUDY.replace("{column: seconds", "{column: second"), ["validate", "bad.yaml"],
                         "bad.yaml:10:12: measured.column: the table has no column 'second'"),
    "a sweep's path": ("scenario: tiny_dp\nvary: {parallel.tpp: [1, 2]}\n", ["sweep", "bad.yaml", "-o", "bad.csv"],
                       "bad.yaml:2:8: vary.parallel.tpp: parallel.tpp is not a scenario key"),
    "a fit's key": ("fits:\n  a: {rowz: 1}\n", ["fit", "--file", "bad.yaml"], "bad.yaml:2:"),
    "a result": ('{"a": 1,\n "b" 2}', ["diff", "bad.json", "tiny_dp"], "bad.json:2:6: not JSON"),
    "a config": ('{"a": 1,\n "b" 2}', ["import", "hugging-face", "bad.json"], "bad.json:2:6: not valid JSON"),
    "a preset": ('{"a": 1,\n "b" 2}', ["run", "tiny_dp", "--set", "model={preset: bad.json}"], "bad.json:2:6: not"),
    "sizes": ("0,1\n1,a\n",
        ["collective", "all_to_all_v", "--sizes", "bad.csv", "--cluster", "flat"], "bad.csv:2: 'a'"),
    "a schedule": ("0F0,\nxx\n", ["schedule", "bad.csv"], "'bad.csv', line 2, cell 1: 'xx'"),
    "a topology": ("kind: flat\nname: x\ndevice: h100\ngpus: 0\n", ["topology", "bad.yaml"], "bad.yaml:4:1: gpus"),
}  # fmt: skip


@pytest.mark.parametrize("what", WHERE)
def test_errors_say_where(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, argv, words = WHERE[what]
    (name,) = [Path(word.rpartition(": ")[2].rstrip("}")) for word in argv if "bad." in word and "-o" not in word][:1]
    (folder / name).write_text(content)
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err


def test_validate_changes_only_what_rows_have_in_common(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "study.yaml", "--json", "-"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert cli.main(["validate", "study.yaml", "--cluster.scale.flops", "0.5", "--json", "-"]) == 0
    slower = json.loads(capsys.readouterr().out)
    assert json.dumps(slower) != json.dumps(plain)
    assert cli.main(["validate", "study.yaml", "--training.micro_batch", "2"]) == 2
    assert "training.micro_batch is set for each row by column 'batch'" in capsys.readouterr().err
    assert cli.main(["validate", "nccl_measured", "--training.micro_batch", "2"]) == 2
    assert "a study of collectives has no scenario" in capsys.readouterr().err


def test_sections_of_a_document_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "tiny_dp", "--parallel", "{tp: 2}"]) == 2
    assert "is changed by --parallel.KEY or parallel=VALUE" in capsys.readouterr().err


def test_a_word_without_end_is_cut_in_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["run", "9" * 5000], ["run", "tiny_dp", "--cluster.topology", "x" * 5000], ["x" * 5000]):
        assert cli.main(argv) == 2
        assert len(capsys.readouterr().err) < 1500


# --- hostile files ----------------------------------------------------------------------------------------------------

# kind of file: a good one, and the command that reads it (@ is where its path goes)
FILES: dict[str, tuple[str, list[str]]] = {
    "scenario": ("scenario.yaml", ["run", "@"]),
    "topology": ("topology.yaml", ["topology", "@"]),
    "jobs": ("jobs.yaml", ["share", "@"]),
    "RL step": ("rl.yaml", ["rl", "@"]),
    "study": ("study.yaml", ["validate", "@"]),
    "swept study": ("swept.yaml", ["sweep", "@", "-o", "hostile.csv", "--executor", "1", "--retry"]),
    "losses": ("losses.csv", ["scaling", "--fit", "@"]),
    "fits": ("fits.yaml", ["fit", "--file", "@", "--no-cross-validation", "--data", "."]),
    "device": ("gpu.yaml", ["run", "tiny_dp", "--cluster.device", "@"]),
    "saved result": ("saved.json", ["diff", "@", "tiny_dp"]),
    "saved result in a page": ("saved.json", ["report", "@", "-o", "hostile.html"]),
    "model config": ("config.json", ["run", "tiny_dp", "--set", "model={preset: @}"]),
    "hugging-face": ("config.json", ["import", "hugging-face", "@"]),
    "megatron": ("args.txt", ["import", "megatron", "@", "--cluster", "dgx_h100", "--gpus", "8"]),
    "torchtitan": ("titan.toml", ["import", "torchtitan", "@", "--cluster", "dgx_h100", "--gpus", "8"]),
    "astra": ("network.yml", ["import", "astra-network", "@", "--device", "h100"]),
    "nccl log": ("nccl.log", ["collective", "all_reduce", "--measured", "@", "--platform", "dgx-h100", "--machines",
                              "1", "--per-machine", "8"]),
    "sizes": ("sizes.csv", ["collective", "all_to_all_v", "--sizes", "@", "--cluster", "flat"]),
    "schedule": ("schedule.csv", ["schedule", "@"]),
    "raw table": ("raw.jsonl", ["calibrate", "--from", "@", "-o", "hostile.yaml"]),
    "recorded job": ("job.parquet", ["replay", "@"]),
    "profile": ("profile/rank0.json.gz", ["replay", "%"]),
    "execution trace": ("job/tiny_dp.0.et", ["chakra", "simulate", "%", "--cluster", "flat"]),
}  # fmt: skip

DEEP = 100_000
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda good: good[: len(good) // 2],
    "empty": lambda good: b"",
    "a picture": lambda good: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 40,
    "another text": lambda good: b"Dear reader,\n\nthis is a letter: not what you want.\n",
    "another document": lambda good: b"shopping: [milk, bread]\n",
    "deep lists": lambda good: b"[" * DEEP,
    "deep mappings": lambda good: b'{"a":' * DEEP,
    "a huge number": lambda good: b"steps: " + b"9" * 20_000 + b"\n",
    "a huge JSON number": lambda good: b'{"step_time_s": ' + b"9" * 20_000 + b', "traceEvents": 1e999999}',
    "keys twice": lambda good: b'{"name": 1, "name": 2}',
    "a tag": lambda good: b"!!python/object/apply:os.system ['touch pwned']\n",
    "aliases": lambda good: b"a: &a [1, 1, 1]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n",
    "zeros": lambda good: gzip.compress(bytes(4_000_000)) * 20 if good[:2] == b"\x1f\x8b" else bytes(3_000_000),
}
MAY_WORK = {("cut in half", kind) for kind in ("nccl log", "raw table", "schedule", "fits")}
"""What is whole without its second half: lines."""
SECONDS = 5.0
BYTES = 3_000_000_000

IN_A_ROW = """
import contextlib, io, json, resource, sys, time
from pathlib import Path
from simcluster.cli import main
resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
for line in sys.stdin:
    argv, out, err = json.loads(line), io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(argv)
    print(json.dumps([status, out.getvalue(), err.getvalue(), time.process_time() - begun]), flush=True)
"""


@pytest.fixture(scope="module")
def hostile_reader(folder: Path) -> Iterator[Callable[[list[str]], tuple[int, str, str, float]]]:
    """One process for all of them, which may have so much memory and no more."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    code = IN_A_ROW.replace("BYTES", str(BYTES))
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout

        def ask(argv: list[str]) -> tuple[int, str, str, float]:
            process.stdin.write(json.dumps(argv) + "\n")
            process.stdin.flush()
            timer = threading.Timer(20 * SECONDS, process.kill)
            timer.start()
            answer = process.stdout.readline()
            timer.cancel()
            return tuple(json.loads(answer))

        yield ask
        process.kill()


@pytest.fixture(scope="module")
def good_files(folder: Path) -> dict[str, bytes]:
    """The bytes of a good file of each kind."""
    from simcluster.interop.replay.trace_writer import write_recorded_trace
    from simcluster.scenario.scenario import load
    from simcluster.scenario.schedule_files import is_csv
    from simcluster.step.simulate import simulate

    assert is_csv("schedule.csv")
    os.chdir(folder)
    result = simulate(load("tiny_dp"), folded=False)
    write_recorded_trace(result, folder / "job.parquet")
    argvs = [
        ["run", "tiny_dp", "--json", "saved.json", "--quiet"],
        shlex.split("schedule 1f1b --stages 2 --microbatches 4 --csv schedule.csv --json schedule.json"),
        ["chakra", "write", "tiny_dp", "-o", "job", "--json", "written.json"],
        WORKING["calibrate"],
    ]
    for argv in argvs:
        assert cli.main(argv) == 0
    (folder / "profile").mkdir()
    for path in sorted((folder / "kineto").glob("*.gz")):
        (folder / "profile" / path.name).write_bytes(path.read_bytes())
    return {name: (folder / name).read_bytes() for name, _ in FILES.values()}


@pytest.mark.parametrize("kind", FILES)
def test_hostile_files_are_one_message(
    kind: str,
    folder: Path,
    good_files: dict[str, bytes],
    hostile_reader: Callable[[list[str]], tuple[int, str, str, float]],
) -> None:
    name, argv = FILES[kind]
    good = [word.replace("@", name).replace("%", str(Path(name).parent)) for word in argv]
    assert hostile_reader(good)[0] == 0, "the good file has to work, or its bad ones show nothing"
    for what, spoil in HOSTILE.items():
        place = folder / "hostile" / kind.replace(" ", "_") / what.replace(" ", "_")
        place.mkdir(parents=True)
        if "%" in argv:  # a folder of files: its others are good
            for other in sorted((folder / name).parent.iterdir()):
                (place / other.name).write_bytes(other.read_bytes())
        path = place / Path(name).name
        path.write_bytes(spoil(good_files[name]))
        called = [word.replace("@", str(path)).replace("%", str(place)) for word in argv]
        status, out, error, seconds = hostile_reader(called)
        case = f"{kind}, {what}: exit status {status}\n{error[:4000]}"
        if status == 0 and (what, kind) in MAY_WORK:
            continue
        assert status == 2, case
        assert out == "", case
        assert error.startswith("simcluster: error: "), case
        assert error.count("simcluster: error:") == 1, case
        assert len(error) <= 4000, case
        assert len(error.splitlines()) <= 8, case
        assert seconds < SECONDS, case
    assert not list(folder.rglob("pwned"))
