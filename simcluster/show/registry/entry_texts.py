"""Text of one built-in entry, such as a device or topology: its unchanged file, or its values as YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.builtin_documents import builtin_path
from simcluster.documents.catalogue import catalogue_path, load_presets
from simcluster.documents.catalogue.devices import load_device_entry
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.overrides import Changes
from simcluster.documents.yaml_documents import STDIN
from simcluster.documents.yaml_syntax import to_yaml
from simcluster.faults import FAULTS
from simcluster.model.kind_documents import BUILTIN_DOCUMENTS
from simcluster.scenario.document_resolution import load_topology
from simcluster.scenario.scenario import load
from simcluster.scenario.scenario_keys import ScenarioKey, list_scenario_keys
from simcluster.schedules import SCHEDULES
from simcluster.show.registry.kinds import KINDS, list_entries, list_names, normalize_kind_name
from simcluster.show.yaml_text import yaml_text


def find_kind_of_entry(name: str, kind: str | None = None) -> str:
    """Return which list of built-in entries (models, devices, ...) has this name; raise InputError if unclear."""
    if kind is not None:
        kind = normalize_kind_name(kind)
        list_entries(kind)
    found = find_kinds_with_entry(name, kind)
    if not found and kind and (others := find_kinds_with_entry(name)):
        raise InputError(f"--kind {kind}: {name!r} is not in this list; write --kind {' or --kind '.join(others)}")
    if not found:
        everything = dict.fromkeys(word for each in ([kind] if kind else KINDS) for word in list_names(each))
        raise InputError(
            f"nothing built-in is called {name!r}{did_you_mean(name, everything)}; simcluster list shows all names"
        )
    if len(found) > 1 and found[0] != "scenarios":  # a scenario's name is printed to be run
        raise InputError(f"{name!r} is in {len(found)} lists; choose one: --kind {' or --kind '.join(found)}")
    return found[0]


def find_kinds_with_entry(name: str, kind: str | None = None) -> list[str]:
    """Return all lists of built-in entries (scenarios, models, devices, ...) that have an entry of this name."""
    return [each for each in ([kind] if kind else KINDS) if name in list_names(each)]


def entry_text(name: str, kind: str | None = None, *, full: bool = False, changes: Changes = ()) -> str:
    """Return the text of a built-in entry, as YAML if users can write such an entry in a file.

    ``full`` prints a scenario or topology with all keys and their defaults; ``changes`` apply to these, too. A scenario
    may also be your file. InputError for an unknown name.
    """
    changes = list(changes.items()) if isinstance(changes, Mapping) else list(changes)
    own = kind is None and (name == STDIN or Path(name).is_file())
    of = "scenarios" if own else find_kind_of_entry(name, kind)
    if of == "scenarios" and (full or changes or own):
        head = f"# The scenario {name}, with every key; keys that you omit have their defaults."
        return f"{head}\n{yaml_text(load(name, changes).document())}"
    if of == "topologies" and (full or changes):
        overrides = [pair for pair in changes if isinstance(pair, tuple)]
        topology = load_topology(name, overrides).model_dump(mode="json", exclude_none=True)
        return f"# The topology {name}, with every key.\n{yaml_text(topology)}"
    if full or changes:
        raise InputError(f"{name!r} is in {of}; omit --full and changes: only scenarios and topologies take them")
    if of in ("scenarios", "topologies", "studies"):
        folder = "scenarios/validation" if of == "studies" else of
        return builtin_path(folder, name).read_text(encoding="utf-8")
    entry = next(each for each in list_entries(of) if each.name == name)
    source = [f"# Source: {entry.source}"] if entry.source else []
    about = [f"# {entry.name}: {entry.description}", *source, f"# Used in: {KINDS[of].used_by}"]
    return "\n".join([*about, *(_TEXT_MAKERS[of](name) if of in _TEXT_MAKERS else ())]).rstrip() + "\n"


def _section_text(section: str, data: Callable[[str], Mapping[str, Any]]) -> Callable[[str], Iterable[str]]:
    return lambda name: [to_yaml({section: {key: value for key, value in data(name).items() if key != "name"}})]


def _catalogue_text(file: str) -> Callable[[str], Iterable[str]]:
    return lambda name: [to_yaml({name: load_presets(file)[name]})]


def _layer_kind_text(name: str) -> Iterable[str]:
    if name in BUILTIN_DOCUMENTS:
        yield "# To describe a kind of your own: change a copy, and give it in model.layer_kinds.NAME"
        yield catalogue_path(f"layer_kinds/{name}.yaml").read_text(encoding="utf-8")


def _device_text(name: str) -> Iterable[str]:
    yield "# To use a changed copy: save it to a file, and give it as --cluster.device FILE.yaml"
    yield to_yaml({key: value for key, value in load_device_entry(name).items() if key != "name"})


def _software_text(name: str) -> Iterable[str]:
    return [] if name == "ideal" else _section_text("software", lambda each: load_presets("software.yaml")[each])(name)


def _fault_text(name: str) -> Iterable[str]:
    mine = f"faults.*[{name}]."
    keys = [key for key in list_scenario_keys() if key.path.startswith(mine) and key.path != f"{mine}kind"]
    yield to_yaml({"faults": [dict(FAULTS[name].EXAMPLE)]}).rstrip()
    yield from describe_keys(keys, mine)


def describe_keys(keys: Sequence[ScenarioKey], path_prefix: str) -> Iterator[str]:
    """Yield comment lines that describe the name, type, default and meaning of scenario keys."""
    for key in keys:
        default = f"; default: {key.default_text}" if key.default_text else "; required" if key.required else ""
        yield f"#   {key.path.removeprefix(path_prefix)}: {key.description} ({key.type_text}{default})"


def _schedule_text(name: str) -> Iterable[str]:
    entry = SCHEDULES[name]
    for fact in fields(entry):
        value = getattr(entry, fact.name)
        if isinstance(value, bool):
            yield f"# {fact.name.replace('_', ' ')}: {'yes' if value else 'no'}"
    yield to_yaml({"pipeline": {"schedule": name}}).rstrip()
    yield f"# To print it as rows and over time: simcluster schedule {name} --stages 4 --microbatches 8"


_TEXT_MAKERS: Mapping[str, Callable[[str], Iterable[str]]] = {
    "models": _section_text("model", load_model_entry),
    "layer-kinds": _layer_kind_text,
    "devices": _device_text,
    "links": _catalogue_text("links.yaml"),
    "software": _software_text,
    "failures": _catalogue_text("failures.yaml"),
    "laws": _catalogue_text("loss_laws.yaml"),
    "faults": _fault_text,
    "schedules": _schedule_text,
}
"""Functions that return the text lines of an entry below its heading, by kind."""
