"""What a batch system sets before a script begins, by the options that the script asks for (sbatch's manual page).

Of other systems than Slurm (Grid Engine, PBS, Fujitsu's PJM, LSF) what is asked for is put in Slurm's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_OTHERS = (  # of Grid Engine node_f=2 (TSUBAME) and rt_AF=2 (ABCI) are so many whole nodes
    (re.compile(r"^#\$[ \t]+-l[ \t]+(?:node|rt)_\w+=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PBS[ \t]+-l[ \t]+select=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PBS[ \t]+-l[ \t]+select=\S*\bngpus=(\d+)", re.MULTILINE), "--gpus-per-node"),
    (re.compile(r"^#PJM[ \t]+-L[ \t]+\"?(?:\S*,)?node=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PJM[ \t]+--mpi[ \t]+\"?(?:max-)?proc=(\d+)", re.MULTILINE), "--ntasks"),
    (re.compile(r"^#BSUB[ \t]+-nnodes[ \t]+(\d+)", re.MULTILINE), "--nodes"),
)
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
_SETS = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NHOSTS", "PJM_NODE"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "--gpus": ("SLURM_GPUS",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
"""Variables by option."""


def batch_lines(text: str) -> Iterator[str]:
    """The options of each #SBATCH line, without the comment behind them, and those of other systems in its words."""
    for line in _LINE.findall(text):
        yield re.split(r"\s#", line)[0].strip()
    for pattern, option in _OTHERS:
        for number in pattern.findall(text)[:1]:
            yield f"{option}={number}"


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
