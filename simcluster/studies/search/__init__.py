"""Search for the best layouts of a job: the space, a lower bound of the step time, and a proven optimum."""
