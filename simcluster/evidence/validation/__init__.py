"""Validation of the simulator against measured runs: study files, simulated rows, and scores."""

from simcluster.evidence.validation.reports import score_overall
from simcluster.evidence.validation.step_studies import find_data_folder
from simcluster.evidence.validation.study import load_study
from simcluster.evidence.validation.study_runs import validate_studies

__all__ = ["find_data_folder", "load_study", "score_overall", "validate_studies"]
