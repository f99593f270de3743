"""Text of one built-in thing: a file as it is, or a catalogue entry as YAML with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.devices import device_document
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.composing import to_yaml
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.overrides import Changes
from simcluster.documents.reading import STDIN
from simcluster.documents.shipped import builtin_path
from simcluster.faults import FAULTS
from simcluster.scenario.files import load_topology
from simcluster.scenario.keys import ScenarioKey, scenario_keys
from simcluster.scenario.scenario import load
from simcluster.schedules import SCHEDULES
from simcluster.show.registry.kinds import KINDS, entries_of, list_names, plain_kind
from simcluster.show.yaml_text import yaml_text


def kind_of(name: str, kind: str | None = None) -> str:
    """Return the kind of a name, scenarios first; InputError if it is unknown, or ambiguous without ``kind``."""
    if kind is not None:
        kind = plain_kind(kind)
        entries_of(kind)
    found = lists_of(name, kind)
    if not found and kind and (others := lists_of(name)):
        raise InputError(f"--kind {kind}: {name!r} is in another list: write --kind {' or --kind '.join(others)}")
    if not found:
        everything = dict.fromkeys(word for each in ([kind] if kind else KINDS) for word in list_names(each))
        raise InputError(
            f"nothing that ships is called {name!r}{did_you_mean(name, everything)}; simcluster list says what there is"
        )
    if len(found) > 1 and found[0] != "scenarios":  # a scenario's name is printed to be run
        raise InputError(f"{name!r} is in {len(found)} lists; say which: --kind {' or --kind '.join(found)}")
    return found[0]


def lists_of(name: str, kind: str | None = None) -> list[str]:
    """Return the kinds that have an entry of this name, scenarios first."""
    return [each for each in ([kind] if kind else KINDS) if name in list_names(each)]


def text_of_entry(name: str, kind: str | None = None, *, full: bool = False, changes: Changes = ()) -> str:
    """Return a built-in thing as text: YAML if a file could hold it.

    ``full`` prints a scenario or topology with all keys and their defaults; ``changes`` apply to these, too. A scenario
    may also be your file. InputError for an unknown name.
    """
    changes = list(changes.items()) if isinstance(changes, Mapping) else list(changes)
    own = kind is None and (name == STDIN or Path(name).is_file())
    of = "scenarios" if own else kind_of(name, kind)
    if of == "scenarios" and (full or changes or own):
        head = f"# The scenario {name}, with every key; keys that you omit have their defaults."
        return f"{head}\n{yaml_text(load(name, changes).document())}"
    if of == "topologies" and (full or changes):
        overrides = [pair for pair in changes if isinstance(pair, tuple)]
        topology = load_topology(name, overrides).model_dump(mode="json", exclude_none=True)
        return f"# The topology {name}, with every key.\n{yaml_text(topology)}"
    if full or changes:
        raise InputError(f"{name!r} is one of the {of}: --full and changes are for scenarios and topologies")
    if of in ("scenarios", "topologies", "studies"):
        folder = "scenarios/validation" if of == "studies" else of
        return builtin_path(folder, name).read_text(encoding="utf-8")
    entry = next(each for each in entries_of(of) if each.name == name)
    source = [f"# Source: {entry.source}"] if entry.source else []
    about = [f"# {entry.name}: {entry.what}", *source, f"# Named in: {KINDS[of].named}"]
    return "\n".join([*about, *(_SHOWN[of](name) if of in _SHOWN else ())]).rstrip() + "\n"


def _section(section: str, data: Callable[[str], Mapping[str, Any]]) -> Callable[[str], Iterable[str]]:
    return lambda name: [to_yaml({section: {key: value for key, value in data(name).items() if key != "name"}})]


def _of_catalogue(file: str) -> Callable[[str], Iterable[str]]:
    return lambda name: [to_yaml({name: load_presets(file)[name]})]


def _device(name: str) -> Iterable[str]:
    yield "# As a file of its own, to be changed: --cluster.device FILE.yaml"
    yield to_yaml({key: value for key, value in device_document(name).items() if key != "name"})


def _software(name: str) -> Iterable[str]:
    return [] if name == "ideal" else _section("software", lambda each: load_presets("software.yaml")[each])(name)


def _fault(name: str) -> Iterable[str]:
    mine = f"faults.*[{name}]."
    keys = [key for key in scenario_keys() if key.path.startswith(mine) and key.path != f"{mine}kind"]
    yield to_yaml({"faults": [dict(FAULTS[name].EXAMPLE)]}).rstrip()
    yield from key_lines(keys, mine)


def key_lines(keys: Sequence[ScenarioKey], above: str) -> Iterator[str]:
    """Yield comments that describe keys: name, type, default, description."""
    for key in keys:
        default = f"; default: {key.default_text}" if key.default_text else "; required" if key.required else ""
        yield f"#   {key.path.removeprefix(above)}: {key.description} ({key.takes}{default})"


def _schedule(name: str) -> Iterable[str]:
    entry = SCHEDULES[name]
    for fact in fields(entry):
        value = getattr(entry, fact.name)
        if isinstance(value, bool):
            yield f"# {fact.name.replace('_', ' ')}: {'yes' if value else 'no'}"
    yield to_yaml({"pipeline": {"schedule": name}}).rstrip()
    yield f"# In rows and in time: simcluster schedule {name} --stages 4 --microbatches 8"


_SHOWN: Mapping[str, Callable[[str], Iterable[str]]] = {
    "models": _section("model", model_document),
    "devices": _device,
    "links": _of_catalogue("links.yaml"),
    "software": _software,
    "failures": _of_catalogue("failures.yaml"),
    "laws": _of_catalogue("loss_laws.yaml"),
    "faults": _fault,
    "schedules": _schedule,
}
"""Lines below the head, by kind."""
