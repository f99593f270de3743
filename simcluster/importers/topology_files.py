"""Files of other tools that describe clusters, as ``kind: graph`` topology documents; the content tells what they are.

Read are NCCL's topology XML, the text of ``nvidia-smi topo -m``, the listing of ``ibnetdiscover``, network files of
ASTRA-sim, and graphs of networkx as node-link JSON or GraphML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simcluster.base.errors import InputError
from simcluster.importers import (
    astra_network,
    graph_files,
    ibnetdiscover,
    nccl_xml,
    nvidia_smi,
)
from simcluster.importers.files import decode, read_bytes
from simcluster.importers.graph_document import GraphDocument
from simcluster.importers.import_parameters import ImportSpec
from simcluster.importers.machine import System, join
from simcluster.importers.nccl_elements import nccl_device
from simcluster.importers.xml_tree import Element, not_hwloc, parse_xml

Form = Literal["xml", "json", "matrix", "listing", "astra"]
Device = str | dict[str, object]
_FORMS = "NCCL topology XML, nvidia-smi topo -m, ibnetdiscover, networkx node-link JSON or GraphML, ASTRA-sim network"


class _Machine(NamedTuple):
    """A file that describes machines without a network: what is there, and the GPU that it speaks of."""

    system: System
    device: Device


def import_topology(
    paths: str | Path | Sequence[str | Path], parameters: ImportSpec | Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The ``kind: graph`` document of a cluster that one file describes, or several files with one machine each.

    ``parameters`` are those of ``ImportSpec``: copies, the fabric that joins them, the GPU, figures to take instead.
    Raises InputError with the file and, where there is one, the line; pydantic.ValidationError for wrong parameters.
    """
    files = [paths] if isinstance(paths, str | Path) else [*paths]
    if isinstance(parameters, ImportSpec):
        spec = parameters
    else:
        names = tuple(str(file) for file in files)
        spec = ImportSpec.model_validate({"kind": "import", "files": names, **(parameters or {})})
    found = [_read(Path(file), spec) for file in files]
    first = found[0]
    if len(found) == 1 and isinstance(first, GraphDocument):
        return first.document()
    machines: list[_Machine] = []
    for file, entry in zip(files, found, strict=True):
        if not isinstance(entry, _Machine):
            raise InputError(f"{file}: describes a whole network, not a machine; import it alone")
        machines.append(entry)
    devices = list(dict.fromkeys(str(machine.device) for machine in machines))
    if len(devices) > 1:
        raise InputError(f"the machines have different GPUs ({', '.join(devices)}); a cluster has one: give device")
    name = spec.name or Path(files[0]).stem
    return join([machine.system for machine in machines], spec, machines[0].device, name).document()


def _read(path: Path, spec: ImportSpec) -> _Machine | GraphDocument:
    raw, source = read_bytes(path), str(path)
    form = form_of(raw, source)
    if form == "xml":
        return _read_xml(parse_xml(raw, source), source, spec)
    text = decode(raw, source)
    if form == "matrix":
        spec.accept("nvidia-smi topo -m", nvidia_smi.PARAMETERS)
        matrix = nvidia_smi.parse_matrix(text, source)
        device = spec.device or nvidia_smi.matrix_device(matrix)
        return _Machine(nvidia_smi.read_matrix(matrix, spec, device), device)
    if form == "listing":
        return _read_listing(text, path, spec)
    if form == "astra":
        return _read_astra(text, path, spec)
    if form == "json":
        data = graph_files.load_json(text, source)
        if graph_files.is_node_link(data):
            spec.accept("node-link JSON", graph_files.PARAMETERS)
            return graph_files.graph_document(graph_files.graph_of_node_link(data, source), spec)
        raise InputError(
            f"{source}: this JSON is not networkx's node-link form: an object with nodes and edges (or links)"
        )
    raise InputError(f"{source}: is none of {_FORMS}")


def _read_xml(root: Element, source: str, spec: ImportSpec) -> _Machine | GraphDocument:
    if root.tag == "system":
        spec.accept("NCCL's topology XML", nccl_xml.PARAMETERS)
        device = spec.device or nccl_device(root)
        return _Machine(nccl_xml.read_nccl(root, spec, device), device)
    if root.tag.rpartition(":")[2] == "graphml":
        spec.accept("GraphML", graph_files.PARAMETERS)
        return graph_files.graph_document(graph_files.graph_of_graphml(root, source), spec)
    if root.tag == "topology":
        raise not_hwloc(root.place)
    raise root.error("is not known here; <system> (NCCL's topology XML) or <graphml> is expected")


def _read_listing(text: str, path: Path, spec: ImportSpec) -> GraphDocument:
    spec.accept("ibnetdiscover", ibnetdiscover.PARAMETERS)
    if spec.device is None:
        raise InputError(f"{path}: ibnetdiscover knows no GPUs; name them beside the file, as in device: h100")
    records = ibnetdiscover.parse_listing(text, str(path))
    return ibnetdiscover.listing_document(records, str(path), spec, spec.device, spec.name or path.stem)


def _read_astra(text: str, path: Path, spec: ImportSpec) -> GraphDocument:
    if spec.device is None:
        raise InputError(f"{path}: ASTRA-sim's NPUs have no name; say which GPU they are, as in device: h100")
    dimensions = astra_network.parse_network(text, str(path))
    return astra_network.network_document(dimensions, spec, spec.device, spec.name or path.stem)


def form_of(raw: bytes, source: str) -> Form | None:
    """What the content looks like; None for nothing known."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"<"):
        return "xml"
    text = decode(raw, source)
    if head.startswith(b"{"):
        return "json"
    if any(nvidia_smi.is_matrix_header(line) for line in text.splitlines()):
        return "matrix"
    if astra_network.is_astra_network(text):
        return "astra"
    return "listing" if ibnetdiscover.is_listing(text) else None
