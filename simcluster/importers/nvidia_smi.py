"""Import of one node from the matrix that ``nvidia-smi topo -m`` prints.

The matrix has a class for each pair: NV# (a bonded set of # NVLinks), else what their PCIe path crosses: PIX at most
one PCIe switch, PXB several, PHB a host bridge, NODE several host bridges of one NUMA node, SYS the link between NUMA
nodes. These nest, so the node is the tree in which every pair meets at its class; a matrix that fits no tree is an
error. Virtual machines, and hosts whose bridges have no common parent, print SYS for pairs of one NUMA node, too
(NVIDIA/nccl issues 1357 and 1530): where other cells or the NUMA column bring a pair together, SYS means that its path
is unknown, and it crosses the host bridges of that node. The matrix has no speeds: they are those usual for the GPU's
generation, or given in the import parameters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.importers.cluster_document import ImportedLink, ImportedNodes, ImportSpec, NicCable, matches_any_pattern
from simcluster.importers.gpu_generations import DefaultLinks

PARAMETERS = ("nodes", "fabric", "nics", "nvswitch", "nvlink", "pcie", "socket", "nic")

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, nearest first."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COLUMNS_AFTER_MATRIX = ("CPU", "NUMA", "CPU Affinity", "NUMA Affinity", "")  # headers of columns after the matrix
_MAX_NVLINKS = 18  # maximum of any GPU so far
_DEVICE_OF_NVLINKS = {12: "a100-80gb", 18: "h100"}


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """Matrix of ``nvidia-smi topo -m``: the path class (PIX, SYS, NV#, ...) between any two GPUs or NICs."""

    source: str
    column_names: tuple[str, ...]
    line_of_column: dict[str, int]
    cells: dict[tuple[str, str], str]
    numa_node_of_gpu: dict[str, str]
    nics: dict[str, str]  # NIC0: mlx5_0

    @property
    def gpus(self) -> list[str]:
        """Names of the matrix columns that are GPUs."""
        return [name for name in self.column_names if is_gpu_column(name)]

    def nvlinks_between(self, a: str, b: str) -> int:
        """Return the number of NVLinks between columns ``a`` and ``b``."""
        cell = self.cells[a, b]
        return int(cell[2:]) if cell.startswith("NV") else 0

    def device_key(self, name: str) -> tuple[int, str]:
        """Return the key (node number, device name) of the GPU or NIC in a matrix column."""
        return 0, name.lower() if is_gpu_column(name) else self.nics.get(name, name)


def is_gpu_column(name: str) -> bool:
    """Return whether a matrix column belongs to a GPU (all other columns belong to NICs)."""
    return re.fullmatch(r"GPU\d+", name) is not None


def is_matrix_header(line: str) -> bool:
    """Return whether a line is a topology matrix's header, which begins with GPU0 and names the columns."""
    words = _ANSI.sub("", line).split() if "GPU0" in line else []
    return bool(words) and words[0] == "GPU0" and (len(words) == 1 or words[1] != "X")


def parse_topology_matrix(text: str, source: str) -> TopologyMatrix:
    """Parse the matrix in a text that may hold other output; raise InputError with the line of any error."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    head = next((i for i, line in enumerate(lines) if is_matrix_header(line)), None)
    if head is None:
        raise InputError(
            f"{source}: no line is the header of a matrix (GPU0 GPU1 ...); give the output of nvidia-smi topo -m"
        )
    names = tuple(itertools.takewhile(lambda word: word not in _COLUMNS_AFTER_MATRIX, _split_matrix_line(lines[head])))
    if len(names) > 512:
        raise InputError(f"{source}:{head + 1}: {len(names)} columns are too many for one node; at most 512 are read")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise InputError(f"{source}:{head + 1}: two columns are called {twice}; names must be unique: copy it again")
    rows = _parse_matrix_rows(lines, head, names, source)
    numa: dict[str, str] = {}
    if "NUMA Affinity" in " ".join(lines[head].split()):  # the second column after the matrix if no cell is empty
        after = {name: rows[name][1][len(names) :][1:2] for name in names if is_gpu_column(name)}
        numa = {name: cell[0] for name, cell in after.items() if cell and cell[0].isdigit()}
    return TopologyMatrix(
        source=source, column_names=names, line_of_column={name: rows[name][0] for name in names},
        cells=_parse_matrix_cells(names, rows, source), numa_node_of_gpu=numa,
        nics=dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines), re.MULTILINE)),
    )  # fmt: skip


def _parse_matrix_rows(lines: list[str], top: int, names: Sequence[str], file: str) -> dict[str, tuple[int, list[str]]]:
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[top + 1 :], top + 2):
        name, *cells = _split_matrix_line(line) or [""]
        if not name or name.startswith("Legend"):
            if rows:
                break
            continue
        if name not in names:
            raise InputError(
                f"{file}:{number}: row {name[:40]!r} has no column; copy the whole matrix (the columns are "
                f"{', '.join(names[:20])})"
            )
        if name in rows:
            raise InputError(f"{file}:{number}: row {name} occurs twice (see line {rows[name][0]}); delete one")
        rows[name] = (number, cells)
    missing = [name for name in names if name not in rows]
    if missing:
        raise InputError(f"{file}:{top + 1}: there is no row for {', '.join(missing[:8])}; copy the whole matrix")
    return rows


def _split_matrix_line(line: str) -> list[str]:
    """Split a line of the matrix into cells at tabs, or at blanks if the line has no tabs."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.split("\t")]
        return cells[1:] if not cells[0] else cells
    return line.split()


def _parse_matrix_cells(
    names: Sequence[str], rows: dict[str, tuple[int, list[str]]], source: str
) -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for a in names:
        number, words = rows[a]
        if len(words) < len(names):
            raise InputError(
                f"{source}:{number}: row {a} has {len(words)} cells, but there are {len(names)} columns; copy the "
                "whole matrix"
            )
        for b, cell in zip(names, words, strict=False):
            nvlink, back = re.fullmatch(r"NV[1-9]\d?", cell), cells.get((b, a), cell)
            wrong = ""
            if (cell == "X") != (a == b) or not (cell == "X" or cell in CLASSES or nvlink):
                wrong = f"{cell[:40]!r}; it must be one of {'X (itself)' if a == b else 'NV#, ' + ', '.join(CLASSES)}"
            elif nvlink and not (is_gpu_column(a) and is_gpu_column(b)):
                wrong = f"{cell}; NVLink joins GPUs only"
            elif back != cell:
                wrong = f"{cell} but {b} - {a} (line {rows[b][0]}) is {back}; they must be equal: copy it again"
            if wrong:
                raise InputError(f"{source}:{number}: {a} - {b} is {wrong}")
            cells[a, b] = cell
    return cells


# --- the node ---------------------------------------------------------------------------------------------------------


def read_topology_matrix(text: str, source: str, spec: ImportSpec) -> ImportedNodes:
    """Return the node that a topology matrix describes, with its NVLinks, PCIe switches and NUMA nodes."""
    spec.check_parameters("nvidia-smi topo -m", PARAMETERS)
    matrix = parse_topology_matrix(text, source)
    device = spec.device or _identify_gpu_model(matrix)
    system, wires = ImportedNodes(device), DefaultLinks(spec, device)
    labels = {name: matrix.nics.get(name, name) for name in matrix.column_names}
    names = [name for name in labels if is_gpu_column(name) or matches_any_pattern(labels[name], spec.nics)]
    system.nodes.update({matrix.device_key(name): "gpu" if is_gpu_column(name) else "nic" for name in names})
    levels = _group_by_path_class(matrix, names)
    unknown = _count_unknown_paths(matrix, names, levels)
    _PcieTreeBuilder(matrix, system, wires).build(names, levels, unknown)
    _add_nvlinks(matrix, system, wires)
    why = f"{matrix.source}: the matrix does not state the NIC rate"
    for name in names:
        if not is_gpu_column(name):
            wire = wires.nic_cable(wires.rate_or_default("nic", why), "infiniband", "usual for the GPU")
            system.ports.append(NicCable(matrix.device_key(name), wire))
    return system


def _identify_gpu_model(matrix: TopologyMatrix) -> str:
    """Identify the GPU model by its NVLinks per GPU (12: A100, 18: H100); raise InputError for other numbers."""
    total = _max_nvlinks_per_gpu(matrix, _uses_nvswitch(matrix))
    device = _DEVICE_OF_NVLINKS.get(total)
    if device is None:
        raise InputError(
            f"{matrix.source}:{matrix.line_of_column[matrix.gpus[0]]}: {total} NVLinks per GPU do not identify the GPU "
            "(12: A100, 18: H100); name it in the import, as in device: h100"
        )
    return device


GroupsByPathClass = dict[str, dict[str, str]]
"""For each path class, the group of every column, named after the group's first column."""


def _group_by_path_class(matrix: TopologyMatrix, names: Sequence[str]) -> GroupsByPathClass:
    """Group the devices by each path class; paths inside a group are of that class or a closer one."""
    group, numa = {name: name for name in names}, matrix.numa_node_of_gpu
    levels: GroupsByPathClass = {}
    for position, level in enumerate(CLASSES[:-1]):
        for a, b in itertools.combinations(names, 2):
            same_numa = level == "NODE" and a in numa and numa[a] == numa.get(b)
            if group[a] != group[b] and (same_numa or matrix.cells[a, b] in CLASSES[: position + 1]):
                keep, lose = group[a], group[b]
                group = {name: keep if first == lose else first for name, first in group.items()}
        levels[level] = dict(group)
    return levels


def _count_unknown_paths(matrix: TopologyMatrix, names: Sequence[str], levels: GroupsByPathClass) -> int:
    """Count SYS cells between devices of one NUMA node; raise InputError for cells that contradict the others."""
    unknown = 0
    for a, b in itertools.combinations(names, 2):
        meet = next((level for level in levels if levels[level][a] == levels[level][b]), "SYS")
        cell = matrix.cells[a, b]
        if cell == "SYS" and meet in ("PHB", "NODE"):
            unknown += 1
        elif cell in CLASSES and cell != meet:
            raise InputError(
                f"{matrix.source}:{matrix.line_of_column[a]}: {a} - {b} is {cell}, but the rest of the matrix implies "
                f"{meet}, and no PCIe tree has both; copy the matrix again"
            )
    return unknown


@dataclass(frozen=True, slots=True)
class _PcieTreeBuilder:
    """Builder of a node's PCIe tree from a topology matrix."""

    matrix: TopologyMatrix
    system: ImportedNodes
    wires: DefaultLinks

    def build(self, names: Sequence[str], levels: GroupsByPathClass, unknown: int) -> None:
        """Add the NUMA nodes, host bridges and PCIe switches to the imported node."""
        pcie = self.wires.default_pcie_link(f"{self.matrix.source}: the matrix does not state the PCIe generation")
        if unknown:
            note = f"{pcie.source}; {unknown} SYS pairs inside a NUMA node are assumed to cross its host bridges"
            pcie = replace(pcie, source=note)
        numa_nodes = []
        for members in _list_groups(names, levels["NODE"]):
            bridges = _list_groups(members, levels["PHB"])
            top = self._add_node("numa", "host")
            numa_nodes.append(top)
            for inner in bridges:
                bridge = top
                if len(bridges) > 1:
                    bridge, rate = self._add_node("bridge", "host"), pcie.line_rate * len(inner)
                    wide = ImportedLink(rate, 1.0, 0.0, "pcie", "inside a CPU: no bottleneck (assumed)")
                    self.system.add_link(bridge, top, wide)
                for switched in _list_groups(inner, levels["PXB"]):
                    self._add_switches(_list_groups(switched, levels["PIX"]), bridge, pcie)
        for a, b in itertools.combinations(numa_nodes, 2):
            why = f"{self.matrix.source}: the matrix does not state the rate between NUMA nodes"
            wire = self.wires.numa_link(self.wires.rate_or_default("socket", why), "usual CPU of the GPU's DGX")
            self.system.add_link(a, b, wire)

    def _add_switches(self, parts: list[list[str]], parent: tuple[int, str], pcie: ImportedLink) -> None:
        if len(parts) > 1:
            parent = self._add_switch_below(parent, pcie)
        for part in parts:
            below = self._add_switch_below(parent, pcie) if len(parts) > 1 or len(part) > 1 else parent
            for name in part:
                self.system.add_link(self.matrix.device_key(name), below, pcie)

    def _add_switch_below(self, parent: tuple[int, str], pcie: ImportedLink) -> tuple[int, str]:
        switch = self._add_node("pcie", "pcie")
        self.system.add_link(switch, parent, pcie)
        return switch

    def _add_node(self, prefix: str, kind: str) -> tuple[int, str]:
        node = 0, f"{prefix}{sum(text.rstrip('0123456789') == prefix for _, text in self.system.nodes)}"
        self.system.nodes[node] = kind
        return node


def _list_groups(names: Sequence[str], group_of: dict[str, str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(group_of[name], []).append(name)
    return list(found.values())


# --- NVLink -----------------------------------------------------------------------------------------------------------


def _uses_nvswitch(matrix: TopologyMatrix, max_links: int = _MAX_NVLINKS, stated: bool | None = None) -> bool:
    """Return whether NVSwitches join the GPUs: all pairs show the same NV#, too many for direct NVLinks."""
    counts = [matrix.nvlinks_between(a, b) for a, b in itertools.combinations(matrix.gpus, 2)]
    if not counts or not all(count == counts[0] > 0 for count in counts):
        if stated:
            raise InputError(f"nvswitch: {matrix.source} does not have the same NV# for all pairs of GPUs; remove it")
        return False
    return counts[0] * (len(matrix.gpus) - 1) > max_links if stated is None else stated


def _max_nvlinks_per_gpu(matrix: TopologyMatrix, switched: bool) -> int:
    counts = [[matrix.nvlinks_between(a, b) for b in matrix.gpus if b != a] for a in matrix.gpus]
    return max((max(row) if switched else sum(row) for row in counts if row), default=0)


def _add_nvlinks(matrix: TopologyMatrix, system: ImportedNodes, wires: DefaultLinks) -> None:
    gpus, generation, spec = matrix.gpus, wires.generation, wires.spec
    switched = _uses_nvswitch(matrix, generation.nvlinks if generation else _MAX_NVLINKS, spec.nvswitch)
    if not _max_nvlinks_per_gpu(matrix, switched):
        return
    if generation is None and spec.nvlink.line_rate is None:
        raise InputError(
            f"{matrix.source}: the matrix does not state the NVLink rate; add nvlink: {{line_rate: ..., "
            "efficiency: ...}} of one NVLink to the import, or a device of a known generation such as h100"
        )
    single = wires.single_nvlink(generation.sm if generation else 80)
    if switched:
        system.nodes[0, "nvswitch"] = "nvswitch"
        wire = wires.links_to_nvswitch(single.multiply(matrix.nvlinks_between(gpus[0], gpus[1])))
        for gpu in gpus:
            system.add_link(matrix.device_key(gpu), (0, "nvswitch"), wire)
        return
    for a, b in itertools.combinations(gpus, 2):
        if matrix.nvlinks_between(a, b):
            system.add_link(matrix.device_key(a), matrix.device_key(b), single.multiply(matrix.nvlinks_between(a, b)))
