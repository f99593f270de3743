"""First scenario file for a model on a cluster, with a layout that fits in memory and a comment on every key."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simcluster.base.counts import format_count
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.yaml_documents import Document
from simcluster.documents.yaml_syntax import to_yaml
from simcluster.longrun.launch.first_layout import FirstLayout, first_layout
from simcluster.model.layers import parameters
from simcluster.scenario.document_resolution import load_cluster, load_topology
from simcluster.scenario.memory_plan import HEADROOM, describe_recompute
from simcluster.scenario.rules import count_full_trays, rack_spec_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_keys import field_description
from simcluster.scenario.schema import SCHEMA_FILE
from simcluster.show.output_blocks import OutputBlocks, TextLines
from simcluster.topology import FlatSpec

_WIDE = 118  # characters of a line
_OPTIONAL = (
    ("software", "torchtitan"),
    ("memory", {"fragmentation": 1.05, "communication_buffers": "auto"}),
    ("faults", [{"kind": "slow_gpu", "rank": 0, "slowdown": 1.2}]),
    ("measured", {"step_time": "10 s", "source": "my run"}),
    ("run", {"tokens": "1T", "failures": "llama3"}),
)
"""Optional sections of a scenario file, with an example of each."""


@dataclass(frozen=True, repr=False)
class FirstScenario(Displayable):
    """Generated scenario for a model on a cluster: a ``document`` without default values, and the chosen layout."""

    document: Mapping[str, Any]
    layout: FirstLayout = field(repr=False)

    @cached_property
    def scenario(self) -> Scenario:
        """Scenario loaded from the generated document."""
        return from_document(self.document)

    def summary(self) -> str:
        of, device = self.scenario.parallel, self.scenario.cluster.device
        axes = [f"tp {of.tp}", f"pp {of.pp}", f"dp {of.dp}", *([f"ep {of.ep}"] if of.ep > 1 else [])]
        zero = f"ZeRO {of.zero}" if of.zero else "no ZeRO"
        recompute = f"recompute {describe_recompute(self.scenario.training)}"
        size = f"{self.layout.peak_bytes / 1e9:.1f} of {device.memory / 1e9:.1f} GB on the fullest GPU"
        return f"{', '.join(axes)}, {zero}, {recompute}, batch {self.scenario.training.global_batch:,}: {size}"

    def text(self, *, schema: bool = False, folder: str | Path = ".") -> str:
        """Return the commented scenario file, paths relative to ``folder``; ``schema`` adds an editor's schema line."""
        head = [f"# yaml-language-server: $schema={SCHEMA_FILE}"] if schema else []
        return "\n".join([*head, *self._head_lines(), *self._body_lines(Path(folder)), *_optional_key_lines()]) + "\n"

    def _head_lines(self) -> Iterator[str]:
        count = format_count(parameters(self.scenario.model).total)
        yield f"# {self.scenario.model.name}, {count} parameters, on {self.scenario.gpus} GPUs."
        yield f"# A layout that fits: {self.summary()}."
        yield "# It is a start, not the best layout.  What next, with this file as job.yaml:"
        yield "#   simcluster run job.yaml      step time, and where it goes"
        yield "#   simcluster check job.yaml    launch checklist"
        yield "#   simcluster plan job.yaml     the best layout"
        yield "# All other keys of a scenario file: simcluster list, simcluster show NAME --full, simcluster schema."

    def _body_lines(self, folder: Path) -> Iterator[str]:
        document = apply_overrides(
            Document(dict(self.document), "<new>", Path()),
            {
                "model.preset": _relative_path(folder, self.document["model"]["preset"]),
                "cluster.topology": _relative_path(folder, self.document["cluster"]["topology"]),
            },
        )
        for section, value in document.data.items():
            yield ""
            if not isinstance(value, Mapping):
                yield from _section_lines({section: value}, Scenario, "")
                continue
            yield from _comment_lines(f"{section}:", field_description(Scenario, section), "")
            part = self.scenario.cluster.topology if section == "cluster" else getattr(self.scenario, section)
            yield from _section_lines(value, type(part), "  ")


def first_scenario_answer(found: FirstScenario) -> OutputBlocks:
    """Return the generated scenario file as the printed answer."""
    return [TextLines(found.text().splitlines(), "layout")]


def _section_lines(section: Mapping[str, Any], model: Any, indent: str) -> Iterator[str]:
    texts = {key: to_yaml({key: value}).strip() for key, value in section.items()}
    width = max(len(text) for text in texts.values())
    for key, text in texts.items():
        yield from _comment_lines(
            f"{indent}{text.ljust(width)}", _OTHERS.get(key) or field_description(model, key), indent
        )


def _comment_lines(text: str, what: str, indent: str) -> Iterator[str]:
    if len(text) + len(what) + 4 <= _WIDE:
        yield f"{text}  # {what}"
        return
    yield from textwrap.wrap(what, _WIDE, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    yield text.rstrip()


def _relative_path(folder: Path, name: str) -> str:
    return os.path.relpath(name, folder) if Path(name).is_file() else name


_OTHERS = {
    "topology": "A built-in topology (simcluster list topologies), or a file's path; keys next to it set parameters.",
    "preset": "A built-in model (simcluster list models), or the path of a config.json; keys next to it override it.",
}


def _optional_key_lines() -> Iterator[str]:
    yield ""
    yield "# Examples of more keys; remove the first # to use one:"
    for section, value in _OPTIONAL:
        yield from textwrap.wrap(
            field_description(Scenario, section), _WIDE, initial_indent="# ", subsequent_indent="# "
        )
        yield from (f"#{line}" for line in to_yaml({section: value}).splitlines())


def _choose_and_add_layout(
    document: dict[str, Any], batch: int | None = None, headroom: float = HEADROOM, folder: Path = Path()
) -> tuple[dict[str, Any], FirstLayout, Scenario]:
    document |= {
        "parallel": {},
        "pipeline": {"schedule": "1f1b"},
        "training": {"global_batch": document["gpus"], "micro_batch": 1, **document.pop("training", {})},
        "overlap": {},
    }
    base = from_document(document, folder=folder)
    if "bf16" not in base.cluster.device.peak.known_rates():
        document["training"]["precision"] = "fp16-mixed"
        base = from_document(document, folder=folder)
    layout = first_layout(base, batch, headroom=headroom)
    values = {path: value for path, value in layout.values.items() if path != "parallel.dp"}
    return dict(apply_overrides(Document(document, "<new>", folder), values).data), layout, base


@check_arguments
def first_scenario(
    model: str,
    cluster: str,
    gpus: int | None = None,
    *,
    batch: int | None = None,
    sequence_length: int | None = None,
    headroom: float = HEADROOM,
) -> FirstScenario:
    """Return a scenario for a model (preset or config.json) on a cluster, with a layout that fits in memory.

    The cluster is a name or a file; ``gpus`` defaults to its own count. ``batch`` is in sequences and defaults to 4M
    tokens, for a mixture of experts to 30,720 tokens per GPU if that is more. InputError for unknown names, for more
    GPUs than the cluster can have, and where nothing fits.
    """
    if "/" not in model and not model.endswith(".json"):
        load_model_entry(model)  # which rejects an unknown name
    own = {} if sequence_length is None else {"sequence_length": sequence_length}
    place, count = _cluster_document(cluster, gpus)
    called = Path(model).resolve().parent.name if model.endswith(".json") else model
    name = f"{called}, {count} GPUs of {Path(cluster).stem}"
    document = {"name": name, "cluster": place, "gpus": count, "model": {"preset": model, **own}}
    try:
        whole, layout, _ = _choose_and_add_layout(document, batch, headroom)
    except InputError as problem:
        raise InputError(str(problem).replace("<document>: model.preset", model)) from None
    return FirstScenario(whole, layout)


def build_model_scenario(
    job: Mapping[str, Any], folder: Path, notes: Iterable[str], overridden: Collection[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a scenario document for an imported model, and notes with those on its layout; InputError if none fits.

    ``job``: cluster, gpus, model, and what else of training is known. ``overridden``: keys that --set changes
    afterwards, about which no note speaks.
    """

    def changes(key: str) -> bool:
        return any(f"{key}.".startswith(f"{path}.") for path in overridden)

    whole, layout, base = _choose_and_add_layout(dict(job), folder=folder)
    held, capacity = layout.peak_bytes / 1e9, base.cluster.device.memory / 1e9
    batch, length = whole["training"]["global_batch"], base.model.sequence_length
    fits = f"a layout that fits with {HEADROOM:.0%} of memory left free ({held:.1f} of {capacity:.1f} GB)"
    fits = f"a layout that was chosen before --set changed {', '.join(overridden)}" if overridden else fits
    tokens = "" if changes("model.sequence_length") else f", about {batch * length / 2**20:.1f}Mi tokens"
    batches = [] if changes("training.global_batch") else [f"a batch of {batch:,} sequences{tokens}"]
    kept = (each for each in notes if tokens or not each.endswith("(--sequence-length changes it)"))
    return whole, (*kept, f"{fits}: a start, not the best (simcluster plan finds that)", *batches)


def _cluster_document(name: str, gpus: int | None) -> tuple[dict[str, Any], int]:
    topology = load_topology(name)
    built = load_cluster(name)
    there = built.num_gpus
    place: dict[str, Any] = {"topology": name}
    if gpus is None:
        return place, there
    machine = built.host_of.count(built.host_of[0])
    if isinstance(topology, FlatSpec):
        return {**place, "gpus": gpus}, gpus
    nodes = getattr(topology, "nodes", None)
    if isinstance(nodes, int):
        rack = rack_spec_of(topology)
        trays = count_full_trays(rack, gpus) if rack and gpus > machine else 0
        if rack and trays:
            place["machine"] = {"trays": trays} if trays < rack.trays else {}
            machine = trays * rack.gpus
            place = {name: value for name, value in place.items() if value}
        return {**place, "nodes": -(-gpus // machine)}, gpus
    if gpus > there:
        raise InputError(f"{name} has {there} GPUs and a fixed number of nodes; use --gpus {there} or fewer")
    return place, gpus
