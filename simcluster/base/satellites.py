"""Registry of the functions that satellite packages add to the core, by module path.

A satellite is a package that the core does not import: runs of weeks and budgets (``longrun``), files of other tools
(``importers``), traces (``interop``), measured runs (``evidence``) and interactive pages (``interactive``). The core
asks for a name of ``PROVIDED``, whose module is then imported. Commands are in ``cli/commands.toml``, figures in
``show/pictures.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

SATELLITES = ("evidence", "importers", "interactive", "interop", "longrun")

PROVIDED: Mapping[str, str] = {
    # what a scenario names
    "import of a topology": "importers.cluster_document:ImportSpec",
    "topology of other tools": "importers.topology_files:import_topology",
    "form of a topology file": "importers.topology_files:detect_format",
    "ASTRA-sim network": "importers.astra_network:is_astra_network",
    "model of a config.json": "importers.hugging_face:model_from_config",
    "model at its usual length": "importers.hugging_face:model_at_usual_length",
    "assumptions of a config.json": "importers.hugging_face:assumptions_of_config",
    # lists of built-in things
    "list of failures": "longrun.displays:list_failures",
    "list of laws": "longrun.displays:list_laws",
    "list of questions": "longrun.displays:list_questions",
    # what a command or a study adds
    "costs per step": "longrun.studies.amortised:amortised_answer",
    "estimator of recorded jobs": "interop.replay.trace_writer:TraceEstimator",
    "straggling in words": "interop.replay.straggler_metrics:explain_slowdown",
    "is a trace": "interop.kineto.profile_loader:is_kernel_trace",
    "difference from a trace": "interop.commands.diff_trace:run",
    "trace of a result": "interop.export.trace_export:write_trace",
    "path of a trace": "interop.export.trace_export:check_trace_path",
    "trace of a report": "interop.trace_comparison.trace_difference:make_trace_comparer",
    "page of variants": "interactive.moving.moving:page_with_controls",
    "variants of a page": "interactive.moving.report_variants:simulate_variants",
    "keys of a page": "interactive.moving.report_variants:check_vary",
}
"""Name of each function: its module below ``simcluster`` and its name there."""

DisplayForm = Literal["lines", "texts", "pages", "gantt"]
"""Form of display: ``repr``, ``str``, HTML of a notebook cell, or a timeline's figure."""

DISPLAY_TABLES: Mapping[DisplayForm, tuple[str, ...]] = {
    "lines": (
        "show.lines:SHOWN",
        "longrun.displays:LINES",
        "interop.display:LINES",
        "evidence.validation.reports:LINES",
    ),
    "texts": ("cli.answers:TEXTS", "interop.display:TEXTS"),
    "pages": ("interactive.notebook.pages:SHOWN",),
    "gantt": ("interactive.notebook.timelines:SHOWN",),
}
"""Display functions of objects: tables of functions by class name ("" for all other classes)."""


def load_object(place: str) -> Any:
    """Import and return the object that ``place``, as in "show.lines:SHOWN", names below ``simcluster``."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"simcluster.{module}"), name)


def load_provided(name: str) -> Any:
    """Import and return the object that ``PROVIDED`` lists under a name."""
    return load_object(PROVIDED[name])
