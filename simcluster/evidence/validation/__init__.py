"""Predicted against measured: study files, their tables, the runs that they ask for, and the scores."""

from simcluster.evidence.validation.reports import Overall, Refused, Report, ScoredPart, overall
from simcluster.evidence.validation.run import validate_studies
from simcluster.evidence.validation.scores import Score, ScoredPoint, geometric_score, relative_score
from simcluster.evidence.validation.study import StudyFile, load_study
from simcluster.evidence.validation.tables import data_folder

__all__ = [
    "Overall",
    "Refused",
    "Report",
    "Score",
    "ScoredPart",
    "ScoredPoint",
    "StudyFile",
    "data_folder",
    "geometric_score",
    "load_study",
    "overall",
    "relative_score",
    "validate_studies",
]
