"""Predicted against measured: study files, their tables, the runs that they ask for, and the scores."""

from simcluster.evidence.validation.reports import Overall, Part, Refused, Report, overall
from simcluster.evidence.validation.run import validate_studies
from simcluster.evidence.validation.scores import Point, Score, geometric_score, relative_score
from simcluster.evidence.validation.study import StudyFile, load_study
from simcluster.evidence.validation.tables import data_folder

__all__ = [
    "Overall",
    "Part",
    "Point",
    "Refused",
    "Report",
    "Score",
    "StudyFile",
    "data_folder",
    "geometric_score",
    "load_study",
    "overall",
    "relative_score",
    "validate_studies",
]
