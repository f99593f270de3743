"""One part of a job by itself: a collective, a cluster, a schedule with given times."""
