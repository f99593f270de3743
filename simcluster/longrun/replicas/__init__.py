"""Many runs of a run at once, in arrays: an accelerator of ``events``, which it equals run by run."""

from simcluster.longrun.replicas.runs import play_replicas

__all__ = ["play_replicas"]
