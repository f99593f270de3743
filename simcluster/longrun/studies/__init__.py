"""Studies of long runs: simulated states of the cluster, outcomes of runs, policies, and advice."""
