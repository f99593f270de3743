"""Validation studies of single collectives: predicted and measured times by message size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes
from simcluster.documents.csv_tables import CsvRow
from simcluster.documents.diagnostics import join_or
from simcluster.documents.table_formulas import Cell
from simcluster.evidence.validation.measured_columns import read_positive_cell
from simcluster.evidence.validation.reports import FailedRow, Report, ScoredGroup, ScoredPoint, geometric_score
from simcluster.evidence.validation.step_studies import select_rows
from simcluster.evidence.validation.study import CollectiveStudy, MeasuredCollectiveSet, StudyFile
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.collective import collective_times
from simcluster.topology import Cluster
from simcluster.traffic.nccl.constants import ALGORITHMS, COLLECTIVES, EXCHANGES, Algorithm
from simcluster.traffic.nccl.exchange import predict_exchange
from simcluster.traffic.nccl.platforms import Platform, load_platform
from simcluster.traffic.nccl.predictor import choose

_EMPTY_SET = MeasuredCollectiveSet()
_TOPOLOGIES = {
    "dgx-a100": "dgx_a100", "oci-gpu4": "oci_bm_gpu_b4_8", "dgx-h100": "dgx_h100", "dgx-b200": "dgx_b200",
    "gb200-nvl72": "gb200_nvl72",
}  # fmt: skip
"""Built-in topology of each NCCL platform."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """Measured collective: full buffer ``size`` (B), ranks, platform, and NCCL's algorithm (None: NCCL's choice)."""

    collective: str
    nodes: int
    gpus_per_node: int
    size: float
    platform: Platform
    algorithm: Algorithm | None


PredictedTime = tuple[float, str]
"""Predicted seconds, and the algorithm and protocol."""


def predict_by_formula(call: MeasuredCollective) -> PredictedTime:
    """Predict a collective's time on idle links with NCCL's tuning model (``traffic.nccl``)."""
    shape: Any = {"nodes": call.nodes, "gpus_per_node": call.gpus_per_node}
    shape |= {"size": call.size, "platform": call.platform}
    if call.collective in EXCHANGES:
        alone = predict_exchange(call.collective, **shape)
        return alone.seconds, f"{alone.algorithm} {alone.protocol}"
    if call.collective not in COLLECTIVES:
        known = join_or((*COLLECTIVES, *EXCHANGES))
        raise InputError(f"the NCCL model does not know the collective {call.collective!r}; it knows {known}")
    choice = choose(call.collective, **shape, algorithms=(call.algorithm,) if call.algorithm else None)
    return choice.prediction.seconds, f"{choice.algorithm} {choice.protocol}"


def predict_by_network(call: MeasuredCollective) -> PredictedTime:
    """Predict a collective's time by simulating the platform's network without other traffic.

    It runs at NCCL's pace; what NCCL's tuner does not know (all-to-all) is limited by the links alone.
    """
    cluster = _platform_cluster(call.platform.name, call.nodes)
    each = cluster.num_gpus // call.nodes
    group = [node * each + gpu for node in range(call.nodes) for gpu in range(call.gpus_per_node)]
    algorithm = call.algorithm or "auto"
    simulated = collective_times(
        cluster, group, call.collective, call.size, algorithm=algorithm, nccl=call.platform.name
    )
    return simulated.duration, f"{simulated.method.algorithm} {simulated.method.protocol}".strip()


@cache
def _platform_cluster(platform: str, nodes: int) -> Cluster:
    if platform not in _TOPOLOGIES:
        raise InputError(f"no built-in topology for platform {platform}; use {join_or(_TOPOLOGIES)}")
    return load_cluster(_TOPOLOGIES[platform], [("nodes", nodes)])


PREDICTORS: Mapping[str, Callable[[MeasuredCollective], PredictedTime]] = {
    "formula": predict_by_formula,
    "network": predict_by_network,
}
"""Functions that predict the time of a collective, by the study's ``predictor``."""


def report_collectives(file: StudyFile, study: CollectiveStudy, table: tuple[CsvRow, ...]) -> Report:
    """Validate a collective study and return its report; raise InputError if the table lacks columns."""
    columns = [(("columns", meaning), column) for meaning, column in study.columns if column is not None]
    measured = [(("measured", index, "column"), each.column) for index, each in enumerate(study.measured)]
    rows, unfit = select_rows(file, table, [*columns, *measured])
    points: dict[tuple[str, str], list[ScoredPoint]] = {}
    refused: list[FailedRow] = []
    left_out: dict[str, int] = {f"where {study.where}": unfit} if unfit else {}
    for row in rows:
        name, collective = row.texts[study.columns.set], row.texts[study.columns.collective]
        of_set = study.sets.get(name, _EMPTY_SET)
        if of_set.left_out:
            reason = f"{name}: {of_set.left_out}"
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        group = f"{name}, {collective}"
        try:
            call = _parse_collective_row(study, of_set, row)
            present = [each for each in study.measured if row.cells[each.column] is not None]
            if not present:
                raise InputError(f"{join_or(each.column for each in study.measured)} is empty: nothing was measured")
            taken = present[0].seconds(row.cells, call.collective, call.nodes * call.gpus_per_node, call.size)
            seconds, by = PREDICTORS[study.predictor](call)
            point = ScoredPoint(format_bytes(call.size), group, seconds, taken, size=call.size, note=by)
            points.setdefault((name, collective), []).append(point)
        except InputError as problem:
            size = row.cells[study.columns.size]
            label = format_bytes(size) if isinstance(size, int | float) else row.label((study.columns.size,))
            refused.append(FailedRow(label, group, str(problem)))
    ordered = sorted(points, key=lambda key: key[1] != "all_reduce")
    parts = tuple(_score_collective(study, *key, points[key]) for key in ordered)
    return Report(file, parts, tuple(refused), tuple(left_out.items()))


def _parse_collective_row(study: CollectiveStudy, call_set: MeasuredCollectiveSet, row: CsvRow) -> MeasuredCollective:
    columns = study.columns
    gpu = row.texts[columns.gpu]
    platform = call_set.platform or study.platforms.get(gpu)
    if platform is None:
        raise InputError(f"the study has no platform for GPU {gpu!r}; it has platforms for {join_or(study.platforms)}")
    collective = row.texts[columns.collective]
    nodes, gpus = _read_whole_number(row.cells, columns.nodes), _read_whole_number(row.cells, columns.gpus)
    if gpus % nodes:
        raise InputError(f"{gpus} GPUs cannot be spread evenly over {nodes} nodes; remove the row")
    size = read_positive_cell(row.cells, columns.size)
    machine = load_platform(platform)
    ran = row.texts[columns.version] if columns.version else ""
    if ran and ran not in study.versions:
        raise InputError(f"the study does not define NCCL version {ran!r}; it defines {join_or(study.versions)}")
    if ran:
        machine = replace(machine, version=study.versions[ran])
    algorithm: Any = call_set.algorithm
    if algorithm == "column":  # from the row; None if NCCL chose
        text = row.texts[columns.algorithm] if columns.algorithm else ""
        algorithm = study.algorithms.get(text, text)
        if algorithm not in ALGORITHMS:
            known = join_or(study.algorithms)
            raise InputError(f"the study does not define the algorithm {text!r}; it defines {known}")
    return MeasuredCollective(collective, nodes, gpus // nodes, size, machine, algorithm)


def _read_whole_number(cells: Mapping[str, Cell], column: str) -> int:
    value = read_positive_cell(cells, column)
    if not value.is_integer():
        raise InputError(f"column {column} is {value}; it must be a whole number")
    return int(value)


def _score_collective(study: CollectiveStudy, name: str, collective: str, points: list[ScoredPoint]) -> ScoredGroup:
    of_set = study.sets.get(name, _EMPTY_SET)
    ordered = sorted(points, key=lambda point: point.size)
    return ScoredGroup(
        name=name, collective=collective,
        role="degraded" if of_set.degraded else "fitted" if collective in of_set.fitted else "held out",
        points=tuple(ordered), score=geometric_score([point for point in ordered if point.size >= study.small]),
        small=geometric_score([point for point in ordered if point.size < study.small]),
        aim=of_set.aim if collective == "all_reduce" else None, why=of_set.degraded,
    )  # fmt: skip
