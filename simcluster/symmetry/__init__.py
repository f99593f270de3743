"""Fast path: find classes of equal ranks, groups and links, and simulate one representative of each class."""
