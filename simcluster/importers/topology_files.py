"""Import of cluster topologies from files of NCCL, nvidia-smi, ibnetdiscover, ASTRA-sim or networkx.

Read are NCCL's topology XML, the text of ``nvidia-smi topo -m``, the listing of ``ibnetdiscover``, network files of
ASTRA-sim, and graphs of networkx as node-link JSON or GraphML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from simcluster.base.errors import InputError
from simcluster.documents.input_files import decode_utf8, read_input_bytes
from simcluster.documents.yaml_documents import parse_json
from simcluster.importers import astra_network, graph_files, ibnetdiscover, nccl_xml, nvidia_smi
from simcluster.importers.cluster_document import GraphDocument, ImportedNodes, ImportSpec, join_imported_nodes
from simcluster.importers.xml_tree import hwloc_not_supported_error, parse_xml

FileFormat = Literal["xml", "json", "matrix", "listing", "astra"]
_FORMAT_NAMES = (
    "NCCL topology XML, nvidia-smi topo -m, ibnetdiscover, networkx node-link JSON or GraphML, ASTRA-sim network"
)


def import_topology(
    paths: str | Path | Sequence[str | Path], parameters: ImportSpec | Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Import a cluster from one file, or from one file per node; return its ``kind: graph`` document.

    ``parameters`` are those of ``ImportSpec``: copies, the fabric that joins them, the GPU, link figures. Raises
    InputError with the file and, if known, the line; pydantic.ValidationError for wrong parameters.
    """
    files = [paths] if isinstance(paths, str | Path) else [*paths]
    if isinstance(parameters, ImportSpec):
        spec = parameters
    else:
        names = tuple(str(file) for file in files)
        spec = ImportSpec.model_validate({"kind": "import", "files": names, **(parameters or {})})
    found = [_read_topology_file(Path(file), spec) for file in files]
    first = found[0]
    if len(found) == 1 and isinstance(first, GraphDocument):
        return first.to_dict()
    machines: list[ImportedNodes] = []
    for file, entry in zip(files, found, strict=True):
        if not isinstance(entry, ImportedNodes):
            raise InputError(f"{file}: describes a whole network, not one node; import it alone")
        machines.append(entry)
    return join_imported_nodes(machines, spec, spec.name or Path(files[0]).stem).to_dict()


def _read_topology_file(path: Path, spec: ImportSpec) -> ImportedNodes | GraphDocument:
    raw, source, name = read_input_bytes(path), str(path), spec.name or path.stem
    form = detect_topology_format(raw, source)
    if form == "xml":
        root = parse_xml(raw, source)
        if root.tag == "system":
            return nccl_xml.read_nccl_topology(root, spec)
        if root.tag.rpartition(":")[2] == "graphml":
            return graph_files.build_graph_document(graph_files.graph_from_graphml(raw, root), source, "GraphML", spec)
        if root.tag == "topology":
            raise hwloc_not_supported_error(root.location)
        raise root.error("is not supported; <system> (NCCL's topology XML) or <graphml> is expected")
    text = decode_utf8(raw, source)
    if form == "matrix":
        return nvidia_smi.read_topology_matrix(text, source, spec)
    if form == "listing":
        return ibnetdiscover.build_fabric_document(text, source, spec, name)
    if form == "astra":
        if spec.device is None:
            raise InputError(f"{source}: ASTRA-sim's NPUs have no name; state which GPU they are, as in device: h100")
        dimensions = astra_network.parse_astra_network(text, source)
        return astra_network.build_astra_document(dimensions, spec, spec.device, name)
    if form == "json":
        data = parse_json(text, source, parse_constant=graph_files.refuse_non_finite_number)
        if graph_files.is_node_link_graph(data):
            graph = graph_files.graph_from_node_link(data, source)
            return graph_files.build_graph_document(graph, source, "node-link JSON", spec)
        raise InputError(
            f"{source}: this JSON is not networkx's node-link form, an object with nodes and edges (or links); write "
            "it with networkx.node_link_data"
        )
    raise InputError(f"{source}: has an unknown format; give one of {_FORMAT_NAMES}")


def detect_topology_format(raw: bytes, source: str) -> FileFormat | None:
    """Detect the format of a cluster file from its content; return None if the format is unknown."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"<"):
        return "xml"
    text = decode_utf8(raw, source)
    if head.startswith(b"{"):
        return "json"
    if any(nvidia_smi.is_matrix_header(line) for line in text.splitlines()):
        return "matrix"
    if astra_network.is_astra_network(text):
        return "astra"
    return "listing" if ibnetdiscover.is_ibnetdiscover_listing(text) else None
