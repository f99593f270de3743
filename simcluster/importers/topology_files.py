"""Import of cluster topologies from files of NCCL, nvidia-smi, ibnetdiscover, ASTRA-sim and networkx.

Read are NCCL's topology XML, the text of ``nvidia-smi topo -m``, the listing of ``ibnetdiscover``, network files of
ASTRA-sim, and graphs of networkx as node-link JSON or GraphML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from simcluster.base.errors import InputError
from simcluster.documents.given_files import decode_utf8, read_bytes
from simcluster.documents.reading import parse_json
from simcluster.importers import astra_network, graph_files, ibnetdiscover, nccl_xml, nvidia_smi
from simcluster.importers.cluster_document import GraphDocument, ImportedNodes, ImportSpec, join_imported_nodes
from simcluster.importers.xml_tree import parse_xml, unsupported_hwloc_error

FileFormat = Literal["xml", "json", "matrix", "listing", "astra"]
_FORMAT_NAMES = (
    "NCCL topology XML, nvidia-smi topo -m, ibnetdiscover, networkx node-link JSON or GraphML, ASTRA-sim network"
)


def import_topology(
    paths: str | Path | Sequence[str | Path], parameters: ImportSpec | Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return the ``kind: graph`` document of a cluster described by one file, or by one file per node.

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
    raw, source, name = read_bytes(path), str(path), spec.name or path.stem
    form = detect_format(raw, source)
    if form == "xml":
        root = parse_xml(raw, source)
        if root.tag == "system":
            return nccl_xml.read_nccl_topology(root, spec)
        if root.tag.rpartition(":")[2] == "graphml":
            return graph_files.build_graph_document(graph_files.graph_from_graphml(raw, root), source, "GraphML", spec)
        if root.tag == "topology":
            raise unsupported_hwloc_error(root.place)
        raise root.error("is not supported; <system> (NCCL's topology XML) or <graphml> is expected")
    text = decode_utf8(raw, source)
    if form == "matrix":
        return nvidia_smi.read_topology_matrix(text, source, spec)
    if form == "listing":
        return ibnetdiscover.build_fabric_document(text, source, spec, name)
    if form == "astra":
        if spec.device is None:
            raise InputError(f"{source}: ASTRA-sim's NPUs have no name; state which GPU they are, as in device: h100")
        return astra_network.build_network_document(astra_network.parse_network(text, source), spec, spec.device, name)
    if form == "json":
        data = parse_json(text, source, parse_constant=graph_files.refuse_non_finite_number)
        if graph_files.is_node_link_graph(data):
            return graph_files.build_graph_document(
                graph_files.graph_from_node_link(data, source), source, "node-link JSON", spec
            )
        raise InputError(
            f"{source}: this JSON is not networkx's node-link form, an object with nodes and edges (or links); write "
            "it with networkx.node_link_data"
        )
    raise InputError(f"{source}: has an unknown format; give one of {_FORMAT_NAMES}")


def detect_format(raw: bytes, source: str) -> FileFormat | None:
    """Return the format that a cluster file's content looks like, or None."""
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
