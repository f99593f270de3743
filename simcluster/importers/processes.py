"""Processes that the command of a launch script starts, and the number of nodes.

What a batch system sets before a script begins is by the options that the script asks for (sbatch's manual page); of
other systems than Slurm (Grid Engine, PBS, Fujitsu's PJM, LSF) what is asked for is put in Slurm's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from simcluster.importers.arguments import launcher_options
from simcluster.importers.shell.state import State, joined

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
_PER_NODE = ("ntasks-per-node", "npernode", "ppn")
_TOTAL = ("ntasks", "np", "n", "num-processes")
_STARTERS = frozenset(["srun", "sbatch", "mpirun", "mpiexec", "deepspeed", "accelerate"])
_FILL = frozenset(["llamafactory-cli", "accelerate"])
"""Launchers that start a process on each GPU of a machine where they are told no number."""


def filled_otherwise(each: int, nodes: int, gpus_per_node: int | None) -> str:
    """Return the assumption where ``each`` of the nodes gets other than all GPUs of one of the cluster's; empty where
    it does not matter."""
    if not gpus_per_node or each == gpus_per_node or (nodes == 1 and each < gpus_per_node):
        return ""
    machines = f"each of {nodes} machines" if nodes > 1 else "one machine"
    return f"machines of {gpus_per_node} GPUs, filled one by one: the script starts {each} on {machines}"


def seen_in_a_machine(gpus: int | None, gpus_per_node: int | None) -> int | None:
    """Return how many GPUs a script counts in a machine: no more than the job has; None where no cluster says."""
    return gpus_per_node and min(gpus or gpus_per_node, gpus_per_node)


def processes_in(state: State) -> dict[str, str]:
    """Return the processes that variables set for a command that starts its own, as those of ms-swift do."""
    names = {"NNODES": "nnodes", "NPROC_PER_NODE": "nproc-per-node"}
    said = {name: joined(state.get(variable) or "") for variable, name in names.items()}
    return {name: value for name, value in said.items() if value.isdecimal()}


def started_by(
    launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what ``processes_of`` does, and what is assumed where the launcher takes all GPUs of its machine."""
    found = processes_of(launcher, around, gpus_per_node)
    each = found.get("nproc-per-node")
    if each == processes_of(launcher, around).get("nproc-per-node"):
        return found, ()
    return found, (f"it starts all {each} GPUs of a machine, as it says no number (--gpus says how many)",)


def processes_of(launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None = None) -> dict[str, str]:
    """Return ``nnodes`` and ``nproc-per-node``, as the launcher, srun or the head of a batch script sets them."""
    own, outer = _options(launcher), _options(around)
    names = {word.rsplit("/", 1)[-1] for word in launcher}
    nodes = _number(own, "nnodes", "num-nodes") or _number(outer, "nnodes", "num-nodes", "nodes", "N")
    nodes = nodes or _number(own, "nodes", "N", "num-machines")
    each = _number(own, "nproc-per-node", "num-gpus") or _number(outer, "nproc-per-node", "num-gpus")
    slots = {host.partition(":")[2].count(",") + 1 for host in own.get("include", "").split("@") if ":" in host}
    if len(slots) == 1 and "$" not in own["include"]:  # of deepspeed, as in worker-0:0,1@worker-1:0,1
        nodes, each = own["include"].count("@") + 1, slots.pop()
    if names & _STARTERS or {word.rsplit("/", 1)[-1] for word in around} & _STARTERS:
        nodes = nodes or (1 if "num-processes" in own else None)
        if each is None and "nproc-per-node" not in own:
            each = _number(own, *_PER_NODE) or _number(outer, *_PER_NODE, "gpus-per-node", "gres")
            total = _number(own, *_TOTAL) or _number(outer, *_TOTAL) or 0
            if total and not (each and nodes):
                nodes = nodes or (total // each if each and total % each == 0 else None if each else 1)
                each = each or (total // nodes if nodes and total % nodes == 0 else None)
            if each is None and (nodes or "deepspeed" in names):
                each = gpus_per_node
    if each is None and (own.get("nproc-per-node") in ("gpu", "auto") or names & _FILL):
        each = gpus_per_node
    found = {"nnodes": nodes, "nproc-per-node": each}
    return {name: str(value) for name, value in found.items() if value}


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a launcher, with mpirun's processes per node by another name than srun's nodes."""
    found = launcher_options(words)
    if {"mpirun", "mpiexec"}.isdisjoint(word.rsplit("/", 1)[-1] for word in words):
        return found
    each = re.match(r"(?:ppr:)?(\d{1,3}):node", found.get("map-by", ""))
    per_node = each[1] if each else found.pop("N", "")
    return {**({"npernode": per_node} if per_node else {}), **found}


def _number(options: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these that is a whole number: the greater end of a range, the GPUs of ``gpu:h100:8``."""
    for name in names:
        found = re.fullmatch(r"(?:\d+[-:]|gpu:(?:[\w.-]+:)*)?(\d{1,7})", options.get(name, ""))
        if found and int(found[1]):
            return int(found[1])
    return None


# --- the head of a batch script ---------------------------------------------------------------------------------------


def batch_lines(text: str) -> Iterator[str]:
    """Yield the options of each #SBATCH line without its comment, and those of other systems as Slurm's."""
    for line in _LINE.findall(text):
        yield re.split(r"\s#", line)[0].strip()
    for pattern, option in _OTHERS:
        for number in pattern.findall(text)[:1]:
            yield f"{option}={number}"


def batch_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of a job that asked for this: of options with a whole number, ``--nodes=2`` or ``-N 2``, and
    of GPUs also behind their kind (``gpu:8``, ``h100:4``).  Tasks are those of all nodes where a node's are given."""
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
