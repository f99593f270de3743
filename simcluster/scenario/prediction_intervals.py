"""Prediction intervals of step times, from the errors of past predictions for similar, measured runs.

``documents/catalogue/residuals.yaml`` has them for groups of validated runs, as ``simcluster validate --residuals``
learns them (``evidence.validation.residuals``). A run belongs to the group of its GPU's generation, its model sharding,
and the length of its kernels, or to a wider one where that is too small. Needs the scenario and its FLOP, no
simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from simcluster.documents.catalogue import catalogue_path
from simcluster.documents.yaml_documents import read_document
from simcluster.schedules import schedules_with

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

ANY = "any"
"""Name of the group of all runs."""

SPANS = ("GPUs", "hidden size", "sequence length")
"""Sizes of runs for which the table has ranges."""

SHORT = 2e-3
"""Seconds at peak of a layer's forward and backward below which kernels are short, so that host overhead shows."""

_GENERATIONS = (("A100", 250e12, 400e12), ("H100", 800e12, 1200e12), ("B200", 2000e12, 2800e12))  # 16-bit peak, FLOP/s
_MANY, _FAR = 200, 2.0  # multiprocessors (AMD's GPUs with a B200's peak have 256); times beyond what was validated


@dataclass(frozen=True, slots=True)
class RunFeatures:
    """Features of a run that determine how accurate the predicted step time is.

    ``generation`` of the GPU ("": none of those validated), ``sharding`` "FSDP" (ZeRO 3) or "Megatron" (others), of a
    mixture of experts "FSDP mixture" or "Megatron mixture", ``length`` of its kernels, "short" or "long"; ``traits``
    are features that most steps do not have.
    """

    generation: str
    sharding: str
    length: str
    gpus: int
    hidden: int
    sequence: int
    traits: tuple[str, ...] = ()

    @property
    def group_names(self) -> tuple[str, ...]:
        """Return the names of the groups of measured reference runs like this run, narrowest group first."""
        wide = f"{self.generation or 'other GPU'}, {self.sharding}"
        return f"{wide}, {self.length} kernels", wide, self.sharding, ANY


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """Interval (s) in which the measured step time lies with the probability ``level``.

    Learned from ``rows`` measured runs of ``studies``, the group ``like``. ``extrapolates_on`` lists what
    no validated run has; then the interval is that of all runs, and not reliable.
    """

    low: float
    high: float
    level: float
    like: str
    rows: int
    studies: int
    extrapolates_on: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the interval as a dict for the result JSON."""
        low, high, *rest = asdict(self).items()
        return {"low_s": low[1], "high_s": high[1], **dict(rest), "extrapolates_on": list(self.extrapolates_on)}


@dataclass(frozen=True, slots=True)
class StudyErrors:
    """Prediction errors of one validation study, over all steps measured in the study.

    ``mean`` and ``worst`` are absolute errors, predicted over measured minus 1, and ``bias`` their signed mean (above
    0: predicted too long); ``like`` is the kind, ``spans`` the ranges of its GPUs, hidden size, sequence length.
    """

    study: str
    like: str
    rows: int
    mean: float
    worst: float
    bias: float
    spans: tuple[tuple[int, int], ...]


def run_features_of(scenario: Scenario, model_flops: float) -> RunFeatures:
    """Return the features of a run that determine how accurate the prediction of its step time is."""
    count, peaks = scenario.cluster.device.multiprocessors, scenario.cluster.device.peak.known_rates()
    peak = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or max(peaks.values())
    generation = next((name for name, low, high in _GENERATIONS if low < peak < high and count < _MANY), "")
    visits = scenario.microbatches * scenario.model.layers / scenario.parallel.pp
    layer = model_flops / scenario.gpus / visits / peak
    sharding = "FSDP" if scenario.parallel.zero == 3 else "Megatron"
    return RunFeatures(
        generation,
        f"{sharding} mixture" if scenario.model.moe else sharding,
        "short" if layer < SHORT else "long",
        scenario.gpus,
        scenario.model.hidden_size,
        scenario.model.sequence_length,
        tuple(_list_unusual_features(scenario)),
    )


def _list_unusual_features(scenario: Scenario) -> Iterator[str]:
    if scenario.parallel.cp > 1:
        yield "context parallelism"
    if scenario.model.moe:
        yield "a mixture of experts"
    if mla := scenario.model.mla:
        yield "sparse attention" if mla.indexer else "latent attention"
    for kind in scenario.model.layer_kinds or {}:
        yield f"{kind} layers"
    if scenario.training.precision == "fp32":
        yield "precision fp32"
    offload = scenario.memory.offload
    if offload.optimizer != "none" or offload.activations:
        yield "offload to the host"
    name = scenario.pipeline.schedule_name
    if scenario.parallel.pp > 1 and name not in schedules_with("validated"):
        yield f"schedule {name}"
    if any(not fault.is_neutral for fault in scenario.faults):
        yield "faults"
    if scenario.data and scenario.data.loader:
        yield "a data loader"
    if scenario.cluster.built.machines_per_site:
        yield "several sites"
    if scenario.training.outer:
        yield "workers that train apart"


def predict_interval(scenario: Scenario, model_flops: float, step_time: float) -> PredictionInterval:
    """Return the interval in which the measured step time should lie, given the predicted step time (s)."""
    return interval_for_features(run_features_of(scenario, model_flops), step_time, _residual_table())


def interval_for_features(features: RunFeatures, step_time: float, table: Mapping[str, Any]) -> PredictionInterval:
    """Return the interval of the measured step time for a run with these features, from a table of past errors."""
    groups = table["groups"]
    far = (*(each for each in features.traits if each not in table["traits"]), *_list_extrapolations(features, groups))
    name = ANY if far else next(name for name in features.group_names if name in groups)
    group = groups[name]
    low, high = group["low"] * step_time, group["high"] * step_time
    return PredictionInterval(low, high, table["level"], name, group["rows"], group["studies"], far)


def similar_studies(scenario: Scenario, model_flops: float) -> tuple[StudyErrors, ...]:
    """Return all validation studies, sorted by how similar their runs are to this scenario."""
    return rank_studies(run_features_of(scenario, model_flops), _residual_table())


def rank_studies(features: RunFeatures, table: Mapping[str, Any]) -> tuple[StudyErrors, ...]:
    """Return the validation studies of a table, sorted by how similar their runs are to this run."""
    own = features.group_names[0].split(", ")

    def distance(row: StudyErrors) -> tuple[int, float]:
        generation, sharding, length = (a == b for a, b in zip(own, row.like.split(", "), strict=True))
        shared = sharding + (sharding and generation) + (sharding and generation and length)
        outside = math.fsum(
            max(0.0, math.log(low / value), math.log(value / high))
            for value, (low, high) in zip((features.gpus, features.hidden, features.sequence), row.spans, strict=True)
        )
        return -shared, outside

    rows = [
        StudyErrors(**{name: row[name] for name in ("study", "like", "rows", "mean", "worst", "bias")},
                  spans=tuple(tuple(row[name]) for name in SPANS))
        for row in table["studies"]
    ]  # fmt: skip
    return tuple(sorted(rows, key=distance))


def _list_extrapolations(features: RunFeatures, groups: Mapping[str, Any]) -> Iterator[str]:
    near = groups.get(f"{features.generation}, {features.sharding}")
    if not features.generation:
        yield "a GPU of another generation"
    elif near is None:
        yield f"{features.sharding} on {features.generation}"
    for name, value in zip(SPANS, (features.gpus, features.hidden, features.sequence), strict=True):
        low, high = (near or groups[ANY])[name]
        if value > _FAR * high:
            yield f"{value:,} {name}" if name == "GPUs" else f"{name} {value:,}"
        elif value * _FAR < low and name != "GPUs":
            yield f"{name} {value:,}"


@cache
def _residual_table() -> Mapping[str, Any]:
    return read_document(catalogue_path("residuals.yaml")).data
