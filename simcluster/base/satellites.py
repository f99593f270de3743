"""Registry of functions that are imported when they are called: of satellites, and of options of a run.

A satellite is a package that the core does not import: long runs (``longrun``), files of other tools (``importers``),
traces (``interop``), measured runs (``evidence``), pages (``interactive``) and RL steps (``rl``). The core asks for
names in ``PROVIDED``; their modules are then imported. Commands are in ``cli/commands.toml``, figures in
``show/plot_registry.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

PROVIDED: Mapping[str, str] = {
    # what a scenario names
    "import of a topology": "importers.cluster_document:ImportSpec",
    "topology of other tools": "importers.topology_files:import_topology",
    "form of a topology file": "importers.topology_files:detect_topology_format",
    "ASTRA-sim network": "importers.astra_network:is_astra_network",
    "model of a config.json": "importers.hugging_face:model_from_config",
    "model at its usual length": "importers.hugging_face:model_at_default_length",
    "assumptions of a config.json": "importers.hugging_face:assumptions_of_config",
    # lists of built-in things
    "list of failures": "longrun.displays:list_failures",
    "list of laws": "longrun.displays:list_loss_laws",
    "list of questions": "longrun.displays:list_advice_questions",
    # what an option of a run adds
    "steps of a checkpoint": "studies.whatif.extra_steps:add_overlapped_steps",
    "replicas of a step": "studies.whatif.frozen_link_error:simulate_replicas",
    "simulation of all ranks": "studies.whatif.folding_verification:verify_folding",
    # what a command or a study adds
    "costs per step": "longrun.studies.periodic_work:periodic_work_answer",
    "estimator of recorded jobs": "interop.replay.trace_writer:StragglerEstimator",
    "stragglers in step times": "interop.commands.replay:print_step_stragglers",
    "straggling in words": "interop.replay.straggler_metrics:explain_slowdown",
    "is a trace": "interop.kineto.profile_loader:is_kernel_trace",
    "difference from a trace": "interop.commands.diff_trace:run",
    "trace of a result": "interop.export.trace_export:write_trace",
    "path of a trace": "interop.export.trace_export:check_trace_path",
    "trace of a report": "interop.trace_comparison.trace_difference:make_trace_comparer",
    "page of variants": "interactive.variants.controls_page:page_with_controls",
    "variants of a page": "interactive.variants.report_variants:simulate_variants",
    "keys of a page": "interactive.variants.report_variants:check_varied_paths",
}
"""Name of each function: its module below ``simcluster`` and its name there."""

DisplayForm = Literal["lines", "texts", "pages", "gantt"]
"""Form of display: ``repr``, ``str``, HTML of a notebook cell, or a timeline's figure."""

DISPLAY_TABLES: Mapping[DisplayForm, tuple[str, ...]] = {
    "lines": (
        "show.repr_lines:REPR_LINES",
        "longrun.displays:LINES",
        "interop.display:LINES",
        "evidence.validation.reports:LINES",
    ),
    "texts": ("cli.answers:TEXTS", "interop.display:TEXTS"),
    "pages": ("interactive.notebook.object_html:OBJECT_HTML",),
    "gantt": ("interactive.notebook.timelines:GANTT_FUNCTIONS",),
}
"""Display functions of objects: tables of functions by class name ("" for all other classes)."""


def load_object(place: str) -> Any:
    """Import an object of the package by "module:name", as in "show.repr_lines:REPR_LINES"."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"simcluster.{module}"), name)


def load_satellite_object(name: str) -> Any:
    """Import the function registered in ``PROVIDED`` under ``name``, and return it."""
    return load_object(PROVIDED[name])
