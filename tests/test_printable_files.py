"""What is printed of runs, logs, traces, and other tools' files: control characters of their names as escapes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from test_printable import EVIL, RAW

from simcluster import cli

ROOT = Path(__file__).parents[1]
RUN = {"days": "3 d", "failures": {"also": [{"name": f"x{EVIL}", "mtbf": "1 d"}]}, "checkpoint": {"stall": "5 s"}}
STAGES = {**RUN, "days": None, "tokens": "1G", "stages": [{"until": "1T", "set": {f"x{EVIL}": 1}}, {}]}
SITES = {"kind": "sites", "name": f"s{EVIL}", "sites": 2, "site": {"kind": "dgx", "nodes": 1, f"x{EVIL}": 1}}
JOBS = {"cluster": {"topology": "flat", "gpus": 8}, "jobs": [{"scenario": "tiny_dp", "set": {"name": f"x{EVIL}"}}]}
TRACE = {
    "traceEvents": [{"ph": "X", "cat": "kernel", "name": f"k{EVIL}", "ts": 1, "dur": 2, "pid": 0, "tid": f"{EVIL}"}]
}
FITS = {"fits": {"a": {"about": f"x{EVIL}", "constants": {f"x{EVIL}": {"path": f"model.{EVIL}"}}, "rows": []}}}
STUDY = {"kind": "steps", "name": f"x{EVIL}", "source": EVIL, "table": {"header": [f"h{EVIL}"], "rows": [[EVIL]]}}
RAW_TABLE = {"format": "simcluster calibration 1", "device": f"gpu{EVIL}", "kind": EVIL, "multiprocessors": EVIL}

FILES: dict[str, tuple[str, str | dict[str, object]]] = {  # the command that reads f, and what f holds
    "cause of a failure": ("train tiny_dp --set run={f} --played 2", json.dumps(RUN)),
    "part of a restart": ("train tiny_dp --set run={f}", json.dumps({**RUN, "restart": [{"part": EVIL, "takes": 1}]})),
    "key of a stage": ("train tiny_dp --set run={f}", json.dumps(STAGES)),
    "cause in a log": ("failures {file} --gpus 8 --days 3", f"cause,time\nx{EVIL},1 h\n"),
    "column of a log": ("failures {file} --gpus 8 --days 3 --by {evil}", f"cause{EVIL},time\nx,1 h\n"),
    "log's source": ("failures {file} --gpus 8 --days 3 --source {evil}", "cause,time\nx,1 h\n"),
    "name of a site": ("topology {file}", SITES),
    "name of a job": ("share {file}", JOBS),
    "kernel of a trace": ("diff tiny_dp {file}", TRACE),
    "replayed trace": ("replay {file}", TRACE),
    "kind of a kernel": (f"diff tiny_3d {ROOT}/examples/profiles --kernels {{file}}", {"kernels": [{"kind": EVIL}]}),
    "fit": ("fit --file {file} --only {evil}", FITS),
    "constant of a fit": ("fit --file {file}", FITS),
    "column of losses": ("scaling --compute 1e22 --fit {file}", f"a{EVIL},b\n1,2\n"),
    "lengths of documents": ("packing --documents {file}.csv --length 128", f"{EVIL}\n"),
    "raw table": ("calibrate -o g.yaml --from {file}", RAW_TABLE),
    "model's type": ("new --model {file}.json --cluster flat", {"model_type": f"x{EVIL}"}),
    "launch script": ("import megatron {file} --cluster flat", f"N={EVIL}\ntorchrun x.py --num-layers $N --x{EVIL}\n"),
    "study": ("validate {file}", STUDY),
    "law of loss": ("scaling --compute 1e22 --law {f}", json.dumps({"form": f"x{EVIL}"})),
    "policy": ("train tiny_dp --set run={f} --against {evil}", json.dumps(RUN)),
    "what if": (f"replay {ROOT}/examples/trace.parquet --what-if {{evil}}", ""),
    "schedule": ("schedule {file}.csv --stages 2 --microbatches 4", f"F0{EVIL},F1\n"),
    "listed": ("list {evil}", ""),
    "shown": ("show {evil} --kind models", ""),
    "controlled": ("studio tiny_dp --set {evil}=1", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_no_control_character_of_a_file_reaches_the_terminal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line, held = FILES[name]
    text = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
    for file in ("f", "f.csv", "f.json"):
        Path(file).write_text(text, encoding="utf-8", newline="")
    words = [word.replace("{file}", "f").replace("{f}", text).replace("{evil}", EVIL) for word in shlex.split(line)]
    status = cli.main(words)
    out, err = capfd.readouterr()
    assert status in (0, 2)
    assert out or err
    assert not RAW.search(out + err)
