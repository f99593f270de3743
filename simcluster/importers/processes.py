"""How many processes the command of a launch script starts, and on how many machines.

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
_PER_NODE, _TOTAL = ("ntasks-per-node", "npernode", "ppn"), ("ntasks", "np", "n")
_STARTERS = frozenset(["srun", "sbatch", "mpirun", "mpiexec", "deepspeed", "jsrun"])
_PER_HOST = re.compile(r"(?:ppr:)?(\d{1,3}):node")
_DIGITS = re.compile(r"\d{1,7}")


def filled_otherwise(each: int, nodes: int, gpus_per_node: int | None) -> str:
    """What is taken where ``each`` of so many machines gets other than all GPUs of one of the cluster's; empty where it
    does not matter."""
    if not gpus_per_node or each == gpus_per_node or (nodes == 1 and each < gpus_per_node):
        return ""
    machines = f"each of {nodes} machines" if nodes > 1 else "one machine"
    return f"machines of {gpus_per_node} GPUs, filled one by one: the script starts {each} on {machines}"


def seen_in_a_machine(gpus: int | None, gpus_per_node: int | None) -> int | None:
    """Return how many GPUs a script counts in a machine: no more than the job has; None where no cluster says."""
    return gpus_per_node and min(gpus or gpus_per_node, gpus_per_node)


def processes_in(state: State) -> dict[str, str]:
    """Return what variables of a script tell a command that starts its own processes, as those of ms-swift do."""
    names = {"NNODES": "nnodes", "NPROC_PER_NODE": "nproc-per-node"}
    said = {name: joined(state.get(variable) or "") for variable, name in names.items()}
    return {name: value for name, value in said.items() if _DIGITS.fullmatch(value)}


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
    own, outer = _by_slurm(launcher), _by_slurm(around)
    names = {word.rsplit("/", 1)[-1] for word in launcher}
    nodes = _number(own, "nnodes", "num-nodes") or _number(outer, "nnodes", "num-nodes", "nodes", "N")
    nodes = nodes or _number(own, "nodes", "N")
    each = _number(own, "nproc-per-node", "num-gpus") or _number(outer, "nproc-per-node", "num-gpus")
    nodes, each = _included(own.get("include", "")) or (nodes, each)
    if each is None and (total := _number(own, "num-processes")):  # of accelerate, on all machines together
        machines = _number(own, "num-machines") or 1
        nodes, each = (machines, total // machines) if total % machines == 0 else (nodes, None)
    if each is None and (own.get("nproc-per-node") in ("gpu", "auto") or names & {"llamafactory-cli", "accelerate"}):
        each = gpus_per_node
    starts_each = names | {word.rsplit("/", 1)[-1] for word in around}
    if each is None and starts_each & _STARTERS and "nproc-per-node" not in own:
        each = _number(own, *_PER_NODE) or _number(outer, *_PER_NODE, "gpus-per-node") or _of_gres(outer)
        total = _number(own, *_TOTAL) or _number(outer, *_TOTAL) or 0
        if total and not (each and nodes):
            one = nodes or (total // each if each and total % each == 0 else None if each else 1)
            each = each or (total // one if one and total % one == 0 else None)
            nodes = one
        if each is None and (nodes or "deepspeed" in names):
            each = gpus_per_node
    found = {"nnodes": nodes, "nproc-per-node": each}
    return {name: str(value) for name, value in found.items() if value}


def _by_slurm(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a launcher; those of jsrun (in sets of resources) and mpirun by Slurm's names."""
    found = launcher_options(words)
    names = {word.rsplit("/", 1)[-1] for word in words}
    if "jsrun" in names:
        tasks = _number(found, "tasks-per-rs", "a") or 1
        counts = {"ntasks": _number(found, "nrs", "n"), "ntasks-per-node": _number(found, "rs-per-host", "r")}
        return found | {name: str(count * tasks) for name, count in counts.items() if count}
    if names & {"mpirun", "mpiexec"}:
        each = _PER_HOST.match(found.get("map-by", ""))
        per_node = each[1] if each else found.pop("N", "")
        return {**({"npernode": per_node} if per_node else {}), **found}
    return found


def _number(options: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these that is a plain number; the greater end of a range of nodes."""
    for name in names:
        found = re.fullmatch(r"(?:\d+[-:])?(\d{1,7})", options.get(name, ""))
        if found and int(found[1]):
            return int(found[1])
    return None


def _included(text: str) -> tuple[int, int] | None:
    """Machines and GPUs of each in deepspeed's --include, as in ``worker-0:0,1@worker-1:0,1``; None where it says no
    GPUs or not as many of each."""
    slots = {len(host.partition(":")[2].split(",")) if ":" in host else 0 for host in text.split("@")}
    each = slots.pop() if len(slots) == 1 and "$" not in text else 0
    return (text.count("@") + 1, each) if each else None


def _of_gres(options: Mapping[str, str]) -> int | None:
    """Return the GPUs of ``--gres=gpu:8``."""
    kind, *rest = options.get("gres", "").split(":")
    return int(rest[-1]) if kind == "gpu" and rest and _DIGITS.fullmatch(rest[-1]) else None


# --- the head of a batch script ---------------------------------------------------------------------------------------


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
