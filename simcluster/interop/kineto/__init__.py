"""Profiles of PyTorch (Kineto JSON) and Nsight Systems: reading, replay, metrics and export."""

from __future__ import annotations

from simcluster.interop.kineto.profile_loader import is_profile, load_profiles
from simcluster.interop.kineto.profiled_job import ProfiledJob

__all__ = ["ProfiledJob", "is_profile", "load_profiles"]
