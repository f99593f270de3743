"""Profiles of PyTorch jobs (Kineto's JSON, one file a rank): read, align the clocks, replay, measure, ask, write back.

job = load_profiles("traces/")
print(measure(job).slowdown, breakdown(job))
"""

from __future__ import annotations

from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.loading import is_profile, load_profiles

__all__ = ["ProfiledJob", "is_profile", "load_profiles"]
