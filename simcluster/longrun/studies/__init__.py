"""Studies of long runs: simulated cluster states, training run outcomes, policy comparisons, and advice."""
