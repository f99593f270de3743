"""Search for the best layouts of a job: space of layouts, lower bounds of the step time, proven optimum."""
