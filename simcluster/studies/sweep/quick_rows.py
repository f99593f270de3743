"""Rows of a sweep by quick steps, or by full runs where quick steps are not exact; column ``how`` states which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.kept import LruCache
from simcluster.documents.reading import read_document
from simcluster.scenario.advice import launch_note
from simcluster.scenario.contents import Contents
from simcluster.scenario.data import record_changes
from simcluster.scenario.effects import idle_field_notes, reject_idle_fields
from simcluster.scenario.fits import peak_bytes
from simcluster.scenario.memory_plan import fit_mark
from simcluster.scenario.scenario import Scenario, Variant, load, scenario_path
from simcluster.scenario.short_forms import reset_chunks
from simcluster.schedules import SCHEDULES
from simcluster.studies.sweep.playing import Row, measure_variant
from simcluster.studies.sweep.quick import quick_numbers, quick_step
from simcluster.studies.sweep.stage_network import NotQuickError

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.studies.sweep.sweep import SweepResult

SECTIONS = ("parallel", "pipeline", "training", "overlap")
"""Sections whose values are changed without reading the scenario again."""


class _BaseRead(NamedTuple):
    """A base scenario file of a sweep as it was read.

    In its ``sections`` dp is left open where the file omits it, so that it follows from the others. ``texts`` are the
    documents of ``SECTIONS``, units as text, to be read again; ``written`` is the file's document.
    """

    contents: Contents
    sections: dict[str, Any]
    texts: dict[str, dict[str, Any]]
    written: dict[str, Any]
    made: LruCache

    def section(self, name: str, changes: Mapping[str, Any]) -> Any:
        """Return a section of the scenario with changes; variants with equal changes share one object."""
        section = type(self.sections[name])
        return self.made.fetch((name, repr(changes)), lambda: section(**{**self.texts[name], **changes}))


_BASES = LruCache(4)


def measure_quickly(variant: Variant) -> Row:
    """Return a variant's row with its exact step time; column ``how`` is "quick", or "full" after a full run."""
    try:
        scenario = make_changed_scenario(variant)
        step_time = quick_step(scenario)
    except NotQuickError:
        return {**measure_variant(variant), "how": "full"}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end a sweep of thousands
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}
    return {"status": "ok", "error": "", "how": "quick", **quick_numbers(scenario, step_time)}


def make_changed_scenario(variant: Variant) -> Scenario:
    """Return a variant's scenario; the base file is read once if variants change only values of sections."""
    paths = [path.split(".") for path, _ in variant.changes]
    schedules = [value for path, value in variant.changes if path == "pipeline.schedule"]
    plain = all(isinstance(value, str) and value in SCHEDULES for value in schedules)
    shared = isinstance(variant.base.what, str) and not variant.base.fixed
    if shared and plain and all(len(path) == 2 and path[0] in SECTIONS for path in paths):
        try:
            return _apply_changes(_read_cached_base(str(variant.base.what)), list(variant.changes))
        except (InputError, ValueError):
            pass  # the full way below reports it
    return variant.scenario()


def _apply_changes(base: _BaseRead, given: list[tuple[str, Any]]) -> Scenario:
    found, changes = dict(base.sections), reset_chunks(given)
    if (measured := found["measured"]) is not None:
        told = record_changes({"measured": {"changed": measured.changed}}, base.written, given)["measured"]
        paths = told["changed"] and tuple(told["changed"])
        found["measured"] = base.made.fetch(("measured", paths), lambda: measured.model_copy(update={"changed": paths}))
    for name in dict.fromkeys(path.partition(".")[0] for path, _ in changes):
        own = {path.partition(".")[2]: value for path, value in changes if path.startswith(f"{name}.")}
        found[name] = base.section(name, own)
    scenario = Scenario.model_validate(found)  # parts that were checked already
    reject_idle_fields(scenario, given)
    return scenario


def _read_cached_base(what: str) -> _BaseRead:
    """Return a base scenario file, read again if it or a file that it names has changed.

    Notebooks and the workers of a Dask cluster outlive an edit.
    """
    if what in _BASES and _BASES[what].contents.changed:
        del _BASES[what]
    found: _BaseRead = _BASES.fetch(what, lambda: _read_base(what))
    return found


def _read_base(what: str) -> _BaseRead:
    path, contents = scenario_path(what), Contents()
    contents.digest([str(path.absolute())])
    base = load(what)
    written, document = read_document(path).data, base.document()
    sections = {name: getattr(base, name) for name in Scenario.model_fields}
    texts = {name: document[name] for name in SECTIONS}
    if not {"dp", "data_parallel_size"} & set(written.get("parallel", {})):
        sections["parallel"] = base.parallel.model_copy(update={"dp": 0})
        texts["parallel"] = {name: value for name, value in document["parallel"].items() if name != "dp"}
    return _BaseRead(contents, sections, texts, written, LruCache(1024))


_MOST_PLANNED = 300  # rows whose memory is planned, 10 ms each


@dataclass(frozen=True, slots=True)
class RowMemory:
    """Variant and memory (bytes on the fullest GPU) of a row, with the mark of its headroom (``headroom.mark``).

    ``note`` names the frameworks that can launch it, if few can.
    """

    variant: int
    memory: float
    mark: str
    note: str


@dataclass(frozen=True, slots=True)
class FastestRows:
    """The fastest rows that leave the ``headroom`` of memory, and faster ones (``ahead``) that do not."""

    headroom: float
    rows: tuple[RowMemory, ...]
    ahead: tuple[RowMemory, ...]


def find_fastest_rows(swept: SweepResult, table: pd.DataFrame, headroom: float, top: int) -> FastestRows:
    """Return the ``top`` fastest rows of a sweep's table that leave the fraction ``headroom`` of memory free.

    The memory of rows that were not simulated in full is planned, an upper bound.
    """
    rows: list[RowMemory] = []
    ahead: list[RowMemory] = []
    good = table[table["status"] == "ok"]
    by_time = good.sort_values(["step_time_s", "variant"]).head(_MOST_PLANNED) if len(good) else good
    for _, row in by_time.iterrows():
        number, memory = int(row["variant"]), row.get("peak_memory_bytes")
        scenario = make_changed_scenario(swept.sweep.variant(number))
        if memory is None or memory != memory:
            memory = peak_bytes(scenario)
        notes = [note for note in (launch_note(scenario), *idle_field_notes(scenario)) if note]
        found = RowMemory(number, memory, fit_mark(memory, scenario.cluster.device.memory, headroom), "; ".join(notes))
        if not found.mark:
            rows.append(found)
        elif not rows:
            ahead.append(found)
        if len(rows) == top:
            break
    return FastestRows(headroom, tuple(rows), tuple(ahead[:top]))
