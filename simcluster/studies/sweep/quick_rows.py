"""Rows of a sweep by quick steps (``quick``), or by full runs where these are not exact; ``how`` states which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.kept import Kept
from simcluster.documents.reading import read_document
from simcluster.scenario.advice import launch_note
from simcluster.scenario.contents import Contents
from simcluster.scenario.data import no_longer_measured
from simcluster.scenario.effects import notes_without_effect, refuse_without_effect
from simcluster.scenario.fits import held
from simcluster.scenario.headroom import mark
from simcluster.scenario.scenario import Scenario, Variant, load, scenario_path
from simcluster.scenario.short_forms import schedule_alone
from simcluster.schedules import SCHEDULES
from simcluster.studies.sweep.playing import Row, measured
from simcluster.studies.sweep.quick import quick_numbers, quick_step
from simcluster.studies.sweep.stage_network import NotQuickError

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.studies.sweep.sweep import Swept

SECTIONS = ("parallel", "pipeline", "training", "overlap")
"""Whose values are changed without reading the scenario anew."""


class _BaseRead(NamedTuple):
    """A base file as it was read: its ``sections``, dp left open where the file leaves it out, so that it follows from
    the others; what it ``said`` of ``SECTIONS``, units as text, to be read again; and the ``written`` document."""

    sections: dict[str, Any]
    said: dict[str, dict[str, Any]]
    written: dict[str, Any]
    made: Kept

    def section(self, name: str, changes: Mapping[str, Any]) -> Any:
        """Return a section with these changes, one object for all variants that have the same changes."""
        section = type(self.sections[name])
        return self.made.once((name, repr(changes)), lambda: section(**{**self.said[name], **changes}))


_BASES: dict[str, tuple[Contents, _BaseRead]] = {}
_MOST_BASES = 4


def quickly(variant: Variant) -> Row:
    """Return the exact step time and what follows from it: ``how`` is quick, or full for a full run."""
    try:
        scenario = changed(variant)
        step_time = quick_step(scenario)
    except NotQuickError:
        return {**measured(variant), "how": "full"}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end a sweep of thousands
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}
    return {"status": "ok", "error": "", "how": "quick", **quick_numbers(scenario, step_time)}


def changed(variant: Variant) -> Scenario:
    """The variant's scenario; where it changes only values of sections, its base is read once for all of them."""
    paths = [path.split(".") for path, _ in variant.changes]
    schedules = [value for path, value in variant.changes if path == "pipeline.schedule"]
    plain = all(isinstance(value, str) and value in SCHEDULES for value in schedules)
    shared = isinstance(variant.base.what, str) and not variant.base.fixed
    if shared and plain and all(len(path) == 2 and path[0] in SECTIONS for path in paths):
        try:
            return _changed(_base(str(variant.base.what)), list(variant.changes))
        except (InputError, ValueError):
            pass  # is said in full below
    return variant.scenario()


def _changed(base: _BaseRead, given: list[tuple[str, Any]]) -> Scenario:
    found, changes = dict(base.sections), schedule_alone(given)
    if (measured := found["measured"]) is not None:
        told = no_longer_measured({"measured": {"changed": measured.changed}}, base.written, given)["measured"]
        found["measured"] = measured.model_copy(update={"changed": told["changed"] and tuple(told["changed"])})
    for name in dict.fromkeys(path.partition(".")[0] for path, _ in changes):
        own = {path.partition(".")[2]: value for path, value in changes if path.startswith(f"{name}.")}
        found[name] = base.section(name, own)
    scenario = Scenario.model_validate(found)  # parts that were checked already
    refuse_without_effect(scenario, given)
    return scenario


def _base(what: str) -> _BaseRead:
    """What a base file says, read again when it or a file that it names was changed: notebooks and the workers of a
    Dask cluster live on while somebody edits."""
    known = _BASES.get(what)
    if known is None or known[0].changed:
        known = _BASES[what] = _read(what)
        if len(_BASES) > _MOST_BASES:
            del _BASES[next(iter(_BASES))]
    return known[1]


def _read(what: str) -> tuple[Contents, _BaseRead]:
    path, contents = scenario_path(what), Contents()
    contents.digest([str(path.absolute())])
    base = load(what)
    written = read_document(path).data
    sections = {name: getattr(base, name) for name in Scenario.model_fields}
    document = base.document()
    said = {name: document[name] for name in SECTIONS}
    if not {"dp", "data_parallel_size"} & set(written.get("parallel", {})):
        sections["parallel"] = base.parallel.model_copy(update={"dp": 0})
        said["parallel"] = {name: value for name, value in document["parallel"].items() if name != "dp"}
    return contents, _BaseRead(sections, said, written, Kept(1024))


_MOST_LOOKED_AT = 300  # rows whose memory is planned, 10 ms each


@dataclass(frozen=True, slots=True)
class Room:
    """A row's variant, the bytes of its fullest GPU and their mark (``headroom.mark``), and which framework launches
    it, where few do."""

    variant: int
    memory: float
    mark: str
    note: str


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest rows that leave the ``headroom``, and the ``ahead``: faster than all of these, not to be
    recommended."""

    headroom: float
    rows: tuple[Room, ...]
    ahead: tuple[Room, ...]


def fastest(swept: Swept, table: pd.DataFrame, headroom: float, top: int) -> Fastest:
    """The ``top`` fastest rows of a sweep's table that leave the part ``headroom`` of memory free."""
    rows: list[Room] = []
    ahead: list[Room] = []
    good = table[table["status"] == "ok"]
    if not len(good):
        return Fastest(headroom, (), ())
    for _, row in good.sort_values(["step_time_s", "variant"]).head(_MOST_LOOKED_AT).iterrows():
        found = _room(swept, int(row["variant"]), row.get("peak_memory_bytes"), headroom)
        if not found.mark:
            rows.append(found)
        elif not rows:
            ahead.append(found)
        if len(rows) == top:
            break
    return Fastest(headroom, tuple(rows), tuple(ahead[:top]))


def _room(swept: Swept, number: int, memory: float | None, headroom: float) -> Room:
    """What a row holds; ``memory`` is None or no number where it was not played in full."""
    scenario = changed(swept.sweep.variant(number))
    if memory is None or memory != memory:
        memory = held(scenario)
    notes = [note for note in (launch_note(scenario), *notes_without_effect(scenario)) if note]
    return Room(number, memory, mark(memory, scenario.cluster.device.memory, headroom), "; ".join(notes))
