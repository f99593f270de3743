"""Profiles of PyTorch jobs (Kineto's JSON, one file a rank): read, align the clocks, replay, measure, ask, write back.

job = load_profiles("traces/")
print(measure(job).slowdown, breakdown(job))
"""

from __future__ import annotations

from simcluster.interop.kineto.profile_loader import is_profile, load_profiles
from simcluster.interop.kineto.profiled_job import ProfiledJob

__all__ = ["ProfiledJob", "is_profile", "load_profiles"]
