"""The best layouts of a job on so many GPUs: the space, a lower bound of the step time, and a search that proves."""
