"""Studies of long runs: simulated cluster states, outcomes of training runs, compared policies, and advice."""
