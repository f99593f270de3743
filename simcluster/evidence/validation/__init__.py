"""Predicted against measured: study files, their tables, the runs that they ask for, and the scores."""

from simcluster.evidence.validation.reports import overall
from simcluster.evidence.validation.run import validate_studies
from simcluster.evidence.validation.steps import data_folder
from simcluster.evidence.validation.study import load_study

__all__ = ["data_folder", "load_study", "overall", "validate_studies"]
