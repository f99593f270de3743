"""What a batch system sets before a script begins, by the options that the script asks for (sbatch's manual page)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
_SETS = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "--gpus": ("SLURM_GPUS",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
"""Variables by option."""


def batch_lines(text: str) -> Iterator[str]:
    """The options of each #SBATCH line, without the comment behind them."""
    for line in _LINE.findall(text):
        yield re.split(r"\s#", line)[0].strip()


def batch_variables(words: Sequence[str]) -> dict[str, str]:
    """The variables of a job that asked for this: of options with a whole number, ``--nodes=2`` or ``-N 2``, and of
    GPUs also behind their kind (``gpu:8``, ``h100:4``).  Tasks are those of all nodes where only a node's are given."""
    found: dict[str, str] = {}
    for word, behind in zip(words, (*words, "")[1:], strict=True):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-[NncG]\d+", word):
            name, equals, value = word[:2], "=", word[2:]
        number = re.fullmatch(r"(?:[\w.-]+:)*(\d+)", value if equals else behind)
        if number:
            found |= dict.fromkeys(_SETS.get(_SHORT.get(name, name), ()), number[1])
    nodes, tasks = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if nodes and tasks and "SLURM_NTASKS" not in found:
        found |= dict.fromkeys(_SETS["--ntasks"], str(int(nodes) * int(tasks)))
    return found
