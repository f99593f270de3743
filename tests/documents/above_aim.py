"""The table of what stays above its aim: groups of rows, how far off they are, and how far they would be if.

``python tests/documents --scores DIR`` scores the groups, plays each hypothesis on the group's own rows, and keeps both
in ``scores.json``; the tests compare the table with that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HOST = "Megatron-Bridge's mixtures, launched by the host"
SC21 = "Megatron-LM SC21 table 1"
_STUDY_FILES = {
    HOST: "megatron_bridge_mixtures_2025",
    "BLOOM prequel, one machine": "bloom_prequel",
    SC21: "megatron_sc21_table1",
    "torchtitan": "torchtitan",
}
_HEAD = "| above its aim | rows | bias | if | bias then | how we know |\n|---|---|---|---|---|---|\n"
_DIGITS = 4

Settings = tuple[tuple[str, float | int], ...]


@dataclass(frozen=True)
class Group:
    """Rows of a study by a pattern for their labels, and a hypothesis about them: values of a scenario's fields."""

    study: str
    labels: str
    hypothesis: Settings = ()


_PAPERS = ("cluster.device.attention.sustained", 1.0)  # attention at its papers' best

GROUPS = {  # how a row of the table begins
    "Qwen3 30B on H100, ep 16 on two nodes": Group(
        HOST, "Qwen3_30B_a3B, DGX-H100, FP8, 16, 16", (("software.kernel", 44e-6), ("software.launch", 44e-6))
    ),
    "Qwen3 30B on H100, 25.11 and the first 26.02": Group(
        HOST, r"^2(5\.11|6\.02) .*Qwen3_30B_a3B, DGX-H100", (("software.kernel", 318e-6),)
    ),
    "Qwen3 30B on GB200": Group(HOST, "Qwen3_30B_a3B, DGX-GB200", (("software.kernel", 230e-6),)),
    "Qwen3 30B on GB300": Group(HOST, "Qwen3_30B_a3B, DGX-GB300", (("software.kernel", 230e-6),)),
    "GPT-OSS, ep 64 over eight B300": Group(
        HOST, "GPT OSS 120B, DGX-B300, BF16, 64, 64", (("cluster.scale.network", 0.5),)
    ),
    "GPT-OSS, ep 64 over eight B200": Group(
        HOST, "GPT OSS 120B, DGX-B200, BF16, 64, 64", (("cluster.scale.network", 0.5),)
    ),
    "GPT-OSS on B200, 25.11": Group(HOST, r"^25\.11 .*GPT OSS 120B, DGX-B200", (("parallel.ep", 64),)),
    "GPT-OSS, ep 8 in a node of B200 or B300": Group(HOST, r"^26.*GPT OSS 120B, DGX-B[23]00, BF16, 64, 8,"),
    "GPT-OSS on GB200": Group(HOST, "GPT OSS 120B, DGX-GB200"),
    "GPT-OSS on GB300": Group(HOST, "GPT OSS 120B, DGX-GB300"),
    "BLOOM's trials": Group("BLOOM prequel, one machine", "", (("cluster.device.matmul.sustained", 0.80),)),
    "Megatron-Turing 530B, too": Group("Megatron-Turing NLG 530B, pre-training", ""),
    "DeepSeek-V3, pre-trained": Group("DeepSeek-V3, pre-training", ""),
    "GPT 1.7B to 18B on A100": Group(SC21, r"^(1\.7|3\.6|7\.5|18\.4),", (("overlap.grad_reduce", False),)),
    "GPT 39B and 76B on A100": Group(SC21, r"^(39|76)\.1,", (("cluster.device.matmul.sustained", 0.82),)),
    "the four of 1.7B to 18B again": Group(
        SC21, r"^(1\.7|3\.6|7\.5|18\.4),", (("cluster.device.matmul.sustained", 0.82),)
    ),
    "Llama 3.1 405B of MLPerf": Group("MLPerf Llama 3.1 405B", ""),
    "torchtitan's 8B of 8,192 tokens": Group("torchtitan", "-8B, FSDP(8|128), ", (_PAPERS,)),
    "torchtitan's 8B of 32,768 tokens": Group("torchtitan", "-8B, FSDP(8 CP1|2 CP4), ", (_PAPERS,)),
    "torchtitan's 8B with tp 8": Group("torchtitan", "-8B, FSDP8 TP8, ", (("cluster.scale.nvlink", 0.7),)),
    "torchtitan's 70B with tp 8": Group("torchtitan", "-70B, ", (("cluster.scale.nvlink", 0.7),)),
}


def groups_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the JSON of ``validate``: rows and mean signed error of every group whose study is in it."""
    studies = {study["study"]: study for study in document["studies"] if "parts" in study}
    found = {}
    for name, group in GROUPS.items():
        if group.study not in studies:
            continue
        rows = [row for part in studies[group.study]["parts"] for row in part["rows"]]
        errors = [row["error"] for row in rows if re.search(group.labels, row["label"])]
        found[name] = {"rows": len(errors), "bias": round(fmean(errors), _DIGITS)}
    return found


def played(data: Path) -> dict[str, float]:
    """Of every group with a hypothesis, the mean signed error if it held."""
    return {name: round(fmean(_errors(group, data)), _DIGITS) for name, group in GROUPS.items() if group.hypothesis}


def _errors(group: Group, data: Path) -> list[float]:
    from simcluster.evidence.validation.fitting import FitStudyRows
    from simcluster.evidence.validation.fitting_rows import load_study_samples

    samples = load_study_samples(FitStudyRows(study=_STUDY_FILES[group.study]), data)
    found = []
    for sample in samples:
        if re.search(group.labels, sample.label):
            predicted, measured = sample.predicted_and_measured(sample.run.simulate(group.hypothesis))
            found.append(predicted / measured - 1)
    return found


def cells_of(kept: dict[str, Any], name: str) -> tuple[str, str, str]:
    """Rows, bias, and bias under the hypothesis, as the table writes them."""
    group, then = kept["above"][name], kept["if"].get(name)
    return str(group["rows"]), f"{100 * group['bias']:+.1f} %", "none" if then is None else f"{100 * then:+.1f} %"


def lines_of(whole: str) -> list[tuple[str, tuple[str, str, str], tuple[int, int]]]:
    """The rows of the table: begin, checked cells, where the line stands.  AssertionError for one without a group."""
    begin = whole.index(_HEAD) + len(_HEAD)
    table = re.match(r"(\|.*\|\n)+", whole[begin:])
    assert table is not None
    found = []
    for line in re.finditer(r"\| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|\n", table[0]):
        (name,) = (name for name in GROUPS if line[1].startswith(name))
        found.append((name, (line[2], line[3], line[5]), (begin + line.start(), begin + line.end())))
    assert len(found) == table[0].count("\n")
    return found


def stale(kept: dict[str, Any], whole: str) -> list[str]:
    """Rows of the table that are not those that are kept."""
    return [
        f"{name}: {cells}, now {now}" for name, cells, _ in lines_of(whole) if cells != (now := cells_of(kept, name))
    ]


def renewed(kept: dict[str, Any], whole: str) -> str:
    """The page with the figures that are kept."""
    for name, _, (begin, end) in reversed(lines_of(whole)):
        cells = whole[begin:end].split(" | ")
        cells[1], cells[2], cells[4] = cells_of(kept, name)
        whole = whole[:begin] + " | ".join(cells) + whole[end:]
    return whole
