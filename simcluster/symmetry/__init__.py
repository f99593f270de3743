"""Fast path: classes of equal ranks, groups and links (an equitable partition), of which one is simulated."""
