"""A machine from the matrix that ``nvidia-smi topo -m`` prints.

The matrix has a class for each pair: NV# (a bonded set of # NVLinks), else what their PCIe path crosses: PIX at most
one PCIe switch, PXB several, PHB a host bridge, NODE several host bridges of one NUMA node, SYS the link between NUMA
nodes.  These nest, so the machine is the tree in which every pair meets at its class; a matrix that fits no tree is an
error.  Virtual machines, and hosts whose bridges have no common parent, print SYS for pairs of one NUMA node, too
(NVIDIA/nccl issues 1357 and 1530): where other cells or the NUMA column bring a pair together, SYS means that its path
is unknown, and it crosses the host bridges of that node.  The matrix has no speeds: they are those
usual for the GPU's generation, or given beside the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.importers.generations import Wires
from simcluster.importers.graph_document import Wire
from simcluster.importers.import_parameters import ImportSpec, is_kept
from simcluster.importers.machine import NicCable, System

PARAMETERS = ("nodes", "fabric", "nics", "nvswitch", "nvlink", "pcie", "socket", "nic")

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, from the nearest to the farthest."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_AFTER = ("CPU", "NUMA", "CPU Affinity", "NUMA Affinity", "")  # heads of columns that are not of the matrix
_MOST_NVLINKS = 18  # of any GPU so far
_DEVICE_OF_NVLINKS = {12: "a100-80gb", 18: "h100"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """The pairs: ``cells[a, b]`` both ways; ``numa`` of the GPUs that say it; ``lines`` of the rows."""

    source: str
    names: tuple[str, ...]
    lines: dict[str, int]
    cells: dict[tuple[str, str], str]
    numa: dict[str, str]
    nics: dict[str, str]  # NIC0: mlx5_0

    @property
    def gpus(self) -> list[str]:
        """The columns that are GPUs."""
        return [name for name in self.names if is_gpu(name)]

    def nvlinks(self, a: str, b: str) -> int:
        """NVLinks between a pair (in the order of ``names``)."""
        cell = self.cells[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0


def is_matrix_header(line: str) -> bool:
    """Whether a line is the head of a matrix: it names GPU0 and more columns, and is not a row."""
    words = _ANSI.sub("", line).split() if "GPU0" in line else []
    return bool(words) and words[0] == "GPU0" and (len(words) == 1 or words[1] != "X")


def parse_matrix(text: str, source: str) -> Matrix:
    """The matrix in the text, whatever stands around it; InputError with the line of what does not fit."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    head = next((i for i, line in enumerate(lines) if is_matrix_header(line)), None)
    if head is None:
        raise InputError(
            f"{source}: no line is the head of a matrix (GPU0 GPU1 ...); give what nvidia-smi topo -m prints"
        )
    words = _words(lines[head])
    names = tuple(itertools.takewhile(lambda word: word not in _AFTER, words))
    _check_names(names, f"{source}:{head + 1}")
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        words = _words(line)
        if not words or words[0].startswith("Legend"):
            if rows:
                break
            continue
        where = f"{source}:{number}"
        if words[0] not in names:
            raise InputError(
                f"{where}: row {words[0][:40]!r} has no column; the columns are {', '.join(names[:20])}: "
                "is the text cut off?  If so take the whole of it"
            )
        if words[0] in rows:
            raise InputError(f"{where}: row {words[0]} is already at line {rows[words[0]][0]}; each row is there once")
        rows[words[0]] = (number, words[1:])
    missing = [name for name in names if name not in rows]
    if missing:
        raise InputError(
            f"{source}:{head + 1}: there is no row for {', '.join(missing[:8])}; is the text cut "
            f"off?  Take the whole of it"
        )
    return Matrix(
        source=source,
        names=names,
        lines={name: rows[name][0] for name in names},
        cells=_cells(names, rows, source),
        numa=_numa(lines[head], names, rows),
        nics=dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines), re.MULTILINE)),
    )


def _words(line: str) -> list[str]:
    """The cells of a line: between tabs as printed, or between blanks if somebody's editor made blanks of the tabs."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.split("\t")]
        return cells[1:] if not cells[0] else cells
    return line.split()


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) > 512:
        raise InputError(f"{where}: {len(names)} columns; a machine has fewer")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: two columns are called {twice}; each is there once: take the whole output again")


def _cells(names: Sequence[str], rows: dict[str, tuple[int, list[str]]], source: str) -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for a in names:
        number, words = rows[a]
        if len(words) < len(names):
            raise InputError(
                f"{source}:{number}: row {a} has {len(words)} cells of {len(names)}; each row has one "
                "for every column; is the text cut off? take the whole of it"
            )
        for b, cell in zip(names, words, strict=False):
            nvlink = re.fullmatch(r"NV[1-9]\d?", cell)
            if (cell == "X") != (a == b) or not (cell == "X" or cell in CLASSES or nvlink):
                expected = "X (itself)" if a == b else "NV#, " + ", ".join(CLASSES)
                raise InputError(f"{source}:{number}: {a} - {b} is {cell[:40]!r}; it is one of {expected}")
            if nvlink and not (is_gpu(a) and is_gpu(b)):
                raise InputError(f"{source}:{number}: {a} - {b} is {cell}; NVLink joins GPUs only")
            back = cells.get((b, a))
            if back is not None and back != cell:
                raise InputError(
                    f"{source}:{number}: {a} - {b} is {cell} but {b} - {a} (line {rows[b][0]}) is {back}; "
                    "the matrix is symmetric"
                )
            cells[a, b] = cell
    return cells


def _numa(head: str, names: Sequence[str], rows: dict[str, tuple[int, list[str]]]) -> dict[str, str]:
    """NUMA node of the GPUs that say one: the second column after the matrix, as long as no cell of it is empty."""
    if "NUMA Affinity" not in " ".join(head.split()):
        return {}
    found = {name: rows[name][1][len(names) :][1:2] for name in names if is_gpu(name)}
    return {name: cell[0] for name, cell in found.items() if cell and cell[0].isdigit()}


def is_gpu(name: str) -> bool:
    """Whether a column is a GPU; the others are NICs."""
    return re.fullmatch(r"GPU\d+", name) is not None


# --- the machine ------------------------------------------------------------------------------------------------------


def _device(matrix: Matrix) -> str:
    """The GPU that has as many NVLinks (12: A100, 18: H100); InputError naming ``device`` for any other number."""
    gpus = matrix.gpus
    total = _nvlinks_per_gpu(matrix, _all_in_nvswitch(matrix))
    device = _DEVICE_OF_NVLINKS.get(total)
    if device is None:
        raise InputError(
            f"{matrix.source}:{matrix.lines[gpus[0]]}: {total} NVLinks per GPU do not tell what GPU it is "
            "(12: A100, 18: H100); give device beside the file, as in device: h100"
        )
    return device


def read_matrix(text: str, source: str, spec: ImportSpec) -> System:
    """The machine of a matrix: NVLinks direct or through NVSwitch, PCIe switches, host bridges and NUMA nodes."""
    spec.accept("nvidia-smi topo -m", PARAMETERS)
    matrix = parse_matrix(text, source)
    device = spec.device or _device(matrix)
    system, wires = System(device), Wires(spec, device)
    names = [name for name in matrix.names if is_gpu(name) or is_kept(matrix.nics.get(name, name), spec.nics)]
    for name in names:
        system.nodes[0, _node_name(matrix, name)] = "gpu" if is_gpu(name) else "nic"
    levels = _levels(matrix, names)
    unknown = _pairs_of_unknown_path(matrix, names, levels)
    _Tree(matrix, system, wires).grow(names, levels, unknown)
    _add_nvlinks(matrix, system, wires)
    why = f"{matrix.source}: the matrix does not say how fast the NICs are"
    for name in names:
        if not is_gpu(name):
            wire = wires.port(wires.usual("nic", why), "infiniband", "usual for the GPU")
            system.ports.append(NicCable((0, _node_name(matrix, name)), wire))
    return system


Levels = dict[str, dict[str, str]]
"""For each class the group that a column is in at that level, called after the group's first column."""


def _levels(matrix: Matrix, names: Sequence[str]) -> Levels:
    """Groups of those that meet at a class or below; GPUs of one NUMA node meet at NODE."""
    group = {name: name for name in names}
    levels: Levels = {}
    for position, level in enumerate(CLASSES[:-1]):
        for a, b in itertools.combinations(names, 2):
            same_numa = level == "NODE" and a in matrix.numa and matrix.numa[a] == matrix.numa.get(b)
            if group[a] != group[b] and (same_numa or matrix.cells[a, b] in CLASSES[: position + 1]):
                keep, lose = group[a], group[b]
                group = {name: keep if first == lose else first for name, first in group.items()}
        levels[level] = dict(group)
    return levels


def _pairs_of_unknown_path(matrix: Matrix, names: Sequence[str], levels: Levels) -> int:
    """Return how many pairs are SYS inside a NUMA node; InputError for a pair that contradicts the tree otherwise."""
    unknown = 0
    for a, b in itertools.combinations(names, 2):
        meet = next((level for level in levels if levels[level][a] == levels[level][b]), "SYS")
        cell = matrix.cells[a, b]
        if cell == "SYS" and meet in ("PHB", "NODE"):
            unknown += 1
        elif cell in CLASSES and cell != meet:
            raise InputError(
                f"{matrix.source}:{matrix.lines[a]}: {a} - {b} is {cell}, but by the rest of the matrix they meet at "
                f"{meet}; no PCIe tree looks like this"
            )
    return unknown


@dataclass(frozen=True, slots=True)
class _Tree:
    """Grows the PCIe tree of a matrix, from NUMA nodes down."""

    matrix: Matrix
    system: System
    wires: Wires

    def grow(self, names: Sequence[str], levels: Levels, unknown: int) -> None:
        pcie = self.wires.usual_pcie(f"{self.matrix.source}: the matrix does not say what PCIe it is")
        if unknown:
            note = f"{pcie.source}; {unknown} pairs that are SYS inside a NUMA node cross its host bridges: assumed"
            pcie = replace(pcie, source=note)
        numa_nodes = []
        for members in _groups(names, levels["NODE"]):
            bridges = _groups(members, levels["PHB"])
            top = self._add("numa", "host")
            numa_nodes.append(top)
            for inner in bridges:
                bridge = top
                if len(bridges) > 1:
                    bridge = self._add("bridge", "host")
                    wide = Wire(pcie.line_rate * len(inner), 1.0, 0.0, "pcie", "inside a CPU: assumed never the limit")
                    self.system.link((0, bridge), (0, top), wide)
                for switched in _groups(inner, levels["PXB"]):
                    self._add_switches(switched, levels, bridge, pcie)
        for a, b in itertools.combinations(numa_nodes, 2):
            why = f"{self.matrix.source}: the matrix does not say how fast the link between NUMA nodes is"
            socket = self.wires.socket(self.wires.usual("socket", why), "usual CPU of the GPU's DGX")
            self.system.link((0, a), (0, b), socket)

    def _add_switches(self, members: Sequence[str], levels: Levels, parent: str, pcie: Wire) -> None:
        parts = _groups(members, levels["PIX"])
        if len(parts) > 1:
            parent = self._switch_below(parent, pcie)
        for part in parts:
            below = self._switch_below(parent, pcie) if len(parts) > 1 or len(part) > 1 else parent
            for name in part:
                self.system.link((0, _node_name(self.matrix, name)), (0, below), pcie)

    def _switch_below(self, parent: str, pcie: Wire) -> str:
        name = self._add("pcie", "pcie")
        self.system.link((0, name), (0, parent), pcie)
        return name

    def _add(self, word: str, kind: str) -> str:
        name = f"{word}{sum(text.rstrip('0123456789') == word for _, text in self.system.nodes)}"
        self.system.nodes[0, name] = kind
        return name


def _groups(names: Sequence[str], group: dict[str, str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(group[name], []).append(name)
    return list(found.values())


def _node_name(matrix: Matrix, name: str) -> str:
    return name.lower() if is_gpu(name) else matrix.nics.get(name, name)


# --- NVLink -----------------------------------------------------------------------------------------------------------


def _all_in_nvswitch(matrix: Matrix, most: int = _MOST_NVLINKS, given: bool | None = None) -> bool:
    """Whether the GPUs meet in NVSwitches: all pairs have the same NV#, and more in sum than a GPU has NVLinks."""
    counts = [matrix.nvlinks(a, b) for a, b in itertools.combinations(matrix.gpus, 2)]
    if not counts or not all(count == counts[0] > 0 for count in counts):
        if given:
            raise InputError(
                f"nvswitch: {matrix.source} does not have the same NV# for all pairs of GPUs; leave it out"
            )
        return False
    return counts[0] * (len(matrix.gpus) - 1) > most if given is None else given


def _nvlinks_per_gpu(matrix: Matrix, switched: bool) -> int:
    """The most that any GPU has."""
    gpus = matrix.gpus
    counts = [[matrix.nvlinks(a, b) for b in gpus if b != a] for a in gpus]
    return max((max(row) if switched else sum(row) for row in counts if row), default=0)


def _add_nvlinks(matrix: Matrix, system: System, wires: Wires) -> None:
    gpus, generation, spec = matrix.gpus, wires.generation, wires.spec
    switched = _all_in_nvswitch(matrix, generation.nvlinks if generation else _MOST_NVLINKS, spec.nvswitch)
    if not _nvlinks_per_gpu(matrix, switched):
        return
    if generation is None and spec.nvlink.line_rate is None:
        raise InputError(
            f"{matrix.source}: the matrix does not say how fast an NVLink is; give nvlink: {{line_rate: ..., "
            "efficiency: ...}} of one NVLink beside the file, or a device of a known generation such as h100"
        )
    single = wires.nvlink(generation.sm if generation else 80)
    if switched:
        system.nodes[0, "nvswitch"] = "nvswitch"
        wire = wires.to_nvswitch(single.times(matrix.nvlinks(gpus[0], gpus[1])))
        for gpu in gpus:
            system.link((0, gpu.lower()), (0, "nvswitch"), wire)
        return
    for a, b in itertools.combinations(gpus, 2):
        if matrix.nvlinks(a, b):
            system.link((0, a.lower()), (0, b.lower()), single.times(matrix.nvlinks(a, b)))
