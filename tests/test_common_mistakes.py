"""Mistakes of people, command by command: each is refused in one message that says what would work."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from four_points import missing_points

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.documents.builtin_documents import builtin_path

ROOT = Path(__file__).parents[1]
TINY = builtin_path("scenarios", "tiny_3d").read_text()
WEEK = builtin_path("scenarios", "week_64xa100").read_text()
LONG = builtin_path("scenarios", "llama3_405b_15t").read_text()
SITES = builtin_path("topologies", "two_sites_h100").read_text()
FITS = builtin_path("scenarios/fits", "constants").read_text()
JOBS = (ROOT / "examples/jobs.yaml").read_text()
PARQUET = (ROOT / "examples/trace.parquet").read_bytes()

GIVEN: list[tuple[str, dict[str, str | bytes], str]] = [
    # a file in place of another
    ("run log.csv", {"log.csv": "cause,time\ngpu,1 h\n"}, "as in simcluster failures LOG.csv or train --replay"),
    ("run t.parquet", {"t.parquet": PARQUET}, "is a Parquet file; YAML text is expected: replay a trace in it"),
    ("run s.yaml", {"s.yaml": TINY.encode("utf-16")}, "is text in UTF-16; YAML text is expected: save it as UTF-8"),
    ("run s.yaml.gz", {"s.yaml.gz": b"\x1f\x8b\x08\0\0\0"}, "YAML text is expected: run gunzip on it first"),
    ("replay s.yaml", {"s.yaml": TINY}, "read a scenario with simcluster run, stragglers or report"),
    ("import megatron train.py --cluster dgx_h100", {"train.py": "import torch\n"}, "takes a launch script (.sh)"),
    ("import nemo ds.json --cluster dgx_h100", {"ds.json": "{train_batch_size: 1}"}, "add it, as model.num_layers"),
    ("import torchtitan j.toml --cluster dgx_h100", {"j.toml": "[model]\nname = llama3\n"},
     "j.toml:2: is not TOML: a value is not valid in TOML; write a text in double quotes"),
    ("failures f.csv --gpus 8 --days 3", {"f.csv": ""}, "has no rows; write a header and one line per row"),
    ("schedule mine.py --stages 2 --microbatches 4", {"mine.py": ""}, "name your function as FILE.py:FUNCTION"),
    ("replay folder", {"folder/readme.txt": ""}, "name the folder that has them"),
    ("share j.yaml", {"j.yaml": "cluster: dgx_h100\njobs: [tiny_dp]\n"}, "must be a mapping, as in {scenario: ...}"),
    ("share j.yaml", {"j.yaml": TINY}, "jobs: is required and missing; write jobs: [{scenario: ...}]"),
    ("share j.yaml", {"j.yaml": "cluster: {topology: dgx_h100, nodes: 2}\njobs: [{scenario: tiny_dp, machines: [9]}]"},
     "the cluster has no node 9; its nodes are 0 to 1: use some of these"),
    # a name in place of another
    ("run llama3-70b", {}, "is a model, not a scenario; make one: simcluster new --model llama3-70b"),
    ("run h100", {}, "is a device, not a scenario; use it in one"),
    ("run dgx_h100", {}, "is a topology, not a scenario; see simcluster topology dgx_h100"),
    # a path that the shell has not read
    ("run '~/job.yaml'", {}, "only a shell expands ~, and not in quotes: write /"),
    ("run '$HOME/job.yaml'", {}, "only a shell expands variables: write /"),
    ("run '${NOTSETHERE}/job.yaml'", {}, "the variable is not set here: write the full path"),
    ("run 'C:\\jobs\\a.yaml'", {}, "folders are separated by / on this system"),
    ("run gone.yaml", {}, "it was searched in /"),
    ("run my job.yaml", {"my job.yaml": TINY}, "write 'my job.yaml' in quotes if that is one value"),
    ("check tiny_dp --json out/", {}, "that is a folder's name; name a file in it, as in out/result"),
    # values
    ("collective all_reduce --size 1 GB --cluster dgx_h100", {}, "write '1 GB' in quotes if that is one value"),
    ("collective all_reduce --size -1MB --cluster dgx_h100", {}, "a value that begins with a dash as --size=-1"),
    ("collective all_reduce --size 1MB --ranks 0,0 --cluster dgx_h100", {}, "GPU 0 appears twice in a group; "),
    ("run tiny_3d --window 5ms:1ms", {}, "as in --window '1 ms:5 ms'"),
    ("run tiny_3d --picture-size A4 --gantt g.png", {}, "--picture-size: 'A4' is not a picture size; write slide"),
    ("run tiny_3d --trace-ranks 12 --trace t.json", {}, "this job has ranks 0 to 7: use one of those"),
    ("run tiny_3d --trace t.txt", {}, "choose such a name"),
    ("run s.yaml", {"s.yaml": f"{TINY}faults: slow_gpu\n"}, "must be a list, as in [{kind: ...}], got 'slow_gpu'"),
    ("run s.yaml", {"s.yaml": f"{TINY}memory: {{offload: all}}\n"}, "as in {activations: ...}, got 'all'"),
    ("plan tiny_3d --gpus 0", {}, "0 GPUs requested: the cluster has 8; give a number from 1 to 8"),
    ("kernels tiny_dp --stage 9", {}, "stage: 9 does not exist; this job has stage 0; use one of these"),
    ("train w.yaml", {"w.yaml": WEEK.replace("days:", "day:", 1)}, "'day' is not a key; did you mean 'days'?"),
    ("train w.yaml", {"w.yaml": WEEK.replace("days: 7 d", "tokens: many")}, "'many' is not a number of tokens; write"),
    ("train week_64xa100 --against run.spares.warm:2", {}, "or changes such as 'run.spares.hot=8'"),
    # options of other programs
    ("run tiny_3d --output r.json", {}, "unknown option '--output'; use --json FILE or --timeline FILE or "),
    ("run tiny_3d --save-plot x.png", {}, "or --gantt FILE or "),
    ("sweep tiny_3d --jobs 3", {}, "unknown option '--jobs'; use --executor N|dask://HOST; see"),
    ("run --config a.yaml", {"a.yaml": TINY}, "simcluster run takes SCENARIO, without an option name before it"),
    ("run tiny_3d --bogus", {}, "use one of --set, --json, "),
    ("run tiny_3d --vary parallel.tp=1,2", {}, "it is an option of simcluster compare and of "),
    # units
    ("train w.yaml", {"w.yaml": WEEK.replace("days: 7 d", "days: 1 week")}, "; write 7 d"),
    ("train w.yaml", {"w.yaml": WEEK.replace("2 min", "2 minutes", 1)}, "'2 minutes' is not a quantity; "),
    ("run tiny_3d --cluster.nvlink.line_rate '450 GBps'", {}, "; write 450 GB/s"),
    ("run tiny_3d --cluster.nvlink.line_rate '3600 Gbps'", {}, "; write 3600 Gb/s"),
    # several values where one is
    ("compare tiny_3d --vary parallel.tp=1..4", {}, "or a list where several are allowed: 1,2,3"),
    ("compare tiny_3d --vary 'parallel.tp=1|2|4'", {}, "or a list where several are allowed: 1,2,4"),
    ("plan tiny_3d --objective cost", {}, "as in --price 2.50"),
    # a word of other programs
    ("simulate tiny_3d", {}, "unknown command 'simulate'; did you mean 'run'?; see simcluster --help"),
    ("check tiny_3d --budget 100", {}, "it is an option of simcluster walls: use that, or omit it"),
    ("run g.yaml", {"g.yaml": f"{TINY}faults: [{{kind: background_load, load: 50%}}]\n"}, "unknown key 'load'; known"),
    ("run tiny_3d --cluster.site.nodes 2", {}, "unknown key 'site'; known keys: "),
    ("studio tiny_3d --folder nope", {}, "the folder does not exist; name an existing folder, or create it"),
    ("train week_64xa100 --workers 0", {}, "use at least 1 (--executor 1, --workers 1)"),
    ("run tiny_3d faults+={kind: slow_gpu}", {}, "write 'faults+={kind: slow_gpu}' in quotes if that is one value"),
    ("run tiny_3d --training.precision fp8", {}, "got 'fp8'; did you mean 'fp8-mixed'?"),
    ("run tiny_3d --cluster.topology t.yaml", {"t.yaml": TINY},
     "t.yaml: is a scenario, but a topology file (with a kind) is needed"),
    # a value that is not there
    ("run tiny_3d --gantt=", {}, "--gantt needs a value, and '--gantt=' has an empty one; write --gantt FILE"),
    ("run tiny_3d --gantt ''", {}, "--gantt needs a value, and '' has an empty one; write --gantt FILE"),
    ("run tiny_3d --set parallel.tp 4", {}, "--set parallel.tp has no value; write --set parallel.tp=4 as one word"),
    # a key or a word nearly right
    ("run s.yaml", {"s.yaml": TINY.replace("cluster:", "clusters:")}, "unknown key 'clusters': write cluster"),
    ("run s.yaml", {"s.yaml": f"{TINY}parallel_tp: 4\n"}, "it belongs to parallel, as parallel.tp"),
    ("run s.yaml", {"s.yaml": f"{TINY}faults: [{{slow_gpu: {{rank: 3}}}}]\n"}, "as in {kind: slow_gpu, ...}"),
    ("sweep s.yaml -o r.csv", {"s.yaml": "{scenario: tiny_3d, table: t.csv, columns: {TP: seed}}", "t.csv": "tp\n1"},
     "has no column 'TP'; did you mean 'tp'?; map one that it has: tp"),
    ("plan tiny_3d --vary parallel.tp=3", {}, "try another parallel.tp than 3, or use another number of GPUs"),
    ("failures f.csv --gpus 8 --days 3", {"f.csv": "time;cause\n1 h;gpu\n"}, "columns are separated by ';'"),
    ("train w.yaml", {"w.yaml": WEEK.replace("per_year: 100%", "per_year: often")}, "must be a number, got 'often'; "),
    ("studio nowhere.yaml", {}, "there is no such file in the studio's folder"),
    ("topology t.yaml", {"t.yaml": "nodes: 3\n"}, "got a mapping of 1 key; the kinds are "),
    ("share j.yaml", {"j.yaml": "cluster: dgx_h100\njobs:\n- {scenario: tiny_dp, machines: [0, 2],\n"},
     "ends before its bracket is closed; write ] or } after its last item, or use the complete file"),
    ("share j.yaml", {"j.yaml": JOBS.replace("dp, set", "dp, machines: [0, 1], set")},
     "a GPU runs one job only: give each job different GPUs or nodes"),
    ("run s.yaml", {"s.yaml": TINY.replace("1f1b}", "zb-v, layers_per_stage: [1, 3]}")}, "give that slice a layer"),
    # a colon without a space
    ("run s.yaml", {"s.yaml": TINY.replace(": ", ":")}, "write cluster: ..., with a colon and a space after it"),
    ("run s.yaml", {"s.yaml": "name:tiny\ncluster:dgx_h100\n"}, "write name: tiny, with a colon and a space"),
    ("run s.yaml", {"s.yaml": TINY.replace("{schedule: 1f1b}", "schedule = 1f1b")}, "write schedule: 1f1b, with"),
    ("run s.yaml", {"s.yaml": TINY.replace("schedule: 1f1b", "schedule:1f1b")}, "write schedule: 1f1b, with a colon"),
    ("train w.yaml", {"w.yaml": LONG.replace("14.8T tokens", "1T tokens")},
     "stage 3 ends at 1e+12 tokens and begins at 2.87e+12, where stage 2 ends; stages are in order: write more"),
    ("train w.yaml", {"w.yaml": LONG.replace("14.8T tokens", "20T tokens")},
     "w.yaml:24:7: run.stages.2.until: stage 3 ends at 2e+13 tokens, but the run ends at 1.56e+13"),
    ("train w.yaml", {"w.yaml": LONG.replace("lasts: 10 min", "lasts: 30 h")},
     "the time between interruptions; got 108000 s: use a shorter 'lasts' or a longer 'every'"),
    # a name in another list, a key that is an option, a kind's name that is a key
    ("show llama3-70b --kind topologies", {}, "'llama3-70b' is not in this list; write --kind models"),
    ("sweep s.yaml -o r.csv", {"s.yaml": "{scenario: tiny_dp, vary: {seed: [1]}, sample: 3}"}, "and give --sample"),
    ("topology s.yaml", {"s.yaml": SITES.replace(", latency: 5 ms", "")}, "wan.latency: is required and missing"),
    # what another number would do
    ("run slow_gpu --cluster.device d.yaml", {"d.yaml": "{base: h100, memory: 94 Gb}"}, "; write 94 GB"),
    ("packing --median 1000 --sigma -1 --length 4096", {}, "--sigma: must be greater than or equal to 0, got -1"),
    ("failures f.csv --gpus 8 --days 10", {"f.csv": "cause,time\ngpu,466 h\n"}, "raise --days to 20 or more"),
    ("fit --file f.yaml", {"f.yaml": FITS.replace("[0.3, 1.0]", "[1.0, 0.3]", 1)}, "[1, 0.3] must be a lower bound"),
    ("fit --file f.yaml", {"f.yaml": FITS.replace("matmul.power\n", "matmul.powr\n", 1)}, "did you mean 'power'?"),
    ("scaling --compute 1e22 --law '{form: NDC, E: -1}'", {}, "E: must be greater than or equal to 0, got -1; write"),
    ("scaling --gpus 64", {}, "gpus alone does not define a question; give a budget (--compute 3.15e23, or --gpus"),
    ("run s.yaml", {"s.yaml": f"{TINY}faults: [{{kind: slow_gpu, ranks: 0-3, factor: 2}}]\n"}, "as in [0, 1, 2, 3]"),
    ("run tiny_dp --training.recompute '[mlp, atention]'", {}, "got 'atention'"),
    ("train w.yaml", {"w.yaml": LONG.replace("gpus: 8192, parallel.dp: 64", "gpus: 8192, parallel.dp: 60", 1)},
     "w.yaml:21:7: run.stages.0.set: stage 1: 2 problems\n  parallel: tp 8 x pp 16 x cp 1 x dp 60 = 7680"),
    # a file of another kind where a scenario is wanted
    ("run j.yaml", {"j.yaml": JOBS}, "is a file of jobs, but a scenario is needed; use it with simcluster share"),
    ("run s.yaml", {"s.yaml": SITES}, "s.yaml: is a topology, but a scenario is needed; use it with simcluster"),
    ("run s.yaml", {"s.yaml": "{scenario: tiny_dp, vary: {seed: [1]}}"}, "is a study, but a scenario is needed; use"),
    ("run r.json", {"r.json": '{"step_time_s": 1.0, "fits": true, "breakdown_s": {}}'},
     "is a result, but a scenario is needed; use it with simcluster report, diff or compare"),
    ("run f.yaml", {"f.yaml": FITS}, "is a file of fits, but a scenario is needed; use it with simcluster fit --file"),
    ("diff tiny_3d traces", {"traces/a.txt": ""}, "name the folder that has them"),
    ("calibrate -o g.yaml --from gone.jsonl", {}, "no such file"),
    ("new --model c.json --cluster dgx_h100", {"c.json": '{"model_type": "llama"}'}, "c.json: the config of"),
    ("memory --parameters 13B --dp 0", {}, "is not a number above zero; write it in full, as in 8"),
    ("train w.yaml", {"w.yaml": WEEK.replace("median: 1 h", "mean: 1 h")},
     "w.yaml:28:34: run.failures.also.0.lasts.mean: unknown key 'mean'; did you mean 'median'?; known keys: kind"),
    ("run s.yaml", {"s.yaml": f"{TINY}faults: [{{kind: slow_link, between: [node0, x], speed: 0.5}}]\n"},
     "did you mean node0.gpu0, node0.gpu1"),
    ("run tiny_dp --engine fast", {}, "must be auto, simpy, compiled or reference, got 'fast'"),
    ("failures f.csv --gpus 8 --days 3", {"f.csv": "reason,time\ngpu,1 h\n"}, "rename columns as in --columns"),
    ("advise interval", {}, "write simcluster advise QUESTION SCENARIO; see"),
    # an option that is a key
    ("run tiny_dp --tp 4", {}, "did you mean --parallel.tp VALUE?"),
    ("run tiny_dp --micro-batch-size=4", {}, "did you mean --training.micro_batch VALUE?"),
    ("run tiny_dp --gpu 4", {}, "did you mean --gpus VALUE?"),
    ("run tiny_dp --gant x.png", {}, "did you mean '--gantt'?"),
    ("topology dgx_h100 --nodes 4", {}, "did you mean --set nodes=VALUE or --site.nodes VALUE?"),
    ("schedule 1f1b --tp 4", {}, "unknown option '--tp'"),
    ("sweep tiny_dp --vary training.tp=1 -o r.csv", {}, "it belongs to parallel, as parallel.tp"),
    # what is refused names its option, or its line
    ("run tiny_dp --window 3", {}, "--window"),
    ("walls --parameters 7B --gpus x", {}, "--gpus"),
    ("sweep s.yaml -o r.csv", {"s.yaml": "scenario: nosuch\nvary: {parallel.tp: [1]}\n"},
     "s.yaml:1:1: scenario: nosuch: no such file"),
    ("sweep s.yaml -o r.csv", {"s.yaml": "scenario: gone/it.yaml\nvary: {seed: [1]}\n"}, "gone/it.yaml: no such file"),
    ("sweep s.yaml -o r.csv", {"s.yaml": "scenario: tiny_dp\ntable: rows.csv\ncolumns: {a: parallel.tp}\n"},
     "s.yaml:2:1: table: file "),
]  # fmt: skip


@pytest.mark.parametrize(("line", "files", "told"), GIVEN)
def test_what_a_command_is_given_by_mistake(
    line: str,
    files: dict[str, str | bytes],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(shlex.split(line)) == 2
    message = capsys.readouterr().err
    assert told in message
    assert message.count("simcluster: error:") == 1
    assert not set(missing_points(message)) & {"what", "what would work"}, message


CALLED: list[tuple[Any, str]] = [
    (lambda: simcluster.scenario("a" * 300), "the name is too long for a file; use a shorter one"),
    (lambda: simcluster.load_cluster("dgx_h100", range(3)), 'changes must be {"parallel.tp": 4} or ["parallel.tp=4"]'),
    (lambda: simcluster.check("tiny_dp", [("a",)]), "changes must be "),
    (lambda: simcluster.scenario("tiny_dp", np.array(2.0)), "or [\"parallel.tp=4\"], got ndarray"),
    (lambda: simcluster.largest_that_fits("tiny_dp", "training.micro_batch", [3]), "changes must be "),
    (lambda: simcluster.collective_times("dgx_h100", {0, 1}, "all_reduce", 1e6), "gpus must be a list, got set"),
    (lambda: simcluster.collective_times("dgx_h100", [0, 1], "all_reduce", 10**400), "must be a number of bytes"),
    (lambda: simcluster.collective_times("dgx_h100", [0, 1], "all_to_all", [["x"]]), "[[0, 1e6], [1e6, 0]]"),
    (lambda: simcluster.monte_carlo("jitter_8", base=simcluster.simulate("tiny_dp")), "base is the result of another"),
    (lambda: simcluster.sweep("tiny_dp", {"seed": [1]}, executor={}), "executor takes a number of processes"),
    (lambda: simcluster.sweep("tiny_dp", {"parallel.zeros": [0]}), "parallel.zeros is not a scenario key"),
    (lambda: simcluster.simulate_schedules(["1f1b"], stages=2, microbatches=2**31), "must be at most 500,000"),
    (lambda: simcluster.simulate_schedules([3], stages=2, microbatches=2), "schedules[0]"),
    (lambda: simcluster.Costs(forward="1 ms", backward=2), "forward must be a finite number of seconds, 0 or more"),
    (lambda: simcluster.compare({"a": "tiny_dp", "b": {"parallel.tp": 4}}), "variant b: 'parallel.tp' is a change of"),
    (lambda: simcluster.collective_times("dgx_h100", 8, "all_reduce", 1e6), "write gpus=range(8) for the first 8"),
    (lambda: simcluster.load_cluster("dgx_h100", {"nodes": "four"}), "nodes: must be an integer, got 'four'; write"),
    (lambda: simcluster.simulate("tiny_dp").memory_table("0, 1"), "got str: '0, 1'; write ranks=[0, 1]"),
    (lambda: simcluster.train("week_64xa100", workers="4"), "write 4, without quotes, or dask://HOST:PORT"),
    (lambda: simcluster.scenario("tiny_dp", parallel_tp=4), "it belongs to parallel, as parallel.tp"),
    (lambda: simcluster.diff("tiny_dp"), "diff: other is required and missing; write other=..."),
    (lambda: simcluster.check("tiny_dp", {"parallel.dp": "two"}), "must be an integer, got 'two'"),
    (lambda: simcluster.sweep("tiny_dp", {"seed": [1]}, workers=4), "'workers'; did you mean 'executor'?"),
    (lambda: simcluster.sweep("tiny_dp", {"parallel.tp": "1, 2"}), "write vary['parallel.tp'] = [1, 2]"),
    (lambda: simcluster.plots.gantt(simcluster.simulate("tiny_dp"), "x.png"), "by name: write ranks=..."),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "told"), CALLED)
def test_what_a_function_is_given_by_mistake(wrong: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        wrong()
    assert told in str(caught.value)
