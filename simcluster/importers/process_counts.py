"""Counts of the nodes and processes that a launch command starts.

Variables that a batch system sets before a script begins follow from the options that the script requests (sbatch's
manual page); requests of other systems than Slurm (Grid Engine, PBS, Fujitsu's PJM, LSF) are translated to Slurm's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from simcluster.importers.launch_arguments import parse_launcher_options
from simcluster.importers.shell.script_state import ScriptState, shell_value_to_text

_SBATCH_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_OTHER_SYSTEMS = (  # Grid Engine: node_f=2 (TSUBAME) and rt_AF=2 (ABCI) request 2 whole nodes
    (re.compile(r"^#\$[ \t]+-l[ \t]+(?:node|rt)_\w+=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PBS[ \t]+-l[ \t]+select=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PBS[ \t]+-l[ \t]+select=\S*\bngpus=(\d+)", re.MULTILINE), "--gpus-per-node"),
    (re.compile(r"^#PJM[ \t]+-L[ \t]+\"?(?:\S*,)?node=(\d+)", re.MULTILINE), "--nodes"),
    (re.compile(r"^#PJM[ \t]+--mpi[ \t]+\"?(?:max-)?proc=(\d+)", re.MULTILINE), "--ntasks"),
    (re.compile(r"^#BSUB[ \t]+-nnodes[ \t]+(\d+)", re.MULTILINE), "--nodes"),
)
_LONG_NAMES = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"}
_SLURM_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NHOSTS", "PJM_NODE"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"), "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",), "--gpus": ("SLURM_GPUS",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "--gres": ("SLURM_GPUS_ON_NODE",),
}  # fmt: skip
"""Slurm variables set by each option."""
_PER_NODE_OPTIONS = ("ntasks-per-node", "npernode", "ppn")
_TOTAL_OPTIONS = ("ntasks", "np", "n", "num-processes")
_PROCESS_STARTERS = frozenset(["srun", "sbatch", "mpirun", "mpiexec", "deepspeed", "accelerate"])
_FILLING_LAUNCHERS = frozenset(["llamafactory-cli", "accelerate"])
"""Launchers that by default start a process on each GPU of a node."""


def partial_node_assumption(per_node: int, nodes: int, gpus_per_node: int | None) -> str:
    """Return the assumption made if the processes per node differ from the cluster's GPUs per node, else ""."""
    if not gpus_per_node or per_node == gpus_per_node or (nodes == 1 and per_node < gpus_per_node):
        return ""
    machines = f"each of {nodes} nodes" if nodes > 1 else "one node"
    return f"nodes of {gpus_per_node} GPUs are filled, although the script starts {per_node} processes on {machines}"


def count_visible_gpus(gpus: int | None, gpus_per_node: int | None) -> int | None:
    """Return the number of GPUs that a launch script sees on a node; None if no cluster is named."""
    return gpus_per_node and min(gpus or gpus_per_node, gpus_per_node)


def swift_process_counts(state: ScriptState) -> dict[str, str]:
    """Return the process counts that Megatron-SWIFT reads from environment variables."""
    names = {"NNODES": "nnodes", "NPROC_PER_NODE": "nproc-per-node"}
    said = {name: shell_value_to_text(state.variable_value(variable) or "") for variable, name in names.items()}
    return {name: value for name, value in said.items() if value.isdecimal()}


def count_processes_with_note(
    launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Count the nodes and processes that a launch starts; also return the assumption made if it states no number."""
    found = count_processes(launcher, around, gpus_per_node)
    each = found.get("nproc-per-node")
    if each == count_processes(launcher, around).get("nproc-per-node"):
        return found, ()
    return found, (f"the launch uses all {each} GPUs of a node, as it states no number (--gpus sets the number)",)


def count_processes(launcher: Sequence[str], around: Sequence[str], gpus_per_node: int | None = None) -> dict[str, str]:
    """Return the numbers of nodes and of processes per node that a launcher, srun or a batch script requests."""
    own, outer = _parse_launcher(launcher), _parse_launcher(around)
    names = {word.rsplit("/", 1)[-1] for word in launcher}
    of_nodes, per_node = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus")
    nodes = _first_option_number(own, *of_nodes) or _first_option_number(outer, *of_nodes, "nodes", "N")
    nodes = nodes or _first_option_number(own, "nodes", "N", "num-machines")
    each = _first_option_number(own, *per_node) or _first_option_number(outer, *per_node)
    slots = {host.partition(":")[2].count(",") + 1 for host in own.get("include", "").split("@") if ":" in host}
    if len(slots) == 1 and "$" not in own["include"]:  # deepspeed, as in worker-0:0,1@worker-1:0,1
        nodes, each = own["include"].count("@") + 1, slots.pop()
    if names & _PROCESS_STARTERS or {word.rsplit("/", 1)[-1] for word in around} & _PROCESS_STARTERS:
        nodes = nodes or (1 if "num-processes" in own else None)
        if each is None and "nproc-per-node" not in own:
            each = _first_option_number(own, *_PER_NODE_OPTIONS)
            each = each or _first_option_number(outer, *_PER_NODE_OPTIONS, "gpus-per-node", "gres")
            total = _first_option_number(own, *_TOTAL_OPTIONS) or _first_option_number(outer, *_TOTAL_OPTIONS) or 0
            if total and not (each and nodes):
                nodes = nodes or (total // each if each and total % each == 0 else None if each else 1)
                each = each or (total // nodes if nodes and total % nodes == 0 else None)
            if each is None and (nodes or "deepspeed" in names):
                each = gpus_per_node
    if each is None and (own.get("nproc-per-node") in ("gpu", "auto") or names & _FILLING_LAUNCHERS):
        each = gpus_per_node
    found = {"nnodes": nodes, "nproc-per-node": each}
    return {name: str(value) for name, value in found.items() if value}


def _parse_launcher(words: Sequence[str]) -> dict[str, str]:
    """Return a launcher's options, with mpirun's -N (processes per node) renamed to ``npernode``."""
    found = parse_launcher_options(words)
    if {"mpirun", "mpiexec"}.isdisjoint(word.rsplit("/", 1)[-1] for word in words):
        return found
    each = re.match(r"(?:ppr:)?(\d{1,3}):node", found.get("map-by", ""))
    per_node = each[1] if each else found.pop("N", "")
    return {**({"npernode": per_node} if per_node else {}), **found}


def _first_option_number(options: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the value of the first option that has one, as 8 in ``gpu:h100:8``; None if none has."""
    for name in names:
        found = re.fullmatch(r"(?:\d+[-:]|gpu:(?:[\w.-]+:)*)?(\d{1,7})", options.get(name, ""))
        if found and int(found[1]):
            return int(found[1])
    return None


# --- the head of a batch script ---------------------------------------------------------------------------------------


def list_slurm_requests(text: str) -> Iterator[str]:
    """Yield a batch script's resource requests as Slurm options; understands other batch systems, too."""
    for line in _SBATCH_LINE.findall(text):
        yield re.split(r"\s#", line)[0].strip()
    for pattern, option in _OTHER_SYSTEMS:
        for number in pattern.findall(text)[:1]:
            yield f"{option}={number}"


def variables_set_by_slurm(words: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that Slurm sets for sbatch options such as ``--nodes=2``."""
    found: dict[str, str] = {}
    for word, behind in zip(words, (*words, "")[1:], strict=True):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-[NncG]\d+", word):
            name, equals, value = word[:2], "=", word[2:]
        number = re.fullmatch(r"(?:[\w.-]+:)*(\d+)", value if equals else behind)
        if number:
            found |= dict.fromkeys(_SLURM_VARIABLES.get(_LONG_NAMES.get(name, name), ()), number[1])
    nodes, tasks = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if nodes and tasks and "SLURM_NTASKS" not in found:
        found |= dict.fromkeys(_SLURM_VARIABLES["--ntasks"], str(int(nodes) * int(tasks)))
    return found
