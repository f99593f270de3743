"""README's table of studies: made from ``scores.json``, which ``simcluster validate`` gave on the day that it names.

All studies take ten minutes and tables that do not ship, so they are scored by their own command and what they gave is
kept; the tests score those again that need neither (``CHEAP``), and compare.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from documents import above_aim
from documents.commands import ROOT

FILE = Path(__file__).with_name("scores.json")
RESIDUALS = ROOT / "simcluster" / "documents" / "catalogue" / "residuals.yaml"
STUDIES = ROOT / "scenarios" / "validation"
CHEAP = ("korthikanti_memory", "korthikanti_table4", "fms_fsdp", "bloom_prequel", "zerobubble_sync")
PARTS_OF_STEPS = ("Korthikanti table 4", "DeepSeek-V3's all-to-alls")
"""Studies of steps whose rows are a part of one: a layer, a collective."""
_DIGITS = 4  # of an error as a fraction: a tenth of what README shows

NCCL = "NCCL as measured"
ROWS: dict[str, tuple[str, str]] = {  # how a row of README begins: its study, and a pattern for its parts' names
    "GPT 22B to 530B on A100": ("Korthikanti table 5", ""),
    "one layer by mechanism": ("Korthikanti table 4", ""),
    "weak scaling of GPT 1.7B to 76B": ("Megatron-LM SC21 table 1", ""),
    "GPT-3 175B and 530B on 384 to 2,240 A100": ("Megatron-LM SC21 table 2", ""),
    "GPT-3 175B with DeepSpeed's ZeRO-3 of 2021": ("Megatron-LM SC21 table 2, ZeRO-3", ""),
    "layouts of the same paper's figures": ("Megatron-LM SC21 figures", ""),
    "175B on 256 to 1,024 A100": ("MegaScale table 2, Megatron-LM", ""),
    "GPT 177B on 96 to 576 H100": ("Megatron-Core H100 strong scaling", ""),
    "GPT 1.7B to 70B on H100": ("Megatron-Core H100 weak scaling", ""),
    "**Llama 3 405B, pre-training": ("Llama 3 405B pre-training", ""),
    "**Nemotron-4 340B, pre-training": ("Nemotron-4 340B, pre-training", ""),
    "**MLPerf, Llama 3.1 405B": ("MLPerf Llama 3.1 405B", ""),
    "MLPerf, GPT-3": ("MLPerf GPT-3", ""),
    "Megatron-Bridge in fp8": ("Megatron-Bridge", ""),
    "mixtures in one CUDA graph": ("Megatron-Bridge's mixtures in one graph", ""),
    "mixtures launched by the host": ("Megatron-Bridge's mixtures, launched by the host", "others"),
    "all-to-alls of DeepSeek-V3's published trace": ("DeepSeek-V3's all-to-alls", ""),
    "DeepSeek-V3, pre-training": ("DeepSeek-V3, pre-training", ""),
    "FSDP of MPT 125M to 70B": ("LLM Foundry FSDP", "A100"),
    "FSDP of MPT on H100": ("LLM Foundry FSDP", "H100"),
    "HSDP and FSDP on A100": ("FMS FSDP", ""),
    "torchtitan, Llama 3": ("torchtitan", "without cp"),
    "torchtitan with context parallelism": ("torchtitan", "^cp"),
    "Megatron-Core on B200 (": ("SimuMax B200 steps", "dense"),
    "Megatron-Core on B200, 32,768 tokens": ("SimuMax B200 steps", "^cp"),
    "DeepSeek-V2 on B200": ("SimuMax B200 steps", "V2"),
    "DeepSeek-V3 in four layers": ("SimuMax B200 steps", "V3"),
    "small GPT models on 2 to 8 A100": ("vTrain, one machine", ""),
    "vTrain's models on 64 A100": ("vTrain, eight machines", ""),
    "BLOOM's trials": ("BLOOM prequel, one machine", ""),
    "Megatron-Turing 530B": ("Megatron-Turing NLG 530B, pre-training", ""),
    "1F1B, interleaved and zero-bubble": ("Zero Bubble tables 4 and 5", "1.5B, 6.2B"),
    "the same paper's model of 14.6B": ("Zero Bubble tables 4 and 5", "14.6B"),
    "that paper's calculated bubbles": ("Zero Bubble bubble rates", ""),
    "its optimizer synchronisation": ("Zero Bubble table 10", ""),
    "memory: model state and activations": ("Korthikanti memory", ""),
    "allocated memory of Llama 3 70B and 405B": ("SimuMax B200", ""),
    "nccl-tests all-reduce from 1 MiB": (NCCL, r"-1n.*: all_reduce, fitted"),
    "nccl-tests all-reduce on two nodes": (NCCL, r"-2n.*: all_reduce, fitted"),
    "nccl-tests all-reduce on four and eight nodes": (NCCL, r"H100-[48]n.*: all_reduce, held out"),
    "nccl-tests all-reduce on 8 B200": (NCCL, r"B200-1n.*: all_reduce, held out"),
    "other collectives on 8 A100": (NCCL, r"A100.*-1n.*: (?!all_reduce).*, held out"),
}
SPLITS = {  # studies some of whose rows were there when a constant was chosen: by what the rows' labels say
    "LLM Foundry FSDP": {"A100": "a100", "H100": "h100"},
    "Zero Bubble tables 4 and 5": {"1.5B, 6.2B": "^(1.5|6.2)B", "14.6B": "^14.6B"},
    "Megatron-Bridge's mixtures, launched by the host": {
        "Qwen3 30B on B200, one sequence": r"^2(5.11|6.02) .*Qwen3_30B_a3B, DGX-B200, .*, 1$",
        "others": r"^(?!2(5.11|6.02) .*Qwen3_30B_a3B, DGX-B200, .*, 1$)",
    },
    "torchtitan": {"without cp": "^((?! CP[24]).)*$", "cp": " CP[24]"},
    "SimuMax B200 steps": {
        "dense": "^llama3((?!_cp[48]).)*$",
        "cp": "_cp[48]_",
        "V2": "^deepseekv2",
        "V3": "^deepseekv3",
    },
}


@dataclass(frozen=True)
class Row:
    """A row of README's table: its key in ``ROWS``, its cells behind the first, and where they stand."""

    key: str
    cells: tuple[str, ...]
    span: tuple[int, int]


def whole_steps() -> int:
    """Return how many rows of the studies of steps are whole steps: those that intervals are learned from."""
    document = read()
    parts = [part["rows"] for name in PARTS_OF_STEPS for part in document["studies"][name].values()]
    return int(document["overall"]["steps"]["rows"]) - sum(parts)


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def cells_of(key: str) -> tuple[str, str, str]:
    """Rows or sets, mean error and the largest one, as README writes them."""
    study, parts = ROWS[key]
    scores = [score for name, score in read()["studies"][study].items() if re.search(parts, name)]
    assert scores, f"{study} has no part like {parts!r}"
    means, worst = [each["mean_error"] for each in scores], max(each["worst_error"] for each in scores)
    if len(scores) == 1:
        return str(scores[0]["rows"]), f"{100 * means[0]:.1f} %", f"{100 * worst:.1f} %"
    return f"{len(scores)} sets", f"{100 * min(means):.1f} to {100 * max(means):.1f} %", f"{100 * worst:.1f} %"


def rows_of(whole: str) -> list[Row]:
    """The rows of the table of studies.  AssertionError for a row that no study is behind."""
    table = re.search(r"\| study \| rows \| mean error \| max \|[^|\n]*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", whole)
    assert table is not None
    found = []
    for line in re.finditer(r"\| (.*?) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|[^|\n]*\|\n", table[1]):
        keys = [key for key in ROWS if line[1].startswith(key)]
        assert len(keys) == 1, f"no study is behind {line[1]!r}"
        begin = table.start(1)
        found.append(Row(keys[0], (line[2], line[3], line[4]), (begin + line.start(2), begin + line.end(4))))
    assert len(found) == table[1].count("\n")
    return found


def stale(whole: str) -> list[str]:
    """Rows of README that are not those of scores.json."""
    return [
        f"{row.key}: {row.cells}, now {now}" for row in rows_of(whole) if row.cells != (now := cells_of(row.key))
    ]  # fmt: skip


def renewed(whole: str) -> str:
    """README with the rows of scores.json."""
    for row in reversed(rows_of(whole)):
        begin, end = row.span
        whole = whole[:begin] + " | ".join(cells_of(row.key)) + whole[end:]
    return whole


# --- scoring ----------------------------------------------------------------------------------------------------------


def kept(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the JSON of ``validate``: the scores of every study that was scored, by part or as ``SPLITS`` has it."""
    scored = [study for study in document["studies"] if "parts" in study]
    return {study["study"]: _split(study) if study["study"] in SPLITS else _parts(study) for study in scored}


def _parts(study: dict[str, Any]) -> dict[str, Any]:
    return {_part_name(part): _rounded(part["score"]) for part in study["parts"] if part["score"]}


def _part_name(part: dict[str, Any]) -> str:
    collective = part.get("collective")
    return f"{part['name']}: {collective}, {part['role']}" if collective else f"{part['name']}, {part['role']}"


def _split(study: dict[str, Any]) -> dict[str, Any]:
    rows = [row for part in study["parts"] for row in part["rows"]]
    found = {}
    for name, label in SPLITS[study["study"]].items():
        errors = [row["error"] for row in rows if re.search(label, row["label"])]
        sizes = [abs(error) for error in errors]
        score = {"rows": len(errors), "mean_error": fmean(sizes), "worst_error": max(sizes), "bias": fmean(errors)}
        found[name] = _rounded(score)
    assert sum(score["rows"] for score in found.values()) == len(rows), study["study"]
    return found


def _rounded(score: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, _DIGITS) for name, value in score.items()}


def now(study: str) -> dict[str, dict[str, Any]]:
    """The scores of a study, given as its file's name, by today's program."""
    from simcluster.evidence.validation import load_study, validate_studies

    (report,) = validate_studies([load_study(STUDIES / f"{study}.yaml")])
    return kept({"studies": [report.to_dict()]})


def score_all(data: str) -> None:
    """Score every study and learn the intervals of `run` anew, by ``simcluster validate``; nothing may be skipped."""
    commit = _commit()
    with tempfile.TemporaryDirectory() as folder:
        answer, learned = Path(folder) / "scores.json", Path(folder) / "residuals.yaml"
        paths = [str(path) for path in sorted(STUDIES.glob("*.yaml"))]
        options = ["--data", data, "--json", str(answer), "--residuals", str(learned), "--workers", str(os.cpu_count())]
        command = [sys.executable, "-m", "simcluster", "validate", *paths, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        document = json.loads(answer.read_text(encoding="utf-8"))
        skipped = [study["study"] for study in document["studies"] if "skipped" in study]
        if skipped:
            raise SystemExit(f"{data} lacks the tables of {', '.join(skipped)}: nothing is written")
        text = learned.read_text(encoding="utf-8").replace(str(learned), str(RESIDUALS.relative_to(ROOT)))
    RESIDUALS.write_text(text, encoding="utf-8")
    save(document, commit, above_aim.played(Path(data)))


def save(document: dict[str, Any], commit: str, hypotheses: dict[str, float]) -> None:
    """Write scores.json from the JSON of ``validate``, and what hypotheses give."""
    told = {
        "about": "what `simcluster validate scenarios/validation/*.yaml` gave, with all tables",
        "made by": "python tests/documents --scores DIR",
        "day": datetime.date.today().isoformat(),
        "commit": commit,
        "overall": {name: _rounded(score) for name, score in document["overall"].items() if isinstance(score, dict)},
        "studies": kept(document),
        "above": above_aim.groups_of(document),
        "if": hypotheses,
    }
    FILE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _commit() -> str:
    """The commit that was scored, with a + if the working tree has changes to the package beside it."""
    ask = ["git", "-C", str(ROOT)]
    head = subprocess.run([*ask, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*ask, "status", "--porcelain", "simcluster"], capture_output=True, text=True, check=True)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
