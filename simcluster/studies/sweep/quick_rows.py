"""Result rows of a sweep, by quick steps where they are exact, else by full runs; the column ``how`` states which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.lru_cache import LruCache
from simcluster.documents.yaml_documents import read_document
from simcluster.scenario.cost_advice import describe_framework_support
from simcluster.scenario.field_effects import describe_idle_fields, reject_idle_fields
from simcluster.scenario.file_digests import FileDigests
from simcluster.scenario.memory_plan import fit_mark
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.scenario.scenario import Scenario, ScenarioVariant, find_scenario_file, load
from simcluster.scenario.short_forms import record_measured_changes, reset_unused_chunks
from simcluster.schedules import SCHEDULES
from simcluster.studies.sweep.quick_steps import quick_step_numbers, quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError
from simcluster.studies.sweep.variant_simulation import Row, simulate_variant

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.studies.sweep.sweep import SweepResult

SECTIONS = ("parallel", "pipeline", "training", "overlap")
"""Sections whose values are changed without reading the scenario again."""


class _LoadedBase(NamedTuple):
    """The base scenario file of a sweep, parsed once for all variants.

    In its ``sections`` dp is left open where the file omits it, so that it follows from others. ``section_documents``
    are those of ``SECTIONS``, units as text, to be read again; ``document`` is the file's document.
    """

    contents: FileDigests
    sections: dict[str, Any]
    section_documents: dict[str, dict[str, Any]]
    document: dict[str, Any]
    section_cache: LruCache

    def changed_section(self, name: str, changes: Mapping[str, Any]) -> Any:
        """Return a scenario section with these changes applied; variants with equal changes share one object."""
        section = type(self.sections[name])
        key = name, repr(changes)
        return self.section_cache.get_or_make(key, lambda: section(**{**self.section_documents[name], **changes}))


_BASES = LruCache(4)


def simulate_quickly(variant: ScenarioVariant) -> Row:
    """Return a variant's result row; its column ``how`` is "quick", or "full" if the variant needed a full run."""
    try:
        scenario = make_variant_scenario(variant)
        step_time = quick_step_time(scenario)
    except NeedsFullRunError:
        return {**simulate_variant(variant), "how": "full"}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end a sweep of thousands
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}
    return {"status": "ok", "error": "", "how": "quick", **quick_step_numbers(scenario, step_time)}


def make_variant_scenario(variant: ScenarioVariant) -> Scenario:
    """Return a variant's scenario; use the cached base file if only values within sections change."""
    paths = [path.split(".") for path, _ in variant.changes]
    schedules = [value for path, value in variant.changes if path == "pipeline.schedule"]
    plain = all(isinstance(value, str) and value in SCHEDULES for value in schedules)
    shared = isinstance(variant.base.source, str) and not variant.base.fixed_changes
    if shared and plain and all(len(path) == 2 and path[0] in SECTIONS for path in paths):
        try:
            return _apply_changes(_read_cached_base(str(variant.base.source)), list(variant.changes))
        except (InputError, ValueError):
            pass  # the full way below reports it
    return variant.scenario()


def _apply_changes(base: _LoadedBase, given: list[tuple[str, Any]]) -> Scenario:
    found, changes = dict(base.sections), reset_unused_chunks(given)
    if (measured := found["measured"]) is not None:
        told = record_measured_changes({"measured": {"changed": measured.changed}}, base.document, given)["measured"]
        paths = told["changed"] and tuple(told["changed"])
        key = "measured", paths
        found["measured"] = base.section_cache.get_or_make(key, lambda: measured.model_copy(update={"changed": paths}))
    for name in dict.fromkeys(path.partition(".")[0] for path, _ in changes):
        own = {path.partition(".")[2]: value for path, value in changes if path.startswith(f"{name}.")}
        found[name] = base.changed_section(name, own)
    scenario = Scenario.model_validate(found)  # parts that were checked already
    reject_idle_fields(scenario, given)
    return scenario


def _read_cached_base(what: str) -> _LoadedBase:
    """Return the base scenario from the cache; read its file again if that file, or a file that it names, has changed.

    Notebooks and the workers of a Dask cluster outlive an edit.
    """
    if what in _BASES and _BASES[what].contents.changed_files:
        del _BASES[what]
    found: _LoadedBase = _BASES.get_or_make(what, lambda: _read_base(what))
    return found


def _read_base(what: str) -> _LoadedBase:
    path, contents = find_scenario_file(what), FileDigests()
    contents.digest([str(path.absolute())])
    base = load(what)
    written, document = read_document(path).data, base.document()
    sections = {name: getattr(base, name) for name in Scenario.model_fields}
    texts = {name: document[name] for name in SECTIONS}
    if not {"dp", "data_parallel_size"} & set(written.get("parallel", {})):
        sections["parallel"] = base.parallel.model_copy(update={"dp": 0})
        texts["parallel"] = {name: value for name, value in document["parallel"].items() if name != "dp"}
    return _LoadedBase(contents, sections, texts, written, LruCache(1024))


_MOST_PLANNED = 300  # rows whose memory is planned, 10 ms each


@dataclass(frozen=True, slots=True)
class RowMemory:
    """Memory (bytes of the fullest GPU) of one variant in a sweep, and the mark of its headroom in a table.

    ``note`` names the frameworks that can launch it, if few can.
    """

    variant: int
    memory: float
    headroom_mark: str
    note: str


@dataclass(frozen=True, slots=True)
class FastestRows:
    """Fastest variants that leave enough GPU memory free, and faster variants that leave too little."""

    headroom: float
    rows: tuple[RowMemory, ...]
    rows_without_headroom: tuple[RowMemory, ...]


def find_fastest_rows(swept: SweepResult, table: pd.DataFrame, headroom: float, top: int) -> FastestRows:
    """Return the ``top`` fastest variants that leave the fraction ``headroom`` of GPU memory free.

    The memory of rows that were not simulated in full is planned, an upper bound.
    """
    rows: list[RowMemory] = []
    ahead: list[RowMemory] = []
    good = table[table["status"] == "ok"]
    by_time = good.sort_values(["step_time_s", "variant"]).head(_MOST_PLANNED) if len(good) else good
    for _, row in by_time.iterrows():
        number, memory = int(row["variant"]), row.get("peak_memory_bytes")
        scenario = make_variant_scenario(swept.sweep.make_variant(number))
        if memory is None or memory != memory:
            memory = peak_memory_bytes(scenario)
        notes = [note for note in (describe_framework_support(scenario), *describe_idle_fields(scenario)) if note]
        found = RowMemory(number, memory, fit_mark(memory, scenario.cluster.device.memory, headroom), "; ".join(notes))
        if not found.headroom_mark:
            rows.append(found)
        elif not rows:
            ahead.append(found)
        if len(rows) == top:
            break
    return FastestRows(headroom, tuple(rows), tuple(ahead[:top]))
