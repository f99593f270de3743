"""Parser of untrusted XML into a tree of elements with line numbers.

A document type is refused, and with it every entity: nothing is fetched and nothing expands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from simcluster.base.errors import InputError
from simcluster.documents.yaml_syntax import explain_xml_error

_MAX_DEPTH = 64  # PCIe hierarchies are under 10 levels deep


@dataclass(slots=True)
class XmlElement:
    """One XML element; ``location`` is its start tag's file and line, as in "topo.xml:12"."""

    tag: str
    attributes: dict[str, str]
    location: str
    children: list[XmlElement] = field(default_factory=list)

    def error(self, message: str) -> InputError:
        """Return an InputError about this XML element, with its file, line and tag."""
        return InputError(f"{self.location}: <{self.tag[:40]}>: {message}")

    def get(self, name: str) -> str:
        """Return an attribute of the XML element, or an empty string if it is missing."""
        return self.attributes.get(name, "").strip()

    def require_attribute(self, name: str) -> str:
        """Return an attribute of the XML element; raise InputError if it is missing."""
        value = self.get(name)
        if not value:
            raise self.error(f"has no {name}; add {name}=...")
        return value

    def whole_number_attribute(self, name: str, default: int | None = None) -> int:
        """Return an attribute as a whole number from -1 to 10**9, or ``default`` if the attribute is missing."""
        text = self.get(name)
        if not text and default is not None:
            return default
        try:
            number = int(self.require_attribute(name), 0)
        except ValueError:
            number = -2
        if not -1 <= number <= 10**9:
            raise self.error(f"{name} is {text[:40]!r}; a whole number is expected")
        return number

    def children_named(self, tag: str) -> Iterator[XmlElement]:
        """Return the direct children of the element that have this tag."""
        return (child for child in self.children if child.tag == tag)

    def descendants(self, tag: str) -> Iterator[XmlElement]:
        """Yield the elements with this tag at any depth below the element, in the order of the file."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.descendants(tag)


def parse_xml(raw: bytes, source: str) -> XmlElement:
    """Parse XML and return the root element; raise InputError for malformed XML and for a document type."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    stack: list[XmlElement] = []
    roots: list[XmlElement] = []

    def start_element(tag: str, attributes: dict[str, str]) -> None:
        element = XmlElement(tag, attributes, f"{source}:{parser.CurrentLineNumber}")
        if len(stack) >= _MAX_DEPTH:
            raise element.error(
                f"is nested more than {_MAX_DEPTH} levels deep, unlike any topology file; give NCCL's original file"
            )
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end_element(_: str) -> None:
        stack.pop()

    def reject_doctype(name: str, *_: object) -> None:
        place = f"{source}:{parser.CurrentLineNumber}"
        if name == "topology":
            raise hwloc_not_supported_error(place)
        raise InputError(f"{place}: has a document type (<!DOCTYPE {name[:40]}>), which is refused; remove it")

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.StartDoctypeDeclHandler = reject_doctype
    try:
        parser.Parse(raw, True)
    except expat.ExpatError as problem:
        what = expat.ErrorString(problem.code)
        open_tags = f"; <{stack[-1].tag[:40]}> of line {stack[-1].location.rpartition(':')[2]} is open" if stack else ""
        raise InputError(
            f"{source}:{problem.lineno}:{problem.offset + 1}: not valid XML: {explain_xml_error(what)}{open_tags}"
        ) from None
    except (ValueError, LookupError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{source}: not readable XML: {problem}; save it as UTF-8") from None
    return roots[0]


def hwloc_not_supported_error(place: str) -> InputError:
    """Return the InputError for hwloc's XML (lstopo), a format that users easily confuse with NCCL's."""
    return InputError(
        f"{place}: is hwloc's XML (lstopo), which has no NVLinks and is not supported; run a job with "
        "NCCL_TOPO_DUMP_FILE=topo.xml and give that file, or the text of nvidia-smi topo -m"
    )
