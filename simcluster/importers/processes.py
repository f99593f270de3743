"""Processes and nodes that a launch script's command starts.

Variables that a batch system sets before a script begins follow from the options that the script requests (sbatch's
manual page); requests of other systems than Slurm (Grid Engine, PBS, Fujitsu's PJM, LSF) are translated to Slurm's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from simcluster.importers.arguments import launcher_options
from simcluster.importers.shell.state import State, joined

_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_OTHERS = (  # Grid Engine: node_f=2 (TSUBAME) and rt_AF=2 (ABCI) request 2 whole nodes
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
"""Slurm variables set by each option."""
_PER_NODE = ("ntasks-per-node", "npernode", "ppn")
_TOTAL = ("ntasks", "np", "n", "num-processes")
_STARTERS = frozenset(["srun", "sbatch", "mpirun", "mpiexec", "deepspeed", "accelerate"])
_FILL = frozenset(["llamafactory-cli", "accelerate"])
"""Launchers that by default start a process on each GPU of a node."""


def filled_otherwise(each: int, nodes: int, gpus_per_node: int | None) -> str:
    """Return the assumption if ``each`` processes per node differ from the cluster's GPUs per node; else empty."""
    if not gpus_per_node or each == gpus_per_node or (nodes == 1 and each < gpus_per_node):
        return ""
    machines = f"each of {nodes} nodes" if nodes > 1 else "one node"
    return f"nodes of {gpus_per_node} GPUs are filled one by one: the script starts {each} on {machines}"


def seen_in_a_machine(gpus: int | None, gpus_per_node: int | None) -> int | None:
    """Return the number of GPUs that a script counts on a node, at most the job's; None without a cluster."""
    return gpus_per_node and min(gpus or gpus_per_node, gpus_per_node)


def processes_in(state: State) -> dict[str, str]:
    """Return the process counts that variables set for a command that starts processes itself (ms-swift)."""
    names = {"NNODES": "nnodes", "NPROC_PER_NODE": "nproc-per-node"}
    said = {name: joined(state.get(variable) or "") for variable, name in names.items()}
    return {name: value for name, value in said.items() if value.isdecimal()}


def started_by(
    launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the result of ``processes_of``, and an assumption if the launcher takes all GPUs of its node."""
    found = processes_of(launcher, around, gpus_per_node)
    each = found.get("nproc-per-node")
    if each == processes_of(launcher, around).get("nproc-per-node"):
        return found, ()
    return found, (f"it uses all {each} GPUs of a node, as it states no number (--gpus sets it)",)


def processes_of(launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None = None) -> dict[str, str]:
    """Return ``nnodes`` and ``nproc-per-node``, as set by the launcher, srun or the head of a batch script."""
    own, outer = _options(launcher), _options(around)
    names = {word.rsplit("/", 1)[-1] for word in launcher}
    nodes = _number(own, "nnodes", "num-nodes") or _number(outer, "nnodes", "num-nodes", "nodes", "N")
    nodes = nodes or _number(own, "nodes", "N", "num-machines")
    each = _number(own, "nproc-per-node", "num-gpus") or _number(outer, "nproc-per-node", "num-gpus")
    slots = {host.partition(":")[2].count(",") + 1 for host in own.get("include", "").split("@") if ":" in host}
    if len(slots) == 1 and "$" not in own["include"]:  # deepspeed, as in worker-0:0,1@worker-1:0,1
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
    """Return a launcher's options; mpirun's -N (processes per node) is renamed, since srun's -N is nodes."""
    found = launcher_options(words)
    if {"mpirun", "mpiexec"}.isdisjoint(word.rsplit("/", 1)[-1] for word in words):
        return found
    each = re.match(r"(?:ppr:)?(\d{1,3}):node", found.get("map-by", ""))
    per_node = each[1] if each else found.pop("N", "")
    return {**({"npernode": per_node} if per_node else {}), **found}


def _number(options: Mapping[str, str], *names: str) -> int | None:
    """Return the first option that is a whole number: a range's upper end, the GPUs of ``gpu:h100:8``."""
    for name in names:
        found = re.fullmatch(r"(?:\d+[-:]|gpu:(?:[\w.-]+:)*)?(\d{1,7})", options.get(name, ""))
        if found and int(found[1]):
            return int(found[1])
    return None


# --- the head of a batch script ---------------------------------------------------------------------------------------


def batch_lines(text: str) -> Iterator[str]:
    """Yield the options of each #SBATCH line without comments, and other systems' requests as Slurm's."""
    for line in _LINE.findall(text):
        yield re.split(r"\s#", line)[0].strip()
    for pattern, option in _OTHERS:
        for number in pattern.findall(text)[:1]:
            yield f"{option}={number}"


def batch_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that Slurm sets for these options (``--nodes=2``, ``-N 2``, ``gpu:h100:4``)."""
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
